//! Blocks that `Tiered` and `QuickLists` keep for reuse: when they keep them, that they come back, and the pages behind.

use crate::shadow::{Backing, Case};
use allotment::lock::Unsync;
use allotment::placement::{Placement, QuickLists};
use allotment::region::Run;
use allotment::{Buddy, FreeError, Heap, Memory, Region, RegionError, Tiered, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

type Pages = Heap<Tiered<Tlsf<u32, 1, 16>>, Unsync>;

const SIZE: usize = 1 << 20;

/// Makes a heap over its own memory.
fn heap() -> (Box<Pages>, Vec<u64>) {
    let mut memory = vec![0; SIZE / 8];
    let heap = Box::new(Pages::empty());
    // SAFETY: the memory outlives the heap, which the test drops first.
    unsafe { heap.claim(Region::new(NonNull::new(memory.as_mut_ptr()).unwrap().cast(), SIZE)) }.unwrap();
    (heap, memory)
}

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Frees a block that was allocated with `bytes(size)`.
fn free(heap: &Pages, block: NonNull<u8>, size: usize) {
    // SAFETY: the caller passes live blocks.
    unsafe { heap.dealloc(block.as_ptr(), bytes(size)) }
}

#[test]
fn freed_blocks_are_kept_and_come_back() {
    let (heap, _memory) = heap();
    let before = heap.largest_free();
    let blocks = [1000, 1000, 1000, 2000, 5000].map(|size| (heap.try_allocate(bytes(size)).unwrap(), size));
    for (block, size) in blocks {
        free(&heap, block, size);
    }
    assert_eq!(heap.used(), 0);
    // The block of a size that was freed last is used first.
    assert_eq!(heap.try_allocate(bytes(1000)), Ok(blocks[2].0));
    assert_eq!(heap.try_allocate(bytes(2000)), Ok(blocks[3].0));
    free(&heap, blocks[2].0, 1000);
    free(&heap, blocks[3].0, 2000);
    // A request that would fail otherwise gets all of them.
    let all = heap.try_allocate(bytes(before)).unwrap();
    free(&heap, all, before);
    assert!(!heap.trim());
    assert_eq!(heap.largest_free(), before);
}

/// Only a layout of no bytes can have the largest alignment. No block has it, whatever comes from pages.
#[test]
fn no_block_has_the_largest_alignment() {
    fn check<P: Placement>() {
        let mut backing = Backing::new(SIZE, 0);
        let heap = Heap::<P, Unsync>::empty();
        // SAFETY: the memory outlives the heap.
        unsafe { heap.claim(backing.region()) }.unwrap();
        let layout = Layout::from_size_align(0, 1 << (usize::BITS - 1)).unwrap();
        for _ in 0..40 {
            let block = heap.try_allocate(bytes(8)).unwrap();
            // SAFETY: no other thread has the block.
            let check = |layout| unsafe { heap.check_owned(block, layout) };
            assert_eq!((check(bytes(8)), check(layout)), (Ok(()), Err(FreeError::NotABlock)));
            assert!(heap.try_allocate(layout).is_err());
        }
    }
    check::<Tiered>();
    check::<QuickLists<Tlsf>>();
}

#[test]
fn no_more_is_kept_than_there_is_room_for() {
    let (heap, _memory) = heap();
    let keeps = |size: usize| {
        heap.trim();
        let block = heap.try_allocate(bytes(size)).unwrap();
        free(&heap, block, size);
        heap.trim()
    };
    assert!(keeps(300));
    assert!(keeps(SIZE / 48 - 1024));
    assert!(!keeps(SIZE / 48 + 8), "more than its share");
    // Nothing is kept while memory is short.
    let most = heap.try_allocate(bytes(SIZE / 16 * 13)).unwrap();
    assert!(!keeps(1000));
    free(&heap, most, SIZE / 16 * 13);
    assert!(keeps(1000));
}

#[test]
fn nothing_is_kept_where_that_is_no_use() {
    let (heap, _memory) = heap();
    let kept = |size: usize| {
        let block = heap.try_allocate(bytes(size)).unwrap();
        free(&heap, block, size);
        heap.trim()
    };
    // No two consecutive requests have the same size.
    let rounds: Vec<_> = (0..2000).map(|round| kept(1000 + 8 * (round % 200))).collect();
    assert!(rounds[..255].iter().all(|&kept| kept));
    assert!(rounds[256..512].iter().all(|&kept| !kept), "it rests after a while");
    assert!(rounds[512..].iter().any(|&kept| kept), "and tries again");
    let count = rounds.iter().filter(|&&kept| kept).count();
    assert!(count < 1000, "{count} of 2000 are kept all the same");
}

#[test]
fn a_double_free_of_a_kept_block_is_found() {
    let (heap, _memory) = heap();
    let block = heap.try_allocate(bytes(1000)).unwrap();
    free(&heap, block, 1000);
    // SAFETY: the check does not pass.
    assert_eq!(unsafe { heap.try_deallocate(block, bytes(1000)) }, Err(FreeError::AlreadyFree));
    assert_eq!(heap.try_allocate(bytes(1000)), Ok(block));
    // Objects of pages that are freed with another size.
    let objects: Vec<_> = (0..64).map(|_| heap.try_allocate(bytes(48)).unwrap()).collect();
    let last = *objects.last().unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(100)) }, Err(FreeError::NotABlock));
    // SAFETY: this one passes the check, and the block is live.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(48)) }, Ok(()));
    // SAFETY: as above.
    assert_eq!(unsafe { heap.try_deallocate(last, bytes(48)) }, Err(FreeError::AlreadyFree));
    // Wherever it stands in its page, and in the list of free objects. One that is live keeps the page.
    let (_live, freed) = objects[..63].split_first().unwrap();
    freed.iter().for_each(|&object| free(&heap, object, 48));
    for &object in freed {
        // SAFETY: as above.
        assert_eq!(unsafe { heap.try_deallocate(object, bytes(48)) }, Err(FreeError::AlreadyFree));
    }
}

/// Behind more blocks of a list than a check looks at where nothing is suspicious. Links of 32 bits have no mark that is.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_double_free_is_found_far_down_in_a_list() {
    let (heap, _memory) = heap();
    let blocks: Vec<_> = (0..1000).map(|_| heap.try_allocate(bytes(48)).unwrap()).collect();
    blocks.iter().for_each(|&block| free(&heap, block, 48));
    for &block in &blocks {
        // SAFETY: the check does not pass.
        assert_eq!(unsafe { heap.try_deallocate(block, bytes(48)) }, Err(FreeError::AlreadyFree));
    }
}

/// With a page's first object, all its others are ready for the next requests, unless memory is short.
#[test]
fn a_whole_page_is_taken_at_once() {
    let kept_after = |lent: usize| {
        let (heap, _memory) = heap();
        let most = heap.try_allocate(bytes(lent)).unwrap();
        let blocks: Vec<_> = (0..25).map(|_| heap.try_allocate(bytes(64)).unwrap()).collect();
        let next = heap.try_allocate(bytes(64)).unwrap();
        // The last two are the first two objects of a page.
        assert_eq!(next.addr().get() - blocks[24].addr().get(), 64);
        assert_eq!(heap.used(), lent + 26 * 64);
        let kept = heap.trim();
        for block in blocks {
            free(&heap, block, 64);
        }
        free(&heap, next, 64);
        free(&heap, most, lent);
        heap.trim();
        assert_eq!((heap.used(), heap.stats().live_blocks), (0, 0));
        kept
    };
    assert!(kept_after(1000));
    assert!(!kept_after(SIZE / 8 * 7));
}

#[test]
fn no_more_than_an_eighth_is_kept_in_small_blocks() {
    let mut backing = Backing::new(SIZE, 0);
    let heap = Heap::<QuickLists<Tlsf>, Unsync>::empty();
    // SAFETY: the backing outlives the heap.
    unsafe { heap.claim(backing.region()) }.unwrap();
    let before = heap.largest_free();
    let blocks: Vec<_> = (0..SIZE / 2 / 200).map(|_| heap.try_allocate(bytes(200)).unwrap()).collect();
    for block in blocks {
        // SAFETY: the block is live and has this layout.
        unsafe { heap.dealloc(block.as_ptr(), bytes(200)) };
    }
    // Kept blocks are in use for the placement beneath.
    let mut beneath = 0;
    let mut add = |run: Run| {
        beneath += if run.free { run.size } else { 0 };
        true
    };
    // SAFETY: nothing is changed.
    unsafe { heap.with_placement(|placement| Placement::walk(placement, 0, &mut add)) };
    assert!((SIZE / 16..=SIZE / 8).contains(&(before - beneath)), "{} bytes are kept", before - beneath);
    // One request that needs it all has it all.
    let all = heap.try_allocate(bytes(before)).unwrap();
    // SAFETY: as above.
    unsafe { heap.dealloc(all.as_ptr(), bytes(before)) };
    assert!(!heap.trim(), "nothing was kept any more");
    assert_eq!(heap.largest_free(), before);
}

#[test]
fn kept_blocks_may_be_aligned() {
    let (heap, _memory) = heap();
    let at = |size, align| Layout::from_size_align(size, align).unwrap();
    for size in [40, 1000] {
        let aligned = heap.try_allocate(at(size, 64)).unwrap();
        // SAFETY: the blocks are live and have these layouts.
        unsafe {
            heap.dealloc(aligned.as_ptr(), at(size, 64));
            assert_eq!(heap.try_allocate(at(size, 64)), Ok(aligned));
            heap.dealloc(aligned.as_ptr(), at(size, 64));
            // The same memory does for less alignment, and is freed as what it is then.
            assert_eq!(heap.try_allocate(at(size, 8)), Ok(aligned));
            heap.dealloc(aligned.as_ptr(), at(size, 8));
            assert_eq!(heap.try_allocate(at(size, 64)), Ok(aligned));
            heap.dealloc(aligned.as_ptr(), at(size, 64));
        }
    }
    // Behind a block that does not suit.
    let aligned = heap.try_allocate(at(40, 64)).unwrap();
    let others: Vec<_> = (0..3).map(|_| heap.try_allocate(bytes(40)).unwrap()).collect();
    let other = *others.iter().find(|block| block.addr().get() % 64 != 0).unwrap();
    // SAFETY: as above.
    unsafe {
        heap.dealloc(aligned.as_ptr(), at(40, 64));
        heap.dealloc(other.as_ptr(), bytes(40));
        assert_eq!(heap.try_allocate(at(40, 64)), Ok(aligned));
    }
    assert_eq!(heap.try_allocate(bytes(40)), Ok(other));
}

#[test]
fn regions_are_released_with_blocks_kept() {
    fn check(case: &Case) {
        let [mut one, mut two] = [(); 2].map(|()| Backing::new(64 * 1024, 0));
        let heap = (case.empty)(200_000);
        // SAFETY: the backings outlive the heap, blocks are freed with their layouts.
        unsafe {
            heap.claim(one.region()).unwrap();
            heap.claim(two.region()).unwrap();
            let blocks: Vec<_> = (0..1500).map(|n| heap.try_allocate(bytes(40 + n % 40)).unwrap()).collect();
            for (n, block) in blocks.into_iter().enumerate() {
                heap.dealloc(block.as_ptr(), bytes(40 + n % 40));
            }
        }
        assert_eq!(heap.release(one.region().start.as_ptr()), Ok(one.region()));
        assert_eq!(heap.release(two.region().start.as_ptr()), Ok(two.region()));
    }
    check(Case::of::<Tiered>());
    check(Case::of::<QuickLists<Tlsf>>());
}

/// Two regions that share a frame of 4 KiB: a page of one is not lost with the other.
#[test]
fn pages_stay_when_a_neighbouring_region_goes() {
    let mut backing = Backing::new(84 * 1024, 0);
    let whole = backing.region();
    let first = Region::new(whole.start, 66 * 1024);
    // SAFETY: the second region starts inside the backing.
    let second = Region::new(unsafe { whole.start.add(66 * 1024) }, 18 * 1024);
    let heap = Heap::<Tiered, Unsync>::empty();
    // SAFETY: the backing outlives the heap; blocks are written and freed as their layouts say.
    unsafe {
        // The one that goes is looked at first, and the frame's first half is not its own.
        heap.claim(second).unwrap();
        heap.claim(first).unwrap();
        let mut blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(bytes(48)).ok()).collect();
        blocks.retain(|block| {
            let inside = block.addr() >= second.start.addr();
            if inside {
                heap.dealloc(block.as_ptr(), bytes(48));
            }
            !inside
        });
        for (n, block) in blocks.iter().enumerate() {
            block.write_bytes(n as u8, 48);
        }
        assert_eq!(heap.release(second.start.as_ptr()), Ok(second));
        // Every other one is replaced.
        for n in (0..blocks.len()).step_by(2) {
            heap.dealloc(blocks[n].as_ptr(), bytes(48));
        }
        heap.trim();
        for n in (0..blocks.len()).step_by(2) {
            blocks[n] = heap.try_allocate(bytes(48)).unwrap();
            blocks[n].write_bytes(n as u8, 48);
        }
        for (n, block) in blocks.iter().enumerate() {
            assert!((0..48).all(|byte| block.add(byte).read() == n as u8), "block {n} was changed");
            heap.dealloc(block.as_ptr(), bytes(48));
        }
        assert_eq!(heap.release(first.start.as_ptr()), Ok(first));
    }
}

/// A region that was released may come again, shorter or longer, and nothing is known of its earlier pages.
#[test]
fn a_region_may_come_again_with_another_length() {
    let mut backing = Backing::new(64 * 1024, 0);
    let heap = Heap::<Tiered, Unsync>::empty();
    for kib in (17..64).chain((17..64).rev()) {
        let region = Region { size: kib * 1024, ..backing.region() };
        // SAFETY: the backing outlives the heap; blocks are written and freed as their layouts say.
        unsafe {
            heap.claim(region).unwrap();
            let blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(bytes(48)).ok()).collect();
            blocks.iter().for_each(|block| block.write_bytes(1, 48));
            for block in blocks {
                heap.try_deallocate(block, bytes(48)).unwrap();
            }
            assert_eq!(heap.release(region.start.as_ptr()), Ok(region));
        }
    }
}

#[test]
fn an_extension_that_is_refused_writes_nothing() {
    let mut backing = Backing::new(64 * 1024, 0);
    let whole = backing.region();
    let first = Region::new(whole.start, 20 * 1024);
    // SAFETY: the second region starts inside the backing.
    let second = Region::new(unsafe { whole.start.add(20 * 1024) }, 44 * 1024);
    let heap = Heap::<Tiered, Unsync>::empty();
    // SAFETY: the backing outlives the heap.
    unsafe {
        heap.claim(first).unwrap();
        heap.claim(second).unwrap();
        let block = heap.try_allocate(bytes(43_000)).unwrap();
        block.write_bytes(0x5a, 43_000);
        let bytes_of = || std::slice::from_raw_parts(second.start.as_ptr(), second.size).to_vec();
        let before = bytes_of();
        for more in [8, 64, 4096, 20_000] {
            assert_eq!(heap.extend(first.start.as_ptr(), more), Err(RegionError::Overlap));
        }
        assert!(bytes_of() == before);
        // The map at the end of a region is a part of it.
        let last = Region::new(first.start.add(first.size - 8), 1024);
        heap.dealloc(block.as_ptr(), bytes(43_000));
        heap.release(second.start.as_ptr()).unwrap();
        assert_eq!(heap.claim(last), Err(RegionError::Overlap));
    }
}

/// A program that writes to freed memory gets no help, but a check of it ends.
#[test]
fn a_check_ends_though_a_list_is_damaged() {
    let (heap, _memory) = heap();
    let blocks: Vec<_> = (0..200).map(|_| heap.try_allocate(bytes(48)).unwrap()).collect();
    for block in &blocks[..199] {
        free(&heap, *block, 48);
    }
    heap.trim();
    // SAFETY: the memory is the test's; each free object of a page now says that it is followed by itself.
    unsafe {
        for block in &blocks[100..199] {
            block.cast::<usize>().write(block.addr().get());
        }
        assert_eq!(heap.try_deallocate(blocks[199], bytes(48)), Ok(()));
    }
}

/// A zeroed request that gets a whole region is cleared to its end, where the bookkeeping was.
#[test]
fn zeroed_memory_is_zero_over_any_pages() {
    fn check(case: &Case) {
        let mut backing = Backing::new(24_000, 0);
        let region = backing.region();
        let heap = (case.empty)(100_000);
        // SAFETY: the backing outlives the heap and is zero, as the region says.
        unsafe {
            region.start.write_bytes(0, region.size);
            heap.claim(Region { zeroed: true, ..region }).unwrap();
            let block = heap.try_allocate_zeroed(bytes(23_800)).unwrap();
            assert!((0..23_800).all(|byte| block.add(byte).read() == 0));
        }
    }
    check(Case::of::<Buddy>());
}
