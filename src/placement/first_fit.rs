//! First fit in address order.

#![forbid(unsafe_code)]

use super::coalescing::Coalescing;
use super::tree::FreeTree;
use crate::meta::{FreeBlocks, InBand};

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
    Coalescing<M, FreeTree<<M as FreeBlocks>::Index, false, LIMIT>>;
