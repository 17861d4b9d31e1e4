//! The slots with their lock, created on first use.

use super::fault;
use super::pool::{BYTES, Pool, Side, Trace};
use crate::error::FreeError;
use crate::lock::{Futex, Lock};
use crate::os::stay::stay_loaded;
use crate::region::Region;
use core::alloc::Layout;
use core::cell::{Cell, UnsafeCell};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::thread_local;

/// Stands for the first slot's address before there are slots: a range that starts there contains no block.
const NONE: usize = BYTES.wrapping_neg();

/// Slots between guard pages.
pub(in crate::os) struct Slots {
    pub(in crate::os) lock: Futex,
    /// Address of the first slot, or [`NONE`].
    base: AtomicUsize,
    pool: UnsafeCell<*mut Pool>,
}

// SAFETY: the pool is accessed under the lock, and by a fault, which only reads.
unsafe impl Sync for Slots {}
// SAFETY: the pool belongs to the value.
unsafe impl Send for Slots {}

thread_local! {
    /// State of the random number generator.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether the thread has already generated a random number.
pub(super) fn has_begun() -> bool {
    SEED.get() != 0
}

/// Returns a random number from the thread's generator (xorshift, Marsaglia 2003).
fn random() -> u64 {
    let mut seed = SEED.get();
    if seed == 0 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the place is valid for a write.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        seed = (time.tv_nsec as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ptr::from_ref(&time).addr() as u64
            | 1;
    }
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    SEED.set(seed);
    seed >> 16
}

/// Returns how many requests come before the next sample: a random number from 0 to `2 * period - 2`, so that the distance between
/// samples is `period` on average.
pub(in crate::os) fn distance(period: u32) -> u32 {
    (random() % (2 * u64::from(period) - 1)) as u32
}

impl Slots {
    pub(in crate::os) const fn new() -> Self {
        Self { lock: Futex::INIT, base: AtomicUsize::new(NONE), pool: UnsafeCell::new(ptr::null_mut()) }
    }

    /// Returns whether an address is in the range of the slots.
    #[inline(always)]
    pub(in crate::os) fn contains(&self, block: NonNull<u8>) -> bool {
        block.addr().get().wrapping_sub(self.base.load(Ordering::Relaxed)) < BYTES
    }

    /// Creates the slots, if there are none yet, in [`BYTES`] bytes of addresses without access from `place`. Returns whether there are
    /// any.
    pub(in crate::os) fn make(&self, place: impl FnOnce() -> Option<NonNull<u8>>) -> bool {
        // Keep the library loaded, because faults call it once there are slots. Do so outside the lock: a thread that holds the loader's
        // lock may be waiting for it.
        if self.base.load(Ordering::Relaxed) == NONE && !stay_loaded() {
            return false;
        }
        self.lock.with(|| {
            // SAFETY: the lock excludes all other callers, and a pool lives forever.
            unsafe {
                let pool = self.pool.get();
                if (*pool).is_null() {
                    let Some(place) = place() else { return false };
                    let Some(made) = Pool::make(place) else {
                        libc::munmap(place.as_ptr().cast(), BYTES);
                        return false;
                    };
                    fault::watch(made.as_ptr());
                    *pool = made.as_ptr();
                    self.base.store((*made.as_ptr()).region().start.addr().get(), Ordering::Relaxed);
                }
            }
            true
        })
    }

    /// Runs `f` on the pool, if there is one.
    fn with<T>(&self, f: impl FnOnce(&mut Pool) -> Option<T>) -> Option<T> {
        // SAFETY: the lock excludes all other callers, and a pool lives forever.
        self.lock.with(|| unsafe { (*self.pool.get()).as_mut() }.and_then(f))
    }

    /// Returns the layout of the current or last block in the slot of an address; `None` if the address is in no slot.
    #[inline(always)]
    pub(in crate::os) fn layout_of(&self, block: NonNull<u8>) -> Option<Layout> {
        self.contains(block).then(|| self.slot_layout(block))
    }

    #[cold]
    fn slot_layout(&self, block: NonNull<u8>) -> Layout {
        self.with(|pool| pool.layout(block)).unwrap_or(Layout::new::<u8>())
    }

    /// Allocates a block in a slot; `None` if no slot is free or the block does not fit.
    pub(in crate::os) fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let trace = Trace::here();
        let side = if random() % 2 == 0 { Side::Left } else { Side::Right };
        self.with(|pool| pool.allocate(layout, side, trace))
    }

    /// Checks a block in a slot.
    pub(in crate::os) fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|pool| Some(pool.check(block, layout).map(drop))).unwrap_or(Err(FreeError::Foreign))
    }

    /// Frees a block in a slot, or returns the error after a report that names the block.
    pub(in crate::os) fn free(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let trace = Trace::here();
        let freed = self.with(|pool| {
            let freed = pool.check(block, layout).map(|n| pool.free(n, trace));
            if freed.is_err() {
                pool.nearest(block.addr().get()).into_iter().for_each(fault::print_block);
            }
            Some(freed)
        });
        freed.unwrap_or(Err(FreeError::Foreign))
    }

    /// Returns the addresses of the slots, if there are any.
    pub(in crate::os) fn region(&self) -> Option<Region> {
        self.with(|pool| Some(pool.region()))
    }
}
