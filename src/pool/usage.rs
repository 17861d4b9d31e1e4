//! The usage of a pool, step by step.

#![forbid(unsafe_code)]

use super::numbers::ByNumber;
use super::options::Adaptive;
use std::collections::VecDeque;

/// The most different lengths counted per window; further ones are ignored.
const LENGTHS: usize = 1 << 16;

/// The blocks of one length.
#[derive(Clone, Copy, Default)]
struct Blocks {
    live: u64,
    /// The most blocks that were live at once, in this window and in the previous one.
    peaks: [u64; 2],
}

/// Statistics of the requests in the last steps.
pub(super) struct Usage {
    pub(super) follow: Adaptive,
    /// Whether the pool keeps blocks by class, so that lengths matter.
    by_class: bool,
    /// How often each length in granules was requested, in this window and in the previous one.
    pub(super) asked: [ByNumber<usize, u64>; 2],
    /// Live blocks by their actual length.
    blocks: ByNumber<usize, Blocks>,
    /// The most bytes that were active at once in this step; `peaks` holds the values of earlier steps.
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
            // The block may predate the counts.
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

    /// Returns the number of free blocks of this length that are worth keeping besides the live ones.
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

    /// Lengths without live blocks for two windows are forgotten, and none of their blocks are kept.
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

/// The most lengths for which classes are chosen; beyond that, neighbours are merged.
const DISTINCT: usize = 256;

/// Chooses up to `most` classes, ascending, for these lengths and their numbers of requests, so that rounding up wastes the least. The
/// longest length is always a class. Dynamic programming over the lengths in ascending order: O(lengths² · most) for at most [`DISTINCT`]
/// lengths.
pub(super) fn fit(mut asked: Vec<(usize, u64)>, most: usize) -> Vec<usize> {
    asked.sort_unstable();
    while asked.len() > DISTINCT {
        // Merge pairs of neighbours: the shorter is rounded up to the longer.
        let pairs = asked.chunks(2).map(|pair| {
            let times = pair.iter().map(|length| length.1).sum();
            (pair[pair.len() - 1].0, times)
        });
        asked = pairs.collect();
    }
    let n = asked.len();
    if n == 0 || most == 0 {
        return Vec::new();
    }
    // For each length, the number of requests for shorter ones.
    let mut before = vec![0.0; n + 1];
    for (at, &(_, times)) in asked.iter().enumerate() {
        before[at + 1] = before[at] + times as f64;
    }
    // The granules that requests for the lengths in `from..to` take if all round up to the last of them. The requests do not depend on
    // the classes, so the fewest granules mean the least waste.
    let taken = |from: usize, to: usize| (before[to] - before[from]) * asked[to - 1].0 as f64;
    let mut least: Vec<f64> = (0..=n).map(|to| if to == 0 { 0.0 } else { taken(0, to) }).collect();
    // For each number of classes above one: where the last class begins when the first `to` lengths are covered.
    let mut starts: Vec<Vec<usize>> = Vec::new();
    for _ in 1..most.min(n) {
        let mut better = least.clone();
        let mut start = vec![0; n + 1];
        for to in 1..=n {
            for (from, fewer) in least[..to].iter().enumerate().skip(1) {
                let all = fewer + taken(from, to);
                if all < better[to] {
                    (better[to], start[to]) = (all, from);
                }
            }
        }
        least = better;
        starts.push(start);
    }
    let mut classes = Vec::new();
    let mut to = n;
    while to > 0 {
        classes.push(asked[to - 1].0);
        // A start of 0 means that one class fewer is just as good.
        to = loop {
            match starts.pop() {
                None => break 0,
                Some(start) if start[to] > 0 => break start[to],
                Some(_) => {}
            }
        };
    }
    classes.reverse();
    classes
}

#[cfg(test)]
mod classes_tests {
    use super::*;

    fn waste(asked: &[(usize, u64)], classes: &[usize]) -> Option<u64> {
        let each = asked.iter().map(|&(length, times)| {
            let class = classes.iter().copied().filter(|&class| class >= length).min()?;
            Some(times * (class - length) as u64)
        });
        each.sum()
    }

    #[test]
    fn no_other_classes_waste_less() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let mut asked: Vec<(usize, u64)> =
                (0..random.usize(1..9)).map(|_| (random.usize(1..60), random.u64(0..20))).collect();
            asked.sort_unstable();
            asked.dedup_by_key(|length| length.0);
            for most in 1..5 {
                let classes = fit(asked.clone(), most);
                assert!(classes.len() <= most && classes.windows(2).all(|pair| pair[0] < pair[1]));
                let ours = waste(&asked, &classes).unwrap();
                let others = (0..1u32 << asked.len()).filter(|set| set.count_ones() as usize <= most);
                let best = others.filter_map(|set| {
                    let chosen = (0..asked.len()).filter(|n| set >> n & 1 == 1).map(|n| asked[n].0);
                    waste(&asked, &chosen.collect::<Vec<_>>())
                });
                assert_eq!(Some(ours), best.min(), "{asked:?} {classes:?}");
            }
        }
    }

    #[test]
    fn thousands_of_lengths_have_classes_too() {
        let asked: Vec<(usize, u64)> = (1..5000).map(|length| (length, 1)).collect();
        let classes = fit(asked.clone(), 20);
        let even: Vec<usize> = (1..=20).map(|n| n * 250).collect();
        let (ours, theirs) = (waste(&asked, &classes).unwrap(), waste(&asked, &even).unwrap());
        assert!((ours as f64) < 1.05 * theirs as f64, "{ours} {theirs}");
        assert_eq!(fit(Vec::new(), 3), [0_usize; 0]);
        // At exactly `DISTINCT` lengths, each gets a class if there are enough classes.
        assert_eq!(fit(asked[..DISTINCT].to_vec(), DISTINCT), (1..=DISTINCT).collect::<Vec<_>>());
    }
}
