//! The state behind a pool's lock: the heaps of streams, their segments, and the blocks that were handed out.

use super::capture::Capture;
use super::marks::{Queue, Waiting};
use super::records::{Holder, Record, Records};
use super::stats::{Figures, Since, SourceCalls};
use super::stream::StreamId;
use super::stream_heap::{Bin, Entry, Request, SizeKind, StreamHeap, UNLISTED};
use super::tournament::Tournament;
use super::trace_output::PoolTrace;
use super::usage::Usage;
use super::{CaptureId, Segment, Source, Stream};
use crate::placement::SegmentPlacement;
use core::panic::Location;
use core::time::Duration;
use std::boxed::Box;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::vec::Vec;

pub(super) struct State<P: SegmentPlacement, S: Source> {
    pub heaps: Vec<StreamHeap<S>>,
    /// The longest free block of every stream heap that is not in `touched`.
    longest: Tournament,
    /// Stream heaps whose segments have changed since they were last entered, up to [`TOUCHED`].
    touched: Vec<usize>,
    pub by_stream: HashMap<StreamId, usize>,
    pub recent: usize,
    /// Stream heaps without a stream that still have memory, and those that have none.
    pub retired: Vec<usize>,
    pub vacant: Vec<usize>,
    pub segments: Vec<Option<Box<Entry<P>>>>,
    pub records: Records<P::Token>,
    /// For each shared block, the other streams that use it.
    pub users: HashMap<u32, Vec<S::Stream>>,
    /// Freed blocks that wait for events, by record, and the events by stream.
    pub waiting: HashMap<u32, Waiting>,
    pub queues: BTreeMap<StreamId, Queue<S>>,
    /// Captures whose memory is kept.
    pub captures: Vec<Capture<S>>,
    /// Live blocks that captured streams use as well: their serial numbers, and the captures.
    pub touched_by: HashMap<u32, (u32, Vec<CaptureId>)>,
    /// Whether streams must be asked at every request and free whether they are being captured.
    pub asks: bool,
    /// Blocks that may be moved.
    pub movable: HashSet<u32>,
    pub sites: HashMap<u32, &'static Location<'static>>,
    pub figures: Figures,
    pub calls: SourceCalls,
    pub step: u64,
    /// How long a segment may stay empty, [`Duration::MAX`] if that is not a matter of time; `None` if segments need not
    /// note when they become empty.
    pub ages: Option<Duration>,
    /// When the first empty segment may be too old, by the source's clock; [`Duration::MAX`] for never.
    pub trim_at: Duration,
    /// The class lengths in granules, ascending; empty unless blocks are kept by class.
    pub classes: Vec<usize>,
    /// The trace that events are written to, if one is running.
    pub trace: Option<Box<PoolTrace>>,
    /// Statistics of what is requested, if the options ask for them.
    pub usage: Option<Box<Usage>>,
}

/// Converts granules to bytes.
pub(super) const fn bytes_of<P: SegmentPlacement>(len: usize) -> u64 {
    (len * P::GRANULE) as u64
}

impl<P: SegmentPlacement, S: Source> State<P, S> {
    pub(super) fn new(ages: Option<Duration>) -> Self {
        Self {
            heaps: Vec::new(),
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
            touched_by: HashMap::new(),
            asks: false,
            movable: HashSet::new(),
            sites: HashMap::new(),
            figures: Figures::default(),
            calls: SourceCalls::default(),
            step: 0,
            ages,
            trim_at: Duration::MAX,
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
    pub(super) fn classify(&self, request: &mut Request) {
        let class = self.classes.partition_point(|&class| class < request.len);
        if let Some(&class) = self.classes.get(class).filter(|_| request.align == 1) {
            (request.len, request.classed) = (class, true);
        }
    }

    /// Counts something for the pool and for a stream heap. While there is only one stream heap, the pool's figures are also
    /// its own.
    #[inline(always)]
    pub(super) fn note(&mut self, heap: usize, count: impl Fn(&mut Figures)) {
        count(&mut self.figures);
        if self.heaps.len() > 1 {
            count(&mut self.heaps[heap].figures);
        }
    }

    /// Returns the figures of a stream heap.
    pub(super) fn figures_of(&self, heap: usize) -> &Figures {
        if self.heaps.len() > 1 { &self.heaps[heap].figures } else { &self.figures }
    }

    /// Returns the heap of a stream, if it has one.
    #[inline(always)]
    pub(super) fn heap_of(&mut self, id: StreamId) -> Option<usize> {
        if self.heaps.get(self.recent).is_some_and(|heap| heap.id == id && !heap.private) {
            return Some(self.recent);
        }
        let heap = *self.by_stream.get(&id)?;
        self.recent = heap;
        Some(heap)
    }

    /// Opens a stream heap for the stream; `None` if there are too many.
    pub(super) fn open_heap(&mut self, stream: &S::Stream) -> Option<usize> {
        let number = self.add_heap(stream, false)?;
        self.by_stream.insert(stream.id(), number);
        Some(number)
    }

    /// Opens a stream heap for the stream within a capture, which is not its usual one.
    pub(super) fn open_private_heap(&mut self, stream: &S::Stream) -> Option<usize> {
        self.add_heap(stream, true)
    }

    fn add_heap(&mut self, stream: &S::Stream, private: bool) -> Option<usize> {
        if let [only] = self.heaps.as_mut_slice() {
            only.figures = self.figures;
        }
        let heap = StreamHeap {
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
                self.heaps[number] = heap;
                number
            }
            None if self.heaps.len() < usize::from(u16::MAX) => {
                self.heaps.push(heap);
                self.heaps.len() - 1
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
    pub(super) fn address(&self, record: &Record<P::Token>) -> usize {
        self.entry(record.segment).placement.address(record.offset as usize)
    }

    /// Serves a request from the stream heap's own segments of this kind. O(log segments) plus the placement's work.
    #[inline(always)]
    pub(super) fn allocate(&mut self, request: &Request, heap: usize, kind: SizeKind) -> Option<u32> {
        let bin = &self.heaps[heap].bins[kind as usize];
        if let &[only] = bin.members.as_slice() {
            return self.allocate_in(only, request, heap);
        }
        self.allocate_among(request, heap, kind)
    }

    /// Serves a request from one of several segments: the one whose longest free block is the shortest that
    /// suffices, so that longer ones are not split.
    fn allocate_among(&mut self, request: &Request, heap: usize, kind: SizeKind) -> Option<u32> {
        let mut key = self.heaps[heap].bins[kind as usize].first(request.len)?;
        loop {
            // An aligned request may not fit into a block that is long enough.
            if let Some(record) = self.allocate_in(key.1, request, heap) {
                return Some(record);
            }
            key = self.heaps[heap].bins[kind as usize].after(key)?;
        }
    }

    /// Finds a segment of the stream heap in which the request may fit.
    pub(super) fn candidate(&self, heap: usize, kind: SizeKind, len: usize) -> Option<u32> {
        let bin = &self.heaps[heap].bins[kind as usize];
        if let &[only] = bin.members.as_slice() {
            return (self.entry(only).placement.largest() >= len).then_some(only);
        }
        bin.order.range((len, 0)..).next().map(|key| key.1)
    }

    /// Serves a request from one segment, for the stream of `heap`.
    #[inline(always)]
    pub(super) fn allocate_in(&mut self, segment: u32, request: &Request, heap: usize) -> Option<u32> {
        let number = self.take_in(segment, request, heap)?;
        let granted = bytes_of::<P>(self.records.get(number).len as usize);
        let requested = request.bytes as u64;
        self.note(heap, |figures| figures.allocate(granted, requested));
        Some(number)
    }

    /// Serves a request from one segment like [`Self::allocate_in`], but does not count it.
    #[inline(always)]
    pub(super) fn take_in(&mut self, segment: u32, request: &Request, heap: usize) -> Option<u32> {
        let entry = self.entry_mut(segment);
        let block = entry.take(request)?;
        let (home, listed) = (entry.heap, entry.is_listed());
        self.touch(home);
        self.heaps[heap].records += 1;
        let mut record = request.record(block, segment, heap);
        if home != heap {
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
        let mut trim_at = self.trim_at;
        let entry = self.entry_mut(record.segment);
        // SAFETY: the placement handed out the record's block, and it is given back once, since the record is removed
        // with it.
        unsafe { entry.put_back(&record) };
        if let (true, Some(age)) = (entry.live == entry.holes, ages) {
            entry.emptied = (now(), step);
            trim_at = trim_at.min(entry.emptied.0.saturating_add(age));
        }
        let home = entry.heap;
        if entry.is_listed() {
            self.relist(record.segment);
        }
        self.trim_at = trim_at;
        self.touch(home);
        self.heaps[home].frees += 1;
        self.heaps[usize::from(record.heap)].records -= 1;
        self.records.remove(number);
        record.segment
    }

    /// Updates a segment's place in the order after its longest free block has changed. O(log segments).
    fn relist(&mut self, segment: u32) {
        if let Some(entry) = &mut self.segments[segment as usize] {
            self.heaps[entry.heap].bins[entry.kind as usize].relist(entry, segment);
        }
    }

    /// Notes that a segment of the stream heap has changed. O(1), amortised over [`TOUCHED`] calls.
    #[inline(always)]
    pub(super) fn touch(&mut self, heap: usize) {
        if !self.heaps[heap].touched {
            self.touch_another(heap);
        }
    }

    #[inline(never)]
    fn touch_another(&mut self, heap: usize) {
        if self.touched.len() == TOUCHED {
            self.settle();
        }
        self.touched.push(heap);
        self.heaps[heap].touched = true;
    }

    /// Enters the longest free blocks of all touched stream heaps into the tournament.
    fn settle(&mut self) {
        while let Some(heap) = self.touched.pop() {
            self.heaps[heap].touched = false;
            let longest = self.longest(heap);
            self.longest.set(heap, longest);
        }
    }

    /// Updates the order after a placement has grown.
    pub(super) fn lengthened(&mut self, segment: u32) {
        self.touch(self.entry(segment).heap);
        if self.entry(segment).is_listed() {
            self.relist(segment);
        }
    }

    /// Adds a segment to its stream heap and returns its number.
    pub(super) fn insert_segment(&mut self, entry: Entry<P>) -> u32 {
        let number = match self.segments.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                self.segments.push(None);
                self.segments.len() - 1
            }
        };
        let (heap, bytes) = (entry.heap, entry.memory.bytes as u64);
        if let Some(age) = self.ages {
            self.trim_at = self.trim_at.min(entry.emptied.0.saturating_add(age));
        }
        self.segments[number] = Some(Box::new(entry));
        self.note(heap, |figures| figures.reserve(bytes, 1));
        self.enter(number as u32);
        number as u32
    }

    /// Puts a segment into its stream heap's bin.
    fn enter(&mut self, segment: u32) {
        let (heap, kind) = (self.entry(segment).heap, self.entry(segment).kind);
        self.touch(heap);
        let bin = &mut self.heaps[heap].bins[kind as usize];
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

    /// Takes a segment out of its stream heap's bin.
    fn leave(&mut self, segment: u32) {
        let entry = self.entry_mut(segment);
        let listed = core::mem::replace(&mut entry.listed, UNLISTED);
        let (heap, kind) = (entry.heap, entry.kind);
        self.touch(heap);
        let bin = &mut self.heaps[heap].bins[kind as usize];
        bin.unlist(listed, segment);
        bin.members.retain(|&member| member != segment);
        if let &[only] = bin.members.as_slice() {
            bin.order.clear();
            self.entry_mut(only).listed = UNLISTED;
        }
    }

    /// Removes a segment without live blocks. Returns it, its stream heap, and how many of its bytes have memory; `None`
    /// if it has a live block.
    pub(super) fn remove_segment(&mut self, segment: u32) -> Option<(Segment, usize, usize)> {
        let entry = self.entry_mut(segment);
        if entry.live > entry.holes {
            return None;
        }
        let (memory, heap) = (entry.memory, entry.heap);
        let mapped = memory.bytes - entry.unmapped;
        if entry.holes > 0 {
            let own = |(number, record): (u32, &Record<_>)| (record.segment == segment).then_some(number);
            let holes: Vec<u32> = self.records.iter().filter_map(own).collect();
            for number in holes {
                let owner = usize::from(self.records.get(number).heap);
                self.heaps[owner].records -= 1;
                self.records.remove(number);
            }
        }
        self.leave(segment);
        self.segments[segment as usize] = None;
        self.note(heap, |figures| figures.release(mapped as u64));
        Some((memory, heap, mapped))
    }

    /// Moves an empty segment to another stream heap.
    pub(super) fn transfer(&mut self, segment: u32, to: usize) {
        self.leave(segment);
        let entry = self.entry_mut(segment);
        let from = core::mem::replace(&mut entry.heap, to);
        let (bytes, holes) = ((entry.memory.bytes - entry.unmapped) as u64, entry.holes);
        if holes > 0 {
            let owned = self.records.iter().filter(|(_, record)| record.segment == segment);
            let owned: Vec<u32> = owned.map(|(number, _)| number).collect();
            for number in owned {
                let old = core::mem::replace(&mut self.records.get_mut(number).heap, to as u16);
                self.heaps[usize::from(old)].records -= 1;
                self.heaps[to].records += 1;
            }
        }
        self.heaps[from].figures.release(bytes);
        self.heaps[to].figures.reserve(bytes, 1);
        self.enter(segment);
    }

    /// Iterates over the segments without a live block, except those that belong to a graph.
    pub(super) fn empty_segments(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        let numbered = self.segments.iter().enumerate();
        let there = numbered.filter_map(|(number, entry)| Some((number as u32, entry.as_deref()?)));
        there.filter(|(_, entry)| entry.live == entry.holes && !self.heaps[entry.heap].private)
    }

    /// Returns the longest free block of a stream heap, in granules. O(1).
    pub(super) fn longest(&self, heap: usize) -> usize {
        let of = |bin: &Bin| match bin.members.as_slice() {
            &[only] => self.entry(only).placement.largest(),
            _ => bin.longest,
        };
        self.heaps[heap].bins.iter().map(of).max().unwrap_or(0)
    }

    /// Returns the longest free block of the pool, in bytes. O(1): at most [`TOUCHED`] stream heaps are updated first.
    pub(super) fn largest_free(&mut self) -> u64 {
        self.settle();
        bytes_of::<P>(self.longest.largest())
    }
}

/// How many changed stream heaps are collected before their longest free blocks are entered into the tournament.
const TOUCHED: usize = 16;
