//! The boards' heap, which is traced with the feature `trace`.

use allotment::lock::CriticalSection;
use allotment::placement::{self, Placement};
use allotment::{Heap, Stats};

#[cfg(feature = "trace")]
use allotment::Observed;
#[cfg(feature = "trace")]
use allotment::observe::{Trace, to_defmt, with_tag};

/// A heap without an observer.
#[cfg(not(feature = "trace"))]
pub type Watched<P = placement::Default> = Heap<P, CriticalSection>;
/// A heap with the observer that traces it.
#[cfg(feature = "trace")]
pub type Watched<P = placement::Default> = Observed<Heap<P, CriticalSection>, Trace<512>, CriticalSection>;

/// Wraps `heap` with the observer, if there is one.
pub const fn watch<P: Placement>(heap: Heap<P, CriticalSection>) -> Watched<P> {
    #[cfg(feature = "trace")]
    return Observed::new(heap, Trace::new().sink(to_defmt));
    #[cfg(not(feature = "trace"))]
    return heap;
}

/// Returns the statistics of the wrapped heap.
pub fn stats<P: Placement>(heap: &Watched<P>) -> Stats {
    #[cfg(feature = "trace")]
    let heap = heap.memory();
    heap.stats()
}

/// Logs the part of the trace that has not been logged yet.
pub fn flush<P: Placement>(heap: &Watched<P>) {
    #[cfg(feature = "trace")]
    heap.observers(|trace| trace.flush());
    #[cfg(not(feature = "trace"))]
    let _ = heap;
}

/// Runs `f` in the scope of a tag, if there is a trace.
pub(crate) fn phase<T>(name: &'static str, f: impl FnOnce() -> T) -> T {
    #[cfg(feature = "trace")]
    return with_tag(name, f);
    #[cfg(not(feature = "trace"))]
    {
        let _ = name;
        f()
    }
}
