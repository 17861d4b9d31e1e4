//! Blocks that stay available for large requests.

use allotment::lock::Spin;
use allotment::{FreeError, Heap, Kept, Memory, Tlsf, heap};
use std::alloc::{GlobalAlloc, Layout};

type Front<const COUNT: usize> = Kept<&'static Heap<Tlsf, Spin>, COUNT, Spin>;

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Fills the memory with blocks of this size.
fn fill<M: Memory>(memory: &M, size: usize) {
    while memory.allocate(bytes(size)).is_some() {}
}

#[test]
fn kept_blocks_outlast_everything_else() {
    static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
    let front = Front::<2>::new(&HEAP, 8000, 9000);
    assert_eq!((front.available(), front.missing()), (0, 2), "before the first request");
    fill(&front, 24);
    fill(&front, 8);
    assert_eq!((front.available(), front.missing(), front.largest_free()), (2, 0, 9000));
    assert!(HEAP.allocate(bytes(100)).is_none());
    for _ in 0..1000 {
        let first = front.try_allocate(bytes(9000)).unwrap();
        let second = front.try_allocate_zeroed(bytes(8000)).unwrap();
        assert!(first != second && front.try_allocate(bytes(8500)).is_err());
        assert_eq!((front.available(), front.largest_free()), (0, HEAP.largest_free()));
        // SAFETY: both blocks are live, have these layouts, and are not used afterwards.
        unsafe {
            assert!(core::slice::from_raw_parts(second.as_ptr(), 8000).iter().all(|&byte| byte == 0));
            first.write_bytes(0x5a, 9000);
            second.write_bytes(0xa5, 8000);
            front.deallocate(first, bytes(9000));
            front.try_deallocate(second, bytes(8000)).unwrap();
        }
    }
    // Neither shorter nor longer requests get them, nor those that are aligned to more.
    assert!(front.try_allocate(bytes(7999)).is_err() && front.try_allocate(bytes(9001)).is_err());
    assert!(front.try_allocate(Layout::from_size_align(8500, 16).unwrap()).is_err());
}

/// While the kept block is in use, the others get the rest.
#[test]
fn the_memory_allocates_what_is_beyond() {
    static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
    let front = Front::<1>::new(&HEAP, 1000, 1000);
    let blocks: Vec<_> = (0..3).map(|_| front.try_allocate(bytes(1000)).unwrap()).collect();
    assert_eq!((front.available(), HEAP.used()), (0, 3000));
    for &block in &blocks {
        // SAFETY: the block is live, has this layout, and is freed once.
        unsafe { front.try_deallocate(block, bytes(1000)).unwrap() };
    }
    assert_eq!((front.available(), HEAP.used()), (1, 1000));
}

#[test]
fn invalid_frees_of_kept_blocks_are_found() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    let front = Front::<1>::new(&HEAP, 1000, 1000);
    let block = front.try_allocate(bytes(1000)).unwrap();
    assert_eq!(front.check(block, bytes(1000)), Ok(()));
    // SAFETY: the first free is right. The others are refused.
    unsafe {
        assert_eq!(front.check_owned(block, bytes(1000)), Ok(()));
        assert_eq!(front.try_deallocate(block, bytes(1000)), Ok(()));
        assert_eq!(front.check(block, bytes(1000)), Err(FreeError::AlreadyFree));
        assert_eq!(front.check_owned(block, bytes(1000)), Err(FreeError::AlreadyFree));
        assert_eq!(front.try_deallocate(block, bytes(1000)), Err(FreeError::AlreadyFree));
        let foreign = std::ptr::NonNull::<u64>::dangling().cast();
        assert_eq!(front.try_deallocate(foreign, bytes(1000)), Err(FreeError::Foreign));
    }
    assert_eq!(front.available(), 1);
}

/// A kept block is resized within its range only; else its contents move.
#[test]
fn kept_blocks_are_resized() {
    static HEAP: Heap<Tlsf, Spin> = heap!(32 * 1024);
    let front = Front::<1>::new(&HEAP, 1000, 2000);
    let block = front.try_allocate(bytes(1000)).unwrap();
    // SAFETY: the blocks are live, have these layouts, and are not used at their old addresses.
    unsafe {
        block.write_bytes(7, 1000);
        assert!(front.try_resize(block, bytes(1000), 2000));
        assert!(!front.try_resize(block, bytes(2000), 2001) && !front.try_resize(block, bytes(2000), 999));
        let longer = front.realloc(block.as_ptr(), bytes(2000), 3000);
        assert!(longer != block.as_ptr() && front.available() == 1);
        assert!(core::slice::from_raw_parts(longer, 1000).iter().all(|&byte| byte == 7));
        let kept = front.realloc(longer, bytes(3000), 1500);
        assert!(core::slice::from_raw_parts(kept, 1000).iter().all(|&byte| byte == 7));
        front.dealloc(kept, bytes(1500));
        // Blocks that are none of its business stay the memory's, on either side of the range.
        let short = front.alloc(bytes(100));
        let grown = front.realloc(short, bytes(100), 1200);
        front.dealloc(grown, bytes(1200));
    }
    assert_eq!((front.available(), HEAP.used()), (1, 2000));
}

/// What found no room is reserved when a block of such a size is freed.
#[test]
fn what_is_missing_is_reserved_later() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    let layout = bytes(5000);
    let blocks: Vec<_> = (0..3).map(|_| HEAP.try_allocate(layout).unwrap()).collect();
    let front = Front::<2>::new(&HEAP, 5000, 5000);
    assert!(front.try_allocate(layout).is_err());
    assert_eq!(front.missing(), 2);
    for (&block, missing) in blocks.iter().zip([1, 0, 0]) {
        // SAFETY: the heap is the front's memory; the block is live, has this layout, and is freed once.
        unsafe { front.try_deallocate(block, layout).unwrap() };
        assert_eq!(front.missing(), missing);
    }
    assert_eq!(front.available(), 2);
}

#[test]
fn threads_never_share_a_kept_block() {
    static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
    let front = Front::<2>::new(&HEAP, 500, 600);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let front = &front;
            scope.spawn(move || {
                for _ in 0..2000 {
                    let block = front.try_allocate(bytes(600)).unwrap();
                    // SAFETY: the block is live, has this layout, and is freed once.
                    unsafe {
                        block.write_bytes(thread, 600);
                        let own = core::slice::from_raw_parts(block.as_ptr(), 600);
                        assert!(own.iter().all(|&byte| byte == thread));
                        front.deallocate(block, bytes(600));
                    }
                }
            });
        }
    });
    assert_eq!((front.available(), HEAP.used() % 600), (2, HEAP.used() % 600));
}

/// Requests of other sizes look at nothing but their size, the first one apart, which reserves the blocks.
#[test]
fn the_first_request_reserves_whatever_its_size() {
    static HEAP: Heap<Tlsf, Spin> = heap!(32 * 1024);
    for size in [16, 3000] {
        let before = HEAP.used();
        let front = Front::<2>::new(&HEAP, 1000, 2000);
        let block = front.try_allocate_zeroed(bytes(size)).unwrap();
        assert_eq!((front.available(), HEAP.used() - before), (2, size + 4000));
        // SAFETY: the block is live, has this layout, and is freed once.
        unsafe { front.deallocate(block, bytes(size)) };
        assert_eq!(HEAP.used() - before, 4000);
    }
}
