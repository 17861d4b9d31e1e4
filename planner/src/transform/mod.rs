//! Transformations that save memory. Each takes a graph or an instance and leaves the original unchanged.

mod cache_lines;
mod in_place;
mod joint;
mod least;
mod orders;
mod remat;
mod reorder;
mod spill;
mod steps;
mod stream;

/// A tensor or buffer that lies in a buffer of another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Its name.
    pub name: String,
    /// The number of the buffer.
    pub buffer: usize,
    /// Its first byte in the buffer.
    pub at: u64,
    /// Its size in bytes.
    pub size: u64,
    /// First time step at which it is live.
    pub start: i64,
    /// The time step after the last at which it is live.
    pub end: i64,
}

pub use cache_lines::{CacheLines, cache_lines};
pub(crate) use in_place::in_place_by;
pub use in_place::{InPlace, in_place};
pub use joint::{Joint, joint, sequential};
pub(crate) use orders::together;
pub use remat::{Rematerialised, rematerialise};
pub use reorder::{Reordered, peak_load, reorder};
pub(crate) use spill::Names;
pub use spill::{SpillError, Spilled, Trip, spill};
pub use stream::{Streamed, stream};
