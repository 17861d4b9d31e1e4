//! Hooks that free memory before a request fails.

#![forbid(unsafe_code)]

use heapless::Vec;

/// The shortage that a reclaim hook should relieve. All values are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Shortage {
    /// Requested bytes.
    pub requested: usize,
    /// Requested alignment.
    pub align: usize,
    /// The largest request that would succeed now.
    pub largest_free: usize,
    /// Bytes that the hooks before this one reported as freed.
    pub reclaimed: usize,
}

/// A hook that frees memory on request, such as that of a cache or a log, and returns how many bytes, or 0 if it has none to free. The
/// request is tried again after each hook that freed memory.
///
/// A hook runs outside the heap's lock, on the thread (or at the interrupt level) whose request found no room, so it may free and even
/// allocate. A hook never runs twice at a time: a request that fails inside it, or on another thread meanwhile, calls only the other
/// hooks.
pub type Reclaim = dyn Fn(&Shortage) -> usize + Sync;

/// A registered hook.
pub(crate) type Hook = &'static Reclaim;

#[derive(Clone, Copy)]
struct Entry {
    key: Key,
    hook: Hook,
    running: bool,
}

/// The order of hooks: by priority, then by registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u8, u64);

/// Up to `N` hooks in order. Every operation is O(`N`).
pub(crate) struct Registry<const N: usize> {
    entries: Vec<Entry, N>,
    registered: u64,
}

impl<const N: usize> Registry<N> {
    pub(crate) const EMPTY: Self = Self { entries: Vec::new(), registered: 0 };

    pub(crate) fn insert(&mut self, priority: u8, hook: Hook) -> Option<u64> {
        let key = Key(priority, self.registered);
        let at = self.entries.iter().take_while(|entry| entry.key < key).count();
        self.entries.insert(at, Entry { key, hook, running: false }).ok()?;
        self.registered += 1;
        Some(key.1)
    }

    /// Removes a hook, and returns whether it was registered. The hook may still be running.
    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let at = self.entries.iter().position(|entry| entry.key.1 == id);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    /// Returns the first hook after `after` that is not running, and marks it as running. The order holds even if
    /// hooks are added and removed between two calls.
    pub(crate) fn begin(&mut self, after: Option<Key>) -> Option<(Key, Hook)> {
        let next = |entry: &&mut Entry| Some(entry.key) > after && !entry.running;
        let entry = self.entries.iter_mut().find(next)?;
        entry.running = true;
        Some((entry.key, entry.hook))
    }

    /// Marks a hook as returned.
    pub(crate) fn end(&mut self, key: Key) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            entry.running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &Shortage) -> usize {
        0
    }

    #[test]
    fn hooks_are_in_order_of_priority_and_then_of_registration() {
        let mut registry = Registry::<4>::EMPTY;
        let priorities = [5, 1, 5, 0];
        let ids = priorities.map(|priority| registry.insert(priority, &nothing).unwrap());
        assert_eq!(registry.insert(0, &nothing), None);
        let mut order = std::vec::Vec::new();
        let mut after = None;
        while let Some((key, _)) = registry.begin(after) {
            registry.end(key);
            order.push(key.1);
            after = Some(key);
        }
        assert_eq!(order, [ids[3], ids[1], ids[0], ids[2]]);
        assert!(registry.remove(ids[1]) && !registry.remove(ids[1]));
        assert!(registry.insert(0, &nothing).is_some());
    }

    #[test]
    fn a_hook_that_runs_is_passed_over_until_it_ends() {
        let mut registry = Registry::<2>::EMPTY;
        registry.insert(0, &nothing).unwrap();
        registry.insert(1, &nothing).unwrap();
        let (first, _) = registry.begin(None).unwrap();
        let (second, _) = registry.begin(None).unwrap();
        assert!(first < second && registry.begin(None).is_none());
        registry.end(first);
        assert_eq!(registry.begin(None).map(|found| found.0), Some(first));
    }

    /// Numbers of hooks never repeat, however long a program registers and removes hooks.
    #[test]
    fn hooks_have_numbers_of_their_own() {
        let mut registry = Registry::<3>::EMPTY;
        let old = registry.insert(0, &nothing).unwrap();
        registry.registered = u32::MAX.into();
        let new = [0, 0].map(|priority| registry.insert(priority, &nothing).unwrap());
        assert!(old != new[0] && old != new[1] && new[0] != new[1]);
        assert!(registry.remove(new[1]) && registry.remove(old) && registry.remove(new[0]));
    }

    #[test]
    fn a_hook_that_leaves_does_not_disturb_the_order() {
        let mut registry = Registry::<3>::EMPTY;
        let ids = [0, 1, 2].map(|priority| registry.insert(priority, &nothing).unwrap());
        let (first, _) = registry.begin(None).unwrap();
        registry.remove(ids[0]);
        registry.end(first);
        let (second, _) = registry.begin(Some(first)).unwrap();
        assert_eq!(second.1, ids[1]);
    }
}
