//! Pinned host memory, whose device address is its host address.

use crate::abi::{Address, Code, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::space::{Allocation, Kind};

/// `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
const ONE_ADDRESS: u32 = 91;
const WRITE_COMBINED: u32 = 4;
const MAPPED: u32 = 2;
/// How far a device's address is from the host's where there are two.
const OTHER: Address = 1 << 52;

/// The valid flags: portable, mapped, write-combined (or, when registering, device memory, or read-only).
const FLAGS: u32 = 0xf;

fn allocate(driver: &mut Driver, place: Out<usize>, bytes: usize, flags: u32, call: &str) -> Outcome {
    let context = driver.outside_capture(call)?;
    if bytes == 0 || flags & !FLAGS != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let memory = Memory::new(bytes, None)?;
    let address = memory.pointer() as Address;
    let device = driver.current_device()?;
    let kind = Kind::Host { flags, registered: false };
    let allocation = Allocation { id: 0, bytes, kind, device, context, alive: true, freed: false };
    driver.space.insert(address, allocation, Some(memory));
    place.set(address as usize)
}

exports! {
    fn cuMemHostAlloc(driver, pointer: Out<usize>, bytes: usize, flags: u32) {
        allocate(driver, pointer, bytes, flags, "cuMemHostAlloc")
    }

    fn cuMemAllocHost_v2(driver, pointer: Out<usize>, bytes: usize) {
        allocate(driver, pointer, bytes, 0, "cuMemAllocHost_v2")
    }

    fn cuMemFreeHost(driver, pointer: usize) {
        let context = driver.outside_capture("cuMemFreeHost")?;
        let address = pointer as Address;
        let found = driver.space.allocations.get(&address).map(|allocation| allocation.kind.clone());
        if !matches!(found, Some(Kind::Host { registered: false, .. })) {
            return Err(driver.invalid_free(address));
        }
        driver.finish_context(context, address);
        driver.space.remove(address);
        Ok(())
    }

    fn cuMemHostRegister_v2(driver, pointer: usize, bytes: usize, flags: u32) {
        let context = driver.outside_capture("cuMemHostRegister_v2")?;
        if pointer == 0 || bytes == 0 || flags & !FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let address = pointer as Address;
        address.checked_add(bytes as Address).ok_or(Code::INVALID_VALUE)?;
        let last = driver.space.allocations.range(..address + bytes as Address).next_back();
        if last.is_some_and(|(&start, other)| start + other.bytes as Address > address) {
            return Err(Code::ALREADY_REGISTERED);
        }
        let device = driver.current_device()?;
        let kind = Kind::Host { flags, registered: true };
        let allocation = Allocation { id: 0, bytes, kind, device, context, alive: true, freed: false };
        driver.space.insert_borrowed(address, allocation);
        Ok(())
    }

    fn cuMemHostUnregister(driver, pointer: usize) {
        let context = driver.outside_capture("cuMemHostUnregister")?;
        let address = pointer as Address;
        let found = driver.space.allocations.get(&address).map(|allocation| allocation.kind.clone());
        if !matches!(found, Some(Kind::Host { registered: true, .. })) {
            driver.invalid_free(address);
            return Err(Code::NOT_REGISTERED);
        }
        driver.finish_context(context, address);
        driver.space.remove(address);
        Ok(())
    }

    fn cuMemHostGetDevicePointer_v2(driver, address: Out<Address>, pointer: usize, _flags: u32) {
        let found = driver.space.containing(pointer as Address).map(|(_, allocation)| &allocation.kind);
        let (flags, registered) = match found {
            // Documentation: "will fail if the CU_MEMHOSTALLOC_DEVICEMAP flag was not specified at the time the memory
            // was allocated".
            Some(Kind::Host { flags, registered }) if flags & MAPPED != 0 => (*flags, *registered),
            _ => return Err(Code::INVALID_VALUE),
        };
        // Documentation of `cuMemHostAlloc` and `CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`: the
        // address is the host's, except for write-combined memory, and for registered memory where the device lacks
        // this attribute. Here both depend on the attribute.
        let current = driver.current_device()?;
        let is_one = driver.devices[current].attributes.get(&ONE_ADDRESS) != Some(&0) || !registered && flags & WRITE_COMBINED == 0;
        address.set(if is_one { pointer as Address } else { pointer as Address + OTHER })
    }

    fn cuMemHostGetFlags(driver, flags: Out<u32>, pointer: usize) {
        match driver.space.containing(pointer as Address).map(|(_, allocation)| &allocation.kind) {
            Some(Kind::Host { flags: found, registered: false }) => flags.set(*found),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
