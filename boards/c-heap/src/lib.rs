//! The default heap of microcontrollers for C firmware: `liballotment_heap.a` with the header `include/allotment_heap.h`, which is
//! made from this file.
//!
//! C frees a block without its size, so each block has a header of two words in front. Operations run in a critical section
//! that masks interrupts for one core.
#![no_std]

use allotment::{Heap, Memory, Region};
use core::alloc::Layout;
use core::ffi::c_void;
use core::ptr::{self, NonNull};

// Linked for its critical section.
use cortex_m as _;

static HEAP: Heap = Heap::empty();

/// What a block has in front of it.
#[repr(C)]
struct Header {
    /// Bytes that were asked for.
    size: usize,
    /// Bytes from the start of the heap's block to that of the caller, which is also its alignment.
    offset: usize,
}

const HEADER: usize = size_of::<Header>();

/// What every block is aligned to at least, as C asks for.
const ALIGN: usize = 8;

/// The heap's figures at one moment, in bytes; what blocks have in front of them counts.
#[repr(C)]
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

/// Returns the heap's layout of a block; `None` if it is too large for any heap.
fn layout(size: usize, align: usize) -> Option<Layout> {
    let align = align.max(ALIGN).max(HEADER);
    Layout::from_size_align(size.max(1).checked_add(align)?, align).ok()
}

fn take(size: usize, align: usize, zeroed: bool) -> *mut c_void {
    let Some(layout) = layout(size, align) else { return ptr::null_mut() };
    let block = if zeroed { HEAP.allocate_zeroed(layout) } else { HEAP.allocate(layout) };
    let Some(block) = block else { return ptr::null_mut() };
    let offset = layout.align();
    // SAFETY: the block is longer than its alignment, which is at least the header's size.
    unsafe {
        let start = block.as_ptr().add(offset);
        start.cast::<Header>().sub(1).write(Header { size, offset });
        start.cast()
    }
}

/// Returns the heap's block and layout of a block of the caller, and the bytes that were asked for.
///
/// # Safety
///
/// The block must be live.
unsafe fn whole(block: *mut c_void) -> Option<(NonNull<u8>, Layout, usize)> {
    // SAFETY: the caller guarantees a live block, which has a header in front.
    let Header { size, offset } = unsafe { block.cast::<Header>().sub(1).read() };
    let start = block.cast::<u8>().wrapping_sub(offset);
    let layout = layout(size, offset).filter(|layout| layout.align() == offset)?;
    Some((NonNull::new(start)?, layout, size))
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
    !start.is_null() && unsafe { HEAP.claim(Region::new(start, bytes)) }.is_ok()
}

/// Allocates `size` bytes aligned to 8; null if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_malloc(size: usize) -> *mut c_void {
    take(size, ALIGN, false)
}

/// Allocates `count` times `size` bytes, all zero; null if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_calloc(count: usize, size: usize) -> *mut c_void {
    count.checked_mul(size).map_or(ptr::null_mut(), |size| take(size, ALIGN, true))
}

/// Allocates `size` bytes aligned to `align`, a power of two; null if there is no room or the alignment is none.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if align.is_power_of_two() { take(size, align, false) } else { ptr::null_mut() }
}

/// Frees a block; null is ignored. Returns false, with nothing done, if it is certain that the address is no live block's.
///
/// # Safety
///
/// The block must be live or null, and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_free(block: *mut c_void) -> bool {
    if block.is_null() {
        return true;
    }
    // SAFETY: the caller guarantees the block.
    unsafe {
        let Some((start, layout, _)) = whole(block) else { return false };
        // A second free of a block finds no header there.
        block.cast::<Header>().sub(1).write(Header { size: 0, offset: 0 });
        HEAP.try_deallocate(start, layout).is_ok()
    }
}

/// Changes the size of a block, in place or by moving it; null if there is no room, and then the block is as it was.
///
/// # Safety
///
/// The block must be live or null. If it moves, it must not be used any more at its old address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return allotment_malloc(size);
    }
    // SAFETY: the caller guarantees the block; the blocks of the copy are live and apart.
    unsafe {
        let Some((start, old, had)) = whole(block) else { return ptr::null_mut() };
        let Some(new) = layout(size, old.align()) else { return ptr::null_mut() };
        if HEAP.try_resize(start, old, new.size()) {
            (*block.cast::<Header>().sub(1)).size = size;
            return block;
        }
        let moved = take(size, old.align(), false);
        if !moved.is_null() {
            moved.cast::<u8>().copy_from_nonoverlapping(block.cast(), had.min(size));
            allotment_free(block);
        }
        moved
    }
}

/// Returns the bytes that were asked for at the last change of a live block's size; 0 for null.
///
/// # Safety
///
/// The block must be live or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn allotment_size(block: *mut c_void) -> usize {
    if block.is_null() {
        return 0;
    }
    // SAFETY: the caller guarantees the block.
    unsafe { whole(block) }.map_or(0, |(.., size)| size)
}

/// Returns the heap's figures.
#[unsafe(no_mangle)]
pub extern "C" fn allotment_figures() -> Figures {
    let stats = HEAP.stats();
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
