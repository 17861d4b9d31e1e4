//! Blocks of no bytes of the hardened heap: addresses at which nothing can be accessed.

use super::system::{Host, System};
use crate::error::FreeError;
use crate::os::cache::SMALLEST;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The most blocks, each [`SMALLEST`] bytes after the one before.
const MOST: usize = 1 << 20;

/// Bits of a word.
const BITS: usize = usize::BITS as usize;

/// The first address; null until [`reserve`].
static START: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// A bit for each block, set while it is live.
static LIVE: [AtomicUsize; MOST / BITS] = [const { AtomicUsize::new(0) }; MOST / BITS];

/// The block from which the next search begins, so that an address stays free for long.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Reserves the addresses. Without them, [`allocate`] finds no block.
pub(super) fn reserve() {
    if let Some(start) = Host::reserve(MOST * SMALLEST) {
        START.store(start.as_ptr(), Ordering::Release);
    }
}

/// Allocates a block; `None` if too many are live. O(1) unless nearly all are.
pub(super) fn allocate() -> Option<NonNull<u8>> {
    let start = NonNull::new(START.load(Ordering::Acquire))?;
    let first = NEXT.fetch_add(1, Ordering::Relaxed) % MOST;
    for number in 0..=LIVE.len() {
        let word = (first / BITS + number) % LIVE.len();
        let skipped = if number == 0 { (1 << (first % BITS)) - 1 } else { 0 };
        let mut live = LIVE[word].load(Ordering::Relaxed);
        while live | skipped != usize::MAX {
            let bit = (live | skipped).trailing_ones() as usize;
            match LIVE[word].compare_exchange_weak(
                live,
                live | 1 << bit,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                // SAFETY: the range has an address for each bit.
                Ok(_) => return Some(unsafe { start.add((word * BITS + bit) * SMALLEST) }),
                Err(now) => live = now,
            }
        }
    }
    None
}

/// Returns the number of the block at an address.
///
/// # Errors
///
/// [`FreeError::Foreign`] outside the range, [`FreeError::NotABlock`] between two blocks.
fn number(block: NonNull<u8>) -> Result<usize, FreeError> {
    let start = START.load(Ordering::Acquire).addr();
    let offset = block.addr().get().wrapping_sub(start);
    match offset < MOST * SMALLEST && start != 0 {
        false => Err(FreeError::Foreign),
        true if offset % SMALLEST != 0 => Err(FreeError::NotABlock),
        true => Ok(offset / SMALLEST),
    }
}

/// Checks that a live block starts at an address.
///
/// # Errors
///
/// [`FreeError::Foreign`], [`FreeError::NotABlock`] or [`FreeError::AlreadyFree`] if not.
pub(super) fn check(block: NonNull<u8>) -> Result<(), FreeError> {
    let number = number(block)?;
    let live = LIVE[number / BITS].load(Ordering::Relaxed) >> (number % BITS) & 1 == 1;
    if live { Ok(()) } else { Err(FreeError::AlreadyFree) }
}

/// Frees a block. Of two threads that free one, one gets an error.
///
/// # Errors
///
/// Those of [`check`].
pub(super) fn free(block: NonNull<u8>) -> Result<(), FreeError> {
    let number = number(block)?;
    let bit = 1 << (number % BITS);
    let live = LIVE[number / BITS].fetch_and(!bit, Ordering::Relaxed) & bit != 0;
    if live { Ok(()) } else { Err(FreeError::AlreadyFree) }
}
