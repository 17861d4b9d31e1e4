//! Plain rectangles: greedy plans and exact searches side by side.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Shared;
use crate::bounds;
use crate::exact::Limits;
use crate::exact::skyline::{Answer, Order, Pick, Problem, Search, Strategy};
use crate::greedy::descent::{Descent, Prefer, descend};
use crate::greedy::{self, Baseline, Conflicts, Fit, baseline};
use crate::model::Instance;
use crate::sections::Sections;

/// Instances up to this size are searched exactly as a whole.
const SEARCHED: usize = 12_000;

/// Bytes of the states of one search's nodes, at most.
const SEARCH_BYTES: usize = 1 << 30;

/// Conflicts up to this number are listed.
const LISTED: u64 = 80_000_000;

/// Plain rectangles.
pub(super) fn plain(shared: &Shared, threads: usize, seed: u64) {
    let instance = shared.instance;
    // The first plan: in milliseconds for all but the largest.
    let first = Descent { prefer: Prefer::Leftmost, mirror: false, noise: None };
    let limits = Limits { nodes: u64::MAX, deadline: None, stop: &AtomicBool::new(false) };
    shared.offer(descend(instance, first, &limits).expect("nobody stops it"));
    let done = || shared.stop.load(Ordering::Relaxed);
    if done() {
        return;
    }
    let small = instance.len() <= SEARCHED;
    let scaled = small.then(|| Scaled::new(instance)).flatten();
    // A search keeps a state for every buffer on its path.
    let state = scaled.as_ref().map_or(0, |scaled| 12 * scaled.problem.sections + 4 * instance.len());
    let searches = SEARCH_BYTES / (state * instance.len()).max(1);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let scaled = &scaled;
            let work = move || match scaled {
                Some(scaled) if thread < searches => {
                    if thread == threads - 1 {
                        heuristics(shared, thread, 1, true);
                    }
                    descend_exactly(shared, scaled, thread as u64, seed);
                }
                _ => heuristics(shared, thread, threads, false),
            };
            // The search's depth is the number of buffers.
            let stack = (8 << 20) + instance.len().min(SEARCHED) * 4096;
            std::thread::Builder::new()
                .stack_size(stack)
                .spawn_scoped(scope, work)
                .expect("a thread can be made");
        }
        // The threads stop by themselves; this one only tells the watcher that time passes.
    });
}

/// Greedy plans, shared out among the threads; the cheap ones first.
fn heuristics(shared: &Shared, thread: usize, threads: usize, brief: bool) {
    let instance = shared.instance;
    let done = || {
        shared.check();
        shared.stop.load(Ordering::Relaxed)
    };
    let mut turn = 0;
    let mut mine = || {
        turn += 1;
        (turn - 1) % threads == thread % threads
    };
    let descent = |prefer, mirror, noise| {
        if let Some(offsets) = descend(instance, Descent { prefer, mirror, noise }, &shared.limits(u64::MAX))
        {
            shared.offer(offsets);
        }
    };
    for (prefer, mirror) in [(Prefer::Leftmost, true), (Prefer::Longest, false), (Prefer::Longest, true)] {
        if mine() && !done() {
            descent(prefer, mirror, None);
        }
    }
    if done() {
        return;
    }
    let listed = Conflicts::count(instance) <= if brief { 1_000_000 } else { LISTED };
    let conflicts = if listed { shared.conflicts() } else { &Conflicts::default() };
    // The rules of others first, so that nothing here is ever worse than they are.
    for rule in Baseline::ALL {
        if listed && mine() && !done() {
            shared.offer(baseline(instance, conflicts, rule));
        }
    }
    for order in [greedy::Order::Conflicts, greedy::Order::Area, greedy::Order::Length, greedy::Order::Start]
    {
        if listed && mine() && !done() {
            let order = greedy::ordered(instance, conflicts, order, None);
            shared.offer(greedy::place(instance, conflicts, &order, Fit::Best));
        }
    }
    for round in 1.. {
        if brief || done() {
            return;
        }
        let seed = round * 64 + thread as u64;
        let prefer = if round % 3 == 0 { Prefer::Longest } else { Prefer::Leftmost };
        descent(prefer, round % 2 == 0, Some((4 << (round % 6), seed)));
        if listed && round % 8 == 0 && !done() {
            let order = [greedy::Order::Conflicts, greedy::Order::Size, greedy::Order::Length]
                [round as usize / 8 % 3];
            let noise = [0.005, 0.02, 0.1][round as usize / 24 % 3];
            let order = greedy::ordered(instance, conflicts, order, Some((noise, seed)));
            shared.offer(greedy::place(instance, conflicts, &order, Fit::Best));
        }
    }
}

/// An instance in the units of the exact search.
struct Scaled {
    problem: Problem,
    /// Bytes of a unit.
    unit: u64,
    /// False if sizes were rounded up to units: then nothing is proved.
    exact: bool,
}

impl Scaled {
    fn new(instance: &Instance) -> Option<Self> {
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
        Some(Self { problem, unit, exact })
    }

    fn mirrored(&self) -> Problem {
        let count = self.problem.sections as u32;
        let turn = |sections: &[u32]| sections.iter().map(|s| count - s).collect();
        Problem { first: turn(&self.problem.last), last: turn(&self.problem.first), ..self.problem.clone() }
    }
}

/// The strategies, roughly by how often they are the first to succeed.
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

/// Searches at the lower bound, then ever closer to the best plan, with growing budgets.
fn descend_exactly(shared: &Shared, scaled: &Scaled, thread: u64, seed: u64) {
    let mirrored = (thread % 2 == 1).then(|| scaled.mirrored());
    let problem = mirrored.as_ref().unwrap_or(&scaled.problem);
    let n = problem.size.len() as u64;
    let mut search = Search::new(problem, 0);
    let mut most = 0;
    let conflicts = shared.conflicts();
    let orders = [greedy::Order::Area, greedy::Order::Size]
        .map(|order| greedy::ordered(shared.instance, conflicts, order, None));
    let mut budget = 2 * n + 500;
    let mut turn = 0_u64;
    // In units: goals are tried in `low..=high`.
    for round in 0_u64.. {
        let mut floor = 0;
        // At every goal a few strategies, in turn.
        loop {
            let low = (shared.bound.load(Ordering::Relaxed).div_ceil(scaled.unit)).max(floor);
            let best = shared.peak.load(Ordering::Relaxed);
            let high = if shared.capacity < u64::MAX {
                shared.capacity / scaled.unit
            } else {
                best.saturating_sub(1) / scaled.unit
            };
            if low > high || shared.stop.load(Ordering::Relaxed) {
                break;
            }
            let goal = match floor {
                // With a capacity there is one goal, and it is the easiest.
                _ if shared.capacity < u64::MAX => high,
                0 if n <= 4000 || round > 2 => low,
                _ => low + (high - low) / 2,
            };
            let mut found = None;
            let tries = STRATEGIES.len()
                / if n > 1000 {
                    4
                } else if floor > 0 {
                    2
                } else {
                    1
                };
            for _ in 0..tries {
                let (pick, order) = STRATEGIES[(turn % STRATEGIES.len() as u64) as usize];
                let first_time = turn < STRATEGIES.len() as u64 && thread == 0;
                let chance = if first_time { 0 } else { (seed ^ turn << 8 ^ thread).max(1) };
                turn += 1;
                search.aim(u32::try_from(goal).unwrap_or(u32::MAX / 2));
                let before = search.nodes;
                let answer =
                    search.run(Strategy { order, section: pick, seed: chance }, &shared.limits(budget));
                shared.nodes.fetch_add(search.nodes - before, Ordering::Relaxed);
                if answer == Answer::Unknown && search.placed_area() > most {
                    most = search.placed_area();
                    // What it could not place goes wherever there is room, or on top.
                    let units = |offset: Option<u32>| offset.map(|offset| u64::from(offset) * scaled.unit);
                    let partial: Vec<Option<u64>> = search.partial().into_iter().map(units).collect();
                    for order in &orders {
                        shared.offer(greedy::complete(
                            shared.instance,
                            conflicts,
                            &partial,
                            order,
                            Fit::Best,
                        ));
                    }
                }
                match answer {
                    Answer::Unknown => {}
                    other => {
                        found = Some(other);
                        break;
                    }
                }
                if shared.stop.load(Ordering::Relaxed)
                    || shared.peak.load(Ordering::Relaxed) / scaled.unit <= goal
                {
                    break;
                }
            }
            match found {
                Some(Answer::Found(offsets)) => {
                    shared.offer(offsets.iter().map(|&offset| u64::from(offset) * scaled.unit).collect());
                }
                Some(Answer::None) => {
                    if scaled.exact {
                        shared.raise_bound((goal + 1) * scaled.unit);
                    }
                    floor = goal + 1;
                }
                _ if shared.stop.load(Ordering::Relaxed) => return,
                _ => {
                    // Between this goal and the best: the rest of the way is halved; near the best the round ends.
                    floor = goal + 1 + (high - goal) / 8;
                    if shared.capacity < u64::MAX {
                        break;
                    }
                }
            }
        }
        shared.check();
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        if round > 0
            && !scaled.exact
            && shared.peak.load(Ordering::Relaxed) <= shared.bound.load(Ordering::Relaxed)
        {
            return;
        }
        budget = budget.saturating_add(budget / 2);
    }
}
