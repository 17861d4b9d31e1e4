//! Plans what is more than rectangles: gaps in lifetimes, fixed offsets, shared places.

use std::sync::atomic::Ordering;

use super::{LISTED, Shared};
use crate::exact::general;
use crate::greedy::descent::{Descent, Prefer, descend};
use crate::greedy::{self, Conflicts, Fit, Order};
use crate::model::{Buffer, Instance};

/// The number of noisy plans for each thread; more seldom help.
const ROUNDS: u64 = 2400;

/// Instances up to this size are searched exactly.
const SEARCHED: usize = 2000;

/// The most buffers that are taken as one because they can share a place one after the other.
const CHAIN: usize = 64;

/// Plans with greedy orders, with those that share a place taken as one, by repairs, and exactly where there are few buffers.
pub(super) fn constrained(shared: &Shared, threads: usize, seed: u64) {
    let instance = shared.instance;
    chains(shared);
    // With more conflicts, only descents are made.
    if shared.deadline.passed() || Conflicts::count(instance) > LISTED {
        return;
    }
    let Some(conflicts) = shared.conflicts() else { return };
    // Sorted orders cost the most where there are many conflicts, and then seldom win.
    for order in Order::ALL {
        for fit in [Fit::First, Fit::Best] {
            if !place(shared, conflicts, order, fit, None) {
                return;
            }
        }
    }
    if instance.len() <= SEARCHED {
        for round in 0..36 {
            let noise = Some((0.1 * (1 + round / 12) as f64, seed ^ (round << 8)));
            let (order, fit) = kind(round);
            if !place(shared, conflicts, order, fit, noise) {
                return;
            }
        }
        search(shared, conflicts);
    }
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            scope.spawn(move || improve(shared, conflicts, seed ^ thread << 32));
        }
    });
}

fn kind(round: u64) -> (Order, Fit) {
    let order = Order::ALL[(round / 2 % Order::ALL.len() as u64) as usize];
    (order, if round.is_multiple_of(2) { Fit::First } else { Fit::Best })
}

/// Makes one greedy plan; false if the deadline passes.
fn place(shared: &Shared, conflicts: &Conflicts, order: Order, fit: Fit, noise: Option<(f64, u64)>) -> bool {
    shared.place(conflicts, &greedy::ordered(shared.instance, conflicts, order, noise), fit);
    !shared.deadline.passed()
}

/// Searches exactly, ever lower.
fn search(shared: &Shared, conflicts: &Conflicts) {
    while !shared.deadline.passed() {
        let goal = shared.peak.load(Ordering::Relaxed).saturating_sub(1).min(shared.capacity);
        match general::search(shared.instance, conflicts, goal, &shared.limits(3_000_000)) {
            general::Answer::Found(offsets) => shared.offer(offsets),
            general::Answer::None => shared.raise_bound(goal + 1),
            general::Answer::Unknown => break,
        }
    }
}

/// Repairs the best plan, and makes noisy ones at times: a tenth of the work, counted so that a seed and one thread give one plan.
fn improve(shared: &Shared, conflicts: &Conflicts, seed: u64) {
    let instance = shared.instance;
    let mut random = fastrand::Rng::with_seed(seed);
    let pairs = 2 * Conflicts::count(instance) + instance.len() as u64;
    let (mut repair, mut noisy, mut repaired) = (None, 0, 0);
    for _ in 0..ROUNDS {
        if shared.deadline.passed() {
            return;
        }
        if 10 * noisy > repaired {
            repaired += shared.repair(&mut repair, &mut random) + instance.len() as u64;
            continue;
        }
        noisy += pairs;
        let (order, fit) = kind(random.u64(..));
        let noise = [0.02, 0.1, 0.4][random.usize(..3)];
        place(shared, conflicts, order, fit, Some((noise, random.u64(..))));
    }
}

/// Plans the buffers that can share a place one after the other as one buffer, without gaps: like plain rectangles.
fn chains(shared: &Shared) {
    let instance = shared.instance;
    let buffers = instance.buffers();
    if buffers.iter().any(|buffer| buffer.fixed.is_some()) {
        return;
    }
    let mut chain: Vec<usize> = (0..buffers.len()).collect();
    let mut members: Vec<Vec<usize>> = (0..buffers.len()).map(|n| vec![n]).collect();
    for (n, other) in buffers.iter().enumerate().filter_map(|(n, buffer)| Some((n, buffer.alias?))) {
        let (a, b) = (chain[n], chain[other]);
        let equal = |n: usize| (buffers[n].size, buffers[n].align, buffers[n].tier);
        // Buffers of a chain that live at the same time must be allowed to share.
        let apart = |x: usize, y: usize| !buffers[x].meets(&buffers[y]);
        let fits = a != b
            && equal(n) == equal(other)
            && members[a].len() + members[b].len() <= CHAIN
            && members[a]
                .iter()
                .all(|&x| members[b].iter().all(|&y| instance.may_share(x, y) || apart(x, y)));
        if fits {
            let moved = std::mem::take(&mut members[b]);
            moved.iter().for_each(|&m| chain[m] = a);
            members[a].extend(moved);
        }
    }
    members.retain(|list| !list.is_empty());
    let whole = members.iter().map(|list| {
        let first = &buffers[list[0]];
        let start = list.iter().map(|&n| buffers[n].start).min().unwrap_or(first.start);
        let end = list.iter().map(|&n| buffers[n].end).max().unwrap_or(first.end);
        Buffer { align: first.align, ..Buffer::new(first.id.clone(), first.size, start, end) }
    });
    let whole = Instance::unchecked(whole.collect());
    for (prefer, mirror) in [
        (Prefer::Leftmost, false),
        (Prefer::Longest, false),
        (Prefer::Leftmost, true),
        (Prefer::Longest, true),
    ] {
        let descent = Descent { prefer, mirror, aligned: true, noise: None };
        let Some(places) = descend(&whole, descent, &shared.deadline) else { return };
        let mut offsets = vec![0; buffers.len()];
        for (list, &place) in members.iter().zip(&places) {
            list.iter().for_each(|&n| offsets[n] = place);
        }
        shared.offer(offsets);
    }
}
