//! First fit in address order.

use super::coalescing::Coalescing;
use super::tree::{FreeTree, TreeOrder, below, scatter};
use crate::meta::{FreeBlocks, Id, InBand, NIL};
use core::cmp::Reverse;

/// First fit in address order: the lowest block that is long enough (with several regions, the lowest in
/// the index space that they share). Dense, with a small table.
///
/// Keeping live blocks at low addresses fragments little in practice (Wilson, Johnstone,
/// Neely and Boles, "Dynamic storage allocation: a survey and critical review", IWMM 1995). Instead
/// of a list, the free blocks form the tree of Stephenson, "Fast fits: new methods for dynamic storage
/// allocation" (SOSP 1983): ordered by address from left to right, by length from top to bottom.
/// The root is the longest block, and the leftmost fit is found by walking left as long as the
/// block there fits.
///
/// Allocation and free take O(depth) of that tree: O(log n) for n free blocks where lengths
/// are not sorted by address, which coalescing sees to; O(n) at worst. The placement's own state is
/// one index. `LIMIT` bounds the walk of a search: with 32, say, the block that it has come to by then is
/// taken. It may not be the lowest, but it fits.
pub type FirstFit<M = InBand<u32>, const LIMIT: usize = { usize::MAX }> =
    Coalescing<M, FreeTree<<M as FreeBlocks>::Index, ByAddress<LIMIT>>>;

/// The order of [`FirstFit`]: by address from left to right, by length from top to bottom.
pub struct ByAddress<const LIMIT: usize>;

// SAFETY: offsets are unique; `find` stays on blocks that are long enough.
unsafe impl<M: FreeBlocks, const LIMIT: usize> TreeOrder<M> for ByAddress<LIMIT> {
    const ROOT_IS_LONGEST: bool = true;
    const FROM_FRONT: usize = 0;

    #[inline]
    unsafe fn left_of(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe { meta.offset(a) < meta.offset(b) }
    }

    #[inline]
    unsafe fn above(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe {
            let key = |id| (meta.len(id), Reverse(scatter(meta.offset(id))));
            key(a) > key(b)
        }
    }

    #[inline]
    unsafe fn find(meta: &M, root: Id, len: usize) -> Id {
        // SAFETY: links of a free block in the tree are NIL or free blocks in the tree.
        unsafe {
            if root == NIL || meta.len(root) < len {
                return NIL;
            }
            let mut at = root;
            for _ in 0..LIMIT {
                let left = below::<M, Self>(meta, at, meta.next(at));
                if left == NIL || meta.len(left) < len {
                    break;
                }
                at = left;
            }
            at
        }
    }
}
