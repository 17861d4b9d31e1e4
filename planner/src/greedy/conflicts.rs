//! Finds the pairs of buffers that are live at the same time.

use crate::deadline::{Deadline, Watch};
use crate::model::Instance;

/// For each buffer, the others that are live at the same time at any moment.
#[derive(Clone, Debug, Default)]
pub struct Conflicts {
    starts: Vec<usize>,
    list: Vec<u32>,
}

impl Conflicts {
    /// Returns the number of pairs without listing them. O(n log n).
    pub fn count(instance: &Instance) -> u64 {
        let live = || instance.buffers().iter().filter(|buffer| buffer.is_ever_live());
        let mut starts: Vec<i64> = live().map(|buffer| buffer.start).collect();
        let mut ends: Vec<i64> = live().map(|buffer| buffer.end).collect();
        starts.sort_unstable();
        ends.sort_unstable();
        let mut ended = 0;
        let mut pairs = 0;
        for (started, &start) in starts.iter().enumerate() {
            while ended < ends.len() && ends[ended] <= start {
                ended += 1;
            }
            pairs += started.saturating_sub(ended) as u64;
        }
        pairs
    }

    /// Lists all pairs. O(n log n + pairs) time, 8 bytes for each pair.
    pub fn new(instance: &Instance) -> Self {
        Self::within(instance, &Deadline::never()).unwrap_or_default()
    }

    /// Lists all pairs like [`Conflicts::new`]; `None` if `deadline` passes first.
    pub fn within(instance: &Instance, deadline: &Deadline) -> Option<Self> {
        let mut watch = Watch::new(deadline);
        let buffers = instance.buffers();
        let mut by_start: Vec<u32> =
            (0..buffers.len() as u32).filter(|&n| buffers[n as usize].is_ever_live()).collect();
        by_start.sort_by_key(|&n| buffers[n as usize].start);
        let mut sweep = |pair: &mut dyn FnMut(u32, u32)| {
            let mut live: Vec<u32> = Vec::new();
            for &n in &by_start {
                if watch.passed(8 * live.len() + 1) {
                    return None;
                }
                let buffer = &buffers[n as usize];
                live.retain(|&other| buffers[other as usize].end > buffer.start);
                for &other in &live {
                    if buffers[other as usize].tier == buffer.tier {
                        pair(n, other);
                    }
                }
                live.push(n);
            }
            Some(())
        };
        // Once to count, once to fill.
        let mut degree = vec![0_usize; buffers.len() + 1];
        sweep(&mut |a, b| {
            degree[a as usize] += 1;
            degree[b as usize] += 1;
        })?;
        let mut sum = 0;
        for degree in &mut degree {
            sum += std::mem::replace(degree, sum);
        }
        let starts = degree.clone();
        let mut list = vec![0; sum];
        sweep(&mut |a, b| {
            for (n, other) in [(a, b), (b, a)] {
                list[degree[n as usize]] = other;
                degree[n as usize] += 1;
            }
        })?;
        Some(Self { starts, list })
    }

    /// Returns the buffers that are ever live together with `n`.
    pub fn of(&self, n: usize) -> &[u32] {
        &self.list[self.starts[n]..self.starts[n + 1]]
    }

    /// Adds the open intervals of offsets that `n` may not have because `other` lies at `offset`.
    pub fn forbidden(
        &self,
        instance: &Instance,
        n: usize,
        other: usize,
        offset: u64,
        forbidden: &mut Vec<(i64, i64)>,
    ) {
        let (a, b) = (&instance.buffers()[n], &instance.buffers()[other]);
        // All buffers in a row fit 63 bits.
        let offset = offset as i64;
        if a.gaps.is_empty() && b.gaps.is_empty() {
            forbidden.push((offset - a.size as i64, offset + b.size as i64));
            return;
        }
        // Both lists are in ascending order of time, so they are walked side by side.
        let (ours, theirs) = (a.pieces(), b.pieces());
        let (mut i, mut j) = (0, 0);
        while let (Some(p), Some(q)) = (ours.get(i), theirs.get(j)) {
            if p.0 < q.1 && q.0 < p.1 {
                forbidden.push((offset + q.2 as i64 - p.3 as i64, offset + q.3 as i64 - p.2 as i64));
            }
            if p.1 <= q.1 {
                i += 1;
            } else {
                j += 1;
            }
        }
    }

    /// The work of [`Conflicts::forbidden`] for all conflicts of `n`, in elementary steps.
    pub(crate) fn work(&self, instance: &Instance, n: usize) -> usize {
        let own = instance.buffers()[n].gaps.len();
        let each = |&other: &u32| 16 + 64 * (own + instance.buffers()[other as usize].gaps.len());
        if instance.any_gaps() { self.of(n).iter().map(each).sum() } else { 16 * self.of(n).len() }
    }
}
