//! The recorded requests of one stream, and the plan for them.

use crate::plan::{self, OwnedPlan, rules_for};
use crate::pool::PoolError;
use crate::pool::allocator::{DeviceAllocator, Owned};
use std::sync::Arc;
use std::vec::Vec;

/// How many recorded requests are tried when the one that is due does not match.
const WINDOW: usize = 16;
/// How many buffers may be overdue before all requests go to the pool.
const LATE: usize = 16;
/// The value of `end` for a lifetime that has not ended.
const OPEN: u32 = u32::MAX;

/// A request of the stream's recorded iteration.
#[derive(Clone, Copy)]
struct Request {
    /// Bytes, a multiple of the granule.
    size: usize,
    align: usize,
    /// The request's number among all requests and frees of the lane.
    start: u32,
    /// The number of the event that freed it.
    end: u32,
    /// Whether the buffer was used on another stream.
    shared: bool,
    /// Offset in the lane's block; `None` if the pool serves the request.
    offset: Option<usize>,
    place: Place,
}

/// The present occupant of a request's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Live,
    /// A buffer that should have been freed by now, and its index in `late`.
    Late(usize),
}

/// The way in which a request gets its memory.
pub(super) enum Outcome<A: DeviceAllocator> {
    /// From the plan.
    Planned { slot: usize, address: usize, block: Arc<Owned<A>> },
    /// From the pool, as in the recorded iteration.
    Outside,
    /// From the pool, unlike in the recorded iteration.
    Deviates,
}

pub(super) struct Lane<A: DeviceAllocator> {
    pub stream: A::Stream,
    block: Option<Arc<Owned<A>>>,
    requests: Vec<Request>,
    /// Planned requests, sorted by the event that ends them.
    ends: Vec<(u32, u32)>,
    /// The number of the next event while recording.
    now: u32,
    /// The request, and below it the end, that is due next.
    next: usize,
    next_end: usize,
    /// Buffers that should have been freed by now; they may occupy places that the plan uses again.
    late: Vec<u32>,
    live: usize,
    pub bytes: u64,
    pub lower_bound: u64,
    pub naive: u64,
}

impl<A: DeviceAllocator> Lane<A> {
    pub(super) fn new(stream: A::Stream) -> Self {
        Self {
            stream,
            block: None,
            requests: Vec::new(),
            ends: Vec::new(),
            now: 0,
            next: 0,
            next_end: 0,
            late: Vec::new(),
            live: 0,
            bytes: 0,
            lower_bound: 0,
            naive: 0,
        }
    }

    /// Records a request and returns its number, or `None` if there is no room for more events. O(1), amortised.
    pub(super) fn record(&mut self, size: usize, align: usize) -> Option<usize> {
        if self.now >= OPEN - 1 {
            return None;
        }
        let start = self.now;
        self.now += 1;
        let place = Place::Free;
        self.requests.push(Request { size, align, start, end: OPEN, shared: false, offset: None, place });
        Some(self.requests.len() - 1)
    }

    pub(super) fn freed(&mut self, request: usize) {
        if self.now < OPEN - 1 {
            self.requests[request].end = self.now;
            self.now += 1;
        }
    }

    pub(super) fn shared(&mut self, request: usize) {
        self.requests[request].shared = true;
    }

    /// Plans the recorded requests and takes a block for the plan from the pool.
    pub(super) fn plan(&mut self, pool: &A) -> Result<(), PoolError>
    where
        A: Clone,
    {
        let planned = |request: &Request| request.end != OPEN && !request.shared;
        let buffers: Vec<plan::Buffer<'_>> = self
            .requests
            .iter()
            .filter(|request| planned(request))
            .map(|request| {
                let steps = request.start.into()..request.end.into();
                plan::Buffer::new(request.size as u64, steps).align(request.align as u64)
            })
            .collect();
        let found = OwnedPlan::new(&buffers, rules_for(buffers.len()))?;
        let placed = found.placed();
        (self.bytes, self.lower_bound, self.naive) = (placed.peak(), placed.lower_bound(), placed.naive());
        // A plan larger than the address space is larger than any pool, so the request below fails.
        let bytes = usize::try_from(placed.peak()).unwrap_or(usize::MAX);
        if bytes > 0 {
            let block = Owned::allocate(pool.clone(), bytes, placed.align() as usize, &self.stream)?;
            self.block = Some(Arc::new(block));
        }
        let mut offsets = placed.offsets().iter();
        for (number, request) in self.requests.iter_mut().enumerate() {
            if planned(request) {
                request.offset = offsets.next().map(|&offset| offset as usize);
                self.ends.push((request.end, number as u32));
            }
        }
        self.ends.sort_unstable();
        Ok(())
    }

    /// Makes the first request due again. O(requests), amortised O(1) for each.
    pub(super) fn begin(&mut self) {
        self.expect_ends(OPEN);
        (self.next, self.next_end) = (0, 0);
    }

    /// Returns the number of live buffers of the plan.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Marks the buffers as late that should have been freed before event `now` and are still live.
    fn expect_ends(&mut self, now: u32) {
        while let Some(&(end, slot)) = self.ends.get(self.next_end).filter(|end| end.0 <= now) {
            debug_assert!(end <= now);
            self.next_end += 1;
            let place = &mut self.requests[slot as usize].place;
            if *place == Place::Live {
                *place = Place::Late(self.late.len());
                self.late.push(slot);
            }
        }
    }

    /// Finds the request's place. O(1), amortised over the iteration.
    pub(super) fn serve(&mut self, size: usize, align: usize) -> Outcome<A> {
        let last = self.requests.len().min(self.next + WINDOW);
        let same = |&slot: &usize| self.requests[slot].size == size && align <= self.requests[slot].align;
        let Some(slot) = (self.next..last).find(same) else { return Outcome::Deviates };
        self.next = slot + 1;
        let Request { start, offset, .. } = self.requests[slot];
        self.expect_ends(start);
        let (Some(offset), Some(block)) = (offset, &self.block) else { return Outcome::Outside };
        // Live buffers that are not late do not overlap this one in the plan.
        let overlaps = |&late: &u32| {
            let Request { offset: other, size: length, .. } = self.requests[late as usize];
            other.is_some_and(|other| other < offset + size && offset < other + length)
        };
        if self.late.len() > LATE || self.late.iter().any(overlaps) {
            return Outcome::Deviates;
        }
        let address = block.address() + offset;
        self.requests[slot].place = Place::Live;
        self.live += 1;
        Outcome::Planned { slot, address, block: block.clone() }
    }

    /// Frees a buffer of the plan. O(1).
    pub(super) fn vacate(&mut self, slot: usize) {
        let place = core::mem::replace(&mut self.requests[slot].place, Place::Free);
        if let Place::Late(at) = place {
            self.late.swap_remove(at);
            if let Some(&moved) = self.late.get(at) {
                self.requests[moved as usize].place = Place::Late(at);
            }
        }
        self.live -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::DevicePool;
    use crate::pool::sim::DeviceMemory;

    #[test]
    fn events_are_recorded_while_there_are_numbers() {
        let lane = |now: u32| {
            let mut lane = Lane::<DevicePool<DeviceMemory>>::new(DeviceMemory::<false>::new(1).stream());
            lane.now = now;
            lane
        };
        let mut last: Lane<_> = lane(OPEN - 3);
        assert_eq!((last.record(1, 1), last.now), (Some(0), OPEN - 2));
        last.freed(0);
        assert_eq!((last.requests[0].start, last.requests[0].end, last.now), (OPEN - 3, OPEN - 2, OPEN - 1));
        assert_eq!(last.record(1, 1), None);
        let mut last: Lane<_> = lane(OPEN - 2);
        assert_eq!(last.record(1, 1), Some(0));
        last.freed(0);
        // There is no number left for the free, so the buffer counts as one that is never freed.
        assert_eq!((last.requests[0].end, last.now, last.requests.len()), (OPEN, OPEN - 1, 1));
    }
}
