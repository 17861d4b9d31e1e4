//! Functions for tests. The crate `allotment-stand-in` wraps them.

use crate::abi::{Code, Handle, Out};
use crate::call::run_ready;
use crate::state::failure::Failure;
use crate::state::late::Late;
use crate::state::space::Kind;
use crate::state::{Driver, lock};
use crate::table;
use crate::work;
use std::ffi::{CStr, c_char};
use std::mem;

/// Converts a name from a test.
fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: tests pass null or zero-terminated text.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// Resets the driver to its initial state: all handles become stale, and all memory is gone. Work that a thread is
/// still running is lost.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_reset() {
    // Take the old state out first, so that it is not dropped under the lock.
    let old = mem::replace(&mut *lock(), Driver::new());
    drop(old);
}

/// Sets the number of devices and their memory in bytes, before `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_devices(count: u64, bytes: u64) {
    lock().set_devices(count, bytes);
}

/// Sets an attribute of a device.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_set_attribute(device: i32, attribute: u32, value: i32) {
    if let Ok(device) = lock().device(device) {
        device.attributes.insert(attribute, value);
    }
}

/// Makes events measure a simulated time that only copies and fills take, at this many bytes per second; 0 for real
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_rate(bytes_per_second: u64) {
    lock().rate = (bytes_per_second > 0).then_some(bytes_per_second);
}

/// Sets what new device memory is filled with: a byte, or zeros if the number is not a byte.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_poison(byte: u32) {
    lock().poison = u8::try_from(byte).ok();
}

/// Makes work run late, in an order that the seed decides; at once if the seed is 0.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_seed(seed: u64) {
    let mut driver = lock();
    driver.late = Late::new(seed);
    drop(run_ready(driver));
}

/// Makes asynchronous copies from and to ordinary host memory run when the stream reaches them, or within the call.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_late_pageable(late: bool) {
    lock().late_pageable = late;
}

/// Holds or releases a stream; stream 0 means all streams, existing and new ones.
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

/// Runs one piece of work of a stream if it may run now, and returns whether there was one.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_step(stream: Handle) -> bool {
    let (driver, ran) = work::run_first(lock(), stream);
    drop(run_ready(driver));
    ran
}

/// Returns the number of pieces of work that a stream still has.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_pending(stream: Handle) -> u64 {
    lock().streams.get(stream).map_or(0, |stream| stream.submitted - stream.completed)
}

/// Returns the default stream of a device's primary context; 0 if it has none.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_default_stream(device: i32) -> Handle {
    let mut driver = lock();
    let context = driver.device(device).ok().and_then(|device| device.primary);
    context.and_then(|(context, _)| driver.contexts.get(context)).map_or(0, |context| context.default_stream)
}

/// Makes calls of `name` fail with `code`, `times` times from the `nth` on (1 is the next call).
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_fail(name: *const c_char, nth: u64, times: u64, code: u32) {
    let failure = Failure { name: text(name), after: nth.saturating_sub(1), times, code: Code(code) };
    lock().failures.push(failure);
}

/// Cancels all failures set by `stand_in_fail`.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_clear_failures() {
    lock().failures.clear();
}

/// Gives the next object that is made the handle of one that was destroyed, as a driver may do.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_use_again(handle: Handle) {
    table::use_again(handle);
}

/// Simulates a fault in the work of a device's primary context.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_fault(device: i32, code: u32) {
    let mut driver = lock();
    let context = driver.device(device).ok().and_then(|device| device.primary);
    if let Some(context) = context.and_then(|(context, _)| driver.contexts.get_mut(context)) {
        context.fault = Some(Code(code));
    }
}

/// Returns the number of calls of `name` since the last reset, failed ones included; null counts all functions.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_calls(name: *const c_char) -> u64 {
    let driver = lock();
    match text(name).as_str() {
        "" => driver.calls.values().sum(),
        name => driver.calls.get(name).copied().unwrap_or(0),
    }
}

/// Returns how often a kind of misuse was noticed (`misuse::Kind`); `u32::MAX` counts all kinds.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_misuse(kind: u32) -> u64 {
    lock().misuse.count(kind)
}

/// Forgets the misuse noticed so far.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_clear_misuse() {
    lock().misuse.clear();
}

/// Writes all misuse and all live memory as text, up to `room` bytes, and returns the length of the text.
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
        // SAFETY: tests pass null or a pointer with this much room.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
    report.len()
}

/// The objects that have not been freed.
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
    /// Memory pools, without the devices' own.
    pools: u64,
    modules: u64,
    contexts: u64,
    /// Bytes of physical memory in use, on all devices.
    bytes: u64,
}

/// Returns what has not been freed.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_live(live: Out<Live>) {
    let driver = lock();
    let count = |wanted: fn(&Kind) -> bool| {
        driver.space.allocations.values().filter(|found| wanted(&found.kind)).count() as u64
    };
    let defaults = driver.contexts.len() + driver.per_thread.len();
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
