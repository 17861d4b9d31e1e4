//! Zones: which zone satisfies a request, how frees find their zone, cache lines, and moves.

use allotment::FreeError;
use allotment::lock::Spin;
use allotment::region::Capabilities as Can;
use allotment::zones::{Zone, ZoneError, Zones};
use allotment::{Buddy, FirstFit, Heap, Memory, Region, Slab, Tlsf};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Memory that is never freed.
fn region(size: usize) -> Region {
    let memory = vec![0u128; size / 16].leak();
    Region::new(NonNull::from(&mut *memory).cast(), size)
}

fn heap<P: allotment::placement::Placement + Send>(sizes: &[usize]) -> &'static Heap<P, Spin> {
    let heap = Box::leak(Box::new(Heap::empty()));
    for &size in sizes {
        // SAFETY: the memory is leaked, and only this heap uses it.
        unsafe { heap.claim(region(size)) }.unwrap();
    }
    heap
}

type Small = Zones<'static, 3, 8, Spin>;

/// Fast memory for up to 64 bytes, bulk memory above 1024 bytes, and DMA-capable memory in between.
fn three(chain: &'static [usize]) -> Small {
    Zones::new([
        Zone::new("fast", heap::<Tlsf>(&[4096]), Can::INTERNAL | Can::FAST).up_to(64).aligned_up_to(16),
        Zone::new("dma", heap::<FirstFit>(&[8192]), Can::INTERNAL | Can::DMA).cache_line(32).up_to(1024),
        Zone::new("bulk", heap::<Buddy>(&[65_536]), Can::EXTERNAL).above(1024),
    ])
    .fallback(chain)
}

fn chosen(zones: &Small, size: usize, align: usize, wanted: Can) -> Result<usize, ZoneError> {
    zones.allocate(layout(size, align), wanted).map(|block| zones.zone_of(block.cast()).unwrap())
}

#[test]
fn the_first_zone_whose_rules_fit_serves() {
    let zones = three(&[]);
    assert_eq!(chosen(&zones, 64, 8, Can::empty()), Ok(0));
    assert_eq!(chosen(&zones, 65, 8, Can::empty()), Ok(1));
    assert_eq!(chosen(&zones, 64, 32, Can::empty()), Ok(1), "the fast zone aligns to 16 at most");
    assert_eq!(chosen(&zones, 1024, 8, Can::INTERNAL), Ok(1));
    assert_eq!(chosen(&zones, 1025, 8, Can::empty()), Ok(2));
    assert_eq!(chosen(&zones, 8, 8, Can::DMA), Ok(1), "what is wanted comes before what is preferred");
    // Without a chain, rules are strict.
    let large_and_fast = zones.allocate(layout(2000, 8), Can::FAST);
    assert_eq!(large_and_fast, Err(ZoneError::NoRule { requested: 2000, align: 8 }));
    assert_eq!(
        zones.allocate(layout(8, 8), Can::DMA | Can::FAST),
        Err(ZoneError::NoZone { wanted: Can::DMA | Can::FAST })
    );
    assert_eq!(zones.allocate(layout(8, 8), Can::user(3)), Err(ZoneError::NoZone { wanted: Can::user(3) }));
}

#[test]
fn the_chain_comes_after_the_rules() {
    let zones = three(&[2, 0]);
    assert_eq!(chosen(&zones, 2000, 8, Can::FAST), Ok(0));
    let mut served = [0; 3];
    let error = loop {
        match chosen(&zones, 48, 8, Can::empty()) {
            Ok(zone) => {
                // Zone 0 until it is full, then zone 1, then zone 2 through the chain.
                assert!(served[zone + 1..].iter().all(|&later| later == 0), "{served:?} then {zone}");
                served[zone] += 1;
            }
            Err(error) => break error,
        }
    };
    assert!(served.iter().all(|&blocks| blocks > 20), "{served:?}");
    let ZoneError::OutOfMemory { last, tried } = error else { panic!("{error}") };
    assert_eq!((tried, last.requested), (3, 48));
    assert!(error.to_string().contains("no room in any of the 3 zones"), "{error}");
    // Without it in the chain, the bulk memory is not used.
    let zones = three(&[0]);
    let all = Memory::largest_free(&zones.zones()[2]);
    while zones.allocate(layout(48, 8), Can::empty()).is_ok() {}
    assert_eq!(zones.zones()[2].region(0).map(|region| region.size), Some(65_536));
    assert_eq!(Memory::largest_free(&zones.zones()[2]), all);
}

#[test]
fn a_chain_of_zones_that_are_not_there_is_refused() {
    assert!(std::panic::catch_unwind(|| three(&[3])).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    /// The zone is the one that a literal reading of the rules gives.
    #[test]
    fn the_choice_is_as_documented(
        rules in prop::collection::vec((0..4u32, 0..300usize, 0..600usize, 0..7u32, any::<bool>()), 1..=4),
        chain in prop::collection::vec(0..4usize, 0..4),
        requests in prop::collection::vec((0..700usize, 0..7u32, 0..4u32), 1..20),
    ) {
        let capabilities = |bits: u32| Can::from_bits_retain(bits << 16);
        let mut all: Vec<Zone> = Vec::new();
        for &(bits, above, up_to, align, device) in &rules {
            let can = capabilities(bits) | if device { Can::DEVICE } else { Can::empty() };
            let zone = Zone::new("zone", heap::<Tlsf>(&[1 << 16]), can);
            all.push(zone.above(above).up_to(up_to).aligned_up_to(1 << align));
        }
        // Always four zones; the additional ones have no capabilities and prefer nothing.
        while all.len() < 4 {
            all.push(Zone::new("none", heap::<Tlsf>(&[]), Can::empty()).above(usize::MAX));
        }
        let chain: &'static [usize] = chain.leak();
        let zones: Zones<4, 8, Spin> = Zones::new(all.try_into().ok().unwrap()).fallback(chain);
        for (size, align, bits) in requests {
            let wanted = capabilities(bits);
            let serves = |&zone: &usize| rules.get(zone).is_some_and(|rule| rule.0 & bits == bits && !rule.4);
            let prefers = |&zone: &usize| {
                let (_, above, up_to, most, _) = rules[zone];
                size > above && size <= up_to && align <= most
            };
            let expected = (0..4).filter(serves).find(prefers).or(chain.iter().copied().find(serves));
            match zones.allocate(layout(size, 1 << align), wanted) {
                Ok(block) => prop_assert_eq!(zones.zone_of(block.cast()), expected),
                Err(_) => prop_assert_eq!(expected, None),
            }
        }
    }
}

/// More regions than the table holds, from heaps of all kinds, some with several regions. Every free finds its
/// heap, whose statistics are right at the end.
#[test]
fn frees_find_their_zone() {
    let heaps = (
        heap::<Tlsf>(&[16_384, 4096, 8192]),
        heap::<FirstFit>(&[16_384, 16_384]),
        heap::<Buddy<4, 8>>(&[32_768]),
        heap::<Slab>(&[32_768, 8192]),
    );
    let zones: Zones<4, 5, Spin> = Zones::new([
        Zone::new("a", heaps.0, Can::FAST).up_to(200),
        Zone::new("b", heaps.1, Can::DMA).cache_line(64),
        Zone::new("c", heaps.2, Can::EXTERNAL),
        Zone::new("d", heaps.3, Can::RETAINED),
    ]);
    let mut random = fastrand::Rng::with_seed(7);
    let mut live: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
    let mut in_zone = [0; 4];
    for step in 0..30_000 {
        // SAFETY: blocks are used and freed with their layouts.
        unsafe {
            if random.u32(0..100) < 52 {
                let wanted =
                    [Can::empty(), Can::FAST, Can::DMA, Can::EXTERNAL, Can::RETAINED][random.usize(0..5)];
                let request = layout(random.usize(0..600), 1 << random.u32(0..6));
                if let Ok(block) = zones.allocate(request, wanted) {
                    in_zone[zones.zone_of(block.cast()).unwrap()] += 1;
                    let tag = step as u8;
                    block.cast::<u8>().as_ptr().write_bytes(tag, block.len());
                    live.push((block.cast(), request, tag));
                }
            } else if !live.is_empty() {
                let (start, request, tag) = live.swap_remove(random.usize(0..live.len()));
                let bytes = std::slice::from_raw_parts(start.as_ptr(), request.size());
                assert!(bytes.iter().all(|&byte| byte == tag));
                zones.deallocate(start, request).unwrap();
            }
        }
    }
    assert!(in_zone.iter().all(|&blocks| blocks > 100), "{in_zone:?}");
    for (start, request, _) in live {
        // SAFETY: as above.
        unsafe { zones.deallocate(start, request) }.unwrap();
    }
    assert_eq!((heaps.0.used(), heaps.1.used(), heaps.2.used(), heaps.3.used()), (0, 0, 0, 0));
    let mut foreign = [0u64; 4];
    let foreign = NonNull::from(&mut foreign).cast();
    // SAFETY: a check that fails changes nothing.
    assert_eq!(unsafe { zones.deallocate(foreign, layout(8, 8)) }, Err(FreeError::Foreign));
    assert_eq!(zones.zone_of(foreign), None);
}

/// A region moves to another heap while the table knows its old owner.
#[test]
fn regions_may_move_between_zones() {
    let (a, b) = (heap::<Tlsf>(&[4096]), heap::<Tlsf>(&[]));
    let zones: Zones<2, 8, Spin> =
        Zones::new([Zone::new("a", a, Can::FAST), Zone::new("b", b, Can::RETAINED)]);
    let block = zones.allocate(layout(100, 8), Can::FAST).unwrap();
    assert_eq!(zones.zone_of(block.cast()), Some(0));
    // SAFETY: the block is live; the region is free when it changes hands.
    unsafe {
        zones.deallocate(block.cast(), layout(100, 8)).unwrap();
        let region = a.release(a.region(0).unwrap().start.as_ptr()).unwrap();
        b.claim(region).unwrap();
        let block = zones.allocate(layout(100, 8), Can::RETAINED).unwrap();
        assert_eq!(zones.zone_of(block.cast()), Some(1));
        zones.deallocate(block.cast(), layout(100, 8)).unwrap();
        // And back, with a free first.
        a.claim(b.release(region.start.as_ptr()).unwrap()).unwrap();
        let block = zones.allocate(layout(100, 8), Can::FAST).unwrap();
        zones.deallocate(block.cast(), layout(100, 8)).unwrap();
    }
    assert_eq!((a.used(), b.used()), (0, 0));
}

/// No two buffers share a cache line, however they are allocated, resized and freed, and the padding is as
/// reported.
#[test]
fn buffers_do_not_share_cache_lines() {
    const LINE: usize = 32;
    let heap = heap::<Tlsf>(&[32_768, 10_000]);
    let zone = Zone::new("dma", heap, Can::DMA).cache_line(LINE);
    let mut random = fastrand::Rng::with_seed(3);
    let mut owner: BTreeMap<usize, usize> = BTreeMap::new();
    let mut live: Vec<(NonNull<u8>, Layout)> = Vec::new();
    let lines = |start: NonNull<u8>, size: usize| {
        let start = start.addr().get();
        start / LINE..=(start + size.max(1) - 1) / LINE
    };
    for number in 0..10_000 {
        if random.u32(0..100) < 55 {
            let request = layout(random.usize(0..300), 1 << random.u32(0..8));
            let zeroed = random.bool();
            let allocated = if zeroed { zone.allocate_zeroed(request) } else { zone.allocate(request) };
            let Ok(block) = allocated else { continue };
            assert_eq!(block.addr().get() % LINE.max(request.align()), 0);
            assert_eq!(block.len(), request.size().max(1).next_multiple_of(LINE));
            assert_eq!(zone.padding(request), block.len() - request.size());
            if zeroed {
                // SAFETY: the block is live and has that many bytes.
                let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>().as_ptr(), block.len()) };
                assert!(bytes.iter().all(|&byte| byte == 0));
            }
            // SAFETY: the block is live and has that many bytes.
            unsafe { block.cast::<u8>().as_ptr().write_bytes(0xee, block.len()) };
            for line in lines(block.cast(), request.size()) {
                assert_eq!(owner.insert(line, number), None, "line {line:#x} is shared");
            }
            live.push((block.cast(), request));
        } else if !live.is_empty() {
            let index = random.usize(0..live.len());
            let (start, request) = live.swap_remove(index);
            lines(start, request.size()).for_each(|line| assert!(owner.remove(&line).is_some()));
            let size = random.usize(1..300);
            // SAFETY: the block is live, with this layout.
            unsafe {
                if random.bool() && Memory::try_resize(&zone, start, request, size) {
                    let request = layout(size, request.align());
                    for line in lines(start, size) {
                        assert_eq!(owner.insert(line, number), None, "line {line:#x} is shared");
                    }
                    live.push((start, request));
                } else {
                    zone.deallocate(start, request).unwrap();
                }
            }
        }
    }
    for (start, request) in live {
        // SAFETY: the block is live, with this layout.
        unsafe { zone.deallocate(start, request) }.unwrap();
    }
    assert_eq!(heap.used(), 0);
    assert!(zone.allocate(layout(isize::MAX as usize - 40, 8)).is_err(), "too large with its padding");
}

#[test]
fn blocks_move_with_their_contents() {
    let zones = three(&[]);
    let all = Memory::largest_free(&zones.zones()[2]);
    let request = layout(60, 4);
    let block = zones.allocate(request, Can::FAST).unwrap().cast::<u8>();
    let contents: Vec<u8> = (0..60).collect();
    // SAFETY: the block is live wherever it is, and has that many bytes.
    unsafe {
        block.as_ptr().copy_from_nonoverlapping(contents.as_ptr(), 60);
        let stays = zones.migrate(block, request, 0).unwrap();
        assert_eq!((stays.cast(), stays.len()), (block, 60));
        let moved = zones.migrate(block, request, 1).unwrap();
        assert_eq!((zones.zone_of(moved.cast()), moved.len()), (Some(1), 64));
        assert_eq!(std::slice::from_raw_parts(moved.cast::<u8>().as_ptr(), 60), contents);
        let moved = zones.migrate(moved.cast(), request, 2).unwrap();
        assert_eq!(std::slice::from_raw_parts(moved.cast::<u8>().as_ptr(), 60), contents);
        // A move that is impossible leaves the block in place.
        assert_eq!(zones.migrate(moved.cast(), request, 3), Err(ZoneError::Unknown { zones: 3 }));
        while zones.zones()[0].allocate(layout(8, 8)).is_ok() {}
        let full = zones.migrate(moved.cast(), request, 0);
        assert!(matches!(full, Err(ZoneError::OutOfMemory { tried: 1, .. })), "{full:?}");
        assert_eq!(std::slice::from_raw_parts(moved.cast::<u8>().as_ptr(), 60), contents);
        zones.deallocate(moved.cast(), request).unwrap();
        let mut foreign = 0u64;
        let foreign = zones.migrate(NonNull::from(&mut foreign).cast(), layout(8, 8), 1);
        assert_eq!(foreign, Err(ZoneError::Free(FreeError::Foreign)));
    }
    assert_eq!(Memory::largest_free(&zones.zones()[2]), all);
}

/// Memory of a device, of which no byte is touched: the number of the next block, and of live ones.
struct Untouched(AtomicUsize, AtomicUsize);

// SAFETY: each block begins behind the last one, and no place is allocated twice.
unsafe impl Memory for Untouched {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let number = self.0.fetch_add(1, Ordering::Relaxed);
        self.1.fetch_add(1, Ordering::Relaxed);
        assert!(layout.size() <= 4096 && layout.align() <= 4096 && number < 256);
        NonNull::new(std::ptr::without_provenance_mut((1 << 20) + 4096 * number))
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: Layout) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }

    fn check(&self, block: NonNull<u8>, _: Layout) -> Result<(), FreeError> {
        if block.addr().get() >> 20 == 1 { Ok(()) } else { Err(FreeError::Foreign) }
    }

    unsafe fn try_resize(&self, _: NonNull<u8>, _: Layout, _: usize) -> bool {
        false
    }

    fn largest_free(&self) -> usize {
        4096
    }

    fn region(&self, n: usize) -> Option<Region> {
        (n == 0).then(|| Region::from_address(1 << 20, 1 << 20))
    }
}

/// Memory that the core must not touch.
#[test]
fn device_memory_is_for_those_who_ask() {
    static DEVICE: Untouched = Untouched(AtomicUsize::new(0), AtomicUsize::new(0));
    let zones: Zones<2, 8, Spin> = Zones::new([
        Zone::new("device", &DEVICE, Can::DEVICE | Can::DMA),
        Zone::new("host", heap::<Tlsf>(&[1024]), Can::DMA),
    ]);
    let request = layout(256, 64);
    let host = zones.allocate(request, Can::DMA).unwrap();
    assert_eq!(zones.zone_of(host.cast()), Some(1));
    let device = zones.allocate(request, Can::DEVICE).unwrap();
    assert_eq!((zones.zone_of(device.cast()), device.addr().get() >> 20), (Some(0), 1));
    assert!(matches!(
        zones.allocate(layout(2048, 8), Can::DMA),
        Err(ZoneError::OutOfMemory { tried: 1, .. })
    ));
    // Operations that would read or write the memory fail.
    assert!(zones.allocate_zeroed(request, Can::DEVICE).is_err());
    assert!(Memory::try_allocate(&zones.zones()[0], request).is_err());
    assert!(Memory::try_allocate(&zones.wanting(Can::DEVICE), request).is_err());
    // SAFETY: the blocks are live.
    unsafe {
        assert_eq!(zones.migrate(device.cast(), request, 1), Err(ZoneError::Inaccessible));
        assert_eq!(zones.migrate(host.cast(), request, 0), Err(ZoneError::Inaccessible));
        zones.deallocate(device.cast(), request).unwrap();
        zones.deallocate(host.cast(), request).unwrap();
    }
    assert_eq!(DEVICE.1.load(Ordering::Relaxed), 0);
}

#[test]
fn capabilities_are_sets() {
    let own = Can::user(0) | Can::user(15);
    assert_eq!((own.bits(), Can::user(0).bits()), (1 << 16 | 1 << 31, 1 << 16));
    assert!((own | Can::DMA).contains(own) && !own.contains(Can::DMA) && !own.is_empty());
    assert!(std::panic::catch_unwind(|| Can::user(16)).is_err());
    let zone = Zone::new("own", heap::<Tlsf>(&[]), own);
    assert!(zone.serves(Can::user(15)) && !zone.serves(Can::user(1)));
}

/// Used like a global allocator: blocks that grow or shrink across the limits of the rules move, and others stay.
#[test]
fn reallocated_blocks_go_where_they_belong() {
    let zones = three(&[]);
    let free = || zones.zones().iter().map(Memory::largest_free).sum::<usize>();
    let all = free();
    // SAFETY: the block is used with its layouts.
    unsafe {
        let mut old = layout(40, 8);
        let mut block = zones.alloc_zeroed(old);
        for (size, zone) in [(56, 0), (500, 1), (1000, 1), (5000, 2), (9000, 2), (600, 1), (20, 1)] {
            let bytes = std::slice::from_raw_parts_mut(block, old.size());
            bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = index as u8);
            let kept = old.size().min(size);
            block = zones.realloc(block, old, size);
            assert_eq!(zones.zone_of(NonNull::new(block).unwrap()), Some(zone), "{size} bytes");
            let bytes = std::slice::from_raw_parts(block, kept);
            assert!(bytes.iter().enumerate().all(|(index, &byte)| byte == index as u8));
            old = layout(size, 8);
        }
        zones.dealloc(block, old);
        assert!(zones.alloc(layout(1 << 20, 8)).is_null());
    }
    assert_eq!(free(), all);
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections_live_in_zones() {
    use allocator_api2::{boxed::Box, vec::Vec};
    let zones = three(&[]);
    let [fast, dma, _] = zones.zones();
    let number: Box<u64, &Zone> = Box::new_in(42, fast);
    let mut buffer: Vec<u8, &Zone> = Vec::with_capacity_in(100, dma);
    assert_eq!((buffer.as_ptr().addr() % 32, *number), (0, 42));
    buffer.extend(0..200);
    assert!(buffer.iter().copied().eq(0..200));
    // A growing block moves through the zones that prefer its size, and keeps to the wanted capabilities.
    let mut list: Vec<u32, _> = Vec::new_in(zones.wanting(Can::INTERNAL));
    list.extend(0..250);
    let start = NonNull::new(list.as_mut_ptr()).unwrap().cast();
    assert_eq!(zones.zone_of(start), Some(1));
    assert!(list.try_reserve(1000).is_err(), "only bulk memory is as large, and that is external");
    assert!(list.iter().copied().eq(0..250));
    drop((number, buffer, list));
    assert_eq!(Memory::largest_free(dma) / 1024, 7);
}

/// Threads free blocks in zones that other threads allocated there.
#[test]
fn threads_share_zones() {
    static FAST: Heap<Tlsf, Spin> = allotment::heap!(8192);
    static BULK: Heap<FirstFit, Spin> = allotment::heap!(65_536);
    static ZONES: Zones<2, 8, Spin> =
        Zones::new([Zone::new("fast", &FAST, Can::FAST).up_to(128), Zone::new("bulk", &BULK, Can::EXTERNAL)])
            .fallback(&[0]);
    struct Block(*mut u8, Layout);
    // SAFETY: a block belongs to the owner of the value.
    unsafe impl Send for Block {}
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (give, take) = std::sync::mpsc::sync_channel::<Block>(32);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..5_000 {
                    let request = layout(random.usize(1..400), 8);
                    // SAFETY: the block is handed over.
                    let block = unsafe { ZONES.alloc(request) };
                    if !block.is_null() {
                        give.send(Block(block, request)).unwrap();
                    }
                }
            });
            scope.spawn(move || {
                for Block(start, request) in take {
                    // SAFETY: the block was handed over live.
                    unsafe { ZONES.dealloc(start, request) };
                }
            });
        }
    });
    assert_eq!((FAST.used(), BULK.used()), (0, 0));
}

/// Once a zone says that atomics work on its memory, requests that name no capabilities stay in such memory.
#[test]
fn what_holds_atomics_stays_out_of_memory_where_they_fail() {
    let sram = Zone::new("sram", heap::<Tlsf>(&[4096]), Can::INTERNAL | Can::ATOMIC);
    let psram = Zone::new("psram", heap::<Tlsf>(&[65_536]), Can::EXTERNAL);
    let zones: Zones<2, 8, Spin> = Zones::new([psram, sram]).fallback(&[0, 1]);
    let small = layout(64, 8);
    // SAFETY: the layouts are not empty.
    let block = NonNull::new(unsafe { zones.alloc(small) }).unwrap();
    assert_eq!(zones.zone_of(block), Some(1), "not the first zone, though it prefers everything");
    assert!(Memory::allocate(&zones, layout(8000, 8)).is_none(), "only the PSRAM has so much");
    assert!(Memory::largest_free(&zones) < 4096);
    let wish = zones.allocate(layout(8000, 8), Can::EXTERNAL).unwrap();
    assert_eq!(zones.zone_of(wish.cast()), Some(0), "a request that wants it gets it");
    // SAFETY: both blocks are live and have these layouts.
    unsafe {
        zones.dealloc(block.as_ptr(), small);
        zones.deallocate(wish.cast(), layout(8000, 8)).unwrap();
    }
    // Where no zone says anything, all are used.
    let silent: Zones<1, 8, Spin> = Zones::new([Zone::new("ram", heap::<Tlsf>(&[4096]), Can::empty())]);
    assert!(Memory::allocate(&silent, small).is_some());
}
