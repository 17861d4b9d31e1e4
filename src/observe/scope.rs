//! Tags, and the scopes in which they apply.

/// Runs `f`, and tags everything allocated until `f` returns or unwinds with `label`. Scopes may be nested; the innermost tag applies.
///
/// The tag belongs to the thread (feature `std`), or else to the core, if it is known (`set_core_number`). Allocations of an interrupt
/// handler get the tag of the interrupted code, unless the handler sets its own, as it may, since interrupts nest. If one core runs
/// several tasks, switch the tag together with the task ([`swap_tag`]).
///
/// ```
/// use allotment::observe::{tag, with_tag};
/// let inner = with_tag("net", || with_tag("tls", tag));
/// assert_eq!((inner, tag()), (Some("tls"), None));
/// ```
pub fn with_tag<T>(label: &'static str, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<&'static str>);
    impl Drop for Restore {
        fn drop(&mut self) {
            swap_tag(self.0);
        }
    }
    let _restore = Restore(swap_tag(Some(label)));
    f()
}

/// Returns the current tag.
pub fn tag() -> Option<&'static str> {
    current::with(|tag| *tag)
}

/// Replaces the current tag, `None` for no tag, and returns the previous one.
pub fn swap_tag(tag: Option<&'static str>) -> Option<&'static str> {
    current::with(|old| core::mem::replace(old, tag))
}

#[cfg(feature = "std")]
mod current {
    use std::cell::Cell;

    std::thread_local! {
        // The cell neither allocates nor is dropped, so an allocator can use it at any time.
        static TAG: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    pub(super) fn with<T>(f: impl FnOnce(&mut Option<&'static str>) -> T) -> T {
        TAG.with(|cell| {
            let mut tag = cell.get();
            let result = f(&mut tag);
            cell.set(tag);
            result
        })
    }
}

#[cfg(not(feature = "std"))]
mod current {
    use crate::lock::{self, Locked};

    /// Number of separate tags for cores; further cores share them.
    pub(super) const CORES: usize = 4;

    pub(super) struct State {
        pub(super) core: Option<fn() -> usize>,
        tags: [Option<&'static str>; CORES],
    }

    pub(super) static STATE: Locked<State, lock::Default> =
        Locked::new(State { core: None, tags: [None; CORES] });

    pub(super) fn with<T>(f: impl FnOnce(&mut Option<&'static str>) -> T) -> T {
        STATE.with(|state| {
            let core = state.core.map_or(0, |core| core() % CORES);
            f(&mut state.tags[core])
        })
    }
}

/// Sets the function that returns the number of the current core, on targets with several cores and without `std`. With more than 4
/// cores, some share a tag.
///
/// # Safety
///
/// `number` must return the number of its caller's core, from 0, and do nothing else, because it is called inside a lock.
#[cfg(not(feature = "std"))]
pub unsafe fn set_core_number(number: fn() -> usize) {
    current::STATE.with(|state| state.core = Some(number));
}
