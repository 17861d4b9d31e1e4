//! What a pool calls in the program: hooks of the module `pressure`, which are asked to give memory back before a request fails, and one
//! that hears of leaks.

#![forbid(unsafe_code)]

use super::blocks::BlockSnapshot;
use super::error::OutOfMemory;
use crate::front::pressure::{Hook, Key, Registry, Shortage};
use std::boxed::Box;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The hook that was called last, and the bytes that hooks have freed so far.
pub(super) type Place = Option<(Key, usize)>;

/// Up to sixteen hooks.
pub(super) struct Hooks {
    registry: Mutex<Registry<16>>,
}

impl Hooks {
    pub(super) const fn new() -> Self {
        Self { registry: Mutex::new(Registry::EMPTY) }
    }

    fn lock(&self) -> MutexGuard<'_, Registry<16>> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, priority: u8, hook: Hook) -> Option<u64> {
        self.lock().insert(priority, hook)
    }

    pub(super) fn unregister(&self, id: u64) -> bool {
        self.lock().remove(id)
    }

    /// Calls hooks, starting after `place`, until one of them gives memory back. Returns whether one did.
    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        loop {
            let after = place.map(|(key, _)| key);
            let before = place.map_or(0, |(_, reclaimed)| reclaimed);
            let Some((key, hook)) = self.lock().begin(after) else { return false };
            /// Marks the hook as returned, even if it unwinds.
            struct Running<'a>(&'a Hooks, Key);
            impl Drop for Running<'_> {
                fn drop(&mut self) {
                    self.0.lock().end(self.1);
                }
            }
            let running = Running(self, key);
            let (requested, align, largest_free) = (full.requested, full.align, full.largest_free);
            let reclaimed = hook(&Shortage { requested, align, largest_free, reclaimed: before });
            drop(running);
            *place = Some((key, before.saturating_add(reclaimed)));
            if reclaimed > 0 {
                return true;
            }
        }
    }
}

/// The function that is called with a pool's leaks.
pub(super) type LeakHook = Box<dyn FnOnce(&[BlockSnapshot]) + Send>;
