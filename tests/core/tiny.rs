//! The smallest heaps, with the shadow allocator and at their limits.

use crate::shadow::steps::{follow, steps};
use crate::shadow::trace::{self, Event};
use crate::shadow::{Case, Front, Shadow, random_run_on};
use allotment::lock::{Spin, Unsync};
use allotment::observe::Counters;
use allotment::{FreeError, Heap, Memory, Region, RegionError, Stats, TinyBump, TinyHeap, Tlsf16, bounds};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;

/// A heap inside its region, since the shadow allocator must know where blocks may lie. Blocks take as much as
/// those of [`Tlsf16`].
struct Placed<const BYTES: usize>(Cell<Option<NonNull<TinyHeap<BYTES, Unsync, Counters>>>>);

impl<const BYTES: usize> Placed<BYTES> {
    fn heap(&self) -> &TinyHeap<BYTES, Unsync, Counters> {
        // SAFETY: the heap stays in its region while the shadow uses it.
        unsafe { self.0.get().expect("it has its region").as_ref() }
    }
}

// SAFETY: all calls are passed on to the heap.
unsafe impl<const BYTES: usize> GlobalAlloc for Placed<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The shadow requests zero bytes as well.
        self.heap().try_allocate(layout).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { Memory::deallocate(&self.heap(), NonNull::new(block).unwrap(), layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() == 0 {
            // SAFETY: the caller's contract.
            return unsafe {
                let moved = self.alloc(Layout::from_size_align(size, layout.align()).unwrap());
                if !moved.is_null() {
                    self.dealloc(block, layout);
                }
                moved
            };
        }
        // SAFETY: the caller's contract.
        unsafe { self.heap().realloc(block, layout, size) }
    }
}

impl<const BYTES: usize> Front for Placed<BYTES> {
    fn stats(&self) -> Stats {
        // Without its region, return the statistics of a heap without regions.
        self.0.get().map_or_else(|| Heap::<Tlsf16, Unsync>::empty().stats(), |_| self.heap().stats())
    }

    fn largest_free(&self) -> usize {
        self.stats().largest_free
    }

    unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        let place = region.start.cast::<TinyHeap<BYTES, Unsync, Counters>>();
        assert!(region.size >= size_of::<TinyHeap<BYTES, Unsync, Counters>>());
        // SAFETY: the region is large enough and aligned, and only the heap uses it.
        unsafe { place.write(TinyHeap::new()) };
        self.0.set(Some(place));
        Ok(())
    }

    fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        let heap = self.heap();
        if heap.largest_free() < TinyHeap::<BYTES, Unsync, Counters>::CAPACITY {
            return Err(RegionError::InUse);
        }
        let size = size_of_val(heap);
        self.0.set(None);
        Ok(Region::new(NonNull::new(start).unwrap(), size))
    }

    fn trim(&self) {}
}

/// A region of that many bytes, and the bytes that count in it.
fn region<const BYTES: usize>() -> [(usize, usize); 1] {
    [(size_of::<TinyHeap<BYTES, Unsync, Counters>>(), 0)]
}

/// A heap in a region of its size.
fn shadow<const BYTES: usize>() -> Shadow {
    let placed = Placed::<BYTES>(Cell::new(None));
    Shadow::over(Case::of::<Tlsf16>(), |_| Box::new(placed), &region::<BYTES>())
}

#[test]
fn long_runs() {
    fn run<const BYTES: usize>(seed: u64) {
        random_run_on(shadow::<BYTES>(), seed, 20_000, BYTES / 100 + 8, 64);
        random_run_on(shadow::<BYTES>(), seed + 1, 20_000, BYTES / 10, 4_096);
        random_run_on(shadow::<BYTES>(), seed + 2, 10_000, 64, 8);
    }
    run::<64>(1);
    run::<200>(4);
    run::<1024>(7);
    run::<4096>(10);
    run::<16384>(13);
    run::<65536>(16);
    run::<{ 512 * 1024 }>(19);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() })]

    #[test]
    fn properties(steps in steps([100, 900, 9_000], 10, 150)) {
        follow(shadow::<128>(), &steps);
        follow(shadow::<1000>(), &steps);
        follow(shadow::<8192>(), &steps);
        follow(shadow::<{ 128 * 1024 }>(), &steps);
    }
}

#[test]
fn recorded_programs() {
    const BYTES: usize = 512 * 1024;
    let mut replayed = 0;
    for path in trace::paths() {
        let trace = trace::read(&path);
        if trace.peak * 11 / 10 > BYTES {
            continue;
        }
        let mut shadow = shadow::<BYTES>();
        let mut blocks = vec![None; trace.ids];
        for event in &trace.events {
            match *event {
                Event::Allocate { id, size, align } => {
                    let layout = Layout::from_size_align(size, if align == 0 { 8 } else { align }).unwrap();
                    blocks[id] = Some(shadow.allocate(layout).expect("there is room"));
                }
                Event::Reallocate { id, size } => {
                    blocks[id] = Some(shadow.reallocate(blocks[id].unwrap(), size).expect("there is room"));
                }
                Event::Free { id } => shadow.free(blocks[id].take().unwrap()),
            }
        }
        shadow.finish();
        replayed += 1;
    }
    assert!(replayed >= 1, "a recorded program is that small");
}

#[test]
fn all_of_it_can_be_had() {
    fn run<const BYTES: usize>() {
        let heap = Box::new(TinyHeap::<BYTES, Unsync, Counters>::new());
        let capacity = TinyHeap::<BYTES, Unsync, Counters>::CAPACITY;
        // 1 of 65 bytes is for the edge bits; lists take 2 bytes each; rounding takes a byte and a unit at most.
        let bits = (BYTES / 8).ilog2() as usize + 1;
        assert!(capacity >= BYTES - BYTES / 65 - 4 * bits - 20, "{BYTES}: {capacity}");
        assert_eq!(heap.largest_free(), capacity);
        let all = heap.try_allocate(Layout::from_size_align(capacity, 8).unwrap()).unwrap();
        assert_eq!(heap.stats().free, 0);
        let error = heap.try_allocate(Layout::new::<u8>()).unwrap_err();
        assert_eq!((error.free, error.largest_free), (0, 0));
        // SAFETY: the block is live.
        unsafe { heap.try_deallocate(all, Layout::from_size_align(capacity, 8).unwrap()) }.unwrap();
        let eight = Layout::from_size_align(8, 8).unwrap();
        let count = std::iter::repeat_with(|| heap.try_allocate(eight)).take_while(Result::is_ok).count();
        assert_eq!(count, capacity / 8, "a block of 8 bytes takes 8");
    }
    run::<64>();
    run::<256>();
    run::<4096>();
    run::<16384>();
    run::<65536>();
    run::<{ 512 * 1024 }>();
}

#[test]
fn the_smallest_heaps_cost_little() {
    // The lists of 16 KiB, and edge bits for the rest.
    let control = 16384 - TinyHeap::<16384, Unsync>::CAPACITY;
    assert!(control <= 128 + 16384 / 65, "{control}");
    assert_eq!(size_of::<TinyHeap<16384, Unsync>>(), 16384);
}

#[test]
fn what_is_too_large_fails() {
    let heap = TinyHeap::<1024, Unsync, Counters>::new();
    for size in [1024, 70_000, 1 << 20, isize::MAX as usize - 4096] {
        for align in [1, 8, 4096] {
            let layout = Layout::from_size_align(size, align).unwrap();
            assert_eq!(heap.try_allocate(layout).unwrap_err().requested, size);
        }
    }
    // An alignment that hardly any address has.
    let layout = Layout::from_size_align(8, 1 << (usize::BITS - 2)).unwrap();
    assert!(heap.try_allocate(layout).is_err());
    let block = heap.try_allocate(Layout::new::<u64>()).unwrap();
    // SAFETY: the block is live.
    unsafe {
        for size in [1024, 70_000, usize::MAX - 8, usize::MAX] {
            assert!(!heap.try_resize(block, Layout::new::<u64>(), size));
        }
        assert_eq!(heap.used(), 8);
        heap.try_deallocate(block, Layout::new::<u64>()).unwrap();
    }
    assert_eq!(heap.stats().failed, 13);
    assert_eq!(heap.largest_free(), TinyHeap::<1024, Unsync, Counters>::CAPACITY);
}

/// Runs random programs of a few lengths, so that gaps do not fit. Returns whether a request failed.
fn is_broken<const BYTES: usize>(live: usize, least: usize, most: usize, rounds: u64) -> bool {
    for seed in 0..rounds {
        let mut random = fastrand::Rng::with_seed(seed);
        let heap = Box::new(TinyHeap::<BYTES, Unsync, Counters>::new());
        let mut blocks = Vec::new();
        let mut asked = 0;
        let sizes: Vec<_> = (0..4).map(|_| random.usize(least..=most)).chain([least, most]).collect();
        for step in 0..3_000 {
            let size = sizes[if step % 200 < 100 { random.usize(0..sizes.len()) } else { 5 }];
            let layout = Layout::from_size_align(size, 1).unwrap();
            if asked + size <= live {
                let Ok(block) = heap.try_allocate(layout) else { return true };
                blocks.push((block, layout));
                asked += size;
            } else {
                // The remaining blocks lie far apart.
                for _ in 0..random.usize(1..8).min(blocks.len()) {
                    let (block, layout) = blocks.swap_remove(random.usize(0..blocks.len()));
                    // SAFETY: the block is live.
                    unsafe { heap.try_deallocate(block, layout) }.unwrap();
                    asked -= layout.size();
                }
            }
        }
    }
    false
}

#[test]
fn heaps_never_fail_inside_their_bounds() {
    macro_rules! check {
        ($(($live:expr, $least:expr, $most:expr)),*) => {$({
            const PROVEN: usize = bounds::tiny_heap($live, $least, $most);
            assert!(!is_broken::<PROVEN>($live, $least, $most, 40), "{} bytes", PROVEN);
            // Room for the live bytes and nothing more.
            assert!(is_broken::<{ ($live + 200) / 8 * 8 }>($live, $least, $most, 40));
        })*};
    }
    check!((1024, 8, 64), (1024, 1, 128), (4096, 16, 300), (4096, 200, 1000), (8_192, 64, 512));
}

#[test]
fn invalid_frees_are_found() {
    let heap = TinyHeap::<1024, Unsync, Counters>::new();
    let layout = Layout::new::<[u64; 4]>();
    let (first, second) = (heap.try_allocate(layout).unwrap(), heap.try_allocate(layout).unwrap());
    let used = heap.used();
    let outside = NonNull::from(&used).cast();
    let long = Layout::new::<[u64; 1000]>();
    // SAFETY: none of them passes the check, unless the block is live.
    unsafe {
        assert_eq!(heap.try_deallocate(outside, layout), Err(FreeError::Foreign));
        assert_eq!(heap.try_deallocate(NonNull::dangling(), layout), Err(FreeError::Foreign));
        assert_eq!(heap.try_deallocate(first, long), Err(FreeError::Foreign));
        assert_eq!(heap.try_deallocate(first.add(1), layout), Err(FreeError::Misaligned));
        assert_eq!(heap.used(), used);
        assert_eq!(heap.try_deallocate(first, layout), Ok(()));
        assert_eq!(heap.try_deallocate(first, layout), Err(FreeError::AlreadyFree));
        assert_eq!(heap.try_deallocate(second, layout), Ok(()));
        // The end of all free memory.
        assert_eq!(heap.try_deallocate(first, layout), Err(FreeError::AlreadyFree));
    }
    assert_eq!(heap.used(), 0);
}

#[test]
fn the_control_data_cannot_be_freed() {
    let heap = TinyHeap::<1024, Unsync>::new();
    let start = NonNull::from(&heap).cast::<u8>();
    let _ = heap.largest_free();
    for offset in (0..1024 - TinyHeap::<1024, Unsync>::CAPACITY).step_by(8) {
        // SAFETY: it does not pass the check.
        let freed = unsafe { heap.try_deallocate(start.add(offset), Layout::new::<u64>()) };
        assert_eq!(freed, Err(FreeError::Foreign));
    }
}

#[test]
fn growing_blocks_stay_and_shrinking_ones_move() {
    let heap = TinyHeap::<4096, Unsync, Counters>::new();
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    // SAFETY: blocks are used as they were allocated.
    unsafe {
        // Allocates from the back: each block lies before the one that was allocated before it.
        let wall = heap.alloc(layout(64));
        let behind = heap.alloc(layout(256));
        let block = heap.alloc(layout(64));
        heap.dealloc(behind, layout(256));
        block.write_bytes(7, 64);
        assert_eq!(heap.realloc(block, layout(64), 320), block, "there is room behind it");
        // A free block of the right length, elsewhere.
        let hole = heap.alloc(layout(32));
        let fence = heap.alloc(layout(8));
        heap.dealloc(hole, layout(32));
        let moved = heap.realloc(block, layout(320), 32);
        assert_eq!(moved, hole, "it moves to where it fits");
        assert_eq!(moved.cast::<[u8; 32]>().read(), [7; 32]);
        heap.dealloc(moved, layout(32));
        heap.dealloc(fence, layout(8));
        heap.dealloc(wall, layout(64));
        // If nothing else is free, it shrinks in place.
        let all = TinyHeap::<4096, Unsync>::CAPACITY;
        let block = heap.alloc(layout(all));
        assert_eq!(heap.realloc(block, layout(all), all - 8), block);
        assert_eq!((heap.used(), heap.stats().failed), (all - 8, 0));
        heap.dealloc(block, layout(all - 8));
    }
    assert_eq!(heap.used(), 0);
}

#[test]
fn heaps_are_shared_by_reference() {
    use allocator_api2::boxed::Box;
    use allocator_api2::vec::Vec;
    static HEAP: TinyHeap<4096, Spin, Counters> = TinyHeap::new();
    let mut list = Vec::new_in(&HEAP);
    list.extend((0..100).map(|n| Box::new_in(n, &HEAP)));
    assert!(HEAP.used() >= 100 * 16);
    assert!(list.iter().enumerate().all(|(place, n)| **n == place));
    drop(list);
    assert_eq!(HEAP.used(), 0);
    assert_eq!(HEAP.stats().live_blocks, 0);
    HEAP.reset_peak();
    assert_eq!(HEAP.peak(), 0);
}

#[test]
fn threads_take_turns() {
    static HEAP: TinyHeap<{ 64 * 1024 }, Spin, Counters> = TinyHeap::new();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread.into());
                let mut blocks = Vec::new();
                for _ in 0..5_000 {
                    if blocks.len() < 40 && random.bool() {
                        let layout = Layout::from_size_align(random.usize(1..300), 4).unwrap();
                        let block = HEAP.try_allocate(layout).unwrap();
                        // SAFETY: the block belongs to this thread and has that size.
                        unsafe { block.write_bytes(thread, layout.size()) };
                        blocks.push((block, layout));
                    } else if !blocks.is_empty() {
                        let (block, layout) = blocks.swap_remove(random.usize(0..blocks.len()));
                        // SAFETY: the block is live and was written.
                        unsafe {
                            let bytes = std::slice::from_raw_parts(block.as_ptr(), layout.size());
                            assert!(bytes.iter().all(|&byte| byte == thread));
                            HEAP.try_deallocate(block, layout).unwrap();
                        }
                    }
                }
                for (block, layout) in blocks {
                    // SAFETY: the block is live.
                    unsafe { HEAP.try_deallocate(block, layout) }.unwrap();
                }
            });
        }
    });
    assert_eq!(HEAP.used(), 0);
}

#[test]
fn a_bump_heap_never_frees() {
    let heap = TinyBump::<256, Unsync>::new();
    let layout = |size, align| Layout::from_size_align(size, align).unwrap();
    // SAFETY: blocks are used as they were allocated.
    unsafe {
        let first = heap.alloc(layout(3, 1));
        let second = heap.alloc(layout(8, 8));
        assert_eq!(second.addr() - first.addr(), 8);
        first.write_bytes(1, 3);
        heap.dealloc(second, layout(8, 8));
        let moved = heap.realloc(first, layout(3, 1), 5);
        assert_eq!((moved.addr() - first.addr(), moved.cast::<[u8; 3]>().read()), (16, [1; 3]));
        assert_eq!(heap.realloc(moved, layout(5, 1), 2), moved);
        assert_eq!(heap.used(), 21);
        assert_eq!(heap.alloc(layout(1, 64)).addr() % 64, 0);
        let error = heap.try_allocate(layout(250, 1)).unwrap_err();
        assert_eq!((error.requested, error.free), (250, 256 - heap.used()));
        assert!(heap.alloc(layout(isize::MAX as usize, 1)).is_null());
        assert!(heap.alloc(layout(1, 1 << (usize::BITS - 2))).is_null());
        let rest = 256 - heap.used();
        assert!(!heap.alloc(layout(rest, 1)).is_null() && heap.alloc(layout(1, 1)).is_null());
        heap.reset();
        assert_eq!((heap.used(), heap.alloc(layout(256, 8))), (0, first));
    }
}

/// What the heap says of itself through the trait is what its own functions say.
#[test]
fn figures_agree_through_the_trait() {
    let heap = TinyHeap::<4096, Unsync, Counters>::new();
    let front = &heap;
    let layout = Layout::from_size_align(200, 8).unwrap();
    let block = heap.try_allocate(layout).unwrap();
    assert_eq!(Memory::statistics(&front), Some(heap.stats()));
    assert_eq!(heap.stats().largest_free, heap.largest_free());
    assert_eq!(Memory::largest_free(&front), heap.largest_free());
    assert!(heap.largest_free() > 3000 && heap.largest_free() % 8 == 0);
    let too_long = Layout::from_size_align(5000, 8).unwrap();
    let error = heap.try_allocate(too_long).unwrap_err();
    assert_eq!((error.requested, error.align), (5000, 8));
    assert_eq!((error.free, error.largest_free), (heap.stats().free, heap.largest_free()));
    assert_eq!(Memory::out_of_memory(&front, too_long), error);
    let region = Memory::region(&front, 0).unwrap();
    assert_eq!(region.size, TinyHeap::<4096>::CAPACITY);
    assert!(region.start <= block && Memory::region(&front, 1).is_none());
    // SAFETY: the block is live.
    unsafe { Memory::deallocate(&front, block, layout) };
    assert_eq!(heap.stats().used, 0);
}

/// What no block can be is not lengthened, and nothing is changed.
#[test]
fn wrong_blocks_are_not_lengthened() {
    let heap = TinyHeap::<4096, Unsync, Counters, true>::new();
    let front = &heap;
    let layout = |size| Layout::from_size_align(size, 8).unwrap();
    let mut blocks = [(); 3].map(|()| heap.try_allocate(layout(40)).unwrap());
    blocks.sort_unstable();
    let [block, behind, last] = blocks;
    let mut other = [0x5a_u64; 64];
    let foreign = NonNull::from(&mut other[8]).cast::<u8>();
    // SAFETY: what is wrong is refused, which is what is tested; the block is live.
    unsafe {
        assert!(!Memory::try_resize(&front, foreign, layout(40), 80));
        assert!(!Memory::try_resize(&front, block.add(4), layout(40), 80));
        assert!(!Memory::try_resize(&front, block, layout(4072), 4080), "longer than the heap");
        let end = NonNull::new(block.as_ptr().wrapping_add(TinyHeap::<4096>::CAPACITY)).unwrap();
        assert!(!Memory::try_resize(&front, end, layout(40), 80));
        assert_eq!(other, [0x5a; 64]);
        heap.try_deallocate(behind, layout(40)).unwrap();
        assert!(Memory::try_resize(&front, block, layout(40), 80));
        heap.try_deallocate(block, layout(80)).unwrap();
        heap.try_deallocate(last, layout(40)).unwrap();
    }
    assert_eq!(heap.largest_free(), TinyHeap::<4096>::CAPACITY);
}
