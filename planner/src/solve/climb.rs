//! Takes turns between exact searches at ever lower goals, with growing budgets.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use super::Shared;
use crate::bounds;
use crate::boxes::Boxes;
use crate::deadline::Deadline;
use crate::exact::Answer;
use crate::exact::skyline::{Order, Pick, Problem, Search, Strategy};
use crate::greedy::{self, Conflicts, Fit};
use crate::model::Instance;
use crate::sections::Sections;

/// An instance in the units of the exact search.
pub(super) struct Scaled<'a> {
    problem: Problem,
    mirrored: Problem,
    instance: &'a Instance,
    conflicts: OnceLock<Option<Conflicts>>,
    /// The boxes, if the buffers are boxes; a failure then proves nothing.
    boxes: Option<&'a Boxes>,
    /// Bytes per unit.
    unit: u64,
    /// Whether sizes are whole units; if they were rounded up, a failure proves nothing.
    exact: bool,
}

impl<'a> Scaled<'a> {
    /// Converts an instance to units; `None` if it does not fit the search's 32 bits.
    pub(super) fn new(instance: &'a Instance, boxes: Option<&'a Boxes>) -> Option<Self> {
        let buffers = instance.buffers();
        let sections = Sections::new(buffers.iter().map(|buffer| (buffer.start, buffer.end)));
        let common =
            buffers.iter().fold(0, |unit, buffer| bounds::gcd(bounds::gcd(unit, buffer.size), buffer.align));
        let mut unit = common.max(1);
        let total: u64 = buffers.iter().map(|buffer| buffer.size + buffer.align).sum();
        let mut exact = true;
        let aligned = buffers.iter().fold(1, |unit, buffer| buffer.align.max(unit));
        while total / unit > 1 << 30 {
            exact = false;
            unit *= 2;
        }
        if !exact {
            unit = unit.next_multiple_of(aligned);
        }
        let scale = |bytes: u64| u32::try_from(bytes.div_ceil(unit)).ok();
        let problem = Problem {
            first: sections.first,
            last: sections.last,
            size: buffers.iter().map(|buffer| scale(buffer.size)).collect::<Option<_>>()?,
            align: buffers.iter().map(|buffer| scale(buffer.align)).collect::<Option<_>>()?,
            sections: sections.count,
        };
        let count = problem.sections as u32;
        let turn = |sections: &[u32]| sections.iter().map(|s| count - s).collect();
        let mirrored = Problem { first: turn(&problem.last), last: turn(&problem.first), ..problem.clone() };
        Some(Self { problem, mirrored, instance, conflicts: OnceLock::new(), boxes, unit, exact })
    }

    /// Returns the bytes that a search keeps for the nodes on its path.
    pub(super) fn bytes(&self) -> usize {
        (12 * self.problem.sections + 4 * self.instance.len()) * self.instance.len()
    }

    /// Returns all conflicts, listed when first needed; `None` if there was no time.
    fn conflicts(&self, deadline: &Deadline) -> Option<&Conflicts> {
        self.conflicts.get_or_init(|| Conflicts::within(self.instance, deadline)).as_ref()
    }

    fn offer(&self, shared: &Shared, offsets: Vec<u64>) {
        shared.offer(match self.boxes {
            Some(boxes) => boxes.unpack(&offsets),
            None => offsets,
        });
    }
}

/// The strategies, roughly in order of how often they are the first to succeed.
const STRATEGIES: [(Pick, Order); 12] = [
    (Pick::Lowest, Order::Area),
    (Pick::Narrowest, Order::Total),
    (Pick::Fewest, Order::Size),
    (Pick::LowestLeft, Order::Length),
    (Pick::Lowest, Order::Length),
    (Pick::Fewest, Order::Length),
    (Pick::Narrowest, Order::Area),
    (Pick::Lowest, Order::Size),
    (Pick::Narrowest, Order::Length),
    (Pick::Fewest, Order::Area),
    (Pick::LowestLeft, Order::Area),
    (Pick::Lowest, Order::Total),
];

/// One thread's searches of one instance.
pub(super) struct Climb<'a> {
    shared: &'a Shared<'a>,
    scaled: &'a Scaled<'a>,
    search: Search<'a>,
    orders: [Vec<usize>; 2],
    conflicts: &'a Conflicts,
    thread: u64,
    seed: u64,
    round: u64,
    turn: u64,
    budget: u64,
    /// The largest area (bytes × sections) that a search placed before it gave up.
    most: u64,
    /// The proven lower bound on this instance's plans, in units.
    proved: u64,
}

impl<'a> Climb<'a> {
    /// Prepares the searches; odd threads run time backwards. `None` if no time is left.
    pub(super) fn new(
        shared: &'a Shared<'a>,
        scaled: &'a Scaled<'a>,
        thread: u64,
        seed: u64,
    ) -> Option<Self> {
        let conflicts = scaled.conflicts(&shared.deadline)?;
        let problem = if thread % 2 == 1 { &scaled.mirrored } else { &scaled.problem };
        let orders = [greedy::Order::Area, greedy::Order::Size]
            .map(|order| greedy::ordered(scaled.instance, conflicts, order, None));
        Some(Self {
            shared,
            scaled,
            search: Search::new(problem, 0),
            orders,
            conflicts,
            thread,
            seed,
            round: 0,
            turn: 0,
            budget: 2 * scaled.instance.len() as u64 + 500,
            most: 0,
            proved: 0,
        })
    }

    /// Returns the approximate work done so far in nanoseconds.
    pub(super) fn cost(&self) -> u64 {
        self.search.nodes * 4 * (self.scaled.problem.sections + self.scaled.instance.len()) as u64
    }

    /// Searches at the lower bound, then ever closer to the best plan. Returns false if nothing is left to find.
    pub(super) fn round(&mut self) -> bool {
        let (shared, unit, n) = (self.shared, self.scaled.unit, self.scaled.instance.len());
        // Goals are tried in `low..=high`, in units.
        let mut floor = 0;
        loop {
            let least = shared.bound.load(Ordering::Relaxed).div_ceil(unit).max(self.proved);
            let low = least.max(floor);
            let best = shared.peak.load(Ordering::Relaxed);
            let high = if shared.capacity < u64::MAX {
                shared.capacity / unit
            } else {
                best.saturating_sub(1) / unit
            };
            if least > high {
                // Every peak is a multiple of the unit, so the bound may be rounded up to a multiple.
                if self.scaled.exact && self.scaled.boxes.is_none() {
                    shared.raise_bound(shared.bound.load(Ordering::Relaxed).div_ceil(unit) * unit);
                }
                return false;
            }
            if low > high || shared.deadline.passed() {
                break;
            }
            let goal = match floor {
                // With a capacity there is only one goal, and it is the easiest.
                _ if shared.capacity < u64::MAX => high,
                0 if n <= 4000 || self.round > 2 => low,
                _ => low + (high - low) / 2,
            };
            let tries = STRATEGIES.len()
                / if n > 1000 {
                    4
                } else if floor > 0 {
                    2
                } else {
                    1
                };
            match self.strategies(goal, tries) {
                Answer::Found(offsets) => {
                    self.scaled
                        .offer(shared, offsets.iter().map(|&offset| u64::from(offset) * unit).collect());
                }
                Answer::None => {
                    if self.scaled.exact && self.scaled.boxes.is_none() {
                        shared.raise_bound((goal + 1) * unit);
                    }
                    self.proved = self.proved.max(goal + 1);
                }
                Answer::Unknown if shared.capacity < u64::MAX => break,
                // Raise the floor towards the best peak; the round ends near it.
                Answer::Unknown => floor = goal + 1 + (high.saturating_sub(goal)) / 8,
            }
        }
        shared.check();
        self.round += 1;
        self.budget = self.budget.saturating_add(self.budget / 2);
        true
    }

    /// Tries a few strategies in turn, until one has an answer.
    fn strategies(&mut self, goal: u64, tries: usize) -> Answer<u32> {
        let (shared, unit) = (self.shared, self.scaled.unit);
        for _ in 0..tries {
            let (pick, order) = STRATEGIES[(self.turn % STRATEGIES.len() as u64) as usize];
            let first_time = self.turn < STRATEGIES.len() as u64 && self.thread == 0;
            let chance = if first_time { 0 } else { (self.seed ^ self.turn << 8 ^ self.thread).max(1) };
            self.turn += 1;
            self.search.aim(u32::try_from(goal).unwrap_or(u32::MAX / 2));
            let before = self.search.nodes;
            let strategy = Strategy { order, section: pick, seed: chance };
            let answer = self.search.run(strategy, &shared.limits(self.budget));
            shared.nodes.fetch_add(self.search.nodes - before, Ordering::Relaxed);
            if answer != Answer::Unknown {
                return answer;
            }
            if self.search.placed_area() > self.most {
                self.most = self.search.placed_area();
                self.complete();
            }
            if shared.deadline.passed() || shared.peak.load(Ordering::Relaxed) / unit <= goal {
                break;
            }
        }
        Answer::Unknown
    }

    /// Places the buffers left by the search wherever there is room, or on top.
    fn complete(&self) {
        let units = |offset: Option<u32>| offset.map(|offset| u64::from(offset) * self.scaled.unit);
        let partial: Vec<Option<u64>> = self.search.partial().into_iter().map(units).collect();
        for order in &self.orders {
            let (instance, deadline) = (self.scaled.instance, &self.shared.deadline);
            let rule = (Fit::Best, self.shared.peak.load(Ordering::Relaxed));
            if let Some(offsets) = greedy::complete(instance, self.conflicts, &partial, order, rule, deadline)
            {
                self.scaled.offer(self.shared, offsets);
            }
        }
    }
}
