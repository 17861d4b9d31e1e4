//! A few places where threads leave lists for each other.

#![forbid(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Number of lists in a rack.
const PLACES: usize = 4;

/// A few places for lists, on a separate cache line. Any thread may put in or remove a list, without waiting.
///
/// (The depot of Bonwick and Adams, "Magazines and Vmem", USENIX 2001, has a lock.)
#[repr(align(64))]
pub(super) struct Rack<T>([AtomicPtr<T>; PLACES]);

impl<T> Rack<T> {
    pub(super) const fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; PLACES])
    }

    /// Puts a list in, and returns whether there was a free place.
    pub(super) fn put(&self, list: *mut T) -> bool {
        self.0.iter().any(|place| {
            // The first load avoids exclusive access if the place is occupied. `Release`: the thread that removes the list sees its
            // blocks, and all earlier accesses to them have ended.
            place.load(Ordering::Relaxed).is_null()
                && place.compare_exchange(ptr::null_mut(), list, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Removes a list, if there is one.
    pub(super) fn take(&self) -> Option<*mut T> {
        self.0.iter().find_map(|place| {
            if place.load(Ordering::Relaxed).is_null() {
                return None;
            }
            // A swap cannot confuse a list with an earlier one here (the ABA problem). `Acquire`: see `put`.
            let list = place.swap(ptr::null_mut(), Ordering::Acquire);
            (!list.is_null()).then_some(list)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each list comes out once, and there are four places.
    #[test]
    fn lists_have_their_places() {
        let mut lists = [0_u8; PLACES + 1];
        let lists = lists.each_mut().map(ptr::from_mut);
        let rack = Rack::new();
        for (n, &list) in lists.iter().enumerate() {
            assert_eq!(rack.put(list), n < PLACES);
        }
        let mut taken: std::vec::Vec<_> = core::iter::from_fn(|| rack.take()).collect();
        taken.sort_unstable();
        assert_eq!(taken, lists[..PLACES]);
        assert!(rack.put(lists[0]) && rack.take() == Some(lists[0]));
    }
}
