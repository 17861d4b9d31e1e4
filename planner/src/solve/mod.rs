//! The driver: runs bounds, heuristics and exact search, and keeps the best plan so far.

mod climb;
mod cores;
mod drive;
mod portfolio;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::bounds::{self, Bound};
use crate::deadline::Deadline;
use crate::exact::Limits;
use crate::greedy::descent::{Descent, Prefer, descend_from};
use crate::greedy::repair::Repair;
use crate::greedy::{self, Baseline, Conflicts, Fit, allocated};
use crate::model::{Instance, Violation, check};
use crate::validate::validate;

/// Largest number of threads that a search starts, however many it is given.
pub const MOST_THREADS: usize = 1024;

/// The options of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// The capacity in bytes that the plan must fit; `None` for as few bytes as possible.
    pub capacity: Option<u64>,
    /// The time after which the search stops without an answer.
    pub time_limit: Duration,
    /// The work after which the search stops, in units of about a millisecond, equal on every machine; `None` for no limit. One thread
    /// then makes the same plan everywhere, unless the time ends first.
    pub work: Option<u64>,
    /// Number of threads; at least 1 and at most [`MOST_THREADS`] are started.
    pub threads: usize,
    /// The seed of all random choices.
    pub seed: u64,
    /// Ends the search early when it becomes true, for example because the user pressed ^C.
    pub interrupt: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        let interrupt = Arc::default();
        let time_limit = Duration::from_secs(60);
        Self { capacity: None, time_limit, work: None, threads: 2, seed: 0, interrupt }
    }
}

impl Options {
    /// Creates the deadline of a run that starts now.
    pub fn deadline(&self) -> Deadline {
        let deadline = Deadline::after(self.time_limit).or_when(self.interrupt.clone());
        match self.work {
            Some(work) => deadline.or_after_looks(work),
            None => deadline,
        }
    }
}

/// What a search has proved about its plan, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Proved: no plan is smaller.
    Optimal,
    /// The plan fits the requested capacity.
    Fits,
    /// The plan is the best found; the lower bound limits its distance from the optimum.
    Gap,
    /// No plan that fits was found, nor proved impossible. The plan is the best found.
    Inconclusive,
    /// Proved: no plan fits the capacity. The plan is the best found.
    Infeasible,
}

/// A plan and the proof about it.
#[derive(Clone, Debug)]
pub struct Solution {
    /// One offset for each buffer, in bytes.
    pub offsets: Vec<u64>,
    /// The highest end of a buffer, in bytes.
    pub peak: u64,
    /// The lower bound on the peaks of all plans, in bytes.
    pub lower_bound: u64,
    /// The bound found without a search, with its moment and buffers.
    pub bound: Bound,
    /// The proof about the plan.
    pub status: Status,
    /// The seed that repeats this run, up to the timing of threads.
    pub seed: u64,
    /// Nodes of the exact search.
    pub nodes: u64,
    /// Time used.
    pub elapsed: Duration,
    /// The times at which each better peak was reached.
    pub history: Vec<(Duration, u64)>,
}

impl Solution {
    /// Returns the plan's distance above the lower bound, in percent.
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

/// The progress that a watcher receives.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Best peak so far, in bytes.
    pub peak: u64,
    /// Best lower bound so far, in bytes.
    pub lower_bound: u64,
}

/// A function that is called at each progress.
pub type Watcher<'a> = Option<&'a (dyn Fn(Progress) + Sync)>;

/// The best offsets so far, and the time at which each better peak was reached.
type Best = (Vec<u64>, Vec<(Duration, u64)>);

/// The state that the threads share.
struct Shared<'a> {
    instance: &'a Instance,
    started: Instant,
    deadline: Deadline,
    capacity: u64,
    /// The highest end of the buffers that are never live, which are not in `instance`.
    floor: u64,
    peak: AtomicU64,
    bound: AtomicU64,
    nodes: AtomicU64,
    best: Mutex<Best>,
    conflicts: OnceLock<Option<Conflicts>>,
    watcher: Watcher<'a>,
}

impl<'a> Shared<'a> {
    /// Creates the state of a search that starts now, without a plan.
    fn new(
        instance: &'a Instance,
        deadline: Deadline,
        capacity: Option<u64>,
        bound: u64,
        watcher: Watcher<'a>,
    ) -> Self {
        Self {
            instance,
            started: Instant::now(),
            deadline,
            capacity: capacity.unwrap_or(u64::MAX),
            floor: 0,
            peak: AtomicU64::new(u64::MAX),
            bound: AtomicU64::new(bound),
            nodes: AtomicU64::new(0),
            best: Mutex::new((Vec::new(), Vec::new())),
            conflicts: OnceLock::new(),
            watcher,
        }
    }

    fn best(&self) -> MutexGuard<'_, Best> {
        self.best.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all conflicts, listed when first needed; `None` if there was no time.
    fn conflicts(&self) -> Option<&Conflicts> {
        self.conflicts.get_or_init(|| Conflicts::within(self.instance, &self.deadline)).as_ref()
    }

    /// Returns whether nothing is left to find out.
    fn done(&self) -> bool {
        let (peak, bound) = (self.peak.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed));
        peak <= bound || (self.capacity < u64::MAX && (peak <= self.capacity || bound > self.capacity))
    }

    /// Ends the search if nothing is left to find out.
    fn check(&self) {
        if self.done() {
            self.deadline.end();
        }
    }

    fn tell(&self) {
        if let Some(watcher) = self.watcher {
            let (peak, lower_bound) = (self.peak.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed));
            watcher(Progress { elapsed: self.started.elapsed(), peak, lower_bound });
        }
    }

    /// Accepts a plan if it is better and no fixed buffer overlaps another buffer in it.
    fn offer(&self, offsets: Vec<u64>) {
        let (peak, known) = (self.instance.peak(&offsets).max(self.floor), self.peak.load(Ordering::Relaxed));
        let sure = known == u64::MAX || self.instance.is_plain();
        let valid = || check(self.instance.buffers(), &offsets, None, &self.deadline) == Ok(true);
        if peak >= known || !(sure || valid()) {
            return self.check();
        }
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

    /// Places the buffers in this order, as long as the result beats the best plan; returns false if the deadline passes.
    fn place(&self, conflicts: &Conflicts, order: &[usize], fit: Fit) -> bool {
        let (partial, rule) = (vec![None; self.instance.len()], (fit, self.peak.load(Ordering::Relaxed)));
        let made = greedy::complete(self.instance, conflicts, &partial, order, rule, &self.deadline);
        made.into_iter().for_each(|offsets| self.offer(offsets));
        !self.deadline.passed()
    }

    /// Makes the plans of simple rules, and abandons each plan that becomes no better than the plans before it.
    fn simple(&self, rules: &[Baseline]) {
        let Some(conflicts) = self.conflicts() else { return };
        for &rule in rules {
            let (order, fit) = greedy::baseline_order(self.instance, conflicts, rule);
            if !self.place(conflicts, &order, fit) {
                break;
            }
        }
    }

    /// Makes some repair steps, from the best plan or the result of the previous steps; returns their work, in conflicts.
    fn repair<'s>(&'s self, repair: &mut Option<Repair<'s>>, random: &mut fastrand::Rng) -> u64 {
        let best = self.peak.load(Ordering::Relaxed);
        let peak = |repair: &Repair| self.instance.peak(repair.offsets());
        let known = repair.as_ref().is_some_and(|repair| peak(repair) <= best + best / 500);
        if !known || random.u8(..) == 0 {
            let goal = self.bound.load(Ordering::Relaxed);
            let offsets = self.best().0.clone();
            let Some(conflicts) = self.conflicts() else { return 0 };
            *repair = Some(Repair::new(self.instance, conflicts, goal, offsets, random.u64(..)));
        }
        let Some(repair) = repair else { return 0 };
        let before = repair.work();
        for _ in 0..10 {
            let more = repair.run(4, &self.deadline);
            if peak(repair) < self.peak.load(Ordering::Relaxed) {
                self.offer(repair.offsets().to_vec());
            }
            if !more {
                break;
            }
        }
        repair.work() - before
    }

    fn raise_bound(&self, bound: u64) {
        if self.bound.fetch_max(bound, Ordering::Relaxed) < bound {
            self.tell();
        }
        self.check();
    }

    fn limits(&self, nodes: u64) -> Limits<'_> {
        Limits { nodes, deadline: &self.deadline }
    }
}

/// Plans an instance of one tier; see [`solve_tiers`] for several.
///
/// The plan is always complete and valid, whatever the status. Every phase keeps to the time limit, except that the first greedy plan,
/// which takes O(n log n), may take about a tenth of a second longer.
pub fn solve(instance: &Instance, options: &Options, watcher: Watcher<'_>) -> Solution {
    solve_within(instance, options, options.deadline(), watcher)
}

/// Plans like [`solve`] until `deadline`; the time limit of `options` is not used.
pub fn solve_within(
    instance: &Instance,
    options: &Options,
    deadline: Deadline,
    watcher: Watcher<'_>,
) -> Solution {
    let started = Instant::now();
    let mut bound = bounds::quick_bound(instance, &deadline.extended(GRACE));
    // No phase sees buffers that are never live; the bound ensures that they fit the arena.
    let live: Vec<usize> = (0..instance.len()).filter(|&n| instance.buffers()[n].is_ever_live()).collect();
    let part = (live.len() < instance.len()).then(|| instance.part(&live));
    let searched = part.as_ref().unwrap_or(instance);
    let ends = instance.buffers().iter().filter(|buffer| !buffer.is_ever_live());
    let floor = ends.map(|buffer| buffer.fixed.unwrap_or(0) + buffer.size).max().unwrap_or(0);
    let shared =
        Shared { started, floor, ..Shared::new(searched, deadline, options.capacity, bound.bytes, watcher) };
    let threads = options.threads.clamp(1, MOST_THREADS);
    // Run simple rules before anything slower, so that no answer is worse than theirs if there was time for them; with many pairs only
    // the best two. With few buffers and pairs, a rule takes no longer than the first plan.
    let pairs = Conflicts::count(searched);
    let first = usize::from(searched.is_plain() && searched.len() <= FEW && pairs <= MANY);
    if !shared.deadline.passed() {
        shared.simple(&Baseline::ALL[..first]);
    }
    // Always make a plan, even if none can fit.
    if shared.peak.load(Ordering::Relaxed) == u64::MAX || !shared.done() {
        shared.offer(first_plan(&shared));
    }
    if !shared.deadline.passed() {
        shared.simple(if pairs > MANY { &Baseline::ALL[first..2] } else { &Baseline::ALL[first..] });
    }
    if instance.any_gaps() && !shared.done() {
        let deadline = shared.deadline.extended(GRACE);
        let clique = bounds::clique_bound(instance, bounds::CLIQUE_STEPS, &deadline);
        if clique.bytes > bound.bytes {
            shared.raise_bound(clique.bytes);
            bound = clique;
        }
    }
    if !shared.deadline.passed() {
        drive::drive(&shared, threads, options.seed);
    }
    let (mut offsets, history) = std::mem::take(&mut *shared.best());
    if part.is_some() {
        let mut whole: Vec<u64> = instance.buffers().iter().map(|buffer| buffer.fixed.unwrap_or(0)).collect();
        live.iter().zip(offsets).for_each(|(&n, offset)| whole[n] = offset);
        offsets = whole;
    }
    let (peak, lower_bound) = (instance.peak(&offsets), shared.bound.load(Ordering::Relaxed));
    let status = match options.capacity {
        _ if peak <= lower_bound && options.capacity.is_none() => Status::Optimal,
        None => Status::Gap,
        Some(capacity) if peak <= capacity => Status::Fits,
        Some(capacity) if lower_bound > capacity => Status::Infeasible,
        Some(_) => Status::Inconclusive,
    };
    let nodes = shared.nodes.load(Ordering::Relaxed);
    // A capacity that is proved too small raises the bound to just above it, which says nothing about the peak.
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

/// Largest number of buffers, and of pairs live at once, that count as few.
const FEW: usize = 20_000;
const MANY: u64 = 2_000_000;

/// The time that the first bound and the first plan may take beyond the limit.
const GRACE: Duration = Duration::from_millis(80);

/// Makes the first plan. Packs all buffers above the fixed ones, without using gaps or shared places.
fn first_plan(shared: &Shared) -> Vec<u64> {
    let instance = shared.instance;
    let buffers = instance.buffers();
    let ends = buffers.iter().filter_map(|buffer| Some(buffer.fixed? + buffer.size));
    let base = ends.max().unwrap_or(0);
    let descent = Descent { prefer: Prefer::Leftmost, mirror: false, aligned: false, noise: None };
    let packed = descend_from(base, instance, descent, &shared.deadline.extended(GRACE));
    let mut offsets = packed.unwrap_or_else(|| {
        let (offsets, load) = allocated(base, instance);
        // There was no time for a bound either.
        if instance.is_plain() {
            shared.raise_bound(load);
        }
        offsets
    });
    for (offset, buffer) in offsets.iter_mut().zip(buffers) {
        *offset = buffer.fixed.unwrap_or(*offset);
    }
    offsets
}

/// The plan of one tier.
#[derive(Clone, Debug)]
pub struct TierPlan {
    /// The tier.
    pub tier: u32,
    /// Its buffers (indices of the whole instance), in the order of `instance`.
    pub members: Vec<usize>,
    /// An instance of its buffers alone.
    pub instance: Instance,
    /// Their plan.
    pub solution: Solution,
}

/// Plans every tier by itself until `deadline`, within the tier's capacity if given; the time limit of `options` is not used. Each tier
/// gets an even share of the time left by the tiers before it.
pub fn solve_tiers(
    instance: &Instance,
    options: &Options,
    capacities: &BTreeMap<u32, u64>,
    deadline: &Deadline,
    watcher: Watcher<'_>,
) -> Vec<TierPlan> {
    let mut tiers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (n, buffer) in instance.buffers().iter().enumerate() {
        tiers.entry(buffer.tier).or_default().push(n);
    }
    if tiers.is_empty() {
        tiers.insert(0, Vec::new());
    }
    let mut left = tiers.len() as u32;
    let plan = |(tier, members): (u32, Vec<usize>)| {
        let part = instance.part(&members);
        let options = Options { capacity: capacities.get(&tier).copied(), ..options.clone() };
        let share = deadline.part(left);
        left -= 1;
        let solution = solve_within(&part, &options, share, watcher);
        TierPlan { tier, members, instance: part, solution }
    };
    tiers.into_iter().map(plan).collect()
}

/// Plans like [`solve_tiers`], checks the plan, and merges the tiers.
///
/// # Errors
/// The first [`Violation`] found, which is a bug in this crate.
pub fn solve_checked(
    instance: &Instance,
    options: &Options,
    capacities: &BTreeMap<u32, u64>,
    deadline: &Deadline,
    watcher: Watcher<'_>,
) -> Result<Solution, Violation> {
    let tiers = solve_tiers(instance, options, capacities, deadline, watcher);
    tiers.iter().try_for_each(|tier| validate(&tier.instance, &tier.solution.offsets, None))?;
    Ok(merge(instance, &tiers))
}

/// Merges the plans of all tiers into one solution for the whole instance: each tier's offsets start at 0; the peak and bound are the
/// largest, the status the worst, and the time and nodes the sum.
pub fn merge(instance: &Instance, tiers: &[TierPlan]) -> Solution {
    let worst = tiers.iter().max_by_key(|tier| tier.solution.status).map(|tier| tier.solution.clone());
    let mut whole = worst.unwrap_or_else(|| solve(&Instance::default(), &Options::default(), None));
    whole.offsets = vec![0; instance.len()];
    whole.nodes = tiers.iter().map(|tier| tier.solution.nodes).sum();
    whole.elapsed = tiers.iter().map(|tier| tier.solution.elapsed).sum();
    for tier in tiers {
        for (&n, &offset) in tier.members.iter().zip(&tier.solution.offsets) {
            whole.offsets[n] = offset;
        }
        whole.peak = whole.peak.max(tier.solution.peak);
        whole.lower_bound = whole.lower_bound.max(tier.solution.lower_bound);
    }
    whole
}
