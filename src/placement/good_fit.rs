//! Good fit: size classes so fine that their first block is nearly the best.

#![forbid(unsafe_code)]

use super::coalescing::Coalescing;
use super::lists::SegregatedLists;
use crate::meta::{FreeBlocks, SideTable};
use crate::units::class_of;

/// Classes per power of two.
const FINE: usize = if usize::BITS > 32 { 64 } else { 32 };

/// Powers of two beside the exact classes, for the longest index.
const ROWS: usize = class_of::<FINE>(1 << 31) / FINE + 1;

/// Good fit with 64 size classes per power of two: O(1), and as dense as best fit.
///
/// Lists by size class, so fine that a block is at most 1/64 longer than another
/// of its class; and of a class up to `COMPARED` blocks are compared, and the
/// shortest that is long enough is taken; with `usize::MAX` that is best fit, in O(blocks of the class). (Wilson, Johnstone, Neely and Boles, "Dynamic storage
/// allocation: a survey and critical review", IWMM 1995, call it segregated good fit.) The table takes 7
/// KiB, which is why this is the placement of pools rather than of microcontrollers. On 32-bit targets there are 32 classes
/// per power of two.
pub type GoodFit<M = SideTable, const COMPARED: usize = 4> =
    Coalescing<M, SegregatedLists<<M as FreeBlocks>::Index, ROWS, FINE, COMPARED>>;
