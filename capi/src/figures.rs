//! This heap's own functions for C, beside those of the C library: `include/allotment.h` is made from this file.

use crate::HEAP;
use core::ffi::c_int;
use heap::pressure::Pressure;

/// The heap's figures at one moment, in bytes.
#[repr(C)]
pub struct Figures {
    /// Bytes in live blocks, those in the caches of threads included.
    pub used: usize,
    /// The largest value that `used` has had.
    pub peak: usize,
    /// Bytes for which memory was asked of the system.
    pub committed: usize,
    /// Bytes of free memory that the system has not got back, about.
    pub dirty: usize,
    /// Bytes of addresses that are reserved.
    pub reserved: usize,
    /// Bytes that went back to the system, over all.
    pub purged: u64,
}

/// Returns the heap's figures.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_figures() -> Figures {
    let heap::os::GrowingStats { used, peak, committed, dirty, reserved, purged } = HEAP.stats();
    Figures { used, peak, committed, dirty, reserved, purged }
}

/// Tells the heap how short memory is: 0 for enough, 1 for low, 2 and more for critical. From 1 on all free memory goes back at once,
/// and other threads free their caches when they next need a block from outside them. Returns the bytes that went back. The level
/// holds until the next call: at 1 the heap keeps at most 2 MiB and a sixteenth of what is in use free, at 2 it keeps 1 MiB.
///
/// Call it in Android's `onTrimMemory` and `onLowMemory`, and when the thermal state changes.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_pressure(level: c_int) -> usize {
    HEAP.set_pressure(match level {
        ..=0 => Pressure::Normal,
        1 => Pressure::Low,
        2.. => Pressure::Critical,
    })
}

/// Has the system provide the memory of the next `bytes` bytes that the heap takes for blocks, so that no access to them is a page fault. Small
/// blocks count with their pages: the first one of a size takes 16 to 256 KiB. `malloc_trim` ends it, and a later call replaces it. Returns 0, or
/// `ENOMEM` if there is not so much.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_reserve(bytes: usize) -> c_int {
    crate::start::before_request();
    if HEAP.reserve(bytes).is_ok() { 0 } else { libc::ENOMEM }
}
