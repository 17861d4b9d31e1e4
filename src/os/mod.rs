//! Features that need the operating system (feature `std`): per-thread caches in front of a heap, a heap that
//! grows and shrinks, and readings of the system's memory pressure.
//!
//! ```text
//!  Cached   GlobalAlloc: serves small requests from the calling thread's cache, the others from the heap
//!  local    one thread's cache of one heap: two magazines of free blocks per class
//!  Depot    full and empty magazines on their way between threads
//!  Heap     batches of blocks, one lock for each batch
//! ```
//!
//! [`Growing`] is another heap: that of the whole process, in memory of the system. `SharedHeap` (Linux) is one in memory that several processes
//! share.
//!
//! A shared library that uses `Cached` or `Growing` stays loaded after `dlclose`, because each thread that used it calls it once more when it
//! ends. (Linux, Android, FreeBSD and systems of Apple. musl unloads nothing; on other Unix systems do not close such a library.)

mod at_end;
mod cached;
#[cfg(all(test, unix))]
mod checks;
mod classes;
mod depot;
#[cfg(unix)]
mod fork;
#[cfg(any(unix, windows))]
mod growing;
mod local;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(any(unix, feature = "gpu"))]
mod stay;

pub use cached::Cached;
pub use depot::Depot;
#[cfg(unix)]
pub use fork::{ForkError, protect_at_fork};
#[cfg(any(unix, windows))]
pub use growing::{Figures, Growing};
#[cfg(target_os = "linux")]
pub use shared::SharedHeap;
#[cfg(feature = "gpu")]
pub(crate) use stay::stay_loaded;

pub mod pressure;
