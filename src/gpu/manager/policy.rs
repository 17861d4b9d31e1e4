//! Policies: plain tables that select a pool for each request.

#![forbid(unsafe_code)]

use crate::gpu::error::Error;
use crate::gpu::usage::{Access, Usage};
use crate::pool::MemoryKind;
use std::vec;
use std::vec::Vec;

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PolicyRule {
    /// The accesses that the row applies to; empty for all.
    pub access: Vec<Access>,
    /// The largest request in bytes that the row applies to; `None` for all.
    pub up_to: Option<usize>,
    /// Where such requests go: to the first kind of memory that has room.
    pub targets: Vec<MemoryKind>,
}

/// Selects the memory for requests that name none: the first row that fits a request decides. Also defines when
/// measured accesses count.
///
/// | access | bytes | default |
/// | --- | --- | --- |
/// | host-heavy, streaming | any | pinned, managed, host |
/// | read-only | any | read-mostly, device, pinned, host |
/// | unknown | up to 64 KiB | pinned, device, managed, host |
/// | any | any | device, managed, pinned, host |
///
/// With the feature `serde` a policy can be kept in a file.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Policy {
    /// The table, searched from the top. The last row must fit every request.
    pub rules: Vec<PolicyRule>,
    /// How many accesses must have been measured before they count. The default is 32.
    pub least_touches: u64,
    /// The share of accesses, above 0.5 and up to 1, that the host or the device must have so that the memory
    /// belongs there. The default is 0.75.
    pub share: f64,
    /// Whether [`Access::Unknown`] is replaced by what was measured for buffers of the same call site. On by
    /// default.
    pub revise: bool,
}

impl Default for Policy {
    fn default() -> Self {
        use MemoryKind::{Device, Host, Managed, Pinned, ReadMostly};
        let rule = |access: &[Access], up_to, targets: &[MemoryKind]| PolicyRule {
            access: access.to_vec(),
            up_to,
            targets: targets.to_vec(),
        };
        Self {
            rules: vec![
                rule(&[Access::HostHeavy, Access::Streaming], None, &[Pinned, Managed, Host]),
                rule(&[Access::ReadOnly], None, &[ReadMostly, Device, Pinned, Host]),
                rule(&[Access::Unknown], Some(64 << 10), &[Pinned, Device, Managed, Host]),
                rule(&[], None, &[Device, Managed, Pinned, Host]),
            ],
            least_touches: 32,
            share: 0.75,
            revise: true,
        }
    }
}

impl Policy {
    /// Checks whether the policy can work. O(rules).
    ///
    /// # Errors
    ///
    /// [`Error::PolicyNotTotal`], [`Error::PolicyNoTarget`] or [`Error::PolicyShare`], for the first thing that is
    /// wrong.
    pub fn check(&self) -> Result<(), Error> {
        if !self.rules.last().is_some_and(|rule| rule.access.is_empty() && rule.up_to.is_none()) {
            return Err(Error::PolicyNotTotal);
        }
        if let Some(row) = self.rules.iter().position(|rule| rule.targets.is_empty()) {
            return Err(Error::PolicyNoTarget(row));
        }
        if !(self.share > 0.5 && self.share <= 1.0) {
            return Err(Error::PolicyShare);
        }
        Ok(())
    }

    /// Returns the targets for a request of `bytes` bytes, in order of preference; empty if no row fits. O(rules).
    pub fn targets(&self, bytes: usize, access: Access) -> &[MemoryKind] {
        let fits = |rule: &&PolicyRule| {
            (rule.access.is_empty() || rule.access.contains(&access))
                && rule.up_to.is_none_or(|up_to| bytes <= up_to)
        };
        self.rules.iter().find(fits).map_or(&[], |rule| &rule.targets)
    }

    /// Judges measured accesses: [`Access::HostHeavy`] or [`Access::Random`] if the host or the device has the
    /// required share of them, else [`Access::Unknown`].
    pub fn judge(&self, usage: &Usage) -> Access {
        let (host, device) = (usage.by_host(), usage.by_device());
        let all = host + device;
        let has_share = |part: u64| part as f64 >= self.share * all as f64;
        if all < self.least_touches.max(1) {
            Access::Unknown
        } else if has_share(host) {
            Access::HostHeavy
        } else if has_share(device) {
            Access::Random
        } else {
            Access::Unknown
        }
    }
}
