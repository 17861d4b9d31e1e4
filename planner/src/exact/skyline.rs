//! Exact search over skylines.
//!
//! Everything placed so far is seen from above: `floor[s]` is the lowest free offset of section `s`. A *valley* is a
//! run of sections of one height between higher ones. In some solution every buffer rests on another or on the
//! ground, so for any section of a valley exactly one of these holds: one of the buffers that fit the valley lies on
//! its floor there, or none does, and then the floor of that section rises to the next height at which anything
//! could lie. These are the branches of a node; the section with the fewest of them is taken.
//!
//! What cuts the tree:
//! * *sections*: floor + what is still to be placed must not exceed the capacity, in every section; also with
//!   only those buffers counted that cannot lie below a given height;
//! * *floors* rise to the lowest offset of what is still to be placed;
//! * *parts* that no unplaced buffer connects are solved one after the other;
//! * *symmetry*: of equal buffers the first goes first, of two with one lifetime the smaller goes below;
//! * *dominance*: a hole into which an unplaced buffer would fit is never left;
//! * *dead ends* are remembered (floors and unplaced buffers of a part), and a dead end that does not depend on a
//!   node's decision is passed upwards at once.

use super::Limits;

impl Problem {
    /// The lowest offset of buffer `n` that is no less than `height`.
    fn above(&self, n: usize, height: u32) -> u32 {
        if self.align[n] == 1 { height } else { height.next_multiple_of(self.align[n]) }
    }
}

/// A wall: a section that needs nothing any more.
const WALL: u32 = u32::MAX;

/// A plain instance in units small enough for 32 bits.
#[derive(Clone, Debug)]
pub struct Problem {
    /// First section of each buffer.
    pub first: Vec<u32>,
    /// The section after its last.
    pub last: Vec<u32>,
    /// Height of each buffer, in units.
    pub size: Vec<u32>,
    /// Its offset is a multiple of this many units, at least 1.
    pub align: Vec<u32>,
    /// Number of sections.
    pub sections: usize,
}

/// How a search answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Offsets in units.
    Found(Vec<u32>),
    /// There is none: proved.
    None,
    /// The limits were reached first.
    Unknown,
}

/// What the search prefers.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Which buffer of a valley goes first.
    pub order: Order,
    /// Which section is branched on among those with equally few branches.
    pub section: Pick,
    /// Seed for the breaking of ties.
    pub seed: u64,
}

/// Preference among buffers; the larger goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Size × sections.
    Area,
    /// Bytes.
    Size,
    /// Sections.
    Length,
    /// Bytes still to come in its sections.
    Total,
    /// By chance.
    Random,
}

/// Preference among sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// The fewest branches anywhere.
    Fewest,
    /// The fewest branches in the lowest valley.
    Lowest,
    /// The fewest branches in the narrowest valley.
    Narrowest,
    /// The leftmost section of the lowest valley.
    LowestLeft,
}

/// No buffer.
const NOBODY: u32 = u32::MAX;

/// The state of one node: a part of the instance, partly placed.
#[derive(Clone, Default)]
struct Level {
    /// Lowest offset of each section at which anything may still be placed, by what was placed and skipped.
    base: Vec<u32>,
    /// The same, raised to the lowest offset of any unplaced buffer.
    floor: Vec<u32>,
    /// Sum of the sizes still to be placed.
    rest: Vec<u32>,
    /// Unplaced buffers of this part.
    list: Vec<u32>,
    /// Their lowest possible offsets.
    low: Vec<u32>,
    /// The sections whose floors may have risen since they were computed.
    dirty: (usize, usize),
}

/// How a node ended. A failure leaves its reason, a set of sections, in `reasons[depth]`: the buffers clipped to
/// them, on the floors of the node, cannot be placed.
enum Outcome {
    Solved,
    Failed,
    Limit,
}

/// Sections as bits.
fn set(bits: &mut [u64], s: usize) {
    bits[s / 64] |= 1 << (s % 64);
}

fn has(bits: &[u64], s: usize) -> bool {
    bits[s / 64] >> (s % 64) & 1 != 0
}

/// True if any bit of `lo..hi` is set.
fn meets_range(bits: &[u64], lo: usize, hi: usize) -> bool {
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

/// A direct-mapped table of parts that cannot be completed.
struct DeadEnds {
    slots: Vec<(u64, u64)>,
    /// The reason of each slot, `words` long.
    reasons: Vec<u64>,
    words: usize,
    by_section: Vec<(u64, u64)>,
    by_buffer: Vec<(u64, u64)>,
}

impl DeadEnds {
    fn new(problem: &Problem, bits: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let mut pairs = |count: usize| (0..count).map(|_| (random.u64(..) | 1, random.u64(..) | 1)).collect();
        Self {
            by_section: pairs(problem.sections),
            by_buffer: pairs(problem.size.len()),
            slots: vec![(0, 0); 1 << bits],
            words: problem.sections.div_ceil(64),
            reasons: vec![0; problem.sections.div_ceil(64) << bits],
        }
    }

    /// A hash of 128 bits of a part's floors and unplaced buffers.
    fn key(&self, level: &Level, lo: usize, hi: usize) -> (u64, u64) {
        let mut key = (hi as u64, lo as u64);
        for (&floor, &(a, b)) in level.base[lo..hi].iter().zip(&self.by_section[lo..hi]) {
            key.0 = key.0.wrapping_add(a.wrapping_mul(u64::from(floor)));
            key.1 = key.1.wrapping_add(b.wrapping_mul(u64::from(floor)));
        }
        for &n in &level.list {
            let (a, b) = self.by_buffer[n as usize];
            key.0 = key.0.wrapping_add(a.rotate_left(32));
            key.1 = key.1.wrapping_add(b.rotate_left(32));
        }
        let mix = |x: u64| (x ^ (x >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mix(key.0), mix(key.1) | 1)
    }

    fn slot(&self, key: (u64, u64)) -> usize {
        (key.0 >> 20) as usize & (self.slots.len() - 1)
    }

    fn reason(&self, key: (u64, u64)) -> Option<&[u64]> {
        let slot = self.slot(key);
        (self.slots[slot] == key).then(|| &self.reasons[slot * self.words..][..self.words])
    }

    fn insert(&mut self, key: (u64, u64), reason: &[u64]) {
        let slot = self.slot(key);
        self.slots[slot] = key;
        self.reasons[slot * self.words..][..self.words].copy_from_slice(reason);
    }
}

/// A search for a plan within one capacity. What it learns holds for later runs too.
pub struct Search<'a> {
    problem: &'a Problem,
    capacity: u32,
    levels: Vec<Level>,
    offsets: Vec<u32>,
    /// The equal buffer before each, if any.
    twin: Vec<u32>,
    dead: DeadEnds,
    strategy: Strategy,
    value: Vec<u64>,
    /// Stamps of the node that saw a buffer unplaced.
    seen: Vec<u64>,
    /// Nodes visited, over all runs.
    pub nodes: u64,
    budget: u64,
    words: usize,
    reasons: Vec<Vec<u64>>,
    /// The buffers that start (0) and end (1) at each border between sections; border `s` lies before section `s`.
    borders: Vec<[Vec<u32>; 2]>,
    /// What is placed on the way to the node.
    placed: Vec<bool>,
    /// How often each section overflowed, decaying.
    weight: Vec<f32>,
    bump: f32,
    // Scratch of one node, overwritten by the next.
    lowest: Vec<u32>,
    valley: Vec<u32>,
    count: Vec<i32>,
}

impl<'a> Search<'a> {
    /// Prepares a search within `capacity` units, at most 2^31.
    pub fn new(problem: &'a Problem, capacity: u32) -> Self {
        let (n, sections) = (problem.size.len(), problem.sections);
        let mut equal = std::collections::HashMap::new();
        let twin = (0..n)
            .map(|k| {
                equal
                    .insert((problem.first[k], problem.last[k], problem.size[k], problem.align[k]), k as u32)
                    .unwrap_or(NOBODY)
            })
            .collect();
        let mut borders = vec![[Vec::new(), Vec::new()]; sections + 1];
        for k in 0..n {
            borders[problem.first[k] as usize][0].push(k as u32);
            borders[problem.last[k] as usize][1].push(k as u32);
        }
        Self {
            borders,
            placed: vec![false; n],
            problem,
            capacity,
            levels: Vec::new(),
            offsets: vec![0; n],
            twin,
            dead: DeadEnds::new(problem, if sections <= 2048 { 16 } else { 12 }),
            strategy: Strategy { order: Order::Area, section: Pick::Fewest, seed: 0 },
            value: vec![0; n],
            seen: vec![0; n],
            nodes: 0,
            budget: 0,
            words: sections.div_ceil(64),
            reasons: Vec::new(),
            weight: vec![1.0; sections],
            bump: 1.0,
            lowest: vec![0; sections],
            valley: vec![0; sections],
            count: vec![0; sections + 1],
        }
    }

    /// Sets another capacity. Dead ends of a larger one are dead in a smaller one; the other way about they are
    /// forgotten.
    pub fn aim(&mut self, capacity: u32) {
        if capacity > self.capacity {
            self.dead.slots.fill((0, 0));
        }
        self.capacity = capacity;
    }

    /// Searches with one strategy until `limits`.
    pub fn run(&mut self, strategy: Strategy, limits: &Limits) -> Answer {
        let problem = self.problem;
        let n = problem.size.len();
        self.strategy = strategy;
        self.budget = self.nodes.saturating_add(limits.nodes);
        let mut random = fastrand::Rng::with_seed(strategy.seed);
        let mut rest = vec![0_u32; problem.sections];
        for k in 0..n {
            for rest in &mut rest[problem.first[k] as usize..problem.last[k] as usize] {
                *rest = rest.saturating_add(problem.size[k]);
            }
        }
        for k in 0..n {
            let (first, last) = (problem.first[k], problem.last[k]);
            let (size, length) = (u64::from(problem.size[k]), u64::from(last - first));
            let value = match strategy.order {
                Order::Area => size * length,
                Order::Size => size,
                Order::Length => length << 32 | size,
                Order::Total => rest[first as usize..last as usize].iter().map(|&rest| u64::from(rest)).sum(),
                Order::Random => 1,
            };
            // The noise is a fifth, and decides alone where all are equal.
            let noise = if strategy.seed == 0 { 1.0 } else { 0.9 + 0.2 * random.f64() };
            self.value[k] = (value as f64 * 1024.0 * noise) as u64;
        }
        let level = Level {
            base: vec![0; problem.sections],
            floor: vec![0; problem.sections],
            rest,
            list: (0..n as u32).collect(),
            low: vec![0; n],
            dirty: (0, problem.sections),
        };
        self.set_level(0, level);
        self.placed.fill(false);
        match self.node(0, 0, problem.sections, [0, 0], limits) {
            Outcome::Solved => Answer::Found(self.offsets.clone()),
            Outcome::Failed => Answer::None,
            Outcome::Limit => Answer::Unknown,
        }
    }

    fn set_level(&mut self, depth: usize, level: Level) {
        if self.levels.len() <= depth {
            self.levels.resize_with(depth + 1, Level::default);
        }
        self.levels[depth] = level;
    }

    /// Makes level `depth + 1` of the sections `lo..hi` of level `depth`, with `placed` on its lowest offset.
    fn child(&mut self, depth: usize, lo: usize, hi: usize, placed: Option<(u32, u32)>) {
        if self.levels.len() <= depth + 1 {
            let sections = self.problem.sections;
            let fresh = Level {
                base: vec![0; sections],
                floor: vec![0; sections],
                rest: vec![0; sections],
                list: Vec::new(),
                low: Vec::new(),
                dirty: (0, 0),
            };
            self.levels.push(fresh);
        }
        let (parents, children) = self.levels.split_at_mut(depth + 1);
        let (parent, child) = (&parents[depth], &mut children[0]);
        child.base[lo..hi].copy_from_slice(&parent.base[lo..hi]);
        child.floor[lo..hi].copy_from_slice(&parent.floor[lo..hi]);
        child.dirty = (lo, lo);
        child.rest[lo..hi].copy_from_slice(&parent.rest[lo..hi]);
        child.list.clear();
        child.low.clear();
        let problem = self.problem;
        let Some((buffer, offset)) = placed else {
            for (&n, &low) in parent.list.iter().zip(&parent.low) {
                if problem.first[n as usize] as usize >= lo && (problem.first[n as usize] as usize) < hi {
                    child.list.push(n);
                    child.low.push(low);
                }
            }
            return;
        };
        let (first, last) = (problem.first[buffer as usize], problem.last[buffer as usize]);
        let size = problem.size[buffer as usize];
        let top = offset + size;
        let range = first as usize..last as usize;
        child.base[range.clone()].fill(top);
        child.rest[range].iter_mut().for_each(|rest| *rest -= size);
        let mut dirty = (first, last);
        for (&n, &low) in parent.list.iter().zip(&parent.low) {
            if n == buffer {
                continue;
            }
            let (from, to) = (problem.first[n as usize], problem.last[n as usize]);
            child.list.push(n);
            if from < last && first < to && low < top {
                child.low.push(problem.above(n as usize, top));
                dirty = (dirty.0.min(from), dirty.1.max(to));
            } else {
                child.low.push(low);
            }
        }
        child.dirty = (dirty.0 as usize, dirty.1 as usize);
    }

    /// Raises floors to what is possible; a section that overflows is returned.
    fn propagate(&mut self, depth: usize) -> Option<usize> {
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
            // Where nothing is left, `lowest` is a wall.
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

    /// Adds to the reason of `depth` why each unplaced buffer of `section` lies at `height` or above.
    fn explain(&mut self, depth: usize, section: usize, height: u32) {
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

    /// Solves the sections `lo..hi` of level `depth`.
    ///
    /// `changed` are the borders at which the floors' difference is new.
    fn node(
        &mut self,
        depth: usize,
        mut lo: usize,
        mut hi: usize,
        changed: [usize; 2],
        limits: &Limits,
    ) -> Outcome {
        let mut changed = changed;
        if self.reasons.len() <= depth + 1 {
            self.reasons.resize(depth + 2, vec![0; self.words]);
        }
        self.reasons[depth].fill(0);
        let mut keys: Vec<(u64, u64)> = Vec::new();
        let mut skipped: Vec<(usize, Vec<u64>)> = Vec::new();
        loop {
            self.nodes += 1;
            if self.nodes > self.budget || (self.nodes & 255 == 0 && limits.over()) {
                return Outcome::Limit;
            }
            if let Some(s) = self.propagate(depth) {
                self.weight[s] += self.bump;
                self.bump *= 1.0001;
                if self.bump > 1e20 {
                    self.weight.iter_mut().for_each(|weight| *weight = (*weight / 1e20).max(1e-9));
                    self.bump /= 1e20;
                }
                let floor = self.levels[depth].floor[s];
                self.explain(depth, s, floor);
                break;
            }
            if self.levels[depth].list.is_empty() {
                return Outcome::Solved;
            }
            if let Some(border) = changed.into_iter().find(|&border| !self.matches(depth, lo, hi, border)) {
                for s in [border - 1, border] {
                    self.weight[s] += self.bump;
                    let floor = self.levels[depth].floor[s];
                    self.explain(depth, s, floor);
                }
                break;
            }
            // Independent parts.
            let parts = self.parts(depth, lo, hi);
            if parts.len() > 1 {
                let mut failed = false;
                for (lo, hi) in parts {
                    self.child(depth, lo, hi, None);
                    match self.node(depth + 1, lo, hi, [0, 0], limits) {
                        Outcome::Solved => {}
                        Outcome::Limit => return Outcome::Limit,
                        Outcome::Failed => {
                            failed = true;
                            // The parts before it were solved for nothing.
                            for &n in &self.levels[depth].list {
                                self.placed[n as usize] = false;
                            }
                            let (own, child) = self.reasons.split_at_mut(depth + 1);
                            own[depth].iter_mut().zip(&child[0]).for_each(|(own, child)| *own |= child);
                            break;
                        }
                    }
                }
                if !failed {
                    return Outcome::Solved;
                }
                break;
            }
            (lo, hi) = parts[0];
            let key = self.dead.key(&self.levels[depth], lo, hi);
            if let Some(reason) = self.dead.reason(key) {
                self.reasons[depth].copy_from_slice(reason);
                break;
            }
            keys.push(key);
            let (section, height) = self.choose(depth, lo, hi);
            let mut candidates = self.candidates(depth, section, height);
            candidates.sort_by_key(|&(n, _)| std::cmp::Reverse(self.value[n as usize]));
            let mut jump = false;
            for (n, allowed) in candidates {
                if !allowed {
                    continue;
                }
                self.offsets[n as usize] = height;
                self.child(depth, lo, hi, Some((n, height)));
                self.placed[n as usize] = true;
                let borders =
                    [self.problem.first[n as usize] as usize, self.problem.last[n as usize] as usize];
                match self.node(depth + 1, lo, hi, borders, limits) {
                    Outcome::Failed => self.placed[n as usize] = false,
                    other => return other,
                }
                let (own, child) = self.reasons.split_at_mut(depth + 1);
                let (own, child) = (&mut own[depth], &child[0]);
                let range = self.problem.first[n as usize] as usize..self.problem.last[n as usize] as usize;
                if !meets_range(child, range.start, range.end) {
                    // It failed whether or not `n` lies here.
                    own.copy_from_slice(child);
                    jump = true;
                    break;
                }
                own.iter_mut().zip(child).for_each(|(own, child)| *own |= child);
            }
            if jump {
                break;
            }
            self.explain(depth, section, height);
            if !self.skip(depth, section, height) {
                break;
            }
            // What follows is a child in all but its level.
            let reason = std::mem::replace(&mut self.reasons[depth], vec![0; self.words]);
            skipped.push((section, reason));
            changed = [section, section + 1];
        }
        // Backwards through the skips: each is a child in all but its level.
        let own = &mut self.reasons[depth];
        loop {
            if keys.len() > skipped.len() {
                if let Some(key) = keys.pop() {
                    self.dead.insert(key, own);
                }
            }
            let Some((section, before)) = skipped.pop() else {
                break;
            };
            if has(own, section) {
                own.iter_mut().zip(&before).for_each(|(own, before)| *own |= before);
            }
        }
        Outcome::Failed
    }

    /// True if the stacks on both sides of a border can reach a common height, for the lowest unplaced buffer across it.
    ///
    /// Up to there only buffers that start at the border lie on its right and only such that end there on its left, so
    /// some of their sizes must make up for the difference of the floors, give or take what the sections can spare.
    fn matches(&self, depth: usize, lo: usize, hi: usize, border: usize) -> bool {
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
        // All sums of some that start less some that end.
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

    /// The runs of sections in `lo..hi` that still need something.
    fn parts(&self, depth: usize, lo: usize, hi: usize) -> Vec<(usize, usize)> {
        let floor = &self.levels[depth].floor;
        let mut parts = Vec::new();
        let mut s = lo;
        while s < hi {
            if floor[s] == WALL {
                s += 1;
                continue;
            }
            let start = s;
            while s < hi && floor[s] != WALL {
                s += 1;
            }
            parts.push((start, s));
        }
        parts
    }

    /// The section to branch on, and its height.
    fn choose(&mut self, depth: usize, lo: usize, hi: usize) -> (usize, u32) {
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
                // A forced move is taken wherever it is.
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

    /// The unplaced buffers that can lie at `height` over `section`, and whether symmetry lets them.
    fn candidates(&mut self, depth: usize, section: usize, height: u32) -> Vec<(u32, bool)> {
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
            *allowed = twin == NOBODY || self.seen[twin as usize] != stamp;
        }
        candidates
    }

    /// Leaves `section` empty at `height`: raises its floor to where anything could lie. False if that fails.
    fn skip(&mut self, depth: usize, section: usize, height: u32) -> bool {
        let problem = self.problem;
        let Level { base, floor, rest, list, low, dirty } = &mut self.levels[depth];
        let covers = |n: usize| problem.first[n] as usize <= section && section < problem.last[n] as usize;
        let slack = self.capacity - floor[section] - rest[section];
        let mut next = height + slack + 1;
        // Those that could lie here must lie on something that does not lie in this section, or on something higher.
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
        // Why: everything that could lie here, or carry what could, is held up as well.
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
        // A lower top belongs to one that carries nothing here.
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
