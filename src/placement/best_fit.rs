//! Best fit.

#![forbid(unsafe_code)]

use super::coalescing::Coalescing;
use super::tree::FreeTree;
use crate::meta::{FreeBlocks, InBand};

/// Best fit: the smallest block that is long enough, the lowest of equals.
///
/// (Knuth, *The Art of Computer Programming*, vol. 1, 2.5.) The free blocks form a treap ordered by
/// length and address, so allocation and free take O(log n) expected for n free blocks, O(n) at
/// worst (it would take offsets whose scattered values are sorted). The placement's own state is two
/// indices.
pub type BestFit<M = InBand<u32>> = Coalescing<M, FreeTree<<M as FreeBlocks>::Index>>;
