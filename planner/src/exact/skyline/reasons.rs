//! Detects nodes that fail, and finds the reasons.

use super::{Level, Search, WALL};

/// Adds section `s` to a set of sections, one bit each.
pub fn set(bits: &mut [u64], s: usize) {
    bits[s / 64] |= 1 << (s % 64);
}

pub fn has(bits: &[u64], s: usize) -> bool {
    bits[s / 64] >> (s % 64) & 1 != 0
}

/// Returns whether any bit of `lo..hi` is set.
pub fn meets_range(bits: &[u64], lo: usize, hi: usize) -> bool {
    let mut s = lo;
    while s < hi {
        let end = hi.min((s / 64 + 1) * 64);
        let mask = (u64::MAX >> (64 - (end - s))) << (s % 64);
        if bits[s / 64] & mask != 0 {
            return true;
        }
        s = end;
    }
    false
}

impl Search<'_> {
    /// Raises each floor to the lowest offset possible there. Returns a section that overflows, if any.
    pub(super) fn propagate(&mut self, depth: usize) -> Option<usize> {
        let problem = self.problem;
        let Level { base, floor, rest, list, low, dirty, .. } = &mut self.levels[depth];
        let (lo, hi) = std::mem::take(dirty);
        let lowest = &mut self.lowest;
        lowest[lo..hi].fill(WALL);
        for (&n, &low) in list.iter().zip(low.iter()) {
            let (first, last) = (problem.first[n as usize] as usize, problem.last[n as usize] as usize);
            if first < hi && lo < last {
                for lowest in &mut lowest[first.max(lo)..last.min(hi)] {
                    *lowest = (*lowest).min(low);
                }
            }
        }
        let mut fits = true;
        for s in lo..hi {
            // If no buffer is left in a section, `lowest` is a wall.
            floor[s] = base[s].max(lowest[s]);
            fits &= floor[s] == WALL || floor[s] + rest[s] <= self.capacity;
        }
        if fits {
            return None;
        }
        (lo..hi)
            .filter(|&s| floor[s] != WALL && floor[s] + rest[s] > self.capacity)
            .max_by(|&a, &b| self.weight[a].total_cmp(&self.weight[b]))
    }

    /// Adds to the reason of `depth` sections that hold each unplaced buffer of `section` at or above `height`.
    pub(super) fn explain(&mut self, depth: usize, section: usize, height: u32) {
        let problem = self.problem;
        let Level { base, list, low, .. } = &self.levels[depth];
        let reason = &mut self.reasons[depth];
        set(reason, section);
        if base[section] >= height {
            return;
        }
        for (&n, &low) in list.iter().zip(low) {
            let (first, last) = (problem.first[n as usize] as usize, problem.last[n as usize] as usize);
            if first <= section && section < last {
                let height = height.min(low);
                let holds = |&s: &usize| problem.above(n as usize, base[s]) >= height;
                if (first..last).any(|s| holds(&s) && has(reason, s)) {
                    continue;
                }
                let right = (section..last).find(holds);
                let left = (first..section).rev().find(holds);
                match (left, right) {
                    (Some(left), Some(right)) if section - left < right - section => set(reason, left),
                    (_, Some(right)) => set(reason, right),
                    (Some(left), None) => set(reason, left),
                    (None, None) => debug_assert!(height == 0),
                }
            }
        }
    }

    /// Returns whether the stacks on both sides of a border can reach a common height, for the lowest unplaced buffer across it.
    ///
    /// Up to that height, only buffers that start at the border lie on its right, and only buffers that end there on its left. So some of
    /// their sizes must make up the difference of the floors, within the slack of the sections.
    pub(super) fn matches(&self, depth: usize, lo: usize, hi: usize, border: usize) -> bool {
        if border <= lo || border >= hi {
            return true;
        }
        let Level { floor, rest, .. } = &self.levels[depth];
        let (left, right) = (border - 1, border);
        if floor[left] == WALL || floor[right] == WALL {
            return true;
        }
        let spare = |s: usize| i64::from(self.capacity - floor[s] - rest[s]);
        let unplaced = |side: usize| {
            let side = self.borders[border][side].iter().filter(|&&n| !self.placed[n as usize]);
            side.map(|&n| i64::from(self.problem.size[n as usize]))
        };
        let crossing = i64::from(rest[right]) - unplaced(0).sum::<i64>();
        let count = unplaced(0).count() + unplaced(1).count();
        let difference = i64::from(floor[left]) - i64::from(floor[right]);
        let (low, high) = (difference - spare(right), difference + spare(left));
        if crossing <= 0 || count > 10 || (low <= 0 && 0 <= high) {
            return true;
        }
        // All sums of sizes of some starting buffers minus those of some ending buffers.
        let mut sums = [0_i64; 1 << 10];
        let mut known = 1;
        for size in unplaced(0).chain(unplaced(1).map(|size| -size)) {
            for n in 0..known {
                let sum = sums[n] + size;
                if low <= sum && sum <= high {
                    return true;
                }
                sums[known + n] = sum;
            }
            known *= 2;
        }
        false
    }
}
