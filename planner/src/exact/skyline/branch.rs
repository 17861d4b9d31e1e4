//! Chooses the section where a node branches, and its branches.

use super::reasons::{has, set};
use super::{Level, NO_BUFFER, Pick, Search, WALL};

impl Search<'_> {
    /// Returns the section to branch on, and its height.
    pub(super) fn choose(&mut self, depth: usize, lo: usize, hi: usize) -> (usize, u32) {
        let problem = self.problem;
        let Level { floor, rest, list, low, .. } = &self.levels[depth];
        let (valley, count) = (&mut self.valley, &mut self.count);
        // Number the valleys; 0 is none.
        let mut valleys: Vec<(usize, usize)> = vec![(0, 0)];
        let mut s = lo;
        while s < hi {
            let start = s;
            let height = floor[start];
            while s < hi && floor[s] == height {
                s += 1;
            }
            let left_higher = start == lo || floor[start - 1] > height;
            let right_higher = s == hi || floor[s] > height;
            let name = if left_higher && right_higher {
                valleys.push((start, s));
                valleys.len() as u32 - 1
            } else {
                0
            };
            valley[start..s].fill(name);
        }
        count[lo..=hi].fill(0);
        for (&n, &low) in list.iter().zip(low) {
            let (first, last) = (problem.first[n as usize] as usize, problem.last[n as usize] as usize);
            if floor[first] == low && valley[first] != 0 && valley[first] == valley[last - 1] {
                count[first] += 1;
                count[last] -= 1;
            }
        }
        let mut sum = 0;
        for count in &mut count[lo..hi] {
            sum += *count;
            *count = sum;
        }
        let weight = &self.weight;
        let cost = |s: usize| {
            let slack = self.capacity - floor[s] - rest[s];
            let branches = count[s] as u32 + u32::from(slack > 0);
            if branches <= 1 { 0.0 } else { branches as f32 / weight[s] }
        };
        let least = |&(start, end): &(usize, usize)| {
            (start..end).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).expect("no valley is empty")
        };
        let anywhere = || {
            let places = valleys[1..].iter().map(least);
            places.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).expect("the lowest run is a valley")
        };
        let section = match self.strategy.section {
            Pick::Fewest => anywhere(),
            pick => {
                // Make a forced move wherever it is.
                let forced = anywhere();
                let measure = |&&(start, end): &&(usize, usize)| match pick {
                    Pick::Narrowest => (end - start) as u32,
                    _ => floor[start],
                };
                match valleys[1..].iter().min_by_key(measure) {
                    _ if cost(forced) == 0.0 => forced,
                    Some(valley) if pick == Pick::LowestLeft => valley.0,
                    Some(valley) => least(valley),
                    None => forced,
                }
            }
        };
        (section, floor[section])
    }

    /// Returns the unplaced buffers that can lie at `height` over `section`, and whether symmetry allows it.
    pub(super) fn candidates(&mut self, depth: usize, section: usize, height: u32) -> Vec<(u32, bool)> {
        let problem = self.problem;
        let level = &self.levels[depth];
        let section = section as u32;
        let stamp = self.nodes;
        let mut candidates = Vec::new();
        for (&n, &low) in level.list.iter().zip(&level.low) {
            self.seen[n as usize] = stamp;
            if low == height && problem.first[n as usize] <= section && section < problem.last[n as usize] {
                candidates.push((n, true));
            }
        }
        for (n, allowed) in &mut candidates {
            let n = *n as usize;
            let twin = self.twin[n];
            *allowed = twin == NO_BUFFER || self.seen[twin as usize] != stamp;
        }
        candidates
    }

    /// Leaves `section` empty at `height`: raises its floor to the next height at which a buffer could lie. Returns false if there is
    /// none.
    pub(super) fn skip(&mut self, depth: usize, section: usize, height: u32) -> bool {
        let problem = self.problem;
        let Level { base, floor, rest, list, low, dirty } = &mut self.levels[depth];
        let covers = |n: usize| problem.first[n] as usize <= section && section < problem.last[n] as usize;
        let slack = self.capacity - floor[section] - rest[section];
        let mut next = height + slack + 1;
        // Buffers that could lie here must rest on a buffer outside this section, or on a higher one.
        let (mut lo, mut hi) = (usize::MAX, 0);
        for (&n, &at) in list.iter().zip(low.iter()) {
            let n = n as usize;
            if covers(n) {
                if at > height {
                    next = next.min(at);
                } else {
                    lo = lo.min(problem.first[n] as usize);
                    hi = hi.max(problem.last[n] as usize);
                }
            }
        }
        let mut supports = Vec::new();
        if lo < hi {
            // The lowest possible top of a support in each section.
            let tops = &mut self.lowest;
            tops[lo..hi].fill(WALL);
            for (&k, &at) in list.iter().zip(low.iter()) {
                let k = k as usize;
                let (first, last) = (problem.first[k] as usize, problem.last[k] as usize);
                if first < hi && lo < last && !covers(k) {
                    let top = at + problem.size[k];
                    tops[first.max(lo)..last.min(hi)]
                        .iter_mut()
                        .for_each(|lowest| *lowest = top.min(*lowest));
                    if at > height {
                        supports.push((k, top));
                    }
                }
            }
            for (&n, &at) in list.iter().zip(low.iter()) {
                let n = n as usize;
                if covers(n) && at <= height {
                    let range = problem.first[n] as usize..problem.last[n] as usize;
                    next = next.min(tops[range].iter().min().copied().unwrap_or(WALL));
                }
            }
        }
        // The reason: all buffers that could lie here, or support such buffers, are held up as well.
        let reason = &mut self.reasons[depth];
        let mut hold = |n: usize, height: u32| {
            let mut range = problem.first[n] as usize..problem.last[n] as usize;
            let holds = |&s: &usize| problem.above(n, base[s]) >= height;
            if !range.clone().any(|s| holds(&s) && has(reason, s)) {
                let nearest = range.clone().filter(holds).min_by_key(|&s| s.abs_diff(section));
                debug_assert!(nearest.is_some() || height == 0);
                set(reason, nearest.unwrap_or(range.next().unwrap_or(section)));
            }
        };
        for (&n, &at) in list.iter().zip(low.iter()) {
            if covers(n as usize) && at > height {
                hold(n as usize, next);
            }
        }
        // A buffer with a lower top supports nothing here.
        for (k, _) in supports.into_iter().filter(|&(_, top)| top >= next) {
            let need = next.saturating_sub(problem.size[k]);
            if need > height {
                hold(k, need);
            }
        }
        if next > height + slack {
            return false;
        }
        base[section] = next;
        *dirty = (section, section + 1);
        for (&n, low) in list.iter().zip(low.iter_mut()) {
            if covers(n as usize) && *low < next {
                *low = problem.above(n as usize, next);
                dirty.0 = dirty.0.min(problem.first[n as usize] as usize);
                dirty.1 = dirty.1.max(problem.last[n as usize] as usize);
            }
        }
        true
    }
}
