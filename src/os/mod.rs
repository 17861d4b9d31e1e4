//! What the operating system adds (feature `std`): caches per thread in front of a heap, and readings of the memory
//! pressure.
//!
//! ```text
//!  Cached   GlobalAlloc: classes of small requests, the calling thread's cache, else the heap
//!  local    one thread's cache of one heap: two magazines of free blocks per class
//!  Depot    full and empty magazines on their way between threads
//!  Heap     batches of blocks, one lock for each
//! ```

mod cached;
mod classes;
mod depot;
mod local;

pub use cached::Cached;
pub use depot::Depot;

#[cfg(feature = "pressure")]
pub mod pressure;
