//! The validator: checks a plan by sweeping over time, and shares no code with the planners.

pub use crate::model::Violation;

use crate::deadline::Deadline;
use crate::model::{Instance, check};

/// Checks `offsets` against `instance` and, if given, a capacity in bytes. O(n log n) for plain buffers.
///
/// # Errors
/// The first [`Violation`] found.
pub fn validate(instance: &Instance, offsets: &[u64], capacity: Option<u64>) -> Result<(), Violation> {
    check(instance.buffers(), offsets, capacity, &Deadline::never()).map(|_| ())
}
