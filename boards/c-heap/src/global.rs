//! The one heap of a program, in a critical section.

use crate::blocks::Heap;
use crate::{ALIGN, Figures, allocate, figures, free, length, reallocate};
use allotment::lock::CriticalSection;
use core::ffi::c_void;
use core::ptr;

// Linked for its critical section.
use cortex_m as _;

static HEAP: Heap<CriticalSection> = Heap::new();

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
    HEAP.allocate(size, ALIGN).cast()
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
    allocate(&HEAP, align, size)
}

/// Frees a block; null is ignored. Returns false, with nothing done, if the address is not the start of a live block.
///
/// # Safety
///
/// The block must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_free(block: *mut c_void) -> bool {
    // SAFETY: the caller's contract.
    unsafe { free(&HEAP, block) }
}

/// Changes the size of a block, in place or by moving it; null if there is no room, and then the block is as it was. Null as well if
/// the address is not the start of a live block.
///
/// # Safety
///
/// If the block moves, it must not be used any more at its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { reallocate(&HEAP, block, size) }
}

/// Returns the bytes that a live block has, at least as many as were asked for; 0 if the address is not the start of one.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_size(block: *mut c_void) -> usize {
    length(&HEAP, block)
}

/// Keeps `count` blocks, four at most, of `most` bytes for requests of `least` to `most` bytes, so that these find one however fragmented
/// the heap becomes; a freed block is kept for the next one. `least` is more than 2,056. Call it once, at start-up. Returns false, with
/// nothing kept, if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_keep(least: usize, most: usize, count: usize) -> bool {
    HEAP.keep(least, most, count)
}

/// Returns the heap's figures.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_figures() -> Figures {
    figures(&HEAP)
}
