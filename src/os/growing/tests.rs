//! Tests of the process heap, and of its shared part on a fake system that checks every call.

mod fake;
mod limits;
mod pages;

use super::*;

/// A large block may be as short as a small block, and begin with the mark of an earlier free block.
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
