//! Gives blocks addresses by replaying a trace on one of the library's placements, over memory that does not exist.

use std::fmt;
use std::ptr::{NonNull, without_provenance_mut};

use allotment::placement::{Apart, Block, BuddyMap, FirstFitMap, GoodFit, SegmentPlacement};
use allotment::region::{Region, RegionError};
use allotment_planner::deadline::{Deadline, Watch};
use clap::ValueEnum;

use super::trace::{Action, Event, Trace};

/// Bytes per granule, and the arena above which granules are larger.
const GRANULE: usize = 8;
const LARGE_GRANULE: usize = 256;
const LARGE: u64 = 8 << 30;

/// The work of an event in elementary steps, as a [`Watch`] counts them.
const EVENT: usize = 100;

/// The address of the arena. No memory is there: a side table never accesses the memory that it describes.
const BASE: usize = 1 << (usize::BITS - 8);

/// Placements for memory that is not accessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Placing {
    /// Nearly the smallest fitting block, by size class
    #[default]
    GoodFit,
    /// The fitting block with the lowest address
    FirstFit,
    /// The smallest fitting block
    BestFit,
    /// Powers of two
    Buddy,
}

impl Placing {
    /// Returns the heap whose policy is nearest, by its name in `replay`: suggestions are tried on it.
    pub fn heap(self) -> &'static str {
        match self {
            Self::GoodFit => "tlsf",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Buddy => "buddy",
        }
    }
}

impl fmt::Display for Placing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoodFit => "GoodFit",
            Self::FirstFit => "FirstFit",
            Self::BestFit => "BestFit",
            Self::Buddy => "Buddy",
        })
    }
}

/// The error of a replay that gave blocks no addresses.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The trace needs more memory than an index can address.
    #[error("no arena of up to {0} B serves the trace")]
    TooLarge(u64),
    /// The requested arena satisfies hardly any request.
    #[error(
        "an arena of {arena} B serves {served} of {requests} requests: give a larger one, or leave --arena out"
    )]
    TooSmall {
        /// Its size in bytes.
        arena: u64,
        /// The number of requests that it satisfies.
        served: usize,
        /// Requests of the trace.
        requests: usize,
    },
    /// The placement does not accept the arena.
    #[error("an arena of {size} B is refused: {error}")]
    Region {
        /// Its size in bytes.
        size: u64,
        /// The reason.
        error: RegionError,
    },
}

/// The state of the arena after an event, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Bytes in blocks, with each request rounded up to its block's size.
    pub taken: u64,
    /// Requested bytes in blocks.
    pub asked: u64,
    /// Bytes up to the end of the last block.
    pub span: u64,
    /// Bytes that are not in blocks.
    pub free: u64,
    /// The largest request that would be satisfied.
    pub largest: u64,
}

impl State {
    /// Returns the external fragmentation in permille: the share of the free bytes outside the largest free block.
    pub fn external(&self) -> u64 {
        permille(self.free.saturating_sub(self.largest), self.free)
    }

    /// Returns the internal fragmentation in permille: the share of the taken bytes that were not requested.
    pub fn internal(&self) -> u64 {
        permille(self.taken.saturating_sub(self.asked), self.taken)
    }
}

fn permille(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// A block at one address for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which block.
    pub block: u32,
    /// Its distance from the start of the arena in bytes.
    pub at: u64,
    /// Bytes that it takes.
    pub len: u64,
    /// Event from which on it lies there.
    pub from: u32,
    /// Event from which on it does not.
    pub to: u32,
}

/// A receiver of the events of a replay.
pub trait Watcher {
    /// Receives a piece when it is complete. Pieces that are never freed come last.
    fn piece(&mut self, piece: Piece);
    /// Receives the state after event number `event`. An event that was not satisfied changed nothing.
    fn after(&mut self, event: usize, served: bool, state: State);
}

/// A watcher that ignores everything.
struct Unwatched;

impl Watcher for Unwatched {
    fn piece(&mut self, _: Piece) {}
    fn after(&mut self, _: usize, _: bool, _: State) {}
}

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests that failed.
    pub failed: usize,
    /// Resized blocks that had to move.
    pub moves: usize,
    /// Bytes that were copied for these moves.
    pub moved: u64,
}

/// An arena to replay a trace in.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    placing: Placing,
    /// Bytes.
    pub arena: u64,
    /// Bytes per granule.
    pub granule: u64,
    /// True if the arena is the smallest one that satisfies every request; false if it was given, or if the search for a
    /// smaller one was cut short.
    pub smallest: bool,
}

/// Calls a function for a placement and a granule that are known only at run time.
macro_rules! with {
    ($placing:expr, $granule:expr, $call:ident($($argument:expr),*)) => {
        match ($placing, $granule == GRANULE as u64) {
            (Placing::GoodFit, true) => $call::<GoodFit<u32, GRANULE>>($($argument),*),
            (Placing::GoodFit, false) => $call::<GoodFit<u32, LARGE_GRANULE>>($($argument),*),
            (Placing::FirstFit, true) => $call::<Apart<FirstFitMap, GRANULE>>($($argument),*),
            (Placing::FirstFit, false) => $call::<Apart<FirstFitMap, LARGE_GRANULE>>($($argument),*),
            (Placing::BestFit, true) => $call::<GoodFit<u32, GRANULE, { usize::MAX }>>($($argument),*),
            (Placing::BestFit, false) => $call::<GoodFit<u32, LARGE_GRANULE, { usize::MAX }>>($($argument),*),
            (Placing::Buddy, true) => $call::<Apart<BuddyMap, GRANULE>>($($argument),*),
            (Placing::Buddy, false) => $call::<Apart<BuddyMap, LARGE_GRANULE>>($($argument),*),
        }
    };
}

impl Site {
    /// Creates an arena of `arena` bytes, or the smallest one that satisfies every request, which takes about twenty replays.
    ///
    /// The smallest one is found by binary search. With a placement for which more memory can be worse, a smaller arena may
    /// also be enough. When `deadline` passes during the search, the smallest arena so far is taken, or one of twice the
    /// least possible size if none has satisfied every request.
    ///
    /// # Errors
    /// [`PlaceError`] if there is no such arena.
    pub fn new(
        trace: &Trace,
        placing: Placing,
        arena: Option<u64>,
        deadline: &Deadline,
    ) -> Result<Self, PlaceError> {
        let small = arena.unwrap_or_else(|| least(trace, GRANULE as u64)) <= LARGE;
        let granule = if small { GRANULE } else { LARGE_GRANULE } as u64;
        let (arena, smallest) = match arena {
            Some(arena) => (arena, false),
            None => {
                let (len, smallest) = with!(placing, granule, smallest(trace, deadline))?;
                (len * granule, smallest)
            }
        };
        Ok(Self { placing, arena, granule, smallest })
    }

    /// Replays `trace`. O(events) calls of the placement.
    ///
    /// # Errors
    /// [`PlaceError`] if the arena is refused.
    pub fn replay(&self, trace: &Trace, watcher: &mut dyn Watcher) -> Result<Outcome, PlaceError> {
        let outcome = with!(self.placing, self.granule, run(trace, self.arena, None, watcher))?;
        let outcome = outcome.unwrap_or_default();
        let requests = trace.events.iter().filter(|event| event.action != Action::Free).count();
        let served = requests - outcome.failed;
        if requests > 0 && served <= requests / 10 {
            return Err(PlaceError::TooSmall { arena: self.arena, served, requests });
        }
        Ok(outcome)
    }
}

/// Returns the peak of the live bytes, rounded up to granules. No arena can be smaller.
fn least(trace: &Trace, granule: u64) -> u64 {
    let mut sizes = vec![0; trace.blocks.len()];
    let (mut live, mut most) = (0_u64, 0);
    for event in &trace.events {
        let size = match event.action {
            Action::Free => 0,
            _ => event.size.max(1).next_multiple_of(granule),
        };
        live = live - std::mem::replace(&mut sizes[event.block as usize], size) + size;
        most = most.max(live);
    }
    most.max(granule)
}

/// Returns the smallest arena in granules, and true; or the best one when the deadline passed, and false.
fn smallest<S: SegmentPlacement>(trace: &Trace, deadline: &Deadline) -> Result<(u64, bool), PlaceError> {
    let granule = S::GRANULE as u64;
    let most = S::MAX_LEN as u64;
    // False also if the deadline passed before that was known.
    let fits = |len: u64| Ok(run::<S>(trace, len * granule, Some(deadline), &mut Unwatched)?.is_some());
    let least = least(trace, granule) / granule;
    let (mut low, mut high) = (least, least);
    while high > most || !fits(high)? {
        if high >= most {
            return Err(PlaceError::TooLarge(most * granule));
        }
        if deadline.passed() {
            return Ok((least.saturating_mul(2).min(most), false));
        }
        low = high + 1;
        high = (high + high / 8 + 64).min(most);
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(middle)? {
            high = middle;
        } else if deadline.passed() {
            return Ok((high, false));
        } else {
            low = middle + 1;
        }
    }
    Ok((high, true))
}

/// A block that has an address.
struct Held<T> {
    block: Block<T>,
    len: usize,
    asked: u64,
    from: u32,
}

/// The arena of a replay.
struct Arena<S: SegmentPlacement> {
    space: S,
    held: Vec<Option<Held<S::Token>>>,
    /// The lengths of the blocks by their offsets. Memory above the last one is not needed at that moment.
    ends: std::collections::BTreeMap<usize, usize>,
    /// Index of the first granule.
    first: usize,
    capacity: u64,
    state: State,
    outcome: Outcome,
}

/// Replays a trace. With a deadline it returns `None` at the first request that fails, or when the deadline passes.
fn run<S: SegmentPlacement>(
    trace: &Trace,
    size: u64,
    strict: Option<&Deadline>,
    watcher: &mut dyn Watcher,
) -> Result<Option<Outcome>, PlaceError> {
    let refused = |error| PlaceError::Region { size, error };
    let bytes = usize::try_from(size).ok().filter(|&bytes| bytes <= BASE);
    let bytes = bytes.ok_or(refused(RegionError::TooLarge { max: BASE }))?;
    let mut space = S::EMPTY;
    let start = NonNull::new(without_provenance_mut(BASE)).expect("the base is not null");
    // SAFETY: the placement never touches the memory.
    unsafe { space.claim(Region::new(start, bytes)) }.map_err(refused)?;
    let (first, capacity) = (space.granules().start, (space.granules().len() * S::GRANULE) as u64);
    let held = trace.blocks.iter().map(|_| None).collect();
    let state = State { free: capacity, ..State::default() };
    let mut arena = Arena::<S> {
        space,
        held,
        ends: Default::default(),
        first,
        capacity,
        state,
        outcome: Outcome::default(),
    };
    let mut watch = strict.map(Watch::new);
    for (now, event) in trace.events.iter().enumerate() {
        let served = arena.event(trace, now as u32, event, watcher);
        if watch.as_mut().is_some_and(|watch| !served || watch.passed(EVENT)) {
            return Ok(None);
        }
        arena.outcome.failed += usize::from(!served);
        if strict.is_none() {
            watcher.after(now, served, arena.settle());
        }
    }
    let end = trace.events.len() as u32;
    for block in 0..trace.blocks.len() {
        if let Some(held) = arena.held[block].take() {
            watcher.piece(arena.piece(block as u32, &held, end));
        }
    }
    Ok(Some(arena.outcome))
}

impl<S: SegmentPlacement> Arena<S> {
    /// Replays an event. Returns whether it was satisfied.
    fn event(&mut self, trace: &Trace, now: u32, event: &Event, watcher: &mut dyn Watcher) -> bool {
        let granule = S::GRANULE;
        let slot = event.block as usize;
        let Some(len) = usize::try_from(event.size).ok().map(|size| size.max(1).div_ceil(granule)) else {
            return false;
        };
        let align =
            usize::try_from(trace.blocks[slot].align).map_or(usize::MAX / 2 + 1, |align| align.max(granule));
        let align = align / granule;
        let old = self.held[slot].take();
        if event.action == Action::Free {
            // A block that was not satisfied is not freed.
            if let Some(old) = old {
                self.end(event.block, &old, now, watcher);
                self.free(old, align);
            }
            return true;
        }
        let Some(old) = old else {
            self.held[slot] = self.allocate(len, align, event.size, now);
            return self.held[slot].is_some();
        };
        // SAFETY: the block is live and was requested with these figures; nothing uses its memory.
        if let Some(block) = unsafe { self.space.resize(old.block, old.len, len, align) } {
            self.end(event.block, &old, now, watcher);
            self.count(&old, false);
            let new = Held { block, len, asked: event.size, from: now };
            self.count(&new, true);
            self.held[slot] = Some(new);
            return true;
        }
        // Like `realloc`: the old block stays until its contents have been copied.
        let Some(new) = self.allocate(len, align, event.size, now) else {
            self.held[slot] = Some(old);
            return false;
        };
        self.outcome.moves += 1;
        self.outcome.moved += old.asked.min(event.size);
        self.end(event.block, &old, now, watcher);
        self.free(old, align);
        self.held[slot] = Some(new);
        true
    }

    fn allocate(&mut self, len: usize, align: usize, asked: u64, from: u32) -> Option<Held<S::Token>> {
        let block = self.space.allocate(len, align)?;
        let held = Held { block, len, asked, from };
        self.count(&held, true);
        Some(held)
    }

    fn free(&mut self, old: Held<S::Token>, align: usize) {
        self.count(&old, false);
        // SAFETY: the block is live, was requested with these figures, and is forgotten here.
        let freed = unsafe { self.space.deallocate(old.block, old.len, align) };
        debug_assert!(freed.is_ok());
    }

    fn count(&mut self, held: &Held<S::Token>, comes: bool) {
        let taken = held.block.len as u64 * S::GRANULE as u64;
        if comes {
            self.state.taken += taken;
            self.state.asked += held.asked;
            self.ends.insert(held.block.offset, held.block.len);
        } else {
            self.state.taken -= taken;
            self.state.asked -= held.asked;
            self.ends.remove(&held.block.offset);
        }
    }

    fn piece(&self, block: u32, held: &Held<S::Token>, to: u32) -> Piece {
        let granule = S::GRANULE as u64;
        let (at, len) = (held.block.offset - self.first, held.block.len);
        Piece { block, at: at as u64 * granule, len: len as u64 * granule, from: held.from, to }
    }

    fn end(&self, block: u32, held: &Held<S::Token>, now: u32, watcher: &mut dyn Watcher) {
        if held.from < now {
            watcher.piece(self.piece(block, held, now));
        }
    }

    /// Returns the complete state.
    fn settle(&mut self) -> State {
        let granule = S::GRANULE as u64;
        let end = self.ends.last_key_value().map_or(0, |(&offset, &len)| offset + len - self.first);
        self.state.span = end as u64 * granule;
        self.state.free = self.capacity.saturating_sub(self.state.taken);
        self.state.largest = (self.space.largest() as u64 * granule).min(self.state.free);
        self.state
    }
}
