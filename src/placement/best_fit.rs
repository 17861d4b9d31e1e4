//! Best fit.

use super::coalescing::{Coalescing, LARGE};
use super::tree::{FreeTree, TreeOrder, below, scatter};
use crate::meta::{FreeBlocks, Id, InBand, NIL};

/// Best fit: the smallest block that is long enough, the lowest of equals.
///
/// (Knuth, *The Art of Computer Programming*, vol. 1, 2.5.) The free blocks form a treap ordered by
/// length and address, so allocation and free take O(log n) expected for n free blocks, O(n) at
/// worst (it would take offsets whose scattered values are sorted). The placement's own state is two
/// indices.
pub type BestFit<M = InBand<u32>> = Coalescing<M, FreeTree<<M as FreeBlocks>::Index, BySize>>;

/// The order of [`BestFit`]: by length and address from left to right, scattered from top to bottom.
pub struct BySize;

// SAFETY: offsets are unique; `find` remembers only blocks that are long enough.
unsafe impl<M: FreeBlocks> TreeOrder<M> for BySize {
    const ROOT_IS_LONGEST: bool = false;
    const FROM_FRONT: usize = LARGE;

    #[inline]
    unsafe fn left_of(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe { (meta.len(a), meta.offset(a)) < (meta.len(b), meta.offset(b)) }
    }

    #[inline]
    unsafe fn above(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe { scatter(meta.offset(a)) > scatter(meta.offset(b)) }
    }

    #[inline]
    unsafe fn find(meta: &M, root: Id, len: usize) -> Id {
        let (mut at, mut best) = (root, NIL);
        // SAFETY: links of a free block in the tree are NIL or free blocks in the tree.
        unsafe {
            while at != NIL {
                let to = if meta.len(at) >= len {
                    best = at;
                    meta.next(at)
                } else {
                    meta.prev(at)
                };
                at = below::<M, Self>(meta, at, to);
            }
        }
        best
    }
}
