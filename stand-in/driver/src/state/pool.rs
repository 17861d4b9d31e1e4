//! Memory pools, which keep physical bytes, not blocks.

use super::Driver;
use super::device::Account;
use super::space::Kind;
use crate::abi::{Address, Code, Handle, Outcome};
use std::collections::BTreeSet;

pub struct Pool {
    pub device: usize,
    /// The most bytes that it may reserve; 0 for no limit.
    pub max: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    /// The account of its physical memory.
    pub accounts: Option<Account>,
    pub threshold: u64,
    /// The three kinds of reuse, which are all on initially.
    pub reuse: [i32; 3],
    /// Other devices that may use its memory.
    pub peers: BTreeSet<usize>,
}

impl Pool {
    pub fn new(device: usize, max: u64) -> Self {
        Self {
            device,
            max,
            used: 0,
            used_high: 0,
            reserved: 0,
            reserved_high: 0,
            accounts: None,
            threshold: 0,
            reuse: [1; 3],
            peers: BTreeSet::new(),
        }
    }
}

impl Driver {
    /// Makes a pool reserve exactly `bytes` bytes.
    pub fn reserve(&mut self, pool: Handle, bytes: u64) -> Outcome {
        let pool = self.pools.find(pool, &mut self.misuse)?;
        if pool.max != 0 && bytes > pool.max {
            return Err(Code::OUT_OF_MEMORY);
        }
        let before = pool.accounts.take();
        let reserved = pool.reserved;
        drop(before);
        let device = &self.devices[pool.device];
        match device.take(bytes) {
            Ok(account) => {
                pool.accounts = Some(account);
                pool.reserved = bytes;
                pool.reserved_high = pool.reserved_high.max(bytes);
                Ok(())
            }
            Err(code) => {
                pool.accounts = Some(device.take(reserved)?);
                Err(code)
            }
        }
    }

    pub fn make_alive(&mut self, address: Address, id: u64) {
        if let Some(allocation) = self.space.allocations.get_mut(&address).filter(|found| found.id == id) {
            allocation.alive = true;
        }
    }

    /// Releases memory when its stream reaches the release.
    pub fn free_ordered(&mut self, address: Address, id: u64) {
        let found = self.space.allocations.get(&address).filter(|found| found.id == id);
        let Some((Kind::Ordered(pool), bytes)) = found.map(|found| (found.kind.clone(), found.bytes)) else {
            return;
        };
        self.space.remove(address);
        if let Some(pool) = self.pools.get_mut(pool) {
            pool.used -= bytes as u64;
        }
    }

    /// Trims the pools, as happens when the host has waited. Documentation of `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: "When more than
    /// the release threshold bytes of memory are held by the memory pool, the allocator will try to release memory back to the OS
    /// on the next call to stream, event or context synchronize."
    pub fn trim_pools(&mut self) {
        let excess = |(handle, pool): (Handle, &Pool)| {
            let keep = pool.reserved.min(pool.threshold).max(pool.used);
            (keep < pool.reserved).then_some((handle, keep))
        };
        let trims: Vec<_> = self.pools.iter().filter_map(excess).collect();
        for (pool, keep) in trims {
            // Less memory than before always fits.
            let _ = self.reserve(pool, keep);
        }
    }
}
