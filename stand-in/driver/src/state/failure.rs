//! Failures that a test has asked for.

use crate::abi::Code;

/// A failure that a test has asked for.
pub struct Failure {
    pub name: String,
    /// How many calls still succeed.
    pub after: u64,
    /// How many calls fail after that.
    pub times: u64,
    pub code: Code,
}

impl Failure {
    /// Parses `name:nth=code` or `name:nth*times=code`, as in `cuMemAlloc_v2:3=2`.
    pub fn parse(text: &str) -> Option<Self> {
        let (call, code) = text.split_once('=')?;
        let (name, which) = call.split_once(':')?;
        let (nth, times) = which.split_once('*').unwrap_or((which, "1"));
        Some(Self {
            name: name.trim().to_owned(),
            after: nth.trim().parse::<u64>().ok()?.checked_sub(1)?,
            times: times.trim().parse().ok()?,
            code: Code(code.trim().parse().ok()?),
        })
    }
}
