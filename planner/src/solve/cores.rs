//! Plans the moments of the highest load first, then ever more of the buffers around them.
//!
//! If the load has a few peaks, the buffers live at them decide the size of the arena, and all others have room to spare. A plan of
//! everything at once places them in any order. So the buffers of the peaks, the first core, are planned by themselves; each larger core
//! keeps the places of the core within it, adds its own buffers, and repairs buffers that end above the peak so far.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use crate::deadline::Deadline;
use crate::greedy::repair::Repair;
use crate::greedy::{self, Conflicts, Fit, Order};
use crate::model::Instance;
use crate::sections::Sections;

/// Smallest number of buffers in the first core; each attempt uses this number, or twice or four times as many.
const FIRST: usize = 300;

/// Estimated nanoseconds for a plan of the first core; the repairs of each larger core get three times as many.
const EFFORT: u64 = 100_000_000;

/// Plans an instance by itself, for about `effort` nanoseconds or until `deadline`, and returns the nanoseconds it took.
pub(super) type Search = fn(inner: &Shared, effort: u64, seed: u64, deadline: &Deadline) -> u64;

/// The cores of an instance.
pub(super) struct Cores {
    /// Plans the first core.
    search: Search,
    /// The buffers, those live at the highest loads first.
    order: Vec<usize>,
    /// The highest load during each buffer's life, in the order of `order`.
    loads: Vec<u64>,
    attempts: u64,
    /// The best plans of first cores so far, by number of buffers.
    plans: HashMap<usize, Vec<u64>>,
}

impl Cores {
    /// Ranks the buffers by the highest load during their lives. O(n log n).
    pub(super) fn new(instance: &Instance, search: Search) -> Self {
        let buffers = instance.buffers();
        let sections = Sections::new(buffers.iter().map(|buffer| (buffer.start, buffer.end)));
        let load = sections.load(|n| buffers[n].size);
        let leaves = load.len().next_power_of_two();
        let mut tree = vec![0; 2 * leaves];
        tree[leaves..leaves + load.len()].copy_from_slice(&load);
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        let highest = |n: usize| {
            let (mut lo, mut hi) = (sections.first[n] as usize + leaves, sections.last[n] as usize + leaves);
            let mut highest = 0_u64;
            while lo < hi {
                if lo % 2 == 1 {
                    highest = highest.max(tree[lo]);
                    lo += 1;
                }
                if hi % 2 == 1 {
                    hi -= 1;
                    highest = highest.max(tree[hi]);
                }
                (lo, hi) = (lo / 2, hi / 2);
            }
            // Fixed buffers cannot move, so they go first.
            if buffers[n].fixed.is_some() { u64::MAX } else { highest }
        };
        let mut ranked: Vec<(u64, usize)> = (0..buffers.len()).map(|n| (highest(n), n)).collect();
        ranked.sort_unstable_by_key(|&(load, n)| (Reverse(load), n));
        let (loads, order) = ranked.into_iter().unzip();
        Self { search, order, loads, attempts: 0, plans: HashMap::new() }
    }

    /// Returns the number of buffers in a core of at least `wanted`: buffers of equal load stay together.
    fn end(&self, wanted: usize) -> usize {
        match self.loads.get(wanted.saturating_sub(1)) {
            Some(&load) => self.loads.partition_point(|&other| other >= load),
            None => self.order.len(),
        }
    }

    /// Returns whether the first core has at most half of the buffers.
    pub(super) fn several(&self) -> bool {
        self.end(FIRST) <= self.order.len() / 2
    }

    /// Plans all cores, offers the plan of the last to `shared`, and returns the estimated nanoseconds used.
    pub(super) fn attempt(&mut self, shared: &Shared, random: &mut fastrand::Rng) -> u64 {
        self.attempts += 1;
        let effort = EFFORT * self.attempts;
        let mut cost = 0;
        let mut places: Vec<Option<u64>> = vec![None; self.order.len()];
        let mut goal = shared.bound.load(Ordering::Relaxed);
        // A core of all buffers would be the instance itself.
        let first = self.end(FIRST << random.u8(..3));
        let mut end = if first <= self.order.len() / 2 { first } else { self.end(FIRST) };
        let growth = [5, 6, 8][random.usize(..3)];
        let mut known = 0;
        loop {
            let part = shared.instance.part(&self.order[..end]);
            let found = if known == 0 && part.is_plain() {
                Some(self.first_core(shared, &part, effort, random, &mut cost))
            } else {
                let partial: Vec<Option<u64>> = self.order[..end].iter().map(|&n| places[n]).collect();
                larger_core(shared, &part, &partial, (goal, 3 * effort), random, &mut cost)
            };
            let Some(offsets) = found else { break };
            goal = goal.max(part.peak(&offsets));
            if goal >= shared.peak.load(Ordering::Relaxed) || shared.deadline.passed() {
                break;
            }
            for (&n, &offset) in self.order[..end].iter().zip(&offsets) {
                places[n] = Some(offset);
            }
            if end == self.order.len() {
                shared.offer(places.into_iter().flatten().collect());
                break;
            }
            known = end;
            end = self.end(growth * end / 4);
        }
        cost
    }

    /// Plans the first core of plain rectangles like a separate instance, from its best plan so far.
    fn first_core(
        &mut self,
        shared: &Shared,
        part: &Instance,
        effort: u64,
        random: &mut fastrand::Rng,
        cost: &mut u64,
    ) -> Vec<u64> {
        // The end of its search must not end the whole search.
        let deadline = shared.deadline.within(Duration::MAX);
        let inner = Shared::new(part, deadline, None, shared.bound.load(Ordering::Relaxed), None);
        if let Some(offsets) = self.plans.remove(&part.len()) {
            inner.offer(offsets);
        }
        *cost += (self.search)(&inner, effort, random.u64(..), &shared.deadline);
        let offsets = std::mem::take(&mut inner.best().0);
        self.plans.insert(part.len(), offsets.clone());
        offsets
    }
}

/// Plans a core around the places in `partial`, or a core that is not only rectangles; `None` if time ran out.
fn larger_core(
    shared: &Shared,
    part: &Instance,
    partial: &[Option<u64>],
    (goal, effort): (u64, u64),
    random: &mut fastrand::Rng,
    cost: &mut u64,
) -> Option<Vec<u64>> {
    let deadline = &shared.deadline;
    let conflicts = Conflicts::within(part, deadline)?;
    let pairs = 16 * Conflicts::count(part) + 1;
    let mut best: Option<(u64, Vec<u64>)> = None;
    for order in [Order::Area, Order::Length, Order::Size, Order::Conflicts] {
        // Placed buffers keep their places, so only the order of the others matters.
        let order = greedy::ordered(part, &conflicts, order, Some((0.1, random.u64(..))));
        let fit = if random.bool() { Fit::First } else { Fit::Best };
        let offsets = greedy::complete(part, &conflicts, partial, &order, (fit, u64::MAX), deadline)?;
        *cost += pairs;
        let peak = part.peak(&offsets);
        if best.as_ref().is_none_or(|&(least, _)| peak < least) {
            best = Some((peak, offsets));
        }
        if peak <= goal {
            break;
        }
    }
    let (mut peak, mut offsets) = best?;
    let mut repair = Repair::new(part, &conflicts, goal, offsets.clone(), random.u64(..));
    let mut more = true;
    while more && 40 * repair.work() < effort {
        more = repair.run(10, deadline);
        let reached = part.peak(repair.offsets());
        if reached < peak {
            (peak, offsets) = (reached, repair.offsets().to_vec());
        }
    }
    *cost += 40 * repair.work();
    Some(offsets)
}

#[cfg(test)]
mod tests {
    use super::super::first_plan;
    use super::super::portfolio::plan_core;
    use super::*;
    use crate::bounds::lower_bound;
    use crate::model::Buffer;
    use crate::validate::validate;

    #[test]
    fn what_lives_through_the_highest_moment_comes_first() {
        let lives = [(1, 0, 2), (2, 1, 4), (8, 3, 6), (4, 5, 9), (1, 8, 9)];
        let buffers = lives.iter().map(|&(size, start, end)| Buffer::new("", size, start, end));
        let mut buffers: Vec<Buffer> = buffers.collect();
        let cores = Cores::new(&Instance::unchecked(buffers.clone()), plan_core);
        // The highest loads during their lives: 3, 10, 12, 12, 5.
        assert_eq!((cores.order.clone(), cores.loads.clone()), (vec![2, 3, 1, 4, 0], vec![12, 12, 10, 5, 3]));
        assert_eq!([0, 1, 2, 3, 9].map(|wanted| cores.end(wanted)), [2, 2, 2, 3, 5]);
        buffers[0].fixed = Some(0);
        assert_eq!(Cores::new(&Instance::unchecked(buffers), plan_core).order, [0, 2, 3, 1, 4]);
    }

    /// One moment of high load among many of low load.
    #[test]
    fn a_single_peak_is_planned_at_its_bound() {
        let mut random = fastrand::Rng::with_seed(5);
        let buffers = (0..2000).map(|n| {
            let near = n % 8 == 0;
            let start = if near { 1000 - random.i64(0..60) } else { random.i64(0..2000) };
            let size = 2_f64.powf(4.0 + 10.0 * random.f64()) as u64;
            Buffer { align: 64, ..Buffer::new("", size, start, start + 1 + random.i64(0..60)) }
        });
        let instance = Instance::unchecked(buffers.collect());
        let bound = lower_bound(&instance).bytes;
        let shared = Shared::new(&instance, Deadline::never(), None, bound, None);
        shared.offer(first_plan(&shared));
        let before = shared.peak.load(Ordering::Relaxed);
        let mut cores = Cores::new(&instance, plan_core);
        assert!(cores.several());
        assert!(cores.attempt(&shared, &mut random) > 0);
        let peak = shared.peak.load(Ordering::Relaxed);
        validate(&instance, &shared.best().0, None).unwrap();
        assert!(peak - bound < (before - bound) / 2, "{bound} {peak} {before}");
    }
}
