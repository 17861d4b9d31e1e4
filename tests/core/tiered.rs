//! Blocks that `Tiered` keeps for reuse: when it keeps them, and that they come back.

use allotment::lock::Unsync;
use allotment::meta::InBand;
use allotment::{FreeError, Heap, Region, Tiered, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

type Pages = Heap<Tiered<Tlsf<InBand<u32, 8, 1>>>, Unsync>;

const SIZE: usize = 1 << 20;

/// Makes a heap over its own memory.
fn heap() -> (Box<Pages>, Vec<u64>) {
    let mut memory = vec![0; SIZE / 8];
    let heap = Box::new(Pages::empty());
    // SAFETY: the memory outlives the heap, which the test drops first.
    unsafe { heap.claim(Region::new(NonNull::new(memory.as_mut_ptr()).unwrap().cast(), SIZE)) }.unwrap();
    (heap, memory)
}

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Frees a block that was allocated with `bytes(size)`.
fn free(heap: &Pages, block: NonNull<u8>, size: usize) {
    // SAFETY: the caller passes live blocks.
    unsafe { heap.dealloc(block.as_ptr(), bytes(size)) }
}

#[test]
fn freed_blocks_are_kept_and_come_back() {
    let (heap, _memory) = heap();
    let before = heap.largest_free();
    let blocks = [1000, 1000, 1000, 2000, 5000].map(|size| (heap.try_allocate(bytes(size)).unwrap(), size));
    for (block, size) in blocks {
        free(&heap, block, size);
    }
    assert_eq!(heap.used(), 0);
    // The block of a size that was freed last is used first.
    assert_eq!(heap.try_allocate(bytes(1000)), Ok(blocks[2].0));
    assert_eq!(heap.try_allocate(bytes(2000)), Ok(blocks[3].0));
    free(&heap, blocks[2].0, 1000);
    free(&heap, blocks[3].0, 2000);
    // A request that would fail otherwise gets all of them.
    let all = heap.try_allocate(bytes(before)).unwrap();
    free(&heap, all, before);
    assert!(!heap.trim());
    assert_eq!(heap.largest_free(), before);
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let (heap, _memory) = heap();
    let keeps = |size: usize| {
        heap.trim();
        let block = heap.try_allocate(bytes(size)).unwrap();
        free(&heap, block, size);
        heap.trim()
    };
    assert!(keeps(300));
    assert!(keeps(SIZE / 32 - 1024));
    assert!(!keeps(SIZE / 32 + 8), "more than its share");
    // Nothing is kept while memory is short.
    let most = heap.try_allocate(bytes(SIZE / 16 * 13)).unwrap();
    assert!(!keeps(1000));
    free(&heap, most, SIZE / 16 * 13);
    assert!(keeps(1000));
}

#[test]
fn nothing_is_kept_where_that_is_no_use() {
    let (heap, _memory) = heap();
    let kept = |size: usize| {
        let block = heap.try_allocate(bytes(size)).unwrap();
        free(&heap, block, size);
        heap.trim()
    };
    // No two consecutive requests have the same size.
    let rounds: Vec<_> = (0..2000).map(|round| kept(1000 + 8 * (round % 200))).collect();
    assert!(rounds[..255].iter().all(|&kept| kept));
    assert!(rounds[256..512].iter().all(|&kept| !kept), "it rests after a while");
    assert!(rounds[512..].iter().any(|&kept| kept), "and tries again");
    let count = rounds.iter().filter(|&&kept| kept).count();
    assert!(count < 1000, "{count} of 2000 are kept all the same");
}

#[test]
fn a_second_free_of_a_kept_block_is_found() {
    let (heap, _memory) = heap();
    let block = heap.try_allocate(bytes(1000)).unwrap();
    free(&heap, block, 1000);
    // SAFETY: the check does not pass.
    assert_eq!(unsafe { heap.try_deallocate(block, bytes(1000)) }, Err(FreeError::AlreadyFree));
    assert_eq!(heap.try_allocate(bytes(1000)), Ok(block));
    // Objects of pages that are freed with another size.
    let objects: Vec<_> = (0..64).map(|_| heap.try_allocate(bytes(48)).unwrap()).collect();
    let last = *objects.last().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(100)) }, Err(FreeError::NotABlock));
    // SAFETY: this one passes the check, and the block is live.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(48)) }, Ok(()));
    // SAFETY: as above.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(48)) }, Err(FreeError::AlreadyFree));
}
