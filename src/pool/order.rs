//! The order of streams: which memory may be reused, and on which stream.
//!
//! A block freed on its own stream returns to its segment at once, because later work on this stream runs after all earlier work. Other
//! streams must not use it until an event recorded after the free has passed. The pool records such an event (a *fence*) only when
//! another stream can use the memory, and queries it before anything waits for it.

#![forbid(unsafe_code)]

use super::numbers::ByNumber;
use super::{Source, Stream};
use core::ops::{Deref, DerefMut};
use std::collections::{BTreeMap, VecDeque};

/// The work that one freed block waits for on one stream.
pub(super) struct Mark<E> {
    /// `None` if recording failed; then the next mark's event, or one recorded later, stands in for it.
    pub(super) event: Option<E>,
    pub(super) record: u32,
    /// The use of the record at the free. Once the record is in another use, the block no longer waits.
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
    /// Whether all of these marks are on the block's own stream, which may reuse it at once.
    pub(super) own: bool,
}

/// A capture that the pool has seen, and the memory of its graph.
pub(super) struct Capture<S: Source> {
    pub(super) id: u64,
    /// One of the captured streams, to query whether the capture is still under way.
    pub(super) stream: S::Stream,
    pub(super) under_way: bool,
    /// The heaps of this capture, one for each captured stream.
    pub(super) heaps: Vec<usize>,
    /// Freed blocks of other stream heaps, or used on several streams, each with the other captures that use it: the pool may not reuse
    /// them until the program gives up all these graphs.
    pub(super) held: Vec<(u32, Vec<u64>)>,
    /// Streams on which the graph was launched.
    pub(super) launches: Vec<S::Stream>,
    pub(super) given_up: bool,
}

/// A list of captures. Tests count the accesses.
pub(super) struct Captures<S: Source>(Vec<Capture<S>>);

#[cfg(test)]
std::thread_local! {
    static LOOKS: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

impl<S: Source> Deref for Captures<S> {
    type Target = Vec<Capture<S>>;

    fn deref(&self) -> &Self::Target {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        &self.0
    }
}

impl<S: Source> DerefMut for Captures<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        &mut self.0
    }
}

/// Blocks that may be reused only after other work is done.
pub(super) struct Order<S: Source> {
    /// For each shared block, the other streams that use it.
    pub users: ByNumber<u32, Vec<S::Stream>>,
    /// Freed blocks that wait for events, by record, and the events by stream.
    pub waiting: ByNumber<u32, Waiting>,
    pub queues: BTreeMap<u64, Queue<S>>,
    /// Captures whose memory is kept.
    pub captures: Captures<S>,
    /// Live blocks that captured streams use as well: their serial numbers, and the captures.
    pub touched_by: ByNumber<u32, (u32, Vec<u64>)>,
    /// Whether the pool must ask streams at every request and free whether they are being captured.
    pub asks: bool,
}

impl<S: Source> Order<S> {
    pub(super) fn new() -> Self {
        Self {
            users: ByNumber::default(),
            waiting: ByNumber::default(),
            queues: BTreeMap::new(),
            captures: Captures(Vec::new()),
            touched_by: ByNumber::default(),
            asks: false,
        }
    }

    /// Returns whether a capture that the pool has seen is under way. O(captures under way).
    pub(super) fn is_recording(&mut self) -> bool {
        let mut any = false;
        for capture in self.captures.iter_mut().filter(|capture| capture.under_way) {
            capture.under_way = capture.stream.capture().is_ok_and(|id| id == Some(capture.id));
            any |= capture.under_way;
        }
        any
    }

    /// Returns the index of the capture that `stream` is in, and adds the capture if it is new.
    pub(super) fn capture_of(&mut self, stream: &S::Stream) -> Option<usize> {
        let id = stream.capture().ok().flatten()?;
        let known = self.captures.iter().position(|capture| capture.id == id);
        Some(known.unwrap_or_else(|| {
            self.captures.push(Capture {
                id,
                stream: stream.retain(),
                under_way: true,
                heaps: Vec::new(),
                held: Vec::new(),
                launches: Vec::new(),
                given_up: false,
            });
            self.captures.len() - 1
        }))
    }

    /// Returns the index of the last of these captures whose memory is still kept, and the captures before it.
    pub(super) fn keeper_among(&self, mut captures: Vec<u64>) -> Option<(usize, Vec<u64>)> {
        loop {
            let id = captures.pop()?;
            if let Some(place) = self.captures.iter().position(|capture| capture.id == id) {
                return Some((place, captures));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{DevicePool, PoolOptions};
    use crate::sim::DeviceMemory;

    /// Freeing a block that no capture used looks at no captures, however many are kept, even if a capture used another block.
    #[test]
    fn frees_look_at_no_captures() {
        const MIB: usize = 1 << 20;
        let device: DeviceMemory = DeviceMemory::new(1 << 30);
        let [a, b] = [(); 2].map(|()| device.stream());
        let pool = DevicePool::new(device, PoolOptions::new()).unwrap();
        let used = pool.allocate(MIB, &a).unwrap();
        for touches in [false, true] {
            b.set_capturing(true);
            pool.allocate(MIB, &b).unwrap();
            if touches {
                used.used_on(&b);
            }
            b.set_capturing(false);
            assert_ne!(LOOKS.get(), 0);
            for shared in [false, true] {
                let block = pool.allocate(MIB, &a).unwrap();
                if shared {
                    block.used_on(&b);
                }
                let before = LOOKS.get();
                drop(block);
                assert_eq!(LOOKS.get() - before, 0, "touches: {touches}, shared: {shared}");
            }
        }
    }
}
