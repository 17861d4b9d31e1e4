//! Memory that only critical requests may use.

use super::{Backing, Local, feed, free, layout};
use allotment::{Bump, Heap, Memory, Tlsf, heap};
use std::alloc::GlobalAlloc;

type TestHeap = Local<Tlsf>;

/// Takes everything that ordinary requests can get, in blocks of `size` bytes.
fn fill(heap: &TestHeap, size: usize) -> Vec<std::ptr::NonNull<u8>> {
    std::iter::from_fn(|| heap.try_allocate(layout(size)).ok()).collect()
}

fn with_headroom(bytes: usize, headroom: usize) -> TestHeap {
    let heap = TestHeap::new(Heap::empty()).headroom(headroom);
    feed(&heap, bytes);
    heap
}

/// However the rest is filled and emptied, the whole headroom is available in one piece.
#[test]
fn the_error_path_can_always_allocate() {
    for size in [8, 24, 100, 1000] {
        let heap = with_headroom(10_000, 1024);
        let mut blocks = fill(&heap, size);
        // Make the holes as small as possible.
        for index in (0..blocks.len()).rev().step_by(2) {
            free(&heap, blocks.swap_remove(index), size);
        }
        let capacity = heap.headroom_stats().capacity;
        assert!((900..=1024).contains(&capacity));
        let wanted = capacity.max(heap.largest_free());
        let block = heap.with_headroom(|| heap.try_allocate(layout(wanted))).unwrap();
        if wanted == capacity {
            assert_eq!(heap.headroom_stats().used, capacity);
        }
        free(&heap, block, wanted);
        assert_eq!(heap.headroom_stats().used, 0);
    }
}

#[test]
fn ordinary_requests_do_not_get_it() {
    let heap = with_headroom(10_000, 2048);
    let used: usize = fill(&heap, 16).len() * 16;
    let stats = heap.stats();
    assert_eq!((stats.used, stats.capacity), (used, used + stats.free));
    assert!(stats.free < 16);
    // Lists and boundary bits take 480 bytes of the region.
    assert!(used + 2048 <= 10_000 && used + 2048 + 8 * 24 > 10_000 - 600, "{used}");
    assert!(heap.try_allocate(layout(16)).is_err());
    assert!(heap.try_allocate_zeroed(layout(16)).is_err());
    // Ordinary memory is used first, and the headroom last.
    let small = heap.with_headroom(|| heap.try_allocate(layout(16))).unwrap();
    assert_eq!(heap.headroom_stats().used, 16);
    free(&heap, small, 16);
}

#[test]
fn scopes_nest_and_end() {
    let heap = with_headroom(4096, 1024);
    fill(&heap, 8);
    let inner = heap.with_headroom(|| {
        let first = heap.try_allocate(layout(64)).unwrap();
        let second = heap.with_headroom(|| heap.try_allocate(layout(64))).unwrap();
        let third = heap.try_allocate(layout(64)).unwrap();
        [first, second, third]
    });
    assert!(heap.try_allocate(layout(64)).is_err());
    // This also holds if the closure unwinds.
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        heap.with_headroom(|| std::panic::resume_unwind(Box::new(())));
    }));
    assert!(unwound.is_err() && heap.try_allocate(layout(64)).is_err());
    inner.into_iter().for_each(|block| free(&heap, block, 64));
    assert_eq!(heap.headroom_stats().used, 0);
}

/// Blocks of the headroom can grow, shrink and move out of it, and are checked when they are freed.
#[test]
fn its_blocks_are_blocks() {
    let heap = with_headroom(8192, 2048);
    let blocks = fill(&heap, 128);
    let zeroed = heap.with_headroom(|| heap.try_allocate_zeroed(layout(256))).unwrap();
    // SAFETY: the block is live, with the layouts it has at each point.
    unsafe {
        assert!(std::slice::from_raw_parts(zeroed.as_ptr(), 256).iter().all(|&byte| byte == 0));
        zeroed.as_ptr().write_bytes(0x77, 256);
        assert!(heap.try_resize(zeroed, layout(256), 512));
        assert_eq!(heap.headroom_stats().used, 512);
        assert!(heap.try_resize(zeroed, layout(512), 64));
        assert_eq!(heap.headroom_stats().used, 64);
        // It does not fit there, and moves when there is room outside.
        assert!(heap.realloc(zeroed.as_ptr(), layout(64), 3000).is_null());
        for block in blocks {
            free(&heap, block, 128);
        }
        let moved = heap.realloc(zeroed.as_ptr(), layout(64), 3000);
        assert!(!moved.is_null() && heap.headroom_stats().used == 0);
        assert!(std::slice::from_raw_parts(moved, 64).iter().all(|&byte| byte == 0x77));
        assert!(heap.try_deallocate(zeroed, layout(64)).is_err(), "a double free");
        heap.dealloc(moved, layout(3000));
    }
    assert_eq!(heap.used(), 0);
}

/// The heap is static and claims its memory with the first request, which asks for all of it.
#[test]
fn the_first_request_does_not_take_it() {
    fn make() -> Local<Tlsf> {
        Local::new(heap!(8192)).headroom(1024)
    }
    let heap = make();
    let error = heap.try_allocate(layout(7600)).unwrap_err();
    assert_eq!(heap.headroom_stats().capacity / 64, 1024 / 64 - 1);
    assert_eq!((heap.used(), heap.stats().peak, error.free), (0, 0, heap.free_bytes()));
    let all = heap.try_allocate(layout(heap.largest_free())).unwrap();
    let reserve = heap.with_headroom(|| heap.try_allocate(layout(900))).unwrap();
    // SAFETY: both are live, with these layouts.
    unsafe {
        heap.dealloc(all.as_ptr(), layout(heap.stats().capacity));
        heap.dealloc(reserve.as_ptr(), layout(900));
    }
}

#[test]
fn a_heap_that_is_too_small_goes_without() {
    let heap = with_headroom(1000, 4096);
    assert_eq!(heap.headroom_stats().capacity, 0);
    assert!(heap.with_headroom(|| heap.try_allocate(layout(2000))).is_err());
    let block = heap.try_allocate(layout(500)).unwrap();
    feed(&heap, 10_000);
    assert!(heap.headroom_stats().capacity > 3900, "reserved as soon as there is room");
    free(&heap, block, 500);
    // Less than a block with its bookkeeping counts as nothing. The lists take 216 bytes.
    assert_eq!(with_headroom(1000, 4).headroom_stats().capacity, 0);
    assert!(with_headroom(1000, 4).try_allocate(layout(700)).is_ok());
}

/// A region that contains the headroom can be released while the headroom is unused.
#[test]
fn it_moves_when_its_region_is_released() {
    let heap = TestHeap::new(Heap::empty()).headroom(1024);
    let mut backings = [Backing::new(4096, 0), Backing::new(4096, 0)];
    let [first, second] = backings.each_mut().map(Backing::region);
    // SAFETY: the memory outlives the heap's use.
    unsafe {
        heap.claim(first).unwrap();
        heap.claim(second).unwrap();
    }
    let capacity = heap.stats().capacity;
    fill(&heap, 8).into_iter().for_each(|block| free(&heap, block, 8));
    assert_eq!(heap.release(first.start.as_ptr()), Ok(first));
    assert!(heap.headroom_stats().capacity > 900 && heap.stats().capacity < capacity / 2);
    let blocks = fill(&heap, 8);
    let critical = heap.with_headroom(|| heap.try_allocate(layout(8))).unwrap();
    assert!(heap.release(second.start.as_ptr()).is_err());
    free(&heap, critical, 8);
    blocks.into_iter().for_each(|block| free(&heap, block, 8));
    assert_eq!(heap.release(second.start.as_ptr()), Ok(second));
    assert_eq!((heap.stats().capacity, heap.headroom_stats().capacity), (0, 0));
}

/// If a placement cannot take the first block back, it is left out of the figures.
#[test]
fn a_bump_heap_has_headroom_too() {
    fn make() -> Local<Bump> {
        Local::new(heap!(4096)).headroom(512)
    }
    let heap = make();
    while heap.try_allocate(layout(64)).is_ok() {}
    let block = heap.with_headroom(|| heap.try_allocate(layout(400))).unwrap();
    free(&heap, block, 400);
    assert_eq!(heap.headroom_stats().used, 0);
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_can_have_the_right() {
    use allocator_api2::vec::Vec;
    let heap: Local<Tlsf> = with_headroom(4096, 1024);
    fill(&heap, 8);
    let mut ordinary: Vec<u32, &Local<Tlsf>> = Vec::new_in(&heap);
    assert!(ordinary.try_reserve(10).is_err());
    let mut report: Vec<u32, _> = Vec::new_in(&heap);
    heap.with_headroom(|| report.extend(0..100));
    assert!(report.iter().copied().eq(0..100) && heap.headroom_stats().used >= 400);
    drop(report);
    assert_eq!(heap.headroom_stats().used, 0);
}
