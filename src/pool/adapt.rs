//! Gives back what a program does not use, by the statistics of its requests.

#![forbid(unsafe_code)]

use super::classes::fit;
use super::options::Reuse;
use super::records::{LANES, lane_of};
use super::state::State;
use super::usage::Usage;
use super::{Pool, Source};
use crate::placement::SegmentPlacement;
use std::collections::HashMap;
use std::vec::Vec;

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// The classes of the options, in granules.
    pub(super) fn given_classes(&self) -> Vec<usize> {
        let mut classes: Vec<usize> =
            self.options.classes.iter().map(|&bytes| self.length(bytes, 1)).collect();
        classes.dedup();
        classes
    }

    /// Gives back what the program does not use, at the end of a step. Returns the released bytes.
    pub(super) fn follow(&self, state: &mut State<P, S>) -> usize {
        let (step, active) = (state.supply.step, state.figures.active());
        let Some(mut usage) = state.extra.usage.take() else { return 0 };
        let (most, window_ends) = usage.step(step, active);
        if self.options.reuse == Reuse::Basic {
            if window_ends {
                let asked = usage.asked[1].iter().map(|(&length, &times)| (length, times)).collect();
                let mut classes = fit(asked, self.options.classes.len());
                classes.extend(self.given_classes());
                classes.sort_unstable();
                classes.dedup();
                state.extra.classes = classes;
            }
            self.shed(state, &usage);
        }
        let (window, keep) = (usage.follow.window, most as f64 * usage.follow.factor);
        state.extra.usage = Some(usage);
        let mut empty: Vec<(u64, u32, usize, usize)> = state
            .empty_segments()
            .map(|(number, entry)| (entry.emptied.1, number, entry.memory.bytes - entry.unmapped, entry.heap))
            .collect();
        empty.sort_unstable();
        let mut released = 0;
        for (emptied, number, bytes, heap) in empty {
            let left = state.figures.counted.reserved.current.saturating_sub(bytes as u64);
            if (step - emptied >= window || left as f64 >= keep) && self.is_over(state, heap) {
                released += self.release(state, number).unwrap_or(0);
            }
        }
        released
    }

    /// Gives surplus blocks of those kept by class back to their segments.
    fn shed(&self, state: &mut State<P, S>, usage: &Usage) {
        let mut room: HashMap<usize, usize> = HashMap::new();
        let mut surplus = Vec::new();
        for heap in state.heaps() {
            let heap = &mut state.lanes[lane_of(heap)].heaps[heap / LANES];
            for (&len, kept) in &mut heap.cached {
                let class = state.extra.classes.binary_search(&len).is_ok();
                let room = room.entry(len).or_insert_with(|| if class { usage.keeps(len) } else { 0 });
                // The blocks that were freed last are used first, so drop the oldest.
                let too_many = kept.len().saturating_sub(*room);
                *room -= kept.len() - too_many;
                surplus.extend(kept.drain(..too_many));
            }
            heap.cached.retain(|_, kept| !kept.is_empty());
        }
        for number in surplus {
            state.put_back(number, || self.source.now());
        }
    }
}
