//! Snapshots of a pool: all segments and blocks at one moment, for a viewer, and the blocks that were never freed.

#![forbid(unsafe_code)]

use super::hooks::Leak;
use super::records::Holder;
use super::state::bytes_of;
use super::stats::PoolStats;
use super::{Pool, SizeKind, Source};
use crate::placement::SegmentPlacement;
use std::collections::HashMap;
use std::string::{String, ToString};
use std::vec::Vec;

/// The state of a block in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BlockState {
    /// Allocated.
    Live,
    /// Freed, but waiting for events.
    Waiting,
    /// Freed, and kept for requests of its class.
    Cached,
    /// Free.
    Free,
    /// A hole: pages without memory.
    Hole,
}

/// A block in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockSnapshot {
    /// Address of the first byte, guards included.
    pub address: usize,
    /// Bytes that the block takes, guards included.
    pub bytes: u64,
    /// Requested bytes; 0 for free blocks.
    pub requested: u64,
    /// Whether the block is live, waiting, kept, free or a hole.
    pub state: BlockState,
    /// The stream that it was allocated for; for a free block, the segment's stream.
    pub stream: u64,
    /// Where it was requested, as `file:line:column`, if [`Checks::sites`](super::Checks::sites) is on.
    pub site: Option<String>,
}

/// A segment in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SegmentSnapshot {
    /// Address of the first byte.
    pub address: usize,
    /// Size in bytes.
    pub bytes: u64,
    /// The stream that owns it.
    pub stream: u64,
    /// The size group of the requests that it serves.
    pub kind: SizeKind,
    /// Its blocks by address, free ones included.
    pub blocks: Vec<BlockSnapshot>,
}

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Snapshot {
    /// The name of the pool's source.
    pub source: String,
    /// The statistics at that moment.
    pub stats: PoolStats,
    /// The segments, by address.
    pub segments: Vec<SegmentSnapshot>,
}

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Returns all segments and blocks. O(blocks · log blocks), inside the pool's lock.
    pub fn snapshot(&self) -> Snapshot {
        let mut state = self.lock();
        debug_assert!(state.is_sound(), "the pool's state does not agree with itself");
        let mut segments: Vec<(SegmentSnapshot, u32)> = Vec::new();
        for (number, entry) in state.segments() {
            let segment = SegmentSnapshot {
                address: entry.memory.address.get(),
                bytes: entry.memory.bytes as u64,
                stream: state.heap(entry.heap).id.0,
                kind: entry.kind,
                blocks: Vec::new(),
            };
            segments.push((segment, number));
        }
        segments.sort_unstable_by_key(|(segment, _)| segment.address);
        let place = segments.iter().enumerate().map(|(index, &(_, number))| (number, index));
        let place: HashMap<u32, usize> = place.collect();
        for (number, record) in state.records() {
            let block = BlockSnapshot {
                address: state.address(record),
                bytes: bytes_of::<P>(record.len as usize),
                requested: record.requested,
                state: match record.holder {
                    Holder::Waiting => BlockState::Waiting,
                    Holder::Cached => BlockState::Cached,
                    Holder::Hole => BlockState::Hole,
                    _ => BlockState::Live,
                },
                stream: state.heap(usize::from(record.heap)).id.0,
                site: state.extra.sites.get(&number).map(|site| site.to_string()),
            };
            segments[place[&record.segment]].0.blocks.push(block);
        }
        let segments = segments.into_iter().map(|(segment, _)| with_gaps(segment)).collect();
        let largest = state.largest_free();
        let stats = state.figures.stats(largest, state.supply.calls);
        Snapshot { source: self.source.name().to_string(), stats, segments }
    }

    /// Returns the blocks that are live now, by address. O(blocks · log blocks).
    pub fn leaks(&self) -> Vec<Leak> {
        let state = self.lock();
        let live =
            state.records().filter(|(_, record)| matches!(record.holder, Holder::Live | Holder::Shared));
        let leak = live.map(|(number, record)| Leak {
            address: self.user_address(&state, record),
            bytes: record.requested,
            site: state.extra.sites.get(&number).copied(),
        });
        let mut leaks: Vec<Leak> = leak.collect();
        leaks.sort_unstable_by_key(|leak| leak.address);
        leaks
    }
}

/// Adds the free blocks between the others to the segment.
fn with_gaps(mut segment: SegmentSnapshot) -> SegmentSnapshot {
    segment.blocks.sort_unstable_by_key(|block| block.address);
    let mut all = Vec::with_capacity(segment.blocks.len() * 2 + 1);
    let mut at = segment.address;
    let free = |from: usize, to: usize| BlockSnapshot {
        address: from,
        bytes: (to - from) as u64,
        requested: 0,
        state: BlockState::Free,
        stream: segment.stream,
        site: None,
    };
    for block in core::mem::take(&mut segment.blocks) {
        if block.address > at {
            all.push(free(at, block.address));
        }
        at = block.address + block.bytes as usize;
        all.push(block);
    }
    let end = segment.address + segment.bytes as usize;
    if end > at {
        all.push(free(at, end));
    }
    segment.blocks = all;
    segment
}
