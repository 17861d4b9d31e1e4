//! The heap's shared part at its limits: when memory or addresses run out, and when the system refuses.

use super::super::classes::{SLOT, batch};
use super::super::pages::Pages;
use super::fake::{Linux, WORLD};
use super::pages::{allocate_one, class_of_size, fresh};
use crate::os::cache::{CLASSES, Chain, SIZES};
use core::ptr::NonNull;
use std::vec;
use std::vec::Vec;

/// Without a limit, the heap reserves 64 GiB of addresses, or four times the machine's memory.
#[test]
#[cfg(target_pointer_width = "64")]
fn addresses_are_asked_for_by_the_memory() {
    const GIB: u64 = 1 << 30;
    for (memory, expected) in [(0, 64), (8, 64), (16, 64), (20, 128), (100, 512)] {
        let mut pages = fresh();
        WORLD.with_borrow_mut(|world| (world.memory, world.asked) = (memory * GIB, 0));
        assert!(pages.allocate_large(SLOT, SLOT, false).is_some());
        let asked = WORLD.with_borrow(|world| world.asked) as u64;
        assert!((expected * GIB..(expected + expected / 20) * GIB).contains(&asked), "{memory}: {asked}");
    }
}

/// The heap reserves no more addresses than its links can index.
#[cfg(target_pointer_width = "64")]
#[test]
fn addresses_are_limited_by_their_numbers() {
    const MOST: usize = super::super::image::MOST / 2;
    let mut pages = fresh();
    pages.limit(usize::MAX);
    assert!(pages.allocate_large(SLOT, SLOT, false).is_some());
    let asked = WORLD.with_borrow(|world| world.asked);
    // The tables take less than a twentieth as much as the slots.
    assert!(asked / SLOT >= MOST && asked / SLOT < MOST + MOST / 20, "{asked}, {MOST}");
    // The fake system has at most 64 MiB. The heap tries three quarters of each failed size until it succeeds, and leaves a quarter of
    // that to others.
    let (reserved, ranges) = (pages.stats().reserved >> 20, WORLD.with_borrow(|world| world.ranges.len()));
    assert!((34..48).contains(&reserved) && ranges == 1, "{reserved} MiB, {ranges} ranges");
}

/// Requests fail when the system has no addresses, and when they exceed any address space.
#[test]
fn requests_without_addresses_fail() {
    let mut pages = fresh();
    WORLD.with_borrow_mut(|world| world.full = true);
    assert!(pages.allocate_large(SLOT, SLOT, false).is_none());
    assert_eq!((pages.stats().reserved, pages.stats().committed), (0, 0));
    WORLD.with_borrow_mut(|world| world.full = false);
    assert!(pages.allocate_large(SLOT, SLOT, false).is_some());
    let half = isize::MAX as usize;
    for size in [half, half + 1, usize::MAX] {
        assert!(pages.allocate_large(size, SLOT, false).is_none());
    }
    assert!(pages.allocate_large(SLOT, half + 1, false).is_none());
    // The committed memory holds the block and is part of the reserved addresses.
    let stats = pages.stats();
    assert!((SLOT..=stats.reserved).contains(&stats.committed), "{stats:?}");
}

/// One block can fill all addresses of a heap. A request for more commits nothing.
#[test]
fn one_block_can_have_all() {
    let mut pages = fresh();
    pages.limit(256 * SLOT);
    for slots in [300, 257] {
        assert!(pages.allocate_large(slots * SLOT, SLOT, false).is_none());
        assert_eq!(WORLD.with_borrow(|world| world.committed), 0, "{slots} slots");
    }
    assert!(pages.allocate_large(256 * SLOT, SLOT, false).is_some());
}

/// A request can combine free slots at the end of the committed memory with uncommitted slots, up to the last slot.
#[test]
fn requests_get_the_last_addresses() {
    const SLOTS: usize = (16 << 20) / SLOT;
    let take = |slots: usize, pages: &mut Pages<Linux>| pages.allocate_large(slots * SLOT, SLOT, false);
    // The heap cuts shorter blocks than the first of these from the end of the free memory, where they would be in the way.
    for first in [600, 900, SLOTS / 2] {
        let mut pages = fresh();
        pages.limit(SLOTS * SLOT);
        let (block, _) = take(first, &mut pages).unwrap();
        assert!(take(SLOTS - SLOTS / 100 - first, &mut pages).is_some(), "{first} slots first");
        while take(1, &mut pages).is_some() {}
        assert!(pages.stats().used >= (SLOTS - 4) * SLOT, "{:?}", pages.stats());
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
    // A block that cannot move grows into both kinds of slots.
    let mut pages = fresh();
    pages.limit(SLOTS * SLOT);
    let (block, _) = take(SLOTS / 2, &mut pages).unwrap();
    let most = (SLOTS - SLOTS / 100) * SLOT;
    // SAFETY: the block is live.
    unsafe {
        assert!(!pages.resize_large(block, most) && pages.shift_large(block, most).is_none());
        assert!(pages.resize_at_last(block, most) && !pages.resize_at_last(block, (SLOTS + 1) * SLOT));
    }
    assert_eq!(pages.large_size(block), Some(most));
}

/// Once memory has run out, a batch satisfies requests for single blocks, which the statistics count one by one.
#[test]
fn a_batch_is_taken_apart_when_memory_has_run_out() {
    const SIZE: usize = 600;
    let mut pages = fresh();
    pages.limit(256 * SLOT);
    let (class, batch) = (class_of_size(SIZE), batch(class_of_size(SIZE)));
    let mut chains: Vec<Chain> =
        std::iter::from_fn(|| Some(pages.allocate(class, batch)).filter(|chain| chain.count > 0)).collect();
    assert!(allocate_one(&mut pages, class).is_none());
    let n = chains.iter().position(|chain| chain.count == batch).unwrap();
    let used = pages.stats().used;
    // SAFETY: the blocks belong to the test.
    unsafe { pages.free(class, chains.swap_remove(n)) };
    assert_eq!(pages.bundles(class), Some(1));
    for taken in 1..=batch {
        assert!(allocate_one(&mut pages, class).is_some());
        assert_eq!(pages.stats().used, used - (batch - taken) * SIZES[class] as usize);
    }
    assert!(allocate_one(&mut pages, class).is_none());
}

/// The heap allocates freed batches again as a whole, and uses them for any other request once memory runs out.
#[test]
fn batches_stay_together_until_memory_runs_out() {
    const SIZE: usize = 600;
    let mut pages = fresh();
    pages.limit(256 * SLOT);
    let (class, batch) = (class_of_size(SIZE), batch(class_of_size(SIZE)));
    let all = |pages: &mut Pages<Linux>| -> Vec<Chain> {
        let chains =
            std::iter::from_fn(|| Some(pages.allocate(class, batch)).filter(|chain| chain.count > 0));
        chains.collect()
    };
    let put = |pages: &mut Pages<Linux>, chains: Vec<Chain>| {
        // SAFETY: the blocks belong to the test.
        chains.into_iter().for_each(|chain| unsafe { pages.free(class, chain) });
    };
    for round in 0..3 {
        let chains = all(&mut pages);
        assert!(chains.len() > 40, "round {round}: {} batches", chains.len());
        assert_eq!(pages.bundles(class), Some(0));
        put(&mut pages, chains);
        let bundles = pages.bundles(class).unwrap();
        assert!(bundles * batch * SIZE > 112 * 1024 && bundles * batch * SIZE <= 128 * 1024, "{bundles}");
        let chain = pages.allocate(class, batch);
        assert_eq!((chain.count, pages.bundles(class)), (batch, Some(bundles - 1)));
        let first = chain.first;
        put(&mut pages, vec![chain]);
        assert_eq!(pages.allocate(class, batch).first, first);
        assert_eq!(pages.stats().used, batch * SIZES[class] as usize);
        // SAFETY: the blocks belong to the test.
        unsafe { pages.free(class, Chain { first, count: batch }) };
        let (block, _) = pages.allocate_large(240 * SLOT, SLOT, false).unwrap();
        assert_eq!(pages.bundles(class), Some(0), "all memory was needed");
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
}

/// Allocates all memory in blocks of `class`, and returns their number.
fn drain(pages: &mut Pages<Linux>, class: usize) -> usize {
    std::iter::from_fn(|| allocate_one(pages, class)).count()
}

/// Small requests get memory from the empty pages and bundles of other classes before they fail.
#[test]
fn small_requests_get_what_other_classes_keep() {
    let small = class_of_size(100);
    let fill = |keep: &dyn Fn(&mut Pages<Linux>)| {
        let mut pages = fresh();
        pages.limit(16 << 20);
        keep(&mut pages);
        assert_eq!(pages.stats().used, 0);
        drain(&mut pages, small)
    };
    let fresh_heap = fill(&|_| ());
    let used_heap = fill(&|pages| {
        for class in 0..CLASSES {
            let chains: Vec<Chain> = (0..12).map(|_| pages.allocate(class, batch(class))).collect();
            // SAFETY: the blocks belong to the test.
            chains.into_iter().for_each(|chain| unsafe { pages.free(class, chain) });
        }
    });
    assert_eq!(used_heap, fresh_heap);
}

/// Memory that the system refuses to take back stays in the statistics. The heap offers it again, but not at every free or request.
#[test]
fn what_the_system_refuses_is_still_there() {
    const SLOTS: usize = 1024;
    const BYTES: usize = SLOTS * SLOT;
    let mut pages = fresh();
    pages.limit(60 << 20);
    let blocks: Vec<_> = (0..10).map(|_| pages.allocate_large(BYTES, SLOT, false).unwrap().0).collect();
    WORLD.with_borrow_mut(|world| world.broken = true);
    for block in blocks {
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
    assert_eq!((pages.trim(), pages.stats().dirty), (0, 10 * BYTES), "all is still there");
    let before = WORLD.with_borrow(|world| world.refusals);
    for _ in 0..64 * 100 {
        let (block, _) = pages.allocate_large(11 * BYTES, SLOT, false).unwrap();
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
    // The heap checks the clock at one free in 64, and each check advances it by a tenth of a second.
    let attempts = WORLD.with_borrow(|world| world.refusals) - before;
    assert!((10..=12).contains(&attempts), "{attempts} attempts in 10 seconds");
    WORLD.with_borrow_mut(|world| world.broken = false);
    assert_eq!((pages.trim(), pages.stats().dirty), (11 * BYTES, 0));
    assert!(pages.spans.has_exact_footprint());
}

/// A lower limit applies to everything committed from then on, tables included, up to the last grain.
#[test]
fn later_limits_hold() {
    const MIB: usize = 1 << 20;
    let fill = |pages: &mut Pages<Linux>| while pages.allocate_large(MIB / 4, SLOT, false).is_some() {};
    let committed = || WORLD.with_borrow(|world| world.committed);
    let mut pages = fresh();
    pages.limit(60 * MIB);
    assert!(pages.allocate_large(MIB, SLOT, false).is_some());
    let first = pages.stats().committed;
    for bytes in [8 * MIB, 8 * MIB + 12_345, MIB, 20 * MIB] {
        pages.limit(bytes);
        fill(&mut pages);
        let have = pages.stats().committed.max(first);
        assert!(have <= bytes.max(8 * MIB) && have + MIB > bytes, "{have} of {bytes}");
    }
    pages.limit(60 * MIB);
    for space in [24 * MIB, MIB, 32 * MIB + 1, 1] {
        WORLD.with_borrow_mut(|world| world.space = space);
        let before = committed();
        fill(&mut pages);
        assert!(committed() <= space.max(before) && committed() + MIB > space, "{} of {space}", committed());
    }
    WORLD.with_borrow_mut(|world| world.space = 0);
    fill(&mut pages);
    assert!(pages.stats().committed > 58 * MIB);
}

/// The heap never again uses a target that a move may have lost, and tries no other move.
#[test]
fn lost_places_are_not_used_again() {
    const BYTES: usize = 1 << 20;
    let mut pages = fresh();
    pages.limit(16 << 20);
    let take =
        |pages: &mut Pages<Linux>| pages.allocate_large(2 * BYTES, SLOT, false).map(|(block, _)| block);
    let (block, _) = pages.allocate_large(BYTES, SLOT, false).unwrap();
    let next = take(&mut pages).unwrap();
    // SAFETY: the blocks are live, and nothing was moved.
    unsafe {
        assert!(pages.free_large(next), "it only shows what comes next");
        WORLD.with_borrow_mut(|world| world.loses = true);
        assert!(pages.shift_large(block, 2 * BYTES).is_none());
        WORLD.with_borrow_mut(|world| world.loses = false);
        assert!(pages.shift_large(block, 2 * BYTES).is_none());
        assert!(!pages.free_large(next), "no block starts there");
    }
    let blocks: Vec<_> = std::iter::from_fn(|| take(&mut pages)).collect();
    let apart = |block: &NonNull<u8>| block.addr().get().abs_diff(next.addr().get()) >= 2 * BYTES;
    assert!(blocks.len() >= 4 && blocks.iter().all(apart), "{blocks:?}");
}
