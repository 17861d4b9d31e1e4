//! Reports of a manager: totals, cleanup and recommendations.

#![forbid(unsafe_code)]

use super::MemoryManager;
use crate::gpu::usage::{Access, Site, Usage};
use crate::pool::{AnyPool, MemoryKind, PoolStats, sum_of_copies};
use core::cmp::Reverse;
use core::fmt;
use core::ops::Add;

/// A live buffer that should move to other memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// The call site that requested it.
    pub site: Site,
    /// Its device address.
    pub address: usize,
    /// Its length in bytes.
    pub bytes: usize,
    /// The memory that it lies in.
    pub from: MemoryKind,
    /// The memory that the policy would select for it.
    pub to: MemoryKind,
    /// How it was requested. [`Access::ReadOnly`] means that the host keeps changing it nevertheless.
    pub declared: Access,
    /// How it is used: [`Access::HostHeavy`] or [`Access::Random`], as [`Policy::judge`](super::ManagerOptions::judge) says.
    pub measured: Access,
    /// The accesses that were counted.
    pub usage: Usage,
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, bytes, from, to, usage, .. } = self;
        write!(f, "{site}: {bytes} bytes in {from} belong in {to}: ")?;
        match (self.declared, self.measured) {
            (Access::ReadOnly, Access::HostHeavy) => {
                write!(f, "declared read-only, but changed {} times", usage.host_changes())
            }
            _ => write!(f, "{} accesses by the host, {} by the device", usage.by_host(), usage.by_device()),
        }
    }
}

impl MemoryManager {
    /// Returns the statistics of all pools together, with the copies of all contexts. The peaks are upper bounds. O(pools · streams).
    pub fn stats(&self) -> PoolStats {
        let all = self.pools().into_iter().map(AnyPool::stats).fold(PoolStats::default(), Add::add);
        let copies = self
            .devices
            .iter()
            .map(|device| device.context.copy_stats())
            .fold(Default::default(), sum_of_copies);
        PoolStats { copies, ..all }
    }

    /// Releases all memory that no buffer uses to the system. Freed blocks that wait for work on other streams stay. Returns the bytes
    /// that went back; [`MemoryManager::pools`] tells them by pool. Most drivers wait for the stream of the memory that goes back.
    /// O(segments · log segments).
    pub fn cleanup(&self) -> usize {
        self.pools().into_iter().map(|pool| pool.trim(0)).sum()
    }

    /// Lists the live buffers that should move to other memory, judged by their counted accesses, with those first
    /// that copied most bytes to and from the host. [`Buffer::migrate`](crate::gpu::Buffer::migrate) moves a
    /// buffer. O(buffers · log buffers).
    pub fn recommendations(&self) -> Vec<Recommendation> {
        let policy = &self.options;
        let mut found: Vec<Recommendation> = Vec::new();
        for record in self.registry.live() {
            let usage = record.usage();
            let is_changed = usage.host_changes() >= policy.least_touches.max(2);
            let (declared, measured) = (record.access, policy.judge(&usage));
            match measured {
                // Reads by the host are what read-only memory is for.
                Access::HostHeavy if declared != Access::ReadOnly || is_changed => {}
                Access::Random => {}
                _ => continue,
            }
            let Some(&to) = policy.targets(record.bytes, measured).iter().find(|&&kind| self.has(kind))
            else {
                continue;
            };
            let settled = [to, record.kind].map(|kind| match kind {
                // Read-mostly copies are as good for every reader as the device's own memory.
                MemoryKind::ReadMostly if measured == Access::Random => MemoryKind::Device,
                kind => kind,
            });
            if settled[0] != settled[1] {
                let (site, address, bytes, from) = (record.site, record.address, record.bytes, record.kind);
                found.push(Recommendation { site, address, bytes, from, to, declared, measured, usage });
            }
        }
        found.sort_by_key(|recommendation| Reverse(recommendation.usage.host_bytes));
        found
    }
}
