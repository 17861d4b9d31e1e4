//! The driver: bounds, heuristics, exact search; the best plan so far at any time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::bounds::{self, Bound};
use crate::exact::skyline::{Answer, Order, Pick, Problem, Search, Strategy};
use crate::exact::{Limits, general};
use crate::greedy::descent::{Descent, Prefer, descend};
use crate::greedy::{self, Conflicts, Fit};
use crate::model::Instance;
use crate::sections::Sections;

/// What a run is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that the plan must fit; `None`: as few as possible.
    pub capacity: Option<u64>,
    /// When to stop without an answer.
    pub time_limit: Duration,
    /// Number of threads; at least 1.
    pub threads: usize,
    /// Seed of all that is left to chance.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity: None, time_limit: Duration::from_secs(60), threads: 2, seed: 0 }
    }
}

/// What is known of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// No plan is smaller: proved.
    Optimal,
    /// The plan fits the capacity that was asked for.
    Fits,
    /// The best plan found; the lower bound says how far from the optimum it can be.
    Gap,
    /// No plan fits the capacity: proved. The plan is the best found.
    Infeasible,
    /// No plan was found that fits, and none was proved impossible. The plan is the best found.
    Inconclusive,
}

/// A plan, and what is known of it.
#[derive(Clone, Debug)]
pub struct Solution {
    /// One offset for each buffer, in bytes.
    pub offsets: Vec<u64>,
    /// The highest end of a buffer, in bytes.
    pub peak: u64,
    /// No plan has a lower peak: bytes.
    pub lower_bound: u64,
    /// The bound that needs no search, with its moment and buffers.
    pub bound: Bound,
    /// What this means.
    pub status: Status,
    /// The seed that makes the same run again, up to the timing of threads.
    pub seed: u64,
    /// Nodes of the exact search.
    pub nodes: u64,
    /// Time used.
    pub elapsed: Duration,
    /// When which peak was reached.
    pub history: Vec<(Duration, u64)>,
}

impl Solution {
    /// How far above the lower bound the plan is, in percent.
    pub fn gap(&self) -> f64 {
        if self.lower_bound == 0 {
            return 0.0;
        }
        (self.peak as f64 / self.lower_bound as f64 - 1.0) * 100.0
    }
}

impl std::fmt::Display for Solution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Status::Optimal => write!(f, "optimal (proved)"),
            Status::Fits => write!(f, "fits"),
            Status::Gap => write!(f, "gap ≤ {:.2} %", self.gap()),
            Status::Infeasible => write!(f, "infeasible (proved)"),
            Status::Inconclusive => write!(f, "no fit found, none disproved"),
        }
    }
}

/// What a watcher is told.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Best peak so far, in bytes.
    pub peak: u64,
    /// Best lower bound so far, in bytes.
    pub lower_bound: u64,
}

/// Instances up to this size are searched exactly as a whole.
const SEARCHED: usize = 12_000;

/// Bytes of the states of one search's nodes, at most.
const SEARCH_BYTES: usize = 1 << 30;

/// Conflicts up to this number are listed.
const LISTED: u64 = 80_000_000;

/// The best offsets so far, and when which peak was reached.
type Best = (Vec<u64>, Vec<(Duration, u64)>);

/// What the threads share.
struct Shared<'a> {
    instance: &'a Instance,
    started: Instant,
    deadline: Instant,
    capacity: u64,
    stop: AtomicBool,
    peak: AtomicU64,
    bound: AtomicU64,
    nodes: AtomicU64,
    best: Mutex<Best>,
    watcher: Option<&'a (dyn Fn(Progress) + Sync)>,
}

impl Shared<'_> {
    fn best(&self) -> MutexGuard<'_, Best> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if nothing is left to be found out.
    fn done(&self) -> bool {
        let (peak, bound) = (self.peak.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed));
        peak <= bound || (self.capacity < u64::MAX && (peak <= self.capacity || bound > self.capacity))
    }

    fn check(&self) {
        if self.done() || Instant::now() >= self.deadline {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn tell(&self) {
        if let Some(watcher) = self.watcher {
            let (peak, lower_bound) = (self.peak.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed));
            watcher(Progress { elapsed: self.started.elapsed(), peak, lower_bound });
        }
    }

    fn offer(&self, offsets: Vec<u64>) {
        let peak = self.instance.peak(&offsets);
        let mut best = self.best();
        if peak < self.peak.load(Ordering::Relaxed) {
            best.0 = offsets;
            best.1.push((self.started.elapsed(), peak));
            self.peak.store(peak, Ordering::Relaxed);
            drop(best);
            self.tell();
        }
        self.check();
    }

    fn raise_bound(&self, bound: u64) {
        if self.bound.fetch_max(bound, Ordering::Relaxed) < bound {
            self.tell();
        }
        self.check();
    }

    fn limits(&self, nodes: u64) -> Limits<'_> {
        Limits { nodes, deadline: Some(self.deadline), stop: &self.stop }
    }
}

/// Plans an instance of one tier; see [`solve_tiers`] for several.
///
/// The plan is always complete and valid, whatever the status. Time is bounded by the limit, save for the first
/// greedy plan: O(n log n), or O(conflicts) where buffers are not plain.
pub fn solve(
    instance: &Instance,
    options: &Options,
    watcher: Option<&(dyn Fn(Progress) + Sync)>,
) -> Solution {
    let started = Instant::now();
    let bound = bounds::lower_bound(instance);
    let shared = Shared {
        instance,
        started,
        deadline: started + options.time_limit.min(Duration::from_secs(100 * 365 * 86_400)),
        capacity: options.capacity.unwrap_or(u64::MAX),
        stop: AtomicBool::new(false),
        peak: AtomicU64::new(u64::MAX),
        bound: AtomicU64::new(bound.bytes),
        nodes: AtomicU64::new(0),
        best: Mutex::new((Vec::new(), Vec::new())),
        watcher,
    };
    let threads = options.threads.max(1);
    if instance.is_empty() {
        shared.offer(Vec::new());
    } else if instance.is_plain() {
        plain(&shared, threads, options.seed);
    } else {
        constrained(&shared, options.seed);
    }
    let (offsets, history) = std::mem::take(&mut *shared.best());
    let (peak, lower_bound) = (instance.peak(&offsets), shared.bound.load(Ordering::Relaxed));
    let status = match options.capacity {
        _ if peak <= lower_bound && options.capacity.is_none() => Status::Optimal,
        None => Status::Gap,
        Some(capacity) if peak <= capacity => Status::Fits,
        Some(capacity) if lower_bound > capacity => Status::Infeasible,
        Some(_) => Status::Inconclusive,
    };
    let nodes = shared.nodes.load(Ordering::Relaxed);
    // A capacity that is proved too small raises the bound to just above it, which is no statement about the peak.
    Solution {
        offsets,
        peak,
        lower_bound,
        bound,
        status,
        seed: options.seed,
        nodes,
        elapsed: started.elapsed(),
        history,
    }
}

/// The plan of one tier.
#[derive(Clone, Debug)]
pub struct TierPlan {
    /// The tier.
    pub tier: u32,
    /// Its buffers (indices of the whole instance), in the order of `instance`.
    pub members: Vec<usize>,
    /// Its buffers alone.
    pub instance: Instance,
    /// Their plan.
    pub solution: Solution,
}

/// Plans every tier by itself, within its own capacity if one is given; the time limit is shared out evenly.
pub fn solve_tiers(
    instance: &Instance,
    options: &Options,
    capacities: &BTreeMap<u32, u64>,
    watcher: Option<&(dyn Fn(Progress) + Sync)>,
) -> Vec<TierPlan> {
    let mut tiers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (n, buffer) in instance.buffers().iter().enumerate() {
        tiers.entry(buffer.tier).or_default().push(n);
    }
    if tiers.is_empty() {
        tiers.insert(0, Vec::new());
    }
    let time_limit = options.time_limit / tiers.len() as u32;
    let plan = |(tier, members): (u32, Vec<usize>)| {
        let part = instance.part(&members);
        let options = Options { capacity: capacities.get(&tier).copied(), time_limit, ..options.clone() };
        let solution = solve(&part, &options, watcher);
        TierPlan { tier, members, instance: part, solution }
    };
    tiers.into_iter().map(plan).collect()
}

/// One solution for the whole instance: the offsets of all tiers (each from 0), the largest peak and bound, the worst status.
pub fn merge(instance: &Instance, tiers: &[TierPlan]) -> Solution {
    let rank = |tier: &&TierPlan| match tier.solution.status {
        Status::Optimal => 0,
        Status::Fits => 1,
        Status::Gap => 2,
        Status::Inconclusive => 3,
        Status::Infeasible => 4,
    };
    let worst = tiers.iter().max_by_key(rank).map(|tier| tier.solution.clone());
    let mut whole = worst.unwrap_or_else(|| solve(&Instance::default(), &Options::default(), None));
    whole.offsets = vec![0; instance.len()];
    for tier in tiers {
        for (&n, &offset) in tier.members.iter().zip(&tier.solution.offsets) {
            whole.offsets[n] = offset;
        }
        whole.peak = whole.peak.max(tier.solution.peak);
        whole.lower_bound = whole.lower_bound.max(tier.solution.lower_bound);
    }
    whole
}

/// Greedy orders, then exact search for what has gaps, fixed offsets or places to share.
fn constrained(shared: &Shared, seed: u64) {
    let instance = shared.instance;
    let conflicts = Conflicts::new(instance);
    for round in 0_u64.. {
        for order in greedy::Order::ALL {
            for fit in [Fit::First, Fit::Best] {
                let noise = (round > 0).then(|| (0.1 * (1 + round % 10) as f64, seed ^ round << 8));
                let order = greedy::ordered(instance, &conflicts, order, noise);
                let offsets = greedy::place(instance, &conflicts, &order, fit);
                // Fixed buffers may stand in each other's way.
                if crate::validate::validate(instance, &offsets, None).is_ok() {
                    shared.offer(offsets);
                } else if shared.best().0.is_empty() {
                    let mut best = shared.best();
                    best.0 = offsets;
                }
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
        if round == 3 {
            let goal =
                |shared: &Shared| shared.peak.load(Ordering::Relaxed).saturating_sub(1).min(shared.capacity);
            loop {
                let goal = goal(shared);
                match general::search(instance, &conflicts, goal, &shared.limits(3_000_000)) {
                    general::Answer::Found(offsets) => shared.offer(offsets),
                    general::Answer::None => shared.raise_bound(goal + 1),
                    general::Answer::Unknown => break,
                }
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
        if round >= 200 {
            return;
        }
    }
}

/// Plain rectangles.
fn plain(shared: &Shared, threads: usize, seed: u64) {
    let instance = shared.instance;
    // The first plan: in milliseconds for all but the largest.
    let first = Descent { prefer: Prefer::Leftmost, mirror: false, noise: None };
    shared.offer(descend(instance, first, &AtomicBool::new(false)).expect("nobody stops it"));
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
    let done = || shared.stop.load(Ordering::Relaxed);
    let mut turn = 0;
    let mut mine = || {
        turn += 1;
        (turn - 1) % threads == thread % threads
    };
    let descent = |prefer, mirror, noise| {
        if let Some(offsets) = descend(instance, Descent { prefer, mirror, noise }, &shared.stop) {
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
    let conflicts = if listed { Conflicts::new(instance) } else { Conflicts::default() };
    for order in [greedy::Order::Size, greedy::Order::Area, greedy::Order::Length, greedy::Order::Start] {
        for fit in [Fit::Best, Fit::First] {
            if listed && mine() && !done() {
                let order = greedy::ordered(instance, &conflicts, order, None);
                shared.offer(greedy::place(instance, &conflicts, &order, fit));
            }
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
            let order = greedy::Order::ALL[round as usize / 8 % 3];
            let order = greedy::ordered(instance, &conflicts, order, Some((0.2, seed)));
            shared.offer(greedy::place(instance, &conflicts, &order, Fit::Best));
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
