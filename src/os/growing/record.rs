//! The record of [`Hardened`](super::Hardened): a byte for each 16 bytes of the heap's addresses.

use crate::os::cache::SMALLEST;
use crate::region::Region;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// The state of an address where no block was allocated since its page was opened.
pub(super) const FRESH: u8 = 0;

/// The states, one byte each; null before the first block.
static STATES: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// The first address of the heap. Set before [`STATES`].
static BASE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of the heap. Set before [`STATES`].
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Returns whether there is a record.
#[inline(always)]
pub(super) fn is_kept() -> bool {
    !STATES.load(Ordering::Acquire).is_null()
}

/// Begins the record of the heap that owns `region`.
///
/// # Safety
///
/// `states` must stay valid forever, be zero, and have a byte for each [`SMALLEST`] bytes of the heap.
pub(super) unsafe fn begin(region: Region, states: *mut u8) {
    BASE.store(region.start.addr().get(), Ordering::Relaxed);
    LENGTH.store(region.size, Ordering::Relaxed);
    STATES.store(states, Ordering::Release);
}

/// Returns the state for an address of the heap; `None` before the first block.
#[inline(always)]
pub(super) fn state_at(block: *mut u8) -> Option<&'static AtomicU8> {
    let states = STATES.load(Ordering::Relaxed);
    let offset = block.addr().wrapping_sub(BASE.load(Ordering::Relaxed));
    // SAFETY: there is a byte for each address of the heap, and all accesses to it are atomic.
    (!states.is_null()).then(|| unsafe { AtomicU8::from_ptr(states.wrapping_add(offset / SMALLEST)) })
}

/// Resets the states of memory whose contents are about to change.
pub(super) fn forget(start: *mut u8, bytes: usize) {
    let offset = start.addr().wrapping_sub(BASE.load(Ordering::Relaxed));
    if offset >= LENGTH.load(Ordering::Relaxed) {
        // The memory belongs to another heap.
        return;
    }
    for at in (0..bytes).step_by(SMALLEST) {
        let Some(state) = state_at(start.wrapping_add(at)) else { return };
        if state.load(Ordering::Relaxed) != FRESH {
            state.store(FRESH, Ordering::Relaxed);
        }
    }
}
