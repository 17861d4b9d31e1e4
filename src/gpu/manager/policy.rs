//! Where requests go: a table that is plain data.

use super::usage::Usage;
use core::fmt;
use std::vec;
use std::vec::Vec;

/// Where memory is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Placement {
    /// Wherever the table of the [`Policy`] says.
    #[default]
    Auto,
    /// In the device's own memory.
    Device,
    /// In page-locked memory of the host.
    Pinned,
    /// In memory that moves to where it is used.
    Managed,
    /// In ordinary memory of the host, which no device reaches.
    Host,
    /// As [`Placement::Auto`] with [`Access::ReadOnly`].
    ReadOnly,
}

/// How memory will be used, as far as the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Access {
    /// Nobody knows; what was measured of the same call site decides, if anything was.
    #[default]
    Unknown,
    /// Written once, then read, by the host too.
    ReadOnly,
    /// Written once, by the host or a kernel, then read by kernels.
    WriteOnce,
    /// Every value is written once and read once, in order.
    Streaming,
    /// Kernels read and write it in any order.
    Random,
    /// The host reads or writes it more than kernels do.
    HostHeavy,
}

/// A place that the table can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Target {
    /// The device's own memory.
    Device,
    /// Managed memory.
    Managed,
    /// Managed memory with the advice that it is mostly read: whoever reads it may have a copy of its own.
    ReadMostly,
    /// Page-locked memory of the host.
    Pinned,
    /// Ordinary memory of the host.
    Host,
}

impl Target {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Device, Self::Managed, Self::ReadMostly, Self::Pinned, Self::Host];
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Managed => "managed memory",
            Self::ReadMostly => "read-mostly managed memory",
            Self::Pinned => "pinned memory",
            Self::Host => "host memory",
        })
    }
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rule {
    /// The accesses that it is for; all if there are none.
    pub access: Vec<Access>,
    /// The largest request in bytes that it is for; `None` for all.
    pub up_to: Option<usize>,
    /// Where such requests go: to the first that has room.
    pub targets: Vec<Target>,
}

/// What decides about [`Placement::Auto`]: the first row that fits a request, and when measured accesses say something.
///
/// | access | bytes | default |
/// | --- | --- | --- |
/// | host-heavy, streaming | any | pinned, managed, host |
/// | read-only | any | read-mostly, device, pinned, host |
/// | unknown | up to 64 KiB | pinned, device, managed, host |
/// | any | any | device, managed, pinned, host |
///
/// With the feature `serde` it can be kept in a file.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Policy {
    /// The table, searched from the top. The last row must fit everything.
    pub rules: Vec<Rule>,
    /// Accesses that must have been measured before they count. 32 at first.
    pub least_touches: u64,
    /// The part of the accesses, above a half and up to 1, that the host or the device must have so that memory is the
    /// one's or the other's. 0.75 at first.
    pub share: f64,
    /// Whether [`Access::Unknown`] is replaced by what was measured of buffers from the same call site. On at first.
    pub revise: bool,
}

impl Default for Policy {
    fn default() -> Self {
        use Target::{Device, Host, Managed, Pinned, ReadMostly};
        let rule = |access: &[Access], up_to, targets: &[Target]| Rule {
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

/// A [`Policy`] that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyError {
    /// The last row does not fit every request, or there is none.
    NotTotal,
    /// This row, from 0, names no target.
    NoTarget(usize),
    /// [`Policy::share`] is not above a half and up to 1.
    Share,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTotal => f.write_str("the last rule does not fit every request"),
            Self::NoTarget(row) => write!(f, "rule {row} names no target"),
            Self::Share => f.write_str("the share is not above a half and up to 1"),
        }
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// Whether the policy can work. O(rules).
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), PolicyError> {
        if !self.rules.last().is_some_and(|rule| rule.access.is_empty() && rule.up_to.is_none()) {
            return Err(PolicyError::NotTotal);
        }
        if let Some(row) = self.rules.iter().position(|rule| rule.targets.is_empty()) {
            return Err(PolicyError::NoTarget(row));
        }
        if !(self.share > 0.5 && self.share <= 1.0) {
            return Err(PolicyError::Share);
        }
        Ok(())
    }

    /// Where a request of `bytes` bytes goes, the first choice first; nowhere if no row fits. O(rules).
    pub fn targets(&self, bytes: usize, access: Access) -> &[Target] {
        let fits = |rule: &&Rule| {
            (rule.access.is_empty() || rule.access.contains(&access))
                && rule.up_to.is_none_or(|up_to| bytes <= up_to)
        };
        self.rules.iter().find(fits).map_or(&[], |rule| &rule.targets)
    }

    /// What measured accesses say: [`Access::HostHeavy`], [`Access::Random`] where the device has most of them, or
    /// [`Access::Unknown`].
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
