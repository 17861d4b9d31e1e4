//! Plans of buffers whose number becomes known only at run time.

#![forbid(unsafe_code)]

#[cfg(feature = "std")]
use super::greedy::RULES;
use super::search::{Found, search};
use super::{Buffer, Placed, PlanError, Rule, check, load, order::Scratch, validate};
use alloc::vec;
use alloc::vec::Vec;

/// An offset for each buffer of a slice (feature `alloc`): the counterpart of [`Plan`](super::Plan), which is for
/// arrays.
///
/// ```
/// use allotment::plan::{Buffer, OwnedPlan, RULES};
///
/// let buffers: Vec<_> = (0..100).map(|step| Buffer::new(1000 + step * 8, step..step + 2).align(64)).collect();
/// let plan = OwnedPlan::new(&buffers, &RULES)?;
/// assert!(plan.placed().peak() <= 2 * 1856);
/// # Ok::<(), allotment::plan::PlanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OwnedPlan<'a> {
    buffers: &'a [Buffer<'a>],
    offsets: Vec<u64>,
    peak: u64,
    bound: u64,
}

impl<'a> OwnedPlan<'a> {
    /// Plans `buffers` by each of `rules` and keeps the best plan. O(n²) time per rule, O(n) memory.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the buffers cannot be planned or there is no rule.
    pub fn new(buffers: &'a [Buffer<'a>], rules: &[Rule]) -> Result<Self, PlanError> {
        let n = buffers.len();
        let (mut lists, mut sums, mut keys) = (vec![0; 3 * n], vec![0; 2 * n], vec![(0, 0); n]);
        let ((order, lists), (degree, trial)) = (lists.split_at_mut(n), sums.split_at_mut(n));
        let (list, temp) = lists.split_at_mut(n);
        let mut scratch = Scratch { order, keys: &mut keys, list, temp, degree, trial };
        let mut offsets = vec![0; n];
        let Found { peak, bound, .. } = search(buffers, rules, &mut offsets, &mut scratch)?;
        Ok(Self { buffers, offsets, peak, bound })
    }

    /// Creates a plan from offsets found elsewhere, for instance by the host planner. O(n²).
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the buffers cannot be planned, or the offsets are not a valid plan for them.
    pub fn from_offsets(buffers: &'a [Buffer<'a>], offsets: Vec<u64>) -> Result<Self, PlanError> {
        check(buffers)?;
        let peak = validate(buffers, &offsets, u64::MAX)?;
        Ok(Self { buffers, offsets, peak, bound: load(buffers).bound })
    }

    /// Returns the buffers with their offsets and the peak. O(1).
    pub fn placed(&self) -> Placed<'_> {
        Placed { buffers: self.buffers, offsets: &self.offsets, peak: self.peak, bound: self.bound }
    }
}

/// Returns as many of the first [`RULES`] as take at most a few seconds for `n` buffers, but at least one.
#[cfg(feature = "std")]
pub(crate) fn rules_for(n: usize) -> &'static [Rule] {
    /// Most pairs of buffers to examine.
    const PAIRS: usize = 1 << 28;
    let rules = PAIRS / n.saturating_mul(n).max(1);
    &RULES[..rules.clamp(1, RULES.len())]
}
