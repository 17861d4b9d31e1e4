//! Freed blocks and the points in streams that they wait for.

#![forbid(unsafe_code)]

use super::{Source, Stream};
use std::collections::VecDeque;

/// What one freed block waits for on one stream.
pub(super) struct Mark<E> {
    /// `None` if it could not be recorded; then the next mark's event, or one that is recorded later, tells.
    pub(super) event: Option<E>,
    pub(super) record: u32,
    /// The use of the record that was freed. If it is in another use, the block waits no more.
    pub(super) serial: u32,
}

/// The marks on one stream, in the order in which they were recorded.
pub(super) struct Queue<S: Source> {
    pub(super) stream: S::Stream,
    pub(super) marks: VecDeque<Mark<<S::Stream as Stream>::Event>>,
}

/// A freed block that work on some streams may still use.
pub(super) struct Waiting {
    /// Number of its marks that have not passed.
    pub(super) left: u32,
    /// Whether all of them are on its own stream, which may use it again at once.
    pub(super) own: bool,
}
