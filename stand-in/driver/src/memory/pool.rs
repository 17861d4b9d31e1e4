//! Memory pools, and memory in stream order.
//!
//! A pool keeps physical bytes, not blocks. Freed memory stays reserved until the host waits for something; then
//! the pool keeps only as much as the release threshold says.

use crate::abi::{AccessDesc, Address, Code, Handle, In, Location, Ordinal, Out, Outcome, PoolProps};
use crate::call::exports;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::pool::Pool;
use crate::state::space::{Allocation, Kind};
use crate::state::work::Work;

impl Driver {
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
        driver.refuse_in_capture("cuMemPoolCreate")?;
        pool.set(driver.pools.insert(Pool::new(props.location.id as usize, props.max as u64)))
    }

    // That a driver refuses this, and the calls like it, was seen with 580.159 on an H100.
    fn cuMemPoolDestroy(driver, pool: Handle) {
        driver.refuse_in_capture("cuMemPoolDestroy")?;
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
        driver.refuse_in_capture("cuMemPoolTrimTo")?;
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
        driver.refuse_outside_graph("cuMemAllocAsync", stream)?;
        let found = driver.allocate_ordered(pool, bytes, stream)?;
        address.set(found)
    }

    fn cuMemAllocFromPoolAsync(driver, address: Out<Address>, bytes: usize, pool: Handle, stream: Handle) {
        driver.refuse_outside_graph("cuMemAllocFromPoolAsync", stream)?;
        let found = driver.allocate_ordered(pool, bytes, stream)?;
        address.set(found)
    }

    fn cuMemFreeAsync(driver, address: Address, stream: Handle) {
        driver.refuse_outside_graph("cuMemFreeAsync", stream)?;
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
            _ => Err(driver.invalid_free(address)),
        }
    }
}
