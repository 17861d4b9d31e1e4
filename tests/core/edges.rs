//! Exact edge cases, for every placement.

use crate::shadow::{Backing, Case, Shadow};
use allotment::lock::Unsync;
use allotment::placement::{FirstFitMap, Mapped, Placement, RegionMap};
use allotment::{BestFit, Buddy, Bump, FirstFit, FreeError, Heap, Region, RegionError, Slab, Tlsf, Tlsf16};
use std::alloc::Layout;
use std::ptr::NonNull;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

mod sizes_and_alignments {
    use super::*;

    fn run(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[(40_000, 3)]);

        // Layouts of size zero get distinct blocks.
        let a = shadow.allocate(layout(0, 1)).unwrap();
        let b = shadow.allocate(layout(0, 64)).unwrap();
        assert_ne!(a, b);
        shadow.free(b);
        shadow.free(a);

        // Sizes near the end of the number range fail, whatever their alignment.
        let max = isize::MAX as usize;
        for size in [max, max - 1, max - 7, max - 4095, max / 2, 1 << (usize::BITS - 2), 50_000] {
            for align in [1, 8, 16, 4096] {
                if let Ok(layout) = Layout::from_size_align(size, align) {
                    assert_eq!(shadow.allocate(layout), None);
                }
            }
        }
        // So do alignments that no address in the region has.
        for shift in 16..usize::BITS - 1 {
            // By chance one may fit; the shadow checks that it is aligned and inside.
            if let Some(block) = shadow.allocate(layout(1, 1 << shift)) {
                assert!(shift < 40);
                shadow.free(block);
            }
        }
        // The largest one is possible for no bytes only: a byte rounded up to it is no layout any more.
        assert_eq!(shadow.allocate(layout(0, 1 << (usize::BITS - 1))), None);
        assert_eq!(shadow.allocate_zeroed(layout(0, 1 << (usize::BITS - 1))), None);

        // A failed reallocation leaves the block unchanged.
        let block = shadow.allocate(layout(100, 8)).unwrap();
        assert_eq!(shadow.reallocate(block, max - 4096), None);
        assert_eq!(shadow.reallocate(block, 100_000), None);
        shadow.free(block);
        shadow.finish();
    }

    for_each_placement!(run);
}

mod resizes_beyond_every_layout {
    use super::*;

    fn run(case: &'static Case) {
        let mut backing = Backing::new(32_767, 0);
        let heap = (case.empty)(32_767);
        let most = isize::MAX as usize;
        // SAFETY: the backing outlives the heap; the block is live, and has this layout as long as every resize fails.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let block = heap.try_allocate(layout(100, 8)).unwrap();
            let used = heap.used();
            for size in [most, most + 1, most + 2, usize::MAX - 7, usize::MAX] {
                assert!(!heap.try_resize(block, layout(100, 8), size), "{size:#x}");
            }
            assert_eq!(heap.used(), used);
            heap.try_deallocate(block, layout(100, 8)).unwrap();
        }
    }

    for_each_placement!(run);
}

mod regions_of_every_size {
    use super::*;

    fn run(case: &'static Case) {
        let (mut refused, mut accepted) = (0, 0);
        for skew in 0..20 {
            for size in (0..400).chain([511, 1023, 2047, 4095, 65_535]) {
                let mut backing = Backing::new(size, skew);
                let heap = (case.empty)(size);
                // SAFETY: the backing outlives the heap.
                match unsafe { heap.claim(backing.region()) } {
                    Ok(()) => {
                        accepted += 1;
                        let stats = heap.stats();
                        assert!(stats.capacity > 0 && stats.capacity <= size);
                        let Ok(one) = heap.try_allocate(layout(1, 1)) else {
                            assert!(!case.sure_largest || stats.capacity <= case.behind, "{stats:?}");
                            continue;
                        };
                        assert!(one.addr().get() >= backing.region().start.addr().get());
                        assert!(one.addr().get() < backing.region().start.addr().get() + size);
                        // SAFETY: the block is live and this is its layout.
                        unsafe { heap.dealloc(one.as_ptr(), layout(1, 1)) };
                    }
                    Err(error) => {
                        refused += 1;
                        assert_eq!(error, RegionError::TooSmall, "{size} bytes");
                        assert_eq!(heap.stats().capacity, 0);
                        assert!(heap.try_allocate(layout(1, 1)).is_err());
                    }
                }
            }
        }
        assert!(refused > 20 && accepted > 200, "{refused} refused, {accepted} accepted");
    }

    // A slab needs a page for a small block; it has a test of its own below.
    mod others {
        use super::*;
        fn run_unless_slab(case: &'static Case) {
            if case.monotone {
                run(case);
            }
        }
        for_each_placement!(run_unless_slab);
    }
}

mod memory_for_an_empty_heap {
    use super::*;

    fn run(case: &'static Case) {
        let heap = (case.empty)(100_000);
        // SAFETY: an empty heap may be asked; it has no memory.
        assert!(unsafe { heap.alloc(layout(8, 8)) }.is_null());
        assert_eq!((heap.used(), heap.peak(), heap.free(), heap.largest_free()), (0, 0, 0, 0));
        let mut small = Backing::new(3, 1);
        let mut large = Backing::new(32_767, 5);
        // SAFETY: the backings outlive the heap.
        unsafe {
            assert_eq!(heap.claim(small.region()), Err(RegionError::TooSmall));
            assert_eq!(heap.free(), 0);
            heap.claim(large.region()).unwrap();
            assert!(heap.free() > 30_000);
            let block = heap.alloc(layout(1000, 8));
            assert!(!block.is_null());
            assert!(heap.used() >= 1000 && heap.peak() == heap.used());
            heap.dealloc(block, layout(1000, 8));
        }
        assert!(heap.peak() >= 1000);
    }

    for_each_placement!(run);
}

/// The reported largest block can be allocated, to the byte, right at the start (rlsf#15).
#[test]
fn all_that_is_free_can_be_had_in_one_piece() {
    fn check(case: &'static Case) {
        for size in [4096, 10_000, 65_536, 65_535] {
            let mut backing = Backing::new(size, 0);
            let heap = (case.empty)(100_000);
            // SAFETY: the backing outlives the heap.
            unsafe { heap.claim(backing.region()).unwrap() };
            let all = layout(heap.free(), 1);
            heap.trim();
            assert_eq!(heap.largest_free(), heap.free());
            let block = heap.try_allocate(all).unwrap();
            assert_eq!((heap.free(), heap.largest_free()), (0, 0));
            assert!(heap.try_allocate(layout(1, 1)).is_err());
            // SAFETY: the block is live and this is its layout.
            unsafe { heap.dealloc(block.as_ptr(), all) };
            assert_eq!((heap.used(), heap.largest_free()), (0, heap.free()));
        }
    }
    check(Case::of::<Tlsf>());
    check(Case::of::<Tlsf16>());
    check(Case::of::<FirstFit>());
    check(Case::of::<BestFit>());
    check(Case::of::<Buddy>());
    check(Case::of::<Slab>());
    check(Case::of::<Bump>());
}

/// A region whose size is a power of two satisfies one request of exactly that size (buddy_system_allocator#20),
/// although its bookkeeping lies in it, and is an ordinary heap afterwards.
#[test]
fn a_buddy_heap_lends_a_whole_region() {
    fn check(case: &'static Case, sizes: &[usize]) {
        let heap = (case.empty)(100_000);
        let mut backings: Vec<_> = sizes.iter().map(|&size| Backing::new(size, 0)).collect();
        for backing in &mut backings {
            // SAFETY: the backings outlive the heap.
            unsafe { heap.claim(backing.region()).unwrap() };
        }
        for _ in 0..3 {
            for &size in sizes {
                let whole = layout(size, 8);
                let block = heap.try_allocate(whole).unwrap();
                // SAFETY: the block has `size` bytes, is live, and this is its layout.
                unsafe {
                    block.as_ptr().write_bytes(0xff, size);
                    if sizes.len() > 1 {
                        heap.dealloc(block.as_ptr(), whole);
                        continue;
                    }
                    let inside = block.add(size / 2);
                    assert_eq!(heap.try_deallocate(inside, layout(8, 8)), Err(FreeError::NotABlock));
                    assert_eq!(heap.release(block.as_ptr()), Err(RegionError::InUse));
                    assert!(heap.try_resize(block, whole, size - 100));
                    assert!(!heap.try_resize(block, whole, size + 1));
                    heap.dealloc(block.as_ptr(), layout(size - 100, 8));
                }
            }
            let mut blocks = Vec::new();
            while let Ok(block) = heap.try_allocate(layout(64, 8)) {
                blocks.push(block);
            }
            assert!(blocks.len() * 64 + 512 > heap.stats().capacity * 29 / 30);
            for block in blocks {
                // SAFETY: the block is live and this is its layout.
                unsafe { heap.dealloc(block.as_ptr(), layout(64, 8)) };
            }
            assert_eq!(heap.used(), 0);
        }
    }
    check(Case::of::<Buddy>(), &[65_536]);
    check(Case::of::<Buddy>(), &[4096, 20_000, 65_536]);
    check(Case::of::<Buddy<4, 8>>(), &[16_384, 1 << 17]);
}

/// Buddies use regions completely even if the size is not a power of two.
#[test]
fn buddies_use_odd_regions_whole() {
    for size in [1000, 12_345, 65_535, 100_000] {
        let mut shadow = Shadow::new(Case::of::<Buddy>(), &[(size, 8)]);
        let capacity = shadow.heap.stats().capacity;
        assert!(capacity + size / 32 + 32 > size);
        let mut count = 0;
        while shadow.allocate(layout(8, 8)).is_some() {
            count += 1;
        }
        assert!(count * 16 + 256 > capacity * 61 / 62, "a granule is 16 bytes, and two bits of the map");
        shadow.finish();
    }
}

/// A block can always shrink where it is, even if there is a better place for it: another thread may get that place first.
#[test]
fn blocks_shrink_in_place_whatever_is_free() {
    fn check(name: &str, case: &'static Case) {
        let heap = (case.empty)(100_000);
        let mut backing = Backing::new(16_384, 0);
        // SAFETY: the backing outlives the heap, and blocks are live where they are used.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let hole = heap.try_allocate(layout(256, 8)).unwrap();
            let block = heap.try_allocate(layout(2048, 8)).unwrap();
            let behind = heap.try_allocate(layout(2048, 8)).unwrap();
            heap.try_deallocate(hole, layout(256, 8)).unwrap();
            assert!(heap.try_resize(block, layout(2048, 8), 256), "{}", name);
            heap.try_deallocate(block, layout(256, 8)).unwrap();
            heap.try_deallocate(behind, layout(2048, 8)).unwrap();
            assert_eq!(heap.used(), 0, "{}", name);
        }
    }
    check("Buddy", Case::of::<Buddy>());
    check("FirstFit", Case::of::<FirstFit>());
    check("BestFit", Case::of::<BestFit>());
    check("Slab", Case::of::<Slab>());
    check("Tlsf", Case::of::<Tlsf>());
}

/// First fit knows whether the lowest run that is long enough is shorter than a block that shrinks.
#[test]
fn first_fit_knows_shorter_runs() {
    let mut map: FirstFitMap = FirstFitMap::EMPTY;
    let mut words = vec![0; FirstFitMap::<u32>::words(0, 1000)];
    // SAFETY: there are as many words as the map takes, and they outlive it.
    unsafe { map.open(words.as_mut_ptr(), 0, 1000) };
    let hole = map.allocate((20, 1)).unwrap();
    let block = map.allocate((100, 1)).unwrap();
    assert!(!map.has_shorter((100, 1), (10, 1)), "the only run is long");
    assert_eq!(map.free(hole, (20, 1)), Ok(20));
    assert!(map.has_shorter((100, 1), (10, 1)) && map.has_shorter((100, 1), (20, 1)));
    assert!(
        !map.has_shorter((100, 1), (21, 1))
            && !map.has_shorter((20, 1), (10, 1))
            && !map.has_shorter((100, 2), (10, 2))
    );
    assert_eq!((map.allocate((10, 1)), map.free(block, (100, 1))), (Some(hole), Ok(100)));
}

/// A slab refuses foreign and double frees, also in release builds, and stays intact.
#[test]
fn slabs_detect_foreign_and_double_frees() {
    fn check(case: &'static Case) {
        let heap = (case.empty)(100_000);
        let mut backing = Backing::new(32_768, 0);
        // SAFETY: the backing outlives the heap; invalid frees are what is tested, and are refused.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let small = layout(48, 8);
            let a = heap.try_allocate(small).unwrap();
            let b = heap.try_allocate(small).unwrap();
            let used = heap.used();
            assert_eq!(heap.try_deallocate(NonNull::from(&mut 0u64).cast(), small), Err(FreeError::Foreign));
            assert_eq!(heap.try_deallocate(a.add(1), small), Err(FreeError::Misaligned));
            assert_eq!(heap.try_deallocate(a.add(16), small), Err(FreeError::NotABlock));
            assert_eq!(heap.try_deallocate(a, layout(100, 8)), Err(FreeError::NotABlock));
            assert_eq!(heap.used(), used);
            heap.try_deallocate(a, small).unwrap();
            assert_eq!(heap.try_deallocate(a, small), Err(FreeError::AlreadyFree));
            heap.try_deallocate(b, small).unwrap();
            assert_eq!(heap.try_deallocate(b, small), Err(FreeError::AlreadyFree), "with its page");
            assert_eq!(heap.used(), 0);
            assert_eq!(heap.stats().live_blocks, 0);
            heap.trim();
            assert_eq!(heap.largest_free(), heap.free());
        }
    }
    check(Case::of::<Slab>());
}

mod invalid_frees {
    use super::*;

    fn run(case: &'static Case) {
        let heap = (case.empty)(100_000);
        let mut backing = Backing::new(60_000, 0);
        let big = layout(600, 8);
        // SAFETY: the backing outlives the heap; invalid frees are what is tested, and are refused.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let block = heap.try_allocate(big).unwrap();
            let used = heap.used();
            let foreign = NonNull::from(&mut 0u64).cast::<u8>();
            let end = backing.region().start.add(60_000);
            if case.sure_largest {
                assert_eq!(heap.try_deallocate(foreign, big), Err(FreeError::Foreign));
                assert_eq!(heap.try_deallocate(end, big), Err(FreeError::Foreign));
                assert!(heap.try_deallocate(block, layout(100_000, 8)).is_err());
            }
            assert!(heap.try_deallocate(block.add(1), big).is_err());
            assert_eq!((heap.used(), heap.stats().live_blocks), (used, 1));
            heap.try_deallocate(block, big).unwrap();
            if case.sure_largest && !case.trusts {
                // The block starts its region, so it is now at the edge of the free block.
                assert!(heap.try_deallocate(block, big).is_err(), "double free");
                assert_eq!(heap.stats().live_blocks, 0);
            }
            if case.finds_double_frees {
                let small = layout(48, 8);
                let [a, b, c] = [(); 3].map(|()| heap.try_allocate(small).unwrap());
                heap.try_deallocate(a, small).unwrap();
                heap.try_deallocate(b, small).unwrap();
                assert!(heap.try_deallocate(b, small).is_err(), "inside a free block");
                heap.try_deallocate(c, small).unwrap();
            }
        }
    }

    for_each_placement!(run);
}

#[test]
fn regions_that_do_not_fit_the_index_are_refused() {
    // The memory is never touched, so it may be as large as the address space allows.
    fn claim<P: Placement>(size: usize) -> Result<(), RegionError> {
        let start = NonNull::new(std::ptr::without_provenance_mut(0x10_0000)).unwrap();
        // SAFETY: the region is refused before any byte of it is used.
        unsafe { Heap::<P, Unsync>::empty().claim(Region::new(start, size)) }
    }
    assert_eq!(
        claim::<Tlsf16>(600_000),
        Err(RegionError::TooLarge {
            max: if usize::BITS == 64 { 531_696 } else { <Tlsf16 as Placement>::MAX_REGION }
        })
    );
    assert!(matches!(claim::<Mapped<FirstFitMap<u16>, 16>>(1_100_000), Err(RegionError::TooLarge { .. })));
    // Indices of 32 bits reach the end of a 32-bit address space.
    #[cfg(target_pointer_width = "64")]
    {
        assert!(matches!(claim::<Tlsf>(1 << 40), Err(RegionError::TooLarge { .. })));
        assert!(matches!(claim::<Buddy>(1 << 40), Err(RegionError::TooLarge { .. })));
        assert!(matches!(claim::<Bump>(1 << 40), Err(RegionError::TooLarge { .. })));
        assert_eq!(
            claim::<Tlsf>(usize::MAX - 0x10_0000),
            Err(RegionError::TooLarge { max: <Tlsf as Placement>::MAX_REGION })
        );
    }
}

/// The same-size trap: a block that was just freed is found again, whatever its size (espressif/tlsf#2).
#[test]
fn every_size_is_reused() {
    for size in (1..3000).chain([4097, 5000, 10_007]) {
        let mut shadow = Shadow::new(Case::of::<Tlsf>(), &[(16 * 1024, 0)]);
        let block = shadow.allocate(layout(size, 1)).unwrap();
        let rest = shadow.heap.largest_free();
        if rest > 0 {
            shadow.allocate(layout(rest, 1)).unwrap();
        }
        shadow.free(block);
        assert_eq!(shadow.allocate(layout(size, 1)), Some(block), "{size} bytes");
        shadow.finish();
    }
}

/// The alignment trap: memory skipped for an alignment can be used (rlsf fits 55 blocks where this fits all).
#[test]
fn alignment_gaps_are_given_back() {
    fn check(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[(1 << 20, 0)]);
        while shadow.allocate(layout(512, 4096)).is_some() {}
        let used = shadow.heap.stats().used;
        while shadow.allocate(layout(8, 8)).is_some() {}
        assert!(shadow.heap.stats().used > used + (1 << 20) * 8 / 10, "{}", shadow.heap.stats().used - used);
        assert_eq!(shadow.heap.stats().free, 0);
        shadow.finish();
    }
    check(Case::of::<Tlsf>());
    check(Case::of::<FirstFit>());
    check(Case::of::<BestFit>());
}

/// An aligned request is satisfied by a free block that is just so long that it has an aligned place wherever it lies, though
/// a shorter one without such a place is found first.
#[test]
fn an_aligned_place_is_found_behind_one_that_does_not_do() {
    fn check<P: Placement>() {
        const ALIGN: usize = 128;
        const SIZE: usize = 256;
        let mut backing = Backing::new(64 * 1024, 0);
        let heap = Heap::<P, Unsync>::empty();
        // SAFETY: the backing outlives the heap; blocks are live until they are freed.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let allocate = |size| heap.try_allocate(layout(size, 8));
            let free = |block, size| heap.try_deallocate(block, layout(size, 8)).unwrap();
            let misaligned = |size| loop {
                let block = allocate(size).unwrap();
                if (1..=16).contains(&(block.addr().get() % ALIGN)) {
                    allocate(16).unwrap();
                    break block;
                }
                free(block, size);
                allocate(16).unwrap();
            };
            let (short, long) = (misaligned(SIZE), misaligned(SIZE + ALIGN - 8));
            for size in [4096, SIZE, 16, 8] {
                while allocate(size).is_ok() {}
            }
            free(short, SIZE);
            assert!(heap.try_allocate(layout(SIZE, ALIGN)).is_err());
            free(long, SIZE + ALIGN - 8);
            let block = heap.try_allocate(layout(SIZE, ALIGN)).unwrap();
            assert_eq!(block.addr().get() % ALIGN, 0);
        }
    }
    check::<Tlsf>();
    check::<FirstFit>();
    check::<BestFit>();
}

/// `BestFit` moves a short block that shrinks to free memory that is shorter than it is; a long one stays, and so does one that fits nowhere else.
#[test]
fn a_short_block_that_shrinks_moves_to_a_shorter_gap() {
    for case in [Case::of::<BestFit>(), Case::of::<BestFit<u16, 4, 2>>()] {
        for (size, moves) in [(2_000, true), (9_000, false)] {
            let mut shadow = Shadow::new(case, &[(64 * 1024, 0)]);
            let gap = shadow.allocate(layout(size - 200, 8)).unwrap();
            shadow.allocate(layout(8, 8)).unwrap();
            let block = shadow.allocate(layout(size, 8)).unwrap();
            shadow.allocate(layout(8, 8)).unwrap();
            assert_eq!(shadow.reallocate(block, size - 80), Some(block), "there is no gap");
            assert_eq!(shadow.reallocate(block, size), Some(block));
            shadow.free(gap);
            let moved = shadow.reallocate(block, size - 300).unwrap();
            assert_eq!(moved != block, moves, "{size}");
            shadow.finish();
        }
    }
}

/// Growing into the free block behind and shrinking happen in place.
#[test]
fn blocks_grow_and_shrink_in_place() {
    fn check(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[(200_000, 0)]);
        let a = shadow.allocate(layout(10_240, 8)).unwrap();
        assert_eq!(shadow.reallocate(a, 14_336), Some(a), "into free memory");
        let b = shadow.allocate(layout(10_240, 8)).unwrap();
        assert_eq!(shadow.reallocate(a, 10_240), Some(a), "shrinking");
        assert_eq!(shadow.reallocate(a, 14_336), Some(a), "into what was cut off");
        let moved = shadow.reallocate(a, 20_480).unwrap();
        assert_ne!(moved, a, "no room: it moves");
        shadow.free(b);
        shadow.finish();
    }
    check(Case::of::<Tlsf>());
    check(Case::of::<Tlsf16>());
    check(Case::of::<FirstFit>());
    check(Case::of::<BestFit>());

    let mut shadow = Shadow::new(Case::of::<Buddy>(), &[(65_536, 0)]);
    let a = shadow.allocate(layout(20_000, 8)).unwrap();
    let moved = shadow.reallocate(a, 1_000).unwrap();
    assert_ne!(moved, a, "a free block of the new length leaves a longer one here");
    shadow.free(moved);
    let a = shadow.allocate(layout(20_000, 8)).unwrap();
    let others: Vec<_> = std::iter::from_fn(|| shadow.allocate(layout(16, 8))).collect();
    let used = shadow.heap.stats().used;
    assert_eq!(shadow.reallocate(a, 1_000), Some(a), "the upper halves are freed");
    assert_eq!(shadow.heap.stats().used, used - 32_768 + 1_024);
    assert_eq!(shadow.reallocate(a, 32_768), Some(a), "and merged again");
    others.into_iter().for_each(|block| shadow.free(block));
    let b = shadow.allocate(layout(16_384, 8)).unwrap();
    assert_eq!(shadow.reallocate(a, 40_000), None, "no buddy is free");
    assert_eq!(shadow.heap.stats().used, 32_768 + 16_384);
    shadow.free(b);
    shadow.finish();

    let mut shadow = Shadow::new(Case::of::<Bump>(), &[(65_536, 0)]);
    let a = shadow.allocate(layout(1000, 8)).unwrap();
    assert_eq!(shadow.reallocate(a, 2000), Some(a));
    assert_eq!(shadow.reallocate(a, 500), Some(a));
    shadow.free(a);
    assert_eq!(shadow.heap.stats().used, 0, "the last block is really freed");
}

#[test]
fn a_bump_heap_is_reset_as_a_whole() {
    let heap = Heap::<Bump, Unsync>::empty();
    let mut backings = [Backing::new(1000, 0), Backing::new(5000, 1)];
    for backing in &mut backings {
        // SAFETY: the backings outlive the heap.
        unsafe { heap.claim(backing.region()).unwrap() };
    }
    for _ in 0..3 {
        let first = heap.try_allocate(layout(800, 8)).unwrap();
        let second = heap.try_allocate(layout(800, 8)).unwrap();
        assert_eq!(first, backings[0].region().start);
        assert_eq!(second.addr().get(), backings[1].region().start.addr().get().next_multiple_of(8));
        assert_eq!(heap.used(), 1600);
        assert_eq!(heap.release(backings[0].region().start.as_ptr()), Err(RegionError::InUse));
        // SAFETY: none of the blocks is used any more.
        unsafe { heap.reset() };
        assert_eq!((heap.used(), heap.stats().live_blocks), (0, 0));
    }
    heap.release(backings[0].region().start.as_ptr()).unwrap();
    heap.release(backings[1].region().start.as_ptr()).unwrap();
    assert_eq!(heap.free(), 0);
}

/// A block of 8 bytes takes 8 bytes, with 16-bit and with 32-bit indices.
#[test]
fn small_blocks_take_what_they_ask_for() {
    fn check(case: &'static Case, size: usize, at_least: usize) {
        let mut shadow = Shadow::new(case, &[(4096, 0)]);
        let mut count = 0;
        while shadow.allocate(layout(size, 8)).is_some() {
            count += 1;
        }
        assert!(count >= at_least, "{count} blocks of {size} bytes in 4 KiB");
        shadow.finish();
    }
    // Their lists are in the region: 160 and 288 bytes.
    check(Case::of::<Tlsf16>(), 8, 484);
    check(Case::of::<Tlsf16>(), 24, 161);
    check(Case::of::<Tlsf>(), 8, 234);
    check(Case::of::<Tlsf>(), 24, 156);
    check(Case::of::<FirstFit<1, false>>(), 8, 498);
    check(Case::of::<BestFit<u16, 1, 2>>(), 8, 491);
    check(Case::of::<BestFit<u16, 1, 2>>(), 24, 163);
    check(Case::of::<BestFit>(), 24, 156);
    check(Case::of::<Buddy<4, 8>>(), 8, 483);
    check(Case::of::<Bump>(), 8, 512);
}

/// A block of the right size is preferred to larger free ones.
#[test]
fn the_right_block_is_found() {
    for size in [24, 400, 1_000, 3_000] {
        let mut shadow = Shadow::new(Case::of::<Tlsf>(), &[(64 * 1024, 0)]);
        let block = shadow.allocate(layout(size, 8)).unwrap();
        shadow.allocate(layout(8, 8)).unwrap();
        shadow.free(block);
        assert_eq!(shadow.allocate(layout(size, 8)), Some(block), "{size} bytes");
        shadow.finish();
    }
    // Holes of 512, 256 and 1,024 bytes, and the rest of the memory behind them.
    fn holes(case: &'static Case) -> (Shadow, [usize; 3]) {
        let mut shadow = Shadow::new(case, &[(64 * 1024, 0)]);
        let holes = [512, 256, 1_024].map(|size| {
            let hole = shadow.allocate(layout(size, 8)).unwrap();
            shadow.allocate(layout(8, 8)).unwrap();
            hole
        });
        holes.iter().for_each(|&hole| shadow.free(hole));
        (shadow, holes)
    }
    let (mut shadow, [first, ..]) = holes(Case::of::<FirstFit>());
    assert_eq!(shadow.allocate(layout(200, 8)), Some(first), "the lowest that fits");
    shadow.finish();
    let (mut shadow, [_, second, third]) = holes(Case::of::<BestFit>());
    let inside = |block: Option<usize>, hole, size| (hole..hole + size).contains(&block.unwrap());
    assert!(inside(shadow.allocate(layout(200, 8)), second, 256), "the smallest that fits");
    assert!(inside(shadow.allocate(layout(600, 8)), third, 1_024));
    shadow.finish();
}

#[test]
fn slabs_open_page_after_page() {
    let mut shadow = Shadow::new(Case::of::<Slab>(), &[(64 * 1024, 0)]);
    let blocks: Vec<_> = (0..500).map(|_| shadow.allocate(layout(16, 8)).unwrap()).collect();
    for block in blocks.into_iter().step_by(3) {
        shadow.free(block);
    }
    for _ in 0..100 {
        shadow.allocate(layout(16, 8)).unwrap();
    }
    shadow.finish();
}

/// A region that is allocated as a whole is cleared completely, whatever its bookkeeping contained.
#[test]
fn a_lent_region_can_be_zeroed() {
    for zeroed in [true, false] {
        for (size, request) in [(4_096, 3_000), (512, 512)] {
            let mut memory = vec![if zeroed { 0u64 } else { u64::MAX }; size / 8];
            let start = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
            let heap = Heap::<Buddy, Unsync>::empty();
            // SAFETY: the memory outlives the heap, and is zero if the region says so.
            unsafe {
                heap.claim(Region { zeroed, ..Region::new(start, size) }).unwrap();
                let block = heap.try_allocate_zeroed(layout(request, 8)).unwrap();
                assert!((0..request).all(|index| block.add(index).read() == 0), "{request} of {size}");
            }
        }
    }
}

/// A request as long as the objects of a class, and no longer one, gets an object of a page.
#[test]
fn pages_have_every_length_of_their_class() {
    use allotment::placement::Classes;
    struct LongClasses;
    impl Classes for LongClasses {
        const SIZES: &'static [usize] = &[64, 120];
    }
    fn check<C: Classes>() {
        let longest = C::SIZES[C::SIZES.len() - 1];
        for &class in C::SIZES {
            for (size, aligned) in [(class, 8), (class + 1, 8), (class, 16)] {
                let mut backing = Backing::new(64 * 1024, 0);
                let heap = Heap::<Slab<C, allotment::placement::FirstFitMap>, Unsync>::empty();
                // SAFETY: the backing outlives the heap.
                unsafe { heap.claim(backing.region()).unwrap() };
                let before = heap.largest_free();
                heap.try_allocate(layout(size, aligned)).unwrap();
                let has_page = before - heap.largest_free() > 4 * size;
                assert_eq!(has_page, aligned == 8 && size <= longest, "{size} bytes aligned to {aligned}");
            }
        }
    }
    check::<crate::shadow::matrix::OddClasses>();
    check::<LongClasses>();
}

/// An object is freed with the layout of its class, and no other.
#[test]
fn slabs_refuse_the_layout_of_another_class() {
    fn check<C: allotment::placement::Classes>() {
        for (class, &size) in C::SIZES.iter().enumerate() {
            let mut backing = Backing::new(64 * 1024, 0);
            let heap = Heap::<Slab<C>, Unsync>::empty();
            // SAFETY: the backing outlives the heap. Invalid frees are refused, which is what is tested.
            unsafe {
                heap.claim(backing.region()).unwrap();
                let objects = [(); 20].map(|()| heap.try_allocate(layout(size, 8)).unwrap());
                for object in objects {
                    object.write_bytes(0x5a, size);
                    for (other, &wrong) in C::SIZES.iter().enumerate() {
                        let answer = heap.try_deallocate(object, layout(wrong, 8));
                        assert_eq!(answer.is_ok(), other == class, "{wrong} instead of {size} bytes");
                        if other == class {
                            assert_eq!(heap.try_allocate(layout(size, 8)), Ok(object));
                        }
                    }
                }
            }
        }
    }
    check::<crate::shadow::matrix::OddClasses>();
    check::<allotment::placement::DefaultClasses>();
}

/// While there is room, a request for many blocks gets them all.
#[test]
fn many_blocks_are_had_at_once() {
    use allotment::Memory;
    fn check<P: Placement>() {
        for size in [24, 300, 2_000] {
            let mut backing = Backing::new(64 * 1024, 0);
            let heap = Heap::<P, Unsync>::empty();
            // SAFETY: the backing outlives the heap, and the blocks that were counted are live.
            unsafe {
                heap.claim(backing.region()).unwrap();
                let mut blocks = [std::mem::MaybeUninit::uninit(); 20];
                assert_eq!(heap.allocate_many(layout(size, 8), &mut blocks), 20, "of {size} bytes");
                assert_eq!(heap.stats().live_blocks, 20);
                heap.deallocate_many(layout(size, 8), &blocks.map(|block| block.assume_init()));
                assert_eq!(heap.stats().live_blocks, 0);
            }
        }
    }
    check::<Tlsf>();
    check::<BestFit>();
    check::<Buddy>();
    check::<Slab>();
    check::<allotment::Tiered>();
    check::<FirstFit>();
    check::<allotment::placement::MicroTlsf>();
    check::<allotment::harden::Full<Tlsf>>();
}

/// What a placement says that a block has is what it takes, and all of it can be used.
mod grants {
    use super::*;

    fn run(case: &'static Case) {
        let mut backing = Backing::new(64 * 1024, 0);
        let heap = (case.empty)(64 * 1024);
        let mut random = fastrand::Rng::with_seed(3);
        let mut live: Vec<(NonNull<u8>, usize, Layout, u8)> = Vec::new();
        // SAFETY: the backing outlives the heap, and blocks are live until they are freed with their layouts.
        unsafe {
            heap.claim(backing.region()).unwrap();
            for stamp in 0..1000 {
                let stamp = stamp as u8;
                if live.is_empty() || random.u8(0..8) < 5 {
                    let largest = [16, 300, 3000][random.usize(0..3)];
                    let layout = layout(random.usize(0..largest), 1 << random.u8(0..6));
                    let zeroed = random.u8(0..4) == 0;
                    let Some((start, size)) = heap.grant(layout, zeroed) else { continue };
                    assert!(!zeroed || (0..layout.size()).all(|at| start.add(at).read() == 0), "{layout:?}");
                    let taken =
                        [case.taken, case.taken_otherwise].map(|taken| taken(layout.size(), layout.align()));
                    assert!(
                        size >= layout.size() && (case.lends || taken.contains(&size)),
                        "{size}: {layout:?}"
                    );
                    start.write_bytes(stamp, layout.size());
                    live.push((start, size, layout, stamp));
                } else {
                    let (start, size, layout, stamp) = live.swap_remove(random.usize(0..live.len()));
                    assert!((0..layout.size()).all(|at| start.add(at).read() == stamp), "{layout:?}");
                    let freed = heap.take_back(start, layout).unwrap();
                    assert!(freed == size || !case.reuses && freed == 0, "{freed} of {size}: {layout:?}");
                }
            }
        }
    }

    for_each_placement!(run);
}

/// A heap that has been in use gives out as many blocks, whichever of its functions is called.
mod fillings {
    use super::*;

    type Take = fn(&dyn crate::shadow::AnyHeap, Layout) -> bool;

    fn count(case: &'static Case, take: Take) -> usize {
        let mut backing = Backing::new(48 * 1024, 0);
        let heap = (case.empty)(48 * 1024);
        // SAFETY: the backing outlives the heap, and blocks are freed once, with their layout.
        unsafe {
            heap.claim(backing.region()).unwrap();
            // Much is kept for small blocks.
            let small = layout(64, 8);
            let blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(small).ok()).collect();
            for &block in &blocks {
                heap.dealloc(block.as_ptr(), small);
            }
            let large = std::iter::from_fn(|| take(&*heap, layout(1500, 8)).then_some(())).count();
            let rest = std::iter::from_fn(|| take(&*heap, small).then_some(())).count();
            large * 1500 + rest * 64
        }
    }

    fn run(case: &'static Case) {
        // SAFETY: the sizes are not zero.
        let alloc: Take = |heap, layout| unsafe { !heap.alloc(layout).is_null() };
        // SAFETY: as above.
        let zeroed: Take = |heap, layout| unsafe { !heap.alloc_zeroed(layout).is_null() };
        let counts = [
            count(case, |heap, layout| heap.try_allocate(layout).is_ok()),
            count(case, |heap, layout| heap.try_allocate_zeroed(layout).is_ok()),
            count(case, alloc),
            count(case, zeroed),
        ];
        assert!(counts.iter().all(|&count| count == counts[0]), "{counts:?}");
        let least = if case.reuses && case.general { 20 * 1024 } else { 0 };
        assert!(counts[0] >= least, "{counts:?}");
    }

    for_each_placement!(run);
}

/// A region of the greatest length is taken, and no longer one.
mod longest_regions {
    use super::*;

    fn run(case: &'static Case) {
        let claim = |size: usize| {
            let heap = (case.empty)(64 * 1024);
            let mut memory = vec![0u64; size.div_ceil(8)];
            let start = NonNull::from(memory.as_mut_slice()).cast();
            // SAFETY: the memory outlives the heap.
            let claimed = unsafe { heap.claim(Region::new(start, size)) };
            drop(heap);
            claimed
        };
        // What `heap!` accepts at most.
        if case.max_region < 1 << 20 {
            assert_eq!(claim(case.max_region), Ok(()), "{} bytes", case.max_region);
        }
        // Far more than 16-bit indices can tell apart.
        if let Err(RegionError::TooLarge { max }) = claim(48 << 20) {
            assert_eq!(claim(max), Ok(()), "{max} bytes");
            // What is around a placement takes a part for itself.
            let refused = claim(max + max / 8 + 256);
            assert_eq!(refused, Err(RegionError::TooLarge { max }));
        }
    }

    for_each_placement!(run);
}

/// An adapter tells what is left as well as its allocator can.
#[cfg(feature = "buddy-system")]
#[test]
fn what_is_left_of_an_adapted_allocator() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = Heap::<allotment::BuddySystem, Unsync>::empty();
    // SAFETY: the backing outlives the heap.
    unsafe { heap.claim(backing.region()).unwrap() };
    assert_eq!((heap.largest_free(), heap.free()), (64 * 1024, 64 * 1024));
    heap.try_allocate(layout(1000, 8)).unwrap();
    assert_eq!(heap.largest_free(), 63 * 1024);
}

/// What a program writes to a region that is allocated as a whole is not read, even if it looks like one free block and its bits.
#[test]
fn a_lent_region_of_buddies_is_not_read() {
    const BYTES: usize = 16_384;
    let mut backings = [Backing::new(BYTES, 0), Backing::new(BYTES, 0)];
    let heap = Heap::<Buddy, Unsync>::empty();
    // SAFETY: the backings outlive the heap; the blocks are live, and have that many bytes.
    unsafe {
        backings.iter_mut().for_each(|backing| heap.claim(backing.region()).unwrap());
        let granules = (heap.largest_free() / 8) as u32;
        let blocks = [(); 2].map(|()| heap.try_allocate(layout(BYTES, 8)).unwrap());
        for (block, bits) in blocks.into_iter().flat_map(|block| (0..200).map(move |bits| (block, bits))) {
            let words = block.cast::<u32>();
            (0..BYTES / 4).for_each(|at| words.add(at).write(granules));
            words.add(BYTES / 4 - bits).cast::<u8>().write_bytes(0xff, bits * 4);
            assert_eq!(heap.largest_free(), 0, "{bits} words of bits");
        }
        blocks.into_iter().for_each(|block| heap.try_deallocate(block, layout(BYTES, 8)).unwrap());
    }
}

/// Whatever is written to free memory, the map is not in it.
#[test]
fn writes_to_free_memory_do_not_damage_buddies() {
    for byte in [0, 1, 0x7f, 0xff] {
        let mut backing = Backing::new(9_000, 0);
        let heap = Heap::<Buddy, Unsync>::empty();
        // SAFETY: the backing outlives the heap. That freed memory is written to is what is tested.
        unsafe {
            heap.claim(backing.region()).unwrap();
            let whole = heap.largest_free();
            assert!(whole > 8_800, "{whole}");
            let blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(layout(16, 8)).ok()).collect();
            for &block in &blocks {
                heap.try_deallocate(block, layout(16, 8)).unwrap();
            }
            assert_eq!(heap.largest_free(), whole);
            let first = blocks.iter().min().unwrap();
            first.add(16).write_bytes(byte, blocks.len() * 16 - 16);
            assert_eq!(heap.largest_free(), whole);
            let block = heap.try_allocate(layout(whole, 8)).unwrap();
            heap.try_deallocate(block, layout(whole, 8)).unwrap();
        }
    }
}

/// A region that is allocated as a whole is not a free one, whatever is written to it.
#[test]
fn lent_regions_of_buddies_are_not_free() {
    let mut backings = [Backing::new(5_000, 0), Backing::new(9_000, 0), Backing::new(3_000, 0)];
    let heap = Heap::<Buddy, Unsync>::empty();
    // SAFETY: the backings outlive the heap; blocks are live until they are freed.
    unsafe {
        backings.iter_mut().for_each(|backing| heap.claim(backing.region()).unwrap());
        let before = heap.largest_free();
        assert!(before > 8_900, "{before}");
        let blocks = [8_800, 4_900, 2_900].map(|size| (heap.try_allocate(layout(size, 8)).unwrap(), size));
        for (block, size) in blocks {
            for byte in [0, 1, 0xff] {
                block.write_bytes(byte, size);
                assert_eq!(heap.largest_free(), 0, "filled with {byte}");
            }
        }
        for (block, size) in blocks {
            heap.try_deallocate(block, layout(size, 8)).unwrap();
            assert!(heap.largest_free() >= size);
        }
        assert_eq!(heap.largest_free(), before);
    }
}
