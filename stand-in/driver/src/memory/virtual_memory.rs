//! Virtual memory: reserved addresses, physical memory, and mappings between them.

use crate::abi::{AccessDesc, Address, AllocationProp, Code, Handle, In, Location, Out, Outcome, POSIX_FD};
use crate::call::exports;
use crate::misuse::Kind as Misused;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::physical::Physical;
use crate::state::space::{Allocation, Kind, Mapping};
use rustix::io::fcntl_dupfd_cloexec;
use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The granularity of sizes and addresses.
const GRANULARITY: usize = 2 << 20;

fn check_prop(driver: &mut Driver, prop: &AllocationProp) -> Outcome<usize> {
    if prop.kind != 1 || prop.location.kind != Location::DEVICE || prop.handle_types & !POSIX_FD != 0 {
        return Err(Code::INVALID_VALUE);
    }
    driver.device(prop.location.id)?;
    Ok(prop.location.id as usize)
}

fn is_granular(sizes: &[u64]) -> Outcome {
    let fits = sizes.iter().all(|size| size.is_multiple_of(GRANULARITY as u64));
    if fits { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

/// The mappings that exactly cover a range.
fn mapped(driver: &mut Driver, address: Address, bytes: usize) -> Outcome<Vec<Address>> {
    let end = address.checked_add(bytes as Address).ok_or(Code::INVALID_VALUE)?;
    let mut found = Vec::new();
    let mut at = address;
    for (&start, mapping) in driver.space.mappings.range(address..end) {
        if start != at {
            break;
        }
        found.push(start);
        at = start + mapping.bytes as Address;
    }
    if at == end && bytes > 0 { Ok(found) } else { Err(Code::INVALID_VALUE) }
}

exports! {
    fn cuMemGetAllocationGranularity(driver, granularity: Out<usize>, prop: In<AllocationProp>, _which: u32) {
        check_prop(driver, &prop.get()?)?;
        granularity.set(GRANULARITY)
    }

    fn cuMemAddressReserve(
        driver,
        address: Out<Address>,
        bytes: usize,
        alignment: usize,
        hint: Address,
        flags: u64,
    ) {
        let device = driver.current_device()?;
        if bytes == 0 || flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(Code::INVALID_VALUE);
        }
        is_granular(&[bytes as u64])?;
        let alignment = alignment.max(GRANULARITY) as u64;
        let found = driver.space.find(device, bytes, alignment, hint)?;
        let kind = Kind::Reserved;
        let allocation = Allocation { id: 0, bytes, kind, device, context: 0, alive: true, freed: false };
        driver.space.insert(found, allocation, None);
        address.set(found)
    }

    fn cuMemAddressFree(driver, address: Address, bytes: usize) {
        let found = driver.space.allocations.get(&address);
        if !found.is_some_and(|found| found.kind == Kind::Reserved && found.bytes == bytes) {
            return Err(driver.invalid_free(address));
        }
        if driver.space.mappings.range(address..address + bytes as Address).next().is_some() {
            driver.misuse.note(Misused::StillMapped, format!("memory is mapped in {address:#x}"));
            return Err(Code::INVALID_VALUE);
        }
        driver.space.remove(address);
        Ok(())
    }

    fn cuMemCreate(driver, handle: Out<Handle>, bytes: usize, prop: In<AllocationProp>, flags: u64) {
        driver.outside_capture("cuMemCreate")?;
        let prop = prop.get()?;
        let device = check_prop(driver, &prop)?;
        if bytes == 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        is_granular(&[bytes as u64])?;
        let account = Some(driver.devices[device].take(bytes as u64)?);
        let is_shared = prop.handle_types & POSIX_FD != 0;
        let memory = if is_shared { Memory::shared(bytes, account) } else { Memory::new(bytes, account) }?;
        driver.poison(&memory);
        handle.set(driver.physical.insert(Physical { memory: Arc::new(memory), bytes, device }))
    }

    /// Releases a handle; mapped memory stays.
    fn cuMemRelease(driver, handle: Handle) {
        driver.physical.remove(handle, &mut driver.misuse).map(drop)
    }

    fn cuMemMap(driver, address: Address, bytes: usize, offset: usize, handle: Handle, flags: u64) {
        driver.outside_capture("cuMemMap")?;
        let physical = driver.physical.find(handle, &mut driver.misuse)?;
        let (memory, size) = (physical.memory.clone(), physical.bytes);
        is_granular(&[address, bytes as u64])?;
        // As on a real device, physical memory can only be mapped as a whole.
        if offset != 0 || flags != 0 || bytes != size {
            return Err(Code::INVALID_VALUE);
        }
        driver.check(address, bytes)?;
        let end = address + bytes as Address;
        let before = driver.space.mappings.range(..end).next_back();
        if before.is_some_and(|(&start, other)| start + other.bytes as Address > address) {
            return Err(Code::ALREADY_MAPPED);
        }
        let mapping = Mapping { bytes, memory, physical: handle, readable: false, writable: false, devices: BTreeSet::new() };
        driver.space.mappings.insert(address, mapping);
        Ok(())
    }

    fn cuMemSetAccess(driver, address: Address, bytes: usize, access: In<AccessDesc>, count: usize) {
        let found = mapped(driver, address, bytes)?;
        for access in access.all(count)? {
            driver.device(access.location.id)?;
            for at in &found {
                let mapping = driver.space.mappings.get_mut(at).ok_or(Code::INVALID_VALUE)?;
                if access.flags & 1 != 0 {
                    mapping.devices.insert(access.location.id as usize);
                }
                mapping.readable = access.flags & 1 != 0;
                mapping.writable = access.flags & 2 != 0;
            }
        }
        Ok(())
    }

    fn cuMemGetAccess(driver, flags: Out<u64>, _location: In<Location>, address: Address) {
        let mapping = driver.space.mappings.range(..=address).next_back();
        let (_, mapping) = mapping
            .filter(|(start, mapping)| address < **start + mapping.bytes as Address)
            .ok_or(Code::INVALID_VALUE)?;
        flags.set(u64::from(mapping.readable) | u64::from(mapping.writable) << 1)
    }

    fn cuMemUnmap(driver, address: Address, bytes: usize) {
        let context = driver.outside_capture("cuMemUnmap")?;
        let found = mapped(driver, address, bytes)?;
        if found.iter().any(|at| driver.space.mappings[at].physical == 0) {
            return Err(Code::INVALID_VALUE);
        }
        driver.finish_context(context, address);
        found.iter().for_each(|at| drop(driver.space.mappings.remove(at)));
        Ok(())
    }

    /// Returns another handle of the memory that is mapped at an address.
    fn cuMemRetainAllocationHandle(driver, handle: Out<Handle>, address: Address) {
        let (device, found) = match driver.space.containing(address) {
            Some((_, allocation)) => (allocation.device, driver.space.mappings.range(..=address).next_back()),
            None => return Err(Code::INVALID_VALUE),
        };
        let found = found.filter(|(start, mapping)| address < **start + mapping.bytes as Address);
        let (_, mapping) = found.filter(|(_, mapping)| mapping.physical != 0).ok_or(Code::INVALID_VALUE)?;
        let (memory, bytes) = (mapping.memory.clone(), mapping.bytes);
        handle.set(driver.physical.insert(Physical { memory, bytes, device }))
    }

    fn cuMemExportToShareableHandle(driver, place: Out<RawFd>, handle: Handle, kind: u32, _flags: u64) {
        let physical = driver.physical.find(handle, &mut driver.misuse)?;
        let file = physical.memory.file().filter(|_| kind == POSIX_FD).ok_or(Code::NOT_SUPPORTED)?;
        let file = fcntl_dupfd_cloexec(file, 0).map_err(|_| Code::OPERATING_SYSTEM)?;
        place.set(file.into_raw_fd())
    }

    /// Imports memory from a file, which still belongs to the caller, as with the real driver.
    fn cuMemImportFromShareableHandle(driver, handle: Out<Handle>, file: usize, kind: u32) {
        let device = driver.current_device()?;
        if kind != POSIX_FD {
            return Err(Code::NOT_SUPPORTED);
        }
        let file = duplicate(file as RawFd)?;
        let bytes = rustix::fs::fstat(&file).map_err(|_| Code::INVALID_VALUE)?.st_size as usize;
        let memory = Memory::open(file, bytes, None)?;
        handle.set(driver.physical.insert(Physical { memory: Arc::new(memory), bytes, device }))
    }

    fn cuMemGetAllocationPropertiesFromHandle(driver, prop: Out<AllocationProp>, handle: Handle) {
        let physical = driver.physical.find(handle, &mut driver.misuse)?;
        prop.set(AllocationProp {
            kind: 1,
            handle_types: if physical.memory.file().is_some() { POSIX_FD } else { 0 },
            location: Location { kind: Location::DEVICE, id: physical.device as i32 },
            windows: std::ptr::null_mut(),
            compression: 0,
            direct: 0,
            usage: 0,
            reserved: [0; 4],
        })
    }
}

fn duplicate(file: RawFd) -> Outcome<OwnedFd> {
    if file < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: borrowed for one call, which fails if this is not an open file.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    fcntl_dupfd_cloexec(file, 0).map_err(|_| Code::INVALID_VALUE)
}
