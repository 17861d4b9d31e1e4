//! What tests call. The crate `allotment-stand-in` wraps these functions.

use crate::abi::{Code, Handle, Out};
use crate::call::{Failure, lock, run_ready};
use crate::driver::Driver;
use crate::memory::space::Kind;
use crate::work;
use std::ffi::{CStr, c_char};
use std::mem;

/// A name from outside.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: tests give null or text that ends with a zero.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Everything as at the start: all handles are stale, all memory is gone. Work that a thread still runs is lost.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_reset() {
    // What is dropped must not be dropped under the lock's poison, so it is taken out first.
    let old = mem::replace(&mut *lock(), Driver::new());
    drop(old);
}

/// Other devices, before `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_devices(count: u64, bytes: u64) {
    lock().set_devices(count, bytes);
}

/// What a device says of itself.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_attribute(device: i32, attribute: u32, value: i32) {
    if let Ok(device) = lock().device(device) {
        device.attributes.insert(attribute, value);
    }
}

/// Events tell a time that only copies and fills take, at so many bytes per second; 0 for the real time.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_rate(bytes_per_second: u64) {
    lock().rate = (bytes_per_second > 0).then_some(bytes_per_second);
}

/// What new device memory is filled with: a byte, or zeros for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_poison(byte: u32) {
    lock().poison = u8::try_from(byte).ok();
}

/// Holds a stream, or lets it go on; stream 0 stands for all there are and all to come.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_hold(stream: Handle, hold: bool) {
    let mut driver = lock();
    if stream == 0 {
        driver.hold_new = hold;
        driver.streams.iter_mut().for_each(|(_, stream)| stream.held = hold);
    } else if let Some(stream) = driver.streams.get_mut(stream) {
        stream.held = hold;
    }
    drop(run_ready(driver));
}

/// Runs one piece of work of a stream, if its turn has come; whether there was one.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_step(stream: Handle) -> bool {
    let (driver, ran) = work::run_first(lock(), stream);
    drop(run_ready(driver));
    ran
}

/// Pieces of work that a stream still has.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_pending(stream: Handle) -> u64 {
    lock().streams.get(stream).map_or(0, |stream| stream.submitted - stream.completed)
}

/// The default stream of a device's primary context; 0 if it has none.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_default_stream(device: i32) -> Handle {
    let mut driver = lock();
    let context = driver.device(device).ok().and_then(|device| device.primary);
    context.and_then(|(context, _)| driver.contexts.get(context)).map_or(0, |context| context.default_stream)
}

/// Calls of `name` fail with `code`, `times` times, from the `nth` one from now on (the next is the first).
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_fail(name: *const c_char, nth: u64, times: u64, code: u32) {
    let failure = Failure { name: text(name), after: nth.saturating_sub(1), times, code: Code(code) };
    lock().failures.push(failure);
}

/// No more failures that were asked for.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_clear_failures() {
    lock().failures.clear();
}

/// Something goes wrong in the work of a device's primary context.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_fault(device: i32, code: u32) {
    let mut driver = lock();
    let context = driver.device(device).ok().and_then(|device| device.primary);
    if let Some(context) = context.and_then(|(context, _)| driver.contexts.get_mut(context)) {
        context.fault = Some(Code(code));
    }
}

/// Calls of `name` since the last reset, failed ones included; of all functions if it is null.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_calls(name: *const c_char) -> u64 {
    let driver = lock();
    match text(name).as_str() {
        "" => driver.calls.values().sum(),
        name => driver.calls.get(name).copied().unwrap_or(0),
    }
}

/// How often a kind of misuse was noticed (`misuse::Kind`), or all for `u32::MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_misuse(kind: u32) -> u64 {
    lock().misuse.count(kind)
}

/// Forgets misuse that was noticed.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_clear_misuse() {
    lock().misuse.clear();
}

/// All misuse as text, and what is not freed: up to `room` bytes; how many there are.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_report(place: *mut u8, room: usize) -> usize {
    let driver = lock();
    let mut report = driver.misuse.text();
    for (address, allocation) in &driver.space.allocations {
        report += &format!("live: {} bytes at {address:#x}\n", allocation.bytes);
    }
    drop(driver);
    let bytes = &report.as_bytes()[..room.min(report.len())];
    if !place.is_null() {
        // SAFETY: tests give null or a place with so much room.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    report.len()
}

/// What there is at the moment.
#[repr(C)]
pub struct Live {
    /// Allocations by `cuMemAlloc`.
    device: u64,
    /// Stream-ordered allocations.
    ordered: u64,
    /// Pinned allocations.
    host: u64,
    /// Registered ranges.
    registered: u64,
    managed: u64,
    imported: u64,
    /// Reserved ranges of addresses.
    reserved: u64,
    /// Mappings of physical memory.
    mapped: u64,
    /// Handles of physical memory.
    physical: u64,
    streams: u64,
    events: u64,
    /// Without those of the devices.
    pools: u64,
    modules: u64,
    contexts: u64,
    /// Bytes of physical memory in use, on all devices.
    bytes: u64,
}

/// What is not freed.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_live(live: Out<Live>) {
    let driver = lock();
    let count = |wanted: fn(&Kind) -> bool| {
        driver.space.allocations.values().filter(|found| wanted(&found.kind)).count() as u64
    };
    let defaults = driver.contexts.len();
    live.set_if(Live {
        device: count(|kind| *kind == Kind::Device),
        ordered: count(|kind| matches!(kind, Kind::Ordered(_))),
        host: count(|kind| matches!(kind, Kind::Host { registered: false, .. })),
        registered: count(|kind| matches!(kind, Kind::Host { registered: true, .. })),
        managed: count(|kind| matches!(kind, Kind::Managed(_))),
        imported: count(|kind| *kind == Kind::Imported),
        reserved: count(|kind| *kind == Kind::Reserved),
        mapped: driver.space.mappings.values().filter(|mapping| mapping.physical != 0).count() as u64,
        physical: driver.physical.len() as u64,
        streams: (driver.streams.len() - defaults) as u64,
        events: driver.events.len() as u64,
        pools: (driver.pools.len() - driver.devices.len()) as u64,
        modules: driver.modules.len() as u64,
        contexts: driver.contexts.len() as u64,
        bytes: driver.devices.iter().map(|device| device.bytes - device.free()).sum(),
    });
}
