//! The state behind a pool's lock: the arenas of streams, their segments, and the blocks that were handed out.

use super::arena::{Arena, Bin, Entry, Request, SizeKind, UNLISTED};
use super::capture::Capture;
use super::marks::{Queue, Waiting};
use super::records::{Holder, Record, Records};
use super::stats::{Figures, Since, SourceCalls};
use super::stream::StreamId;
use super::tournament::Tournament;
use super::trace_output::PoolTrace;
use super::usage::Usage;
use super::{Segment, Source, Stream};
use crate::meta::{FreeBlocks, Meta};
use crate::placement::{Placement, Token};
use core::ops::Bound;
use core::panic::Location;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::vec::Vec;

pub(super) struct State<P: Placement, S: Source> {
    pub arenas: Vec<Arena<S>>,
    /// The longest free block of every arena that is not in `touched`.
    longest: Tournament,
    /// Arenas whose segments have changed since they were last entered, up to [`TOUCHED`].
    touched: Vec<usize>,
    pub by_stream: HashMap<StreamId, usize>,
    pub recent: usize,
    /// Arenas without a stream that still have memory, and those that have none.
    pub retired: Vec<usize>,
    pub vacant: Vec<usize>,
    pub segments: Vec<Option<Box<Entry<P>>>>,
    pub records: Records<Token<P>>,
    /// For each shared block, the other streams that use it.
    pub users: HashMap<u32, Vec<S::Stream>>,
    /// Freed blocks that wait for events, by record, and the events by stream.
    pub waiting: HashMap<u32, Waiting>,
    pub queues: BTreeMap<StreamId, Queue<S>>,
    /// Captures whose memory is kept.
    pub captures: Vec<Capture<S>>,
    /// Whether streams must be asked at every request and free whether they are being captured.
    pub asks: bool,
    /// Blocks that may be moved.
    pub movable: HashSet<u32>,
    pub sites: HashMap<u32, &'static Location<'static>>,
    pub figures: Figures,
    pub calls: SourceCalls,
    pub step: u64,
    /// Whether segments must note when they become empty.
    pub ages: bool,
    /// The class lengths in granules, ascending; empty unless blocks are kept by class.
    pub classes: Vec<usize>,
    /// The trace that events are written to, if one is running.
    pub trace: Option<Box<PoolTrace>>,
    /// Statistics of what is requested, if the options ask for them.
    pub usage: Option<Box<Usage>>,
}

/// Converts granules to bytes.
pub(super) const fn bytes_of<P: Placement>(len: usize) -> u64 {
    (len * <P::Meta as Meta>::GRANULE) as u64
}

impl<P: Placement, S: Source> State<P, S> {
    pub(super) fn new(ages: bool) -> Self {
        Self {
            arenas: Vec::new(),
            longest: Tournament::new(),
            touched: Vec::with_capacity(TOUCHED),
            by_stream: HashMap::new(),
            recent: 0,
            retired: Vec::new(),
            vacant: Vec::new(),
            segments: Vec::new(),
            records: Records::new(),
            users: HashMap::new(),
            waiting: HashMap::new(),
            queues: BTreeMap::new(),
            captures: Vec::new(),
            asks: false,
            movable: HashSet::new(),
            sites: HashMap::new(),
            figures: Figures::default(),
            calls: SourceCalls::default(),
            step: 0,
            ages,
            classes: Vec::new(),
            trace: None,
            usage: None,
        }
    }

    /// Whether a trace or the usage statistics must hear of every request.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.trace.is_some() || self.usage.is_some()
    }

    /// Rounds a request up to its class. O(log classes).
    pub(super) fn classify(&self, ask: &mut Request) {
        let class = self.classes.partition_point(|&class| class < ask.len);
        if let Some(&class) = self.classes.get(class).filter(|_| ask.align == 1) {
            (ask.len, ask.classed) = (class, true);
        }
    }

    /// Counts something for the pool and for an arena. While there is only one arena, the pool's figures are also
    /// its own.
    #[inline(always)]
    pub(super) fn note(&mut self, arena: usize, count: impl Fn(&mut Figures)) {
        count(&mut self.figures);
        if self.arenas.len() > 1 {
            count(&mut self.arenas[arena].figures);
        }
    }

    /// Returns the figures of an arena.
    pub(super) fn figures_of(&self, arena: usize) -> &Figures {
        if self.arenas.len() > 1 { &self.arenas[arena].figures } else { &self.figures }
    }

    /// Returns the arena of a stream, if it has one.
    #[inline(always)]
    pub(super) fn arena_of(&mut self, id: StreamId) -> Option<usize> {
        if self.arenas.get(self.recent).is_some_and(|arena| arena.id == id && !arena.private) {
            return Some(self.recent);
        }
        let arena = *self.by_stream.get(&id)?;
        self.recent = arena;
        Some(arena)
    }

    /// Opens an arena for the stream; `None` if there are too many.
    pub(super) fn open_arena(&mut self, stream: &S::Stream) -> Option<usize> {
        let number = self.add_arena(stream, false)?;
        self.by_stream.insert(stream.id(), number);
        Some(number)
    }

    /// Opens an arena for the stream within a capture, which is not its usual one.
    pub(super) fn open_private_arena(&mut self, stream: &S::Stream) -> Option<usize> {
        self.add_arena(stream, true)
    }

    fn add_arena(&mut self, stream: &S::Stream, private: bool) -> Option<usize> {
        if let [only] = self.arenas.as_mut_slice() {
            only.figures = self.figures;
        }
        let arena = Arena {
            stream: Some(stream.retain()),
            id: stream.id(),
            open: !private,
            since: Since::default(),
            changed: false,
            private,
            records: 0,
            bins: Default::default(),
            figures: Figures::default(),
            frees: 0,
            quiet: 0,
            fence: None,
            cached: HashMap::new(),
            reusable: BTreeSet::new(),
            last_growth: 0,
            touched: false,
        };
        let number = match self.vacant.pop() {
            Some(number) => {
                let touched = self.arenas[number].touched;
                self.arenas[number] = Arena { touched, ..arena };
                number
            }
            None if self.arenas.len() < usize::from(u16::MAX) => {
                self.arenas.push(arena);
                self.arenas.len() - 1
            }
            None => return None,
        };
        self.longest.set(number, 0);
        Some(number)
    }

    /// Returns the segment with this number, which must exist.
    #[inline(always)]
    pub(super) fn entry(&self, segment: u32) -> &Entry<P> {
        match &self.segments[segment as usize] {
            Some(entry) => entry,
            None => unreachable!("segments are released when no record refers to them"),
        }
    }

    /// Returns the segment with this number, which must exist, for changes.
    #[inline(always)]
    pub(super) fn entry_mut(&mut self, segment: u32) -> &mut Entry<P> {
        match &mut self.segments[segment as usize] {
            Some(entry) => entry,
            None => unreachable!("segments are released when no record refers to them"),
        }
    }

    /// Returns the address of the first byte of the record's block.
    #[inline(always)]
    pub(super) fn address(&self, record: &Record<Token<P>>) -> usize {
        self.entry(record.segment).placement.meta().address(record.offset as usize).addr()
    }

    /// Serves a request from the arena's own segments of this kind. O(log segments) plus the placement's work.
    #[inline(always)]
    pub(super) fn allocate(&mut self, ask: &Request, arena: usize, kind: SizeKind) -> Option<u32> {
        let bin = &self.arenas[arena].bins[kind as usize];
        if let &[only] = bin.members.as_slice() {
            return self.allocate_in(only, ask, arena);
        }
        self.allocate_among(ask, arena, kind)
    }

    /// Serves a request from one of several segments: the one whose longest free block is the shortest that
    /// suffices, so that longer ones are not split.
    fn allocate_among(&mut self, ask: &Request, arena: usize, kind: SizeKind) -> Option<u32> {
        let mut from = Bound::Included((ask.len, 0));
        loop {
            let order = &self.arenas[arena].bins[kind as usize].order;
            let &key = order.range((from, Bound::Unbounded)).next()?;
            // An aligned request may not fit into a block that is long enough.
            if let Some(record) = self.allocate_in(key.1, ask, arena) {
                return Some(record);
            }
            from = Bound::Excluded(key);
        }
    }

    /// Finds a segment of the arena in which the request may fit.
    pub(super) fn candidate(&self, arena: usize, kind: SizeKind, len: usize) -> Option<u32> {
        let bin = &self.arenas[arena].bins[kind as usize];
        if let &[only] = bin.members.as_slice() {
            return (self.entry(only).placement.largest() >= len).then_some(only);
        }
        bin.order.range((len, 0)..).next().map(|key| key.1)
    }

    /// Serves a request from one segment, for the stream of `arena`.
    #[inline(always)]
    pub(super) fn allocate_in(&mut self, segment: u32, ask: &Request, arena: usize) -> Option<u32> {
        let number = self.take_in(segment, ask, arena)?;
        let granted = bytes_of::<P>(self.records.get(number).len as usize);
        let requested = ask.bytes as u64;
        self.note(arena, |figures| figures.allocate(granted, requested));
        Some(number)
    }

    /// Serves a request from one segment like [`Self::allocate_in`], but does not count it.
    #[inline(always)]
    pub(super) fn take_in(&mut self, segment: u32, ask: &Request, arena: usize) -> Option<u32> {
        let entry = self.entry_mut(segment);
        let block = entry.take(ask)?;
        let (home, listed) = (entry.arena, entry.is_listed());
        self.touch(home);
        self.arenas[arena].records += 1;
        let mut record = ask.record(block, segment, arena);
        if home != arena {
            record.holder = Holder::Shared;
        }
        let number = self.records.insert(record);
        if listed {
            self.relist(segment);
        }
        Some(number)
    }

    /// Gives a record's block back to its placement and removes the record. The caller updates the block's
    /// statistics. Returns the segment.
    #[inline(always)]
    pub(super) fn put_back(&mut self, number: u32, now: impl FnOnce() -> Duration) -> u32 {
        let record = *self.records.get(number);
        let (ages, step) = (self.ages, self.step);
        let entry = self.entry_mut(record.segment);
        // SAFETY: the placement handed out the record's block, and it is given back once, since the record is removed
        // with it.
        unsafe { entry.put_back(&record) };
        if entry.live == entry.holes && ages {
            entry.emptied = (now(), step);
        }
        let home = entry.arena;
        if entry.is_listed() {
            self.relist(record.segment);
        }
        self.touch(home);
        self.arenas[home].frees += 1;
        self.arenas[usize::from(record.arena)].records -= 1;
        self.records.remove(number);
        record.segment
    }

    /// Updates a segment's place in the order after its longest free block has changed. O(log segments).
    fn relist(&mut self, segment: u32) {
        if let Some(entry) = &mut self.segments[segment as usize] {
            self.arenas[entry.arena].bins[entry.kind as usize].relist(entry, segment);
        }
    }

    /// Notes that a segment of the arena has changed. O(1), amortised over [`TOUCHED`] calls.
    #[inline(always)]
    pub(super) fn touch(&mut self, arena: usize) {
        if !self.arenas[arena].touched {
            self.touch_another(arena);
        }
    }

    #[inline(never)]
    fn touch_another(&mut self, arena: usize) {
        if self.touched.len() == TOUCHED {
            self.settle();
        }
        self.touched.push(arena);
        self.arenas[arena].touched = true;
    }

    /// Enters the longest free blocks of all touched arenas into the tournament.
    fn settle(&mut self) {
        while let Some(arena) = self.touched.pop() {
            self.arenas[arena].touched = false;
            let longest = self.longest(arena);
            self.longest.set(arena, longest);
        }
    }

    /// Updates the order after a placement has grown.
    pub(super) fn lengthened(&mut self, segment: u32) {
        self.touch(self.entry(segment).arena);
        if self.entry(segment).is_listed() {
            self.relist(segment);
        }
    }

    /// Adds a segment to its arena and returns its number.
    pub(super) fn insert_segment(&mut self, entry: Entry<P>) -> u32 {
        let number = match self.segments.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                self.segments.push(None);
                self.segments.len() - 1
            }
        };
        let (arena, bytes) = (entry.arena, entry.memory.bytes as u64);
        self.segments[number] = Some(Box::new(entry));
        self.note(arena, |figures| figures.reserve(bytes, 1));
        self.enter(number as u32);
        number as u32
    }

    /// Puts a segment into its arena's bin.
    fn enter(&mut self, segment: u32) {
        let (arena, kind) = (self.entry(segment).arena, self.entry(segment).kind);
        self.touch(arena);
        let bin = &mut self.arenas[arena].bins[kind as usize];
        bin.members.push(segment);
        match bin.members.len() {
            1 => {}
            2 => {
                bin.longest = 0;
                let both = bin.members.clone();
                both.into_iter().for_each(|member| self.relist(member));
            }
            _ => self.relist(segment),
        }
    }

    /// Takes a segment out of its arena's bin.
    fn leave(&mut self, segment: u32) {
        let entry = self.entry_mut(segment);
        let listed = core::mem::replace(&mut entry.listed, UNLISTED);
        let (arena, kind) = (entry.arena, entry.kind);
        self.touch(arena);
        let bin = &mut self.arenas[arena].bins[kind as usize];
        bin.order.remove(&(listed, segment));
        bin.members.retain(|&member| member != segment);
        bin.longest = bin.order.last().map_or(0, |key| key.0);
        if let &[only] = bin.members.as_slice() {
            bin.order.clear();
            self.entry_mut(only).listed = UNLISTED;
        }
    }

    /// Removes a segment without live blocks. Returns it, its arena, and how many of its bytes have memory; `None`
    /// if it has a live block.
    pub(super) fn remove_segment(&mut self, segment: u32) -> Option<(Segment, usize, usize)> {
        let entry = self.entry_mut(segment);
        if entry.live > entry.holes {
            return None;
        }
        let (memory, arena) = (entry.memory, entry.arena);
        let mapped = memory.bytes - entry.unmapped;
        if entry.holes > 0 {
            let own = |(number, record): (u32, &Record<_>)| (record.segment == segment).then_some(number);
            let holes: Vec<u32> = self.records.iter().filter_map(own).collect();
            for number in holes {
                let owner = usize::from(self.records.get(number).arena);
                self.arenas[owner].records -= 1;
                self.records.remove(number);
            }
        }
        self.leave(segment);
        self.segments[segment as usize] = None;
        self.note(arena, |figures| figures.release(mapped as u64));
        Some((memory, arena, mapped))
    }

    /// Moves an empty segment to another arena.
    pub(super) fn transfer(&mut self, segment: u32, to: usize) {
        self.leave(segment);
        let entry = self.entry_mut(segment);
        let from = core::mem::replace(&mut entry.arena, to);
        let (bytes, holes) = ((entry.memory.bytes - entry.unmapped) as u64, entry.holes);
        if holes > 0 {
            let owned = self.records.iter().filter(|(_, record)| record.segment == segment);
            let owned: Vec<u32> = owned.map(|(number, _)| number).collect();
            for number in owned {
                let old = core::mem::replace(&mut self.records.get_mut(number).arena, to as u16);
                self.arenas[usize::from(old)].records -= 1;
                self.arenas[to].records += 1;
            }
        }
        self.arenas[from].figures.release(bytes);
        self.arenas[to].figures.reserve(bytes, 1);
        self.enter(segment);
    }

    /// Iterates over the segments without a live block, except those that belong to a graph.
    pub(super) fn empty_segments(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        let numbered = self.segments.iter().enumerate();
        let there = numbered.filter_map(|(number, entry)| Some((number as u32, entry.as_deref()?)));
        there.filter(|(_, entry)| entry.live == entry.holes && !self.arenas[entry.arena].private)
    }

    /// Returns the longest free block of an arena, in granules. O(1).
    pub(super) fn longest(&self, arena: usize) -> usize {
        let of = |bin: &Bin| match bin.members.as_slice() {
            &[only] => self.entry(only).placement.largest(),
            _ => bin.longest,
        };
        self.arenas[arena].bins.iter().map(of).max().unwrap_or(0)
    }

    /// Returns the longest free block of the pool, in bytes. O(1): at most [`TOUCHED`] arenas are updated first.
    pub(super) fn largest_free(&mut self) -> u64 {
        self.settle();
        bytes_of::<P>(self.longest.largest())
    }
}

/// How many changed arenas are collected before their longest free blocks are entered into the tournament.
const TOUCHED: usize = 16;
