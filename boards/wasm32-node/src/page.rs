//! What the page calls: blocks, and the statistics of the heap.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::sync::atomic::{AtomicU32, Ordering};

use allotment::Memory;

/// Capacity, bytes in use, the peak of that, free bytes, the largest free block, live blocks, and fragmentation in permille.
/// `heap.mjs` reads them in this order.
static STATISTICS: [AtomicU32; 7] = [const { AtomicU32::new(0) }; 7];

/// Allocates `size` bytes and writes to all of them. Returns 0 if there is no room.
#[unsafe(no_mangle)]
extern "C" fn allocate(size: usize) -> *mut u8 {
    let Ok(layout) = Layout::from_size_align(size.max(1), 8) else { return core::ptr::null_mut() };
    // SAFETY: the size is not 0, and a block has as many bytes.
    unsafe {
        let block = alloc(layout);
        if !block.is_null() {
            block.write_bytes(0xa5, layout.size());
        }
        block
    }
}

/// Frees a block.
///
/// # Safety
///
/// The block must be live and from [`allocate`] with this size.
#[unsafe(no_mangle)]
unsafe extern "C" fn free(block: *mut u8, size: usize) {
    // SAFETY: `allocate` has accepted the size, and the caller promises that the block is live.
    unsafe { dealloc(block, Layout::from_size_align_unchecked(size.max(1), 8)) }
}

/// Updates the statistics, and returns where they are.
#[unsafe(no_mangle)]
extern "C" fn statistics() -> *const AtomicU32 {
    if let Some(stats) = crate::HEAP.statistics() {
        let bytes =
            [stats.capacity, stats.used, stats.peak, stats.free, stats.largest_free, stats.live_blocks];
        let all = bytes.into_iter().map(|value| value as u32).chain([stats.fragmentation()]);
        for (place, value) in STATISTICS.iter().zip(all) {
            place.store(value, Ordering::Relaxed);
        }
    }
    STATISTICS.as_ptr()
}
