//! Reports on pools to the program: statistics, snapshots, and the last error.

use super::{Failure, LAST_ERROR, Pool, each, lock, note};
use core::ffi::{c_char, c_int};
use core::slice;
use heap::pool::{Counter, PoolStats, Snapshot};

/// A quantity over time: a number of bytes or of items.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllotmentCounter {
    /// The current value.
    pub current: u64,
    /// The highest value so far.
    pub peak: u64,
    /// The sum of all additions so far.
    pub total: u64,
}

impl From<Counter> for AllotmentCounter {
    fn from(counter: Counter) -> Self {
        Self { current: counter.current, peak: counter.peak, total: counter.total }
    }
}

/// The statistics of a device's pool.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllotmentTorchStats {
    /// Bytes in live blocks, rounding included.
    pub allocated: AllotmentCounter,
    /// Bytes in live blocks, as requested.
    pub requested: AllotmentCounter,
    /// Bytes that the pool has reserved from the device.
    pub reserved: AllotmentCounter,
    /// Bytes in live blocks and in freed blocks that wait for work.
    pub active: AllotmentCounter,
    /// Number of live blocks.
    pub blocks: AllotmentCounter,
    /// Number of requests for which the pool asked the device for memory.
    pub misses: u64,
    /// Number of failed requests.
    pub failures: u64,
}

/// Writes a device's statistics to `stats`. Returns 0, or -1 after an error. O(1).
///
/// # Safety
///
/// `stats` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_stats(device: c_int, stats: *mut AllotmentTorchStats) -> c_int {
    let found = lock().device(device).map(|device| each!(&device.pool, pool => pool.stats()));
    let Some(found) = note(found) else { return -1 };
    let PoolStats { allocated, requested, reserved, active, blocks, misses, failures, .. } = found;
    let (allocated, requested, reserved) = (allocated.into(), requested.into(), reserved.into());
    let (active, blocks) = (active.into(), blocks.into());
    let found = AllotmentTorchStats { allocated, requested, reserved, active, blocks, misses, failures };
    // SAFETY: the caller's contract.
    unsafe { stats.write(found) };
    0
}

/// Copies as much of a text as fits, with a final zero, and returns the text's length without the zero.
///
/// # Safety
///
/// `room` bytes from `place` must be writable; null is allowed if there is no room.
unsafe fn copy_to(text: &str, place: *mut c_char, room: usize) -> usize {
    if !place.is_null() && room > 0 {
        let len = text.len().min(room - 1);
        // SAFETY: the caller's contract.
        let place = unsafe { slice::from_raw_parts_mut(place.cast::<u8>(), len + 1) };
        place[..len].copy_from_slice(&text.as_bytes()[..len]);
        place[len] = 0;
    }
    text.len()
}

/// Writes all segments and blocks of a device's pool as JSON to `place`, which has room for `room` bytes, and returns
/// the length of the whole text; 0 after an error. O(blocks · log blocks).
///
/// # Safety
///
/// `room` bytes from `place` must be writable; null is allowed if there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_snapshot(device: c_int, place: *mut c_char, room: usize) -> usize {
    let found: Result<Snapshot, Failure> =
        lock().device(device).map(|device| each!(&device.pool, pool => pool.snapshot()));
    let text = note(found).and_then(|found| serde_json::to_string(&found).ok()).unwrap_or_default();
    // SAFETY: the caller's contract.
    unsafe { copy_to(&text, place, room) }
}

/// Writes the message of this thread's last failed call to `place`, and returns its length.
///
/// # Safety
///
/// As for [`allotment_torch_snapshot`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_torch_last_error(place: *mut c_char, room: usize) -> usize {
    // SAFETY: the caller's contract.
    LAST_ERROR.with_borrow(|text| unsafe { copy_to(text, place, room) })
}
