//! Best fit: every region with tries of its free blocks by length.

#![forbid(unsafe_code)]

use super::tlsf::Tlsf;
use crate::region::DEFAULT_REGIONS;

/// Indices on microcontrollers are short, and so are their lists.
#[cfg(target_os = "none")]
type Word = u16;
#[cfg(not(target_os = "none"))]
type Word = u32;

/// Lists per power of two.
const LISTS: usize = if cfg!(target_os = "none") { 2 } else { 8 };

/// Best fit: the shortest block that is long enough, of equals the one that was freed last.
///
/// (Knuth, *The Art of Computer Programming*, vol. 1, 2.5.) All but the choice of a block is [`Tlsf`]: granules of 8 bytes, one bit for each,
/// no headers, up to `REGIONS` regions with lists of their own, checks if `CHECKED` is set. Here each list is a trie by length,
///
/// ```text
///  list of 8 to 11 granules     10 10               the bits behind the highest two
///                              0/   \1
///                          10 00     10 11          10 01 would be the right child of 10 00
///                            |                      equal lengths: linked, and not in the trie
///                          10 00
/// ```
///
/// so a request finds the shortest of its own list that is long enough, else the shortest of the next list that has any. Allocations and
/// frees take O(log n), where n is the length of a region in granules, and each step is a few instructions. A shrinking block of up
/// to 4 KiB moves if there is free memory for it that is shorter than itself; [`Heap::try_resize`](crate::Heap::try_resize) leaves it where it is.
///
/// On microcontrollers regions have up to 511 KiB and two lists per power of two, as in [`MicroTlsf`](super::MicroTlsf); `BestFit<u32>` is for longer ones. Elsewhere
/// they have up to 32 GiB and eight lists. For memory that the CPU cannot read there is [`GoodFit`](super::GoodFit), which compares as many blocks as its type says.
pub type BestFit<
    W = Word,
    const REGIONS: usize = DEFAULT_REGIONS,
    const SUBLISTS: usize = LISTS,
    const CHECKED: bool = { !cfg!(target_os = "none") },
> = Tlsf<W, REGIONS, SUBLISTS, CHECKED, true>;
