//! Checks of instances and of plans.

#![forbid(unsafe_code)]

use super::buffer::{Relation, relation};
use super::{Buffer, PlanError};
use crate::units::each;

/// Checks that `buffers` can be planned. O(n + f²) for f fixed buffers.
///
/// # Errors
///
/// [`PlanError`] with the first error found.
pub const fn check(buffers: &[Buffer<'_>]) -> Result<(), PlanError> {
    let mut total: u64 = 0;
    let mut highest: u64 = 0;
    each!(i, 0..buffers.len(), {
        let b = &buffers[i];
        if !b.align.is_power_of_two() {
            return Err(PlanError::Align(i));
        }
        if b.start > b.end {
            return Err(PlanError::Lifetime(i));
        }
        if !gaps_are_right(b) {
            return Err(PlanError::Gaps(i));
        }
        if !references_are_right(buffers, i) {
            return Err(PlanError::Reference(i));
        }
        if let Some(offset) = b.fixed {
            if offset % b.align != 0 {
                return Err(PlanError::FixedAlign(i));
            }
            match offset.checked_add(b.size) {
                Some(end) => highest = if end > highest { end } else { highest },
                None => return Err(PlanError::TooLarge(i)),
            }
        }
        // No planner lets a buffer end above the sum of all padded sizes and the highest fixed end.
        let padded = b.size.checked_add(b.align - 1);
        let Some(sum) = add(total, padded) else { return Err(PlanError::TooLarge(i)) };
        // The largest number stands for "no plan yet".
        match highest.checked_add(sum) {
            Some(most) if most < u64::MAX => {}
            _ => return Err(PlanError::TooLarge(i)),
        }
        total = sum;
    });
    fixed_are_apart(buffers)
}

const fn add(sum: u64, value: Option<u64>) -> Option<u64> {
    match value {
        Some(value) => sum.checked_add(value),
        None => None,
    }
}

const fn gaps_are_right(b: &Buffer<'_>) -> bool {
    let mut free_from = b.start;
    each!(i, 0..b.gaps.len(), {
        let gap = b.gaps[i];
        let touches = i > 0 && gap.start == free_from;
        if gap.start < free_from || touches || gap.start >= gap.end || gap.end > b.end {
            return false;
        }
        free_from = gap.end;
    });
    // A buffer whose lifetime is one gap is never live.
    b.gaps.is_empty() || b.gaps[0].start != b.start || b.gaps[0].end != b.end
}

const fn references_are_right(buffers: &[Buffer<'_>], i: usize) -> bool {
    let mut right = match buffers[i].alias {
        Some(other) => other < buffers.len() && other != i,
        None => true,
    };
    let mut k = 0;
    while right && k < buffers[i].apart.len() {
        let other = buffers[i].apart[k];
        right = other < buffers.len() && other != i;
        k += 1;
    }
    right
}

const fn fixed_are_apart(buffers: &[Buffer<'_>]) -> Result<(), PlanError> {
    each!(i, 0..buffers.len(), {
        if let Some(first) = buffers[i].fixed {
            each!(j, 0..i, {
                if let Some(second) = buffers[j].fixed {
                    if clash(buffers, j, second, i, first) {
                        return Err(PlanError::FixedOverlap(j, i));
                    }
                }
            });
        }
    });
    Ok(())
}

/// Returns whether buffers `i` and `j` cannot both lie at these offsets. O(gaps and `apart` of both).
pub(super) const fn clash(buffers: &[Buffer<'_>], i: usize, at_i: u64, j: usize, at_j: u64) -> bool {
    let (size_i, size_j) = (buffers[i].size, buffers[j].size);
    // An empty buffer takes no room at any offset.
    if size_i == 0
        || size_j == 0
        || at_i >= at_j.saturating_add(size_j)
        || at_j >= at_i.saturating_add(size_i)
    {
        return false;
    }
    match relation(buffers, i, j) {
        Relation::Free => false,
        Relation::InPlace => at_i != at_j,
        Relation::Conflict => true,
    }
}

/// Checks a plan of `buffers` within `capacity` bytes and returns the bytes that it uses. Every offset must be aligned, fixed buffers
/// must be at their offsets, and no two conflicting buffers may overlap. O(n²). A plan from elsewhere, such as a file, must pass this
/// check before use.
///
/// # Errors
///
/// [`PlanError`] with the first error found. The buffers themselves must have passed [`check`].
pub const fn validate(buffers: &[Buffer<'_>], offsets: &[u64], capacity: u64) -> Result<u64, PlanError> {
    if buffers.len() != offsets.len() {
        return Err(PlanError::Length);
    }
    let mut peak = 0;
    each!(i, 0..buffers.len(), {
        let (b, offset) = (&buffers[i], offsets[i]);
        // An alignment of zero can occur only in an instance that was not checked.
        if b.align == 0 || offset % b.align != 0 {
            return Err(PlanError::Misaligned(i));
        }
        if let Some(fixed) = b.fixed {
            if fixed != offset {
                return Err(PlanError::Moved(i));
            }
        }
        let end = match offset.checked_add(b.size) {
            Some(end) if end <= capacity => end,
            _ => return Err(PlanError::Beyond(i)),
        };
        peak = if end > peak { end } else { peak };
        each!(j, 0..i, {
            if clash(buffers, i, offset, j, offsets[j]) {
                return Err(PlanError::Overlap(j, i));
            }
        });
    });
    Ok(peak)
}
