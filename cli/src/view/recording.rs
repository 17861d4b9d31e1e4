//! Gathers the data of a replay that a page draws. Its size does not depend on the number of events.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::map::{Grid, Map};
use super::place::{Piece, State, Watcher};
use super::series::{BUCKETS, Range, bucket_of};
use super::trace::{Action, Event, Trace};

/// The number of pieces kept: those with the most bytes times events.
const PIECES: usize = 6000;

/// The most tags that are drawn; all others count as one more.
const TAGS: usize = 8;

/// Figures over time.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Series {
    /// Live requested bytes.
    pub live: Range,
    /// Bytes of their blocks.
    pub taken: Range,
    /// Bytes up to the end of the last block.
    pub span: Range,
    /// External fragmentation in permille.
    pub external: Range,
    /// Internal fragmentation in permille.
    pub internal: Range,
}

/// Live bytes by tag, for each bucket at its moment with the most live bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Stack {
    /// The tags drawn, indices of the report's tags; the highest peak first.
    pub tags: Vec<u32>,
    /// For each of them, and for all others together, a value per bucket.
    pub live: Vec<Vec<u64>>,
}

/// A piece by its size in bytes times events; the smallest is the top of a heap.
type Kept = (Reverse<(u128, u32)>, [u64; 5]);

/// A [`Watcher`] that gathers what a page draws.
pub struct Recording<'a> {
    trace: &'a Trace,
    /// Buckets of the series.
    pub buckets: usize,
    /// The series.
    pub series: Series,
    /// The address space, made when the size of the arena is known.
    grid: Grid,
    pieces: BinaryHeap<Kept>,
    /// The last offset of each block.
    pub places: Vec<Option<u64>>,
    /// The state at the peak of the live bytes, and the event before it.
    pub peak: (usize, State),
    /// The most bytes that blocks took.
    pub taken: u64,
    /// Per tag its line in the stack, and per block its bytes.
    lines: Vec<usize>,
    sizes: Vec<u64>,
    now: Vec<u64>,
    stack: Stack,
}

impl<'a> Recording<'a> {
    /// Creates a recording before the first event. `tags` are those of the trace, the most important ones first.
    pub fn new(trace: &'a Trace, arena: u64, granule: u64, tags: &[u32]) -> Self {
        let events = trace.events.len();
        let drawn = &tags[..tags.len().min(TAGS)];
        let mut lines = vec![drawn.len(); trace.tags.len()];
        for (line, &tag) in drawn.iter().enumerate() {
            lines[tag as usize] = line;
        }
        let buckets = events.min(BUCKETS);
        Self {
            trace,
            buckets,
            series: Series::default(),
            grid: Grid::new(events, arena, granule),
            pieces: BinaryHeap::new(),
            places: vec![None; trace.blocks.len()],
            peak: (0, State::default()),
            taken: 0,
            lines,
            sizes: vec![0; trace.blocks.len()],
            now: vec![0; drawn.len() + 1],
            stack: Stack { tags: drawn.into(), live: vec![Vec::with_capacity(buckets); drawn.len() + 1] },
        }
    }

    /// Returns the map, the stack, and the pieces: block, address, length, first event, event behind the last.
    pub fn finish(self) -> (Map, Stack, Vec<[u64; 5]>) {
        let mut pieces: Vec<[u64; 5]> = self.pieces.into_iter().map(|(_, piece)| piece).collect();
        pieces.sort_unstable_by_key(|&[_, at, _, from, _]| (from, at));
        (self.grid.finish(), self.stack, pieces)
    }
}

impl Watcher for Recording<'_> {
    fn piece(&mut self, piece: Piece) {
        self.places[piece.block as usize] = Some(piece.at);
        self.grid.add(&piece);
        let Piece { block, at, len, from, to } = piece;
        let area = u128::from(len) * u128::from(to - from);
        let piece = (Reverse((area, block)), [block.into(), at, len, from.into(), to.into()]);
        if self.pieces.len() < PIECES {
            self.pieces.push(piece);
        } else if let Some(mut least) = self.pieces.peek_mut()
            && piece < *least
        {
            *least = piece;
        }
    }

    fn after(&mut self, event: usize, served: bool, state: State) {
        let Event { action, block, size } = self.trace.events[event];
        if served {
            let size = if action == Action::Free { 0 } else { size };
            let old = std::mem::replace(&mut self.sizes[block as usize], size);
            let line = self.lines[self.trace.blocks[block as usize].tag as usize];
            self.now[line] = self.now[line] - old + size;
        }
        let bucket = bucket_of(event, self.buckets, self.trace.events.len());
        let highest = self.series.live.max.get(bucket).is_none_or(|&max| state.asked > max);
        if highest {
            for (line, &now) in self.stack.live.iter_mut().zip(&self.now) {
                line.truncate(bucket);
                line.push(now);
            }
        }
        self.series.live.add(bucket, state.asked);
        self.series.taken.add(bucket, state.taken);
        self.series.span.add(bucket, state.span);
        self.series.external.add(bucket, state.external());
        self.series.internal.add(bucket, state.internal());
        self.taken = self.taken.max(state.taken);
        if state.asked > self.peak.1.asked {
            self.peak = (event, state);
        }
    }
}
