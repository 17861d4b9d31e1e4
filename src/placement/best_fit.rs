//! Best fit: every region keeps its free blocks in tries by length.

#![forbid(unsafe_code)]

use super::tlsf::Tlsf;
use crate::region::DEFAULT_REGIONS;

/// A granule index, which is short on microcontrollers.
#[cfg(target_os = "none")]
type Word = u16;
#[cfg(not(target_os = "none"))]
type Word = u32;

/// Lists per power of two.
const LISTS: usize = if cfg!(target_os = "none") { 2 } else { 8 };

/// Best fit: the shortest block that is long enough, and of equals the last one freed.
///
/// (Knuth, *The Art of Computer Programming*, vol. 1, 2.5.) All but the choice of a block is as in [`Tlsf`]: granules of 8 bytes with one
/// bit each, no headers, up to `REGIONS` regions with separate lists, and checks if `CHECKED` is set. Here each list is a trie by length,
///
/// ```text
///  list of 8 to 11 granules     10 10               the bits behind the highest two
///                              0/   \1
///                          10 00     10 11          10 01 would be the right child of 10 00
///                            |                      equal lengths: linked, and not in the trie
///                          10 00
/// ```
///
/// so a request finds the shortest sufficient block of its own list, else the shortest of the next list that has any. Allocations and
/// frees take O(log n), where n is the length of a region in granules, and each step is a few instructions. A shrinking block of up to 4
/// KiB moves if a shorter free block has room for it; [`Heap::try_resize`](crate::Heap::try_resize) leaves it where it is.
///
/// On microcontrollers, regions are up to 511 KiB long and have two lists per power of two, as in [`MicroTlsf`](super::MicroTlsf);
/// `BestFit<u32>` is for longer ones. Elsewhere they are up to 32 GiB long and have eight. For memory that the CPU cannot read, use
/// [`GoodFit`](super::GoodFit), whose type says how many blocks it compares.
pub type BestFit<
    W = Word,
    const REGIONS: usize = DEFAULT_REGIONS,
    const SUBLISTS: usize = LISTS,
    const CHECKED: bool = { !cfg!(target_os = "none") },
> = Tlsf<W, REGIONS, SUBLISTS, CHECKED, true>;
