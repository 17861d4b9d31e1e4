//! Snapshots of a pool: all segments and blocks at one moment, for a viewer, and the leaked blocks.

#![forbid(unsafe_code)]

use super::segments::{Holder, Record};
use super::state::{State, bytes_of};
use super::stats::{BlockSnapshot, BlockState, PoolStats};
use super::{RawPool, Source};
use crate::placement::SegmentPlacement;
use std::collections::HashMap;

/// A segment in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SegmentSnapshot {
    /// Address of the first byte.
    pub address: usize,
    /// Size in bytes.
    pub bytes: u64,
    /// The stream that owns the segment.
    pub stream: u64,
    /// The size group of the segment's requests: `Small`, `Large`, or `Huge` with [`PoolOptions::lean`](super::PoolOptions::lean).
    pub kind: String,
    /// The segment's blocks by address, free ones included.
    pub blocks: Vec<BlockSnapshot>,
}

/// The state of a pool at one moment.
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

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns all segments and blocks. O(blocks · log blocks), inside the pool's lock.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        debug_assert!(state.is_sound(), "the pool's state does not agree with itself");
        let mut segments: Vec<(SegmentSnapshot, u32)> = Vec::new();
        for (number, entry) in state.segments() {
            let segment = SegmentSnapshot {
                address: entry.memory.address.get(),
                bytes: entry.memory.bytes as u64,
                stream: state.heap(entry.heap).id,
                kind: format!("{:?}", entry.kind),
                blocks: Vec::new(),
            };
            segments.push((segment, number));
        }
        segments.sort_unstable_by_key(|(segment, _)| segment.address);
        let place = segments.iter().enumerate().map(|(index, &(_, number))| (number, index));
        let place: HashMap<u32, usize> = place.collect();
        for (number, record) in state.records() {
            let block = shown(&state, number, record);
            segments[place[&record.segment]].0.blocks.push(block);
        }
        let segments = segments.into_iter().map(|(segment, _)| with_gaps(segment)).collect();
        let largest = state.largest_free();
        let stats = state.figures.stats(largest, state.supply.calls);
        Snapshot { source: self.source.name().to_string(), stats, segments }
    }

    /// Returns the blocks that are live now, by address. O(blocks · log blocks).
    pub fn leaks(&self) -> Vec<BlockSnapshot> {
        let state = self.lock();
        let live =
            state.records().filter(|(_, record)| matches!(record.holder, Holder::Live | Holder::Shared));
        let leak = live.map(|(number, record)| BlockSnapshot {
            address: self.user_address(&state, record),
            ..shown(&state, number, record)
        });
        let mut leaks: Vec<BlockSnapshot> = leak.collect();
        leaks.sort_unstable_by_key(|leak| leak.address);
        leaks
    }
}

/// Returns the snapshot of one block.
fn shown<P: SegmentPlacement, S: Source>(
    state: &State<P, S>,
    number: u32,
    record: &Record<P::Token>,
) -> BlockSnapshot {
    BlockSnapshot {
        address: state.address(record),
        bytes: bytes_of::<P>(record.len as usize),
        requested: record.requested,
        state: match record.holder {
            Holder::Waiting => BlockState::Waiting,
            Holder::Cached => BlockState::Cached,
            Holder::Hole => BlockState::Hole,
            _ => BlockState::Live,
        },
        stream: state.heap(usize::from(record.heap)).id,
        site: state.extra.sites.get(&number).map(|site| site.to_string()),
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
