//! Exact search over skylines.
//!
//! The search sees the placed buffers from above: `floor[s]` is the lowest free offset of section `s`. A *valley* is a run of sections of
//! one height between higher sections. In some solution every buffer rests on another or at offset 0. So in any section of a valley,
//! either a buffer that fits the valley lies on its floor, or none does, and the floor of that section rises to the next height at which
//! a buffer could lie. These are the branches of a node; the search branches on the section with the fewest.
//!
//! These rules prune the tree:
//! * *sections*: the floor plus the unplaced buffers must not exceed the capacity, in every section; nor must a given height plus the
//!   buffers that cannot lie below it;
//! * *floors* rise to the lowest offset of the unplaced buffers;
//! * *parts* that no unplaced buffer connects are solved one after the other;
//! * *symmetry*: equal buffers are placed in the order of their numbers;
//! * *dominance*: no hole is left into which an unplaced buffer would fit;
//! * *dead ends* are remembered (floors and unplaced buffers of a part), and a dead end that does not depend on a node's decision passes
//!   upwards at once.

mod branch;
mod dead_ends;
mod reasons;

use super::{Answer, Limits};
use crate::deadline::Watch;
use dead_ends::DeadEnds;
use reasons::{has, meets_range};

impl Problem {
    /// Returns the lowest possible offset of buffer `n` at or above `height`.
    fn above(&self, n: usize, height: u32) -> u32 {
        if self.align[n] == 1 { height } else { height.next_multiple_of(self.align[n]) }
    }
}

/// The floor of a section with nothing left to place.
const WALL: u32 = u32::MAX;

/// A plain instance in units small enough for 32 bits.
#[derive(Clone, Debug)]
pub struct Problem {
    /// First section of each buffer.
    pub first: Vec<u32>,
    /// The section after each buffer's last.
    pub last: Vec<u32>,
    /// Height of each buffer, in units.
    pub size: Vec<u32>,
    /// Alignment of each buffer's offset in units, at least 1.
    pub align: Vec<u32>,
    /// Number of sections.
    pub sections: usize,
}

/// The order in which the search tries its choices.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// The order of the buffers of a valley.
    pub order: Order,
    /// The choice of the section to branch on.
    pub section: Pick,
    /// The seed of the noise in the order of buffers; 0 for none.
    pub seed: u64,
}

/// Preference among buffers, by descending value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Size × sections.
    Area,
    /// Bytes.
    Size,
    /// Sections.
    Length,
    /// Bytes left to place in its sections.
    Total,
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

/// The number that means no buffer.
const NO_BUFFER: u32 = u32::MAX;

/// The state of a node: a part of the instance, partly placed.
#[derive(Clone, Default)]
struct Level {
    /// For each section, the lowest offset at which a buffer may still lie, given the placed buffers and skipped heights.
    base: Vec<u32>,
    /// `base`, raised to the lowest offset of any unplaced buffer.
    floor: Vec<u32>,
    /// For each section, the sum of the sizes still to place.
    rest: Vec<u32>,
    /// Unplaced buffers of this part.
    list: Vec<u32>,
    /// Their lowest possible offsets.
    low: Vec<u32>,
    /// The sections whose floors may have risen since they were computed.
    dirty: (usize, usize),
}

impl Level {
    fn new(sections: usize) -> Self {
        let floors = vec![0; sections];
        Self { base: floors.clone(), floor: floors.clone(), rest: floors, ..Self::default() }
    }
}

/// The outcome of a node. A failure leaves its reason, a set of sections, in `reasons[depth]`: clipped to these sections, the buffers
/// cannot be placed on the node's floors.
enum Outcome {
    Solved,
    Failed,
    Limit,
}

/// A search for a plan within a capacity. It learns from its failures, also for later runs.
pub struct Search<'a> {
    problem: &'a Problem,
    capacity: u32,
    levels: Vec<Level>,
    offsets: Vec<u32>,
    /// For each buffer, the equal buffer before it, if any.
    twin: Vec<u32>,
    dead: DeadEnds,
    strategy: Strategy,
    value: Vec<u64>,
    /// For each buffer, the stamp of the last node that saw it unplaced.
    seen: Vec<u64>,
    /// Nodes visited, over all runs.
    pub nodes: u64,
    budget: u64,
    words: usize,
    reasons: Vec<Vec<u64>>,
    /// The buffers that start (0) and end (1) at each border between sections; border `s` lies before section `s`.
    borders: Vec<[Vec<u32>; 2]>,
    /// Whether each buffer is placed on the path to the node, and the placed buffers' bytes × sections.
    placed: Vec<bool>,
    area: u64,
    /// The best partial plan of this run: its area, and the offsets (`WALL` for unplaced buffers).
    most: (u64, Vec<u32>),
    /// The decaying count of overflows of each section.
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
                    .unwrap_or(NO_BUFFER)
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
            area: 0,
            most: (0, Vec::new()),
            problem,
            capacity,
            levels: vec![Level::new(sections)],
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

    /// Sets another capacity. Dead ends at a larger capacity are also dead at a smaller one; if the capacity grows, they are
    /// removed.
    pub fn aim(&mut self, capacity: u32) {
        if capacity > self.capacity {
            self.dead.clear();
        }
        self.capacity = capacity;
    }

    /// Searches with a strategy, up to `limits`.
    pub fn run(&mut self, strategy: Strategy, limits: &Limits) -> Answer<u32> {
        let watch = &mut Watch::new(limits.deadline);
        let problem = self.problem;
        let n = problem.size.len();
        self.strategy = strategy;
        self.budget = self.nodes.saturating_add(limits.nodes);
        let mut random = fastrand::Rng::with_seed(strategy.seed);
        let mut rest = vec![0_u32; problem.sections];
        for k in 0..n {
            let length = (problem.last[k] - problem.first[k]) as usize;
            if watch.passed(length + 8) {
                return Answer::Unknown;
            }
            for rest in &mut rest[problem.first[k] as usize..problem.last[k] as usize] {
                *rest = rest.saturating_add(problem.size[k]);
            }
        }
        for k in 0..n {
            let (first, last) = (problem.first[k], problem.last[k]);
            if watch.passed(if strategy.order == Order::Total { (last - first) as usize } else { 8 }) {
                return Answer::Unknown;
            }
            let (size, length) = (u64::from(problem.size[k]), u64::from(last - first));
            let value = match strategy.order {
                Order::Area => size * length,
                Order::Size => size,
                Order::Length => length << 32 | size,
                Order::Total => rest[first as usize..last as usize].iter().map(|&rest| u64::from(rest)).sum(),
            };
            // The noise is a fifth; among equal buffers it alone decides.
            let noise = if strategy.seed == 0 { 1.0 } else { 0.9 + 0.2 * random.f64() };
            self.value[k] = (value as f64 * 1024.0 * noise) as u64;
        }
        let (list, low, dirty) = ((0..n as u32).collect(), vec![0; n], (0, problem.sections));
        let level = Level { rest, list, low, dirty, ..Level::new(problem.sections) };
        self.levels[0] = level;
        self.placed.fill(false);
        self.area = 0;
        self.most.0 = 0;
        match self.node(0, 0, problem.sections, [0, 0], watch) {
            Outcome::Solved => Answer::Found(self.offsets.clone()),
            Outcome::Failed => Answer::None,
            Outcome::Limit => Answer::Unknown,
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
        watch: &mut Watch,
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
            // Every pass visits the part's sections and buffers a few times, and some of their pairs.
            let buffers = self.levels[depth].list.len();
            let work = 16 * (hi - lo + buffers) + buffers * (hi - lo) / 4 + 500;
            if self.nodes > self.budget || watch.passed(work) {
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
            // Solve independent parts separately.
            let parts = self.parts(depth, lo, hi);
            if parts.len() > 1 {
                let mut failed = false;
                for (lo, hi) in parts {
                    self.child(depth, lo, hi, None);
                    match self.node(depth + 1, lo, hi, [0, 0], watch) {
                        Outcome::Solved => {}
                        Outcome::Limit => return Outcome::Limit,
                        Outcome::Failed => {
                            failed = true;
                            // The solutions of the parts before it are useless.
                            for &n in &self.levels[depth].list {
                                if std::mem::take(&mut self.placed[n as usize]) {
                                    self.area -= self.area_of(n);
                                }
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
                self.area += self.area_of(n);
                let borders =
                    [self.problem.first[n as usize] as usize, self.problem.last[n as usize] as usize];
                match self.node(depth + 1, lo, hi, borders, watch) {
                    Outcome::Failed => {
                        self.placed[n as usize] = false;
                        self.area -= self.area_of(n);
                    }
                    other => return other,
                }
                let (own, child) = self.reasons.split_at_mut(depth + 1);
                let (own, child) = (&mut own[depth], &child[0]);
                let range = self.problem.first[n as usize] as usize..self.problem.last[n as usize] as usize;
                if !meets_range(child, range.start, range.end) {
                    // The child failed regardless of whether `n` lies here.
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
            // The next pass is a child node in all but its level.
            let reason = std::mem::replace(&mut self.reasons[depth], vec![0; self.words]);
            skipped.push((section, reason));
            changed = [section, section + 1];
        }
        if self.area > self.most.0 {
            let offsets = self.offsets.iter().zip(&self.placed);
            let offsets = offsets.map(|(&offset, &placed)| if placed { offset } else { WALL }).collect();
            self.most = (self.area, offsets);
        }
        // Go backwards through the skips: each is a child node in all but its level.
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

    /// Returns the runs of sections in `lo..hi` in which something is left to place.
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

    /// Returns the bytes × sections of the plan that [`partial`](Self::partial) returns.
    pub fn placed_area(&self) -> u64 {
        self.most.0
    }

    /// Returns the offsets of the best partial plan, if the last run found no whole plan.
    pub fn partial(&self) -> Vec<Option<u32>> {
        let all = vec![None; self.offsets.len()];
        if self.most.0 == 0 {
            all
        } else {
            self.most.1.iter().map(|&offset| (offset != WALL).then_some(offset)).collect()
        }
    }

    fn area_of(&self, n: u32) -> u64 {
        let n = n as usize;
        u64::from(self.problem.size[n]) * u64::from(self.problem.last[n] - self.problem.first[n])
    }

    /// Makes level `depth + 1` from the sections `lo..hi` of level `depth`, with the buffer of `placed` at its offset.
    fn child(&mut self, depth: usize, lo: usize, hi: usize, placed: Option<(u32, u32)>) {
        if self.levels.len() <= depth + 1 {
            self.levels.push(Level::new(self.problem.sections));
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
}
