//! What a buffer held is overwritten when its life ends.

use crate::plan::buffer::{Buffer, Interval};
use crate::plan::placed::Placed;

/// Not a number in floats, −1 in signed integers, the largest of unsigned ones.
const POISON: u8 = 0xFF;

/// Overwrites the buffers whose contents end between step `from` and step `to`, but for bytes that have become
/// those of a buffer that took their place. O(n²).
///
/// # Safety
///
/// `base` is the start of the arena of the plan, which nobody else uses.
pub(super) unsafe fn poison(plan: Placed<'_>, base: *mut u8, from: u64, to: u64) {
    let (buffers, offsets) = (plan.buffers(), plan.offsets());
    let steps = Interval { start: from.min(to), end: from.max(to).saturating_add(1) };
    for (ended, &offset) in buffers.iter().zip(offsets) {
        if !ended.is_live(from) || lasts(ended, steps) {
            continue;
        }
        // The part that others took over is at its start, since they share the offset.
        let taken = buffers
            .iter()
            .zip(offsets)
            .filter(|&(other, &at)| at == offset && other.is_live(from) && lasts(other, steps));
        let taken = taken.map(|(other, _)| other.size).max().unwrap_or(0).min(ended.size);
        // SAFETY: the buffer lies in the arena, as the plan says.
        unsafe { base.add((offset + taken) as usize).write_bytes(POISON, (ended.size - taken) as usize) };
    }
}

/// Whether the buffer is live at all of `steps`.
fn lasts(buffer: &Buffer<'_>, steps: Interval) -> bool {
    let lives = buffer.start <= steps.start && steps.end <= buffer.end;
    lives && !buffer.gaps.iter().any(|gap| gap.overlaps(&steps))
}
