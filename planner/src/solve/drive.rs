//! Runs greedy planners and exact searches side by side.

use std::sync::atomic::Ordering;

use super::Shared;
use super::climb::{Climb, Scaled};
use super::portfolio::{Packed, Portfolio};
use crate::boxes::Join;
use crate::deadline::Deadline;
use crate::exact::{Answer, Limits, filled, general, perfect};
use crate::greedy::descent::{Descent, Prefer, descend};

/// Largest number of buffers for which an instance is searched exactly as a whole.
const SEARCHED: usize = 12_000;

/// Largest number of buffers for an exact search if not all are rectangles.
const GENERAL: usize = 2000;

/// Largest number of buffers for which a perfect packing is tried.
const STACKED: usize = 300_000;

/// Most bytes for the nodes of all searches.
const SEARCH_BYTES: usize = 1 << 30;

/// Number of nodes of a first exact search if not all buffers are rectangles.
const NODES: u64 = 3_000_000;

/// Largest number of buffers that are not all rectangles for which one thread searches exactly until the end.
const PROVED: usize = 200;

/// Number of noisy plans before the exact search if not all buffers are rectangles.
const BEFORE: usize = 36;

/// Number of steps of each thread if not all buffers are rectangles; more seldom help.
const STEPS: usize = 6000;

/// Improves the plans of simple rules for an instance.
pub(super) fn drive(shared: &Shared, threads: usize, seed: u64) {
    let (instance, plain) = (shared.instance, shared.instance.is_plain());
    let packed = Packed::default();
    let small = plain && instance.len() <= SEARCHED;
    let boxes = small.then(|| packed.get(instance, Join::Forced, &shared.deadline)).flatten();
    let boxes = boxes.filter(|boxes| boxes.instance.len() < instance.len());
    if let Some(boxes) = boxes {
        for prefer in [Prefer::Leftmost, Prefer::Longest] {
            let descent = Descent { prefer, mirror: false, aligned: false, noise: None };
            if let Some(offsets) = descend(&boxes.instance, descent, &shared.deadline) {
                shared.offer(boxes.unpack(&offsets));
            }
        }
    }
    // With no memory to spare, look for a perfect packing of the boxes and, since the boxes may be wrong, of the buffers.
    let stacked =
        boxes.and_then(|boxes| Some(boxes.unpack(&perfect::pack(&boxes.instance, &shared.deadline)?)));
    let alone =
        || (plain && instance.len() <= STACKED).then(|| perfect::pack(instance, &shared.deadline)).flatten();
    if let Some(offsets) = stacked.or_else(|| if shared.done() { None } else { alone() }) {
        shared.offer(offsets);
    }
    // With little memory to spare, guess the buffers missing from a perfect packing.
    if small && !shared.done() {
        let bound = shared.bound.load(Ordering::Relaxed);
        let goal = if shared.capacity < u64::MAX { shared.capacity.max(bound) } else { bound };
        if let Some(offsets) = filled::pack(instance, goal, &shared.deadline.part(8)) {
            shared.offer(offsets);
        }
    }
    let general = !plain && instance.len() <= GENERAL && !shared.deadline.passed();
    if general {
        let mut portfolio = Portfolio::new(shared, &packed, (0, 1), seed);
        portfolio.brief();
        (0..BEFORE).for_each(|_| portfolio.noisy_rule());
        search(shared, NODES, &shared.deadline);
    }
    let whole = small.then(|| Scaled::new(instance, None)).flatten();
    let boxed = boxes.and_then(|boxes| Scaled::new(&boxes.instance, Some(boxes)));
    std::thread::scope(|scope| {
        // Threads search the problems in turns; only some search if memory is short.
        let mut bytes = 0;
        let mut affordable = |problem: &&Scaled| {
            bytes += problem.bytes();
            bytes <= SEARCH_BYTES
        };
        let searches: Vec<Vec<&Scaled>> =
            (0..threads).map(|_| boxed.iter().chain(&whole).filter(&mut affordable).collect()).collect();
        let searched = searches.iter().any(|problems| !problems.is_empty());
        for (thread, scaled) in searches.into_iter().enumerate() {
            let packed = &packed;
            let work = move || {
                let over = || shared.deadline.passed();
                if general && thread == 0 && instance.len() <= PROVED && !over() {
                    // The other threads go on with greedy plans; a single thread divides its time.
                    search(shared, u64::MAX, &shared.deadline.part(if threads > 1 { 1 } else { 2 }));
                }
                // One thread makes the greedy plans while the others search; without searches all threads share them.
                let share = if searched { (0, 1) } else { (thread, threads) };
                let greedy = || Portfolio::new(shared, packed, share, seed ^ (thread as u64) << 32);
                let mut portfolio = (!searched || thread == threads - 1).then(greedy);
                if let Some(portfolio) = portfolio.as_mut().filter(|_| !general) {
                    portfolio.brief();
                }
                let climb = |scaled| Climb::new(shared, scaled, thread as u64, seed);
                let mut climbs: Vec<Climb> = scaled.into_iter().filter_map(climb).collect();
                for _ in 0..if plain { usize::MAX } else { STEPS } {
                    if over() {
                        break;
                    }
                    climbs.retain_mut(Climb::round);
                    if climbs.is_empty() {
                        portfolio.get_or_insert_with(greedy).step();
                    } else if let Some(portfolio) = &mut portfolio {
                        // A fifth of the time, or two thirds for instances whose exact searches seldom end.
                        let searched = climbs.iter().map(Climb::cost).sum::<u64>();
                        let share = if instance.len() > 2000 { 2 * searched } else { searched / 4 };
                        while portfolio.cost() < share && !over() {
                            portfolio.step();
                        }
                    }
                }
            };
            // The search's depth is the number of buffers.
            let stack = (8 << 20) + instance.len().min(SEARCHED) * 4096;
            std::thread::Builder::new()
                .stack_size(stack)
                .spawn_scoped(scope, work)
                .expect("a thread can be made");
        }
        // The threads stop by themselves.
    });
}

/// Searches exactly, at ever lower goals, up to `nodes` nodes for each.
fn search(shared: &Shared, nodes: u64, deadline: &Deadline) {
    let Some(conflicts) = shared.conflicts() else { return };
    while !deadline.passed() {
        let goal = shared.peak.load(Ordering::Relaxed).saturating_sub(1).min(shared.capacity);
        match general::search(shared.instance, conflicts, goal, &Limits { nodes, deadline }) {
            Answer::Found(offsets) => shared.offer(offsets),
            Answer::None => shared.raise_bound(goal + 1),
            Answer::Unknown => break,
        }
    }
}
