//! Device memory from `cuMemAlloc`.

use crate::abi::{Address, Code, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::space::{Allocation, Chunks, Kind};

impl Driver {
    /// Fills new memory with the byte that the test has set.
    pub fn poison(&self, memory: &Memory) {
        if let Some(byte) = self.poison {
            Chunks::one(memory.pointer(), memory.bytes()).fill(0, memory.bytes(), &[byte]);
        }
    }
}

fn allocate(driver: &mut Driver, bytes: usize) -> Outcome<Address> {
    let context = driver.outside_capture("cuMemAlloc_v2")?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = driver.current_device()?;
    let account = driver.devices[device].take(bytes as u64)?;
    let memory = Memory::new(bytes, Some(account))?;
    driver.poison(&memory);
    let address = driver.space.find(device, bytes, 1, 0)?;
    let allocation =
        Allocation { id: 0, bytes, kind: Kind::Device, device, context, alive: true, freed: false };
    driver.space.insert(address, allocation, Some(memory));
    Ok(address)
}

exports! {
    fn cuMemAlloc_v2(driver, address: Out<Address>, bytes: usize) {
        let found = allocate(driver, bytes)?;
        address.set(found)
    }

    fn cuMemAllocPitch_v2(
        driver,
        address: Out<Address>,
        pitch: Out<usize>,
        width: usize,
        height: usize,
        _element: u32,
    ) {
        let row = width.checked_next_multiple_of(512).ok_or(Code::INVALID_VALUE)?;
        let found = allocate(driver, row.checked_mul(height).ok_or(Code::INVALID_VALUE)?)?;
        pitch.set(row)?;
        address.set(found)
    }

    /// Frees after all work of the context is done. The real driver does so too, but does not guarantee it.
    fn cuMemFree_v2(driver, address: Address) {
        let context = driver.outside_capture("cuMemFree_v2")?;
        if address == 0 {
            return Ok(());
        }
        let found = driver.space.allocations.get(&address);
        let found = found.map(|allocation| (allocation.kind.clone(), allocation.id, allocation.freed));
        match found {
            Some((Kind::Device | Kind::Managed(_), _, _)) => {
                driver.finish_context(context, address);
                driver.space.remove(address);
                Ok(())
            }
            Some((Kind::Ordered(_), id, false)) => {
                driver.finish_context(context, address);
                driver.free_ordered(address, id);
                Ok(())
            }
            _ => Err(driver.invalid_free(address)),
        }
    }
}
