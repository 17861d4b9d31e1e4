//! Growth: how much a pool reserves, and where.

use super::options::{Growth, Reuse};
use super::segments::{Entry, Holder, Request, SizeKind};
use super::state::{Denied, State, bytes_of};
use super::{RawPool, Source};
use crate::placement::SegmentPlacement;
use core::ops::Range;
use core::ptr;

/// [`PoolOptions::fitted_segments`](super::PoolOptions::fitted_segments) reserves more than the request needs while at most 1/`FREE_PART`
/// of the reserved memory is free.
const FREE_PART: u64 = 10;

fn round_up(bytes: usize, step: usize) -> usize {
    bytes.checked_next_multiple_of(step).unwrap_or(usize::MAX & !(step - 1))
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns a number of contiguous bytes in which `request` always fits.
    fn piece(&self, request: &Request) -> usize {
        let granule = P::GRANULE;
        // The most bytes before the first multiple of the alignment, if the source's alignment is lower.
        let align = request.align * granule;
        let skipped = align.saturating_sub(self.source.alignment().max(granule));
        request.len.saturating_mul(granule).saturating_add(skipped)
    }

    /// Returns the size in bytes of the smallest segment for `request`.
    pub(super) fn needed(&self, request: &Request) -> usize {
        round_up(self.piece(request), self.source.granularity())
    }

    /// Adds memory to the stream heap so that `request` fits, and returns the segment: refilled holes if possible, else a segment
    /// lengthened in place, else a new one.
    pub(super) fn grow(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
    ) -> Result<u32, Denied> {
        let need = self.needed(request);
        let wished = self.wished(state, request, need, heap);
        let mut result = match self.refill(state, request, heap) {
            Some(result) => result,
            None => match self.lengthen(state, request, heap, wished) {
                Some(result) => result,
                None => self.reserve(state, request.kind, heap, wished),
            },
        };
        let no_room = match &result {
            Ok(_) => false,
            Err(Denied::Limit) => true,
            Err(Denied::Source(error)) => error.is_out_of_memory(),
        };
        if no_room {
            // Try once more with the least that suffices.
            let least = match self.lengthen(state, request, heap, 0) {
                None if wished > need => Some(self.reserve(state, request.kind, heap, need)),
                least => least,
            };
            if let Some(least) = least {
                state.note(heap, |figures| figures.counted.retries += 1);
                result = least;
            }
        }
        result
    }

    /// Releases empty segments whose work is done, and pages between blocks, to make up for the bytes that the pool is about to reserve.
    pub(super) fn make_way(&self, state: &mut State<P, S>, request: &Request, heap: usize) {
        if state.order.is_recording() {
            return;
        }
        let wished = self.wished(state, request, self.needed(request), heap);
        let released = self.release_over(state, wished);
        if released < wished {
            self.punch(state, heap, wished - released);
        }
    }

    /// Releases empty segments whose work is done, short ones first, until they amount to `wished` bytes. Returns the number of released
    /// bytes.
    pub(super) fn release_over(&self, state: &mut State<P, S>, wished: usize) -> usize {
        let shorter = |number, entry: &Entry<P>| (entry.memory.bytes, number);
        self.release_empty(state, shorter, |state, number, released| {
            let heap = state.entry(number).heap;
            released < wished && self.is_over(state, heap)
        })
    }

    /// Returns the size in bytes of the next segment, at least `need`.
    fn wished(&self, state: &State<P, S>, request: &Request, need: usize, heap: usize) -> usize {
        let options = &self.options;
        let granularity = self.source.granularity();
        let bytes = if options.reuse == Reuse::None {
            need
        } else if state.segments().next().is_none() && options.first_segment > 0 {
            options.first_segment
        } else if request.kind == SizeKind::Small {
            options.small_segment
        } else if request.kind == SizeKind::Huge {
            need
        } else if request.bytes > options.exact_above {
            round_up(need, options.exact_step)
        } else {
            match options.growth {
                Growth::Fixed(bytes) => bytes,
                Growth::Geometric { first, percent, most } => match state.heap(heap).last_growth {
                    0 => first,
                    last => ((last as u128 * u128::from(percent) / 100).min(most as u128)) as usize,
                },
                Growth::Fitted(most) => self.fitted(state, request, most),
            }
        };
        let longest = bytes_of::<P>(P::MAX_LEN) as usize;
        round_up(bytes, granularity).min(longest / granularity * granularity).max(need)
    }

    /// Returns the size in bytes, up to `most`, of a segment for several requests like `request`. O(most / the request).
    fn fitted(&self, state: &State<P, S>, request: &Request, most: usize) -> usize {
        let (piece, granularity) = (self.piece(request), self.source.granularity());
        let figures = &state.figures;
        let free = figures.counted.reserved.current.saturating_sub(figures.active());
        // All free pieces are too short for the request, and another large segment would only add to them.
        if free > figures.counted.reserved.current / FREE_PART {
            return piece;
        }
        let mut best = (u128::MAX, 1, piece);
        for count in 1..=most / piece {
            let bytes = round_up(count * piece, granularity);
            let left = (bytes - count * piece) as u128;
            // This compares left / bytes with best.0 / best.1.
            if best.0 == u128::MAX || left * best.1 < best.0 * bytes as u128 {
                best = (left, bytes as u128, bytes);
            }
        }
        best.2
    }

    /// Lengthens a segment of the stream heap by at least `step` bytes, and so that `request` fits after its last block. `None` if no
    /// segment can grow.
    fn lengthen(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
        step: usize,
    ) -> Option<Result<u32, Denied>> {
        if self.options.reuse == Reuse::None || !state.supply.lengthens {
            return None;
        }
        let members = &state.heap(heap).bins[request.kind as usize].members;
        let number = members.iter().copied().find(|&member| {
            let memory = &state.entry(member).memory;
            self.source.room(memory) > memory.bytes
        })?;
        let memory = state.entry(number).memory;
        let room = self.source.room(&memory) - memory.bytes;
        let more = self.piece(request).saturating_sub(self.free_tail(state, number));
        let granularity = self.source.granularity();
        let least = round_up(more.max(1), granularity);
        let bytes = least.max(round_up(step.min(room), granularity).min(room / granularity * granularity));
        if bytes > room {
            return None;
        }
        if !self.admits(state, bytes) {
            return Some(Err(Denied::Limit));
        }
        // SAFETY: the source reserved the segment for this pool, and this is its state after the source's last call.
        let grow = |source: &S, stream: &S::Stream| unsafe { source.grow(memory, bytes, stream) };
        let memory = match self.call(state, heap, |calls| &mut calls.grow, grow) {
            Ok(memory) => memory,
            Err(error) => return Some(Err(Denied::Source(error))),
        };
        self.fill_new(state, number, memory.address.get() + (memory.bytes - bytes), bytes);
        let entry = state.entry_mut(number);
        entry.memory = memory;
        let start = ptr::without_provenance_mut(memory.address.get());
        // SAFETY: the source lengthened the segment by these bytes, and a pool's metadata never touches the memory.
        if let Err(error) = unsafe { entry.placement.extend(start, bytes) } {
            // The bytes stay reserved until the segment is released.
            debug_assert!(false, "{error}");
        }
        state.note(heap, |figures| figures.reserve(bytes as u64, 0));
        state.count_growth(heap);
        state.lengthened(number);
        Some(Ok(number))
    }

    /// Returns the number of free bytes after the last block of a segment. O(records).
    pub(super) fn free_tail(&self, state: &State<P, S>, segment: u32) -> usize {
        let granules = state.entry(segment).placement.granules();
        let own = state.records().filter(|(_, record)| record.segment == segment);
        let last = own.map(|(_, record)| (record.offset + record.len) as usize).max();
        let free = granules.end - last.unwrap_or(granules.start);
        bytes_of::<P>(free) as usize
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns the number of granules per page; 0 if the source cannot unmap pages.
    fn page(&self) -> usize {
        self.source.page() / P::GRANULE
    }

    /// Releases free pages in the stream heap's segments to the device until they amount to `wished` bytes, and returns the number of
    /// released bytes. Does nothing while work of the stream heap may still run. O(holes) calls to the placement and the source.
    pub(super) fn punch(&self, state: &mut State<P, S>, heap: usize, wished: usize) -> usize {
        let page = self.page();
        if page == 0 || state.heap(heap).private || !self.is_over(state, heap) {
            return 0;
        }
        let segments: Vec<u32> = state.heap(heap).bins.iter().flat_map(|bin| bin.members.clone()).collect();
        let mut given = 0;
        for segment in segments {
            while given < wished {
                // Try the longest run of whole pages first: the whole longest free block, or one page less if that block does not start
                // at a page boundary.
                let longest = state.entry(segment).placement.largest() / page;
                let wanted = longest.min((wished - given).div_ceil(self.source.page()));
                let runs = [wanted, wanted.saturating_sub(1)].into_iter().filter(|&pages| pages > 0);
                let hole = runs.filter_map(|pages| {
                    let len = pages * page;
                    let request = Request::of_pool(len, page, state.entry(segment).kind);
                    state.allocate_uncounted(segment, &request, heap)
                });
                let mut hole = hole;
                let Some(number) = hole.next() else { break };
                drop(hole);
                match self.unmap(state, number, heap) {
                    0 => return given,
                    bytes => given += bytes,
                }
            }
        }
        given
    }

    /// Releases free pages of all segments while at least `keep` bytes stay reserved, and returns the number of released bytes.
    pub(super) fn punch_all(&self, state: &mut State<P, S>, keep: usize) -> usize {
        let mut given = 0;
        for heap in state.heaps() {
            let excess = (state.figures.counted.reserved.current as usize).saturating_sub(keep);
            // Release whole pages only, to stay at or above `keep`.
            let pages = excess.checked_div(self.source.page()).unwrap_or(0);
            if pages > 0 && state.heap(heap).stream.is_some() {
                given += self.punch(state, heap, pages * self.source.page());
            }
        }
        given
    }

    /// Turns a block allocated for this purpose into a hole. Returns its size in bytes; 0 if the source refuses.
    fn unmap(&self, state: &mut State<P, S>, number: u32, heap: usize) -> usize {
        let record = *state.record(number);
        let (bytes, address) = (bytes_of::<P>(record.len as usize), state.address(&record));
        // SAFETY: the pages form one allocated block without a user, and all earlier work on them is done.
        let unmap = |source: &S, stream: &S::Stream| unsafe { source.unmap(address, bytes as usize, stream) };
        if self.call(state, heap, |calls| &mut calls.unmap, unmap).is_err() {
            state.free_memory(number, || self.source.now());
            return 0;
        }
        state.record_mut(number).holder = Holder::Hole;
        // The hole's segment may be empty and have no free block.
        state.supply.shortest = 0;
        let entry = state.entry_mut(record.segment);
        entry.holes += 1;
        entry.unmapped += bytes as usize;
        state.note(heap, |figures| figures.counted.reserved.sub(bytes));
        bytes as usize
    }

    /// Maps holes in the stream heap's segments again so that `request` fits between two blocks, and returns the segment. `None` if there
    /// is no such gap. O(blocks · log blocks).
    pub(super) fn refill(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
    ) -> Option<Result<u32, Denied>> {
        let mut gaps = self.gaps(state, request.kind, heap).into_iter();
        let (_, segment, holes) = gaps.find(|gap| gap.0 >= request.len + request.align - 1)?;
        Some(self.remap(state, request, heap, &holes).map(|()| segment))
    }

    /// Returns the gaps between blocks that contain holes, in the stream heap's segments of a kind, the shortest first: each gap's length
    /// in granules, its segment, and its holes by address. O(blocks · log blocks).
    pub(super) fn gaps(
        &self,
        state: &State<P, S>,
        kind: SizeKind,
        heap: usize,
    ) -> Vec<(usize, u32, Vec<u32>)> {
        let mut gaps = Vec::new();
        if self.page() == 0 {
            return gaps;
        }
        let members = state.heap(heap).bins[kind as usize].members.iter().copied();
        for segment in members.filter(|&member| state.entry(member).holes > 0) {
            let mut blocks: Vec<(u32, u32, u32, bool)> = state
                .records()
                .filter(|(_, record)| record.segment == segment)
                .map(|(number, record)| (record.offset, record.len, number, record.holder == Holder::Hole))
                .collect();
            blocks.sort_unstable();
            let Range { start: first, end } = state.entry(segment).placement.granules();
            // A gap lies between two blocks that are not holes, or between such a block and an end of the segment.
            let (mut start, mut holes) = (first, Vec::new());
            for (offset, len, number, is_hole) in blocks.into_iter().chain([(end as u32, 0, 0, false)]) {
                if is_hole {
                    holes.push(number);
                    continue;
                }
                let within = core::mem::take(&mut holes);
                if !within.is_empty() {
                    gaps.push((offset as usize - start, segment, within));
                }
                start = (offset + len) as usize;
            }
        }
        gaps.sort_by_key(|gap| gap.0);
        gaps
    }

    /// Returns the length in granules of the longest request that fits into a gap of this length if [`Self::remap`] maps `room` bytes of
    /// its holes.
    pub(super) fn refilled(&self, state: &State<P, S>, length: usize, holes: &[u32], room: usize) -> usize {
        let (mut left, mut reached, mut above) = (room / self.source.page() * self.page(), 0, None);
        for &number in holes.iter().rev() {
            let record = state.record(number);
            reached += above.map_or(0, |above: u32| (above - record.offset - record.len) as usize);
            let mapped = left.min(record.len as usize);
            (reached, left) = (reached + mapped, left - mapped);
            if mapped < record.len as usize {
                return reached.min(length);
            }
            above = Some(record.offset);
        }
        length
    }

    /// Maps the holes of one gap, listed by address, from the last one down until `request` fits.
    fn remap(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
        holes: &[u32],
    ) -> Result<(), Denied> {
        let page = self.page();
        let mut length = 0;
        let mut above: Option<u32> = None;
        for &number in holes.iter().rev() {
            let record = *state.record(number);
            let end = record.offset + record.len;
            // The free space above the hole, up to the last mapped one, counts too.
            length += above.map_or(0, |above| (above - end) as usize);
            let missing = (request.len + request.align - 1).saturating_sub(length).next_multiple_of(page);
            if missing == 0 {
                break;
            }
            let len = missing.min(record.len as usize);
            self.map(state, number, len, heap)?;
            length += len;
            above = Some(end - len as u32);
        }
        Ok(())
    }

    /// Maps the last `len` granules of a hole and frees them.
    fn map(&self, state: &mut State<P, S>, number: u32, len: usize, heap: usize) -> Result<(), Denied> {
        let record = *state.record(number);
        // If the placement cannot cut exactly, map the whole hole.
        let len = if P::EXACT { len } else { record.len as usize };
        let bytes = bytes_of::<P>(len);
        let rest = record.len as usize - len;
        let address = state.address(&record) + bytes_of::<P>(rest) as usize;
        if !self.admits(state, bytes as usize) {
            return Err(Denied::Limit);
        }
        // SAFETY: the pages are a hole of this segment.
        let map = |source: &S, stream: &S::Stream| unsafe { source.map(address, bytes as usize, stream) };
        self.call(state, heap, |calls| &mut calls.map, map).map_err(Denied::Source)?;
        self.fill_new(state, record.segment, address, bytes as usize);
        state.note(heap, |figures| figures.reserve(bytes, 0));
        state.count_growth(heap);
        let entry = state.entry_mut(record.segment);
        entry.unmapped -= bytes as usize;
        if rest == 0 {
            entry.holes -= 1;
            state.free_memory(number, || self.source.now());
            return Ok(());
        }
        // SAFETY: the hole is an allocated block of this placement, and nothing uses its end.
        let shorter = unsafe { entry.placement.resize(record.block(), record.len as usize, rest, 1) };
        if let Some(block) = shorter {
            state.record_mut(number).len = block.len as u32;
        }
        state.lengthened(record.segment);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_as_far_as_there_are_numbers() {
        assert_eq!([0, 1, 512, 513].map(|bytes| round_up(bytes, 512)), [0, 512, 512, 1024]);
        let last = usize::MAX - 511;
        assert_eq!([last - 1, last, last + 1, usize::MAX].map(|bytes| round_up(bytes, 512)), [last; 4]);
        assert_eq!(round_up(usize::MAX, 1), usize::MAX);
    }
}
