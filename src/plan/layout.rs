//! Plans of a fixed number of buffers, made in a `const`.

#![forbid(unsafe_code)]

use super::placed::{alignment, naive};
use super::search::{Found, search};
use super::{
    Buffer, Load, Placed, PlanError, Rule, affordable_rules, check, load, message, order::Arrays, validate,
};

/// A plan: an offset for each of `N` buffers.
///
/// ```
/// use allotment::plan::{Buffer, Plan, plan};
///
/// const BUFFERS: [Buffer; 3] = [
///     Buffer::new(1024, 0..2).align(16),
///     Buffer::new(4096, 1..3).align(16),
///     Buffer::new(1024, 2..4).align(16),
/// ];
/// const PLAN: Plan<3> = plan(&BUFFERS).within(8 * 1024);
///
/// assert_eq!(PLAN.peak(), 5120);
/// assert_eq!(PLAN.lower_bound(), 5120); // so it is optimal
/// assert_eq!(PLAN.offset(0), PLAN.offset(2));
/// assert_eq!(PLAN.validate(), Ok(5120));
/// ```
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Plan<'a, const N: usize> {
    buffers: &'a [Buffer<'a>; N],
    offsets: [u64; N],
    peak: u64,
    bound: u64,
    rule: Option<Rule>,
}

/// Plans `buffers` in a `const`. Errors are compiler errors.
///
/// The planner keeps the best plan of the [`RULES`](super::RULES) that the compiler can try in about a second, each in O(n²); see
/// [`affordable_rules`]. Beyond some 700 buffers it takes longer, and the compiler asks for `#![allow(long_running_const_eval)]`. At run
/// time, or to choose the rules, use [`try_plan`].
///
/// # Panics
///
/// If the buffers cannot be planned; see [`PlanError`].
pub const fn plan<'a, const N: usize>(buffers: &'a [Buffer<'a>; N]) -> Plan<'a, N> {
    match try_plan(buffers, affordable_rules(N)) {
        Ok(plan) => plan,
        Err(error) => message::refuse(buffers, error),
    }
}

/// Plans `buffers` by each of `rules` and keeps the best plan. O(n²) time per rule; O(n) memory, on the stack.
///
/// ```
/// use allotment::plan::{Buffer, RULES, try_plan};
///
/// let buffers = [Buffer::new(100, 0..2), Buffer::new(100, 2..4)];
/// assert_eq!(try_plan(&buffers, &RULES)?.peak(), 100);
/// # Ok::<(), allotment::plan::PlanError>(())
/// ```
///
/// # Errors
///
/// [`PlanError`] if the buffers cannot be planned or there is no rule.
pub const fn try_plan<'a, const N: usize>(
    buffers: &'a [Buffer<'a>; N],
    rules: &[Rule],
) -> Result<Plan<'a, N>, PlanError> {
    let (mut offsets, mut arrays) = ([0; N], Arrays::<N>::new());
    match search(buffers, rules, &mut offsets, &mut arrays.scratch(N)) {
        Ok(Found { peak, bound, rule }) => Ok(Plan { buffers, offsets, peak, bound, rule: Some(rule) }),
        Err(error) => Err(error),
    }
}

impl<'a, const N: usize> Plan<'a, N> {
    /// Creates a plan from offsets found elsewhere, for instance by the host planner. O(n²).
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the buffers cannot be planned, or the offsets are not a valid plan for them.
    pub const fn from_offsets(buffers: &'a [Buffer<'a>; N], offsets: [u64; N]) -> Result<Self, PlanError> {
        if let Err(error) = check(buffers) {
            return Err(error);
        }
        match validate(buffers, &offsets, u64::MAX) {
            Ok(peak) => Ok(Self { buffers, offsets, peak, bound: load(buffers).bound, rule: None }),
            Err(violation) => Err(violation),
        }
    }

    /// Returns the plan unchanged if it needs at most `capacity` bytes. O(1), or O(n²) if it does not fit.
    ///
    /// # Panics
    ///
    /// If the plan needs more. In a `const` this is a compiler error that names the buffers live at the worst step:
    ///
    /// ```compile_fail
    /// # use allotment::plan::{Buffer, Plan, plan};
    /// const BUFFERS: [Buffer; 2] = [Buffer::new(600, 0..2).name("input"), Buffer::new(600, 1..3).name("output")];
    /// const PLAN: Plan<2> = plan(&BUFFERS).within(1000);
    /// // the plan needs 1200 B but the arena has 1000 B; the worst moment is step 1 with 1200 B live:
    /// // input (600 B), output (600 B)
    /// # fn main() { PLAN.peak(); }
    /// ```
    pub const fn within(self, capacity: u64) -> Self {
        if self.peak > capacity {
            message::too_large(self.buffers, self.peak, capacity)
        }
        self
    }

    /// Returns the bytes of the smallest arena that holds the plan. O(1).
    pub const fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the bytes that every plan needs: the maximum live load, with alignment. If it equals the peak, the
    /// plan is optimal. O(1).
    pub const fn lower_bound(&self) -> u64 {
        self.bound
    }

    /// Returns the step at which the buffers need the most memory. O(n²).
    pub const fn worst_moment(&self) -> Load {
        load(self.buffers)
    }

    /// Returns the bytes that the buffers would take if none shared memory, including alignment padding. O(n).
    pub const fn naive(&self) -> u64 {
        naive(self.buffers)
    }

    /// Returns the largest alignment of a buffer, which the arena must have. O(n).
    pub const fn align(&self) -> u64 {
        alignment(self.buffers)
    }

    /// Returns the offset of buffer `i` in bytes. O(1).
    ///
    /// # Panics
    ///
    /// If there is no such buffer.
    pub const fn offset(&self, i: usize) -> u64 {
        self.offsets[i]
    }

    /// Returns the offsets of all buffers in bytes.
    pub const fn offsets(&self) -> &[u64; N] {
        &self.offsets
    }

    /// Returns the buffers.
    pub const fn buffers(&self) -> &'a [Buffer<'a>; N] {
        self.buffers
    }

    /// Returns the plan without the number of buffers in its type. O(1).
    pub const fn placed(&'a self) -> Placed<'a> {
        Placed { buffers: self.buffers, offsets: &self.offsets, peak: self.peak, bound: self.bound }
    }

    /// Returns the rule that made the plan, or `None` for a plan from elsewhere.
    pub const fn rule(&self) -> Option<Rule> {
        self.rule
    }

    /// Checks every buffer and every pair again, and returns the peak. O(n²).
    ///
    /// # Errors
    ///
    /// [`PlanError`] with the first error found. A `Plan` never has one, so this method is meant for tests.
    pub const fn validate(&self) -> Result<u64, PlanError> {
        validate(self.buffers, &self.offsets, self.peak)
    }
}
