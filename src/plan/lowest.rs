//! Canonical placement: the next buffer is always the one that can lie lowest.

#![forbid(unsafe_code)]

use super::buffer::{Kind, Relation, align_up, relation};
use super::{Buffer, order::Scratch};
use crate::units::each;

/// Repeatedly places the buffer that can lie lowest; the order in `scratch` decides ties. Treats pairs that may share a place as
/// conflicting, and fixed buffers as obstacles. Returns the peak if it is below `limit`. O(n²).
pub(super) const fn place_lowest(
    buffers: &[Buffer<'_>],
    limit: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Option<u64> {
    let kind = Kind::of(buffers);
    let mut peak = 0;
    // Fixed buffers come first in the order.
    let mut fixed = 0;
    while fixed < buffers.len() {
        let i = scratch.order[fixed];
        let Some(offset) = buffers[i].fixed else { break };
        offsets[i] = offset;
        let end = offset + buffers[i].size;
        peak = if end > peak { end } else { peak };
        fixed += 1;
    }
    if peak >= limit {
        return None;
    }
    // `list` has the buffers not yet placed, `offsets` the lowest offset that each can have so far, and `temp` the rank of each.
    let mut left = 0;
    each!(k, fixed..buffers.len(), {
        let i = scratch.order[k];
        scratch.list[left] = i;
        scratch.temp[i] = k;
        offsets[i] = above_fixed(buffers, i, 0, fixed, scratch.order);
        left += 1;
    });
    // Without fixed buffers, this is the first buffer of the order.
    let mut at = lowest(offsets, scratch, left);
    while left > 0 {
        let chosen = scratch.list[at];
        left -= 1;
        scratch.list[at] = scratch.list[left];
        let b = &buffers[chosen];
        let (start, stop) = (b.start, b.end);
        let end = offsets[chosen] + b.size;
        if end >= limit {
            return None;
        }
        peak = if end > peak { end } else { peak };
        // One pass raises the conflicting buffers and finds the next lowest one.
        let (mut low, mut rank) = (u64::MAX, usize::MAX);
        each!(k, 0..left, {
            let i = scratch.list[k];
            let mut offset = offsets[i];
            let other = &buffers[i];
            let overlap = start < other.end && other.start < stop;
            let mut conflict = overlap && offset < end;
            if offset < end && (if overlap { kind.relaxed } else { kind.apart }) {
                conflict = !matches!(relation(buffers, chosen, i), Relation::Free);
            }
            if conflict {
                offset = align_up(end, other.align);
                if fixed > 0 {
                    offset = above_fixed(buffers, i, offset, fixed, scratch.order);
                }
                offsets[i] = offset;
            }
            if offset < low || (offset == low && scratch.temp[i] < rank) {
                (low, rank, at) = (offset, scratch.temp[i], k);
            }
        });
    }
    Some(peak)
}

/// Returns the position in `scratch.list` of the buffer that can lie lowest.
const fn lowest(offsets: &[u64], scratch: &Scratch<'_>, left: usize) -> usize {
    let mut at = 0;
    each!(k, 1..left, {
        if offsets[scratch.list[k]] < offsets[scratch.list[at]] {
            at = k;
        }
    });
    at
}

/// Returns the lowest offset from `offset` on at which buffer `i` conflicts with none of the fixed buffers, which come first in `order`.
/// O(fixed²).
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
            let size = buffers[j].size;
            let meets = size > 0 && at < offset + buffers[i].size && offset < at + size;
            if meets && !matches!(relation(buffers, i, j), Relation::Free) {
                offset = align_up(at + buffers[j].size, buffers[i].align);
                k = 0;
            }
        }
    }
    offset
}
