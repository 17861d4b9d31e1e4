//! Features that need the operating system (feature `std`): per-thread caches in front of a heap, a heap that grows and shrinks, and
//! readings of the system's memory pressure.
//!
//! # The path of a request
//!
//! [`Growing`] is the heap of the whole process, in memory of the system. [`Cached`] is a front for any other heap. Both keep a thread's
//! free blocks in the same lists, with the same table of size classes (`small/classes.rs`) and the same mark against double frees and
//! damaged links (`small/block.rs`):
//!
//! ```text
//!  alloc               Growing or Cached: the size class, by a table
//!    |                 the thread's lists, by one pointer in thread-local storage (growing/thread.rs, depot.rs)
//!    |  fast path      cache/lists.rs: `Bin::allocate` unlinks the first block of the list in use
//!    v
//!  allocate_slow       cache/mod.rs: the other list, or a batch from the source
//!    |
//!    v  Source         growing/state.rs: one lock, then pages.rs and page.rs; spans.rs and system.rs for a new page
//!                      depot.rs: a list that another thread freed, or a batch of the heap, which takes its lock once
//! ```
//!
//! `dealloc` takes the same path with `Bin::free`, `free_slow` and `Source::free_list`. A fast path is at most five calls deep, all
//! inlined (`alloc`, `allocate_raw` or `allocate_class`, `bin`, `get` or `lists`, `Bin::allocate`); a slow path at most nine before it
//! searches a page (`alloc`, `allocate_raw`, `allocate_slow` twice, `Source::allocate`, `insist`, `Shared::with`, the lock,
//! `Pages::allocate`) or calls the heap.
//!
//! Requests without a class go to the spans (`growing/large.rs`) or straight to the heap behind `Cached`. When a thread ends,
//! `cache/at_end.rs` frees its lists. `SharedHeap` (Linux) is a heap in memory that several processes share.
//!
//! A shared library that uses `Cached`, `Growing` or `Guarded` stays loaded after `dlclose`: each thread that used it calls it once more
//! when it ends, and so do faults. (Linux, Android, FreeBSD and Apple systems. musl unloads nothing; on other Unix systems do not close
//! such a library.)

mod cache;
mod cached;
mod depot;
#[cfg(unix)]
mod fork;
#[cfg(any(unix, windows))]
mod growing;
#[cfg(all(target_os = "linux", not(miri)))]
mod guarded;
mod mapping;
mod rack;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(any(unix, feature = "gpu"))]
mod stay;
#[cfg(target_os = "linux")]
mod tagged;
#[cfg(all(test, unix))]
mod tests;

pub use cached::Cached;
pub use depot::Depot;
#[cfg(unix)]
pub use fork::{ForkError, protect_at_fork};
#[cfg(all(target_os = "linux", not(miri)))]
pub use growing::Hardened;
#[cfg(any(unix, windows))]
pub use growing::{Growing, GrowingStats, Own};
#[cfg(all(target_os = "linux", not(miri)))]
pub use guarded::Guarded;
pub use mapping::{Huge, MapError, Mapping};
#[cfg(target_os = "linux")]
pub use shared::SharedHeap;
#[cfg(feature = "gpu")]
pub(crate) use stay::stay_loaded;
#[cfg(target_os = "linux")]
pub use tagged::Tagged;

pub mod numa;
pub mod pressure;
