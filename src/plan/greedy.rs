//! Greedy placement: an order, and a rule that picks each buffer's offset among those placed before.
//!
//! Greedy by size with best fit is TensorFlow Lite's planner (Pisarchyk and Lee, *Efficient Memory Management
//! for Deep Neural Net Inference*, 2020). No single order is good on every instance, so several are tried.

use super::buffer::{Buffer, Relation, relation};
use super::check::clash;

/// What buffers are sorted by; the largest, longest, or earliest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Order {
    /// Size, the larger first.
    Size,
    /// Size times length of life, the larger first.
    Area,
    /// Length of life, the longer first.
    Duration,
    /// First step, the earlier first.
    Start,
    /// Last step, the later first.
    End,
    /// Bytes that are live at the same time in other buffers, the more first.
    Degree,
}

/// Where a buffer goes when there are several places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Fit {
    /// In the smallest gap that holds it.
    Best,
    /// In the lowest gap that holds it.
    First,
    /// Not buffer by buffer: whichever can lie lowest is next, the order decides among equals. Plans made
    /// so are *canonical* (Moffitt, *MiniMalloc*, 2023): no buffer lies below one that was placed before.
    Lowest,
}

/// One way of making a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rule {
    /// What is placed first.
    pub order: Order,
    /// What is placed first among equals.
    pub then: Order,
    /// Where it is placed.
    pub fit: Fit,
}

impl Rule {
    const fn new(order: Order, then: Order, fit: Fit) -> Self {
        Self { order, then, fit }
    }
}

/// The rules that [`plan`](super::plan) tries, the most often successful first.
pub const RULES: [Rule; 12] = {
    use Fit::{Best, First, Lowest};
    use Order::{Area, Degree, Duration, End, Size, Start};
    [
        Rule::new(Size, Start, Best),
        Rule::new(Size, Duration, Best),
        Rule::new(Area, Size, Best),
        Rule::new(Area, Size, Lowest),
        Rule::new(Duration, Size, Lowest),
        Rule::new(Size, Area, Lowest),
        Rule::new(Degree, Size, Best),
        Rule::new(Degree, Size, Lowest),
        Rule::new(Duration, Size, First),
        Rule::new(Start, Size, Best),
        Rule::new(Start, Size, First),
        Rule::new(End, Size, Best),
    ]
};

/// Room for a planner to work in; as long as the instance.
pub(super) struct Scratch<'s> {
    /// Buffers in the order in which they are placed.
    pub(super) order: &'s mut [usize],
    /// What they are sorted by.
    pub(super) keys: &'s mut [(u64, u64)],
    /// Placed buffers, by their offset.
    pub(super) placed: &'s mut [usize],
}

/// Places all `buffers` by one rule. Returns the peak; none if it would not be below `limit`, and then the
/// offsets are of no use. O(n²) for n buffers (and gaps of any two).
///
/// `hints` says whether hints are followed where that does not raise the peak.
pub(super) const fn place(
    buffers: &[Buffer<'_>],
    rule: Rule,
    hints: bool,
    limit: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Option<u64> {
    sort(buffers, rule, scratch);
    match rule.fit {
        Fit::Lowest => place_lowest(buffers, limit, offsets, scratch),
        fit => place_in_order(buffers, matches!(fit, Fit::Best), hints, limit, offsets, scratch),
    }
}

/// Whether time alone decides which buffers of the instance conflict.
const fn is_plain(buffers: &[Buffer<'_>]) -> bool {
    let mut i = 0;
    while i < buffers.len() {
        let b = &buffers[i];
        if !b.gaps.is_empty() || !b.apart.is_empty() || b.alias.is_some() {
            return false;
        }
        i += 1;
    }
    true
}

/// What `order` sorts by: the largest comes first.
const fn key(buffers: &[Buffer<'_>], i: usize, order: Order) -> u64 {
    let b = &buffers[i];
    match order {
        Order::Size => b.size,
        Order::Area => b.size.saturating_mul(b.end - b.start),
        Order::Duration => b.end - b.start,
        Order::Start => u64::MAX - b.start,
        Order::End => b.end,
        Order::Degree => {
            let mut sum: u64 = 0;
            let mut j = 0;
            while j < buffers.len() {
                let other = &buffers[j];
                if b.start < other.end && other.start < b.end {
                    sum = sum.saturating_add(other.size);
                }
                j += 1;
            }
            sum
        }
    }
}

/// Fills `scratch.order`: fixed buffers first, then by the rule, equals by their index. An insertion sort,
/// which a `const` runs fastest.
const fn sort(buffers: &[Buffer<'_>], rule: Rule, scratch: &mut Scratch<'_>) {
    let mut i = 0;
    while i < buffers.len() {
        let fixed = buffers[i].fixed.is_some();
        let own = (key(buffers, i, rule.order), key(buffers, i, rule.then));
        scratch.keys[i] = own;
        let mut k = i;
        while k > 0 {
            let other = scratch.order[k - 1];
            let key = scratch.keys[other];
            let smaller = key.0 < own.0 || (key.0 == own.0 && key.1 < own.1);
            let before = if buffers[other].fixed.is_some() == fixed { smaller } else { fixed };
            if !before {
                break;
            }
            scratch.order[k] = other;
            k -= 1;
        }
        scratch.order[k] = i;
        i += 1;
    }
}

const fn place_in_order(
    buffers: &[Buffer<'_>],
    best: bool,
    hints: bool,
    limit: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Option<u64> {
    let plain = is_plain(buffers);
    let mut peak = 0;
    let mut n = 0;
    while n < buffers.len() {
        let i = scratch.order[n];
        let b = &buffers[i];
        let offset = match b.fixed {
            Some(offset) => offset,
            None => {
                let (placed, _) = scratch.placed.split_at(n);
                let found = find(buffers, plain, best, i, offsets, placed);
                prefer(buffers, plain, hints, peak, i, found, offsets, placed)
            }
        };
        let end = offset + b.size;
        if end >= limit {
            return None;
        }
        peak = if end > peak { end } else { peak };
        offsets[i] = offset;
        insert(n, i, offsets, scratch.placed);
        n += 1;
    }
    Some(peak)
}

/// Puts `i` behind the last of `n` placed buffers that does not lie above it.
const fn insert(n: usize, i: usize, offsets: &[u64], placed: &mut [usize]) {
    let mut k = n;
    while k > 0 && offsets[placed[k - 1]] > offsets[i] {
        placed[k] = placed[k - 1];
        k -= 1;
    }
    placed[k] = i;
}

/// Rounds up to a multiple of `align`, a power of two; the instance was checked, so it does not overflow.
const fn align_up(value: u64, align: u64) -> u64 {
    (value + (align - 1)) & !(align - 1)
}

/// The smallest or the lowest gap between the conflicting buffers among `placed` that holds buffer `i`.
const fn find(
    buffers: &[Buffer<'_>],
    plain: bool,
    best: bool,
    i: usize,
    offsets: &[u64],
    placed: &[usize],
) -> u64 {
    let b = &buffers[i];
    let mut top = 0;
    let mut found = None;
    let mut room = u64::MAX;
    let mut k = 0;
    while k < placed.len() {
        let j = placed[k];
        let other = &buffers[j];
        k += 1;
        let conflict = if plain {
            b.start < other.end && other.start < b.end
        } else {
            // A shared place is a matter of `prefer`.
            !matches!(relation(buffers, i, j), Relation::Free)
        };
        if !conflict || other.size == 0 {
            continue;
        }
        let at = offsets[j];
        if at > top {
            let start = align_up(top, b.align);
            let gap = at - top;
            if start <= at && at - start >= b.size && gap < room {
                if !best {
                    return start;
                }
                (found, room) = (Some(start), gap);
            }
        }
        let end = at + other.size;
        top = if end > top { end } else { top };
    }
    match found {
        Some(offset) => offset,
        None => align_up(top, b.align),
    }
}

/// The place of an input or output of buffer `i`, or its hint, if that is as good as `found`.
#[allow(clippy::too_many_arguments, reason = "what `place_in_order` knows")]
const fn prefer(
    buffers: &[Buffer<'_>],
    plain: bool,
    hints: bool,
    peak: u64,
    i: usize,
    found: u64,
    offsets: &[u64],
    placed: &[usize],
) -> u64 {
    let b = &buffers[i];
    let mut chosen = found;
    let worst = found + b.size;
    let worst = if worst > peak { worst } else { peak };
    let mut k = 0;
    while !plain && k < placed.len() {
        let j = placed[k];
        k += 1;
        let pair = match (b.alias, buffers[j].alias) {
            (Some(input), _) if input == j => true,
            (_, Some(input)) => input == i,
            _ => false,
        };
        if pair && fits_at(buffers, i, offsets[j], worst, offsets, placed) {
            chosen = offsets[j];
            break;
        }
    }
    if hints {
        if let Some(hint) = b.hint {
            if fits_at(buffers, i, hint, worst, offsets, placed) {
                chosen = hint;
            }
        }
    }
    chosen
}

/// Whether buffer `i` may lie at `offset` and ends at `worst` or below.
const fn fits_at(
    buffers: &[Buffer<'_>],
    i: usize,
    offset: u64,
    worst: u64,
    offsets: &[u64],
    placed: &[usize],
) -> bool {
    if offset % buffers[i].align != 0 || offset > worst || worst - offset < buffers[i].size {
        return false;
    }
    let mut k = 0;
    while k < placed.len() {
        if clash(buffers, i, offset, placed[k], offsets[placed[k]]) {
            return false;
        }
        k += 1;
    }
    true
}

/// Again and again places the buffer that can lie lowest. Pairs that may share a place are treated as if they
/// might not, and fixed buffers as obstacles.
const fn place_lowest(
    buffers: &[Buffer<'_>],
    limit: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Option<u64> {
    let plain = is_plain(buffers);
    // `placed` marks what is placed; `offsets` is the lowest that each can have.
    let mut peak = 0;
    let mut n = 0;
    while n < buffers.len() {
        scratch.placed[n] = 0;
        offsets[n] = 0;
        n += 1;
    }
    let fixed = count_fixed(buffers);
    n = 0;
    while n < fixed {
        let i = scratch.order[n];
        if let Some(offset) = buffers[i].fixed {
            offsets[i] = offset;
            peak = if offset + buffers[i].size > peak { offset + buffers[i].size } else { peak };
        }
        scratch.placed[i] = 1;
        n += 1;
    }
    let mut k = fixed;
    while k < buffers.len() && fixed > 0 {
        let i = scratch.order[k];
        offsets[i] = above_fixed(buffers, i, 0, fixed, scratch.order);
        k += 1;
    }
    while n < buffers.len() {
        let mut lowest = u64::MAX;
        let mut chosen = 0;
        let mut k = fixed;
        while k < buffers.len() {
            let i = scratch.order[k];
            if scratch.placed[i] == 0 && offsets[i] < lowest {
                (lowest, chosen) = (offsets[i], i);
            }
            k += 1;
        }
        scratch.placed[chosen] = 1;
        let end = lowest + buffers[chosen].size;
        if end >= limit {
            return None;
        }
        peak = if end > peak { end } else { peak };
        let b = &buffers[chosen];
        let mut j = 0;
        while j < buffers.len() {
            if scratch.placed[j] == 0 && offsets[j] < end {
                let conflict = if plain {
                    b.start < buffers[j].end && buffers[j].start < b.end
                } else {
                    !matches!(relation(buffers, chosen, j), Relation::Free)
                };
                if conflict {
                    offsets[j] = align_up(end, buffers[j].align);
                    if fixed > 0 {
                        offsets[j] = above_fixed(buffers, j, offsets[j], fixed, scratch.order);
                    }
                }
            }
            j += 1;
        }
        n += 1;
    }
    if peak < limit { Some(peak) } else { None }
}

const fn count_fixed(buffers: &[Buffer<'_>]) -> usize {
    let mut count = 0;
    let mut i = 0;
    while i < buffers.len() {
        count += buffers[i].fixed.is_some() as usize;
        i += 1;
    }
    count
}

/// The lowest offset from `offset` on at which buffer `i` meets none of the fixed ones, which stand first in
/// `order`. O(fixed²).
const fn above_fixed(
    buffers: &[Buffer<'_>],
    i: usize,
    mut offset: u64,
    fixed: usize,
    order: &[usize],
) -> u64 {
    let mut k = 0;
    while k < fixed {
        let j = order[k];
        k += 1;
        if let Some(at) = buffers[j].fixed {
            let meets = at < offset + buffers[i].size && offset < at + buffers[j].size;
            if meets && !matches!(relation(buffers, i, j), Relation::Free) {
                offset = align_up(at + buffers[j].size, buffers[i].align);
                k = 0;
            }
        }
    }
    offset
}
