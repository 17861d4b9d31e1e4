//! What a pool knows of the capture of a graph.

#![forbid(unsafe_code)]

use super::{CaptureId, Source};
use std::vec::Vec;

/// A capture that the pool has served, and the memory of its graph.
pub(super) struct Capture<S: Source> {
    pub(super) id: CaptureId,
    /// One of the captured streams, which tells whether the capture is still under way.
    pub(super) stream: S::Stream,
    pub(super) under_way: bool,
    /// The heaps of the captured streams in this capture, one each.
    pub(super) heaps: Vec<usize>,
    /// Freed blocks of other stream heaps, or used on several streams, each with the further captures that use it: nothing may
    /// use them before all these graphs are given up.
    pub(super) held: Vec<(u32, Vec<CaptureId>)>,
    /// Streams on which the graph was launched.
    pub(super) launches: Vec<S::Stream>,
    pub(super) given_up: bool,
}
