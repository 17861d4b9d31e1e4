//! The tag that is in force.

/// Runs `f`; whatever is allocated until it returns, or unwinds, has the tag `label`, unless it has one of its own: scopes
/// may be nested, and the innermost counts.
///
/// Each thread has its own tag (feature `std`), or else each core, if it is known
/// (`set_core_number`): an interrupt's allocations have the tag of what it interrupted, unless it sets
/// one, which it may, since interrupts nest. Where one core runs several tasks switch the tag with the task
/// ([`swap_tag`]).
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

/// The tag that is in force here.
pub fn tag() -> Option<&'static str> {
    current::with(|tag| *tag)
}

/// Puts another tag in force here, or none, and returns the one that was.
pub fn swap_tag(tag: Option<&'static str>) -> Option<&'static str> {
    current::with(|old| core::mem::replace(old, tag))
}

#[cfg(feature = "std")]
mod current {
    use std::cell::Cell;

    std::thread_local! {
        // Neither allocates nor is dropped, so that an allocator can use it at any time.
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
    use crate::lock::{self, Lock};
    use core::cell::UnsafeCell;

    /// Cores that have a tag each; the others share them.
    pub(super) const CORES: usize = 4;

    pub(super) struct Tags {
        lock: lock::Default,
        state: UnsafeCell<State>,
    }

    pub(super) struct State {
        pub(super) core: Option<fn() -> usize>,
        tags: [Option<&'static str>; CORES],
    }

    // SAFETY: the state is reached only inside the lock.
    unsafe impl Sync for Tags {}

    static TAGS: Tags = Tags {
        lock: <lock::Default as Lock>::INIT,
        state: UnsafeCell::new(State { core: None, tags: [None; CORES] }),
    };

    pub(super) fn with_state<T>(f: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: the lock lets only one closure run at a time, and none of this module uses it again.
        TAGS.lock.with(|| f(unsafe { &mut *TAGS.state.get() }))
    }

    pub(super) fn with<T>(f: impl FnOnce(&mut Option<&'static str>) -> T) -> T {
        with_state(|state| {
            let core = state.core.map_or(0, |core| core() % CORES);
            f(&mut state.tags[core])
        })
    }
}

/// Tells, on targets with several cores and without `std`, how to find the number of the core. Of more than 4 cores
/// some share a tag.
///
/// # Safety
///
/// `number` returns the number of the core that it runs on, from 0, and does nothing else: it is called inside a
/// lock.
#[cfg(not(feature = "std"))]
pub unsafe fn set_core_number(number: fn() -> usize) {
    current::with_state(|state| state.core = Some(number));
}
