//! Perfect packings: instances in which every byte is in use at all times, solved without a search.
//!
//! The buffers that end at a moment leave exactly the room for those that start then. So moments are the vertices of a planar graph and
//! buffers its edges, and an order of the live buffers is possible exactly if buffers that end together lie together. `Orders` keeps all
//! such orders while time passes; at the end any of them gives the offsets, backwards in time. Sizes matter only if several places change
//! at one moment: then ending and starting buffers are matched by equal sums. That is a guess, since sums may also be equal by chance.

use super::orders::Orders;
use crate::deadline::{Deadline, Watch};
use crate::model::{Instance, check};

/// The buffers that end and those that start at one moment.
#[derive(Default)]
struct Border {
    ends: Vec<u32>,
    starts: Vec<u32>,
}

/// A way to divide a moment into places that change: the buffers that end and start at each.
type Division = Vec<(Vec<u32>, Vec<u32>)>;

/// Largest number of passes over the borders, on average, if divisions turn out wrong.
const ROUNDS: usize = 20;

/// Places a plain instance in which every byte is in use at all times; `None` if some bytes are unused, no order was found, or `deadline`
/// passes. O(n · live) expected.
pub fn pack(instance: &Instance, deadline: &Deadline) -> Option<Vec<u64>> {
    let watch = &mut Watch::new(deadline);
    if watch.passed(0) {
        return None;
    }
    let borders = borders(instance, watch)?;
    let offsets = stack(instance, &borders, watch)?;
    // The stacking ignores alignments, so check the plan like any other.
    (check(instance.buffers(), &offsets, None, deadline) == Ok(true)).then_some(offsets)
}

/// Returns the moments in ascending order; `None` unless as many bytes end as start at each inner moment.
fn borders(instance: &Instance, watch: &mut Watch) -> Option<Vec<Border>> {
    let buffers = instance.buffers();
    let real = |&n: &usize| buffers[n].is_ever_live();
    let mut times: Vec<(i64, bool, u32)> = (0..buffers.len())
        .filter(real)
        .flat_map(|n| [(buffers[n].start, true, n as u32), (buffers[n].end, false, n as u32)])
        .collect();
    times.sort_unstable();
    let (mut borders, mut now): (Vec<Border>, _) = (Vec::new(), None);
    for (time, starts, n) in times {
        if watch.passed(20) {
            return None;
        }
        if now.replace(time) != Some(time) {
            borders.push(Border::default());
        }
        let border = borders.last_mut()?;
        if starts { &mut border.starts } else { &mut border.ends }.push(n);
    }
    let bytes = |list: &[u32]| list.iter().map(|&n| buffers[n as usize].size).sum::<u64>();
    let inner = borders.get(1..borders.len().saturating_sub(1))?;
    inner.iter().all(|border| bytes(&border.ends) == bytes(&border.starts)).then_some(borders)
}

/// A moment that can be divided in several ways, and the state before it.
struct Choice {
    border: usize,
    orders: Orders,
    started: usize,
    /// The ways left, the next last.
    ways: Vec<Division>,
}

/// Finds orders and offsets: goes through the moments, and if there is no order, back to the last moment that can be divided in another
/// way.
fn stack(instance: &Instance, borders: &[Border], watch: &mut Watch) -> Option<Vec<u64>> {
    let buffers = instance.buffers();
    let (first, inner) = borders.split_first()?;
    let (_, inner) = inner.split_last()?;
    let mut live = vec![first.starts.len()];
    live.extend(inner.iter().scan(first.starts.len(), |live, border| {
        *live = *live + border.starts.len() - border.ends.len();
        Some(*live)
    }));
    let mut orders = Orders::new(&first.starts);
    let mut ending = vec![false; buffers.len()];
    // The buffers that start at each border of `orders`, which has several borders for a divided moment.
    let mut started: Vec<Vec<u32>> = Vec::new();
    let mut choices: Vec<Choice> = Vec::new();
    let mut at = 0;
    let mut left = ROUNDS * inner.len();
    while at < inner.len() {
        // Most trees have about two nodes per live buffer, and are visited a few times.
        if left == 0 || watch.passed(40 * live[at] + 200) {
            return None;
        }
        left -= 1;
        let mut ways = divisions(instance, &inner[at], watch);
        let mut way = ways.pop();
        if !ways.is_empty() {
            choices.push(Choice { border: at, orders: orders.clone(), started: started.len(), ways });
        }
        loop {
            let groups = way?;
            let fits = groups.into_iter().all(|(ends, starts)| {
                ends.iter().for_each(|&n| ending[n as usize] = true);
                let fits = orders.replace(&ending, &starts);
                ends.iter().for_each(|&n| ending[n as usize] = false);
                started.push(starts);
                fits
            });
            if fits {
                break;
            }
            // Go back to the last moment with another way.
            let choice = choices.last_mut()?;
            way = choice.ways.pop();
            at = choice.border;
            started.truncate(choice.started);
            if choice.ways.is_empty() {
                orders = choices.pop()?.orders;
            } else {
                orders = choice.orders.clone();
            }
        }
        at += 1;
    }
    let lists = orders.finish();
    let mut offsets = vec![0_u64; buffers.len()];
    // Go backwards: buffers that start at a border are already placed, and buffers that end there lie in the same bytes.
    for (border, list) in lists.iter().enumerate().rev() {
        let starts = started.get(border).map_or(&[][..], Vec::as_slice);
        let mut offset = starts.iter().map(|&n| offsets[n as usize]).min().unwrap_or(0);
        for &n in list {
            offsets[n as usize] = offset;
            offset = offset.checked_add(buffers[n as usize].size)?;
        }
    }
    Some(offsets)
}

/// Largest number of buffers at a moment that is divided; up to two to this power subsets are tried.
const SUBSETS: usize = 16;

/// Largest number of ways to divide a moment.
const WAYS: usize = 24;

/// Returns the ways to divide a moment so that as many bytes end as start at each place, the likeliest last.
fn divisions(instance: &Instance, border: &Border, watch: &mut Watch) -> Vec<Division> {
    let mut ways = Vec::new();
    let count = border.ends.len() + border.starts.len();
    if border.ends.len() > 1 && border.starts.len() > 1 && count <= SUBSETS && !watch.passed(20 << count) {
        divide(instance, (&border.ends, &border.starts), &mut Vec::new(), &mut ways);
    }
    // With few buffers and many bytes, sums are seldom equal by chance, so the finest division is likeliest.
    ways.sort_by_key(Division::len);
    let bytes: u64 = border.ends.iter().map(|&n| instance.buffers()[n as usize].size).sum();
    let whole = vec![(border.ends.clone(), border.starts.clone())];
    if count <= SUBSETS && (1_u64 << count) < bytes / 64 {
        ways.insert(0, whole);
    } else {
        ways.push(whole);
    }
    ways
}

/// Adds the divisions of `rest` into two or more places, each after `before`.
fn divide(
    instance: &Instance,
    (ends, starts): (&[u32], &[u32]),
    before: &mut Division,
    ways: &mut Vec<Division>,
) {
    let sum = |list: &[u32], mask: u32| -> u64 {
        let chosen = list.iter().enumerate().filter(|&(k, _)| mask >> k & 1 == 1);
        chosen.map(|(_, &n)| instance.buffers()[n as usize].size).sum()
    };
    let all = |list: &[u32]| (1_u32 << list.len()) - 1;
    // Put the first ending buffer in the first place.
    for ended in (1..all(ends)).step_by(2) {
        let bytes = sum(ends, ended);
        for begun in (1..all(starts)).filter(|&mask| sum(starts, mask) == bytes) {
            if ways.len() >= WAYS {
                return;
            }
            let ((own, ends), (new, starts)) = (split(ends, ended), split(starts, begun));
            before.push((own, new));
            ways.push(before.iter().cloned().chain([(ends.clone(), starts.clone())]).collect());
            divide(instance, (&ends, &starts), before, ways);
            before.pop();
        }
    }
}

/// Returns the chosen buffers of a list, and the others.
fn split(list: &[u32], mask: u32) -> (Vec<u32>, Vec<u32>) {
    let (chosen, others): (Vec<_>, Vec<_>) = list.iter().enumerate().partition(|&(k, _)| mask >> k & 1 == 1);
    let buffers = |list: Vec<(usize, &u32)>| list.into_iter().map(|(_, &n)| n).collect();
    (buffers(chosen), buffers(others))
}
