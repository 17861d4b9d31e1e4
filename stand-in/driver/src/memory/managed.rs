//! Managed memory: one address for host and devices. Its location is recorded, but nothing moves.

use crate::abi::{Address, Code, Handle, Location, Ordinal, Out, Outcome};
use crate::call::exports;
use crate::state::Driver;
use crate::state::backing::Memory;
use crate::state::space::{Allocation, Hints, Kind};
use crate::state::work::Work;

/// The host, for older functions that take a device.
const CPU: Ordinal = -1;
/// No location, in answers about ranges.
const NOWHERE: i32 = -2;

fn location(driver: &mut Driver, device: Ordinal) -> Outcome<Location> {
    if device == CPU {
        return Ok(Location { kind: Location::HOST, id: 0 });
    }
    // Documentation of `cuMemPrefetchAsync` and `cuMemAdvise`: the device "must have a non-zero value for the device attribute
    // CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS".
    if !driver.device(device)?.is_concurrent() {
        return Err(Code::INVALID_DEVICE);
    }
    Ok(Location { kind: Location::DEVICE, id: device })
}

fn check_location(driver: &mut Driver, place: Location) -> Outcome<Location> {
    match place.kind {
        Location::HOST => Ok(Location { kind: Location::HOST, id: 0 }),
        Location::DEVICE => location(driver, place.id),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn ordinal(place: Option<Location>) -> i32 {
    match place {
        Some(Location { kind: Location::DEVICE, id }) => id,
        Some(_) => CPU,
        None => NOWHERE,
    }
}

/// The managed allocation that contains a range: its start and id.
fn find(driver: &mut Driver, address: Address, bytes: usize) -> Outcome<(Address, u64)> {
    driver.check(address, bytes)?;
    match driver.space.containing(address) {
        Some((start, allocation)) if matches!(allocation.kind, Kind::Managed(_)) => {
            Ok((start, allocation.id))
        }
        _ => Err(Code::INVALID_VALUE),
    }
}

fn hints(driver: &mut Driver, address: Address, bytes: usize) -> Outcome<&mut Hints> {
    let (start, _) = find(driver, address, bytes)?;
    match driver.space.allocations.get_mut(&start).map(|allocation| &mut allocation.kind) {
        Some(Kind::Managed(hints)) => Ok(hints),
        _ => Err(Code::INVALID_VALUE),
    }
}

fn prefetch(driver: &mut Driver, address: Address, bytes: usize, to: Location, stream: Handle) -> Outcome {
    let stream = driver.stream(stream)?;
    let (address, id) = find(driver, address, bytes)?;
    driver.submit(stream, Work::Prefetch { address, id, location: to }, Vec::new()).map(drop)
}

fn advise(driver: &mut Driver, address: Address, bytes: usize, advice: u32, place: Location) -> Outcome {
    // The first two kinds of advice ignore the location.
    let place = if advice <= 2 { place } else { check_location(driver, place)? };
    let hints = hints(driver, address, bytes)?;
    match advice {
        1 => hints.read_mostly = true,
        2 => hints.read_mostly = false,
        3 => hints.preferred = Some(place),
        4 => hints.preferred = None,
        5 => drop(hints.accessed_by.insert(ordinal(Some(place)))),
        6 => drop(hints.accessed_by.remove(&ordinal(Some(place)))),
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

exports! {
    fn cuMemAllocManaged(driver, address: Out<Address>, bytes: usize, flags: u32) {
        let context = driver.outside_capture("cuMemAllocManaged")?;
        if bytes == 0 || !matches!(flags, 1 | 2) {
            return Err(Code::INVALID_VALUE);
        }
        let device = driver.current_device()?;
        // It may be moved to the device as a whole, if there is room; else some of it is always elsewhere.
        let account = driver.devices[device].take(bytes as u64).ok();
        // Programming guide: where host and device cannot use it at the same time, the host must not while a kernel runs. Here it
        // must not at all, unless it attaches the memory to itself.
        let is_concurrent = driver.devices[device].is_concurrent();
        let memory = if is_concurrent { Memory::new } else { Memory::with_window }(bytes, account)?;
        let kind = Kind::Managed(Hints::default());
        let allocation = Allocation { id: 0, bytes, kind, device, context, alive: true, freed: false };
        let found = memory.address() as Address;
        driver.space.insert(found, allocation, Some(memory));
        address.set(found)
    }

    fn cuMemPrefetchAsync(driver, address: Address, bytes: usize, device: Ordinal, stream: Handle) {
        let to = location(driver, device)?;
        prefetch(driver, address, bytes, to, stream)
    }

    fn cuMemPrefetchAsync_v2(
        driver,
        address: Address,
        bytes: usize,
        to: Location,
        _flags: u32,
        stream: Handle,
    ) {
        let to = check_location(driver, to)?;
        prefetch(driver, address, bytes, to, stream)
    }

    fn cuMemAdvise(driver, address: Address, bytes: usize, advice: u32, device: Ordinal) {
        let place = if advice <= 2 { Location { kind: 0, id: 0 } } else { location(driver, device)? };
        advise(driver, address, bytes, advice, place)
    }

    fn cuMemAdvise_v2(driver, address: Address, bytes: usize, advice: u32, place: Location) {
        advise(driver, address, bytes, advice, place)
    }

    fn cuMemRangeGetAttribute(
        driver,
        data: Out<i32>,
        size: usize,
        attribute: u32,
        address: Address,
        bytes: usize,
    ) {
        let hints = hints(driver, address, bytes)?;
        if size < 4 || !size.is_multiple_of(4) {
            return Err(Code::INVALID_VALUE);
        }
        match attribute {
            1 => data.set(i32::from(hints.read_mostly)),
            2 => data.set(ordinal(hints.preferred)),
            3 => {
                let mut devices = vec![NOWHERE; size / 4];
                devices.iter_mut().zip(&hints.accessed_by).for_each(|(place, &device)| *place = device);
                data.set_all(&devices)
            }
            4 => data.set(ordinal(hints.prefetched)),
            _ => Err(Code::INVALID_VALUE),
        }
    }
}
