//! Recovery: the steps of a pool when a request finds no room.

#![forbid(unsafe_code)]

use super::borrow::Patience;
use super::error::OutOfMemory;
use super::lanes::Held;
use super::options::Reuse;
use super::records::Request;
use super::state::State;
use super::supply::Denied;
use super::{PoolError, RawPool, Source};
use crate::placement::SegmentPlacement;
use std::boxed::Box;
use std::string::ToString;
use std::vec;

/// The measures that are taken in turn, each followed by another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Return blocks that are kept by class, release empty segments whose work is done, and take any free block.
    Release,
    /// Wait for freed blocks of this stream and of others.
    Wait,
    /// Release every empty segment.
    Trim,
    /// Compact movable blocks, in an aggressive pool, and make a last attempt.
    Compact,
}

/// A request that has found no room so far.
struct Need<'a> {
    request: &'a Request,
    /// The stream heap that it is for.
    heap: usize,
    /// Why the pool last did not grow.
    denied: Option<Denied>,
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Serves a request that the stream heap's own free blocks could not: from waiting blocks, from other streams, from
    /// the source, and then by every other means.
    #[cold]
    #[inline(never)]
    pub(super) fn allocate_slow<'a>(
        &'a self,
        state: Held<'a, P, S>,
        request: &Request,
        heap: usize,
    ) -> Result<(Held<'a, P, S>, u32), PoolError> {
        let served = self.serve(state, &mut Need { request, heap, denied: None });
        if served.is_err() {
            self.lock().trace_failure(request, heap, || self.source.now());
        }
        served
    }

    fn serve<'a>(
        &'a self,
        mut state: Held<'a, P, S>,
        need: &mut Need<'_>,
    ) -> Result<(Held<'a, P, S>, u32), PoolError> {
        if state.heap(need.heap).private {
            let number = self.serve_graph(&mut state, need)?;
            return Ok((state, number));
        }
        self.settle_graphs(&mut state);
        self.sweep(&mut state);
        if let Some(number) = self.attempt(&mut state, need)? {
            return Ok((state, number));
        }
        if state.order.is_recording() {
            // Giving memory back and waiting for work could spoil the capture.
            self.flush(&mut state);
            let found =
                if self.options.reuse == Reuse::None { None } else { self.any_free(&mut state, need) };
            if found.is_none() {
                state.note(need.heap, |figures| figures.counted.failures += 1);
            }
            return found.map(|number| (state, number)).ok_or(PoolError::Capturing);
        }
        let mut after = None;
        loop {
            for stage in [Stage::Release, Stage::Wait, Stage::Trim, Stage::Compact] {
                if let Some(number) = self.recover(&mut state, need, stage)? {
                    return Ok((state, number));
                }
            }
            // The hooks free blocks of this pool, so they are called outside its lock.
            let shortage = self.out_of_memory(&mut state, need.request, need.denied);
            drop(state);
            let reclaimed = self.hooks.reclaim(&shortage, &mut after);
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

    /// Serves a request of a stream that is being captured, from memory of the graph alone.
    fn serve_graph(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<u32, PoolError> {
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

    /// Takes the measures that every request may take: returns blocks whose events have passed, uses other streams'
    /// memory, and grows.
    fn attempt(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        if let Some(number) = self.find(state, need) {
            return Ok(Some(number));
        }
        state.note(need.heap, |figures| figures.counted.misses += 1);
        self.enlarge(state, need)
    }

    fn find(&self, state: &mut State<P, S>, need: &Need<'_>) -> Option<u32> {
        if self.options.reuse == Reuse::None {
            self.poll(state);
            return None;
        }
        if self.poll(state) > 0 {
            if let Some(number) = state.allocate(need.request, need.heap, need.request.kind) {
                return Some(number);
            }
        }
        if let Some(number) = self.reuse_waiting(state, need.request, need.heap) {
            return Some(number);
        }
        if self.options.lean {
            // Very large segments are left to very large requests, which would find no room otherwise.
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

    /// Grows the pool and serves the request from the new memory. Fails only if the source fails for a reason other
    /// than a lack of memory.
    fn enlarge(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        if self.options.lean {
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

    /// Makes another attempt, with any free block.
    fn retry(&self, state: &mut State<P, S>, need: &mut Need<'_>) -> Result<Option<u32>, PoolError> {
        state.note(need.heap, |figures| figures.counted.retries += 1);
        if self.options.reuse != Reuse::None {
            if let Some(number) = self.any_free(state, need) {
                return Ok(Some(number));
            }
        }
        self.enlarge(state, need)
    }

    /// Takes any free block, also of other streams if their work is done.
    fn any_free(&self, state: &mut State<P, S>, need: &Need<'_>) -> Option<u32> {
        for kind in need.request.kind.preferred() {
            if let Some(number) = state.allocate(need.request, need.heap, kind) {
                return Some(number);
            }
            if let Some(number) = self.borrow(state, need.request, need.heap, kind, Patience::Request) {
                return Some(number);
            }
        }
        None
    }

    fn recover(
        &self,
        state: &mut State<P, S>,
        need: &mut Need<'_>,
        stage: Stage,
    ) -> Result<Option<u32>, PoolError> {
        match stage {
            Stage::Release => {
                self.flush(state);
                if self.options.reuse != Reuse::None {
                    if let Some(number) = self.any_free(state, need) {
                        return Ok(Some(number));
                    }
                }
                self.release_over(state, usize::MAX);
                self.retry(state, need)
            }
            Stage::Wait => {
                while self.wait_for_one(state).is_some() {
                    if let Some(number) = self.retry(state, need)? {
                        return Ok(Some(number));
                    }
                }
                if self.options.reuse != Reuse::None {
                    for kind in need.request.kind.preferred() {
                        if let Some(number) =
                            self.borrow(state, need.request, need.heap, kind, Patience::Block)
                        {
                            return Ok(Some(number));
                        }
                    }
                }
                Ok(None)
            }
            Stage::Trim => {
                if self.trim_to(state, 0) == 0 {
                    return Ok(None);
                }
                self.retry(state, need)
            }
            Stage::Compact => {
                if self.options.reuse == Reuse::Aggressive && self.compact_heap(state, need.heap) != Ok(0) {
                    // Segments that became empty make room for a new one.
                    self.trim_to(state, 0);
                }
                // Other programs use the device as well, so memory that was missing may be free now.
                self.retry(state, need)
            }
        }
    }

    /// Returns the error of a request that found no room: that of the device if it was lost, because its memory does not come back.
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
