//! Objects by handle.

use crate::abi::{Code, Handle, Outcome};
use crate::misuse::{Kind, Misuse};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Objects by handle. A handle is never used twice, not even after a reset, so that stale handles are noticed, unless
/// [`use_again`] asks for it.
pub struct Table<T> {
    kind: &'static str,
    entries: BTreeMap<Handle, T>,
}

/// Too high for a host address, and outside the ranges of device memory.
const HANDLES: Handle = 1 << 56;
static NEXT: AtomicU64 = AtomicU64::new(HANDLES);
/// The handle that the next object gets; 0 for a new one.
static AGAIN: AtomicU64 = AtomicU64::new(0);

/// Gives the next object this handle, which must be that of a destroyed one.
pub fn use_again(handle: Handle) {
    AGAIN.store(handle, Ordering::Relaxed);
}

/// Returns a number for the next object that no other one has had; 0 if that is true of its handle.
pub fn number_of_next() -> u64 {
    if AGAIN.load(Ordering::Relaxed) == 0 { 0 } else { NEXT.fetch_add(16, Ordering::Relaxed) }
}

impl<T> Table<T> {
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, entries: BTreeMap::new() }
    }

    pub fn insert(&mut self, entry: T) -> Handle {
        let handle = match AGAIN.swap(0, Ordering::Relaxed) {
            0 => NEXT.fetch_add(16, Ordering::Relaxed),
            again => again,
        };
        self.entries.insert(handle, entry);
        handle
    }

    /// Returns the object, or an error and a report.
    pub fn find(&mut self, handle: Handle, misuse: &mut Misuse) -> Outcome<&mut T> {
        let Some(entry) = self.entries.get_mut(&handle) else {
            let (kind, how) = if (HANDLES..NEXT.load(Ordering::Relaxed)).contains(&handle) {
                (Kind::Destroyed, "is destroyed, or of another kind")
            } else {
                (Kind::UnknownHandle, "never existed")
            };
            misuse.note(kind, format!("{} {handle:#x} {how}", self.kind));
            return Err(Code::INVALID_HANDLE);
        };
        Ok(entry)
    }

    pub fn remove(&mut self, handle: Handle, misuse: &mut Misuse) -> Outcome<T> {
        self.find(handle, misuse)?;
        Ok(self.entries.remove(&handle).expect("it was just found"))
    }

    /// Returns the object if it exists, without a report otherwise.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        self.entries.get(&handle)
    }

    pub fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        self.entries.get_mut(&handle)
    }

    pub fn take(&mut self, handle: Handle) -> Option<T> {
        self.entries.remove(&handle)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.entries.iter().map(|(&handle, entry)| (handle, entry))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Handle, &mut T)> {
        self.entries.iter_mut().map(|(&handle, entry)| (handle, entry))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
