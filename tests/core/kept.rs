//! Blocks that stay available for large requests.

use allotment::lock::Spin;
use allotment::observe::{tag, with_tag};
use allotment::out_of_memory::Cause;
use allotment::region::Capabilities as Can;
use allotment::zones::{Zone, Zones};
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
    let largest = front.largest_free();
    let block = front.try_allocate(bytes(largest)).unwrap();
    // SAFETY: the block is live, has this layout, and is not used afterwards.
    unsafe { front.deallocate(block, bytes(largest)) };
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
        let inside = block.add(1);
        assert!(front.check(inside, bytes(1000)).is_err());
        assert!(front.try_deallocate(inside, bytes(1000)).is_err());
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

#[test]
fn the_error_says_that_memory_is_kept() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    let front = Front::<1>::new(&HEAP, 1000, 2000);
    fill(&front, 8);
    let error = front.try_allocate(bytes(500)).unwrap_err();
    assert_eq!((error.cause(), error.largest_free), (Cause::Kept, HEAP.largest_free()));
    assert!(error.to_string().ends_with(": memory is kept for other requests"));
    // Neither what no kept block is long enough for, nor what finds none, fails because of them.
    assert_ne!(front.try_allocate(bytes(2001)).unwrap_err().cause(), Cause::Kept);
    assert_ne!(
        front.try_allocate(Layout::from_size_align(500, 16).unwrap()).unwrap_err().cause(),
        Cause::Kept
    );
    front.try_allocate(bytes(2000)).unwrap();
    assert_ne!(front.try_allocate(bytes(500)).unwrap_err().cause(), Cause::Kept);
}

/// A front that yields has kept blocks as long as it can, and reserves them again once a block of their size is freed.
#[test]
fn kept_blocks_yield_where_told_so() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    let front = Kept::<_, 2, Spin, true>::new(&HEAP, 1000, 2000);
    let used = front.try_allocate(bytes(1500)).unwrap();
    let large = front.try_allocate(bytes(9000)).unwrap();
    let before = HEAP.largest_free();
    assert_eq!((front.available(), front.missing()), (1, 0));
    let middle = front.try_allocate(bytes(before + 8)).unwrap();
    assert_eq!((front.available(), front.missing()), (0, 1), "its memory was needed");
    assert!(front.try_allocate(bytes(6000)).is_err());
    // SAFETY: the blocks are live, have these layouts, and are freed once.
    unsafe {
        front.try_deallocate(middle, bytes(before + 8)).unwrap();
        front.try_deallocate(used, bytes(1500)).unwrap();
        assert_eq!((front.available(), front.missing()), (1, 1), "as many as in use, and no more");
        let (first, second) = (front.allocate(bytes(2000)).unwrap(), front.allocate(bytes(2000)).unwrap());
        front.deallocate(second, bytes(2000));
        front.deallocate(first, bytes(2000));
        assert_eq!((front.available(), front.missing()), (2, 0));
        // A request that fails all the same leaves them where they were, and one for zeros gets their memory.
        assert!(front.try_allocate(bytes(12_000)).is_err());
        assert_eq!((front.available(), front.missing()), (2, 0));
        fill(&HEAP, 8);
        assert_eq!(front.try_allocate_zeroed(bytes(700)).unwrap().cast::<[u8; 700]>().read(), [0; 700]);
        assert_eq!((front.available(), front.missing()), (1, 1));
        front.deallocate(large, bytes(9000));
    }
}

/// Requests of all sizes up to the block's, but only under one tag.
#[test]
fn blocks_are_kept_for_a_tag() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    let front = Front::<1>::new(&HEAP, 1, 2000).only(|| tag() == Some("net"));
    fill(&front, 8);
    assert_eq!(front.try_allocate(bytes(16)).unwrap_err().cause(), Cause::Kept);
    assert!(with_tag("other", || front.try_allocate(bytes(16))).is_err());
    assert_eq!((front.largest_free() < 16, with_tag("net", || front.largest_free())), (true, 2000));
    let block = with_tag("net", || front.try_allocate(bytes(16))).unwrap();
    assert!(with_tag("net", || front.try_allocate(bytes(16))).is_err());
    // SAFETY: the block is live, has this layout, and is freed once, outside its tag's scope.
    unsafe { front.deallocate(block, bytes(16)) };
    assert_eq!(front.available(), 1);
}

/// A zone of any `Memory` is one of kept blocks too.
#[test]
fn zones_keep_blocks() {
    static FAST: Kept<Heap<Tlsf, Spin>, 1, Spin> = Kept::new(heap!(8 * 1024), 1000, 2000);
    static MAIN: Kept<Heap<Tlsf, Spin>, 2, Spin> = Kept::new(heap!(32 * 1024), 4000, 5000);
    static ZONES: Zones<'static, 2, 8, Spin> =
        Zones::new([Zone::new("fast", &FAST, Can::FAST), Zone::new("main", &MAIN, Can::DMA)]);
    // By a zone's rules, not by its memory.
    static SHORT: Zones<'static, 2, 8, Spin> = Zones::new([
        Zone::new("fast", &FAST, Can::FAST).above(30_000),
        Zone::new("main", &MAIN, Can::DMA).up_to(256),
    ]);
    assert_eq!(SHORT.wanting(Can::empty()).largest_free(), 256);
    let request = |size, wanted| ZONES.allocate(bytes(size), wanted).map(|block| block.cast::<u8>());
    for zone in [Can::FAST, Can::DMA] {
        while request(24, zone).is_ok() {}
    }
    let block = request(2000, Can::FAST).unwrap();
    let buffers = [0; 2].map(|_| request(5000, Can::DMA).unwrap());
    assert_eq!((FAST.available(), MAIN.available()), (0, 0));
    assert!(request(5000, Can::DMA).is_err() && request(2000, Can::FAST).is_err());
    // SAFETY: the blocks are live, have these layouts, and are freed once.
    unsafe {
        ZONES.try_deallocate(block, bytes(2000)).unwrap();
        for buffer in buffers {
            ZONES.try_deallocate(buffer, bytes(5000)).unwrap();
        }
    }
    assert_eq!((FAST.available(), MAIN.available()), (1, 2));
}
