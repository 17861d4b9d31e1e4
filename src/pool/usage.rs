//! The usage of a pool, step by step.

#![forbid(unsafe_code)]

use super::numbers::ByNumber;
use super::options::Adaptive;
use std::collections::VecDeque;

/// How many different lengths are counted per window; further ones are ignored.
const LENGTHS: usize = 1 << 16;

/// The blocks of one length.
#[derive(Clone, Copy, Default)]
struct Blocks {
    live: u64,
    /// The most that were live at once, in this window and in the one before.
    peaks: [u64; 2],
}

/// Statistics of the requests in the last steps.
pub(super) struct Usage {
    pub(super) follow: Adaptive,
    /// Whether blocks are kept by class, so that lengths matter.
    by_class: bool,
    /// How often each length in granules was requested, in this window and in the one before.
    pub(super) asked: [ByNumber<usize, u64>; 2],
    /// Live blocks by their actual length.
    blocks: ByNumber<usize, Blocks>,
    /// The most bytes that were active at once in this step; `peaks` holds those of the steps before.
    peak: u64,
    peaks: VecDeque<u64>,
}

impl Usage {
    pub(super) fn new(follow: Adaptive, by_class: bool) -> Self {
        let (asked, blocks, peaks) = (Default::default(), ByNumber::default(), VecDeque::new());
        Self { follow, by_class, asked, blocks, peak: 0, peaks }
    }

    /// Counts a block of `len` granules that became live for a request of `asked` granules.
    pub(super) fn allocated(&mut self, asked: usize, len: usize, active: u64) {
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

    pub(super) fn freed(&mut self, len: usize) {
        if let Some(blocks) = self.blocks.get_mut(&len) {
            // The block may be older than the counts.
            blocks.live = blocks.live.saturating_sub(1);
        }
    }

    /// Ends a step. Returns the most bytes that were active at once in the window, and whether the window ends
    /// here.
    pub(super) fn step(&mut self, step: u64, active: u64) -> (u64, bool) {
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

    /// The number of free blocks of this length that are worth keeping besides the live ones.
    pub(super) fn keeps(&self, len: usize) -> usize {
        let Blocks { live, peaks } = self.blocks.get(&len).copied().unwrap_or_default();
        let most = (peaks[0].max(peaks[1]) as f64 * self.follow.factor).ceil() as u64;
        most.saturating_sub(live) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOW: Adaptive = Adaptive { window: 2, factor: 1.5 };

    #[test]
    fn lengths_are_counted_while_there_is_room() {
        let mut usage = Usage::new(FOLLOW, true);
        for times in 0..2 {
            (0..LENGTHS - 1).for_each(|length| usage.allocated(length, length, 0));
            assert!(usage.asked[0].values().all(|&count| count == times + 1));
        }
        usage.allocated(LENGTHS, LENGTHS, 0);
        usage.allocated(LENGTHS + 1, LENGTHS + 1, 0);
        assert_eq!((usage.asked[0].len(), usage.asked[0].get(&LENGTHS)), (LENGTHS, Some(&1)));
        let mut plain = Usage::new(FOLLOW, false);
        plain.allocated(1, 1, 5);
        assert!(plain.asked[0].is_empty() && plain.step(1, 0) == (5, false));
    }

    /// Lengths that were not live for two windows are forgotten, and nothing is kept of them.
    #[test]
    fn lengths_are_forgotten_after_two_windows() {
        let mut usage = Usage::new(FOLLOW, true);
        (0..3).for_each(|_| usage.allocated(7, 8, 0));
        (0..2).for_each(|_| usage.freed(8));
        assert_eq!(
            (usage.keeps(8), usage.keeps(7)),
            (4, 0),
            "half as many again as were live, less one that is"
        );
        usage.freed(8);
        for (step, keeps) in [(1, 5), (2, 5), (3, 5), (4, 0)] {
            assert_eq!((usage.step(step, 0).1, usage.keeps(8)), (step % 2 == 0, keeps), "step {step}");
        }
        assert!(usage.blocks.is_empty());
        usage.freed(8);
    }
}
