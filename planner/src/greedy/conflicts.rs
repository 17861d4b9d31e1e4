//! Finds the pairs of buffers that are live at the same time.

use crate::deadline::{Deadline, Watch};
use crate::model::{Instance, meetings};

/// For each buffer, the others that are ever live together with it.
///
/// The buffers are sorted by start, so the buffers that start while another is live directly follow it. Only the buffers live at its
/// start are listed or, if there are too many, found by their ends.
#[derive(Clone, Debug, Default)]
pub struct Conflicts {
    /// The buffers that are ever live, by memory and start.
    by_start: Vec<u32>,
    /// For each buffer, its row in `by_start`, and the row after the last buffer that starts while it is live.
    rows: Vec<(u32, u32)>,
    /// For each buffer, the number of buffers live when it starts.
    before: Vec<u32>,
    earlier: Earlier,
}

/// The buffers live when another starts.
#[derive(Clone, Debug)]
enum Earlier {
    /// The lists of all rows, one after the other, and the end of each row's list.
    Listed(Vec<u32>, Vec<usize>),
    /// A tree of the latest ends over the rows, with a power of two of leaves, and the start of each row's buffer.
    Ends(Vec<i64>, Vec<i64>),
}

impl Default for Earlier {
    fn default() -> Self {
        Self::Listed(Vec::new(), Vec::new())
    }
}

/// Largest number of pairs that are listed: 400 MB.
pub(crate) const LISTED: u64 = 100_000_000;

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

    /// Finds all pairs. O(n log n + pairs) time, 4 bytes per pair for up to 100 million pairs; beyond that, pairs are found on demand.
    pub fn new(instance: &Instance) -> Self {
        Self::within(instance, &Deadline::never()).unwrap_or_default()
    }

    /// Finds all pairs like [`Conflicts::new`]; `None` if `deadline` passes first.
    pub fn within(instance: &Instance, deadline: &Deadline) -> Option<Self> {
        Self::up_to(LISTED, instance, deadline)
    }

    fn up_to(listed: u64, instance: &Instance, deadline: &Deadline) -> Option<Self> {
        let mut watch = Watch::new(deadline);
        let buffers = instance.buffers();
        let key = |n: u32| (buffers[n as usize].tier, buffers[n as usize].start);
        let mut by_start: Vec<u32> =
            (0..buffers.len() as u32).filter(|&n| buffers[n as usize].is_ever_live()).collect();
        by_start.sort_by_key(|&n| key(n));
        let keys: Vec<(u32, i64)> = by_start.iter().map(|&n| key(n)).collect();
        let mut list = (Self::count(instance) <= listed).then(Vec::new);
        let mut ends = Vec::with_capacity(by_start.len());
        let (mut rows, mut before) = (vec![(0, 0); buffers.len()], vec![0; buffers.len()]);
        // The live buffers with their ends.
        let mut live: Vec<(i64, u32)> = Vec::new();
        for (row, &n) in by_start.iter().enumerate() {
            if watch.passed(4 * live.len() + 40) {
                return None;
            }
            let (tier, start) = keys[row];
            if row == 0 || keys[row - 1].0 != tier {
                live.clear();
            }
            live.retain(|&(end, _)| end > start);
            if let Some(list) = &mut list {
                list.extend(live.iter().map(|&(_, other)| other));
                ends.push(list.len());
            }
            let end = buffers[n as usize].end;
            let later = keys[row + 1..].partition_point(|&other| other < (tier, end));
            rows[n as usize] = (row as u32, (row + 1 + later) as u32);
            before[n as usize] = live.len() as u32;
            live.push((end, n));
        }
        let earlier = match list {
            Some(list) => Earlier::Listed(list, ends),
            None => {
                let leaves = by_start.len().next_power_of_two();
                let mut tree = vec![i64::MIN; 2 * leaves];
                for (leaf, &n) in tree[leaves..].iter_mut().zip(&by_start) {
                    *leaf = buffers[n as usize].end;
                }
                for node in (1..leaves).rev() {
                    tree[node] = tree[2 * node].max(tree[2 * node + 1]);
                }
                Earlier::Ends(tree, keys.iter().map(|key| key.1).collect())
            }
        };
        Some(Self { by_start, rows, before, earlier })
    }

    /// Returns the number of buffers that are ever live together with `n`.
    pub fn degree(&self, n: usize) -> usize {
        let (row, end) = self.rows[n];
        (self.before[n] + end.saturating_sub(row + 1)) as usize
    }

    /// Calls `f` with each buffer that is ever live together with `n`.
    pub fn each(&self, n: usize, mut f: impl FnMut(usize)) {
        let (row, end) = self.rows[n];
        let row = row as usize;
        // A buffer that is never live has an empty row.
        if end == 0 {
            return;
        }
        self.by_start[row + 1..end as usize].iter().for_each(|&other| f(other as usize));
        match &self.earlier {
            Earlier::Listed(list, ends) => {
                let from = ends[row] - self.before[n] as usize;
                list[from..ends[row]].iter().for_each(|&other| f(other as usize));
            }
            Earlier::Ends(tree, starts) => {
                // Search from right to left until all are found, so that no buffer of another memory is.
                let (mut left, mut stack) = (self.before[n], vec![(1, 0, tree.len() / 2)]);
                while let Some((node, from, size)) = stack.pop().filter(|_| left > 0) {
                    if from >= row || tree[node] <= starts[row] {
                        continue;
                    }
                    if size == 1 {
                        f(self.by_start[from] as usize);
                        left -= 1;
                    } else {
                        let half = size / 2;
                        stack.extend([(2 * node, from, half), (2 * node + 1, from + half, half)]);
                    }
                }
            }
        }
    }

    /// Adds the open intervals of offsets that are forbidden for `n` because `other` lies at `offset`.
    pub fn forbidden(
        &self,
        instance: &Instance,
        n: usize,
        other: usize,
        offset: u64,
        forbidden: &mut Vec<(i64, i64)>,
    ) {
        let (a, b) = (&instance.buffers()[n], &instance.buffers()[other]);
        // All buffers end to end fit in 63 bits.
        let offset = offset as i64;
        if a.gaps.is_empty() && b.gaps.is_empty() {
            forbidden.push((offset - a.size as i64, offset + b.size as i64));
            return;
        }
        for (p, q) in meetings(&a.pieces(), &b.pieces()) {
            forbidden.push((offset + q.2 as i64 - p.3 as i64, offset + q.3 as i64 - p.2 as i64));
        }
    }

    /// Returns the work of [`Conflicts::forbidden`] for all conflicts of `n`, in elementary steps.
    pub(crate) fn work(&self, instance: &Instance, n: usize) -> usize {
        let mut work = 16 * self.degree(n);
        if instance.any_gaps() {
            let own = instance.buffers()[n].gaps.len();
            self.each(n, |other| work += 64 * (own + instance.buffers()[other].gaps.len()));
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random;
    use crate::model::Buffer;

    /// Finds the pairs that are live together, listed or not, in two memories.
    #[test]
    fn all_pairs_are_found_either_way() {
        for seed in 0..20 {
            let buffers = random(200, 12, seed).buffers().to_vec();
            let tiers =
                buffers.into_iter().enumerate().map(|(n, b)| Buffer { tier: (n % 7 == 0).into(), ..b });
            let instance = Instance::new(tiers.collect()).unwrap();
            for listed in [0, u64::MAX] {
                let conflicts = Conflicts::up_to(listed, &instance, &Deadline::never()).unwrap();
                for (n, own) in instance.buffers().iter().enumerate() {
                    let mut found = Vec::new();
                    conflicts.each(n, |other| found.push(other));
                    found.sort_unstable();
                    let meets = |&k: &usize| {
                        let other = &instance.buffers()[k];
                        k != n && own.tier == other.tier && own.meets(other)
                    };
                    assert_eq!(found, (0..instance.len()).filter(meets).collect::<Vec<_>>(), "{seed} {n}");
                    assert_eq!(conflicts.degree(n), found.len());
                }
            }
        }
    }
}
