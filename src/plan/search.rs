//! Search for the best of several greedy plans.

#![forbid(unsafe_code)]

use super::order::{Scratch, degrees, sort_by_time};
use super::{Buffer, PlanError, Rule, bound::load_sorted, check, greedy::place};
use crate::units::each;

/// The result of a search.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) peak: u64,
    pub(super) bound: u64,
    pub(super) rule: Rule,
}

/// Checks the buffers, tries each of `rules`, and leaves the best offsets in `offsets`. O(n²) per rule for n buffers.
pub(super) const fn search(
    buffers: &[Buffer<'_>],
    rules: &[Rule],
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<Found, PlanError> {
    if rules.is_empty() {
        return Err(PlanError::NoRule);
    }
    if let Err(error) = check(buffers) {
        return Err(error);
    }
    #[allow(clippy::mem_replace_with_default, reason = "`take` is not const")]
    let trial = core::mem::replace(&mut scratch.trial, &mut []);
    sort_by_time(buffers, scratch);
    degrees(buffers, scratch);
    let bound = load_sorted(buffers, scratch.order, scratch.list).bound;
    let mut best = Found { peak: u64::MAX, bound, rule: rules[0] };
    let mut r = 0;
    while r < rules.len() && best.peak > bound {
        if let Some(peak) = place(buffers, rules[r], false, best.peak, trial, scratch) {
            (best.peak, best.rule) = (peak, rules[r]);
            copy(trial, offsets);
        }
        r += 1;
    }
    // Hints cost no memory: among equally good plans, keep the one that follows the most hints.
    let hints = hints(buffers);
    let mut followed = hints_followed(buffers, offsets);
    r = 0;
    while r < rules.len() && hints > 0 && (followed < hints || best.peak > bound) {
        if let Some(peak) = place(buffers, rules[r], true, best.peak.saturating_add(1), trial, scratch) {
            let follows = hints_followed(buffers, trial);
            if peak < best.peak || follows > followed {
                (best.peak, best.rule, followed) = (peak, rules[r], follows);
                copy(trial, offsets);
            }
        }
        r += 1;
    }
    if buffers.is_empty() {
        best.peak = 0;
    }
    Ok(best)
}

const fn hints(buffers: &[Buffer<'_>]) -> usize {
    let mut count = 0;
    each!(i, 0..buffers.len(), {
        count += buffers[i].hint.is_some() as usize;
    });
    count
}

const fn hints_followed(buffers: &[Buffer<'_>], offsets: &[u64]) -> usize {
    let mut count = 0;
    each!(i, 0..buffers.len(), {
        if let Some(hint) = buffers[i].hint {
            count += (hint == offsets[i]) as usize;
        }
    });
    count
}

const fn copy(from: &[u64], to: &mut [u64]) {
    each!(i, 0..from.len(), {
        to[i] = from[i];
    });
}
