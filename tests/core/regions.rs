//! Several regions: claiming, extending and releasing, on every placement that supports them.

use crate::shadow::{Backing, Case, Shadow};
use allotment::lock::Unsync;
use allotment::placement::{MicroTlsf, Placement};
use allotment::{Buddy, Bump, FirstFit, Heap, Region, RegionError, Tlsf};
use std::alloc::{GlobalAlloc, Layout};

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Splits a region into its first `size` bytes and the rest.
fn split(region: Region, size: usize) -> (Region, Region) {
    // SAFETY: `size` is less than the region's.
    let rest = unsafe { region.start.add(size) };
    (Region::new(region.start, size), Region::new(rest, region.size - size))
}

mod extending {
    use super::*;

    fn run(case: &'static Case) {
        if !case.releases {
            return;
        }
        for skew in [0, 1, 7, 100] {
            let mut backing = Backing::new(60_000, skew);
            let (first, _) = split(backing.region(), 5_000);
            let heap = (case.empty)(100_000);
            // SAFETY: the backing outlives the heap, and each extension follows the last.
            unsafe {
                heap.claim(first).unwrap();
                let start = first.start.as_ptr();
                let mut size = first.size;
                let a = heap.try_allocate(layout(1_000)).unwrap();
                a.as_ptr().write_bytes(1, 1_000);
                for more in [1_000, 16, 3, 777, 20_000, 33_204] {
                    let before = heap.free();
                    match heap.extend(start, more) {
                        Ok(()) => {
                            size += more;
                            assert!(heap.free() > before);
                            let grown = heap.free() - before;
                            assert!(grown <= more + 600, "{grown} more by {more}");
                        }
                        Err(error) => {
                            assert_eq!(error, RegionError::TooSmall, "{more} bytes more");
                            assert!(more < 1_000);
                            assert_eq!(heap.free(), before);
                        }
                    }
                }
                assert!(size > 59_000 && heap.stats().capacity > size - size / 16 - 512);
                if case.monotone && case.general {
                    // Old and new memory form one region. The lists of `Tlsf`, up to 16 per power of two, are in it.
                    let b =
                        heap.try_allocate(layout(if case.exact_largest { 53_000 } else { 16_000 })).unwrap();
                    heap.dealloc(b.as_ptr(), layout(if case.exact_largest { 53_000 } else { 16_000 }));
                }
                for index in 0..1_000 {
                    assert_eq!(a.as_ptr().add(index).read(), 1);
                }
                assert_eq!(heap.release(start), Err(RegionError::InUse));
                heap.dealloc(a.as_ptr(), layout(1_000));
                if case.reuses {
                    heap.trim();
                    assert_eq!(heap.largest_free() + case.behind, heap.free());
                }
                let region = heap.release(start).unwrap();
                assert_eq!((region.start, region.size), (first.start, size));
                assert_eq!(heap.extend(start, 10), Err(RegionError::Unknown));
            }
        }
    }

    for_each_placement!(run);
}

/// A request for all of a region never makes more memory used than there is, whatever else the region has for it.
mod whole {
    use super::*;
    use allotment::harden::Full;

    fn run(case: &'static Case) {
        for bytes in [48, 64, 100, 4_096, 65_536, (1 << 20) + (32 << 10)] {
            let heap = (case.empty)(bytes);
            let mut backing = Backing::new(bytes, 0);
            // SAFETY: the backing outlives the heap.
            if bytes > case.limit || unsafe { heap.claim(backing.region()) }.is_err() {
                continue;
            }
            for size in (bytes - bytes / 8..=bytes).rev() {
                let Ok(block) = heap.try_allocate(layout(size)) else { continue };
                let stats = heap.stats();
                assert!(size <= stats.used && stats.used <= stats.capacity, "{size} of {bytes}: {stats:?}");
                assert!(stats.free <= stats.capacity - size);
                // SAFETY: the block is live, and this is its layout.
                unsafe { heap.dealloc(block.as_ptr(), layout(size)) };
                assert!(heap.used() == 0 || !case.reuses);
                break;
            }
        }
    }

    for_each_placement!(run);

    #[test]
    fn fronts_of_buddies() {
        run(Case::of::<Full<Buddy>>());
    }
}

/// The last byte of the address space belongs to no block, but to a region: that of memory which ends there.
/// Side tables get their nodes from the allocator.
#[cfg(feature = "alloc")]
#[test]
fn regions_end_where_the_address_space_ends() {
    fn check<P: Placement>() {
        let heap = Heap::<P, Unsync>::empty();
        let from = usize::MAX - 4095;
        for size in [4096, 4095, 4080] {
            let region = Region::from_address(from, size);
            // SAFETY: the metadata of a side table is elsewhere, and blocks are not used.
            unsafe {
                heap.claim(region).unwrap();
                assert_eq!(heap.claim(Region::from_address(from + 4000, 90)), Err(RegionError::Overlap));
                assert_eq!(heap.claim(Region::from_address(from - 80, 90)), Err(RegionError::Overlap));
                let block = heap.try_allocate(layout(heap.largest_free())).unwrap();
                let end = block.addr().get() + heap.used();
                assert!(end - from > size - 32, "{end:x}");
                heap.try_deallocate(block, layout(heap.used())).unwrap();
                assert_eq!(heap.release(region.start.as_ptr()).unwrap(), region);
                let short = Region::from_address(from, 1024);
                heap.claim(short).unwrap();
                assert_eq!(heap.extend(short.start.as_ptr(), 3073), Err(RegionError::Overlap));
                heap.extend(short.start.as_ptr(), size - 1024).unwrap();
                assert_eq!(heap.release(short.start.as_ptr()).unwrap(), region);
            }
        }
        // SAFETY: as above; it wraps around.
        let wrapping = unsafe { heap.claim(Region::from_address(from, 4097)) };
        assert_eq!(wrapping, Err(RegionError::Overlap));
    }
    check::<Bump>();
}

mod many {
    use super::*;

    fn run(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[]);
        for n in 0..case.regions {
            shadow.claim((case.limit / case.regions).min(20_000) - 100 * n, n).unwrap();
        }
        if case.releases {
            let error = shadow.claim(2_000, 0).unwrap_err();
            assert_eq!(error, RegionError::TooMany { max: case.regions });
        }
        let mut blocks = Vec::new();
        while let Some(block) = shadow.allocate(layout(200)) {
            blocks.push(block);
        }
        assert!(blocks.len() >= case.regions * 30, "{} blocks", blocks.len());
        for block in blocks.into_iter().step_by(2) {
            shadow.free(block);
        }
        shadow.finish();
    }

    for_each_placement!(run);
}

/// Regions come and go while blocks of others are live, and some requests are as long as a region.
mod coming_and_going {
    use super::*;

    fn run(case: &'static Case) {
        if !case.releases || !case.reuses {
            return;
        }
        let mut random = fastrand::Rng::with_seed(7);
        let mut shadow = Shadow::new(case, &[]);
        let (mut regions, mut released) = (0, 0);
        for step in 0..4_000 {
            // It fills and empties by turns.
            let fills = step / 200 % 2 == 0;
            match random.u8(..20) {
                0..2 if regions < case.regions.min(4) => {
                    shadow.claim(random.usize(2_000..12_000), random.usize(..100)).unwrap();
                    regions += 1;
                }
                2..4 if regions > 0 && shadow.release(random.usize(..regions)) => {
                    regions -= 1;
                    released += 1;
                }
                n if shadow.live() == 0 || (n < 14) == fills => {
                    let size = if n % 4 == 0 { random.usize(1_000..12_000) } else { random.usize(1..500) };
                    shadow.allocate(layout(size));
                }
                _ => shadow.free(shadow.nth(random.usize(..shadow.live()))),
            }
        }
        // How many depends on where the regions lie: 51 to 118 were seen, and 32 of a placement with one region.
        assert!(released > 20, "only {released} regions were released");
        shadow.finish();
    }

    for_each_placement!(run);
}

mod overlapping {
    use super::*;

    fn run(case: &'static Case) {
        if !case.releases || case.regions < 2 {
            return;
        }
        let mut backing = Backing::new(20_000, 0);
        let (low, rest) = split(backing.region(), 4_000);
        let (middle, _) = split(rest, 8_000);
        let heap = (case.empty)(20_000);
        // SAFETY: the backing outlives the heap, and what overlaps is refused.
        unsafe {
            heap.claim(middle).unwrap();
            // Before it, around it, the same, inside, behind.
            for (from, size) in
                [(0, 4_001), (3_000, 5_000), (0, 20_000), (4_000, 8_000), (6_000, 1_000), (11_999, 5_000)]
            {
                let region = Region::new(backing.region().start.add(from), size);
                assert_eq!(heap.claim(region), Err(RegionError::Overlap), "{size} bytes at {from}");
            }
            heap.claim(low).unwrap();
        }
    }

    for_each_placement!(run);
}

/// The address space between two regions costs nothing, even with narrow indices.
#[test]
fn the_gap_between_regions_costs_nothing() {
    type Narrow = Heap<MicroTlsf, Unsync>;
    let heap = Narrow::empty();
    let mut on_heap = Backing::new(100_000, 0);
    let mut on_stack = [0u64; 1_000];
    let stack = Region::new(&raw mut on_stack, 8_000);
    // SAFETY: both outlive the heap.
    unsafe {
        heap.claim(on_heap.region()).unwrap();
        heap.claim(stack).unwrap();
    }
    assert!(heap.free() > 106_000);
    let a = heap.try_allocate(layout(92_000)).unwrap();
    let b = heap.try_allocate(layout(7_600)).unwrap();
    let on_stack = |block: std::ptr::NonNull<u8>| {
        (stack.start.addr().get()..stack.start.addr().get() + 8_000).contains(&block.addr().get())
    };
    assert!(!on_stack(a) && on_stack(b));
    // SAFETY: the blocks are live and these are their layouts.
    unsafe {
        heap.dealloc(a.as_ptr(), layout(92_000));
        heap.dealloc(b.as_ptr(), layout(7_600));
    }
    assert_eq!(heap.release(stack.start.as_ptr()), Ok(stack));
}

/// Two adjacent regions stay separate: each can be released alone.
#[test]
fn blocks_never_cross_a_border() {
    fn check(case: &'static Case) {
        let mut backing = Backing::new(8_192, 0);
        let (low, high) = split(backing.region(), 4_096);
        let heap = (case.empty)(100_000);
        // SAFETY: the backing outlives the heap.
        unsafe {
            heap.claim(low).unwrap();
            heap.claim(high).unwrap();
            assert_eq!(heap.claim(high), Err(RegionError::Overlap));
            assert_eq!(heap.extend(low.start.as_ptr(), 64), Err(RegionError::Overlap));
        }
        assert!(heap.try_allocate(layout(5_000)).is_err());
        let blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(layout(64)).ok()).collect();
        for block in blocks {
            // SAFETY: the block is live and this is its layout.
            unsafe { heap.dealloc(block.as_ptr(), layout(64)) };
        }
        assert_eq!(heap.release(high.start.as_ptr()), Ok(high));
        assert_eq!(heap.release(high.start.as_ptr()), Err(RegionError::Unknown));
        assert_eq!(heap.release(low.start.as_ptr()), Ok(low));
    }
    check(Case::of::<Tlsf>());
    check(Case::of::<FirstFit>());
    check(Case::of::<Buddy>());
}

/// A free block at the start of a region does not make the region free.
#[test]
fn regions_in_use_stay() {
    fn check(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[(8_192, 0)]);
        let first = shadow.allocate(layout(512)).unwrap();
        let second = shadow.allocate(layout(512)).unwrap();
        shadow.free(first.min(second));
        let start = shadow.region(0).start.as_ptr();
        assert_eq!(shadow.heap.release(start), Err(RegionError::InUse));
        shadow.finish();
    }
    check(Case::of::<Tlsf>());
    check(Case::of::<FirstFit>());
}

/// A bump heap continues in a region that was added after its last one was released.
#[test]
fn a_bump_heap_outlives_its_last_region() {
    use allotment::Bump;
    let heap = Heap::<Bump, Unsync>::empty();
    let [mut a, mut b, mut c] = [(); 3].map(|()| Backing::new(1_000, 0));
    // SAFETY: the backings outlive the heap; blocks are freed with their layouts.
    unsafe {
        heap.claim(a.region()).unwrap();
        heap.claim(b.region()).unwrap();
        heap.try_allocate(layout(1_000)).unwrap();
        let block = heap.try_allocate(layout(500)).unwrap();
        heap.dealloc(block.as_ptr(), layout(500));
        heap.release(b.region().start.as_ptr()).unwrap();
        heap.claim(c.region()).unwrap();
        assert_eq!(heap.try_allocate(layout(500)).unwrap(), c.region().start);
    }
}

/// A block that ends where the next region begins is not the last one of that region.
#[test]
fn a_bump_heap_keeps_neighbours_apart() {
    let mut backing = Backing::new(4096, 0);
    let (front, back) = split(backing.region(), 2048);
    let heap = Heap::<Bump, Unsync>::empty();
    // SAFETY: the memory outlives the heap; each block is freed once.
    unsafe {
        heap.claim(front).unwrap();
        heap.claim(back).unwrap();
        let all = heap.try_allocate(layout(2048)).unwrap();
        let next = heap.try_allocate(layout(100)).unwrap();
        assert_eq!((all, next), (front.start, back.start));
        heap.dealloc(next.as_ptr(), layout(100));
        assert!(!heap.try_resize(all, layout(2048), 2056));
        heap.dealloc(all.as_ptr(), layout(2048));
    }
    let runs: Vec<_> = heap.blocks().map(|run| (run.start, run.size, run.free)).collect();
    assert_eq!(runs, [(front.start.addr().get(), 2048, true), (back.start.addr().get(), 2048, true)]);
    assert_eq!(heap.largest_free(), 2048);
    assert!(heap.try_allocate(layout(2049)).is_err());
    assert_eq!(heap.release(back.start.as_ptr()), Ok(back));
}

/// A region can be extended up to the next one, however short it is.
#[test]
fn a_region_is_extended_up_to_its_neighbour() {
    fn check<P: Placement>(least: usize) {
        for size in (least..4096).step_by(40) {
            let mut backing = Backing::new(2 * size, 0);
            let (front, back) = split(backing.region(), size);
            let heap = Heap::<P, Unsync>::empty();
            // SAFETY: the memory outlives the heap.
            unsafe {
                heap.claim(Region { size: size / 2, ..front }).unwrap();
                heap.claim(back).unwrap();
                assert_eq!(heap.extend(front.start.as_ptr(), size - size / 2 + 1), Err(RegionError::Overlap));
                assert_eq!(heap.extend(front.start.as_ptr(), size - size / 2), Ok(()), "{size}");
            }
            assert_eq!(heap.release(front.start.as_ptr()), Ok(front));
        }
    }
    check::<Tlsf>(480);
    check::<FirstFit>(256);
    check::<Bump>(256);
}

/// Memory that extends a region is not assumed to be zero.
#[test]
fn extensions_are_cleared() {
    fn check(case: &'static Case) {
        let heap = (case.empty)(100_000);
        let mut backing = Backing::new(8_192, 0);
        let (first, _) = split(backing.region(), 1_024);
        // SAFETY: the backing outlives the heap; the extension follows the region.
        unsafe {
            heap.claim(first).unwrap();
            heap.extend(first.start.as_ptr(), 7_168).unwrap();
            for _ in 0..7 {
                let block = heap.try_allocate_zeroed(layout(1_000)).unwrap();
                assert!((0..1_000).all(|index| block.add(index).read() == 0));
            }
        }
    }
    check(Case::of::<allotment::Bump>());
    check(Case::of::<Tlsf>());
}

/// A region starts with what programs have: pointers to anything, addresses, borrowed memory, and all that in a `const`.
#[test]
fn regions_start_with_what_people_have() {
    use std::mem::MaybeUninit;
    use std::ptr::NonNull;

    const DATASHEET: Region = Region::new(0x2000_0000, 4096);
    assert_eq!((DATASHEET.start.addr().get(), DATASHEET.size, DATASHEET.zeroed), (0x2000_0000, 4096, false));
    assert_eq!(DATASHEET, Region::from_address(0x2000_0000, 4096));
    static mut BYTES: [MaybeUninit<u8>; 2048] = [MaybeUninit::uninit(); 2048];
    const NAMED: Region = Region::new(&raw mut BYTES, 2048);
    let start = (&raw mut BYTES).cast::<u8>();
    let region = Region::new(NonNull::new(start).unwrap(), 2048);
    let address = start.expose_provenance();
    for other in
        [NAMED, Region::new(start, 2048), Region::new(address, 2048), Region::from_address(address, 2048)]
    {
        assert_eq!(other, region);
    }
    // SAFETY: nothing else uses the array.
    let borrowed: &'static mut [MaybeUninit<u8>] = unsafe { (&raw mut BYTES).as_mut() }.unwrap();
    assert_eq!(Region::from(borrowed), region);
    let leaked = Box::leak(Box::new([1u8; 512]));
    let start = leaked.as_mut_ptr();
    assert_eq!(Region::from(leaked), Region::new(start, 512));

    // The memory can be used, whichever way it was named.
    let heap = Heap::<Tlsf, Unsync>::empty();
    // SAFETY: nothing else uses the array.
    unsafe { heap.claim(Region::new(address, 2048)) }.unwrap();
    let block = heap.try_allocate(layout(1000)).unwrap();
    // SAFETY: the block is live, has that many bytes, and is freed with its layout.
    unsafe {
        block.write_bytes(7, 1000);
        heap.try_deallocate(block, layout(1000)).unwrap();
    }
    assert_eq!((heap.size(), heap.used()), (heap.free(), 0));
}

#[test]
#[should_panic(expected = "a region cannot start at a null pointer")]
fn a_region_at_null_is_refused() {
    let _ = Region::new(std::ptr::null_mut::<u8>(), 4096);
}

#[test]
#[should_panic(expected = "a region cannot start at a null pointer")]
fn a_region_at_address_zero_is_refused() {
    let _ = Region::new(0, 4096);
}

/// A heap names the regions that it was given, all of their bytes included.
mod names {
    use super::*;

    fn run(case: &'static Case) {
        if !case.releases {
            return;
        }
        let heap = (case.empty)(60_000);
        let mut backings = [Backing::new(30_000, 0), Backing::new(9_000, 3), Backing::new(17_000, 8)];
        let mut given: Vec<_> = backings.iter_mut().map(Backing::region).take(case.regions).collect();
        // SAFETY: the backings outlive the heap.
        given.iter().for_each(|&region| unsafe { heap.claim(region) }.unwrap());
        let mut named: Vec<_> = (0..).map_while(|n| heap.region(n)).collect();
        let key = |region: &Region| region.start;
        given.sort_by_key(key);
        named.sort_by_key(key);
        assert_eq!(named, given);
    }

    for_each_placement!(run);
}
