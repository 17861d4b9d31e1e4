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
    /// The call site that requested the buffer.
    pub site: Site,
    /// The buffer's device address.
    pub address: usize,
    /// The buffer's length in bytes.
    pub bytes: usize,
    /// The kind of memory that contains the buffer.
    pub from: MemoryKind,
    /// The kind of memory that the policy would select for it.
    pub to: MemoryKind,
    /// The access declared in the request. [`Access::ReadOnly`] here means that the host keeps changing the buffer anyway.
    pub declared: Access,
    /// The measured access: [`Access::HostHeavy`] or [`Access::Random`], as judged by
    /// [`ManagerOptions::judge`](super::ManagerOptions::judge).
    pub measured: Access,
    /// The counted accesses.
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

    /// Releases all memory that no buffer uses to the system, except freed blocks that wait for work on other streams. Returns the number
    /// of released bytes; [`MemoryManager::pools`] shows them by pool. Most sources wait for the stream of the released memory.
    /// O(segments · log segments).
    pub fn cleanup(&self) -> usize {
        self.pools().into_iter().map(|pool| pool.trim(0)).sum()
    }

    /// Lists the live buffers that should move to other memory, judged by their counted accesses, those with the most bytes copied to and
    /// from the host first. [`Buffer::migrate`](crate::gpu::Buffer::migrate) moves a buffer. O(buffers · log buffers).
    pub fn recommendations(&self) -> Vec<Recommendation> {
        let policy = &self.options;
        let mut found: Vec<Recommendation> = Vec::new();
        for record in self.registry.live() {
            let usage = record.usage();
            let is_changed = usage.host_changes() >= policy.least_touches.max(2);
            let (declared, measured) = (record.access, policy.judge(&usage));
            match measured {
                // Read-only memory is made for reads by the host.
                Access::HostHeavy if declared != Access::ReadOnly || is_changed => {}
                Access::Random => {}
                _ => continue,
            }
            let Some(&to) = policy.targets(record.bytes, measured).iter().find(|&&kind| self.has(kind))
            else {
                continue;
            };
            let settled = [to, record.kind].map(|kind| match kind {
                // For every reader, read-mostly copies are as good as the device's own memory.
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
