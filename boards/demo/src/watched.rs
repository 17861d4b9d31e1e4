//! The boards' heap, which the feature `trace` has traced.

use allotment::lock::CriticalSection;
use allotment::placement::Placement;
use allotment::{Heap, Stats};

#[cfg(feature = "trace")]
use allotment::observe::{Observed, Trace, to_defmt, with_tag};

/// A heap, and what watches over it.
#[cfg(not(feature = "trace"))]
pub type Watched<P> = Heap<P, CriticalSection>;
/// A heap, and what watches over it.
#[cfg(feature = "trace")]
pub type Watched<P> = Observed<Heap<P, CriticalSection>, Trace<512>, CriticalSection>;

/// Watches over `heap`.
pub const fn watch<P: Placement>(heap: Heap<P, CriticalSection>) -> Watched<P> {
    #[cfg(feature = "trace")]
    return Observed::new(heap, Trace::new().sink(to_defmt));
    #[cfg(not(feature = "trace"))]
    return heap;
}

/// The statistics of the heap that is watched.
pub fn stats<P: Placement>(heap: &Watched<P>) -> Stats {
    #[cfg(feature = "trace")]
    let heap = heap.memory();
    heap.stats()
}

/// Logs what has not been logged yet of the trace.
pub fn flush<P: Placement>(heap: &Watched<P>) {
    #[cfg(feature = "trace")]
    heap.observers(|trace| trace.flush());
    #[cfg(not(feature = "trace"))]
    let _ = heap;
}

/// Runs `f` in the scope of a tag, if there is a trace to have it.
pub(crate) fn phase<T>(name: &'static str, f: impl FnOnce() -> T) -> T {
    #[cfg(feature = "trace")]
    return with_tag(name, f);
    #[cfg(not(feature = "trace"))]
    {
        let _ = name;
        f()
    }
}
