//! The order of streams: which memory may be used again, and on which stream.
//!
//! A block that is freed on its own stream goes straight back to its segment, because the work that this stream
//! gets next runs after everything submitted before. Any other stream must not use it until an event recorded after
//! the free has passed. Such an event (a *fence*) is recorded only when another stream has a use for the memory,
//! and it is queried before anything waits for it.

use super::options::Reuse;
use super::records::Holder;
use super::state::{Fence, Mark, Request, SizeKind, State, Waiting, bytes_of};
use super::{Event, Pool, Source, Stream};
use crate::placement::Placement;
use std::vec::Vec;

/// How far a pool goes to use memory that another stream has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Takes memory only if its last work is known to be done.
    Request,
    /// Lets the stream that wants the memory wait for it on the device.
    Queue,
    /// Blocks the caller until the work is done.
    Block,
}

impl<P: Placement, S: Source> Pool<P, S> {
    /// Whether the stream is capturing a graph. A driver that cannot tell counts as no.
    pub(super) fn captures(stream: &S::Stream) -> bool {
        stream.is_capturing().unwrap_or(false)
    }

    /// Whether any stream that the pool knows is capturing a graph. If so, the pool makes no call that a capture
    /// forbids, on any stream, since the driver forbids some of them to the whole process. O(streams).
    pub(super) fn is_recording(&self, state: &State<P, S>) -> bool {
        let marks = state.waiting.iter().flat_map(|waiting| &waiting.marks);
        let unrecorded = marks.filter_map(|mark| match mark {
            Mark::Unrecorded(stream) => Some(stream),
            Mark::Event(..) => None,
        });
        state.arenas.iter().map(|arena| &arena.stream).chain(unrecorded).any(Self::captures)
    }

    /// Frees a block: at once if only its own stream used it, otherwise after the events of the streams that did.
    pub(super) fn free(&self, state: &mut State<P, S>, number: u32) {
        let record = *state.records.get(number);
        let arena = usize::from(record.arena);
        let granted = bytes_of::<P>(record.len as usize);
        let home = state.entry(record.segment).arena;
        if record.holder == Holder::Live && home == arena && self.filled().is_none() {
            state.note(arena, |figures| figures.free(granted, record.requested));
            if self.options.reuse == Reuse::Basic && self.keep(state, number) {
                return;
            }
            let segment = state.put_back(number, || self.source.now());
            if self.options.reuse == Reuse::None && !self.is_recording(state) {
                // Ignore an error here: it has been counted, and the segment is out of the pool.
                let _ = self.release(state, segment);
            }
            return;
        }
        let mut streams = state.users.remove(&number).unwrap_or_default();
        if home != arena || self.filled().is_some() {
            streams.push(state.arenas[arena].stream.clone());
        }
        let marks = streams.into_iter().map(|stream| self.mark(state, stream)).collect();
        state.note(arena, |figures| figures.defer(granted, record.requested));
        state.records.get_mut(number).holder = Holder::Waiting;
        state.waiting.push(Waiting { record: number, marks });
        if self.filled().is_some() && !self.is_recording(state) {
            // Free memory must be filled, which must not happen while work on it may still run.
            self.poll(state);
        }
    }

    /// Frees a block whose last work was submitted to `stream` and to no other.
    pub(super) fn free_on(&self, state: &mut State<P, S>, number: u32, stream: &S::Stream) {
        let record = *state.records.get(number);
        if state.arenas[usize::from(record.arena)].id != stream.id() {
            state.users.entry(number).or_default().push(stream.clone());
            state.records.get_mut(number).holder = Holder::Shared;
        }
        self.free(state, number);
    }

    /// Keeps a freed block for requests of its class. Returns whether its length is that of a class.
    fn keep(&self, state: &mut State<P, S>, number: u32) -> bool {
        let record = state.records.get_mut(number);
        let (len, arena) = (record.len as usize, usize::from(record.arena));
        if state.classes.binary_search(&len).is_err() {
            return false;
        }
        record.holder = Holder::Cached;
        state.arenas[arena].cached.entry(len).or_default().push(number);
        true
    }

    /// Takes a block that was kept for the request's class.
    pub(super) fn take_kept(&self, state: &mut State<P, S>, ask: &Request, arena: usize) -> Option<u32> {
        if !ask.classed {
            return None;
        }
        let number = state.arenas[arena].cached.get_mut(&ask.len)?.pop()?;
        self.revive(state, number, ask);
        Some(number)
    }

    /// Makes a block that has no user live again.
    fn revive(&self, state: &mut State<P, S>, number: u32, ask: &Request) {
        let record = state.records.get_mut(number);
        record.serial = record.serial.wrapping_add(1);
        record.holder = Holder::Live;
        record.requested = ask.bytes as u64;
        let (arena, granted) = (usize::from(record.arena), bytes_of::<P>(record.len as usize));
        state.note(arena, |figures| figures.allocate(granted, ask.bytes as u64));
    }

    /// Gives all blocks that are kept by class back to their segments. Returns whether there were any.
    pub(super) fn flush(&self, state: &mut State<P, S>) -> bool {
        let mut any = false;
        for arena in 0..state.arenas.len() {
            let kept = core::mem::take(&mut state.arenas[arena].cached);
            for number in kept.into_values().flatten() {
                state.put_back(number, || self.source.now());
                any = true;
            }
        }
        any
    }

    fn mark(&self, state: &mut State<P, S>, stream: S::Stream) -> Mark<S> {
        if Self::captures(&stream) {
            return Mark::Unrecorded(stream);
        }
        match self.call(state, |calls| &mut calls.record, |_| stream.record()) {
            Ok(event) => Mark::Event(stream.id(), event),
            Err(_) => Mark::Unrecorded(stream),
        }
    }

    /// Gives freed blocks whose events have passed back to their segments, and returns how many. Does not block.
    /// O(waiting blocks).
    pub(super) fn poll(&self, state: &mut State<P, S>) -> usize {
        let mut returned = 0;
        for waiting in core::mem::take(&mut state.waiting) {
            let mut left = Vec::new();
            for mark in waiting.marks {
                let mark = match mark {
                    Mark::Unrecorded(stream) => self.mark(state, stream),
                    event @ Mark::Event(..) => event,
                };
                let over = match &mark {
                    Mark::Event(_, event) => self.is_done(state, event),
                    Mark::Unrecorded(_) => false,
                };
                if !over {
                    left.push(mark);
                }
            }
            if left.is_empty() {
                self.arrive(state, waiting.record);
                returned += 1;
            } else {
                state.waiting.push(Waiting { record: waiting.record, marks: left });
            }
        }
        returned
    }

    /// Whether the event has passed. A driver that cannot tell counts as no.
    fn is_done(&self, state: &mut State<P, S>, event: &<S::Stream as Stream>::Event) -> bool {
        self.call(state, |calls| &mut calls.query, |_| event.is_done()).unwrap_or(false)
    }

    /// Gives a freed block that no longer waits for anything back to its segment.
    fn arrive(&self, state: &mut State<P, S>, number: u32) {
        let record = *state.records.get(number);
        let granted = bytes_of::<P>(record.len as usize);
        state.note(usize::from(record.arena), |figures| figures.arrive(granted));
        self.fill_freed(state, number);
        let segment = state.put_back(number, || self.source.now());
        if self.options.reuse == Reuse::None {
            let _ = self.release(state, segment);
        }
    }

    /// Blocks until the first waiting block that can be freed is free. `None` if no block waits, or if the driver
    /// fails.
    pub(super) fn wait_for_one(&self, state: &mut State<P, S>) -> Option<()> {
        for place in 0..state.waiting.len() {
            let marks = core::mem::take(&mut state.waiting[place].marks);
            let mut left = Vec::new();
            for mark in marks {
                let mark = match mark {
                    Mark::Unrecorded(stream) => self.mark(state, stream),
                    event @ Mark::Event(..) => event,
                };
                let over = match &mark {
                    Mark::Event(_, event) => self.is_done(state, event) || self.block_for(state, event),
                    Mark::Unrecorded(_) => false,
                };
                if !over {
                    left.push(mark);
                }
            }
            if left.is_empty() {
                let waiting = state.waiting.remove(place);
                self.arrive(state, waiting.record);
                return Some(());
            }
            state.waiting[place].marks = left;
        }
        None
    }

    fn block_for(&self, state: &mut State<P, S>, event: &<S::Stream as Stream>::Event) -> bool {
        self.call(state, |calls| &mut calls.synchronize, |_| event.synchronize()).is_ok()
    }

    /// Takes a freed block of another arena's segment that waits for the own stream alone, which may therefore use
    /// it again at once. Picks the shortest one, and none that is more than a quarter too long.
    pub(super) fn reuse_waiting(&self, state: &mut State<P, S>, ask: &Request, arena: usize) -> Option<u32> {
        if self.filled().is_some() {
            return None;
        }
        let id = state.arenas[arena].id;
        let fits = |waiting: &Waiting<S>| {
            let record = state.records.get(waiting.record);
            let own = |mark: &Mark<S>| match mark {
                Mark::Event(stream, _) => *stream == id,
                Mark::Unrecorded(stream) => stream.id() == id,
            };
            let len = record.len as usize;
            let long = len >= ask.len && len <= ask.len + ask.len / 4;
            let aligned = usize::from(record.align) >= ask.align.trailing_zeros() as usize;
            (usize::from(record.arena) == arena && long && aligned && waiting.marks.iter().all(own))
                .then_some(len)
        };
        let found =
            state.waiting.iter().enumerate().filter_map(|(place, waiting)| Some((fits(waiting)?, place)));
        let (_, place) = found.min()?;
        let number = state.waiting.remove(place).record;
        let record = *state.records.get(number);
        let granted = bytes_of::<P>(record.len as usize);
        state.note(arena, |figures| figures.arrive(granted));
        self.revive(state, number, ask);
        Some(number)
    }

    /// Whether the work on everything freed in arena `from` is done, or can be waited for with this patience by
    /// `stream`.
    fn is_quiet(&self, state: &mut State<P, S>, from: usize, stream: &S::Stream, patience: Patience) -> bool {
        let owner = &state.arenas[from];
        if owner.quiet == owner.frees {
            return true;
        }
        let (frees, recorded) = (owner.frees, owner.fence.as_ref().map(|fence| fence.frees));
        if recorded != Some(frees) {
            let owner = owner.stream.clone();
            if Self::captures(&owner) {
                return false;
            }
            match self.call(state, |calls| &mut calls.record, |_| owner.record()) {
                Ok(event) => state.arenas[from].fence = Some(Fence { event, frees }),
                Err(_) => return false,
            }
        }
        let Some(fence) = state.arenas[from].fence.take() else { return false };
        let mut over = self.is_done(state, &fence.event);
        if !over && patience == Patience::Block {
            over = self.block_for(state, &fence.event);
        }
        if over {
            state.arenas[from].quiet = frees;
            return true;
        }
        let queued = patience == Patience::Queue
            && self.call(state, |calls| &mut calls.wait, |_| stream.wait(&fence.event)).is_ok();
        state.arenas[from].fence = Some(fence);
        queued
    }

    /// Whether an empty segment of the arena could go back to the source without waiting.
    pub(super) fn is_over(&self, state: &mut State<P, S>, arena: usize) -> bool {
        let stream = state.arenas[arena].stream.clone();
        self.is_quiet(state, arena, &stream, Patience::Request)
    }

    /// Serves a request from an empty segment of another stream whose work is done. The segment moves to the arena.
    pub(super) fn adopt(&self, state: &mut State<P, S>, ask: &Request, arena: usize) -> Option<u32> {
        let fits = state.empty_segments().filter(|(_, entry)| {
            entry.arena != arena && entry.kind == ask.kind && entry.placement.largest() >= ask.len
        });
        let found: Vec<(u32, usize)> = fits.map(|(number, entry)| (number, entry.arena)).collect();
        let (segment, _) = found.into_iter().find(|&(_, from)| self.is_over(state, from))?;
        state.transfer(segment, arena);
        state.allocate_in(segment, ask, arena)
    }

    /// Serves a request from free memory of another stream's arena. An empty segment moves as a whole, from others
    /// only the block.
    pub(super) fn borrow(
        &self,
        state: &mut State<P, S>,
        ask: &Request,
        arena: usize,
        kind: SizeKind,
        patience: Patience,
    ) -> Option<u32> {
        for from in 0..state.arenas.len() {
            if from == arena {
                continue;
            }
            let Some(segment) = state.candidate(from, kind, ask.len) else { continue };
            let stream = state.arenas[arena].stream.clone();
            if !self.is_quiet(state, from, &stream, patience) {
                continue;
            }
            let waits = state.arenas[from].quiet != state.arenas[from].frees;
            if state.entry(segment).live == state.entry(segment).holes {
                state.transfer(segment, arena);
                if waits {
                    // Any third stream must in turn wait for what this one waits for.
                    state.arenas[arena].frees += 1;
                }
            }
            if let Some(number) = state.allocate_in(segment, ask, arena) {
                state.note(arena, |figures| figures.borrowed += 1);
                return Some(number);
            }
        }
        None
    }
}
