//! Overwrites the contents of a buffer when its life ends.

use crate::plan::{Buffer, Interval, Placed};

/// NaN in floats, −1 in signed integers, and the largest value of unsigned ones.
const POISON: u8 = 0xFF;

/// Overwrites the buffers whose lives end between step `from` and step `to`, except for bytes that another buffer has taken over in
/// place. O(n²) for n buffers.
///
/// # Safety
///
/// `base` must be the start of the plan's arena, and nothing else may use the arena.
pub(super) unsafe fn poison(plan: Placed<'_>, base: *mut u8, from: u64, to: u64) {
    let (buffers, offsets) = (plan.buffers(), plan.offsets());
    let steps = Interval { start: from.min(to), end: from.max(to).saturating_add(1) };
    for (ended, &offset) in buffers.iter().zip(offsets) {
        if !ended.is_live(from) || lasts(ended, steps) {
            continue;
        }
        // The part taken over is at the buffer's start, since both buffers have the same offset.
        let taken = buffers
            .iter()
            .zip(offsets)
            .filter(|&(other, &at)| at == offset && other.is_live(from) && lasts(other, steps));
        let taken = taken.map(|(other, _)| other.size).max().unwrap_or(0).min(ended.size);
        // SAFETY: the plan guarantees that the buffer lies in the arena.
        unsafe { base.add((offset + taken) as usize).write_bytes(POISON, (ended.size - taken) as usize) };
    }
}

/// Returns whether the buffer is live during all of `steps`.
fn lasts(buffer: &Buffer<'_>, steps: Interval) -> bool {
    let lives = buffer.start <= steps.start && steps.end <= buffer.end;
    lives && !buffer.gaps.iter().any(|gap| gap.overlaps(&steps))
}
