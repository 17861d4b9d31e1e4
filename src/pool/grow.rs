//! Growth: how much a pool reserves, and where.

use super::options::{Growth, Reuse};
use super::records::{Request, SizeKind};
use super::state::{State, bytes_of};
use super::supply::Denied;
use super::{RawPool, Source};
use crate::placement::SegmentPlacement;
use core::ptr;
use std::vec::Vec;

/// [`PoolOptions::fitted_segments`](super::PoolOptions::fitted_segments) reserves more than the request while at most one part in this many of the reserved memory is
/// free.
const FREE_PART: u64 = 10;

fn round_up(bytes: usize, step: usize) -> usize {
    bytes.checked_next_multiple_of(step).unwrap_or(usize::MAX & !(step - 1))
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Contiguous bytes that `request` is sure to fit into.
    fn piece(&self, request: &Request) -> usize {
        let granule = P::GRANULE;
        // The bytes in front of the first multiple of the alignment, if the source aligns less than that.
        let align = request.align * granule;
        let skipped = align.saturating_sub(self.source.alignment().max(granule));
        request.len.saturating_mul(granule).saturating_add(skipped)
    }

    /// Bytes of the smallest segment for `request`.
    fn needed(&self, request: &Request) -> usize {
        round_up(self.piece(request), self.source.granularity())
    }

    /// Adds memory to the stream heap so that `request` fits, and returns the segment: refilled holes if there are any, else
    /// a segment lengthened in place, else a new one.
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
            // Try once more with as little as will do.
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

    /// Gives empty segments back whose work is done, and pages between blocks, up to as many bytes as the pool is about to reserve.
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

    /// Gives empty segments back whose work is done, short ones first, until these are `wished` bytes. Returns the released bytes.
    pub(super) fn release_over(&self, state: &mut State<P, S>, wished: usize) -> usize {
        let mut empty: Vec<(usize, u32, usize)> =
            state.empty_segments().map(|(number, entry)| (entry.memory.bytes, number, entry.heap)).collect();
        empty.sort_unstable();
        let mut released = 0;
        for (_, number, owner) in empty {
            if released < wished && self.is_over(state, owner) {
                released += self.release(state, number).unwrap_or(0);
            }
        }
        released
    }

    /// Bytes of the next segment, at least `need`.
    fn wished(&self, state: &State<P, S>, request: &Request, need: usize, heap: usize) -> usize {
        let options = &self.options;
        let granularity = self.source.granularity();
        let bytes = if options.reuse == Reuse::None {
            need
        } else if state.segments().next().is_none() && options.first_segment > 0 {
            options.first_segment
        } else if request.kind == SizeKind::Small {
            options.small_segment
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

    /// Bytes of a segment for several requests like `request`, up to `most`. O(most / the request).
    fn fitted(&self, state: &State<P, S>, request: &Request, most: usize) -> usize {
        let (piece, granularity) = (self.piece(request), self.source.granularity());
        let figures = &state.figures;
        let free = figures.counted.reserved.current.saturating_sub(figures.active());
        // The free memory is in pieces that are too short, and another large segment would only add to them.
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

    /// Lengthens a segment of the stream heap by at least `step` bytes, and so that `request` fits behind its last block.
    /// `None` if no segment can be lengthened.
    fn lengthen(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
        step: usize,
    ) -> Option<Result<u32, Denied>> {
        if self.options.reuse == Reuse::None {
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
        let stream = state.heap(heap).stream().clone();
        let grown = state.supply.call(
            &self.source,
            |calls| &mut calls.grow,
            // SAFETY: the source reserved the segment for this pool, and this is its state after the source's last call.
            |source| unsafe { source.grow(memory, bytes, &stream) },
        );
        let memory = match grown {
            Ok(memory) => memory,
            Err(error) => return Some(Err(Denied::Source(error))),
        };
        self.fill_new(memory.address.get() + (memory.bytes - bytes), bytes);
        let entry = state.entry_mut(number);
        entry.memory = memory;
        let start = ptr::without_provenance_mut(memory.address.get());
        // SAFETY: the source has lengthened the segment by these bytes, and a pool's metadata never touches the
        // memory.
        if let Err(error) = unsafe { entry.placement.extend(start, bytes) } {
            // The bytes stay reserved and come back with the segment.
            debug_assert!(false, "{error}");
        }
        state.note(heap, |figures| figures.reserve(bytes as u64, 0));
        state.count_growth(heap);
        state.lengthened(number);
        Some(Ok(number))
    }

    /// Free bytes behind the last block of a segment. O(records).
    pub(super) fn free_tail(&self, state: &State<P, S>, segment: u32) -> usize {
        let granules = state.entry(segment).placement.granules();
        let own = state.records().filter(|(_, record)| record.segment == segment);
        let last = own.map(|(_, record)| (record.offset + record.len) as usize).max();
        let free = granules.end - last.unwrap_or(granules.start);
        bytes_of::<P>(free) as usize
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
