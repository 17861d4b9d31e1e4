//! Numbers for labels.

use heapless::Vec;

/// The labels that were met, numbered from 0 in the order of their first use; `T` at most.
pub(super) struct Labels<const T: usize>(Vec<&'static str, T>);

impl<const T: usize> Labels<T> {
    pub(super) const EMPTY: Self = Self(Vec::new());

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of a label that was met before. O(T).
    pub(super) fn find(&self, label: &str) -> Option<usize> {
        self.0.iter().position(|known| core::ptr::eq(*known, label) || *known == label)
    }

    /// Whether there was room for a new label.
    pub(super) fn add(&mut self, label: &'static str) -> bool {
        self.0.push(label).is_ok()
    }
}
