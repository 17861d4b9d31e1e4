//! Features that need the operating system (feature `std`): per-thread caches in front of a heap, and readings of
//! the system's memory pressure.
//!
//! ```text
//!  Cached   GlobalAlloc: serves small requests from the calling thread's cache, the others from the heap
//!  local    one thread's cache of one heap: two magazines of free blocks per class
//!  Depot    full and empty magazines on their way between threads
//!  Heap     batches of blocks, one lock for each batch
//! ```

mod cached;
mod classes;
mod depot;
mod local;

pub use cached::Cached;
pub use depot::Depot;

#[cfg(feature = "pressure")]
pub mod pressure;
