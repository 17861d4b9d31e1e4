//! A second heap, over two regions on the stack. With 32-bit addresses and indices, the index space is larger than
//! the address space, and only a 32-bit target can show that this works.

use allotment::lock::Unsync;
use allotment::{FirstFit, Heap, Region};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Uses up a heap of two regions, frees everything, and releases both. Returns whether everything worked.
#[inline(never)]
pub fn work() -> bool {
    let mut memory = [[0u64; 32]; 3];
    let [first, _, second] = &mut memory;
    let regions = [first, second].map(|part| Region::new(NonNull::from(part).cast(), 256));
    let heap = Heap::<FirstFit, Unsync>::empty();
    for region in regions {
        // SAFETY: the arrays outlive the heap, and nothing else uses them.
        if unsafe { heap.claim(region) }.is_err() {
            return false;
        }
    }
    let mut blocks = [None; 32];
    let mut count = 0;
    let layout = Layout::new::<[u64; 4]>();
    for slot in &mut blocks {
        let Ok(block) = heap.try_allocate(layout) else { break };
        let inside = |region: &Region| {
            (block >= region.start)
                && block.addr().get() + layout.size() <= region.start.addr().get() + region.size
        };
        if !regions.iter().any(inside) {
            return false;
        }
        // SAFETY: the block has that many bytes.
        unsafe { block.as_ptr().write_bytes(0xa5, layout.size()) };
        *slot = Some(block);
        count += 1;
    }
    for block in blocks.into_iter().flatten() {
        // SAFETY: the block is live and this is its layout.
        if unsafe { heap.try_deallocate(block, layout) }.is_err() {
            return false;
        }
    }
    let released = regions.iter().all(|region| heap.release(region.start.as_ptr()) == Ok(*region));
    released && count >= 14
}
