//! Numbers for labels.

#![forbid(unsafe_code)]

use heapless::Vec;

/// The labels seen so far, at most `T`, numbered from 0 in the order of their first use.
pub(super) struct Labels<const T: usize>(Vec<&'static str, T>);

impl<const T: usize> Labels<T> {
    pub(super) const EMPTY: Self = Self(Vec::new());

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of a label that was seen before. O(T).
    pub(super) fn find(&self, label: &str) -> Option<usize> {
        self.0.iter().position(|known| core::ptr::eq(*known, label) || *known == label)
    }

    /// Adds a new label, and returns whether there was room.
    pub(super) fn add(&mut self, label: &'static str) -> bool {
        self.0.push(label).is_ok()
    }
}
