//! Tests of the process heap, and of its shared part on a system that checks every call.

mod fake;
mod limits;
mod pages;

use super::*;

/// A large block may be as short as a small one, and begin where one that was marked as free lay.
#[test]
fn large_blocks_have_no_mark() {
    let heap = Growing::new();
    let block = NonNull::new(heap.allocate_raw(100, 16 * 1024)).unwrap();
    // SAFETY: the block is live, has two words, and is freed once.
    unsafe {
        Block::link(block.cast().as_ptr(), ptr::null_mut());
        assert_eq!(heap.size_of_own(block), Some(4096));
        assert_eq!(heap.change(block, 3000, 16), block.as_ptr());
        heap.free(block).unwrap();
    }
}
