//! Observers: information about a heap, at no cost unless a program uses it.
//!
//! A heap counts its own [`Statistics`] inside its lock: by default [`Counters`], which return [`Stats`] in O(1). For everything else, a
//! front around the heap, [`Observed`](crate::Observed), passes operations to an [`Observer`]:
//!
//! ```text
//!  Observed   passes every operation, with its tag and backtrace, to the observers
//!    M        the observed memory: Heap, PressureHeap, Cached, Zones, or a reference
//!    O        one observer or a tuple of them
//! ```
//!
//! | observer | what it keeps | memory |
//! | --- | --- | --- |
//! | [`Profile`] | counts, bytes, a histogram of sizes | 2 words per bit of an address |
//! | `Trace<N>` | every event in the compact form of [`event`], until it is read or passed to a sink | `N` bytes |
//! | `Leaks<N>` | the live blocks, with size, number and tag | about 7 words per block |
//! | `Tags<T, N>` | statistics per tag | about 7 words per block |
//! | `TraceWriter` | nothing: events go to a `std::io::Write`, some with backtraces | a word per block |
//!
//! Another front, [`Timed`](crate::Timed), measures how long operations take, and a lock, [`Counted`](crate::lock::Counted), counts how
//! often threads wait for each other.
//!
//! `TraceWriter` needs the feature `std`, and backtraces need the feature `backtrace` (the crate of that name).

mod latency;
mod leaks;
mod observer;
#[cfg(feature = "std")]
pub(crate) mod output;
mod profile;
#[cfg(any(feature = "std", feature = "critical-section", all(feature = "spin", target_has_atomic = "8")))]
mod scope;
/// There are no tags on targets without a lock for them.
#[cfg(not(any(
    feature = "std",
    feature = "critical-section",
    all(feature = "spin", target_has_atomic = "8")
)))]
mod scope {
    pub(crate) const fn tag() -> Option<&'static str> {
        None
    }
}
mod stats;
mod tags;
mod trace;
#[cfg(feature = "std")]
mod writer;

#[doc(inline)]
pub use allotment_event as event;
pub use latency::{Clock, Histogram, Timings};
pub use leaks::Leaks;
pub use observer::{LiveBlock, Observation, Observer, Operation};
pub use profile::Profile;
#[cfg(all(
    not(feature = "std"),
    any(feature = "critical-section", all(feature = "spin", target_has_atomic = "8"))
))]
pub use scope::set_core_number;
pub(crate) use scope::tag as current_tag;
#[cfg(any(
    feature = "std",
    feature = "critical-section",
    all(feature = "spin", target_has_atomic = "8")
))]
pub use scope::{swap_tag, tag, with_tag};
pub use stats::{Counters, NoStatistics, Statistics, Stats};
pub use tags::{TagStats, Tags};
pub use trace::Trace;
#[cfg(feature = "defmt")]
pub use trace::to_defmt;
#[cfg(feature = "std")]
pub use writer::TraceWriter;

/// Returns the prefix of `text` that has at most `most` bytes and only whole characters.
fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Returns the index of a label in `labels`. O(labels).
pub(crate) fn number_of(label: &str, labels: &[&str]) -> Option<usize> {
    labels.iter().position(|known| core::ptr::eq(*known, label) || *known == label)
}
