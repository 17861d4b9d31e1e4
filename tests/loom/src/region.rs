//! The static memory of the library.

#[path = "../../../src/region/statics.rs"]
mod statics;

pub use statics::{StaticFlag, StaticRegion};
use std::ptr::NonNull;

/// As in the library.
pub struct Region {
    /// The first byte.
    pub start: NonNull<u8>,
    /// Bytes.
    pub size: usize,
    /// Whether they are zero.
    pub zeroed: bool,
}
