//! Plans over several memories: fast ones that are small and slow ones that are large.

#![forbid(unsafe_code)]

use super::check::{check, clash};
use super::greedy::{find, insert, is_free, prefer};
use super::order::{Arrays, sort};
use super::{Buffer, Fit, Order, PlanError, Rule, buffer::Kind, message};
use crate::units::each;

/// A memory, such as on-chip or external RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tier {
    /// Size in bytes.
    pub capacity: u64,
    /// The cost of one access to one byte, in any unit.
    pub cost: u64,
}

/// A plan over several memories: a tier for each of `N` buffers, and an offset in it.
///
/// ```
/// use allotment::plan::{Buffer, Tier, TieredPlan, plan_tiers};
///
/// const TIERS: [Tier; 2] = [Tier { capacity: 4096, cost: 1 }, Tier { capacity: 1 << 20, cost: 8 }];
/// const BUFFERS: [Buffer; 3] = [
///     Buffer::new(4096, 0..4).accesses(1),
///     Buffer::new(2048, 0..2).accesses(9),
///     Buffer::new(4096, 2..4).accesses(9),
/// ];
/// const PLAN: TieredPlan<3, 2> = plan_tiers(&BUFFERS, &TIERS);
/// assert_eq!([PLAN.tier(0), PLAN.tier(1), PLAN.tier(2)], [1, 0, 0]);
/// assert_eq!([PLAN.peak(0), PLAN.peak(1)], [4096, 4096]);
/// assert_eq!(PLAN.cost(), 4096 * 8 + 2048 * 9 + 4096 * 9);
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct TieredPlan<'a, const N: usize, const T: usize> {
    buffers: &'a [Buffer<'a>; N],
    tiers: &'a [Tier; T],
    tier: [usize; N],
    offsets: [u64; N],
    cost: u128,
}

/// The rules that the planner tries.
const RULES: [Rule; 6] = [
    Rule::new(Order::Accesses, Order::Size, Fit::Best),
    Rule::new(Order::Size, Order::Accesses, Fit::Best),
    Rule::new(Order::Accesses, Order::Area, Fit::Best),
    Rule::new(Order::Area, Order::Size, Fit::Best),
    Rule::new(Order::Start, Order::Size, Fit::Best),
    Rule::new(Order::Duration, Order::Size, Fit::Best),
];

/// Plans `buffers` in several `tiers` in a `const`, like [`try_plan_tiers`]. Errors are compiler errors.
///
/// # Panics
///
/// If the buffers cannot be planned, or there is no room for one of them.
pub const fn plan_tiers<'a, const N: usize, const T: usize>(
    buffers: &'a [Buffer<'a>; N],
    tiers: &'a [Tier; T],
) -> TieredPlan<'a, N, T> {
    match try_plan_tiers(buffers, tiers) {
        Ok(plan) => plan,
        Err(error) => message::refuse(buffers, error),
    }
}

/// Plans `buffers` in several `tiers` as cheaply as it can. A buffer costs its size times its accesses times the cost of its tier. Tries
/// a few orders, each in O(n²) for n buffers, and keeps the cheapest plan, among equals the one that needs the least memory.
///
/// Buffers that are fixed or bound to a tier come first; each of the others goes to the cheapest tier that has a gap for it. A fixed
/// offset applies in any tier that the buffer gets. Buffers in different tiers share no memory.
///
/// # Errors
///
/// [`PlanError`] if the buffers cannot be planned, or no order finds room for all; the error then names the buffer that did not fit in
/// the first order.
pub const fn try_plan_tiers<'a, const N: usize, const T: usize>(
    buffers: &'a [Buffer<'a>; N],
    tiers: &'a [Tier; T],
) -> Result<TieredPlan<'a, N, T>, PlanError> {
    // Buffers may be fixed at equal offsets in different tiers, so ignore overlaps of fixed buffers here.
    match check(buffers) {
        Ok(()) | Err(PlanError::FixedOverlap(..)) => {}
        Err(error) => return Err(error),
    }
    each!(i, 0..N, {
        if let Some(tier) = buffers[i].tier {
            if tier >= T || tiers[tier].capacity < buffers[i].size {
                return Err(PlanError::Tier(i));
            }
        }
    });
    let mut best: Option<TieredPlan<'a, N, T>> = None;
    let mut error = None;
    each!(r, 0..RULES.len(), {
        match attempt(buffers, tiers, RULES[r]) {
            Ok(plan) => {
                let better = match &best {
                    Some(best) => {
                        plan.cost < best.cost || (plan.cost == best.cost && plan.total() < best.total())
                    }
                    None => true,
                };
                best = if better { Some(plan) } else { best };
            }
            Err(reason) if error.is_none() => error = Some(reason),
            Err(_) => {}
        }
    });
    match (best, error) {
        (Some(plan), _) => Ok(plan),
        (None, Some(error)) => Err(error),
        (None, None) => Err(PlanError::NoRule),
    }
}

const fn attempt<'a, const N: usize, const T: usize>(
    buffers: &'a [Buffer<'a>; N],
    tiers: &'a [Tier; T],
    rule: Rule,
) -> Result<TieredPlan<'a, N, T>, PlanError> {
    let kind = Kind::of(buffers);
    let mut arrays = Arrays::<N>::new();
    let mut scratch = arrays.scratch(N);
    sort(buffers, rule.order, rule.then, &mut scratch);
    let cheapest = by_cost(tiers);
    let mut plan = TieredPlan { buffers, tiers, tier: [T; N], offsets: [0; N], cost: 0 };
    // The buffers in each tier, by offset.
    let mut lists = [[0; N]; T];
    let mut lengths = [0; T];
    let mut peaks = [0; T];
    // Buffers without a choice come first: fixed ones, then those bound to a tier, then all others.
    each!(pass, 0..3, {
        each!(k, 0..N, {
            let i = scratch.order[k];
            let b = &buffers[i];
            let turn = if b.fixed.is_some() { 0 } else { 2 - b.tier.is_some() as usize };
            if turn != pass {
                continue;
            }
            let mut c = 0;
            while c < T && plan.tier[i] == T {
                let t = cheapest[c];
                c += 1;
                if let Some(bound) = b.tier {
                    if bound != t {
                        continue;
                    }
                }
                let (placed, _) = lists[t].split_at(lengths[t]);
                let offset = match b.fixed {
                    Some(offset) if is_free(buffers, i, offset, &plan.offsets, placed) => offset,
                    Some(_) => continue,
                    None => {
                        let found = find(buffers, kind, true, i, &plan.offsets, placed);
                        prefer(buffers, true, peaks[t], i, found, &plan.offsets, placed)
                    }
                };
                let end = offset + b.size;
                if end <= tiers[t].capacity {
                    peaks[t] = if end > peaks[t] { end } else { peaks[t] };
                    plan.tier[i] = t;
                    plan.offsets[i] = offset;
                    insert(lengths[t], i, &plan.offsets, &mut lists[t]);
                    lengths[t] += 1;
                }
            }
            if plan.tier[i] == T {
                return Err(PlanError::NoRoom(i));
            }
            plan.cost = plan.cost.saturating_add(cost(b, &tiers[plan.tier[i]]));
        });
    });
    Ok(plan)
}

/// Returns the cost of a buffer in a tier.
const fn cost(b: &Buffer<'_>, tier: &Tier) -> u128 {
    (b.size as u128 * b.accesses as u128).saturating_mul(tier.cost as u128)
}

/// Returns the tiers sorted by cost, the cheapest first, stably.
const fn by_cost<const T: usize>(tiers: &[Tier; T]) -> [usize; T] {
    let mut order = [0; T];
    each!(i, 0..T, {
        let mut k = i;
        while k > 0 && tiers[order[k - 1]].cost > tiers[i].cost {
            order[k] = order[k - 1];
            k -= 1;
        }
        order[k] = i;
    });
    order
}

impl<'a, const N: usize, const T: usize> TieredPlan<'a, N, T> {
    /// Returns the tier of buffer `i`. O(1).
    ///
    /// # Panics
    ///
    /// If there is no such buffer.
    pub const fn tier(&self, i: usize) -> usize {
        self.tier[i]
    }

    /// Returns the offset of buffer `i` in its tier, in bytes. O(1).
    ///
    /// # Panics
    ///
    /// If there is no such buffer.
    pub const fn offset(&self, i: usize) -> u64 {
        self.offsets[i]
    }

    /// Returns the bytes needed in tier `t`. O(n).
    pub const fn peak(&self, t: usize) -> u64 {
        let mut peak = 0;
        each!(i, 0..N, {
            let end = self.offsets[i] + self.buffers[i].size;
            if self.tier[i] == t && end > peak {
                peak = end;
            }
        });
        peak
    }

    /// Returns the cost of all accesses: the sum of sizes times accesses times tier costs. O(1).
    pub const fn cost(&self) -> u128 {
        self.cost
    }

    /// Returns the bytes needed in all tiers. O(n) per tier.
    const fn total(&self) -> u128 {
        let mut total: u128 = 0;
        each!(t, 0..T, {
            total += self.peak(t) as u128;
        });
        total
    }

    /// Checks every buffer and every pair again. O(n²).
    ///
    /// # Errors
    ///
    /// [`PlanError`] with the first error found. A `TieredPlan` never has one, so this method is meant for tests.
    pub const fn validate(&self) -> Result<(), PlanError> {
        each!(i, 0..N, {
            let (b, offset) = (&self.buffers[i], self.offsets[i]);
            if offset % b.align != 0 {
                return Err(PlanError::Misaligned(i));
            }
            let bound = match b.tier {
                Some(tier) => tier,
                None => self.tier[i],
            };
            let fixed = match b.fixed {
                Some(fixed) => fixed,
                None => offset,
            };
            if bound != self.tier[i] || fixed != offset {
                return Err(PlanError::Moved(i));
            }
            match offset.checked_add(b.size) {
                Some(end) if bound < T && end <= self.tiers[bound].capacity => {}
                _ => return Err(PlanError::Beyond(i)),
            }
            each!(j, 0..i, {
                if self.tier[j] == bound && clash(self.buffers, i, offset, j, self.offsets[j]) {
                    return Err(PlanError::Overlap(j, i));
                }
            });
        });
        Ok(())
    }
}
