//! Transformations that save memory. Each one takes a graph or an instance and leaves the original unchanged.

mod cache_lines;
mod fuse;
mod in_place;
mod joint;
mod remat;
mod reorder;
mod spill;
mod stream;

pub use cache_lines::{CacheLines, cache_lines};
pub use fuse::{Fused, fuse};
pub use in_place::{InPlace, in_place};
pub use joint::{Joint, joint, sequential};
pub use remat::{Rematerialised, rematerialise, rematerialise_within};
pub use reorder::{Reordered, peak_load, reorder, reorder_within};
pub use spill::{SpillError, Spilled, Trip, spill, spill_within};
pub use stream::{Streamed, stream};
