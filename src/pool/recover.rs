//! Recovery: the stages of a request that finds no room.

#![forbid(unsafe_code)]

use super::error::OutOfMemory;
use super::lanes::Held;
use super::options::Reuse;
use super::segments::{Request, SizeKind};
use super::source::captures;
use super::state::{Denied, State, bytes_of};
use super::wait::Patience;
use super::{PoolError, RawPool, Source};
use crate::placement::SegmentPlacement;

/// A request that has found no room so far.
struct Need<'a> {
    request: &'a Request,
    /// The stream heap of the request.
    heap: usize,
    /// Why the pool last failed to grow.
    denied: Option<Denied>,
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Runs a stage of the recovery, and measures it if the options ask for that.
    fn stage<T>(&self, stage: usize, work: impl FnOnce() -> T) -> T {
        let Some(times) = &self.times else { return work() };
        let start = self.source.now();
        let result = work();
        times.came_to(stage, self.source.now().saturating_sub(start));
        result
    }

    /// Satisfies a request for which the stream heap's free blocks have no room: from waiting blocks, from other streams, from the
    /// source, and then by every other means.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_by_recovery<'a>(
        &'a self,
        state: Held<'a, P, S>,
        request: &Request,
        heap: usize,
    ) -> Result<(Held<'a, P, S>, u32), PoolError> {
        let allocated = self.recover_and_allocate(state, &mut Need { request, heap, denied: None });
        if allocated.is_err() {
            self.lock().trace_failure(request, heap, || self.source.now());
        }
        allocated
    }

    fn recover_and_allocate<'a>(
        &'a self,
        mut state: Held<'a, P, S>,
        need: &mut Need<'_>,
    ) -> Result<(Held<'a, P, S>, u32), PoolError> {
        if state.heap(need.heap).private {
            let number = self.allocate_for_graph(&mut state, need)?;
            return Ok((state, number));
        }
        self.settle_graphs(&mut state);
        self.sweep(&mut state);
        if let Some(number) = self.attempt(&mut state, need)? {
            return Ok((state, number));
        }
        if state.order.is_recording() {
            // Releasing memory or waiting for work could spoil the capture.
            self.flush(&mut state);
            let found = self.any_free(&mut state, need, Patience::Request);
            if found.is_none() {
                state.note(need.heap, |figures| figures.counted.failures += 1);
            }
            return found.map(|number| (state, number)).ok_or(PoolError::Capturing);
        }
        let mut after = None;
        loop {
            if let Some(number) = self.recover(&mut state, need)? {
                return Ok((state, number));
            }
            // The hooks free blocks of this pool, so call them outside its lock.
            let shortage = self.out_of_memory(&mut state, need.request, need.denied);
            drop(state);
            let reclaimed = self.stage(7, || self.hooks.reclaim(&shortage, &mut after));
            state = self.lock();
            if !reclaimed {
                state.note(need.heap, |figures| figures.counted.failures += 1);
                return Err(self.refusal(&mut state, need.request, need.denied));
            }
            if let Some(number) = self.retry(&mut state, need)? {
                return Ok((state, number));
            }
        }
    }

    /// Satisfies a request of a captured stream, only from memory of the graph.
    fn allocate_for_graph(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<u32, PoolError> {
        if self.options.reuse != Reuse::None {
            let mut kinds = need.request.kind.preferred().into_iter();
            if let Some(number) = kinds.find_map(|kind| state.allocate(need.request, need.heap, kind)) {
                return Ok(number);
            }
        }
        state.note(need.heap, |figures| figures.counted.misses += 1);
        if let Some(number) = self.enlarge(state, need)? {
            return Ok(number);
        }
        state.note(need.heap, |figures| figures.counted.failures += 1);
        Err(self.refusal(state, need.request, need.denied))
    }

    /// Takes the measures that are open to every request: returns blocks whose events have passed, uses other streams' memory, and grows
    /// the pool.
    fn attempt(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        if let Some(number) = self.stage(0, || self.find(state, need)) {
            return Ok(Some(number));
        }
        state.note(need.heap, |figures| figures.counted.misses += 1);
        self.stage(1, || self.enlarge(state, need))
    }

    fn find(&self, state: &mut State<P, S>, need: &Need<'_>) -> Option<u32> {
        if self.options.reuse == Reuse::None {
            self.poll(state);
            return None;
        }
        if self.poll(state) > 0 {
            if let Some(number) = self.allocate_own(state, need.request, need.heap) {
                return Some(number);
            }
        }
        if let Some(number) = self.reuse_waiting(state, need.request, need.heap) {
            return Some(number);
        }
        if self.options.lean {
            // Leave very large segments to very large requests, which would otherwise find no room.
            let found = state.allocate(need.request, need.heap, need.request.kind.preferred()[1]);
            if found.is_some() {
                return found;
            }
        }
        match self.options.reuse {
            Reuse::Aggressive => {
                self.borrow(state, need.request, need.heap, need.request.kind, Patience::Queue)
            }
            _ => self.adopt(state, need.request, need.heap),
        }
    }

    /// Satisfies a request from the stream heap's segments of its kind, unless a lean pool should reserve a shorter segment instead.
    pub(super) fn allocate_own(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
    ) -> Option<u32> {
        if request.kind == SizeKind::Huge {
            let segment = state.candidate(heap, request.kind, request.len)?;
            if self.is_too_long(state, segment, request) {
                return None;
            }
        }
        state.allocate(request, heap, request.kind)
    }

    /// Returns whether a segment is too long for a very large request, so that the pool should release it instead: a lean pool does not
    /// use the rest for other requests.
    pub(super) fn is_too_long(&self, state: &State<P, S>, segment: u32, request: &Request) -> bool {
        let longest = bytes_of::<P>(state.entry(segment).placement.largest()) as usize;
        let least = self.needed(request).saturating_add(self.options.exact_step);
        request.kind == SizeKind::Huge && longest >= least
    }

    /// Grows the pool and satisfies the request from the new memory. Fails only if the source fails for a reason other
    /// than a lack of memory.
    fn enlarge(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        if self.options.lean {
            // While more is reserved than a lowered limit allows, released memory does not come back.
            if !self.admits(state, 0) {
                if let Some(number) = self.any_free(state, need, Patience::Request) {
                    return Ok(Some(number));
                }
            }
            self.make_way(state, need.request, need.heap);
        }
        match self.grow(state, need.request, need.heap) {
            Ok(segment) => Ok(state.allocate_in(segment, need.request, need.heap)),
            Err(Denied::Source(error)) if !error.is_out_of_memory() => {
                state.note(need.heap, |figures| figures.counted.failures += 1);
                Err(PoolError::Source(error))
            }
            Err(reason) => {
                need.denied = Some(reason);
                Ok(None)
            }
        }
    }

    /// Tries again, with any free block.
    fn retry(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        state.note(need.heap, |figures| figures.counted.retries += 1);
        match self.any_free(state, need, Patience::Request) {
            None => self.enlarge(state, need),
            found => Ok(found),
        }
    }

    /// Allocates any free block, including other streams' blocks if, or with enough patience once, their work is done. `None` in a pool
    /// without reuse.
    fn any_free(&self, state: &mut State<P, S>, need: &Need<'_>, patience: Patience) -> Option<u32> {
        if self.options.reuse == Reuse::None {
            return None;
        }
        need.request.kind.preferred().into_iter().find_map(|kind| {
            let own = state.allocate(need.request, need.heap, kind);
            own.or_else(|| self.borrow(state, need.request, need.heap, kind, patience))
        })
    }

    /// Takes the last-resort measures in turn, and tries again after each.
    fn recover(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        // Return blocks that are kept by class, then release empty segments whose work is done.
        let kept = self.stage(2, || {
            self.flush(state);
            self.any_free(state, need, Patience::Request)
        });
        if kept.is_some() {
            return Ok(kept);
        }
        let empty = self.stage(3, || {
            self.release_over(state, usize::MAX);
            self.retry(state, need)
        })?;
        if empty.is_some() {
            return Ok(empty);
        }
        // Wait for freed blocks, of this stream and of others.
        let waited = self.stage(4, || {
            while self.wait_for_one(state).is_some() {
                if let Some(number) = self.retry(state, need)? {
                    return Ok(Some(number));
                }
            }
            Ok::<_, PoolError>(self.any_free(state, need, Patience::Block))
        })?;
        if waited.is_some() {
            return Ok(waited);
        }
        let trimmed =
            self.stage(5, || if self.trim_to(state, 0) > 0 { self.retry(state, need) } else { Ok(None) })?;
        if trimmed.is_some() {
            return Ok(trimmed);
        }
        // The last attempt, after compaction in an aggressive pool.
        self.stage(6, || {
            if self.options.reuse == Reuse::Aggressive && self.compact_heap(state, need.heap) != Ok(0) {
                self.trim_to(state, 0);
            }
            self.retry(state, need)
        })
    }

    /// Returns the error of a request that found no room: the device's error if the device is lost, because its memory never returns.
    pub(super) fn refusal(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        denied: Option<Denied>,
    ) -> PoolError {
        match state.supply.lost {
            Some(error) => PoolError::Source(error),
            None => PoolError::OutOfMemory(Box::new(self.out_of_memory(state, request, denied))),
        }
    }

    fn out_of_memory(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        denied: Option<Denied>,
    ) -> OutOfMemory {
        let largest = state.largest_free();
        let stats = state.figures.stats(largest, state.supply.calls);
        OutOfMemory {
            requested: request.bytes,
            align: request.align_bytes,
            free: stats.inactive.current as usize,
            reserved: stats.reserved.current as usize,
            limit: self.limit(),
            largest_free: stats.largest_free as usize,
            source: match denied {
                Some(Denied::Source(error)) => Some(error),
                _ => None,
            },
            pools: vec![(self.source.name().to_string(), stats.reserved.current as usize)],
        }
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns the length in bytes, to the granule, of the longest request for work on the stream with this number that would succeed now
    /// without waiting for work: in free memory of the stream, in free memory of other streams whose work is done, or in new memory
    /// within the limit, including the release of empty segments. Freed blocks whose events have passed, and blocks kept by class, return
    /// to their segments.
    ///
    /// The result excludes memory that only compaction, hooks or the pages between blocks of a [lean](super::PoolOptions::lean) pool
    /// could add. Other programs may use up the source's memory first, and placements that round lengths up, such as a buddy system, may
    /// need more than this from a new segment. O(blocks · log blocks), and a driver call.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if the driver fails to report the free memory.
    pub fn available(&self, stream: u64) -> Result<usize, PoolError> {
        let mut state = self.lock();
        self.settle_graphs(&mut state);
        let is_recording = state.order.is_recording();
        let captured = state.order.captures.iter().filter(|capture| capture.under_way);
        let captured =
            captured.flat_map(|capture| &capture.heaps).find(|&&heap| state.heap(heap).id == stream);
        let own = captured.copied().or_else(|| state.heap_of(stream));
        let is_private = own.is_some_and(|heap| state.heap(heap).private);
        let mut best = 0;
        if !is_private {
            self.poll(&mut state);
            self.flush(&mut state);
        }
        if self.options.reuse != Reuse::None {
            let longest = own.map_or(0, |heap| state.longest(heap));
            let waiting = own.filter(|_| !is_private && self.reuses_waiting());
            let waiting = waiting.and_then(|heap| state.heap(heap).reusable.last()).map_or(0, |last| last.0);
            best = self.fits(&state, longest.max(waiting));
            for from in state.heaps().filter(|&from| !is_private && Some(from) != own) {
                best = best.max(self.borrowed(&mut state, from, stream));
            }
        }
        let free = self.source.capacity()?.free;
        let reserved = state.figures.counted.reserved.current as usize;
        let mut gone = Vec::new();
        let mut released = 0;
        if !is_private && !is_recording {
            let empty = state.empty_segments().map(|(number, entry)| (number, entry.heap));
            for (number, heap) in empty.collect::<Vec<_>>() {
                if !captures(state.heap(heap).stream()) && self.is_over(&mut state, heap) {
                    let entry = state.entry(number);
                    released += entry.memory.bytes - entry.unmapped;
                    gone.push(number);
                }
            }
        }
        for (released, gone) in [(0, &[][..]), (released, &gone)] {
            // A limit may be below what is reserved.
            let within = self.limit().saturating_sub(reserved.saturating_sub(released));
            let room = within.min(free.saturating_add(released));
            for kind in SizeKind::ALL {
                let longest = self.growth(&state, own, kind, room, gone);
                best = best.max(self.fits_as(&state, kind, longest));
            }
        }
        Ok(best)
    }

    /// Returns the length in bytes of the longest request for which this many granules suffice.
    fn fits(&self, state: &State<P, S>, len: usize) -> usize {
        let classes = &state.extra.classes;
        let class = classes.partition_point(|&class| class <= len);
        // A request rounds up to its class.
        let len = if class < classes.len() { class.checked_sub(1).map_or(0, |at| classes[at]) } else { len };
        let guards = self.length(1, 1) - self.unit;
        let len = len.saturating_sub(guards) & !(self.unit - 1);
        (len << self.shift).min((P::MAX_LEN << self.shift) / 2)
    }

    /// Returns the length in bytes of the longest request of a kind for which this many granules suffice; 0 if they are too few for the
    /// kind.
    fn fits_as(&self, state: &State<P, S>, kind: SizeKind, len: usize) -> usize {
        let most = match kind {
            SizeKind::Small => self.options.small_limit,
            SizeKind::Large if self.options.lean => self.options.exact_above.max(self.options.small_limit),
            _ => usize::MAX,
        };
        let bytes = self.fits(state, len).min(most);
        if self.kind_of(bytes) == kind { bytes } else { 0 }
    }

    /// Returns the length in bytes of the longest request of another stream that free memory of the stream heap `from` can satisfy.
    fn borrowed(&self, state: &mut State<P, S>, from: usize, stream: u64) -> usize {
        if state.heap(from).private || state.longest(from) == 0 {
            return 0;
        }
        if state.heap(from).id == stream || self.is_quiet(state, from, from, Patience::Request) {
            return self.fits(state, state.longest(from));
        }
        if self.options.reuse != Reuse::Aggressive || captures(state.heap(from).stream()) {
            return 0;
        }
        // The device can wait for memory of the request's own kind.
        let of = |kind| self.fits_as(state, kind, state.longest_of(from, kind));
        SizeKind::ALL.map(of).into_iter().max().unwrap_or(0)
    }

    /// Returns the length in granules of the longest request of a kind for which growth by up to `room` bytes makes room, without the
    /// segments that are `gone` by then.
    fn growth(
        &self,
        state: &State<P, S>,
        own: Option<usize>,
        kind: SizeKind,
        room: usize,
        gone: &[u32],
    ) -> usize {
        let granularity = self.source.granularity();
        let whole = |bytes: usize| bytes / granularity * granularity;
        let mut longest = (whole(room) / P::GRANULE).min(P::MAX_LEN);
        let Some(heap) = own else { return longest };
        let more = |segment: &u32| {
            let memory = &state.entry(*segment).memory;
            self.source.room(memory) - memory.bytes
        };
        let members = state.heap(heap).bins[kind as usize].members.iter();
        let mut members = members.filter(|segment| !gone.contains(segment) && more(segment) > 0);
        if let Some(segment) = members.next().filter(|_| self.options.reuse != Reuse::None) {
            let bytes = self.free_tail(state, *segment) + whole(more(segment).min(room));
            longest = longest.max(bytes / P::GRANULE);
        }
        let mut shorter = 0;
        for (length, segment, holes) in self.gaps(state, kind, heap) {
            // Only the shortest gap into which the request fits can be refilled.
            let fits = self.refilled(state, length, &holes, room);
            if fits > shorter && !gone.contains(&segment) {
                longest = longest.max(fits);
            }
            shorter = length;
        }
        longest
    }
}
