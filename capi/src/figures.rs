//! This heap's own C functions, besides those of the C library. cbindgen makes `include/allotment.h` from this file.

use crate::HEAP;
use core::ffi::c_int;
use heap::pressure::Pressure;

/// The heap's statistics at one moment, in bytes.
#[repr(C)]
pub struct Figures {
    /// Bytes in live blocks, including those in thread caches.
    pub used: usize,
    /// The highest value of `used` so far.
    pub peak: usize,
    /// Bytes of memory requested from the system.
    pub committed: usize,
    /// Approximate bytes of free memory not yet returned to the system.
    pub dirty: usize,
    /// Bytes of reserved addresses.
    pub reserved: usize,
    /// Total bytes returned to the system so far.
    pub purged: u64,
}

/// Returns the heap's statistics.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_figures() -> Figures {
    let heap::os::GrowingStats { used, peak, committed, dirty, reserved, purged } = HEAP.stats();
    Figures { used, peak, committed, dirty, reserved, purged }
}

/// Sets the memory pressure: 0 for none, 1 for low memory, 2 and above for critically low memory. From 1 on, the heap returns all free
/// memory to the system at once, and other threads free their caches when they next need a block from outside them. Returns the number of
/// returned bytes. The level holds until the next call: at 1, the heap keeps at most 2 MiB plus a sixteenth of the used memory free; at
/// 2, 1 MiB.
///
/// Call this in Android's `onTrimMemory` and `onLowMemory`, and when the thermal state changes.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_pressure(level: c_int) -> usize {
    HEAP.set_pressure(match level {
        ..=0 => Pressure::Normal,
        1 => Pressure::Low,
        2.. => Pressure::Critical,
    })
}

/// Makes the system provide the memory of the next `bytes` bytes that the heap uses for blocks, so that no access to them causes a page
/// fault. Small blocks count with their pages: the first one of a size takes 16 to 256 KiB. `malloc_trim` ends the reservation, and a
/// later call replaces it. Returns 0, or `ENOMEM` if there is not enough memory.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_reserve(bytes: usize) -> c_int {
    crate::start::before_request();
    if HEAP.reserve(bytes).is_ok() { 0 } else { libc::ENOMEM }
}
