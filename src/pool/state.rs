//! The parts of a pool's state, and operations on several of them.

use super::numbers::{ByNumber, Numbers};
use super::order::Order;
use super::segments::{Entry, Holder, LANES, Record, Request, SizeKind, UNLISTED, lane_of};
use super::stats::{Figures, Since, SourceCalls};
use super::streams::{Lane, StreamHeap};
use super::usage::Usage;
use super::{Segment, Source, SourceError, SourceErrorKind, Stream};
use crate::observe::event::{self, Action, Event};
use crate::observe::output::Output;
use crate::placement::SegmentPlacement;
use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Extra {
    /// Movable blocks.
    pub movable: Numbers<u32>,
    /// The code locations of the requests of blocks.
    pub sites: ByNumber<u32, &'static Location<'static>>,
    /// Blocks that have guards.
    pub guarded: ByNumber<u32, ()>,
    /// The class lengths in granules, ascending; empty unless blocks are kept by class.
    pub classes: Vec<usize>,
    /// The trace that events are written to, if one is running.
    pub trace: Option<Box<PoolTrace>>,
    /// Statistics of the requests, if the options ask for them.
    pub usage: Option<Box<Usage>>,
}

impl Extra {
    /// Returns whether a trace or the usage statistics must see every request.
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
}

/// A running trace.
pub(super) struct PoolTrace {
    pub(super) output: Output,
    pub(super) start: Duration,
    /// The tag of each heap's stream; 0 if it has none yet.
    pub(super) tags: Vec<u32>,
    /// The last tag.
    pub(super) last: u32,
}

impl PoolTrace {
    pub(super) fn event(&mut self, action: Action, now: Duration, heap: usize, stream: u64) {
        if self.tags.len() <= heap {
            self.tags.resize(heap + 1, 0);
        }
        if self.tags[heap] == 0 {
            self.last += 1;
            self.tags[heap] = self.last;
            self.output.name(self.last, &format!("stream {}", stream));
        }
        let tag = self.tags[heap];
        let time = now.saturating_sub(self.start).as_nanos() as u64;
        self.output.write(&event::Record::Event(Event { action, time: Some(time), tag }));
    }

    /// Forgets a stream heap's tag, since another stream, with another tag, may reuse its number.
    pub(super) fn forget(&mut self, heap: usize) {
        if let Some(tag) = self.tags.get_mut(heap) {
            *tag = 0;
        }
    }
}

/// Calls to a source, and the ages of segments.
pub(super) struct Supply {
    pub calls: SourceCalls,
    pub step: u64,
    /// How long a segment may stay empty; [`Duration::MAX`] if time does not matter, and `None` if segments need not record when they
    /// become empty.
    pub ages: Option<Duration>,
    /// Whether the bytes of empty segments have a limit.
    pub is_bounded: bool,
    /// The error of a lost device, after which no call works.
    pub lost: Option<SourceError>,
    /// When the first empty segment may be too old, by the source's clock; [`Duration::MAX`] for never.
    pub trim_at: Duration,
    /// The least length in granules of any empty segment's longest free block: segments with less are in use.
    pub shortest: usize,
    /// Whether the source has reserved a segment that it can lengthen.
    pub lengthens: bool,
}

impl Supply {
    pub(super) fn new(ages: Option<Duration>) -> Self {
        let (calls, trim_at, shortest) = (SourceCalls::default(), Duration::MAX, usize::MAX);
        Self { calls, step: 0, ages, is_bounded: false, lost: None, trim_at, shortest, lengthens: false }
    }

    /// Calls the source, and counts the call and its time.
    pub(super) fn call<S: Source, T>(
        &mut self,
        source: &S,
        counter: impl FnOnce(&mut SourceCalls) -> &mut u64,
        call: impl FnOnce(&S) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let start = source.now();
        let result = call(source);
        self.calls.time += source.now().saturating_sub(start);
        if let Err(error) = &result {
            self.calls.failed += 1;
            self.lost = self.lost.or(Some(*error).filter(|error| error.kind == SourceErrorKind::Lost));
        }
        *counter(&mut self.calls) += 1;
        result
    }

    /// Records when a segment became empty.
    #[inline(always)]
    pub(super) fn note_empty(&mut self, emptied: &mut (Duration, u64), now: impl FnOnce() -> Duration) {
        if self.ages.is_some() {
            *emptied = (now(), self.step);
            self.trim_after(|| emptied.0);
            if self.is_bounded {
                self.trim_at = Duration::ZERO;
            }
        }
    }

    /// Schedules a check for when a segment that may be empty from `time` on becomes too old.
    pub(super) fn trim_after(&mut self, time: impl FnOnce() -> Duration) {
        if let Some(age) = self.ages {
            self.trim_at = self.trim_at.min(time().saturating_add(age));
        }
    }
}

/// Why a pool could not grow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denied {
    /// The segment would exceed the pool's limit.
    Limit,
    /// The source failed.
    Source(SourceError),
}

/// The state that a pool's locks protect.
pub(super) struct State<P: SegmentPlacement, S: Source> {
    /// The heaps of streams with their segments and records; `lane_of` a heap's number is its lane.
    pub lanes: [Lane<P, S>; LANES],
    /// The heap of each stream.
    pub streams: Streams,
    /// Blocks that may be reused only later.
    pub order: Order<S>,
    /// Calls to the source, and the ages of empty segments.
    pub supply: Supply,
    /// State that exists only if the options or the program ask for it.
    pub extra: Extra,
    pub figures: Figures,
}

/// The heap of each stream.
#[derive(Default)]
pub(super) struct Streams {
    by_stream: ByNumber<u64, usize>,
    /// Number of stream heaps, those without a stream included.
    count: usize,
    /// The most recently used stream heap: unless the pool has lanes, the only one with changes that the figures may lack.
    recent: usize,
    /// Whether the recent stream heap has such changes.
    is_ahead: bool,
    /// Stream heaps without a stream: `retired` ones still have memory, `vacant` ones have none.
    pub retired: Vec<usize>,
    pub vacant: Vec<usize>,
}

/// Converts granules to bytes.
pub(super) const fn bytes_of<P: SegmentPlacement>(len: usize) -> u64 {
    (len * P::GRANULE) as u64
}

impl<P: SegmentPlacement, S: Source> State<P, S> {
    pub(super) fn new(ages: Option<Duration>) -> Self {
        Self {
            lanes: core::array::from_fn(Lane::new),
            streams: Streams::default(),
            order: Order::new(),
            supply: Supply::new(ages),
            extra: Extra::default(),
            figures: Figures::default(),
        }
    }

    /// Returns the stream heap with this number.
    #[inline(always)]
    pub(super) fn heap(&self, heap: usize) -> &StreamHeap<S> {
        &self.lanes[lane_of(heap)].heaps[heap / LANES]
    }

    /// Returns the stream heap with this number, mutably.
    #[inline(always)]
    pub(super) fn heap_mut(&mut self, heap: usize) -> &mut StreamHeap<S> {
        &mut self.lanes[lane_of(heap)].heaps[heap / LANES]
    }

    /// Returns the numbers of all stream heaps, including those without a stream.
    pub(super) fn heaps(&self) -> core::ops::Range<usize> {
        0..self.streams.count
    }

    /// Returns the record with this number.
    #[inline(always)]
    pub(super) fn record(&self, number: u32) -> &Record<P::Token> {
        self.lanes[lane_of(number as usize)].records.get(number)
    }

    /// Returns the record with this number, mutably.
    #[inline(always)]
    pub(super) fn record_mut(&mut self, number: u32) -> &mut Record<P::Token> {
        self.lanes[lane_of(number as usize)].records.get_mut(number)
    }

    /// Iterates over the used records and their numbers. O(records).
    pub(super) fn records(&self) -> impl Iterator<Item = (u32, &Record<P::Token>)> {
        self.lanes[..self.streams.count.min(LANES)].iter().flat_map(|lane| lane.records.iter())
    }

    /// Iterates over the segments and their numbers. O(segments).
    pub(super) fn segments(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        self.lanes[..self.streams.count.min(LANES)].iter().flat_map(|lane| lane.segments.iter())
    }

    /// Returns the numbers of a segment's records. O(records).
    fn records_in(&self, segment: u32) -> Vec<u32> {
        let own = |(number, record): (u32, &Record<_>)| (record.segment == segment).then_some(number);
        self.records().filter_map(own).collect()
    }

    /// Updates the figures of the pool and of a stream heap. A single stream heap has no separate figures.
    #[inline(always)]
    pub(super) fn note(&mut self, heap: usize, count: impl Fn(&mut Figures)) {
        count(&mut self.figures);
        if self.streams.count > 1 {
            count(&mut self.heap_mut(heap).figures);
        }
    }

    /// Returns the figures of a stream heap.
    pub(super) fn figures_of(&self, heap: usize) -> &Figures {
        if self.streams.count > 1 { &self.heap(heap).figures } else { &self.figures }
    }

    /// Returns the heap of a stream, if it has one.
    #[inline(always)]
    pub(super) fn heap_of(&mut self, id: u64) -> Option<usize> {
        let recent = self.streams.recent;
        let found = self.lanes[lane_of(recent)].heaps.get(recent / LANES);
        if found.is_some_and(|heap| heap.id == id && heap.open) {
            return Some(recent);
        }
        let heap = *self.streams.by_stream.get(&id)?;
        self.streams.recent = heap;
        Some(heap)
    }

    /// Detaches a stream heap from its stream. Its memory moves to other stream heaps or back to the source as usual; then another stream
    /// may reuse its number.
    pub(super) fn retire(&mut self, heap: usize) {
        let id = self.heap(heap).id;
        if self.streams.by_stream.get(&id) == Some(&heap) {
            self.streams.by_stream.remove(&id);
        }
        self.heap_mut(heap).open = false;
        self.streams.retired.push(heap);
    }

    /// Frees the numbers of retired stream heaps without segments and blocks.
    pub(super) fn vacate(&mut self) {
        for heap in core::mem::take(&mut self.streams.retired) {
            let place = self.heap_mut(heap);
            if place.records > 0 || place.bins.iter().any(|bin| !bin.members.is_empty()) {
                self.streams.retired.push(heap);
                continue;
            }
            (place.stream, place.fence) = (None, None);
            if let Some(trace) = &mut self.extra.trace {
                trace.forget(heap);
            }
            self.streams.vacant.push(heap);
        }
    }

    /// Opens a stream heap for the stream; `None` if there are too many.
    pub(super) fn open_heap(&mut self, stream: &S::Stream) -> Option<usize> {
        let number = self.add_heap(stream, false)?;
        self.streams.by_stream.insert(stream.id(), number);
        Some(number)
    }

    /// Adds a stream heap for the stream; a `private` one belongs to a capture and is not the stream's usual heap.
    pub(super) fn add_heap(&mut self, stream: &S::Stream, private: bool) -> Option<usize> {
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
            cached: ByNumber::default(),
            reusable: BTreeSet::new(),
            last_growth: 0,
        };
        let number = match self.streams.vacant.pop() {
            Some(number) => number,
            None if self.streams.count < usize::from(u16::MAX) => self.streams.count,
            None => return None,
        };
        // Add an earlier stream's figures before another stream reuses its number.
        self.absorb();
        if self.streams.count == 1 {
            self.heap_mut(0).figures = self.figures;
        }
        let heaps = &mut self.lanes[lane_of(number)].heaps;
        if number == self.streams.count {
            self.streams.count += 1;
            heaps.push(heap);
        } else {
            heaps[number / LANES] = heap;
        }
        Some(number)
    }

    /// Returns the segment with this number, which must exist.
    #[inline(always)]
    pub(super) fn entry(&self, segment: u32) -> &Entry<P> {
        self.lanes[lane_of(segment as usize)].segments.get(segment)
    }

    /// Returns the segment with this number, which must exist, mutably.
    #[inline(always)]
    pub(super) fn entry_mut(&mut self, segment: u32) -> &mut Entry<P> {
        self.lanes[lane_of(segment as usize)].segments.get_mut(segment)
    }

    /// Returns the address of the first byte of the record's block.
    #[inline(always)]
    pub(super) fn address(&self, record: &Record<P::Token>) -> usize {
        self.entry(record.segment).placement.address(record.offset as usize)
    }

    /// Satisfies a request from the stream heap's own segments of this kind. O(log segments) plus the placement's work.
    #[inline(always)]
    pub(super) fn allocate(&mut self, request: &Request, heap: usize, kind: SizeKind) -> Option<u32> {
        let number = self.lanes[lane_of(heap)].allocate(request, heap, kind)?;
        self.count_request(number, heap);
        Some(number)
    }

    /// Counts a block allocated for a request.
    fn count_request(&mut self, number: u32, heap: usize) {
        let record = self.record(number);
        let (granted, requested) = (bytes_of::<P>(record.len as usize), record.requested);
        self.note(heap, |figures| figures.allocate(granted, requested));
    }

    /// Finds a segment of the stream heap in which the request may fit. O(log segments); O(1) for the next request of the same length.
    pub(super) fn candidate(&mut self, heap: usize, kind: SizeKind, len: usize) -> Option<u32> {
        let bin = &mut self.heap_mut(heap).bins[kind as usize];
        if let &[only] = bin.members.as_slice() {
            return (self.entry(only).placement.largest() >= len).then_some(only);
        }
        bin.first(len).map(|key| key.1)
    }

    /// Satisfies a request from one segment, for the stream of `heap`.
    pub(super) fn allocate_in(&mut self, segment: u32, request: &Request, heap: usize) -> Option<u32> {
        let number = self.allocate_uncounted(segment, request, heap)?;
        self.count_request(number, heap);
        Some(number)
    }

    /// Satisfies a request from one segment like [`Self::allocate_in`], but does not count it.
    pub(super) fn allocate_uncounted(&mut self, segment: u32, request: &Request, heap: usize) -> Option<u32> {
        let entry = self.entry_mut(segment);
        let block = entry.placement.allocate(request.len, request.align)?;
        entry.live += 1;
        let home = entry.heap;
        self.lengthened(segment);
        let mut record = request.record(block, segment, heap);
        if home != heap {
            record.holder = Holder::Shared;
        }
        let lane = &mut self.lanes[lane_of(heap)];
        lane.heaps[heap / LANES].records += 1;
        Some(lane.records.insert(record))
    }

    /// Frees a record's block in its placement and removes the record. The caller updates the block's
    /// statistics. Returns the segment.
    #[inline(always)]
    pub(super) fn free_memory(&mut self, number: u32, now: impl FnOnce() -> Duration) -> u32 {
        let record = self.lanes[lane_of(number as usize)].remove(number);
        // SAFETY: the record was just removed.
        let entry = unsafe { self.lanes[lane_of(record.segment as usize)].free_memory(&record) };
        if entry.is_empty() {
            self.supply.note_empty(&mut entry.emptied, now);
        }
        record.segment
    }

    /// Allocates a block that is kept for the request's class.
    pub(super) fn allocate_kept(&mut self, request: &Request, heap: usize) -> Option<u32> {
        if !request.classed {
            return None;
        }
        let number = self.heap_mut(heap).cached.get_mut(&request.len)?.pop()?;
        self.revive(number, request);
        Some(number)
    }

    /// Makes a block without a user live again.
    pub(super) fn revive(&mut self, number: u32, request: &Request) {
        let record = self.record_mut(number);
        record.serial = record.serial.wrapping_add(1);
        record.requested = request.bytes as u64;
        let (heap, granted) = (usize::from(record.heap), bytes_of::<P>(record.len as usize));
        let segment = record.segment;
        let is_home = self.entry(segment).heap == heap;
        self.record_mut(number).holder = if is_home { Holder::Live } else { Holder::Shared };
        self.note(heap, |figures| figures.allocate(granted, request.bytes as u64));
    }

    /// Makes this stream heap the recent one, whose changes the figures may lack.
    #[inline(always)]
    pub(super) fn turn_to(&mut self, heap: usize) {
        if self.streams.recent != heap {
            self.count_recent();
            self.streams.recent = heap;
        }
        self.streams.is_ahead = true;
    }

    /// Adds the uncounted changes of the recent stream heap to the figures.
    #[inline(always)]
    pub(super) fn count_recent(&mut self) {
        if self.streams.is_ahead {
            self.streams.is_ahead = false;
            let recent = self.streams.recent;
            let since = core::mem::take(&mut self.heap_mut(recent).since);
            self.note(recent, |figures| figures.absorb(&since));
        }
    }

    /// Adds the uncounted changes of all stream heaps to the figures. O(changed stream heaps).
    pub(super) fn absorb(&mut self) {
        let mut sum = Since::default();
        for lane in 0..LANES {
            while let Some(heap) = self.lanes[lane].changed.pop() {
                let heap = heap as usize;
                debug_assert_eq!(lane_of(heap), lane, "a stream heap was changed under another's lock");
                let place = self.heap_mut(heap);
                place.changed = false;
                let since = core::mem::take(&mut place.since);
                place.figures.absorb(&since);
                sum.join(&since);
            }
        }
        self.figures.absorb(&sum);
    }

    /// Updates the order of a segment whose longest free block has changed. O(log segments).
    pub(super) fn lengthened(&mut self, segment: u32) {
        let Lane { heaps, segments, .. } = &mut self.lanes[lane_of(segment as usize)];
        let entry = segments.get_mut(segment);
        let heap = entry.heap;
        if entry.is_listed() {
            heaps[heap / LANES].bins[entry.kind as usize].relist(entry, segment);
        }
    }

    /// Counts new memory of a stream heap.
    pub(super) fn count_growth(&mut self, heap: usize) {
        // Before another stream uses this memory, it must wait for the point in the stream order at which the memory arrived.
        self.heap_mut(heap).frees += 1;
        self.note(heap, |figures| figures.counted.growth += 1);
    }

    /// Adds a segment to its stream heap and returns its number.
    pub(super) fn insert_segment(&mut self, entry: Entry<P>) -> u32 {
        let (heap, bytes) = (entry.heap, entry.memory.bytes as u64);
        self.supply.trim_after(|| entry.emptied.0);
        let longest = if P::MERGES { entry.placement.largest() } else { 0 };
        self.supply.shortest = self.supply.shortest.min(longest);
        self.note(heap, |figures| figures.reserve(bytes, 1));
        self.enter(Box::new(entry))
    }

    /// Adds a segment to its stream heap's bin, and returns its number.
    fn enter(&mut self, entry: Box<Entry<P>>) -> u32 {
        let (heap, kind) = (entry.heap, entry.kind);
        let Lane { heaps, segments, .. } = &mut self.lanes[lane_of(heap)];
        let bin = &mut heaps[heap / LANES].bins[kind as usize];
        let number = segments.insert(entry);
        bin.members.push(number);
        match bin.members.len() {
            1 => {}
            2 => {
                bin.longest = 0;
                let both = bin.members.clone();
                both.into_iter().for_each(|member| bin.relist(segments.get_mut(member), member));
            }
            _ => bin.relist(segments.get_mut(number), number),
        }
        number
    }

    /// Removes a segment from its stream heap's bin and its lane.
    fn leave(&mut self, segment: u32) -> Option<Box<Entry<P>>> {
        let Lane { heaps, segments, .. } = &mut self.lanes[lane_of(segment as usize)];
        let mut entry = segments.remove(segment)?;
        let bin = &mut heaps[entry.heap / LANES].bins[entry.kind as usize];
        bin.unlist(core::mem::replace(&mut entry.listed, UNLISTED), segment);
        bin.members.retain(|&member| member != segment);
        if let &[only] = bin.members.as_slice() {
            bin.order.clear();
            segments.get_mut(only).listed = UNLISTED;
        }
        Some(entry)
    }

    /// Removes a segment without live blocks. Returns it, its stream heap, and the number of its mapped bytes; `None` if it has a live
    /// block.
    pub(super) fn remove_segment(&mut self, segment: u32) -> Option<(Segment, usize, usize)> {
        let entry = self.entry(segment);
        if !entry.is_empty() {
            return None;
        }
        if entry.holes > 0 {
            for number in self.records_in(segment) {
                self.lanes[lane_of(number as usize)].remove(number);
            }
        }
        let entry = self.leave(segment)?;
        let mapped = entry.memory.bytes - entry.unmapped;
        self.note(entry.heap, |figures| figures.release(mapped as u64));
        Some((entry.memory, entry.heap, mapped))
    }

    /// Moves an empty segment to another stream heap, and returns its number there.
    pub(super) fn transfer(&mut self, segment: u32, to: usize) -> u32 {
        let holes = if self.entry(segment).holes > 0 { self.records_in(segment) } else { Vec::new() };
        let Some(mut entry) = self.leave(segment) else { return segment };
        let from = core::mem::replace(&mut entry.heap, to);
        let bytes = (entry.memory.bytes - entry.unmapped) as u64;
        self.heap_mut(from).figures.release(bytes);
        self.heap_mut(to).figures.reserve(bytes, 1);
        let segment = self.enter(entry);
        for number in holes {
            let hole = self.lanes[lane_of(number as usize)].remove(number);
            let lane = &mut self.lanes[lane_of(to)];
            lane.heaps[to / LANES].records += 1;
            lane.records.insert(Record { segment, heap: to as u16, ..hole });
        }
        segment
    }

    /// Iterates over the segments without a live block, except those that belong to a graph. O(segments with at least the shortest such
    /// segment's length free).
    pub(super) fn empty_segments(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        let heaps = self.heaps().map(|heap| self.heap(heap)).filter(|heap| !heap.private);
        let bins = heaps.flat_map(|heap| &heap.bins);
        let numbers = bins.flat_map(|bin| bin.at_least(self.supply.shortest));
        numbers.map(|number| (number, self.entry(number))).filter(|(_, entry)| entry.is_empty())
    }

    /// Returns a segment of the stream heap that has no live block and room for the request; `None` for the heap of a graph. O(segments
    /// of the stream heap with that much room).
    pub(super) fn empty_segment(&self, heap: usize, request: &Request) -> Option<u32> {
        let place = self.heap(heap);
        let fits = |&number: &u32| {
            let entry = self.entry(number);
            entry.is_empty() && entry.placement.largest() >= request.len
        };
        let members = place.bins[request.kind as usize].at_least(request.len);
        if place.private { None } else { members.filter(fits).min() }
    }

    /// Returns the length of a stream heap's longest free block, in granules. O(1).
    pub(super) fn longest(&self, heap: usize) -> usize {
        SizeKind::ALL.into_iter().map(|kind| self.longest_of(heap, kind)).max().unwrap_or(0)
    }

    /// Returns the length of the longest free block in a stream heap's segments of a kind, in granules. O(1).
    pub(super) fn longest_of(&self, heap: usize, kind: SizeKind) -> usize {
        let bin = &self.heap(heap).bins[kind as usize];
        match bin.members.as_slice() {
            &[only] => self.entry(only).placement.largest(),
            _ => bin.longest,
        }
    }

    /// Returns the length of the pool's longest free block, in bytes. O(stream heaps).
    pub(super) fn largest_free(&self) -> u64 {
        bytes_of::<P>(self.heaps().map(|heap| self.longest(heap)).max().unwrap_or(0))
    }
}
