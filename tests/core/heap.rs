//! The front: static heaps, zeroed memory, errors, statistics on and off, and the `Allocator` traits.

use crate::shadow::{Backing, Case, Shadow};
use allotment::FreeError;
use allotment::lock::Unsync;
use allotment::observe::NoStatistics;
use allotment::placement::{MicroTlsf, Placement};
use allotment::{Buddy, FirstFit, Heap, OutOfMemory, Region, Slab, Tiered, Tlsf, harden, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

#[test]
fn a_static_heap_needs_no_call() {
    static HEAP: Heap = heap!(32 * 1024);
    assert!(HEAP.free() > 31_500 && HEAP.largest_free() == HEAP.free());
    static FRESH: Heap = heap!(4096);
    // SAFETY: the block is freed with its layout.
    unsafe {
        let block = FRESH.alloc(layout(100));
        assert!(!block.is_null());
        FRESH.dealloc(block, layout(100));
    }
    assert_eq!(FRESH.stats().failed, 0, "the late claim is no failure");
}

/// The macro's own name hides none of the program's.
#[test]
fn a_size_may_have_any_name() {
    const ARENA: usize = 8 * 1024;
    static HEAP: Heap = heap!(ARENA);
    assert!((ARENA / 2..=ARENA).contains(&HEAP.largest_free()));
}

/// One `heap!` expression makes one heap, however often it is evaluated.
#[test]
fn an_arena_is_given_away_once() {
    fn make() -> Heap<Tlsf, Unsync> {
        heap!(4096)
    }
    let (first, second) = (make(), make());
    let block = second.try_allocate(layout(100)).unwrap();
    assert_eq!(first.free(), 0);
    assert!(first.try_allocate(layout(1)).is_err());
    // SAFETY: the block is live and this is its layout.
    unsafe { second.dealloc(block.as_ptr(), layout(100)) };
    // Less 64 bytes of boundary bits and 288 of lists.
    assert!(second.free() > 3700);
}

/// The memory lies in the section that the macro names, whose contents the heap does not rely on: neither for its memory nor
/// for what says whether it is taken.
#[cfg(target_os = "linux")]
#[test]
fn a_section_holds_the_memory() {
    unsafe extern "C" {
        static mut __start_allotment_fast: u8;
        static mut __stop_allotment_fast: u8;
    }
    static FAST: Heap = heap!(64 * 1024, section = "allotment_fast", align = 256);
    let [start, stop] = [&raw mut __start_allotment_fast, &raw mut __stop_allotment_fast];
    let size = stop.addr() - start.addr();
    assert!(size >= 64 * 1024 && start.addr() % 256 == 0);
    // SAFETY: nothing else is in the section, and the heap has not claimed it yet.
    unsafe { start.write_bytes(0xff, size) };
    for size in [100, 1000, 10_000] {
        let block = FAST.try_allocate_zeroed(layout(size)).unwrap();
        assert!((start.addr()..stop.addr()).contains(&block.addr().get()));
        // SAFETY: the block has so many bytes, all of which are initialised.
        assert!(unsafe { core::slice::from_raw_parts(block.as_ptr(), size) }.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn memory_is_aligned_as_the_macro_says() {
    static ALIGNED: Heap<Buddy> = heap!(8192, align = 4096);
    assert_eq!(ALIGNED.region(0).unwrap().start.addr().get() % 4096, 0);
    assert_eq!(ALIGNED.region(0).unwrap().size, 8192);
}

#[test]
fn linker_symbols_make_a_heap() {
    static mut MEMORY: [u8; 10_000] = [0xff; 10_000];
    // SAFETY: the array is used by this heap only.
    static HEAP: Heap = unsafe {
        let start = &raw mut MEMORY;
        Heap::from_symbols(start.cast(), start.cast::<u8>().wrapping_add(10_000))
    };
    assert!(HEAP.free() > 9_250);
    // SAFETY: the range is empty, and so is the heap.
    let empty = unsafe { Heap::<Tlsf, Unsync>::from_symbols(std::ptr::dangling_mut(), std::ptr::null_mut()) };
    assert_eq!(empty.free(), 0);
    assert!(empty.try_allocate(layout(1)).is_err());
}

#[test]
fn errors_say_why() {
    let heap = Heap::<Tlsf, Unsync>::empty();
    let mut backing = Backing::new(4096, 0);
    // SAFETY: the backing outlives the heap.
    unsafe { heap.claim(backing.region()) }.unwrap();
    let free = heap.free();
    let error = heap.try_allocate(Layout::from_size_align(5000, 32).unwrap()).unwrap_err();
    assert_eq!(error, OutOfMemory { requested: 5000, align: 32, free, largest_free: free, rule: None });
    let text = error.to_string();
    assert!(text.contains("5000") && text.contains(&free.to_string()), "{text}");
    assert_eq!((heap.stats().failed, heap.stats().largest_failed), (1, 5000));
    let error = heap.try_allocate_zeroed(layout(6000)).unwrap_err();
    assert_eq!((error.requested, heap.stats().failed, heap.stats().largest_failed), (6000, 2, 6000));
    assert!(heap.try_allocate(layout(8)).is_ok());
}

/// Zeroed memory is zero, whatever it contained, and no more than necessary is cleared.
mod zeroed {
    use super::*;

    fn run(case: &'static Case) {
        let size = 60_000;
        let mut memory = vec![0u64; size / 8];
        let start = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        let heap = (case.empty)(100_000);
        // SAFETY: the memory outlives the heap and is zero; blocks are used and freed as allocated.
        unsafe {
            heap.claim(Region { zeroed: true, ..Region::new(start, size) }).unwrap();
            let mut random = fastrand::Rng::with_seed(7);
            let mut live: Vec<(*mut u8, Layout)> = Vec::new();
            for _ in 0..4_000 {
                if random.bool() || live.is_empty() {
                    let align = 1 << random.u32(0..9);
                    let layout = Layout::from_size_align(random.usize(1..1_000), align).unwrap();
                    let block =
                        if random.u32(0..3) == 0 { heap.alloc(layout) } else { heap.alloc_zeroed(layout) };
                    if block.is_null() {
                        let all = live.drain(..);
                        all.for_each(|(block, layout)| heap.dealloc(block, layout));
                        continue;
                    }
                    let fresh = heap.alloc_zeroed(layout);
                    for (block, wanted) in [(block, None), (fresh, Some(0))] {
                        if block.is_null() {
                            continue;
                        }
                        for index in 0..layout.size() {
                            let found = block.add(index).read();
                            assert!(wanted.is_none_or(|wanted| wanted == found), "{found} at {index}");
                            block.add(index).write(0xee);
                        }
                        live.push((block, layout));
                    }
                } else {
                    let (block, layout) = live.swap_remove(random.usize(0..live.len()));
                    heap.dealloc(block, layout);
                }
            }
        }
    }

    for_each_placement!(run);

    /// Fresh memory of a zeroed region is not written, so its pages stay untouched.
    #[test]
    fn fresh_memory_is_not_cleared() {
        let size = 1 << 20;
        let mut memory = vec![0u64; size / 8];
        // The region falsely claims to be zero, which shows which bytes are cleared.
        memory.fill(u64::MAX);
        let start = NonNull::new(memory.as_mut_ptr().cast::<u8>()).unwrap();
        let heap = Heap::<Tlsf, Unsync>::empty();
        // SAFETY: the memory outlives the heap; that it is not zero is harmless here.
        unsafe {
            heap.claim(Region { zeroed: true, ..Region::new(start, size) }).unwrap();
            let layout = layout(100_000);
            let first = heap.alloc_zeroed(layout);
            let untouched = (0..100_000).filter(|&index| first.add(index).read() == 0xff).count();
            assert!(untouched > 99_900, "{untouched}");
            heap.dealloc(first, layout);
            let again = heap.alloc_zeroed(layout);
            assert_eq!(again, first);
            assert!((0..100_000).all(|index| again.add(index).read() == 0), "used memory is cleared");
            heap.dealloc(again, layout);
        }
    }
}

#[test]
fn statistics_can_be_left_out() {
    type Bare<P> = Heap<P, Unsync, NoStatistics>;
    assert_eq!(
        size_of::<Heap<Tlsf, Unsync>>() - size_of::<Bare<Tlsf>>(),
        6 * size_of::<usize>(),
        "the counters take no space when they are off"
    );
    let heap = Bare::<FirstFit>::empty();
    let mut backing = Backing::new(4096, 0);
    // SAFETY: the backing outlives the heap; the block is freed with its layout.
    unsafe {
        heap.claim(backing.region()).unwrap();
        let before = heap.largest_free();
        let block = heap.alloc(layout(100));
        assert!(heap.largest_free() < before);
        heap.dealloc(block, layout(100));
        assert_eq!(heap.largest_free(), before);
        let error = heap.try_allocate(layout(10_000)).unwrap_err();
        assert_eq!((error.free, error.largest_free), (before, before));
    }
}

#[test]
fn the_peak_can_be_restarted() {
    let heap = Heap::<Tlsf, Unsync>::empty();
    let mut backing = Backing::new(4096, 0);
    // SAFETY: the backing outlives the heap; the block is freed with its layout.
    unsafe {
        heap.claim(backing.region()).unwrap();
        let block = heap.alloc(layout(1000));
        heap.dealloc(block, layout(1000));
    }
    assert_eq!(heap.peak(), 1000);
    heap.reset_peak();
    assert_eq!(heap.peak(), 0);
}

#[cfg(feature = "allocator-api2")]
mod collections {
    use super::*;
    use allocator_api2::vec::Vec;

    fn run(case: &'static Case) {
        let heap = (case.empty)(100_000);
        let mut backing = Backing::new(100_000, 0);
        // SAFETY: the backing outlives the heap.
        unsafe { heap.claim(backing.region()).unwrap() };
        let mut numbers = Vec::new_in(&*heap);
        for number in 0..1_000u64 {
            numbers.push(number);
        }
        numbers.truncate(100);
        numbers.shrink_to_fit();
        assert!(numbers.iter().copied().eq(0..100));
        assert!(heap.used() >= 800);
        let mut nothing: Vec<(), _> = Vec::new_in(&*heap);
        nothing.push(());
        // SAFETY: the blocks are grown, shrunk and freed with their layouts.
        unsafe {
            let zero = heap.allocate_zeroed(layout(100)).unwrap().cast::<u8>();
            let grown = heap.grow_zeroed(zero, layout(100), layout(400)).unwrap().cast::<u8>();
            assert!((0..400).all(|index| grown.add(index).read() == 0));
            let other = Layout::from_size_align(50, 64).unwrap();
            let moved = heap.shrink(grown, layout(400), other).unwrap().cast::<u8>();
            assert_eq!(moved.addr().get() % 64, 0);
            let none = heap.shrink(moved, other, layout(0)).unwrap().cast::<u8>();
            let some = heap.grow(none, layout(0), layout(10)).unwrap().cast::<u8>();
            heap.deallocate(some, layout(10));
        }
        drop(numbers);
        if case.reuses {
            assert_eq!(heap.used(), 0);
        }
        assert_eq!(heap.stats().live_blocks, 0);
        assert!(heap.allocate(layout(200_000)).is_err());
    }

    for_each_placement!(run);
}

/// An invalid free ends the program with a message, unless a hook decides otherwise; then it is ignored.
#[test]
fn invalid_frees_end_the_program() {
    if let Some(how) = std::env::var_os("ALLOTMENT_WRONG_FREE") {
        if how == "hook" {
            allotment::misuse::set_hook(|misuse| eprintln!("hook: {misuse}"));
        } else if how == "panic" {
            allotment::misuse::set_hook(|misuse| panic!("hook: {misuse}"));
        }
        static HEAP: Heap<Slab> = heap!(16 * 1024);
        // SAFETY: the contract is violated on purpose. A slab detects that and refuses.
        unsafe {
            let block = HEAP.alloc(layout(16));
            let other = HEAP.alloc(layout(16));
            HEAP.dealloc(block, layout(16));
            HEAP.dealloc(block, layout(16));
            assert_eq!(HEAP.used(), 16);
            HEAP.dealloc(other, layout(16));
            assert_eq!(HEAP.used(), 0);
        }
        return;
    }
    for (how, line, ends) in [
        ("1", "allotment: invalid free: the block is free already, address 0x", true),
        ("hook", "hook: invalid free: the block is free already, address 0x", false),
        ("panic", "hook: invalid free: the block is free already, address 0x", true),
    ] {
        let child = crate::again::again()
            .args(["--exact", "heap::invalid_frees_end_the_program", "--nocapture"])
            .env("ALLOTMENT_WRONG_FREE", how)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() != ends && log.contains(line), "{how}: {log}");
    }
}

#[test]
fn buddies_merge_with_buddies_only() {
    fn check(case: &'static Case) {
        let mut shadow = Shadow::new(case, &[(16_384, 0)]);
        while shadow.allocate(layout(256)).is_some() {}
        while shadow.allocate(layout(1)).is_some() {}
        // The second and third quarter of a kilobyte are neighbours, but not buddies.
        let kilobyte = (0..shadow.live()).map(|n| shadow.nth(n)).find(|block| block % 1024 == 0).unwrap();
        let quarters = [1, 2, 3, 0].map(|quarter| kilobyte + 256 * quarter);
        for (quarter, largest) in quarters.into_iter().zip([256, 256, 512, 1024]) {
            shadow.free(quarter);
            assert_eq!(shadow.heap.largest_free(), largest);
        }
        shadow.finish();
    }
    check(Case::of::<Buddy>());
}

/// Some placements treat a request of no bytes as one of a single byte; all count its failure as that.
#[test]
fn a_failed_request_of_no_bytes_counts_as_one() {
    fn check<P: Placement>() {
        let heap = Heap::<P, Unsync>::empty();
        assert!(heap.try_allocate(layout(0)).is_err());
        assert_eq!((heap.stats().failed, heap.stats().largest_failed), (1, 1));
    }
    check::<MicroTlsf>();
    check::<Tlsf>();
    check::<Tiered>();
}

/// A heap knows its only region as it was claimed, and addresses below it are as foreign as those above it.
#[test]
fn only_the_region_is_known() {
    fn check<P: Placement>() {
        let mut memory = vec![0_u64; 4096];
        let start = NonNull::from(&mut memory[0]).cast::<u8>();
        let heap = Heap::<P, Unsync>::empty();
        // SAFETY: the memory outlives the heap, and the frees are refused.
        unsafe {
            heap.claim(Region::new(start.add(8192), 16_384)).unwrap();
            let region = heap.region(0).map(|region| (region.start, region.size));
            assert_eq!(
                (region, heap.region(1).is_none()),
                (Some((start.add(8192), 16_384)), true),
                "{}",
                std::any::type_name::<P>()
            );
            let _block = heap.try_allocate(layout(1000)).unwrap();
            for at in [0, 4096, 26_000] {
                assert_eq!(heap.try_deallocate(start.add(at), layout(1000)), Err(FreeError::Foreign), "{at}");
            }
        }
    }
    check::<MicroTlsf>();
    check::<Tlsf>();
    check::<Tiered>();
    check::<harden::Full<Tlsf>>();
}
