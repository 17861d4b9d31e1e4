//! Lower bounds on the arena.

use crate::model::Instance;

/// A lower bound, and the moment that shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Bytes that any plan needs.
    pub bytes: u64,
    /// The time step at which so much is live; `None` if the bound comes from buffers that are not all live at one moment.
    pub time: Option<i64>,
    /// The buffers (indices) that show it.
    pub buffers: Vec<usize>,
}

/// The best of all bounds. O(n log n), and a bounded search for a clique where buffers have gaps.
pub fn lower_bound(instance: &Instance) -> Bound {
    let mut best = load_bound(instance);
    for (n, buffer) in instance.buffers().iter().enumerate() {
        let end = buffer.fixed.unwrap_or(0) + buffer.size;
        if end > best.bytes {
            best = Bound { bytes: end, time: None, buffers: vec![n] };
        }
    }
    if instance.buffers().iter().any(|buffer| !buffer.gaps.is_empty()) {
        let clique = clique_bound(instance, 20_000);
        if clique.bytes > best.bytes {
            best = clique;
        }
    }
    best
}

/// Greatest common divisor; `gcd(0, b) = b`.
pub fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The largest live load, every size rounded up to what all alignments have in common, save the topmost buffer's.
///
/// Of buffers that may share a place only the largest of those live at once counts.
pub fn load_bound(instance: &Instance) -> Bound {
    let buffers = instance.buffers();
    let unit = buffers.iter().fold(0, |unit, buffer| gcd(unit, buffer.align)).max(1);
    let group = groups(instance);
    let shared = |n: usize| group[n] != n || group.iter().filter(|&&other| other == n).count() > 1;
    let any_alias = buffers.iter().any(|buffer| buffer.alias.is_some());
    let mut events = Vec::with_capacity(2 * buffers.len());
    for (n, buffer) in buffers.iter().enumerate() {
        for (start, end, from, to) in buffer.pieces() {
            events.push((start, true, n, to - from));
            events.push((end, false, n, to - from));
        }
    }
    events.sort_unstable();
    // The multiset of what is lost to rounding at the top: only the largest counts.
    let mut lost = std::collections::BTreeMap::<u64, usize>::new();
    let mut members: std::collections::HashMap<usize, Vec<u64>> = std::collections::HashMap::new();
    let (mut load, mut best, mut time) = (0_u64, 0_u64, None);
    for &(at, starts, n, bytes) in &events {
        let rounded = bytes.next_multiple_of(unit);
        if any_alias && shared(n) {
            let sizes = members.entry(group[n]).or_default();
            load -= sizes.iter().max().copied().unwrap_or(0);
            if starts {
                sizes.push(bytes);
            } else if let Some(at) = sizes.iter().position(|&size| size == bytes) {
                sizes.swap_remove(at);
            }
            load += sizes.iter().max().copied().unwrap_or(0);
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
        let bound = load - lost.last_key_value().map_or(0, |(&lost, _)| lost.min(load));
        if bound > best {
            (best, time) = (bound, Some(at));
        }
    }
    let live = time.map_or(Vec::new(), |time| live_at(instance, time));
    Bound { bytes: best, time, buffers: live }
}

/// The buffers with bytes in use at `time`.
pub fn live_at(instance: &Instance, time: i64) -> Vec<usize> {
    let live = |&n: &usize| {
        instance.buffers()[n].pieces().iter().any(|&(start, end, ..)| start <= time && time < end)
    };
    (0..instance.len()).filter(live).collect()
}

/// The representative of each buffer's group of sharers.
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

/// The heaviest set of buffers found that conflict pair by pair, at whatever moments, with at most `nodes` steps.
///
/// Every such set is stacked in any plan. For lifetimes without gaps the load says the same.
pub fn clique_bound(instance: &Instance, nodes: usize) -> Bound {
    let buffers = instance.buffers();
    let pieces: Vec<_> = buffers.iter().map(|buffer| buffer.pieces()).collect();
    // A window leaves room in the buffer, so it does not count as a conflict here.
    let conflict = |a: usize, b: usize| {
        !instance.may_share(a, b)
            && pieces[a].iter().filter(|piece| piece.3 - piece.2 == buffers[a].size).any(|p| {
                pieces[b]
                    .iter()
                    .filter(|piece| piece.3 - piece.2 == buffers[b].size)
                    .any(|q| p.0 < q.1 && q.0 < p.1)
            })
    };
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(buffers[n].size));
    let mut best = (0, Vec::new());
    let mut left = nodes;
    for (k, &n) in order.iter().enumerate() {
        if left == 0 {
            break;
        }
        let candidates: Vec<usize> = order[k + 1..].iter().copied().filter(|&m| conflict(n, m)).collect();
        left = left.saturating_sub(order.len() / 16 + 1);
        grow(
            &mut vec![n],
            buffers[n].size,
            &candidates,
            &mut best,
            &mut left,
            &|a, b| conflict(a, b),
            &|n| buffers[n].size,
        );
    }
    Bound { bytes: best.0, time: None, buffers: best.1 }
}

fn grow(
    clique: &mut Vec<usize>,
    weight: u64,
    candidates: &[usize],
    best: &mut (u64, Vec<usize>),
    left: &mut usize,
    conflict: &dyn Fn(usize, usize) -> bool,
    size: &dyn Fn(usize) -> u64,
) {
    if weight > best.0 {
        *best = (weight, clique.clone());
    }
    let mut rest: u64 = candidates.iter().map(|&n| size(n)).sum();
    for (k, &n) in candidates.iter().enumerate() {
        if weight + rest <= best.0 || *left == 0 {
            return;
        }
        *left -= 1;
        let next: Vec<usize> = candidates[k + 1..].iter().copied().filter(|&m| conflict(n, m)).collect();
        clique.push(n);
        grow(clique, weight + size(n), &next, best, left, conflict, size);
        clique.pop();
        rest -= size(n);
    }
}
