//! Greedy placement: places the buffers one after the other and never moves them again.

mod allocate;
mod baselines;
mod conflicts;
pub mod descent;
pub mod repair;

pub(crate) use allocate::allocated;
pub(crate) use baselines::baseline_order;
pub use baselines::{Baseline, baseline};
pub use conflicts::Conflicts;
pub(crate) use conflicts::LISTED;

use std::cmp::Reverse;

use crate::deadline::{Deadline, Watch};
use crate::model::Instance;

/// The order in which buffers are placed; equal buffers stay in the order of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Largest first.
    Size,
    /// Largest size × lifetime first.
    Area,
    /// Longest lifetime first.
    Length,
    /// Most conflicts first.
    Conflicts,
    /// In the order of their starts, as an allocator would see them.
    Start,
    /// Latest end first.
    End,
}

impl Order {
    /// All orders.
    pub const ALL: [Self; 6] =
        [Self::Size, Self::Area, Self::Length, Self::Conflicts, Self::Start, Self::End];

    /// Returns the number by which buffer `n` is ranked, larger numbers first.
    fn key(self, instance: &Instance, conflicts: &Conflicts, n: usize) -> f64 {
        let buffer = &instance.buffers()[n];
        let length = buffer.steps() as f64;
        match self {
            Self::Size => buffer.size as f64,
            Self::Area => buffer.size as f64 * length,
            Self::Length => length,
            Self::Conflicts => conflicts.degree(n) as f64,
            Self::Start => -(buffer.start as f64),
            Self::End => buffer.end as f64,
        }
    }
}

/// The choice among the free places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The lowest place.
    First,
    /// The place that leaves the least free space.
    Best,
}

/// Returns the buffers sorted by `order`; a noise of 0 to 1, with its seed, shuffles them a little.
pub fn ordered(
    instance: &Instance,
    conflicts: &Conflicts,
    order: Order,
    noise: Option<(f64, u64)>,
) -> Vec<usize> {
    let mut random = fastrand::Rng::with_seed(noise.map_or(0, |(_, seed)| seed));
    let mut keyed: Vec<(f64, usize)> = (0..instance.len())
        .map(|n| {
            (
                order.key(instance, conflicts, n)
                    * noise.map_or(1.0, |(noise, _)| 1.0 + noise * (random.f64() - 0.5)),
                n,
            )
        })
        .collect();
    // Fixed buffers cannot move, so they go first.
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    keyed.sort_by_key(|&(_, n)| Reverse(instance.buffers()[n].fixed.is_some()));
    keyed.into_iter().map(|(_, n)| n).collect()
}

/// Places the buffers in the given order. O(conflicts · log conflicts) time.
///
/// It uses gaps in lifetimes and shareable places. Fixed buffers lie at their offsets even if they overlap buffers before them in
/// `order`; the validator reports such overlaps.
pub fn place(instance: &Instance, conflicts: &Conflicts, order: &[usize], fit: Fit) -> Vec<u64> {
    complete(instance, conflicts, &vec![None; instance.len()], order, (fit, u64::MAX), &Deadline::never())
        .expect("a deadline that never passes stops nothing")
}

/// Completes a plan: buffers with an offset in `partial` keep it, the others are placed as by [`place`]; `None` if a buffer would end at
/// or above `most` bytes, or `deadline` passes first.
pub(crate) fn complete(
    instance: &Instance,
    conflicts: &Conflicts,
    partial: &[Option<u64>],
    order: &[usize],
    (fit, most): (Fit, u64),
    deadline: &Deadline,
) -> Option<Vec<u64>> {
    let mut offsets: Vec<u64> = partial.iter().map(|offset| offset.unwrap_or(0)).collect();
    let mut placed: Vec<bool> = partial.iter().map(Option::is_some).collect();
    let mut placer = Placer::new(instance, conflicts);
    let mut watch = Watch::new(deadline);
    for &n in order {
        if !std::mem::replace(&mut placed[n], true) {
            offsets[n] = placer.place(n, &offsets, |other| placed[other], fit, &mut watch)?;
            if offsets[n] + instance.buffers()[n].size >= most {
                return None;
            }
        } else if watch.passed(1) {
            return None;
        }
    }
    Some(offsets)
}

/// Finds places for single buffers among others.
pub(crate) struct Placer<'a> {
    instance: &'a Instance,
    conflicts: &'a Conflicts,
    /// The sizes of all buffers, if all are plain rectangles.
    plain: Option<Vec<i64>>,
    forbidden: Vec<(i64, i64)>,
    shares: Vec<u64>,
}

impl<'a> Placer<'a> {
    pub(crate) fn new(instance: &'a Instance, conflicts: &'a Conflicts) -> Self {
        let sizes = || instance.buffers().iter().map(|buffer| buffer.size as i64).collect();
        let plain = instance.is_plain().then(sizes);
        Self { instance, conflicts, plain, forbidden: Vec::new(), shares: Vec::new() }
    }

    /// Returns an offset for `n` among the buffers already `placed`; `None` if `watch` runs out.
    pub(crate) fn place(
        &mut self,
        n: usize,
        offsets: &[u64],
        placed: impl Fn(usize) -> bool,
        fit: Fit,
        watch: &mut Watch,
    ) -> Option<u64> {
        let Self { instance, conflicts, plain, forbidden, shares } = self;
        let work = conflicts.work(instance, n) + 1;
        if watch.passed(work) {
            return None;
        }
        let buffer = &instance.buffers()[n];
        if let Some(fixed) = buffer.fixed {
            return Some(fixed);
        }
        forbidden.clear();
        shares.clear();
        if let Some(sizes) = plain {
            conflicts.each(n, |other| {
                if placed(other) {
                    let at = offsets[other] as i64;
                    forbidden.push((at - sizes[n], at + sizes[other]));
                }
            });
            return Some(lowest(buffer.align, buffer.hint, fit, forbidden));
        }
        conflicts.each(n, |other| {
            if placed(other) {
                if instance.may_share(n, other) {
                    shares.push(offsets[other]);
                }
                conflicts.forbidden(instance, n, other, offsets[other], forbidden);
            }
        });
        let lowest = lowest(buffer.align, buffer.hint, fit, forbidden);
        // A shared place costs nothing if nothing else is in the way.
        shares.retain(|&offset| offset % buffer.align == 0 && offset <= lowest);
        for &offset in shares.iter() {
            if watch.passed(work) {
                return None;
            }
            forbidden.clear();
            conflicts.each(n, |other| {
                if placed(other) && !(instance.may_share(n, other) && offsets[other] == offset) {
                    conflicts.forbidden(instance, n, other, offsets[other], forbidden);
                }
            });
            if forbidden.iter().all(|&(lo, hi)| offset as i64 <= lo || offset as i64 >= hi) {
                return Some(offset);
            }
        }
        Some(lowest)
    }
}

/// Returns the lowest (or tightest) aligned offset outside of the open intervals `forbidden`.
fn lowest(align: u64, hint: Option<u64>, fit: Fit, forbidden: &mut [(i64, i64)]) -> u64 {
    forbidden.sort_unstable_by_key(|&(lo, _)| lo);
    // No plan reaches beyond half of all numbers.
    let near = |hint: &u64| hint.is_multiple_of(align) && *hint <= i64::MAX as u64 / 2;
    if let Some(hint) = hint.filter(near) {
        let at = hint as i64;
        if forbidden.iter().all(|&(lo, hi)| at <= lo || at >= hi) {
            return hint;
        }
    }
    let mut offset = 0_i64;
    let mut best: Option<(i64, i64)> = None;
    for &(lo, hi) in forbidden.iter() {
        // `offset..=lo` is free.
        if offset <= lo && fit == Fit::First {
            return offset as u64;
        }
        if offset <= lo && best.is_none_or(|(room, _)| lo - offset < room) {
            best = Some((lo - offset, offset));
        }
        if hi > offset {
            offset = (hi as u64).next_multiple_of(align) as i64;
        }
    }
    best.map_or(offset, |(_, offset)| offset) as u64
}
