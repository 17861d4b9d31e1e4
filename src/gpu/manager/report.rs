//! What a manager says about its memory.

use super::MemoryManager;
use super::policy::{Access, Target};
use super::usage::{Site, Usage};
use crate::gpu::buffer::MemoryKind;
use crate::pool::{CopyStats, PoolStats};
use core::cmp::Reverse;
use core::fmt;
use std::string::String;
use std::vec::Vec;

/// A pool of a manager.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StoreTotals {
    /// What its source is called.
    pub name: String,
    /// What it is of.
    pub kind: MemoryKind,
    /// The number of its device; `None` for memory of the host and of both.
    pub device: Option<usize>,
    /// Its statistics.
    pub stats: PoolStats,
}

/// All memory of a manager, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Totals {
    /// Each pool.
    pub stores: Vec<StoreTotals>,
    /// In live blocks of all pools, rounding included.
    pub allocated: u64,
    /// In live blocks, as asked for.
    pub requested: u64,
    /// In segments.
    pub reserved: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Copies of all contexts that the manager has.
    pub copies: CopyStats,
}

impl Totals {
    /// Bytes in segments of one kind of memory, on all devices.
    pub fn reserved_of(&self, kind: MemoryKind) -> u64 {
        self.stores.iter().filter(|store| store.kind == kind).map(|store| store.stats.reserved.current).sum()
    }
}

/// What [`MemoryManager::cleanup`] gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cleanup {
    /// Bytes of all pools.
    pub bytes: usize,
    /// Those pools that gave something back: what the source is called, and bytes.
    pub stores: Vec<(String, usize)>,
}

/// Why a buffer should live elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The host has most of its accesses.
    HostHeavy,
    /// The device has most of its accesses.
    DeviceHeavy,
    /// It was said to be read-only, and the host changes it again and again.
    NotReadOnly,
}

/// A live buffer that should live elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recommendation {
    /// Where in the program it was asked for.
    pub site: Site,
    /// Its address, as the device counts.
    pub address: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Where it is.
    pub from: Target,
    /// Where the policy would have it.
    pub to: Target,
    /// Why.
    pub reason: Reason,
    /// What was counted.
    pub usage: Usage,
}

impl fmt::Display for Recommendation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, bytes, from, to, usage, .. } = self;
        write!(f, "{site}: {bytes} bytes in {from} belong in {to}: ")?;
        match self.reason {
            Reason::HostHeavy | Reason::DeviceHeavy => {
                write!(f, "{} accesses by the host, {} by the device", usage.by_host(), usage.by_device())
            }
            Reason::NotReadOnly => write!(f, "read-only, and changed {} times", usage.host_changes()),
        }
    }
}

impl MemoryManager {
    /// The statistics of all pools and the copies of all contexts. O(pools · streams).
    pub fn totals(&self) -> Totals {
        let stores: Vec<StoreTotals> = self
            .stores()
            .map(|store| StoreTotals {
                name: store.name(),
                kind: store.kind(),
                device: store.device(),
                stats: store.stats(),
            })
            .collect();
        let sum = |of: fn(&PoolStats) -> u64| stores.iter().map(|store| of(&store.stats)).sum();
        Totals {
            allocated: sum(|stats| stats.allocated.current),
            requested: sum(|stats| stats.requested.current),
            reserved: sum(|stats| stats.reserved.current),
            blocks: sum(|stats| stats.blocks.current),
            copies: self.contexts().fold(CopyStats::default(), |sum, context| sum.plus(context.copy_stats())),
            stores,
        }
    }

    /// Gives everything that no buffer uses back to the system. What was freed and waits for work on other streams stays;
    /// the drivers of most memory wait for the stream of what goes back. O(segments · log segments).
    pub fn cleanup(&self) -> Cleanup {
        let cleaned =
            self.stores().map(|store| (store.name(), store.clean())).filter(|&(_, bytes)| bytes > 0);
        let stores: Vec<_> = cleaned.collect();
        Cleanup { bytes: stores.iter().map(|&(_, bytes)| bytes).sum(), stores }
    }

    /// The live buffers that should live elsewhere, by what was counted of them, those first that moved most bytes from
    /// and to the host. [`Buffer::migrate`](crate::gpu::Buffer::migrate) moves one. O(buffers · log buffers).
    pub fn recommendations(&self) -> Vec<Recommendation> {
        let policy = self.policy();
        let mut found: Vec<Recommendation> = Vec::new();
        for record in self.registry().live() {
            let usage = record.usage();
            let is_changed = usage.host_changes() >= policy.least_touches.max(2);
            let (access, reason) = match policy.judge(&usage) {
                Access::HostHeavy if record.access == Access::ReadOnly && is_changed => {
                    (Access::HostHeavy, Reason::NotReadOnly)
                }
                Access::HostHeavy if record.access != Access::ReadOnly => {
                    (Access::HostHeavy, Reason::HostHeavy)
                }
                Access::Random => (Access::Random, Reason::DeviceHeavy),
                _ => continue,
            };
            let Some(&to) = policy.targets(record.bytes, access).iter().find(|&&target| self.has(target))
            else {
                continue;
            };
            let settled = [to, record.target].map(|target| match target {
                // The copies for whoever reads it are as good as the device's own memory.
                Target::ReadMostly if reason == Reason::DeviceHeavy => Target::Device,
                target => target,
            });
            if settled[0] != settled[1] {
                let (site, address, bytes, from) = (record.site, record.address, record.bytes, record.target);
                found.push(Recommendation { site, address, bytes, from, to, reason, usage });
            }
        }
        found.sort_by_key(|recommendation| Reverse(recommendation.usage.host_bytes));
        found
    }
}
