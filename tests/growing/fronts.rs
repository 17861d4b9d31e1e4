//! Fronts around the heap that grows: it is a `Memory` like any other.

use crate::{HEAP, alone};
use allotment::inject::{Fail, Failing};
use allotment::lock::Spin;
use allotment::observe::Profile;
use allotment::os::{Cached, Depot, Growing};
use allotment::region::Capabilities;
use allotment::zones::{Zone, Zones};
use allotment::{FreeError, Heap, Memory, Observed, PlannedHeap, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

/// Small, of the largest class, just large, and large enough to be moved without copying.
const SIZES: [usize; 6] = [0, 24, 5000, 32_768, 32_769, 3 << 20];

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 16).unwrap()
}

/// Allocates, resizes and frees blocks of all sizes, with contents that are checked.
fn exercise(memory: &dyn Memory) {
    let mut live = Vec::new();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let block = memory.allocate(layout(size)).unwrap();
        // SAFETY: the block has that many bytes.
        unsafe { block.write_bytes(seed as u8 + 1, size) };
        live.push((block, size, seed as u8 + 1));
    }
    for (block, size, seed) in live {
        assert_eq!(memory.check(block, layout(size)), Ok(()), "{size}");
        let larger = layout(size.max(1) * 2);
        let mut told = Vec::new();
        // SAFETY: the block is live, of that layout, and used at its new address only.
        unsafe {
            let moved = memory.change(block, layout(size.max(1)), larger, &mut |at| told.push(at)).unwrap();
            assert_eq!(told, [moved], "{size}");
            assert!((0..size).all(|at| moved.add(at).read() == seed), "{size}");
            let zeroed = memory.allocate_zeroed(larger).unwrap();
            assert!((0..larger.size()).all(|at| zeroed.add(at).read() == 0), "{size}");
            memory.try_deallocate(zeroed, larger).unwrap();
            memory.try_deallocate(moved, larger).unwrap();
        }
    }
}

#[test]
fn every_front_wraps_the_growing_heap() {
    static DEPOT: Depot<Growing> = Depot::new(&HEAP, 64 * 1024);
    let _alone = alone();
    exercise(&HEAP);
    let observed = Observed::<_, _, Spin>::new(HEAP, Profile::new());
    exercise(&observed);
    assert_eq!(observed.observers(|profile| (profile.live_bytes, profile.allocations > 6)), (0, true));
    exercise(&Cached::new(&DEPOT));
    exercise(&PlannedHeap::<_, 8, Spin>::new(HEAP));
    let failing = Failing::new(HEAP, Fail::Only(0));
    assert!(failing.allocate(layout(8)).is_none());
    exercise(&failing);
    assert_eq!(failing.refusals(), 1);
}

/// The growing heap keeps freed blocks by the same marks as a cache in front of it, and refuses marked blocks.
#[test]
fn a_cache_returns_its_blocks_to_the_growing_heap() {
    static DEPOT: Depot<Growing> = Depot::new(&HEAP, 64 * 1024);
    let _alone = alone();
    let cached = Cached::new(&DEPOT);
    let layout = Layout::new::<[u64; 6]>();
    for block in [(); 100].map(|()| cached.allocate(layout).unwrap()) {
        // SAFETY: the block is live.
        unsafe { cached.deallocate(block, layout) };
    }
    cached.flush();
    assert_eq!(cached.allocate(layout).map(|block| cached.check(block, layout)), Some(Ok(())));
}

/// A front tells a block of the growing heap from one of a fixed heap by its address.
#[test]
fn the_growing_heap_is_a_zone() {
    static FIXED: Heap = heap!(64 * 1024);
    let _alone = alone();
    let zones: Zones<2> = Zones::new([
        Zone::new("fixed", &FIXED, Capabilities::FAST).up_to(1000),
        Zone::new("growing", &HEAP, Capabilities::EXTERNAL),
    ])
    .fallback(&[1]);
    let small = zones.allocate(layout(100), Capabilities::FAST).unwrap();
    let large = zones.allocate(layout(100_000), Capabilities::empty()).unwrap();
    assert_eq!((zones.zone_of(small.cast()), zones.zone_of(large.cast())), (Some(0), Some(1)));
    // SAFETY: the blocks are live.
    unsafe {
        zones.deallocate(small.cast(), layout(100)).unwrap();
        zones.deallocate(large.cast(), layout(100_000)).unwrap();
    }
}

#[test]
fn invalid_frees_are_refused() {
    let _alone = alone();
    let mut word = 0_u64;
    assert_eq!(HEAP.check(NonNull::from(&mut word).cast(), layout(8)), Err(FreeError::Foreign));
    for size in SIZES {
        let block = HEAP.allocate(layout(size)).unwrap();
        // SAFETY: the addresses are not used, and the block is freed once.
        unsafe {
            assert_eq!(HEAP.check(block, layout(size + 40_000)), Err(FreeError::NotABlock), "{size}");
            assert_eq!(HEAP.check(block.add(8), layout(size)), Err(FreeError::NotABlock), "{size}");
            assert_eq!(HEAP.try_deallocate(block, layout(size)), Ok(()), "{size}");
            if size > 32_768 {
                assert_eq!(HEAP.try_deallocate(block, layout(size)), Err(FreeError::Foreign), "{size}");
            }
        }
    }
}

/// What is said to be free can be had without asking the system.
#[test]
fn the_largest_free_span_can_be_had() {
    let _alone = alone();
    // SAFETY: the blocks are freed once.
    unsafe {
        let first = layout(1 << 20);
        let block = HEAP.alloc(first);
        HEAP.dealloc(block, first);
        let (free, committed) = (HEAP.largest_free(), HEAP.stats().committed);
        assert!(free >= 1 << 20);
        let block = HEAP.allocate(layout(free)).unwrap();
        assert_eq!(HEAP.stats().committed, committed);
        HEAP.deallocate(block, layout(free));
    }
    let region = HEAP.region(0).unwrap();
    assert_eq!(region.size, HEAP.stats().reserved);
    assert!(HEAP.region(1).is_none());
}
