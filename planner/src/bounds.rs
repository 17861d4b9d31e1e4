//! Lower bounds on the arena's size.

use std::collections::{BTreeMap, HashMap};

use crate::deadline::{Deadline, Watch};
use crate::model::{Buffer, Instance, Piece, meetings};

/// A lower bound on the arena, and what proves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Bytes that every plan needs.
    pub bytes: u64,
    /// The time step at which that many bytes are live; `None` if the bound comes from buffers that are never all live at once.
    pub time: Option<i64>,
    /// The indices of the buffers that prove it.
    pub buffers: Vec<usize>,
}

/// Returns the best of all bounds. O(n log n), plus a bounded clique search if buffers have gaps.
pub fn lower_bound(instance: &Instance) -> Bound {
    lower_bound_within(instance, &Deadline::never())
}

/// Returns the best bound found before `deadline` passes, at least the end of the largest buffer.
pub fn lower_bound_within(instance: &Instance, deadline: &Deadline) -> Bound {
    let best = quick_bound(instance, deadline);
    if instance.any_gaps() {
        let clique = clique_bound(instance, CLIQUE_STEPS, deadline);
        if clique.bytes > best.bytes {
            return clique;
        }
    }
    best
}

/// Step limit of the clique search.
pub(crate) const CLIQUE_STEPS: usize = 20_000;

/// Returns the better of two bounds that are quick to compute: the load, and the highest end of a single buffer.
pub(crate) fn quick_bound(instance: &Instance, deadline: &Deadline) -> Bound {
    let mut best = load_bound(instance, deadline).unwrap_or_default();
    for (n, buffer) in instance.buffers().iter().enumerate() {
        let end = buffer.fixed.unwrap_or(0) + buffer.size;
        if end > best.bytes {
            best = Bound { bytes: end, time: None, buffers: vec![n] };
        }
    }
    best
}

/// Returns the greatest common divisor; `gcd(0, b) = b`.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the largest number of bytes that are live at once; `None` if `deadline` passes first.
///
/// Sizes are rounded up to the greatest common divisor of all alignments, except for the topmost buffer. Each coarser alignment gives
/// another bound, with the sizes of less aligned buffers rounded down: the distance between coarse buffers is a multiple of the
/// alignment, and `ceil(a) + floor(b) <= ceil(a + b)`. Of buffers that may share a place, only the largest counts. Nothing is rounded if
/// a part of a buffer can be free for a time. O(n log n) for each alignment.
pub fn load_bound(instance: &Instance, deadline: &Deadline) -> Option<Bound> {
    let mut watch = Watch::new(deadline);
    // Sorting comes first, and cannot be interrupted.
    if watch.passed(0) {
        return None;
    }
    let mut aligns: Vec<u64> = instance.buffers().iter().map(|buffer| buffer.align).collect();
    aligns.sort_unstable();
    aligns.dedup();
    // A part of a buffer can begin at any byte, so several parts fit between two multiples of an alignment.
    let mut gaps = instance.buffers().iter().flat_map(|buffer| &buffer.gaps);
    if gaps.any(|gap| gap.window.is_some()) {
        return load_of(instance, 1, 1, &mut watch);
    }
    let unit = aligns.iter().fold(0, |unit, &align| gcd(unit, align)).max(1);
    let mut best = load_of(instance, unit, unit, &mut watch)?;
    for align in aligns.into_iter().filter(|&align| align > unit).take(ALIGNMENTS) {
        let bound = load_of(instance, align, unit, &mut watch)?;
        if bound.bytes > best.bytes {
            best = bound;
        }
    }
    Some(best)
}

/// Largest number of alignments for which a bound is computed.
const ALIGNMENTS: usize = 8;

/// Returns the largest live load, with sizes rounded up to `unit` for buffers aligned to it, and down for the others. All offsets are
/// multiples of `step`.
fn load_of(instance: &Instance, unit: u64, step: u64, watch: &mut Watch) -> Option<Bound> {
    let buffers = instance.buffers();
    let group = groups(instance);
    let mut members = vec![0_u32; group.len()];
    group.iter().for_each(|&n| members[n] += 1);
    let shared = |n: usize| members[group[n]] > 1;
    let any_alias = buffers.iter().any(|buffer| buffer.alias.is_some());
    let mut events = Vec::with_capacity(2 * buffers.len());
    let coarse = |n: usize| buffers[n].align.is_multiple_of(unit);
    let between = |bytes: u64| bytes.next_multiple_of(step) / unit * unit;
    for (n, buffer) in buffers.iter().enumerate() {
        if !coarse(n) && (between(buffer.size) == 0 || any_alias && shared(n)) {
            continue;
        }
        for (start, end, from, to) in buffer.pieces() {
            events.push((start, true, n, to - from));
            events.push((end, false, n, to - from));
        }
    }
    events.sort_unstable();
    // The multiset of bytes added by rounding. The topmost buffer does not need its own, so the largest is subtracted.
    let mut lost = BTreeMap::<u64, usize>::new();
    let mut together: HashMap<usize, BTreeMap<u64, usize>> = HashMap::new();
    let (mut load, mut others, mut best, mut time) = (0_u64, 0_u64, 0_u64, None);
    for &(at, starts, n, bytes) in &events {
        if watch.passed(100) {
            return None;
        }
        let rounded = bytes.next_multiple_of(unit);
        if !coarse(n) {
            others = if starts { others + between(bytes) } else { others - between(bytes) };
        } else if any_alias && shared(n) {
            let sizes = together.entry(group[n]).or_default();
            let largest = |sizes: &BTreeMap<u64, usize>| sizes.last_key_value().map_or(0, |(&size, _)| size);
            load -= largest(sizes);
            if starts {
                *sizes.entry(bytes).or_default() += 1;
            } else if let Some(count) = sizes.get_mut(&bytes) {
                *count -= 1;
                if *count == 0 {
                    sizes.remove(&bytes);
                }
            }
            load += largest(sizes);
        } else if starts {
            load += rounded;
            if rounded > bytes {
                *lost.entry(rounded - bytes).or_default() += 1;
            }
        } else {
            load -= rounded;
            if let Some(count) = lost.get_mut(&(rounded - bytes)) {
                *count -= 1;
                if *count == 0 {
                    lost.remove(&(rounded - bytes));
                }
            }
        }
        // Of the other buffers, only the topmost is not rounded up to `step`.
        let bound = load - lost.last_key_value().map_or(0, |(&lost, _)| lost.min(load))
            + others.saturating_sub(step - 1);
        if bound > best {
            (best, time) = (bound, Some(at));
        }
    }
    let live = time.map_or(Vec::new(), |time| live_at(instance, time));
    Some(Bound { bytes: best, time, buffers: live })
}

/// Returns by how much the load changes at each moment, in bytes. O(n log n).
pub(crate) fn load_changes(instance: &Instance) -> BTreeMap<i64, i128> {
    let mut changes = BTreeMap::new();
    for (start, end, from, to) in instance.buffers().iter().flat_map(Buffer::pieces) {
        *changes.entry(start).or_default() += i128::from(to - from);
        *changes.entry(end).or_default() -= i128::from(to - from);
    }
    changes
}

/// Returns the buffers with bytes in use at `time`. O(n).
pub fn live_at(instance: &Instance, time: i64) -> Vec<usize> {
    let live = |&n: &usize| {
        instance.buffers()[n].pieces().iter().any(|&(start, end, ..)| start <= time && time < end)
    };
    (0..instance.len()).filter(live).collect()
}

/// Returns a representative of each buffer's sharing group.
fn groups(instance: &Instance) -> Vec<usize> {
    let mut group: Vec<usize> = (0..instance.len()).collect();
    fn find(group: &mut [usize], mut n: usize) -> usize {
        while group[n] != n {
            group[n] = group[group[n]];
            n = group[n];
        }
        n
    }
    for (n, buffer) in instance.buffers().iter().enumerate() {
        if let Some(other) = buffer.alias {
            let (a, b) = (find(&mut group, n), find(&mut group, other));
            group[a.max(b)] = a.min(b);
        }
    }
    (0..instance.len()).map(|n| find(&mut group, n)).collect()
}

/// Number of the largest buffers in the clique search, limited because the search keeps the candidates of all members.
const CLIQUE: usize = 5000;

/// Returns the heaviest set of pairwise conflicting buffers found in at most `nodes` steps before `deadline` passes.
///
/// The buffers of such a set lie on top of each other in every plan, even if they are not all live at one moment. For lifetimes
/// without gaps this is the load bound.
pub fn clique_bound(instance: &Instance, nodes: usize, deadline: &Deadline) -> Bound {
    let buffers = instance.buffers();
    // A window leaves room in the buffer, so it does not count as a conflict here.
    let whole = |buffer: &Buffer| -> Vec<Piece> {
        buffer.pieces().into_iter().filter(|piece| piece.3 - piece.2 == buffer.size).collect()
    };
    let pieces = buffers.iter().map(whole).collect();
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(buffers[n].size));
    order.truncate(CLIQUE);
    let best = (0, Vec::new());
    let mut cliques = Cliques { instance, pieces, watch: Watch::new(deadline), left: nodes, best };
    cliques.grow(&mut Vec::new(), 0, &order);
    Bound { bytes: cliques.best.0, time: None, buffers: cliques.best.1 }
}

/// The search for a heavy clique.
struct Cliques<'a> {
    instance: &'a Instance,
    pieces: Vec<Vec<Piece>>,
    watch: Watch<'a>,
    /// Remaining steps.
    left: usize,
    best: (u64, Vec<usize>),
}

impl Cliques<'_> {
    /// Returns whether two buffers conflict: never after the deadline, so that all loops run dry.
    fn conflict(&mut self, a: usize, b: usize) -> bool {
        let (ours, theirs) = (&self.pieces[a], &self.pieces[b]);
        let out_of_time = self.watch.passed(8 * (ours.len() + theirs.len()) + 8);
        !out_of_time && !self.instance.may_share(a, b) && meetings(ours, theirs).next().is_some()
    }

    /// Extends the clique by candidates, which conflict with all its members, in every way that may beat the best weight.
    fn grow(&mut self, clique: &mut Vec<usize>, weight: u64, candidates: &[usize]) {
        if weight > self.best.0 {
            self.best = (weight, clique.clone());
        }
        let buffers = self.instance.buffers();
        let mut rest: u64 = candidates.iter().map(|&n| buffers[n].size).sum();
        for (k, &n) in candidates.iter().enumerate() {
            if weight + rest <= self.best.0 || self.left == 0 || self.watch.passed(1) {
                return;
            }
            self.left = self.left.saturating_sub(candidates.len() / 16 + 1);
            let next: Vec<usize> =
                candidates[k + 1..].iter().copied().filter(|&m| self.conflict(n, m)).collect();
            clique.push(n);
            self.grow(clique, weight + buffers[n].size, &next);
            clique.pop();
            rest -= buffers[n].size;
        }
    }
}
