//! Observers: information about a heap, which costs nothing unless it is chosen.
//!
//! What a heap counts itself, inside its lock, is its [`Statistics`]: by default [`Counters`], which make [`Stats`]
//! in O(1). Everything else is passed to an [`Observer`] by a front around the heap, [`Observed`]:
//!
//! ```text
//!  Observed   GlobalAlloc, Memory: passes every operation, with its tag and backtrace, to the observers
//!    M        the observed memory: Heap, PressureHeap, Cached, Zones, or a reference
//!    O        one observer or a tuple of them
//! ```
//!
//! | observer | what it keeps | memory |
//! | --- | --- | --- |
//! | [`Profile`] | counts, bytes, a histogram of sizes | 2 words per bit of an address |
//! | `Trace<N>` | every event in the compact form of [`event`], until it is read or taken by a sink | `N` bytes |
//! | `Leaks<N>` | the live blocks, with size, number and tag | about 7 words per block |
//! | `Tags<T, N>` | statistics per tag | about 7 words per block |
//! | `TraceWriter` | nothing: events go to a `std::io::Write`, some with backtraces | a word per block |
//!
//! `Trace`, `Leaks` and `Tags` need the feature `observe` (the crate `heapless`), `TraceWriter` needs `std`, and
//! backtraces need the feature `backtrace` (the crate of that name).

mod blocks;
pub mod event;
#[cfg(feature = "observe")]
mod labels;
#[cfg(feature = "observe")]
mod leaks;
mod observed;
mod observer;
#[cfg(feature = "std")]
pub(crate) mod output;
mod profile;
#[cfg(any(feature = "std", feature = "critical-section", all(feature = "spin", target_has_atomic = "8")))]
mod scope;
mod stats;
#[cfg(feature = "observe")]
mod tags;
#[cfg(feature = "observe")]
mod trace;
#[cfg(feature = "std")]
mod writer;

pub use blocks::{Blocks, Run};
#[cfg(feature = "observe")]
pub use leaks::Leaks;
pub use observed::{Fragmentation, LeaksSince, Mark, Observed};
pub use observer::{LiveBlock, Observation, Observer, Operation};
pub use profile::{Profile, SizeClass};
#[cfg(all(
    not(feature = "std"),
    any(feature = "critical-section", all(feature = "spin", target_has_atomic = "8"))
))]
pub use scope::set_core_number;
#[cfg(any(
    feature = "std",
    feature = "critical-section",
    all(feature = "spin", target_has_atomic = "8")
))]
pub use scope::{swap_tag, tag, with_tag};
pub use stats::{Counters, NoStatistics, Statistics, Stats};
#[cfg(feature = "observe")]
pub use tags::{TagStats, Tags};
#[cfg(feature = "observe")]
pub use trace::Trace;
#[cfg(all(feature = "observe", feature = "defmt"))]
pub use trace::to_defmt;
#[cfg(feature = "std")]
pub use writer::TraceWriter;

/// The current tag; `None` on targets without a lock for tags.
#[inline]
pub(crate) fn current_tag() -> Option<&'static str> {
    #[cfg(any(
        feature = "std",
        feature = "critical-section",
        all(feature = "spin", target_has_atomic = "8")
    ))]
    return tag();
    #[cfg(not(any(
        feature = "std",
        feature = "critical-section",
        all(feature = "spin", target_has_atomic = "8")
    )))]
    return None;
}
