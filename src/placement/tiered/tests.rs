//! Tests of the internals of quick lists.

use super::classes::{CLASSES, OBJECTS};
use super::page::{HEADER, LARGEST_PAGE, SMALLEST_PAGE};
use super::*;
use crate::region::Region;
use core::cell::UnsafeCell;

#[repr(align(64))]
struct Memory(UnsafeCell<[u8; 64 << 10]>);

impl Memory {
    fn region(&self) -> Region {
        // SAFETY: a reference is not null.
        Region::new(unsafe { NonNull::new_unchecked(self.0.get().cast()) }, 64 << 10)
    }
}

/// A free searches a list only for a block that holds a link of this very heap. Values that programs leave in their blocks, links of an
/// earlier heap in the same memory and objects of closed pages do not make a free search lists.
#[test]
#[cfg(target_pointer_width = "64")]
fn only_a_link_of_this_heap_looks_kept() {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    let small = Layout::new::<[u64; 2]>();
    let mut earlier = Tiered::<Tlsf>::EMPTY;
    let mut tiered = Tiered::<Tlsf>::EMPTY;
    // SAFETY: the memory is used by one placement after the other; blocks are live until they are freed.
    unsafe {
        let fill =
            |heap: &mut Tiered<Tlsf>| [(); 200].map(|()| heap.allocate(small, &mut NoStatistics).unwrap());
        let free = |heap: &mut Tiered<Tlsf>, start| {
            if !heap.free_fast(start, small, &mut NoStatistics) {
                heap.free(start, small, &mut NoStatistics).unwrap();
            }
        };
        earlier.claim(memory.region(), &mut NoStatistics).unwrap();
        let starts = fill(&mut earlier);
        for &start in &starts {
            free(&mut earlier, start);
        }
        assert!(starts.iter().any(|&start| earlier.seems_kept(start)));
        tiered.claim(memory.region(), &mut NoStatistics).unwrap();
        assert!(!starts.iter().any(|&start| tiered.seems_kept(start)), "links of the earlier heap");

        let starts = fill(&mut tiered);
        for number in [u64::MAX, u64::MAX - 1, 0xffff_0000_0000_0008, 0xffff_ffff] {
            starts[0].cast().write(number);
            assert!(!tiered.seems_kept(starts[0]), "{number:#x}");
        }
        for &start in &starts {
            free(&mut tiered, start);
            assert!(tiered.seems_kept(start));
        }
        tiered.flush();
        assert!(!starts.iter().any(|&start| tiered.seems_kept(start)), "links of closed pages");
    }
}

/// Objects of pages have the alignment of their size, so pages also satisfy requests aligned to more than 8 bytes.
#[test]
fn pages_have_aligned_blocks_for_sizes_that_are_multiples_of_the_alignment() {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    for (size, align) in [(16, 16), (48, 16), (96, 32), (64, 64), (192, 64), (256, 256)] {
        let layout = Layout::from_size_align(size, align).unwrap();
        let mut tiered = Tiered::<Tlsf>::EMPTY;
        // SAFETY: the memory is used by one placement after the other.
        unsafe { tiered.claim(memory.region(), &mut NoStatistics).unwrap() };
        let mut starts = [(); 128].map(|()| tiered.allocate(layout, &mut NoStatistics).unwrap());
        starts.sort();
        assert!(starts.windows(2).all(|pair| pair[1].addr().get() - pair[0].addr().get() >= size));
        assert!(starts.iter().all(|start| start.addr().get() % align == 0), "{size} aligned to {align}");
        // SAFETY: the blocks belong to the test.
        let is_in_page = |&&start: &&NonNull<u8>| unsafe { tiered.tier.check_owned(start, layout) }.is_err();
        let in_pages = starts.iter().filter(is_in_page).count();
        assert!(in_pages >= 100, "{in_pages} blocks of {size} bytes in pages");
        for start in starts {
            // SAFETY: the block is live until here.
            unsafe {
                assert_eq!(tiered.check_owned(start, layout), Ok(()));
                let mut change = Change::EMPTY;
                assert_eq!(tiered.free(start, layout, &mut change), Ok(()));
                assert_eq!(change.used, -(size as isize));
            }
        }
        tiered.flush();
        assert!(tiered.release(memory.region().start.as_ptr(), &mut NoStatistics).is_ok(), "a block is left");
    }
}

/// A check ends even if a write to a freed block made its list lead back to itself.
#[test]
fn a_check_ends_though_a_list_leads_to_itself() {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    for layout in [Layout::new::<[u64; 6]>(), Layout::new::<[u64; 60]>()] {
        let mut tiered = QuickLists::<Tlsf>::EMPTY;
        // SAFETY: the memory is used by one placement after the other; the write to a freed block is the subject of the test.
        unsafe {
            tiered.claim(memory.region(), &mut NoStatistics).unwrap();
            let [freed, live] = [(); 2].map(|()| tiered.allocate(layout, &mut NoStatistics).unwrap());
            tiered.free(freed, layout, &mut NoStatistics).unwrap();
            assert_eq!(tiered.check_owned(freed, layout), Err(FreeError::AlreadyFree));
            // Links of large blocks are not encoded.
            let key = if layout.size() <= SMALL { tiered.small.key } else { key::Key::NONE };
            freed.cast().write(Free::before(freed.as_ptr().cast(), key));
            assert_eq!(tiered.check_owned(live, layout), Ok(()));
        }
    }
}

/// Returns the bytes of a placement's blocks in use, by its own map.
fn used_of(placement: &Tlsf) -> usize {
    let mut used = 0;
    placement.walk(0, &mut |run| {
        used += if run.free { 0 } else { run.size };
        true
    });
    used
}

/// Checks that the lists keep as much as documented, and nothing while more than four fifths of the memory are in use.
fn keeps_its_shares<T: Tier>(used_of: impl Fn(&T) -> usize) {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    let mut random = fastrand::Rng::with_seed(8);
    let mut lists = QuickLists::<T>::EMPTY;
    let mut live = std::vec::Vec::new();
    let (mut kept, mut short) = (0, 0);
    // SAFETY: the memory outlives the placement; blocks are live until they are freed.
    unsafe {
        let mut change = Change::EMPTY;
        lists.claim(memory.region(), &mut change).unwrap();
        let whole = change.capacity as usize;
        for step in 0..20_000 {
            let fills = step / 1000 % 2 == 0;
            let before = (lists.small.kept(), lists.large.kept());
            if live.is_empty() || (random.u8(..10) < 6) == fills {
                let size = if random.bool() { random.usize(1..300) } else { random.usize(300..1300) };
                let layout = Layout::from_size_align(size, 8).unwrap();
                if let Some(start) = lists.allocate(layout, &mut NoStatistics) {
                    live.push((start, layout));
                }
            } else {
                let (start, layout) = live.swap_remove(random.usize(..live.len()));
                let was_short = lists.plenty < 0;
                if !lists.free_fast(start, layout, &mut NoStatistics) {
                    lists.free(start, layout, &mut NoStatistics).unwrap();
                }
                let after = (lists.small.kept(), lists.large.kept());
                // A trim may end the shortage.
                let was_short = was_short && lists.plenty < 0;
                assert!(
                    !was_short || after.0 <= before.0 && after.1 <= before.1,
                    "kept while memory is short"
                );
                short += usize::from(was_short);
            }
            kept = kept.max(lists.small.kept() + lists.large.kept());
            assert!(lists.large.kept() <= whole / 48);
            // A whole page of small blocks may come at once.
            assert!(lists.small.kept() <= whole / 8 + 1024, "{}", lists.small.kept());
            assert_eq!(lists.plenty, (whole / 64 * 51) as isize - used_of(&lists.tier) as isize);
        }
        assert!(kept > whole / 12 && short > 1000, "{kept} {short}");
        for (start, layout) in live.drain(..) {
            lists.free(start, layout, &mut NoStatistics).unwrap();
        }
        lists.flush();
        assert_eq!((lists.small.kept(), lists.large.kept(), used_of(&lists.tier)), (0, 0, 0));
        lists.release(memory.region().start.as_ptr(), &mut NoStatistics).unwrap();
        assert_eq!((lists.plenty, lists.whole), (0, 0));
    }
}

/// Every page is the smallest with enough objects, or the largest.
#[test]
fn pages_are_no_longer_than_they_have_to_be() {
    for class in (0..CLASSES).map(Class::number) {
        let objects = |page: usize| (page - HEADER) / class.bytes();
        let page = class.page();
        assert!((SMALLEST_PAGE..=LARGEST_PAGE).contains(&page) && page.is_power_of_two());
        assert!(page == LARGEST_PAGE || objects(page) >= OBJECTS, "{}", class.bytes());
        assert!(page == SMALLEST_PAGE || objects(page / 2) < OBJECTS, "{}", class.bytes());
    }
}

#[test]
fn no_more_is_kept_than_the_shares() {
    keeps_its_shares::<Tlsf>(used_of);
}

#[test]
fn no_more_is_kept_than_the_shares_over_pages() {
    keeps_its_shares::<Pages<Tlsf>>(|pages| used_of(pages.large()));
}

/// A trim frees an empty page that was kept for its class, and says so.
#[test]
fn empty_pages_go_back() {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    let mut pages = Pages::<Tlsf>::EMPTY;
    let small = Layout::new::<[u64; 4]>();
    let class = classes::Class::of(32).unwrap();
    // SAFETY: the memory outlives the placement; blocks are live until they are freed.
    unsafe {
        pages.claim(memory.region(), &mut NoStatistics).unwrap();
        for saving in [false, true] {
            pages.set_saving(saving);
            // Enough blocks for the class to get a page.
            let starts = [(); 100].map(|()| pages.allocate_class(class, 8, false).unwrap().first);
            assert!(used_of(pages.large()) >= 3200);
            for start in starts {
                pages.free_class(start, class).unwrap();
            }
            // SAFETY: the block belongs to the test.
            assert!(Placement::check_owned(&pages, starts[0], small).is_err());
            let kept = used_of(pages.large());
            assert_eq!(kept == 0, saving, "{kept} bytes");
            assert_eq!(Placement::trim(&mut pages), !saving);
            assert_eq!(used_of(pages.large()), 0);
            assert!(!Placement::trim(&mut pages), "nothing is left");
        }
    }
}

/// Kept large blocks that no request needs any more make room for newly freed ones.
#[test]
fn kept_large_blocks_make_room_for_others() {
    let memory = Memory(UnsafeCell::new([0; 64 << 10]));
    let mut tiered = QuickLists::<Tlsf>::EMPTY;
    // SAFETY: the memory outlives the placement; blocks are live until they are freed.
    unsafe {
        let mut change = Change::EMPTY;
        tiered.claim(memory.region(), &mut change).unwrap();
        let whole = change.capacity as usize;
        let take_and_free = |tiered: &mut QuickLists<Tlsf>, size: usize| {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let starts = [(); 8].map(|()| tiered.allocate(layout, &mut NoStatistics).unwrap());
            for start in starts {
                tiered.free(start, layout, &mut NoStatistics).unwrap();
            }
        };
        take_and_free(&mut tiered, 400);
        assert!(tiered.large.kept() > whole / 48 - 400, "as many as may be");
        for _ in 0..10 {
            take_and_free(&mut tiered, 312);
        }
        assert!(tiered.large.pop(312, 8).is_some());
    }
}
