//! Makes greedy plans in many ways and repairs the best; threads share the work.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::cores::Cores;
use super::{Shared, first_plan};
use crate::boxes::{Boxes, Join, boxes, chains};
use crate::deadline::Deadline;
use crate::greedy::descent::{Descent, Prefer, descend};
use crate::greedy::repair::Repair;
use crate::greedy::{self, Conflicts, Fit, LISTED, Order};
use crate::model::Instance;

/// Largest number of buffers for which an instance is packed into boxes.
const PACKED: usize = 300_000;

/// Work for plans from the highest moments outwards once such a plan was the best, as a multiple of the work for descents.
const FAVOUR: u64 = 4;

/// The boxes of an instance, packed when first needed.
#[derive(Default)]
pub(super) struct Packed {
    forced: OnceLock<Option<Boxes>>,
    longest: OnceLock<Option<Boxes>>,
    chains: OnceLock<Option<Boxes>>,
}

impl Packed {
    /// Returns the boxes; `None` if there was no time to pack them.
    pub(super) fn get(&self, instance: &Instance, join: Join, deadline: &Deadline) -> Option<&Boxes> {
        let slot = match join {
            Join::Forced => &self.forced,
            Join::Longest => &self.longest,
        };
        slot.get_or_init(|| boxes(instance, join, 0.0, deadline)).as_ref()
    }

    /// Returns the instance with rectangles only; `None` if that is impossible.
    fn chains(&self, instance: &Instance) -> Option<&Boxes> {
        self.chains.get_or_init(|| chains(instance)).as_ref()
    }
}

/// A kind of descent.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    join: Option<Join>,
    prefer: Prefer,
    mirror: bool,
    aligned: bool,
    noise: u8,
}

/// The planner from the highest moments outwards.
enum Outwards {
    Never,
    /// Not created yet.
    Wanted,
    From(Cores),
}

/// One thread's share of the work.
pub(super) struct Portfolio<'a> {
    shared: &'a Shared<'a>,
    packed: &'a Packed,
    random: fastrand::Rng,
    /// Whether conflicts are listed, so that there are rules and repairs besides descents.
    listed: bool,
    plain: bool,
    /// Whether there are several alignments.
    mixed: bool,
    /// Rules that remain to be tried once.
    rules: Vec<(Order, Fit)>,
    share: (usize, usize),
    repair: Option<Repair<'a>>,
    /// The kinds of descent that made the best plans, with their peaks.
    elite: Vec<(u64, Way)>,
    cores: Outwards,
    /// The most work for `cores`, as a multiple of the work for descents.
    favour: u64,
    /// The approximate cost in nanoseconds of noisy descents, rules, repairs and cores. It is counted, not timed, so that with one thread
    /// the seed determines the plan.
    spent: [u64; 4],
    pairs: u64,
}

impl<'a> Portfolio<'a> {
    /// Creates share number `share.0` of `share.1`.
    pub(super) fn new(shared: &'a Shared<'a>, packed: &'a Packed, share: (usize, usize), seed: u64) -> Self {
        let rules = Order::ALL.into_iter().rev().flat_map(|order| [(order, Fit::First), (order, Fit::Best)]);
        let rules = rules.skip(share.0).step_by(share.1).collect();
        let pairs = Conflicts::count(shared.instance);
        Self {
            shared,
            packed,
            random: fastrand::Rng::with_seed(seed),
            listed: pairs <= LISTED,
            plain: shared.instance.is_plain(),
            mixed: shared.instance.buffers().windows(2).any(|pair| pair[0].align != pair[1].align),
            rules,
            share,
            repair: None,
            elite: Vec::new(),
            cores: Outwards::Wanted,
            favour: 1,
            spent: [0; 4],
            pairs,
        }
    }

    /// Disables the plans from the highest moments outwards.
    fn without_cores(mut self) -> Self {
        self.cores = Outwards::Never;
        self
    }

    /// Runs the cheap methods: descents without noise, and the rules if there are few conflicts.
    pub(super) fn brief(&mut self) {
        let (first, step) = self.share;
        let (left, long) = (Prefer::Leftmost, Prefer::Longest);
        let ways = [(left, false), (left, true), (long, false), (long, true)];
        let descent = |aligned| ways.map(|(prefer, mirror)| Descent { prefer, mirror, aligned, noise: None });
        let aligned = descent(true).into_iter().filter(|_| self.mixed);
        // For rectangles, the first plan was already the first of these descents.
        let unaligned = descent(false).into_iter().skip(self.plain.into());
        for descent in unaligned.chain(aligned).skip(first).step_by(step) {
            if !self.over() {
                self.descend(None, descent);
            }
        }
        if self.listed && !self.over() {
            self.core();
        }
        while self.pairs <= 10_000_000 && !self.over() {
            let Some(rule) = self.rules.pop() else { break };
            self.rule(rule, None);
        }
    }

    /// Returns the approximate work done so far in nanoseconds.
    pub(super) fn cost(&self) -> u64 {
        self.spent.iter().sum()
    }

    fn over(&self) -> bool {
        self.shared.deadline.passed()
    }

    /// Makes one attempt of the kind that has cost the least so far.
    pub(super) fn step(&mut self) {
        let n = self.shared.instance.len() as u64;
        let [descents, rules, repairs, cores] = self.spent;
        // With many conflicts, rules cost the most and seldom win.
        let (share, first) = if self.pairs > 10_000_000 { (8, 16 * self.pairs) } else { (3, 0) };
        if self.listed && share * rules + first <= descents {
            self.spent[1] += 16 * self.pairs + 2000 * n + 1;
            let rule = match self.rules.pop() {
                Some(rule) => rule,
                None => return self.noisy_rule(),
            };
            self.rule(rule, None);
        } else if self.listed && repairs <= descents {
            let repaired = self.shared.repair(&mut self.repair, &mut self.random);
            self.spent[2] += 40 * repaired + n;
        } else if self.listed && cores / self.favour <= descents && !matches!(self.cores, Outwards::Never) {
            self.core();
        } else {
            self.noisy_descent();
        }
    }

    /// Makes a descent and returns its peak; `None` if there was no time.
    fn descend(&self, join: Option<Join>, descent: Descent) -> Option<u64> {
        let deadline = &self.shared.deadline;
        let instance = self.shared.instance;
        let boxes = match join {
            Some(join) => Some(self.packed.get(instance, join, deadline)?),
            None if self.plain => None,
            None => Some(self.packed.chains(instance)?),
        };
        let offsets = match boxes {
            Some(boxes) => boxes.unpack(&descend(&boxes.instance, descent, deadline)?),
            None => descend(instance, descent, deadline)?,
        };
        let peak = instance.peak(&offsets);
        self.shared.offer(offsets);
        Some(peak)
    }

    /// Makes a random descent, or another of a kind that did well.
    fn noisy_descent(&mut self) {
        let random = &mut self.random;
        let way = match random.choice(&self.elite) {
            Some(&(_, way)) if random.u8(..3) > 0 => way,
            _ => Way {
                join: [None, Some(Join::Forced), Some(Join::Longest)]
                    [random.usize(..if self.plain && self.shared.instance.len() <= PACKED { 3 } else { 1 })],
                prefer: [Prefer::Leftmost, Prefer::Longest][random.usize(..2)],
                mirror: random.bool(),
                aligned: self.mixed && random.u8(..4) > 0,
                noise: 2 << random.u8(..7),
            },
        };
        let Way { join, prefer, mirror, aligned, noise } = way;
        // An aligned descent searches many sets of buffers.
        self.spent[0] += if aligned { 20_000 } else { 2000 } * self.shared.instance.len() as u64;
        let noise = Some((noise, random.u64(..)));
        if let Some(peak) = self.descend(join, Descent { prefer, mirror, aligned, noise }) {
            match self.elite.iter_mut().find(|(_, other)| *other == way) {
                Some((best, _)) => *best = peak.min(*best),
                None => self.elite.push((peak, way)),
            }
            self.elite.sort_by_key(|&(peak, _)| peak);
            self.elite.truncate(4);
        }
    }

    fn rule(&self, (order, fit): (Order, Fit), noise: Option<(f64, u64)>) {
        if let Some(conflicts) = self.shared.conflicts() {
            let order = greedy::ordered(self.shared.instance, conflicts, order, noise);
            self.shared.place(conflicts, &order, fit);
        }
    }

    /// Makes a plan by a rule with noise.
    pub(super) fn noisy_rule(&mut self) {
        if self.plain && self.shared.instance.len() <= PACKED && self.random.bool() {
            return self.squeeze();
        }
        let (rule, noise) = if self.plain {
            let order = [Order::Conflicts, Order::Size, Order::Length][self.random.usize(..3)];
            ((order, Fit::Best), [0.005, 0.02, 0.1])
        } else {
            let fit = [Fit::First, Fit::Best][self.random.usize(..2)];
            ((Order::ALL[self.random.usize(..Order::ALL.len())], fit), [0.02, 0.1, 0.4])
        };
        let noise = (noise[self.random.usize(..3)], self.random.u64(..));
        self.rule(rule, Some(noise));
    }

    /// Packs boxes with some waste, and places their buffers again in the order of their offsets.
    fn squeeze(&mut self) {
        let instance = self.shared.instance;
        let waste = 0.005 * 2_f64.powf(5.0 * self.random.f64());
        let deadline = &self.shared.deadline;
        let Some(boxes) = boxes(instance, Join::Longest, waste, deadline) else { return };
        let prefer = [Prefer::Leftmost, Prefer::Longest][self.random.usize(..2)];
        let (mirror, noise) = (self.random.bool(), Some((1, self.random.u64(..))));
        let descent = Descent { prefer, mirror, aligned: self.mixed, noise };
        let Some(offsets) = descend(&boxes.instance, descent, deadline) else { return };
        let offsets = boxes.unpack(&offsets);
        let mut order: Vec<usize> = (0..instance.len()).collect();
        order.sort_by_key(|&n| offsets[n]);
        if let Some(conflicts) = self.shared.conflicts() {
            self.shared.place(conflicts, &order, Fit::First);
        }
    }

    /// Plans the moments of the highest load first, unless the first core has most of the buffers.
    fn core(&mut self) {
        if matches!(self.cores, Outwards::Wanted) {
            let cores = Cores::new(self.shared.instance, plan_core);
            self.cores = if cores.several() { Outwards::From(cores) } else { Outwards::Never };
        }
        let Outwards::From(cores) = &mut self.cores else { return };
        let before = self.shared.peak.load(Ordering::Relaxed);
        self.spent[3] += cores.attempt(self.shared, &mut self.random) + 1;
        if self.shared.peak.load(Ordering::Relaxed) < before {
            self.favour = FAVOUR;
        }
    }
}

/// Plans a core like a separate instance, without cores in it; see [`Search`](super::cores::Search).
pub(super) fn plan_core(inner: &Shared, effort: u64, seed: u64, deadline: &Deadline) -> u64 {
    let packed = Packed::default();
    let mut portfolio = Portfolio::new(inner, &packed, (0, 1), seed).without_cores();
    if inner.peak.load(Ordering::Relaxed) == u64::MAX {
        inner.offer(first_plan(inner));
        portfolio.brief();
    }
    while portfolio.cost() < effort && !inner.deadline.passed() && !deadline.passed() {
        portfolio.step();
    }
    portfolio.cost()
}
