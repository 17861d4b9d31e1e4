//! Policies: plain tables that select a pool for each request.

#![forbid(unsafe_code)]

use super::ManagerOptions;
use crate::gpu::Error;
use crate::gpu::usage::{Access, Usage};
use crate::pool::{MemoryKind, PoolOptions};

impl Default for ManagerOptions {
    fn default() -> Self {
        use MemoryKind::{Device, Host, Managed, Pinned, ReadMostly};
        let rule =
            |access: &[Access], up_to, targets: &[MemoryKind]| (access.to_vec(), up_to, targets.to_vec());
        Self {
            device: PoolOptions::new(),
            managed: PoolOptions::new(),
            pinned: PoolOptions::new(),
            pinned_limit: None,
            host: PoolOptions::new(),
            host_limit: None,
            rules: vec![
                rule(&[Access::HostHeavy, Access::Streaming], None, &[Pinned, Managed, Host]),
                rule(&[Access::ReadOnly], None, &[ReadMostly, Device, Pinned, Host]),
                rule(&[Access::Unknown], Some(64 << 10), &[Pinned, Device, Managed, Host]),
                rule(&[], None, &[Device, Managed, Pinned, Host]),
            ],
            least_touches: 32,
            share: 0.75,
            revise: true,
            after_loss: false,
        }
    }
}

impl ManagerOptions {
    /// Checks whether the rules can work. O(rules).
    ///
    /// # Errors
    ///
    /// [`Error::PolicyNotTotal`], [`Error::PolicyNoTarget`] or [`Error::PolicyShare`], for the first problem found.
    pub fn check(&self) -> Result<(), Error> {
        if !self.rules.last().is_some_and(|(access, up_to, _)| access.is_empty() && up_to.is_none()) {
            return Err(Error::PolicyNotTotal);
        }
        if let Some(row) = self.rules.iter().position(|(.., targets)| targets.is_empty()) {
            return Err(Error::PolicyNoTarget(row));
        }
        if !(self.share > 0.5 && self.share <= 1.0) {
            return Err(Error::PolicyShare);
        }
        Ok(())
    }

    /// Returns the targets for a request of `bytes` bytes, in order of preference; empty if no row matches. O(rules).
    pub fn targets(&self, bytes: usize, access: Access) -> &[MemoryKind] {
        let mut fitting = self.rules.iter().filter(|(of, up_to, _)| {
            (of.is_empty() || of.contains(&access)) && up_to.is_none_or(|up_to| bytes <= up_to)
        });
        fitting.next().map_or(&[], |(.., targets)| targets)
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
