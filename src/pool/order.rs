//! The order of streams: which memory may be used again, and on which stream.
//!
//! A block that is freed on its own stream goes straight back to its segment, because the work that this stream
//! gets next runs after everything submitted before. Any other stream must not use it until an event recorded after
//! the free has passed. Such an event (a *fence*) is recorded only when another stream has a use for the memory,
//! and it is queried before anything waits for it.

#![forbid(unsafe_code)]

use super::numbers::ByNumber;
use super::{Source, Stream};
use core::ops::{Deref, DerefMut};
use std::collections::{BTreeMap, VecDeque};

/// The work that one freed block waits for on one stream.
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

/// A capture that the pool has seen, and the memory of its graph.
pub(super) struct Capture<S: Source> {
    pub(super) id: u64,
    /// One of the captured streams, which tells whether the capture is still under way.
    pub(super) stream: S::Stream,
    pub(super) under_way: bool,
    /// The heaps of the captured streams in this capture, one each.
    pub(super) heaps: Vec<usize>,
    /// Freed blocks of other stream heaps, or used on several streams, each with the further captures that use it: nothing may
    /// use them before all these graphs are given up.
    pub(super) held: Vec<(u32, Vec<u64>)>,
    /// Streams on which the graph was launched.
    pub(super) launches: Vec<S::Stream>,
    pub(super) given_up: bool,
}

/// A list of captures. Tests count who looks at it.
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

/// Blocks that may be used again only when other work is done.
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
    /// Whether streams must be asked at every request and free whether they are being captured.
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

    /// Returns whether a capture that the pool has noticed is under way. O(captures under way).
    pub(super) fn is_recording(&mut self) -> bool {
        let mut any = false;
        for capture in self.captures.iter_mut().filter(|capture| capture.under_way) {
            capture.under_way = capture.stream.capture().is_ok_and(|id| id == Some(capture.id));
            any |= capture.under_way;
        }
        any
    }

    /// Returns the place of the capture that `stream` is in; this call finds it if none before did.
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

    /// Returns the last of these captures whose memory is still kept, and those before it.
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

    /// A free of what no capture has used looks at none of them, however many are kept, also where one has used another block.
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
