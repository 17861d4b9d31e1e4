//! Misuse: what the hardening levels find, and what then happens.

#[cfg(all(feature = "std", target_os = "linux"))]
mod fork;
mod inject;
mod worlds;

use crate::shadow::Backing;
use allotment::harden::Full;
use allotment::lock::Unsync;
use allotment::misuse::{Kind, Misuse, set_hook};
use allotment::observe::NoStatistics;
use allotment::placement::{MicroTlsf, Placement, QuickLists};
use allotment::{BestFit, Buddy, FirstFit, FreeError, Heap, Memory, Slab, Tiered, TinyHeap, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Checks a block of one of these tests, each of which has one thread.
fn check(heap: &impl Memory, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
    // SAFETY: nothing writes to the block meanwhile.
    unsafe { heap.check_owned(block, layout) }
}

std::thread_local! {
    static FOUND: Cell<Option<Misuse>> = const { Cell::new(None) };
}

/// Runs `f` and returns the misuse that a heap reported meanwhile on this thread.
fn reported(f: impl FnOnce()) -> Option<Kind> {
    set_hook(|misuse| FOUND.set(Some(*misuse)));
    FOUND.set(None);
    f();
    FOUND.take().map(|misuse| misuse.kind)
}

/// Makes a heap over `backing`.
fn heap<P: Placement>(backing: &mut Backing) -> Heap<P, Unsync> {
    let heap = Heap::empty();
    // SAFETY: the backing outlives the heap in every test.
    unsafe { heap.claim(backing.region()).unwrap() };
    heap
}

/// What `Full` promises, with any placement behind it.
fn full<P: Placement>() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Full<P, 4>>(&mut backing);
    let allocate = |size| heap.try_allocate(layout(size)).unwrap();
    // SAFETY: invalid frees are refused, which is what is tested; all others are right.
    let free = |block, size| unsafe { heap.try_deallocate(block, layout(size)) };
    let wrong = |error| Err::<(), _>(error);

    // A block between live ones, then when its neighbours are free as well, then when all have left the quarantine.
    let [a, b, c] = [48, 48, 48].map(allocate);
    assert_eq!(free(b, 48), Ok(()));
    assert_eq!(free(b, 48), wrong(FreeError::AlreadyFree));
    assert_eq!((free(a, 48), free(c, 48)), (Ok(()), Ok(())));
    for _ in 0..2 {
        for block in [a, b, c] {
            assert!(matches!(free(block, 48), Err(FreeError::AlreadyFree | FreeError::NotABlock)));
        }
        heap.trim();
    }
    assert_eq!((heap.used(), heap.stats().live_blocks), (0, 0));

    // Addresses that are no block's, and layouts that are another's.
    let block = allocate(100);
    // What an earlier block left here would count as a double free.
    // SAFETY: the block is ours.
    unsafe { block.write_bytes(0, 100) };
    let used = heap.used();
    // SAFETY: inside the block.
    let (inside, odd) = unsafe { (block.add(8), block.add(3)) };
    assert_eq!(free(inside, 100), wrong(FreeError::NotABlock));
    assert_eq!(free(odd, 100), wrong(FreeError::Misaligned));
    assert_eq!(free(NonNull::from(&mut 0u64).cast(), 100), wrong(FreeError::Foreign));
    for size in [0, 1, 92, 96, 99, 101, 104, 108, 5000, 1 << 30] {
        assert_eq!(free(block, size), wrong(FreeError::Overrun), "{size}");
    }
    // SAFETY: refused.
    let aligned = unsafe { heap.try_deallocate(block, Layout::from_size_align(100, 16).unwrap()) };
    assert_eq!((aligned, heap.used()), (wrong(FreeError::Overrun), used));

    // One byte behind the block, and the last bit of the canary.
    for behind in [100, 107] {
        // SAFETY: the canary, which belongs to the heap: the misuse that is tested.
        unsafe {
            let byte = block.as_ptr().add(behind);
            byte.write(byte.read() ^ 1);
            assert_eq!(free(block, 100), wrong(FreeError::Overrun));
            assert!(!heap.try_resize(block, layout(100), 120));
            byte.write(byte.read() ^ 1);
        }
    }
    // SAFETY: the block is live, and grows or shrinks to the sizes that it is freed with.
    unsafe {
        if heap.try_resize(block, layout(100), 333) {
            assert_eq!(free(block, 100), wrong(FreeError::Overrun));
            assert!(heap.try_resize(block, layout(333), 100));
        }
    }
    assert_eq!(free(block, 100), Ok(()));
    // SAFETY: refused, as the block is not live.
    assert!(!unsafe { heap.try_resize(block, layout(100), 50) });

    // The fallible front is not alone: what a global allocator finds goes to the hook.
    // SAFETY: refused.
    let fault = reported(|| unsafe { Memory::deallocate(&heap, block, layout(100)) });
    assert_eq!(fault, Some(Kind::InvalidFree(FreeError::AlreadyFree)));
    heap.trim();
    assert_eq!(heap.largest_free() + 8, heap.free());
}

#[test]
fn full_finds_what_it_promises() {
    full::<Tlsf>();
    full::<Tiered>();
    full::<BestFit>();
    full::<FirstFit>();
    full::<MicroTlsf>();
    full::<QuickLists<Tlsf>>();
    full::<Tiered<Tlsf<u32, 2, 16, false>>>();
    #[cfg(feature = "linked-list")]
    full::<allotment::LinkedList>();
}

/// A canary is a number that programs seldom write, so a string that ends beyond its block is detected.
#[test]
fn common_bytes_behind_a_block_are_noticed() {
    let mut backing = Backing::new(256 * 1024, 0);
    let heap = heap::<Full<Tlsf, 0>>(&mut backing);
    let mut silent = 0;
    for size in 1..=200 {
        for (byte, count) in [(0, 1), (0, 8), (0xff, 1), (1, 1)] {
            let block = heap.try_allocate(layout(size)).unwrap();
            // SAFETY: the bytes behind the block are the canary's: the misuse that is tested.
            silent += usize::from(unsafe {
                block.add(size).write_bytes(byte, count);
                heap.try_deallocate(block, layout(size)).is_ok()
            });
        }
    }
    assert!(silent <= 20, "{silent} of 800; one in 256 is expected");
}

/// What was never a block is none, whatever waits in the quarantine beside it.
#[test]
fn an_address_inside_a_block_was_not_freed() {
    let mut backing = Backing::new(16 * 1024, 0);
    let heap = heap::<Full<Tlsf, 4>>(&mut backing);
    let [freed, live] = [(); 2].map(|()| heap.try_allocate(layout(100)).unwrap());
    // SAFETY: the blocks are live; the double free and the last one are refused, which is what is tested.
    unsafe {
        live.write_bytes(0x5a, 100);
        heap.try_deallocate(freed, layout(100)).unwrap();
        assert_eq!(heap.try_deallocate(freed, layout(100)), Err(FreeError::AlreadyFree));
        assert_eq!(heap.try_deallocate(live.add(16), layout(84)), Err(FreeError::NotABlock));
    }
}

/// The same secret makes the same canaries at the same place, and another secret others.
#[test]
fn canaries_follow_from_the_secret() {
    let mut backing = Backing::new(16 * 1024, 0);
    let mut canaries = |secret| {
        let heap = Heap::<Full<Tlsf, 0>, Unsync>::empty();
        // SAFETY: the heap has no region yet; the backing outlives it; canaries can be read.
        unsafe {
            heap.with_placement(|placement| placement.set_secret(secret));
            heap.claim(backing.region()).unwrap();
            [24, 100, 333].map(|size| {
                let block = heap.try_allocate(layout(size)).unwrap();
                block.add(size).cast::<u64>().read_unaligned()
            })
        }
    };
    for secret in [1, 2, 0x1234_5678_9abc_def1] {
        assert_eq!(canaries(secret), canaries(secret), "{secret:#x}");
    }
    for (other, canary) in canaries(4).into_iter().zip(canaries(0x77)) {
        assert_ne!(other, canary);
    }
}

/// Each address and each size has a canary of its own, whatever the secret.
#[test]
fn canaries_differ() {
    for secret in [1, u64::MAX, 0x1234_5678_9abc_def1] {
        let mut backing = Backing::new(64 * 1024, 0);
        let heap = Heap::<Full<Tlsf, 0>, Unsync>::empty();
        let canary = |size: usize| {
            let block = heap.try_allocate(layout(size)).unwrap();
            // SAFETY: the canary can be read.
            (block, unsafe { block.add(size).cast::<u64>().read_unaligned() })
        };
        // SAFETY: the heap has no region yet; the backing outlives it; the blocks are live.
        unsafe {
            heap.with_placement(|placement| placement.set_secret(secret));
            heap.claim(backing.region()).unwrap();
            let by_address: std::collections::BTreeSet<u64> = (0..200).map(|_| canary(24).1).collect();
            let by_size: std::collections::BTreeSet<u64> = (100..108)
                .chain(1000..1100)
                .map(|size| {
                    let (block, canary) = canary(size);
                    heap.try_deallocate(block, layout(size)).unwrap();
                    canary
                })
                .collect();
            assert_eq!((by_address.len(), by_size.len()), (200, 108), "{secret:#x}");
        }
    }
}

/// Without a secret from the program each heap has its own, even at the same place.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn heaps_have_secrets_of_their_own() {
    let mut backing = Backing::new(16 * 1024, 0);
    let mut canary = || {
        let heap = heap::<Full<Tlsf, 0>>(&mut backing);
        let block = heap.try_allocate(layout(24)).unwrap();
        // SAFETY: the canary can be read.
        unsafe { block.add(24).cast::<u64>().read_unaligned() }
    };
    assert_ne!(canary(), canary());
}

/// Blocks leave the quarantine for a trim, which says whether there were any, and when memory is short.
#[test]
fn the_quarantine_can_be_emptied() {
    let mut backing = Backing::new(16 * 1024, 0);
    let heap = heap::<Full<Tlsf, 4>>(&mut backing);
    let largest = heap.largest_free();
    // SAFETY: blocks are live and freed once; regions and blocks stay as they are.
    unsafe {
        let trim = || heap.with_placement(|placement| placement.trim());
        let free_one = || {
            let block = heap.try_allocate(layout(500)).unwrap();
            heap.try_deallocate(block, layout(500)).unwrap();
            assert!(heap.with_placement(|placement| placement.largest_free()) < largest, "it waits");
        };
        free_one();
        assert!(trim());
        assert!(!trim(), "nothing was left");
        free_one();
        heap.with_placement(|placement| placement.set_saving(true));
        assert_eq!(heap.with_placement(|placement| placement.largest_free()), largest);
    }
}

/// A region may begin where another one ends.
#[test]
fn protected_regions_may_be_neighbours() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut backing = Backing::new(3 * 8192, 0);
        let whole = backing.region();
        let heap = Heap::<Full<Tlsf, 4>, Unsync>::empty();
        // SAFETY: the backing outlives the heap, and the regions are parts of it.
        unsafe {
            let part = |n: usize| allotment::Region::new(whole.start.add(n * 8192), 8192);
            for n in order {
                heap.claim(part(n)).unwrap();
            }
            let refused = heap.claim(allotment::Region::new(whole.start.add(8192 + 8184), 16));
            assert_eq!(refused, Err(allotment::RegionError::Overlap));
            for n in order {
                assert_eq!(heap.release(part(n).start.as_ptr()), Ok(part(n)));
            }
        }
    }
}

/// Where a canary of the wrong layout would lie behind the end of the memory, nothing is read.
#[cfg(target_os = "linux")]
#[test]
fn no_canary_is_looked_for_outside() {
    use std::ffi::c_void;
    const PAGE: usize = 4096;
    unsafe extern "C" {
        fn mmap(
            at: *mut c_void,
            len: usize,
            access: i32,
            flags: i32,
            file: i32,
            offset: isize,
        ) -> *mut c_void;
        fn mprotect(start: *mut c_void, len: usize, access: i32) -> i32;
        fn munmap(start: *mut c_void, len: usize) -> i32;
    }
    const READ_WRITE: i32 = 1 | 2;
    const PRIVATE_ANONYMOUS: i32 = 2 | 0x20;
    // SAFETY: the memory is new, and the heap gets all but the last pages, which cannot be read.
    unsafe {
        let start = mmap(std::ptr::null_mut(), 12 * PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0);
        assert_eq!(mprotect(start.byte_add(4 * PAGE), 8 * PAGE, 0), 0);
        let heap = Heap::<Full<Tlsf, 4>, Unsync>::empty();
        heap.claim(allotment::Region::new(NonNull::new(start).unwrap().cast(), 4 * PAGE)).unwrap();
        let blocks = [(); 9].map(|()| heap.try_allocate(layout(1000)).unwrap());
        for block in blocks {
            let room = start.addr() + 4 * PAGE - block.addr().get();
            for size in [room - 8, room - 4, room, room + 8, room + PAGE, room + 5 * PAGE] {
                assert_eq!(heap.try_deallocate(block, layout(size)), Err(FreeError::Overrun), "{size}");
            }
            assert_eq!(heap.try_deallocate(block, layout(1000)), Ok(()));
        }
        assert_eq!(munmap(start, 12 * PAGE), 0);
    }
}

/// A double free of a block that is still free, between live neighbours, is found in release builds as well.
fn basic<P: Placement>(size: usize) {
    basic_in::<P>(size, 64 * 1024);
}

fn basic_in<P: Placement>(size: usize, bytes: usize) {
    let mut backing = Backing::new(bytes, 0);
    let heap = heap::<P>(&mut backing);
    // SAFETY: the double free is refused, which is what is tested.
    unsafe {
        let mut other = [0x5a_u64; 4];
        let foreign = NonNull::from(&mut other).cast();
        assert_eq!(check(&heap, foreign, layout(size)), Err(FreeError::Foreign));
        // Enough of them that quick lists and pages are in use.
        let blocks: Vec<_> = (0..60).map(|_| heap.alloc(layout(size))).collect();
        for &block in &blocks {
            block.write_bytes(0x5a, size);
        }
        for &block in &blocks[..59] {
            let used = heap.used();
            let check = || check(&heap, NonNull::new(block).unwrap(), layout(size));
            assert_eq!(check(), Ok(()));
            assert_eq!(reported(|| heap.dealloc(block, layout(size))), None);
            let freed = heap.used();
            assert_eq!(check(), Err(FreeError::AlreadyFree));
            assert_eq!(
                reported(|| heap.dealloc(block, layout(size))),
                Some(Kind::InvalidFree(FreeError::AlreadyFree)),
                "{size} bytes"
            );
            assert_eq!(heap.used(), freed);
            // So the neighbours are live for the next one.
            let again = heap.alloc(layout(size));
            again.write_bytes(0xa5, size);
            assert_eq!(heap.used(), used);
        }
    }
}

#[test]
fn basic_finds_double_frees() {
    for size in [8, 16, 24, 48, 100, 256, 300, 1000] {
        basic::<Tiered>(size);
        basic::<MicroTlsf>(size);
        basic::<MicroTlsf<4, true>>(size);
        basic::<MicroTlsf<1, true>>(size);
        basic::<QuickLists<Tlsf>>(size);
        if size > 8 {
            basic::<Tlsf>(size);
            basic::<BestFit>(size);
            basic::<FirstFit>(size);
            basic::<Buddy>(size);
            // So large that not all of it is looked at for a block.
            basic_in::<Buddy>(size, 1 << 20);
            basic::<Slab>(size);
        }
    }
}

/// What is kept beside the memory is exact, and nothing that is written to freed memory changes it.
#[test]
fn first_fit_finds_every_invalid_free() {
    let mut backing = Backing::new(4096, 0);
    let heap = heap::<FirstFit>(&mut backing);
    let mut random = fastrand::Rng::with_seed(11);
    let mut live: Vec<(*mut u8, usize)> = Vec::new();
    // SAFETY: writes to freed blocks and invalid frees are the misuse that is tested.
    unsafe {
        let base = heap.alloc(layout(8));
        live.push((base, 8));
        for round in 0..400 {
            if random.bool() || live.len() < 4 {
                let size = random.usize(1..200);
                let block = heap.alloc(layout(size));
                if !block.is_null() {
                    live.push((block, size));
                }
            } else {
                let (block, size) = live.swap_remove(random.usize(1..live.len()));
                heap.dealloc(block, layout(size));
                block.write_bytes(random.u8(..), size);
            }
            if round % 20 > 0 {
                continue;
            }
            for offset in 0..4096 {
                let address = NonNull::new(base.wrapping_add(offset)).unwrap();
                let block = live.iter().find(|block| block.0 == address.as_ptr());
                for size in (4..204).step_by(8) {
                    let found = check(&heap, address, layout(size));
                    let is_live = block.is_some_and(|block| block.1.div_ceil(8) == size.div_ceil(8));
                    assert_eq!(found.is_ok(), is_live, "{size} bytes at {offset}: {found:?}");
                    if !is_live {
                        assert_eq!(heap.try_deallocate(address, layout(size)), found);
                    }
                }
            }
        }
        live.drain(..).for_each(|(block, size)| heap.dealloc(block, layout(size)));
        assert_eq!((heap.used(), heap.largest_free()), (0, heap.free()));
    }
}

/// A block of a page is found to have another size than a layout says.
#[test]
fn pages_refuse_the_layout_of_another_class() {
    for size in (16..=256).step_by(16) {
        let mut backing = Backing::new(256 * 1024, 0);
        let heap = heap::<Tiered>(&mut backing);
        let blocks: Vec<_> = (0..150).map(|_| heap.try_allocate(layout(size)).unwrap()).collect();
        // The first ones come from no page.
        for &block in &blocks[100..] {
            // SAFETY: the block is ours.
            unsafe { block.write_bytes(0x5a, size) };
            assert_eq!(check(&heap, block, layout(size)), Ok(()));
            for wrong in (8..=256).step_by(8).filter(|&wrong| wrong != size) {
                let in_page = size <= 128;
                let answer = check(&heap, block, layout(wrong));
                assert!(answer.is_err() || !in_page, "{wrong} instead of {size} bytes at {block:?}");
            }
        }
    }
}

/// A free that is refused gives a client of a bound nothing back, though the hook returns.
#[test]
fn bounds_do_not_count_frees_that_are_refused() {
    let mut backing = Backing::new(64 * 1024, 0);
    let client = allotment::Bounded::<_, Unsync>::new(heap::<Slab>(&mut backing), 1000);
    let block = client.try_allocate(layout(64)).unwrap();
    let other = client.try_allocate(layout(64)).unwrap();
    // SAFETY: the double free is refused, which is what is tested.
    unsafe {
        client.deallocate(block, layout(64));
        let fault = reported(|| client.deallocate(block, layout(64)));
        assert_eq!(fault, Some(Kind::InvalidFree(FreeError::AlreadyFree)));
        assert_eq!(client.used(), 64);
        client.deallocate(other, layout(64));
    }
}

/// Buddies know of every granule whether it is free, whatever has merged, in regions of any length.
#[test]
fn buddies_find_every_double_free() {
    for bytes in [64 << 10, 1 << 20, 5 << 20] {
        let mut random = fastrand::Rng::with_seed(11);
        let mut backing = Backing::new(bytes, 0);
        let heap = heap::<Buddy>(&mut backing);
        for round in 0..20 {
            let orders = if round % 2 == 0 { 6 } else { bytes.ilog2() as u8 - 6 };
            let mut live = Vec::new();
            loop {
                let size = 16 << random.u8(0..orders);
                let Ok(block) = heap.try_allocate(layout(size)) else { break };
                // SAFETY: the block is ours.
                unsafe { block.write_bytes(0x5a, size) };
                live.push((block, size));
            }
            random.shuffle(&mut live);
            let freed = live.split_off(random.usize(..live.len()));
            for &(block, size) in &freed {
                assert_eq!(check(&heap, block, layout(size)), Ok(()));
                // SAFETY: the block is live.
                unsafe { heap.try_deallocate(block, layout(size)).unwrap() };
            }
            // They are shuffled.
            for (block, size) in freed.into_iter().take(500) {
                // SAFETY: the double free is refused, which is what is tested.
                let answer = unsafe { heap.try_deallocate(block, layout(size)) };
                assert_eq!(answer, Err(FreeError::AlreadyFree), "{size} bytes");
            }
            for (block, size) in live {
                // SAFETY: the block is live.
                unsafe { heap.try_deallocate(block, layout(size)).unwrap() };
            }
        }
    }
}

/// New memory may look like free blocks. It is not joined with what lies in front of it before it is cut.
#[test]
fn buddies_do_not_read_new_memory() {
    for len in (1..12).map(|order| 1_u32 << order) {
        for offset in [2, 6, 10, 30] {
            let mut memory = vec![[len; 2]; 4096];
            let heap = Heap::<Buddy, Unsync>::empty();
            let part = &mut memory[offset..];
            let (start, bytes) = (NonNull::from(&mut *part).cast::<u8>(), size_of_val(part));
            // SAFETY: the memory outlives the heap, which uses it alone.
            unsafe {
                heap.claim(allotment::Region::new(start, bytes / 2)).unwrap();
                heap.extend(start.as_ptr(), bytes / 2 - 8).unwrap();
            }
            let free: usize = heap.blocks().filter(|run| run.free).map(|run| run.size).sum();
            let marks = heap.stats().capacity - free;
            assert!(marks <= bytes / 62 + 256, "{len} {offset}: {marks}");
            let blocks = std::iter::from_fn(|| heap.try_allocate(layout(16)).ok()).count();
            assert_eq!(blocks * 16, free, "{len} {offset}");
        }
    }
}

/// Buddies know the length of a block in use, but for the shortest one.
#[test]
fn buddies_refuse_layouts_of_another_length() {
    let mut random = fastrand::Rng::with_seed(3);
    for bytes in [64 << 10, 1 << 20] {
        let mut backing = Backing::new(bytes, 0);
        let heap = heap::<Buddy>(&mut backing);
        for round in 0..20 {
            let mut live = Vec::new();
            loop {
                let size = 32 << random.u8(0..if round % 2 == 0 { 6 } else { 11 });
                let Ok(block) = heap.try_allocate(layout(size)) else { break };
                live.push((block, size));
            }
            random.shuffle(&mut live);
            for (block, size) in live.split_off(random.usize(..live.len())) {
                // SAFETY: the block is live.
                unsafe { heap.try_deallocate(block, layout(size)).unwrap() };
            }
            for &(block, size) in live.iter().take(50) {
                for other in (5..18).map(|order| 1 << order) {
                    let answer = check(&heap, block, layout(other));
                    if other == size {
                        assert_eq!(answer, Ok(()), "{size}");
                    } else {
                        let refused = [Err(FreeError::NotABlock), Err(FreeError::Foreign)].contains(&answer);
                        assert!(refused, "{other} instead of {size}: {answer:?}");
                    }
                    // No block begins inside this one, but at its half that cannot be told of the shortest.
                    for inside in (other..size).step_by(other) {
                        let at = block.map_addr(|address| address.checked_add(inside).unwrap());
                        assert_eq!(check(&heap, at, layout(other)), Err(FreeError::NotABlock));
                    }
                }
            }
            for (block, size) in live {
                // SAFETY: the block is live.
                unsafe {
                    let half = heap.realloc(block.as_ptr(), layout(size), size / 2);
                    assert!(check(&heap, block, layout(size)).is_err());
                    heap.try_deallocate(NonNull::new(half).unwrap(), layout(size / 2)).unwrap();
                }
            }
        }
    }
}

/// The length of a free block that was overwritten leads to no endless search.
#[test]
fn buddies_with_a_length_of_zero_are_looked_at_once() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Buddy>(&mut backing);
    let blocks = [(); 8].map(|()| heap.try_allocate(layout(64)).unwrap());
    // SAFETY: blocks are live when they are freed; the write to the free ones is the misuse that is tested.
    unsafe {
        blocks.iter().for_each(|&block| heap.try_deallocate(block, layout(64)).unwrap());
        let start = backing.region().start.cast::<u32>();
        start.write(0);
    }
    assert!(heap.largest_free() <= 64 * 1024);
}

/// A check finds a block that has merged with a neighbour on one side only, where one of its ends shows nothing any more.
#[test]
fn a_check_finds_a_block_that_merged_on_one_side() {
    for first in [1, 3] {
        let mut backing = Backing::new(64 * 1024, 0);
        let heap = heap::<Tlsf>(&mut backing);
        let blocks = [(); 5].map(|()| heap.try_allocate(layout(64)).unwrap());
        // SAFETY: the blocks are live.
        unsafe {
            blocks.iter().for_each(|block| block.write_bytes(0x5a, 64));
            heap.try_deallocate(blocks[first], layout(64)).unwrap();
            heap.try_deallocate(blocks[2], layout(64)).unwrap();
        }
        assert_eq!(check(&heap, blocks[2], layout(64)), Err(FreeError::AlreadyFree));
        assert_eq!(check(&heap, blocks[4 - first], layout(64)), Ok(()));
    }
}

/// A value that one thread uses, so that its lock may be any: without features the default is none.
struct OneThread<T>(T);

// SAFETY: each is a static within one function, which one thread runs.
unsafe impl<T> Sync for OneThread<T> {}

impl<T> core::ops::Deref for OneThread<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// What the checks of the smallest heap find, in release builds as well.
#[test]
fn tiny_heaps_find_invalid_frees() {
    static HEAP: OneThread<TinyHeap<4096, allotment::lock::Default, NoStatistics, true>> =
        OneThread(TinyHeap::new());
    // SAFETY: invalid frees are refused, which is what is tested; all others are right.
    unsafe {
        let blocks: Vec<_> = (0..5).map(|_| HEAP.alloc(layout(40))).collect();
        blocks.iter().for_each(|block| block.write_bytes(0x5a, 40));
        let wrong = |error| Some(Kind::InvalidFree(error));
        let mut other = [0x5a_u8; 64];
        let place = other.as_mut_ptr();
        let place = place.add(place.align_offset(8));
        assert_eq!(reported(|| HEAP.dealloc(place, layout(40))), wrong(FreeError::Foreign));
        assert_eq!(reported(|| HEAP.dealloc(blocks[1].add(4), layout(32))), wrong(FreeError::Misaligned));
        assert_eq!(reported(|| HEAP.dealloc(blocks[1], layout(8000))), wrong(FreeError::Foreign));
        for &block in &blocks[..4] {
            assert_eq!(reported(|| HEAP.dealloc(block, layout(40))), None);
            assert_eq!(reported(|| HEAP.dealloc(block, layout(40))), wrong(FreeError::AlreadyFree));
            assert_eq!(HEAP.alloc(layout(40)), block);
            block.write_bytes(0x5a, 40);
        }
        blocks.iter().for_each(|&block| HEAP.dealloc(block, layout(40)));
    }
    assert_eq!(HEAP.largest_free(), TinyHeap::<4096>::CAPACITY);
}

/// What a child process does. Each ends it with a line on standard error.
const FATAL: &[(&str, fn(), &str)] = &[
    (
        "a write to a freed block",
        write_after_free,
        "allotment: a block was written to after it was freed, address 0x",
    ),
    (
        "a write to the end of a long freed block",
        write_far_after_free,
        "allotment: a block was written to after it was freed, address 0x",
    ),
    ("links that do not point back", overwrite_links, DAMAGED),
    ("a trie with a circle, request", make_circle::<BestFit, false>, DAMAGED),
    ("a trie with a circle, free", make_circle::<BestFit, true>, DAMAGED),
    ("a link to a live block, short links", overwrite_short_links::<0>, DAMAGED),
    ("a link back to a live block, short links", overwrite_short_links::<1>, DAMAGED),
    ("a link, below quick lists", overwrite_encoded::<Tiered, 1, 40_000, true>, DAMAGED),
    ("a link back to a live block, best fit", overwrite_encoded::<BestFit, 2, 64, false>, DAMAGED),
    ("the length of a free block, best fit", lengthen::<BestFit>, DAMAGED),
    #[cfg(all(feature = "std", feature = "lock_api"))]
    (
        "a mutex that allocates while it waits",
        wait_and_allocate,
        "allotment: the mutex of a heap allocates from this heap while it waits",
    ),
    ("a hook that panics", panic_in_a_hook, PANICKED),
    ("a hook on transitions that panics", panic_in_a_transition, PANICKED),
    ("a hook on failures that panics", panic_in_a_lament, PANICKED),
    ("a clock that panics", panic_in_a_clock, PANICKED),
    ("a rule that panics", panic_in_a_rule, PANICKED),
    ("a question about interrupts that panics", panic_about_interrupts, PANICKED),
    ("zeros over a block of a quick list", overwrite_a_quick_list, DAMAGED),
    (
        "a second free, global allocator",
        free_twice,
        "allotment: invalid free: the block is free already, address 0x",
    ),
    #[cfg(feature = "std")]
    (
        "a second free, behind caches",
        free_twice_cached,
        "allotment: invalid free: the block is free already, address 0x",
    ),
    #[cfg(feature = "std")]
    ("the link of a cached block", damage_cached, DAMAGED),
    #[cfg(all(feature = "std", any(unix, windows)))]
    ("the link of a free block, growing heap", damage_growing, DAMAGED),
    #[cfg(all(feature = "std", any(unix, windows)))]
    ("the mark of a free block, growing heap", damage_growing_mark, DAMAGED),
    #[cfg(feature = "std")]
    (
        "a reallocation of a free block, behind caches",
        resize_free_cached,
        "allotment: invalid free: the block is free already, address 0x",
    ),
];

/// The end of a block that is too long to be filled as a whole.
fn write_far_after_free() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Full<Tlsf, 1>>(&mut backing);
    // SAFETY: one write too many is the misuse that is tested.
    unsafe {
        let block = heap.alloc(layout(2000));
        heap.dealloc(block, layout(2000));
        block.add(1992).write(1);
        heap.dealloc(heap.alloc(layout(48)), layout(48));
    }
}

#[test]
fn the_canary_of_an_earlier_block_vouches_for_nothing() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Full<FirstFit, 0>>(&mut backing);
    let old = heap.try_allocate(layout(1000)).unwrap();
    // SAFETY: the first block is live and the last free is right; the one in between is refused.
    unsafe {
        heap.try_deallocate(old, layout(1000)).unwrap();
        let new = heap.try_allocate(layout(2000)).unwrap();
        assert_eq!(new, old);
        assert_eq!(heap.try_deallocate(new, layout(1000)), Err(FreeError::Overrun));
        heap.try_deallocate(new, layout(2000)).unwrap();
    }
}

fn write_after_free() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Full<Tiered>>(&mut backing);
    // SAFETY: one write too many is the misuse that is tested.
    unsafe {
        let block = heap.alloc(layout(48));
        heap.dealloc(block, layout(48));
        block.add(40).write(1);
        for _ in 0..16 {
            heap.dealloc(heap.alloc(layout(48)), layout(48));
        }
    }
}

fn overwrite_a_quick_list() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Tiered>(&mut backing);
    // SAFETY: a write to a freed block is the misuse that is tested.
    unsafe {
        let blocks = [48, 48, 48].map(|size| heap.alloc(layout(size)));
        blocks.iter().for_each(|&block| heap.dealloc(block, layout(48)));
        blocks[2].write_bytes(0, 48);
        heap.alloc(layout(48));
        heap.alloc(layout(48));
    }
}

fn overwrite_links() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Tlsf>(&mut backing);
    // SAFETY: a write to a freed block is the misuse that is tested.
    unsafe {
        let blocks: Vec<_> = (0..9).map(|_| heap.alloc(layout(64))).collect();
        for at in [1, 3, 5] {
            heap.dealloc(blocks[at], layout(64));
        }
        // The second link of the block in the middle of the list, which leads to the one freed after it.
        blocks[3].cast::<u32>().add(2).write(blocks[3].cast::<u32>().add(2).read() + 2);
        heap.dealloc(blocks[4], layout(64));
        heap.dealloc(blocks[2], layout(64));
    }
}

const DAMAGED: &str = "allotment: a list of free blocks is damaged";

const PANICKED: &str = "a hook panicked inside an allocator, which must not unwind";

/// Writes what a free block has in a word, a link or its length, to the same place of another one: at level `Full` that leads nowhere.
fn overwrite_encoded<P: Placement, const WORD: usize, const SIZE: usize, const REQUEST: bool>() {
    let mut backing = Backing::new(512 * 1024, 0);
    let heap = heap::<Full<P, 0>>(&mut backing);
    // SAFETY: a write to a freed block is the misuse that is tested.
    unsafe {
        let blocks: Vec<_> = (0..9).map(|_| heap.alloc(layout(SIZE))).collect();
        blocks.iter().for_each(|block| block.write_bytes(0x11, SIZE));
        [1, 3, 5].iter().for_each(|&at: &usize| heap.dealloc(blocks[at], layout(SIZE)));
        let word = |at: usize| blocks[at].cast::<u32>().add(WORD);
        // The length of the first block of its list, or a link of the second.
        let (spoilt, other) = (word(if WORD == 0 { 5 } else { 3 }), word(if WORD == 1 { 5 } else { 1 }));
        let value = if WORD == 0 { other.read() + 2 } else { other.read() };
        assert_ne!(value, spoilt.read());
        spoilt.write(value);
        if REQUEST {
            for _ in 0..3 {
                heap.alloc(layout(SIZE)).write_bytes(0x22, SIZE);
            }
        } else {
            heap.dealloc(blocks[2], layout(SIZE));
        }
    }
}

/// Makes a free block reach into the live one behind it, and asks for such a block.
fn lengthen<P: Placement>() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<Full<P, 0>>(&mut backing);
    // SAFETY: a write to a freed block is the misuse that is tested.
    unsafe {
        let blocks = [(); 3].map(|()| heap.alloc(layout(64)));
        heap.dealloc(blocks[1], layout(64));
        let len = blocks[1].cast::<u32>();
        len.write(len.read() + 2);
        heap.alloc(layout(64));
    }
}

/// Makes the ways down in a trie of free blocks lead to a node that is its own child.
fn make_circle<P: Placement, const FREES: bool>() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<P>(&mut backing);
    let layouts = (128..144).map(|granules| layout(8 * granules));
    // SAFETY: writes to freed blocks are the misuse that is tested.
    unsafe {
        let blocks: Vec<_> = layouts.clone().map(|layout| (heap.alloc(layout), layout)).collect();
        let freed: Vec<_> = blocks.iter().step_by(2).collect();
        freed.iter().for_each(|&&(block, layout)| heap.dealloc(block, layout));
        let children = |block: *mut u8| [4, 5].map(|word| block.cast::<u32>().add(word));
        let links = || freed.iter().flat_map(|freed| children(freed.0));
        let to = links().map(|link| link.read()).max().unwrap();
        assert_ne!(to, 0);
        links().for_each(|link| link.write(to));
        if FREES {
            blocks.iter().skip(1).step_by(2).for_each(|&(block, layout)| heap.dealloc(block, layout));
        } else {
            layouts.for_each(|layout| _ = heap.alloc(layout));
        }
    }
}

/// Makes one link of a free block lead to a live one.
fn overwrite_short_links<const WORD: usize>() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = heap::<MicroTlsf<4, true>>(&mut backing);
    // SAFETY: a write to a freed block is the misuse that is tested.
    unsafe {
        let blocks: Vec<_> = (0..9).map(|_| heap.alloc(layout(64))).collect();
        blocks.iter().for_each(|block| block.write_bytes(0x11, 64));
        [1, 3, 5].iter().for_each(|&at: &usize| heap.dealloc(blocks[at], layout(64)));
        let link = blocks[3].cast::<u16>().add(WORD);
        link.write(link.read() + 8);
        heap.dealloc(blocks[2], layout(64));
    }
}

#[cfg(all(feature = "std", feature = "lock_api"))]
fn wait_and_allocate() {
    use parking_lot::lock_api::{GuardSend, RawMutex};
    struct Allocating;
    // SAFETY: the one thread never gets it.
    unsafe impl RawMutex for Allocating {
        const INIT: Self = Self;
        type GuardMarker = GuardSend;

        fn lock(&self) {
            // SAFETY: the layout has a size.
            unsafe { HEAP.alloc(layout(48)) };
        }

        fn try_lock(&self) -> bool {
            false
        }

        unsafe fn unlock(&self) {}
    }
    static HEAP: Heap<Tlsf, allotment::lock::Raw<Allocating>> = allotment::heap!(16 * 1024);
    // SAFETY: the layout has a size.
    unsafe { HEAP.alloc(layout(48)) };
}

/// What a case prints that was not ended.
const WENT_ON: &str = "the program went on";

fn panic_in_a_hook() {
    use allotment::pressure::{PressureHeap, Shortage};
    static HEAP: OneThread<PressureHeap> = OneThread(PressureHeap::new(allotment::heap!(16 * 1024)));
    let hook: &'static (dyn Fn(&Shortage) -> usize + Sync) = &|_| panic!("inside the hook");
    HEAP.register(0, Box::leak(Box::new(hook))).unwrap();
    // SAFETY: the layout has a size.
    let unwound = std::panic::catch_unwind(|| unsafe { HEAP.alloc(layout(100_000)) }.is_null());
    eprintln!("{WENT_ON}: {unwound:?}");
}

/// A collection would go on with the block that was freed.
fn panic_in_a_transition() {
    use allotment::pressure::{PressureHeap, Transition, Watermarks};
    static HEAP: OneThread<PressureHeap> = OneThread(
        PressureHeap::new(allotment::heap!(16 * 1024))
            .watermarks(Watermarks::percent(50, 10))
            .on_transition(&hook),
    );
    fn hook(_: Transition) {
        panic!("inside the hook");
    }
    let block = Memory::allocate(&*HEAP, layout(48)).unwrap();
    // It moves, and there is less than half left; the old block is free by then.
    // SAFETY: the block is live and has this layout.
    let unwound = std::panic::catch_unwind(|| unsafe {
        Memory::change(&*HEAP, block, layout(48), layout(10_000), &mut |_| ())
    });
    eprintln!("{WENT_ON}: {unwound:?}");
}

fn panic_in_a_lament() {
    use allotment::pressure::PressureHeap;
    static HEAP: OneThread<PressureHeap> = OneThread(
        PressureHeap::new(allotment::heap!(16 * 1024)).on_out_of_memory(&|_| panic!("inside the hook")),
    );
    let unwound = std::panic::catch_unwind(|| Memory::allocate(&*HEAP, layout(100_000)));
    eprintln!("{WENT_ON}: {unwound:?}");
}

fn panic_in_a_clock() {
    fn clock() -> u64 {
        panic!("inside the clock")
    }
    static HEAP: OneThread<allotment::Timed<Heap>> =
        OneThread(allotment::Timed::new(allotment::heap!(16 * 1024), clock));
    let unwound = std::panic::catch_unwind(|| Memory::allocate(&*HEAP, layout(48)));
    eprintln!("{WENT_ON}: {unwound:?}");
}

fn panic_in_a_rule() {
    type Rule = fn(usize, Layout, Option<&'static str>) -> bool;
    static HEAP: OneThread<allotment::inject::Failing<Heap, Rule>> =
        OneThread(allotment::inject::Failing::new(allotment::heap!(16 * 1024), |_, _, _| {
            panic!("inside the rule")
        }));
    let unwound = std::panic::catch_unwind(|| Memory::allocate(&*HEAP, layout(48)));
    eprintln!("{WENT_ON}: {unwound:?}");
}

fn panic_about_interrupts() {
    enum Handlers {}
    impl allotment::seal::Interrupts for Handlers {
        fn running() -> bool {
            panic!("inside the question")
        }
    }
    static HEAP: OneThread<allotment::Sealable<Heap, Handlers>> =
        OneThread(allotment::Sealable::new(allotment::heap!(16 * 1024)));
    let unwound = std::panic::catch_unwind(|| Memory::allocate(&*HEAP, layout(48)));
    eprintln!("{WENT_ON}: {unwound:?}");
}

fn free_twice() {
    static HEAP: OneThread<Heap<Full<Tiered>>> = OneThread(allotment::heap!(64 * 1024));
    // SAFETY: a double free is the misuse that is tested.
    unsafe {
        let block = HEAP.alloc(layout(48));
        HEAP.dealloc(block, layout(48));
        HEAP.dealloc(block, layout(48));
    }
}

#[cfg(feature = "std")]
fn cached() -> allotment::os::Cached {
    static HEAP: Heap = allotment::heap!(256 * 1024);
    static DEPOT: allotment::os::Depot = allotment::os::Depot::new(&HEAP, 64 * 1024);
    allotment::os::Cached::new(&DEPOT)
}

#[cfg(feature = "std")]
fn free_twice_cached() {
    let heap = cached();
    // SAFETY: a double free is the misuse that is tested.
    unsafe {
        let block = heap.alloc(layout(48));
        heap.dealloc(block, layout(48));
        heap.dealloc(block, layout(48));
    }
}

/// Writes to a word of a block after it was freed, and allocates it again.
#[cfg(feature = "std")]
fn damage_word(heap: &impl GlobalAlloc, word: usize) {
    // SAFETY: the write to a free block is the misuse that is tested.
    unsafe {
        let blocks = [(); 2].map(|()| heap.alloc(layout(48)));
        blocks.iter().for_each(|&block| heap.dealloc(block, layout(48)));
        // The address of a block, as a link would be.
        blocks[1].cast::<*mut u8>().add(word).write(blocks[1].wrapping_add(64));
        heap.alloc(layout(48));
    }
}

#[cfg(feature = "std")]
fn damage_cached() {
    damage_word(&cached(), 0);
}

#[cfg(all(feature = "std", any(unix, windows)))]
fn damage_growing() {
    damage_word(&allotment::os::Growing::new(), 0);
}

#[cfg(all(feature = "std", any(unix, windows)))]
fn damage_growing_mark() {
    damage_word(&allotment::os::Growing::new(), 1);
}

#[cfg(feature = "std")]
fn resize_free_cached() {
    let heap = cached();
    // SAFETY: the use of a free block is the misuse that is tested.
    unsafe {
        let block = heap.alloc(layout(48));
        heap.dealloc(block, layout(48));
        heap.realloc(block, layout(48), 100);
    }
}

#[test]
fn what_cannot_go_on_ends_the_program() {
    const VARIABLE: &str = "ALLOTMENT_MISUSE";
    if let Some(name) = std::env::var_os(VARIABLE) {
        FATAL.iter().find(|case| case.0 == name).unwrap().1();
        eprintln!("{WENT_ON}");
        return;
    }
    for (name, _, line) in FATAL {
        let child = crate::again::again()
            .args(["--exact", "misuse::what_cannot_go_on_ends_the_program", "--nocapture"])
            .env(VARIABLE, name)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&child.stderr);
        assert!(!child.status.success() && log.contains(line) && !log.contains(WENT_ON), "{name}: {log}");
    }
}

/// Addresses that are in no region, or inside a granule, are reported by every placement with boundary bits, in release builds as well.
fn outside<P: Placement>() {
    let mut memory = [Backing::new(16 * 1024, 0), Backing::new(16 * 1024, 0)];
    let other = [0x5a_u64; 32];
    let heap = Heap::<P, Unsync>::empty();
    for backing in &mut memory {
        // SAFETY: the memory outlives the heap.
        unsafe { heap.claim(backing.region()).unwrap() };
        let blocks = [(); 3].map(|()| heap.try_allocate(layout(600)).unwrap());
        // SAFETY: invalid frees are refused, which is what is tested.
        unsafe {
            let place = (&raw const other[8]).cast_mut().cast();
            let wrong = |error| Some(Kind::InvalidFree(error));
            assert_eq!(reported(|| heap.dealloc(place, layout(48))), wrong(FreeError::Foreign));
            let odd = blocks[1].as_ptr().add(4);
            assert_eq!(reported(|| heap.dealloc(odd, layout(600))), wrong(FreeError::Misaligned));
            let moved = reported(|| assert!(!heap.realloc(place, layout(48), 80).is_null()));
            assert_eq!(moved, wrong(FreeError::Foreign));
            blocks.iter().for_each(|block| heap.dealloc(block.as_ptr(), layout(600)));
        }
    }
}

#[test]
fn basic_finds_addresses_outside() {
    outside::<Tlsf>();
    outside::<BestFit>();
    outside::<FirstFit>();
}
