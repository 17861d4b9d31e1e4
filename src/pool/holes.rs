//! Holes in segments: pages whose memory went back to the device while their addresses stay reserved. A segment
//! that grows in place thus need not keep the memory between its blocks.

use super::records::{Holder, Request, SizeKind};
use super::state::{State, bytes_of};
use super::supply::Denied;
use super::{RawPool, Source};
use crate::placement::SegmentPlacement;
use core::ops::Range;
use std::vec::Vec;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Granules per page; 0 if the source cannot take pages back.
    fn page(&self) -> usize {
        self.source.page() / P::GRANULE
    }

    /// Gives up to `wished` bytes of free pages in the stream heap's segments back to the device, and returns how many
    /// bytes that was. Does nothing while work of the stream heap may still run. O(holes) calls of the placement and of
    /// the source.
    pub(super) fn punch(&self, state: &mut State<P, S>, heap: usize, wished: usize) -> usize {
        let page = self.page();
        if page == 0 || state.heap(heap).private || !self.is_over(state, heap) {
            return 0;
        }
        let segments: Vec<u32> = state.heap(heap).bins.iter().flat_map(|bin| bin.members.clone()).collect();
        let mut given = 0;
        for segment in segments {
            while given < wished {
                // Try the longest run of whole pages first: all of the longest free block, or one page less if that
                // block does not start at a page boundary.
                let longest = state.entry(segment).placement.largest() / page;
                let wanted = longest.min((wished - given).div_ceil(self.source.page()));
                let runs = [wanted, wanted.saturating_sub(1)].into_iter().filter(|&pages| pages > 0);
                let hole = runs.filter_map(|pages| {
                    let len = pages * page;
                    let request = Request {
                        bytes: 0,
                        align_bytes: 1,
                        len,
                        align: page,
                        kind: state.entry(segment).kind,
                        classed: false,
                    };
                    state.take_in(segment, &request, heap)
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

    /// Gives free pages of all segments back while at least `keep` bytes stay reserved, and returns their bytes.
    pub(super) fn punch_all(&self, state: &mut State<P, S>, keep: usize) -> usize {
        let mut given = 0;
        for heap in state.heaps() {
            let excess = (state.figures.counted.reserved.current as usize).saturating_sub(keep);
            // Whole pages only, so as to stay at or above `keep`.
            let pages = excess.checked_div(self.source.page()).unwrap_or(0);
            if pages > 0 && state.heap(heap).stream.is_some() {
                given += self.punch(state, heap, pages * self.source.page());
            }
        }
        given
    }

    /// Turns a block that was allocated for this purpose into a hole. Returns its bytes, 0 if the source refuses.
    fn unmap(&self, state: &mut State<P, S>, number: u32, heap: usize) -> usize {
        let record = *state.record(number);
        let (bytes, address) = (bytes_of::<P>(record.len as usize), state.address(&record));
        let stream = state.heap(heap).stream().clone();
        let unmapped = state.supply.call(
            &self.source,
            |calls| &mut calls.unmap,
            // SAFETY: the pages are one allocated block that was given to no user, and all earlier work on them is
            // done.
            |source| unsafe { source.unmap(address, bytes as usize, &stream) },
        );
        if unmapped.is_err() {
            state.put_back(number, || self.source.now());
            return 0;
        }
        state.record_mut(number).holder = Holder::Hole;
        let entry = state.entry_mut(record.segment);
        entry.holes += 1;
        entry.unmapped += bytes as usize;
        state.note(heap, |figures| figures.counted.reserved.sub(bytes));
        bytes as usize
    }

    /// Maps holes of the stream heap's segments again so that `request` fits between two blocks, and returns the segment.
    /// `None` if there is no such gap. O(blocks · log blocks).
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

    /// Returns the gaps between blocks that have holes, the shortest first, of the stream heap's segments of a kind: their
    /// length in granules, the segment, and the holes in the order of their addresses. O(blocks · log blocks).
    pub(super) fn gaps(
        &self,
        state: &State<P, S>,
        kind: SizeKind,
        heap: usize,
    ) -> Vec<(usize, u32, Vec<u32>)> {
        let members = state.heap(heap).bins[kind as usize].members.iter().copied();
        let mut gaps = Vec::new();
        for segment in members.filter(|&member| state.entry(member).holes > 0) {
            let mut blocks: Vec<(u32, u32, u32, bool)> = state
                .records()
                .filter(|(_, record)| record.segment == segment)
                .map(|(number, record)| (record.offset, record.len, number, record.holder == Holder::Hole))
                .collect();
            blocks.sort_unstable();
            let Range { start: first, end } = state.entry(segment).placement.granules();
            // Gaps lie between two blocks that are not holes, or between such a block and an end of the segment.
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

    /// Returns the granules of the longest request that fits into a gap of this length if `room` bytes of its holes are mapped as
    /// [`Self::remap`] does.
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

    /// Maps the holes of one gap, given in the order of their addresses, from the last one down until `request` fits.
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
            // The free space above the hole, as far as it is known, counts too.
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
        // A placement that cannot cut exactly gets the whole hole.
        let len = if P::EXACT { len } else { record.len as usize };
        let bytes = bytes_of::<P>(len);
        let rest = record.len as usize - len;
        let address = state.address(&record) + bytes_of::<P>(rest) as usize;
        if !self.admits(state, bytes as usize) {
            return Err(Denied::Limit);
        }
        let stream = state.heap(heap).stream().clone();
        let mapped = state.supply.call(
            &self.source,
            |calls| &mut calls.map,
            // SAFETY: the pages are a hole of this segment.
            |source| unsafe { source.map(address, bytes as usize, &stream) },
        );
        mapped.map_err(Denied::Source)?;
        self.fill_new(address, bytes as usize);
        state.note(heap, |figures| figures.reserve(bytes, 0));
        state.count_growth(heap);
        let entry = state.entry_mut(record.segment);
        entry.unmapped -= bytes as usize;
        if rest == 0 {
            entry.holes -= 1;
            state.put_back(number, || self.source.now());
            return Ok(());
        }
        // SAFETY: the hole is an allocated block of this placement, and its end is unused.
        let shorter = unsafe { entry.placement.resize(record.block(), record.len as usize, rest, 1) };
        if let Some(block) = shorter {
            state.record_mut(number).len = block.len as u32;
        }
        state.lengthened(record.segment);
        Ok(())
    }
}
