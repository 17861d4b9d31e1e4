//! What a program asks a pool for, and what the pool keeps because of it.

use super::classes::fit;
use super::options::{FollowUsage, Reuse};
use super::state::State;
use super::{Pool, Source};
use crate::placement::Space;
use std::collections::{HashMap, VecDeque};
use std::vec::Vec;

/// Lengths that are remembered in a window; more are not counted.
const LENGTHS: usize = 1 << 16;

/// Blocks of one length.
#[derive(Clone, Copy, Default)]
struct Blocks {
    live: u64,
    /// The most that were live at once, in this window and in the one before.
    peaks: [u64; 2],
}

/// What was asked for in the last steps.
pub(super) struct Usage {
    follow: FollowUsage,
    /// Whether blocks are kept by class, so that lengths matter.
    by_class: bool,
    /// How often each length was asked for in this window and in the one before, in granules.
    asked: [HashMap<usize, u64>; 2],
    /// Blocks by the length that they have.
    blocks: HashMap<usize, Blocks>,
    /// The most that was active in this step, and in each of those before.
    peak: u64,
    peaks: VecDeque<u64>,
}

impl Usage {
    pub fn new(follow: FollowUsage, by_class: bool) -> Self {
        let (asked, blocks, peaks) = (Default::default(), HashMap::new(), VecDeque::new());
        Self { follow, by_class, asked, blocks, peak: 0, peaks }
    }

    /// A block of `len` granules became live for a request of `asked`.
    pub fn allocated(&mut self, asked: usize, len: usize, active: u64) {
        self.peak = self.peak.max(active);
        if !self.by_class {
            return;
        }
        if self.asked[0].len() < LENGTHS {
            *self.asked[0].entry(asked).or_default() += 1;
        }
        let blocks = self.blocks.entry(len).or_default();
        blocks.live += 1;
        blocks.peaks[0] = blocks.peaks[0].max(blocks.live);
    }

    pub fn freed(&mut self, len: usize) {
        if let Some(blocks) = self.blocks.get_mut(&len) {
            // It may be older than what is counted.
            blocks.live = blocks.live.saturating_sub(1);
        }
    }

    /// A step ends; the most that was active in the window, and whether a window ends.
    fn step(&mut self, step: u64, active: u64) -> (u64, bool) {
        self.peaks.push_back(core::mem::replace(&mut self.peak, active));
        while self.peaks.len() as u64 > self.follow.window {
            self.peaks.pop_front();
        }
        let most = self.peaks.iter().copied().max().unwrap_or(0);
        let ends = step % self.follow.window == 0;
        if ends {
            self.asked[1] = core::mem::take(&mut self.asked[0]);
            self.blocks.retain(|_, blocks| {
                blocks.peaks = [blocks.live, blocks.peaks[0]];
                blocks.peaks != [0, 0]
            });
        }
        (most, ends)
    }

    /// Blocks of this length that are worth keeping beside those that are live.
    fn keeps(&self, len: usize) -> usize {
        let Blocks { live, peaks } = self.blocks.get(&len).copied().unwrap_or_default();
        let most = (peaks[0].max(peaks[1]) as f64 * self.follow.factor).ceil() as u64;
        most.saturating_sub(live) as usize
    }
}

impl<P: Space, S: Source> Pool<P, S> {
    /// The classes of the options, in granules.
    pub(super) fn given_classes(&self) -> Vec<usize> {
        let mut classes: Vec<usize> =
            self.options.classes.iter().map(|&bytes| self.length(bytes, 1)).collect();
        classes.dedup();
        classes
    }

    /// Gives back at the end of a step what the program does not use; how many bytes.
    pub(super) fn follow(&self, state: &mut State<P, S>) -> usize {
        let (step, active) = (state.step, state.figures.active());
        let Some(mut usage) = state.usage.take() else { return 0 };
        let (most, window_ends) = usage.step(step, active);
        if self.options.reuse == Reuse::Basic {
            if window_ends {
                let asked = usage.asked[1].iter().map(|(&length, &times)| (length, times)).collect();
                let mut classes = fit(asked, self.options.classes.len());
                classes.extend(self.given_classes());
                classes.sort_unstable();
                classes.dedup();
                state.classes = classes;
            }
            self.shed(state, &usage);
        }
        let (window, keep) = (usage.follow.window, most as f64 * usage.follow.factor);
        state.usage = Some(usage);
        let mut empty: Vec<(u64, u32, usize, usize)> = state
            .empty_segments()
            .map(|(number, entry)| {
                (entry.emptied.1, number, entry.memory.bytes - entry.unmapped, entry.arena)
            })
            .collect();
        empty.sort_unstable();
        let mut released = 0;
        for (emptied, number, bytes, arena) in empty {
            let left = state.figures.reserved.current.saturating_sub(bytes as u64);
            if (step - emptied >= window || left as f64 >= keep) && self.is_over(state, arena) {
                released += self.release(state, number).unwrap_or(0);
            }
        }
        released
    }

    /// Gives blocks that are kept by class and that are too many back to their segments.
    fn shed(&self, state: &mut State<P, S>, usage: &Usage) {
        let mut room: HashMap<usize, usize> = HashMap::new();
        let mut surplus = Vec::new();
        for arena in &mut state.arenas {
            for (&len, kept) in &mut arena.cached {
                let class = state.classes.binary_search(&len).is_ok();
                let room = room.entry(len).or_insert_with(|| if class { usage.keeps(len) } else { 0 });
                // Those that were freed last are used first.
                let too_many = kept.len().saturating_sub(*room);
                *room -= kept.len() - too_many;
                surplus.extend(kept.drain(..too_many));
            }
            arena.cached.retain(|_, kept| !kept.is_empty());
        }
        for number in surplus {
            state.put_back(number, || self.source.now());
        }
    }
}
