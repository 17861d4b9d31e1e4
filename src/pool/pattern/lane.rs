//! The requests of one stream, and the plan for them.

use super::PatternError;
use crate::placement::Space;
use crate::plan::{self, OwnedPlan, rules_for};
use crate::pool::{Buffer, Pool, Source};
use std::vec::Vec;

/// Recorded requests that are looked at if the one whose turn it is does not match.
const WINDOW: usize = 16;
/// Places that are not free in time, beyond which all requests go to the pool.
const LATE: usize = 16;
/// The end of a lifetime that has not ended.
const OPEN: u32 = u32::MAX;

/// What a stream's iteration asked for.
#[derive(Clone, Copy)]
struct Request {
    /// Bytes, a multiple of the granule.
    size: usize,
    align: usize,
    /// Number of the event, among all requests and frees of the lane, that it was.
    start: u32,
    /// Number of the event that freed it.
    end: u32,
    /// Whether it was used on another stream.
    shared: bool,
    /// Offset in the lane's block; none if the pool serves it.
    offset: Option<usize>,
    place: Place,
}

/// What is at a request's place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Live,
    /// A buffer that should have been freed, and where it stands among those.
    Late(usize),
}

/// How a request is served.
pub(super) enum Outcome {
    /// From the plan.
    Planned { slot: usize, address: usize },
    /// From the pool, as recorded.
    Outside,
    /// From the pool, not as recorded.
    Deviates,
}

pub(super) struct Lane<'p, P: Space, S: Source> {
    pub stream: S::Stream,
    block: Option<Buffer<'p, P, S>>,
    requests: Vec<Request>,
    /// Planned requests by the event of their end.
    ends: Vec<(u32, u32)>,
    /// Number of the next event, while it is recorded.
    now: u32,
    /// The request, and the end, whose turn it is.
    next: usize,
    next_end: usize,
    /// Buffers that should have been freed: what is planned now may lie there.
    late: Vec<u32>,
    live: usize,
    pub bytes: u64,
    pub lower_bound: u64,
    pub naive: u64,
}

impl<'p, P: Space, S: Source> Lane<'p, P, S> {
    pub fn new(stream: S::Stream) -> Self {
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

    /// Writes a request down; its number, if there was room for it. O(1), amortised.
    pub fn record(&mut self, size: usize, align: usize) -> Option<usize> {
        if self.now >= OPEN - 1 {
            return None;
        }
        let start = self.now;
        self.now += 1;
        let place = Place::Free;
        self.requests.push(Request { size, align, start, end: OPEN, shared: false, offset: None, place });
        Some(self.requests.len() - 1)
    }

    pub fn freed(&mut self, request: usize) {
        if self.now < OPEN - 1 {
            self.requests[request].end = self.now;
            self.now += 1;
        }
    }

    pub fn shared(&mut self, request: usize) {
        self.requests[request].shared = true;
    }

    /// Plans what was recorded and takes a block for it.
    pub fn plan(&mut self, pool: &'p Pool<P, S>) -> Result<(), PatternError> {
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
        let found = OwnedPlan::new(&buffers, rules_for(buffers.len())).map_err(PatternError::Plan)?;
        let placed = found.placed();
        (self.bytes, self.lower_bound, self.naive) = (placed.peak(), placed.lower_bound(), placed.naive());
        // What exceeds the address space exceeds the pool.
        let bytes = usize::try_from(placed.peak()).unwrap_or(usize::MAX);
        if bytes > 0 {
            let block = pool.allocate_aligned(bytes, placed.align() as usize, &self.stream);
            self.block = Some(block.map_err(PatternError::Pool)?);
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

    /// The first request is the next one again. O(requests), amortised O(1) for each.
    pub fn begin(&mut self) {
        self.expect_ends(OPEN);
        (self.next, self.next_end) = (0, 0);
    }

    /// Buffers of the plan that are live.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The lane's block.
    pub fn block(&self) -> Option<&Buffer<'p, P, S>> {
        self.block.as_ref()
    }

    /// What should have ended before event `now` and is live is late.
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
    pub fn serve(&mut self, size: usize, align: usize) -> Outcome {
        let last = self.requests.len().min(self.next + WINDOW);
        let same = |&slot: &usize| self.requests[slot].size == size && align <= self.requests[slot].align;
        let Some(slot) = (self.next..last).find(same) else { return Outcome::Deviates };
        self.next = slot + 1;
        let Request { start, offset, .. } = self.requests[slot];
        self.expect_ends(start);
        let (Some(offset), Some(block)) = (offset, &self.block) else { return Outcome::Outside };
        // All others that are live have their places beside this one in the plan.
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
        Outcome::Planned { slot, address }
    }

    /// A buffer of the plan is freed. O(1).
    pub fn vacate(&mut self, slot: usize) {
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
