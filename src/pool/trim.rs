//! Trimming: which memory a pool releases, and when.

#![forbid(unsafe_code)]

use super::options::{Age, Reuse};
use super::segments::{Entry, LANES, lane_of};
use super::state::State;
use super::usage::{Usage, fit};
use super::{RawPool, Source, Stream};
use crate::placement::SegmentPlacement;
use core::cmp::Reverse;
use core::time::Duration;
use std::collections::HashMap;

/// Time until a pool with a limit on kept memory checks again a segment whose work was not done.
const AGAIN: Duration = Duration::from_millis(1);

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Releases empty segments to the source, and free pages of other segments if the source supports that ([`Source::page`]), while at
    /// least `keep` bytes stay reserved. Returns the number of released bytes. Freed blocks whose events have passed count as free. The
    /// pool itself waits for no work, though the driver may; memory whose stream has unfinished work stays. An event recorded here may
    /// take a moment even on an idle stream, so to release everything, call this, synchronize the stream and call this again. Nothing is
    /// released while a stream of the pool is capturing a graph. O(segments · log segments).
    pub fn trim(&self, keep: usize) -> usize {
        let mut state = self.lock();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        self.flush(&mut state);
        self.trim_to(&mut state, keep) + self.punch_all(&mut state, keep)
    }

    /// Ends a step of the program, such as a training iteration, and returns the number of released bytes: from segments that have been
    /// empty for longer than [`PoolOptions::trim_after`](super::PoolOptions::trim_after) allows, and from those beyond what
    /// [`PoolOptions::adaptive`](super::PoolOptions::adaptive) keeps. Nothing is released while a stream of the pool is capturing a
    /// graph. O(segments · log segments), and once per window O(lengths² · classes) for at most 256 lengths.
    pub fn step(&self) -> usize {
        let mut state = self.lock();
        state.supply.step += 1;
        state.trace_step();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        let unused = self.follow(&mut state);
        unused + self.trim_aged(&mut state)
    }

    /// Moves freed blocks whose events have passed back to their segments, without blocking, and returns their number. A request that
    /// finds no room also does this. O(waiting blocks).
    pub fn collect(&self) -> usize {
        let mut state = self.lock();
        self.poll(&mut state)
    }

    /// Retires the heaps of streams that the program dropped. O(streams), without a driver call.
    pub(super) fn sweep(&self, state: &mut State<P, S>) {
        let abandoned = state.heaps().filter(|&number| {
            let heap = state.heap(number);
            let gone = !heap.private && heap.stream.as_ref().is_some_and(Stream::is_abandoned);
            gone && !state.streams.retired.contains(&number)
        });
        let abandoned: Vec<usize> = abandoned.collect();
        for heap in abandoned {
            self.flush_heap(state, heap);
            state.retire(heap);
        }
        if !state.streams.retired.is_empty() {
            state.vacate();
        }
    }

    /// Moves all blocks that are kept by class back to their segments.
    pub(super) fn flush(&self, state: &mut State<P, S>) {
        state.heaps().for_each(|heap| self.flush_heap(state, heap));
    }

    fn flush_heap(&self, state: &mut State<P, S>, heap: usize) {
        for number in core::mem::take(&mut state.heap_mut(heap).cached).into_values().flatten() {
            state.free_memory(number, || self.source.now());
        }
    }

    /// Releases empty segments, large ones first, while at least `keep` bytes stay reserved. Returns the number of released bytes.
    pub(super) fn trim_to(&self, state: &mut State<P, S>, keep: usize) -> usize {
        let longer = |number, entry: &Entry<P>| Reverse((entry.memory.bytes - entry.unmapped, number));
        self.release_empty(state, longer, |state, number, _| {
            let entry = state.entry(number);
            let rest = keep.saturating_add(entry.memory.bytes - entry.unmapped);
            state.figures.counted.reserved.current as usize >= rest
        })
    }

    /// After a request or a free, releases segments that have been empty for too long by the clock or exceed the limit on kept bytes.
    /// O(1) until such a segment may exist.
    #[inline(always)]
    pub(super) fn trim_due(&self, state: &mut State<P, S>) {
        if state.supply.trim_at != Duration::MAX {
            self.trim_old(state);
        }
    }

    /// Waits for no work: segments that may still be in use stay, and the pool checks them again after a quarter of the age, or soon if
    /// kept bytes have a limit.
    #[cold]
    fn trim_old(&self, state: &mut State<P, S>) {
        let (Some(age), now) = (state.supply.ages, self.source.now()) else { return };
        if now < state.supply.trim_at {
            return;
        }
        let again = if state.supply.is_bounded { AGAIN } else { age / 4 };
        let mut next = Duration::MAX;
        if state.order.is_recording() {
            next = now.saturating_add(again);
        } else {
            self.poll(state);
            let empty: Vec<(u32, usize, Duration)> =
                state.empty_segments().map(|(number, entry)| (number, entry.heap, entry.emptied.0)).collect();
            for (number, heap, emptied) in empty {
                if now.saturating_sub(emptied) < age {
                    next = next.min(emptied.saturating_add(age));
                } else if !self.is_over(state, heap) {
                    next = next.min(now.saturating_add(again));
                } else {
                    // A segment that the driver fails to release leaves the pool anyway; its error is counted.
                    let _ = self.release(state, number);
                }
            }
            if !state.order.queues.is_empty() {
                next = next.min(now.saturating_add(if state.supply.is_bounded { again } else { age }));
            }
            if state.supply.is_bounded && self.trim_kept(state) > self.options.keep {
                next = next.min(now.saturating_add(again));
            }
        }
        state.supply.trim_at = next;
    }

    /// Releases empty segments whose work is done, while more bytes are empty than the options allow. Returns the number of empty bytes
    /// left.
    fn trim_kept(&self, state: &mut State<P, S>) -> usize {
        let bytes = |entry: &Entry<P>| entry.memory.bytes - entry.unmapped;
        let kept: usize = state.empty_segments().map(|(_, entry)| bytes(entry)).sum();
        let older = |number, entry: &Entry<P>| (entry.emptied, number);
        let released = self.release_empty(state, older, |state, number, released| {
            kept.saturating_sub(released) > self.options.keep && self.is_over(state, state.entry(number).heap)
        });
        kept.saturating_sub(released)
    }

    /// Releases segments that have been empty for too long, and returns the number of released bytes.
    pub(super) fn trim_aged(&self, state: &mut State<P, S>) -> usize {
        let Some(age) = self.options.trim_after else { return 0 };
        let (now, step) = (self.source.now(), state.supply.step);
        self.release_empty(
            state,
            |number, _| number,
            |state, number, _| {
                let emptied = state.entry(number).emptied;
                match age {
                    Age::Time(time) => now.saturating_sub(emptied.0) >= time,
                    Age::Steps(steps) => step - emptied.1 >= steps,
                }
            },
        )
    }

    /// Releases memory that the program does not use, at the end of a step. Returns the number of released bytes.
    pub(super) fn follow(&self, state: &mut State<P, S>) -> usize {
        let (step, active) = (state.supply.step, state.figures.active());
        let Some(mut usage) = state.extra.usage.take() else { return 0 };
        let (most, window_ends) = usage.step(step, active);
        if self.options.reuse == Reuse::Basic {
            if window_ends {
                let asked = usage.asked[1].iter().map(|(&length, &times)| (length, times)).collect();
                let mut classes = fit(asked, self.options.classes.len());
                classes.extend(self.chosen_classes());
                classes.sort_unstable();
                classes.dedup();
                state.extra.classes = classes;
            }
            self.shed(state, &usage);
        }
        let (window, keep) = (usage.follow.window, most as f64 * usage.follow.factor);
        state.extra.usage = Some(usage);
        let older = |number, entry: &Entry<P>| (entry.emptied.1, number);
        self.release_empty(state, older, |state, number, _| {
            let Entry { emptied, heap, ref memory, unmapped, .. } = *state.entry(number);
            let left =
                state.figures.counted.reserved.current.saturating_sub((memory.bytes - unmapped) as u64);
            (step - emptied.1 >= window || left as f64 >= keep) && self.is_over(state, heap)
        })
    }

    /// Moves surplus blocks that are kept by class back to their segments.
    fn shed(&self, state: &mut State<P, S>, usage: &Usage) {
        let mut room: HashMap<usize, usize> = HashMap::new();
        let mut surplus = Vec::new();
        for heap in state.heaps() {
            let heap = &mut state.lanes[lane_of(heap)].heaps[heap / LANES];
            for (&len, kept) in &mut heap.cached {
                let class = state.extra.classes.binary_search(&len).is_ok();
                let room = room.entry(len).or_insert_with(|| if class { usage.keeps(len) } else { 0 });
                // Requests reuse the most recently freed blocks first, so drop the oldest.
                let too_many = kept.len().saturating_sub(*room);
                *room -= kept.len() - too_many;
                surplus.extend(kept.drain(..too_many));
            }
            heap.cached.retain(|_, kept| !kept.is_empty());
        }
        for number in surplus {
            state.free_memory(number, || self.source.now());
        }
    }
}
