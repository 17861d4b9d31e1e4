//! Memory pools, and memory in stream order.
//!
//! A pool keeps physical bytes, not blocks. Freed memory stays reserved until the host waits for something; then
//! the pool keeps only as much as the release threshold says.

use super::backing::Memory;
use super::space::{Allocation, Kind};
use crate::abi::{AccessDesc, Address, Code, Handle, In, Location, Ordinal, Out, Outcome, PoolProps};
use crate::call::exports;
use crate::device::Account;
use crate::driver::Driver;
use crate::work::Work;
use std::collections::BTreeSet;

pub struct Pool {
    pub device: usize,
    /// The most bytes that it may reserve; 0 for no limit.
    max: u64,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    /// The account of its physical memory.
    accounts: Option<Account>,
    threshold: u64,
    /// The three kinds of reuse, which are all on initially.
    reuse: [i32; 3],
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
    fn reserve(&mut self, pool: Handle, bytes: u64) -> Outcome {
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

    fn allocate_ordered(&mut self, pool: Handle, bytes: usize, stream: Handle) -> Outcome<Address> {
        let stream = self.stream(stream)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let found = self.pools.find(pool, &mut self.misuse)?;
        let used = found.used.checked_add(bytes as u64).ok_or(Code::OUT_OF_MEMORY)?;
        let (device, reserved) = (found.device, found.reserved);
        if used > reserved {
            self.reserve(pool, used)?;
        }
        let memory = Memory::new(bytes, None)?;
        self.poison(&memory);
        let address = self.space.find(device, bytes, 1, 0)?;
        let found = self.pools.find(pool, &mut self.misuse)?;
        found.used = used;
        found.used_high = found.used_high.max(used);
        let kind = Kind::Ordered(pool);
        let allocation = Allocation { id: 0, bytes, kind, device, context: 0, alive: false, freed: false };
        let id = self.space.insert(address, allocation, Some(memory));
        self.submit(stream, Work::Alive { address, id }, Vec::new())?;
        Ok(address)
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

    fn attribute(&mut self, pool: Handle, attribute: u32) -> Outcome<u64> {
        let pool = self.pools.find(pool, &mut self.misuse)?;
        Ok(match attribute {
            1..=3 => pool.reuse[attribute as usize - 1] as u64,
            4 => pool.threshold,
            5 => pool.reserved,
            6 => pool.reserved_high,
            7 => pool.used,
            8 => pool.used_high,
            _ => return Err(Code::INVALID_VALUE),
        })
    }
}

exports! {
    fn cuDeviceGetDefaultMemPool(driver, pool: Out<Handle>, device: Ordinal) {
        pool.set(driver.device(device)?.default_pool)
    }

    fn cuDeviceGetMemPool(driver, pool: Out<Handle>, device: Ordinal) {
        pool.set(driver.device(device)?.pool)
    }

    fn cuDeviceSetMemPool(driver, device: Ordinal, pool: Handle) {
        let of = driver.pools.find(pool, &mut driver.misuse)?.device;
        if of as Ordinal != device {
            return Err(Code::INVALID_VALUE);
        }
        driver.device(device)?.pool = pool;
        Ok(())
    }

    fn cuMemPoolCreate(driver, pool: Out<Handle>, props: In<PoolProps>) {
        let props = props.get()?;
        if props.kind != 1 || props.location.kind != Location::DEVICE {
            return Err(Code::INVALID_VALUE);
        }
        driver.device(props.location.id)?;
        pool.set(driver.pools.insert(Pool::new(props.location.id as usize, props.max as u64)))
    }

    fn cuMemPoolDestroy(driver, pool: Handle) {
        if driver.devices.iter().any(|device| device.default_pool == pool) {
            return Err(Code::INVALID_VALUE);
        }
        driver.pools.remove(pool, &mut driver.misuse)?;
        for device in &mut driver.devices {
            if device.pool == pool {
                device.pool = device.default_pool;
            }
        }
        Ok(())
    }

    fn cuMemPoolTrimTo(driver, pool: Handle, keep: usize) {
        let found = driver.pools.find(pool, &mut driver.misuse)?;
        let bytes = found.reserved.min(keep as u64).max(found.used);
        driver.reserve(pool, bytes)
    }

    fn cuMemPoolSetAccess(driver, pool: Handle, access: In<AccessDesc>, count: usize) {
        for access in access.all(count)? {
            driver.device(access.location.id)?;
            let pool = driver.pools.find(pool, &mut driver.misuse)?;
            let device = access.location.id as usize;
            if access.flags == 0 {
                pool.peers.remove(&device);
            } else {
                pool.peers.insert(device);
            }
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(driver, pool: Handle, attribute: u32, value: Out<u64>) {
        // NVIDIA's libcu++, `__relaxed_capture_scope`: "memory-pool attribute reads and writes are among" the calls that
        // are potentially unsafe while a stream captures.
        driver.refuse_in_capture("cuMemPoolGetAttribute")?;
        let found = driver.attribute(pool, attribute)?;
        match attribute {
            1..=3 => value.cast::<i32>().set(found as i32),
            _ => value.set(found),
        }
    }

    fn cuMemPoolSetAttribute(driver, pool: Handle, attribute: u32, value: In<u64>) {
        driver.refuse_in_capture("cuMemPoolSetAttribute")?;
        driver.attribute(pool, attribute)?;
        let found = driver.pools.find(pool, &mut driver.misuse)?;
        if let 1..=3 = attribute {
            found.reuse[attribute as usize - 1] = value.cast::<i32>().get()?;
            return Ok(());
        }
        match (attribute, value.get()?) {
            (4, bytes) => found.threshold = bytes,
            // The high-water marks can only be reset.
            (6, 0) => found.reserved_high = found.reserved,
            (8, 0) => found.used_high = found.used,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemAllocAsync(driver, address: Out<Address>, bytes: usize, stream: Handle) {
        let resolved = driver.stream(stream)?;
        let device = driver.device_of(resolved)?;
        let pool = driver.devices[device].pool;
        let found = driver.allocate_ordered(pool, bytes, stream)?;
        address.set(found)
    }

    fn cuMemAllocFromPoolAsync(driver, address: Out<Address>, bytes: usize, pool: Handle, stream: Handle) {
        let found = driver.allocate_ordered(pool, bytes, stream)?;
        address.set(found)
    }

    fn cuMemFreeAsync(driver, address: Address, stream: Handle) {
        let stream = driver.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        let allocation = driver.space.allocations.get_mut(&address);
        match allocation {
            Some(Allocation { kind: Kind::Ordered(_), freed: true, .. }) => {
                let text = format!("{address:#x} was already freed in a stream");
                driver.misuse.note(crate::misuse::Kind::FreeTwice, text);
                Err(Code::INVALID_VALUE)
            }
            Some(found) if matches!(found.kind, Kind::Ordered(_)) => {
                found.freed = true;
                let id = found.id;
                driver.submit(stream, Work::Free { address, id }, Vec::new()).map(drop)
            }
            _ => Err(driver.wrong_free(address)),
        }
    }
}
