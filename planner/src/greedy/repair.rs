//! Large-neighbourhood search: removes some of a plan's buffers and places them again in another order.
//!
//! The removed buffers surround a buffer that ends above the goal: those in its way that lie above some height or within some time, or a
//! few at random (Shaw, *Using constraint programming and local search methods to solve vehicle routing problems*, 1998). The change is
//! kept only if the excess over the goal, summed over all buffers, does not grow.

use super::{Conflicts, Fit, Order, Placer};
use crate::deadline::{Deadline, Watch};
use crate::model::Instance;

/// A search that lowers a plan's peak by removing buffers and placing them again.
pub struct Repair<'a> {
    instance: &'a Instance,
    conflicts: &'a Conflicts,
    goal: u64,
    offsets: Vec<u64>,
    out: Vec<bool>,
    random: fastrand::Rng,
    work: u64,
    // Scratch.
    freed: Vec<usize>,
    before: Vec<u64>,
    placer: Placer<'a>,
}

/// Largest number of buffers removed at once, and of conflicts that they may have in total.
const MOST: usize = 400;
const WORK: usize = 200_000;

impl<'a> Repair<'a> {
    /// Starts from the valid plan `offsets`; fixed buffers stay. The search ends at a peak of `goal` bytes.
    pub fn new(
        instance: &'a Instance,
        conflicts: &'a Conflicts,
        goal: u64,
        offsets: Vec<u64>,
        seed: u64,
    ) -> Self {
        Self {
            instance,
            conflicts,
            goal,
            out: vec![false; offsets.len()],
            offsets,
            random: fastrand::Rng::with_seed(seed),
            work: 0,
            freed: Vec::new(),
            before: Vec::new(),
            placer: Placer::new(instance, conflicts),
        }
    }

    /// Returns the number of conflicts visited so far: a measure of the time used.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Returns the plan so far.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    fn moves(&self, n: usize) -> bool {
        self.instance.buffers()[n].fixed.is_none()
    }

    fn over(&self, n: usize) -> u64 {
        (self.offsets[n] + self.instance.buffers()[n].size).saturating_sub(self.goal)
    }

    /// Makes `steps` attempts; returns false if the goal is reached or `deadline` passes first.
    ///
    /// An attempt takes O(n) to find the buffers above the goal, and O(d log d) for each removed buffer with d conflicts.
    pub fn run(&mut self, steps: u32, deadline: &Deadline) -> bool {
        for _ in 0..steps {
            // An attempt moves at most `MOST` buffers with `WORK` conflicts: a few milliseconds.
            if deadline.passed() {
                return false;
            }
            let above: Vec<usize> =
                (0..self.offsets.len()).filter(|&n| self.over(n) > 0 && self.moves(n)).collect();
            let Some(&worst) = self.random.choice(&above) else { return false };
            self.choose(worst);
            self.attempt();
        }
        true
    }

    /// Fills `freed` with the buffers around `worst` to remove.
    fn choose(&mut self, worst: usize) {
        let buffers = self.instance.buffers();
        self.freed.clear();
        self.freed.push(worst);
        let (start, end) = (buffers[worst].start, buffers[worst].end);
        let height = self.random.u64(0..=self.goal);
        let size = self.random.u64(..=buffers[worst].size);
        let margin = (buffers[worst].steps() >> self.random.u8(1..6)) as i64;
        let (start, end) = (start.saturating_sub(margin), end.saturating_add(margin));
        let share = [0.02, 0.1, 0.3, 1.0][self.random.usize(..4)];
        let way = self.random.u8(..4);
        let Self { conflicts, offsets, random, freed, .. } = self;
        conflicts.each(worst, |n| {
            let buffer = &buffers[n];
            let chosen = match way {
                0 => offsets[n] >= height,
                1 => buffer.start >= start && buffer.end <= end,
                2 => buffer.size >= size,
                _ => true,
            };
            if chosen && buffer.fixed.is_none() && random.f64() < share {
                freed.push(n);
            }
        });
        let tail = &mut self.freed[1..];
        self.random.shuffle(tail);
        let mut work = 0;
        let affordable = self.freed.iter().take_while(|&&n| {
            work += self.conflicts.degree(n);
            work <= WORK
        });
        let count = affordable.count().max(1);
        self.freed.truncate(count.min(MOST));
    }

    /// Removes the buffers in `freed` and places them again; restores them if the plan got worse.
    fn attempt(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        // Squared, since one buffer far above the goal is worse than two that share its excess.
        let cost = |this: &Self| freed.iter().map(|&n| (this.over(n) as f64).powi(2)).sum::<f64>();
        let old = cost(self);
        self.before.clear();
        self.before.extend(freed.iter().map(|&n| self.offsets[n]));
        freed.iter().for_each(|&n| self.out[n] = true);
        let fit = if self.random.bool() { Fit::First } else { Fit::Best };
        for n in self.order(&freed) {
            self.put(n, fit);
        }
        if cost(self) > old {
            for (&n, &offset) in freed.iter().zip(&self.before) {
                self.offsets[n] = offset;
            }
        }
        self.freed = freed;
    }

    fn order(&mut self, freed: &[usize]) -> Vec<usize> {
        let (rule, noise) = (usize::from(self.random.u8(..5)), [0.0, 0.05, 0.5][self.random.usize(..3)]);
        let mut keyed: Vec<(f64, usize)> = Vec::with_capacity(freed.len());
        for &n in freed {
            let key = match [Order::Size, Order::Length, Order::Area, Order::Conflicts].get(rule) {
                Some(order) => order.key(self.instance, self.conflicts, n),
                // By their previous offsets, the lowest first.
                None => 1.0 / (1.0 + self.offsets[n] as f64),
            };
            keyed.push((key * (1.0 + noise * (self.random.f64() - 0.5)), n));
        }
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
        keyed.into_iter().map(|(_, n)| n).collect()
    }

    fn put(&mut self, n: usize, fit: Fit) {
        self.work += self.conflicts.degree(n) as u64;
        let (offsets, out) = (&self.offsets, &self.out);
        // Only `run` looks at the clock.
        let never = &Deadline::never();
        let place = self.placer.place(n, offsets, |other| !out[other], fit, &mut Watch::new(never));
        self.offsets[n] = place.unwrap_or(self.offsets[n]);
        self.out[n] = false;
    }
}
