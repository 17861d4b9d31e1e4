//! Greedy placement: buffers in some order, and a rule that picks each offset among the buffers placed before.
//!
//! Greedy by size with best fit is the planner of TensorFlow Lite (Pisarchyk and Lee, *Efficient Memory Management for Deep Neural Net
//! Inference*, 2020). No single order is good on every instance, so the planner tries several.

#![forbid(unsafe_code)]

use super::buffer::{Kind, Relation, align_up, relation};
use super::order::{Scratch, sort};
use super::{Buffer, Order, check::clash, lowest::place_lowest};
use crate::units::each;

/// The choice of a gap for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Fit {
    /// The smallest gap that holds the buffer.
    Best,
    /// The lowest gap that holds the buffer.
    First,
    /// The next buffer is always the one that can lie lowest, and the order only decides ties. Such plans are *canonical* (Moffitt,
    /// *MiniMalloc*, 2023): no buffer lies below one placed before it.
    Lowest,
}

/// A rule by which a planner makes a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rule {
    /// The order in which buffers are placed.
    pub order: Order,
    /// The order among buffers that `order` leaves equal.
    pub then: Order,
    /// The choice of the gap for a buffer.
    pub fit: Fit,
}

impl Rule {
    /// Creates a rule that sorts by `order` and then by `then`, and places by `fit`.
    pub const fn new(order: Order, then: Order, fit: Fit) -> Self {
        Self { order, then, fit }
    }
}

/// The rules worth trying, ordered so that the first ones complement each other best.
pub const RULES: [Rule; 12] = {
    use Fit::{Best, First, Lowest};
    use Order::{Area, Degree, Duration, End, Size, Start};
    [
        Rule::new(Size, Start, Best),
        Rule::new(Area, Size, Lowest),
        Rule::new(Degree, Size, Lowest),
        Rule::new(Start, Size, Best),
        Rule::new(Duration, Size, Lowest),
        Rule::new(End, Size, Best),
        Rule::new(Size, Duration, Best),
        Rule::new(Area, Size, Best),
        Rule::new(Size, Area, Lowest),
        Rule::new(Degree, Size, Best),
        Rule::new(Duration, Size, First),
        Rule::new(Start, Size, First),
    ]
};

/// Returns as many of the first [`RULES`] as the compiler can try on `n` buffers in about a second: all of them up
/// to 147 buffers, four at 256, one above 361.
pub const fn affordable_rules(n: usize) -> &'static [Rule] {
    /// Most pairs of buffers to examine.
    const PAIRS: usize = 4 * 256 * 256;
    let rules = match n.saturating_mul(n) {
        0 => RULES.len(),
        pairs => PAIRS / pairs,
    };
    let rules = if rules < 1 { 1 } else { rules };
    RULES.split_at(if rules > RULES.len() { RULES.len() } else { rules }).0
}

/// Places all `buffers` by one rule and returns the peak, or `None` if it would not be below `limit`; the offsets are invalid in that
/// case. O(n²) for n buffers (times the gaps of any two).
///
/// If `hints` is true, buffers follow their hints where that does not raise the peak.
pub(super) const fn place(
    buffers: &[Buffer<'_>],
    rule: Rule,
    hints: bool,
    limit: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Option<u64> {
    sort(buffers, rule.order, rule.then, scratch);
    match rule.fit {
        Fit::Lowest => place_lowest(buffers, limit, offsets, scratch),
        fit => place_in_order(buffers, scratch, offsets, limit, matches!(fit, Fit::Best), hints),
    }
}

const fn place_in_order(
    buffers: &[Buffer<'_>],
    scratch: &mut Scratch<'_>,
    offsets: &mut [u64],
    limit: u64,
    best: bool,
    hints: bool,
) -> Option<u64> {
    let kind = Kind::of(buffers);
    let mut peak = 0;
    each!(n, 0..buffers.len(), {
        let i = scratch.order[n];
        let b = &buffers[i];
        let offset = match b.fixed {
            Some(offset) => offset,
            None => {
                let (placed, _) = scratch.list.split_at(n);
                let found = find(buffers, kind, best, i, offsets, placed);
                prefer(buffers, hints, peak, i, found, offsets, placed)
            }
        };
        let end = offset + b.size;
        if end >= limit {
            return None;
        }
        peak = if end > peak { end } else { peak };
        offsets[i] = offset;
        insert(n, i, offsets, scratch.list);
    });
    Some(peak)
}

/// Inserts `i` after the last of `n` placed buffers that does not lie above it.
pub(super) const fn insert(n: usize, i: usize, offsets: &[u64], placed: &mut [usize]) {
    let mut k = n;
    while k > 0 && offsets[placed[k - 1]] > offsets[i] {
        placed[k] = placed[k - 1];
        k -= 1;
    }
    placed[k] = i;
}

/// A place found for a buffer.
pub(super) struct Found {
    /// The offset of the smallest or the lowest gap between the conflicting buffers.
    pub(super) offset: u64,
    /// The lowest two offsets of inputs and outputs whose place the buffer may take.
    shared: [Option<u64>; 2],
}

/// Finds a place for buffer `i` among `placed`.
pub(super) const fn find(
    buffers: &[Buffer<'_>],
    kind: Kind,
    best: bool,
    i: usize,
    offsets: &[u64],
    placed: &[usize],
) -> Found {
    let b = &buffers[i];
    let (start, stop) = (b.start, b.end);
    let mut top = 0;
    let mut room = u64::MAX;
    let mut found = Found { offset: 0, shared: [None; 2] };
    each!(k, 0..placed.len(), {
        let j = placed[k];
        let other = &buffers[j];
        let overlap = start < other.end && other.start < stop;
        if if overlap { kind.relaxed } else { kind.apart } {
            match relation(buffers, i, j) {
                Relation::Free => continue,
                Relation::InPlace => {
                    let at = if found.shared[0].is_none() { 0 } else { 1 };
                    found.shared[at] = Some(offsets[j]);
                }
                Relation::Conflict => {}
            }
        } else if !overlap {
            continue;
        }
        // An empty buffer takes no room at any offset.
        if other.size == 0 {
            continue;
        }
        let at = offsets[j];
        // A gap may end here, unless the search is over.
        if at > top && at - top < room {
            let start = align_up(top, b.align);
            if start <= at && at - start >= b.size {
                found.offset = start;
                room = if best { at - top } else { 0 };
            }
        }
        let end = at + other.size;
        top = if end > top { end } else { top };
    });
    if room == u64::MAX {
        found.offset = align_up(top, b.align);
    }
    found
}

/// Returns the offset of an input or output of buffer `i`, or the buffer's hint, if that raises the peak no more than the gap found, else
/// the offset of the gap.
pub(super) const fn prefer(
    buffers: &[Buffer<'_>],
    hints: bool,
    peak: u64,
    i: usize,
    found: Found,
    offsets: &[u64],
    placed: &[usize],
) -> u64 {
    let b = &buffers[i];
    let worst = found.offset + b.size;
    let worst = if worst > peak { worst } else { peak };
    if hints {
        if let Some(hint) = b.hint {
            if fits_at(buffers, i, hint, worst, offsets, placed) {
                return hint;
            }
        }
    }
    each!(k, 0..found.shared.len(), {
        if let Some(offset) = found.shared[k] {
            if fits_at(buffers, i, offset, worst, offsets, placed) {
                return offset;
            }
        }
    });
    found.offset
}

/// Returns whether buffer `i` may lie at `offset` and would end at `worst` or below.
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
    is_free(buffers, i, offset, offsets, placed)
}

/// Returns whether buffer `i` at `offset` clashes with none of the placed buffers.
pub(super) const fn is_free(
    buffers: &[Buffer<'_>],
    i: usize,
    offset: u64,
    offsets: &[u64],
    placed: &[usize],
) -> bool {
    each!(k, 0..placed.len(), {
        if clash(buffers, i, offset, placed[k], offsets[placed[k]]) {
            return false;
        }
    });
    true
}
