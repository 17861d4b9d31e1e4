//! The default heap of microcontrollers for C firmware: `liballotment_heap.a` with the header `include/allotment_heap.h`, which is
//! made from this file.
//!
//! C frees a block without its size: one bit for each 8 bytes says where blocks start and end, so that small blocks have nothing in
//! front of them. Operations run in a critical section that masks interrupts for one core.
#![no_std]

mod blocks;

use blocks::Heap;
use core::ffi::c_void;
use core::ptr::{self, NonNull};

// Linked for its critical section.
use cortex_m as _;

static HEAP: Heap = Heap::new();

/// What every block is aligned to at least, as C asks for.
const ALIGN: usize = 8;

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
}

/// Gives the heap the `bytes` bytes at `start`, which nothing else may use from then on. Up to four regions of up to 511 KiB can be
/// given. Returns whether they could be used.
///
/// # Safety
///
/// The bytes must be valid for reads and writes, and nothing else may use them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_add(start: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the caller guarantees the bytes.
    !start.is_null() && unsafe { HEAP.add(start.cast(), bytes) }.is_ok()
}

/// Allocates `size` bytes aligned to 8; null if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_malloc(size: usize) -> *mut c_void {
    HEAP.take(size, ALIGN).cast()
}

/// Allocates `count` times `size` bytes, all zero; null if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else { return ptr::null_mut() };
    let block = allotment_malloc(size);
    if !block.is_null() {
        // SAFETY: the block has that many bytes.
        unsafe { block.cast::<u8>().write_bytes(0, size) };
    }
    block
}

/// Allocates `size` bytes aligned to `align`, a power of two; null if there is no room or the alignment is none.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return ptr::null_mut();
    }
    HEAP.take(size, align.max(ALIGN)).cast()
}

/// Frees a block; null is ignored. Returns false, with nothing done, if the address is not the start of a live block.
///
/// # Safety
///
/// The block must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_free(block: *mut c_void) -> bool {
    // SAFETY: the caller's contract.
    NonNull::new(block.cast()).is_none_or(|block| unsafe { HEAP.give(block) })
}

/// Changes the size of a block, in place or by moving it; null if there is no room, and then the block is as it was. Null as well if
/// the address is not the start of a live block.
///
/// # Safety
///
/// If the block moves, it must not be used any more at its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block.cast::<u8>()) else { return allotment_malloc(size) };
    // SAFETY: the caller guarantees the block; the blocks of the copy are live and apart.
    unsafe {
        match HEAP.resize(old, size) {
            None => ptr::null_mut(),
            Some((true, _)) => block,
            Some((false, had)) => {
                let moved = allotment_malloc(size);
                if !moved.is_null() {
                    moved.cast::<u8>().copy_from_nonoverlapping(old.as_ptr(), had.min(size));
                    allotment_free(block);
                }
                moved
            }
        }
    }
}

/// Returns the bytes that a live block has, at least as many as were asked for; 0 if the address is not the start of one.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_size(block: *mut c_void) -> usize {
    NonNull::new(block.cast()).and_then(|block| HEAP.size(block)).unwrap_or(0)
}

/// Returns the heap's figures.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_figures() -> Figures {
    // Its counters always tell.
    let Some(stats) = HEAP.stats() else { return Figures::default() };
    Figures {
        capacity: stats.capacity,
        used: stats.used,
        peak: stats.peak,
        free: stats.free,
        largest_free: stats.largest_free,
        live_blocks: stats.live_blocks,
        failed: stats.failed,
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // A fault, which the program's own handler sees.
    cortex_m::asm::udf()
}
