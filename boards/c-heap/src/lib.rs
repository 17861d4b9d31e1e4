//! The default heap of microcontrollers for C firmware: `liballotment_heap.a` with the header `include/allotment_heap.h`, which is
//! made from this file.
//!
//! C frees a block without its size: one bit for each 8 bytes says where blocks start and end, so that small blocks have nothing in
//! front of them. Operations on the one heap of a program run in a critical section that masks interrupts for one core (on Cortex-M only); heaps of
//! their own, as ESP-IDF has one for each region, have no lock.
#![no_std]

mod blocks;
#[cfg(target_arch = "arm")]
mod global;

use allotment::lock::{Lock, Unsync};
use blocks::Heap;
use core::ffi::c_void;
use core::ptr::{self, NonNull};

/// A heap of its own, whose calls the program keeps apart.
type Own = Heap<Unsync>;

/// What every block is aligned to at least, as C asks for.
const ALIGN: usize = 8;

/// Bytes of the largest region.
const LARGEST: usize = 511 * 1024;

/// The heap's figures at one moment, in bytes; blocks count with what they were rounded up to.
#[repr(C)]
#[derive(Default)]
pub struct Figures {
    /// Bytes for blocks.
    pub capacity: usize,
    /// Bytes in live blocks.
    pub used: usize,
    /// The largest value that `used` has had.
    pub peak: usize,
    /// Bytes that are free, in one piece or in several.
    pub free: usize,
    /// The largest request that is sure to succeed.
    pub largest_free: usize,
    /// Number of live blocks.
    pub live_blocks: usize,
    /// Number of requests that found no room.
    pub failed: usize,
    /// Bytes of kept blocks that are free: they are in `used`, and requests of other sizes may have failed because of them.
    pub kept: usize,
}

/// Creates a heap of its own in the `bytes` bytes at `start`, which nothing else may use from then on; null if they are too few. The heap
/// uses at most 2,044 KiB of them. It has no lock: calls for one heap must not run at the same time.
///
/// # Safety
///
/// The bytes must be valid for reads and writes, and nothing else may use them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_create(start: *mut c_void, bytes: usize) -> *mut c_void {
    let skip = start.addr().wrapping_neg() % align_of::<Own>().max(ALIGN);
    let own = skip + size_of::<Own>().next_multiple_of(ALIGN);
    let Some(mut room) = bytes.checked_sub(own) else { return ptr::null_mut() };
    if start.is_null() {
        return ptr::null_mut();
    }
    let heap = start.wrapping_byte_add(skip).cast::<Own>();
    let mut from = start.wrapping_byte_add(own).cast::<u8>();
    // SAFETY: the caller guarantees the bytes, which begin with the heap.
    unsafe {
        heap.write(Own::new());
        loop {
            let part = room.min(LARGEST);
            if (*heap).add(from, part).is_err() {
                break;
            }
            (from, room) = (from.wrapping_add(part), room - part);
        }
        if (*heap).stats().0.is_some_and(|stats| stats.capacity > 0) { heap.cast() } else { ptr::null_mut() }
    }
}

/// Allocates `size` bytes of a heap aligned to `align`, a power of two; null if there is no room or the alignment is none.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_alloc(heap: *mut c_void, align: usize, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    allocate(unsafe { &*heap.cast::<Own>() }, align, size)
}

/// Frees a block like `allotment_free`. Returns false as well if it is not of this heap.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`. The block must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_free(heap: *mut c_void, block: *mut c_void) -> bool {
    // SAFETY: the caller's contract.
    unsafe { free(&*heap.cast::<Own>(), block) }
}

/// Changes the size of a block like `allotment_realloc`.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`. If the block moves, it must not be used any more at its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_realloc(
    heap: *mut c_void,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { reallocate(&*heap.cast::<Own>(), block, size) }
}

/// Returns the bytes of a live block like `allotment_size`.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_size(heap: *mut c_void, block: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    length(unsafe { &*heap.cast::<Own>() }, block)
}

/// Keeps blocks of a heap like `allotment_keep`.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_keep(
    heap: *mut c_void,
    least: usize,
    most: usize,
    count: usize,
) -> bool {
    // SAFETY: the caller's contract.
    unsafe { &*heap.cast::<Own>() }.keep(least, most, count)
}

/// Returns a heap's statistics.
///
/// # Safety
///
/// The heap must be one of `allotment_heap_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_heap_figures(heap: *mut c_void) -> Figures {
    // SAFETY: the caller's contract.
    figures(unsafe { &*heap.cast::<Own>() })
}

fn allocate<L: Lock>(heap: &Heap<L>, align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return ptr::null_mut();
    }
    heap.allocate(size, align.max(ALIGN)).cast()
}

/// # Safety
///
/// The block must not be used afterwards.
unsafe fn free<L: Lock>(heap: &Heap<L>, block: *mut c_void) -> bool {
    // SAFETY: the caller's contract.
    NonNull::new(block.cast()).is_none_or(|block| unsafe { heap.free(block) })
}

/// # Safety
///
/// If the block moves, it must not be used any more at its old address.
unsafe fn reallocate<L: Lock>(heap: &Heap<L>, block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block.cast::<u8>()) else { return heap.allocate(size, ALIGN).cast() };
    // SAFETY: the caller guarantees the block; the blocks of the copy are live and apart.
    unsafe {
        match heap.resize(old, size) {
            None => ptr::null_mut(),
            Some((true, _)) => block,
            Some((false, had)) => {
                let moved = heap.allocate(size, ALIGN);
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(old.as_ptr(), had.min(size));
                    heap.free(old);
                }
                moved.cast()
            }
        }
    }
}

fn length<L: Lock>(heap: &Heap<L>, block: *mut c_void) -> usize {
    NonNull::new(block.cast()).and_then(|block| heap.size(block)).unwrap_or(0)
}

fn figures<L: Lock>(heap: &Heap<L>) -> Figures {
    let (stats, kept) = heap.stats();
    // Its counters always tell.
    let Some(stats) = stats else { return Figures::default() };
    Figures {
        capacity: stats.capacity,
        used: stats.used,
        peak: stats.peak,
        free: stats.free,
        largest_free: stats.largest_free,
        live_blocks: stats.live_blocks,
        failed: stats.failed,
        kept,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // An exception, which the program's own handler sees.
    #[cfg(target_arch = "arm")]
    cortex_m::asm::udf();
    #[cfg(not(target_arch = "arm"))]
    // SAFETY: it ends in the handler of illegal instructions.
    unsafe {
        core::arch::asm!("unimp", options(noreturn))
    }
}
