//! Chooses size classes that fit the requests.

#![forbid(unsafe_code)]

use std::vec;
use std::vec::Vec;

/// How many lengths are distinguished; beyond that, neighbours are merged.
const LENGTHS: usize = 256;

/// Chooses up to `most` classes, ascending, for these lengths and the number of times each was requested, such that
/// rounding up to them wastes the least. The longest length is always a class. Dynamic programming over the lengths
/// in ascending order: O(lengths² · most) for at most [`LENGTHS`] lengths.
pub(super) fn fit(mut asked: Vec<(usize, u64)>, most: usize) -> Vec<usize> {
    asked.sort_unstable();
    while asked.len() > LENGTHS {
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
    // The granules that requests for the lengths in `from..to` take if all are rounded up to the last of them. What was
    // asked for is the same whatever the classes, so the least granules are the least waste.
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
mod tests {
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
        // As many lengths as are distinguished: each gets a class if there are enough.
        assert_eq!(fit(asked[..LENGTHS].to_vec(), LENGTHS), (1..=LENGTHS).collect::<Vec<_>>());
    }
}
