//! What needs the standard library: a report to standard error.

#![forbid(unsafe_code)]

use super::OutOfMemory;
use crate::error::report::print;

/// Writes the error to standard error, as one line and without allocating. Pass it to
/// [`set_hook`](super::set_hook).
pub fn report_to_stderr(error: &OutOfMemory) {
    print(format_args!("{error}"));
}
