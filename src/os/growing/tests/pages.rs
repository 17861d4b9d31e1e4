//! The heap's shared part on a system that checks every call: live blocks stay unchanged, and free memory returns to the system.

use super::super::classes::{SLOT, objects};
use super::super::pages::Pages;
use super::super::system::System;
use super::fake::{Linux, MacOs, WORLD, Windows, World};
use crate::front::pressure::Pressure;
use crate::os::cache::{self, Block, CLASSES, Chain, LARGEST, SIZES};
use core::ptr::NonNull;
use std::vec::Vec;

/// Returns a heap without memory, in a new world.
pub(super) fn fresh() -> std::boxed::Box<Pages<Linux>> {
    WORLD.with_borrow_mut(|world| *world = World::default());
    std::boxed::Box::new(Pages::EMPTY)
}

/// A block and the byte that fills it.
struct Live {
    block: NonNull<u8>,
    size: usize,
    class: Option<usize>,
    fill: u8,
}

fn check(live: &Live) {
    // SAFETY: the block is live and has that many bytes.
    let bytes = unsafe { core::slice::from_raw_parts(live.block.as_ptr(), live.size) };
    assert!(bytes.iter().all(|&byte| byte == live.fill), "a live block has changed");
}

/// Returns the class of a request.
pub(super) fn class_of_size(size: usize) -> usize {
    cache::class_of(size, 16).unwrap()
}

/// Allocates a small block, and frees the rest of its batch.
pub(super) fn allocate_one<S: System>(pages: &mut Pages<S>, class: usize) -> Option<NonNull<u8>> {
    let mut chain = pages.allocate(class, 1);
    let block = chain.pop();
    if chain.count > 0 {
        // SAFETY: the blocks are free.
        unsafe { pages.free(class, chain) };
    }
    block
}

/// Allocates a block of about `size` bytes, checks that it is zero if the heap says so, and fills it.
fn take<S: System>(pages: &mut Pages<S>, random: &mut fastrand::Rng, size: usize) -> Option<Live> {
    let fill = random.u8(1..);
    let (block, size, class) = if size <= LARGEST {
        let class = class_of_size(size);
        (allocate_one(pages, class)?, SIZES[class] as usize, Some(class))
    } else {
        let align = SLOT << random.u32(0..3);
        let zeroed = random.bool();
        let (block, dirty) = pages.allocate_large(size, align, zeroed)?;
        assert_eq!(block.addr().get() % align, 0);
        if !dirty {
            // SAFETY: the block is live and has that many bytes.
            let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == 0), "called clean, and is not");
        }
        (block, size, None)
    };
    // SAFETY: the block is live and has that many bytes.
    unsafe { block.as_ptr().write_bytes(fill, size) };
    Some(Live { block, size, class, fill })
}

fn give<S: System>(pages: &mut Pages<S>, live: Live) {
    check(&live);
    // SAFETY: the block is live, and not used afterwards.
    unsafe {
        match live.class {
            Some(class) => {
                pages.free(class, Chain::one(live.block.cast().as_ptr()));
            }
            None => assert!(pages.free_large(live.block)),
        }
    }
}

/// Grows or shrinks a large block, in place or by moving its memory.
fn resize<S: System>(pages: &mut Pages<S>, live: &mut Live, size: usize) {
    check(live);
    // SAFETY: the block is live, and if it moves, its old address is not used.
    unsafe {
        if !pages.resize_large(live.block, size) {
            match pages.shift_large(live.block, size) {
                Some(moved) => assert!(pages.free_large(core::mem::replace(&mut live.block, moved))),
                None => return,
            }
        }
        live.size = live.size.min(size);
        check(live);
        live.size = size;
        live.block.as_ptr().write_bytes(live.fill, size);
    }
}

/// Allocates, resizes, frees and trims at random. Returns the purged bytes, the moves, and the refused requests.
fn exercise<S: System>(seed: u64, limit: usize, broken: bool) -> (usize, usize, usize) {
    WORLD.with_borrow_mut(|world| *world = World { limit, broken, ..World::default() });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pages: std::boxed::Box<Pages<S>> = std::boxed::Box::new(Pages::EMPTY);
    // Not a multiple of anything.
    pages.limit((48 << 20) + 12_345);
    let mut live: Vec<Live> = Vec::new();
    let mut refused = 0;
    for step in 0..6000_u32 {
        // The heap grows and shrinks in turn.
        let grows = step % 1500 < 900;
        match random.u8(..100) {
            0..2 => {
                pages.trim();
                live.iter().for_each(check);
                assert!(pages.spans.has_exact_footprint());
            }
            2..8 => {
                if let Some(n) = live.iter().position(|one| one.class.is_none()) {
                    let size = random.usize(LARGEST + 1..1_500_000);
                    resize(&mut pages, &mut live[n], size);
                }
            }
            n if (n < 60) == grows && live.len() < 600 => {
                let most = if random.u8(..8) == 0 { 1_000_000 } else { LARGEST };
                let octave = 1 << random.u32(0..=most.ilog2());
                let size = random.usize(1..=octave);
                match take(&mut pages, &mut random, size) {
                    Some(block) => live.push(block),
                    None => {
                        pages.gather();
                        let again = take(&mut pages, &mut random, size);
                        assert!(again.is_none(), "{size} bytes were there, and not given");
                        refused += 1;
                    }
                }
            }
            _ if !live.is_empty() => give(&mut pages, live.swap_remove(random.usize(..live.len()))),
            _ => {}
        }
    }
    live.drain(..).for_each(|block| give(&mut pages, block));
    assert_eq!(pages.stats().used, 0);
    pages.trim();
    let kept = pages.stats().dirty;
    let (purged, shifts) = WORLD.with_borrow(|world| (world.purged, world.shifts));
    assert!(broken || kept < 2 << 20, "{kept} bytes are still with the heap");
    assert!(!broken || pages.stats().purged == 0 && kept > 1 << 20, "nothing went back");
    assert_eq!(CLASSES, SIZES.len());
    (purged, shifts, refused)
}

#[test]
fn the_heap_keeps_the_rules_of_linux() {
    let mut all = 0;
    for seed in [3, 5, 7] {
        let (purged, shifts, refused) = exercise::<Linux>(seed, 0, false);
        assert!(purged > 1 << 20 && refused == 0, "{purged} {refused}");
        all += shifts;
    }
    assert!(all > 0, "nothing was moved without copying");
}

#[test]
fn free_spans_go_back_to_the_last_slot() {
    let mut pages = fresh();
    const BYTES: usize = 12 * SLOT;
    let blocks: Vec<_> = (0..200)
        .map(|_| {
            let (block, _) = pages.allocate_large(BYTES, SLOT, false).unwrap();
            // SAFETY: the block has the bytes.
            unsafe { block.as_ptr().write_bytes(7, BYTES) };
            block
        })
        .collect();
    for &block in blocks.iter().step_by(2) {
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
    pages.trim();
    for (n, block) in blocks.iter().enumerate() {
        let expected = if n % 2 == 0 { 0 } else { 7 };
        // SAFETY: the memory is committed, and purged memory of the fake system is zero.
        let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), BYTES) };
        assert!(bytes.iter().all(|&byte| byte == expected), "block {n}");
    }
}

/// The heap releases free memory before new memory raises the peak, and keeps it below the peak.
#[test]
fn free_memory_does_not_raise_the_peak() {
    const SLOTS: usize = 256;
    let mut pages = fresh();
    let take =
        |slots: usize, pages: &mut Pages<Linux>| pages.allocate_large(slots * SLOT, SLOT, false).unwrap().0;
    let blocks = [(); 6].map(|()| take(SLOTS, &mut pages));
    for block in [blocks[0], blocks[2], blocks[4]] {
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
    take(SLOTS, &mut pages);
    assert_eq!(pages.stats().dirty, 2 * SLOTS * SLOT, "the process has no more than before");
    let first = take(2 * SLOTS, &mut pages);
    assert_eq!(pages.stats().dirty, 0, "no gap is large enough, so the memory is more than ever");
    let purged = WORLD.with_borrow(|world| world.purged);
    // SAFETY: the block is live.
    assert!(unsafe { pages.free_large(first) });
    assert_eq!(take(2 * SLOTS, &mut pages), first);
    assert_eq!(WORLD.with_borrow(|world| world.purged), purged, "nothing new is needed");
    assert!(pages.spans.has_exact_footprint());
}

/// Up to 64 free slots do not start a purge, whatever their share.
#[test]
fn a_little_free_memory_may_raise_the_peak() {
    for (slots, goes) in [(60, false), (64, false), (65, true), (70, true)] {
        let mut pages = fresh();
        let mut take = |slots: usize| pages.allocate_large(slots * SLOT, SLOT, false).unwrap().0;
        let [_, freed, _] = [300, slots, 1].map(&mut take);
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(freed) });
        assert!(pages.allocate_large(100 * SLOT, SLOT, false).is_some(), "the gap is too short for it");
        assert_eq!(pages.stats().dirty, if goes { 0 } else { slots * SLOT }, "{slots} slots");
    }
}

/// Large blocks have any requested alignment, and so have those of memory provided in advance.
#[test]
fn large_blocks_are_aligned() {
    // The system chooses the address of each heap.
    for (heap, bytes) in [0, 32 << 20, 32 << 20, 32 << 20].into_iter().enumerate() {
        let mut pages = fresh();
        pages.limit(60 << 20);
        assert!(pages.make_ready(bytes));
        for align in (12..=22).map(|log| 1 << log) {
            for _ in 0..2 {
                let (block, _) = pages.allocate_large(SLOT, align, false).unwrap();
                assert_eq!(block.addr().get() % align, 0, "{align} in heap {heap}");
            }
        }
    }
}

/// The heap keeps up to a limit of free memory, and the next freed block returns all of it.
#[test]
fn free_memory_stays_up_to_a_share_of_what_is_in_use() {
    const MIB: usize = 1 << 20;
    const BYTES: usize = MIB / 4;
    let keeps = |pressure, used: usize| match pressure {
        Pressure::Normal => 16 * MIB + used / 4,
        Pressure::Low => (16 * MIB + used / 2) / 8,
        Pressure::Critical => MIB,
    };
    for pressure in [Pressure::Normal, Pressure::Low, Pressure::Critical] {
        let mut pages = fresh();
        pages.limit(60 * MIB);
        let take = |pages: &mut Pages<Linux>, bytes| pages.allocate_large(bytes, SLOT, false).unwrap().0;
        take(&mut pages, 20 * MIB);
        let blocks: Vec<_> = (0..90).map(|_| take(&mut pages, BYTES)).collect();
        pages.pressure = pressure;
        let mut stayed = 0;
        for block in blocks {
            let free = pages.stats().dirty + BYTES;
            // SAFETY: the block is live.
            assert!(unsafe { pages.free_large(block) });
            let stays = free <= keeps(pressure, pages.stats().used);
            assert_eq!(pages.stats().dirty, if stays { free } else { 0 });
            stayed += usize::from(stays);
        }
        assert!(stayed > 0 && stayed < 90, "{stayed}");
    }
}

/// The heap returns free memory that is a second old, which it checks now and then.
#[test]
fn old_free_memory_goes_back() {
    const BYTES: usize = 3 << 20;
    let mut pages = fresh();
    let mut purged_after = Vec::new();
    for frees in 0..3000 {
        let (block, _) = pages.allocate_large(BYTES, SLOT, false).unwrap();
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
        if WORLD.with_borrow_mut(|world| core::mem::take(&mut world.purged)) > 0 {
            purged_after.push(frees);
        }
    }
    // Each check advances the clock by a tenth of a second.
    let looks: Vec<usize> = purged_after.windows(2).map(|pair| (pair[1] - pair[0]) / 64).collect();
    assert!(!looks.is_empty() && looks.iter().all(|&looks| looks == 10), "{purged_after:?}");
}

/// A trim releases free slots together with the parts of the tables that describe only free spans, and only once.
#[test]
fn tables_of_free_spans_go_back() {
    const SLOTS: usize = 1000;
    let mut pages = fresh();
    let (block, _) = pages.allocate_large(SLOTS * SLOT, SLOT, false).unwrap();
    // SAFETY: the block is live.
    assert!(unsafe { pages.free_large(block) });
    let mut trim = || {
        pages.trim();
        WORLD.with_borrow_mut(|world| core::mem::take(&mut world.purged))
    };
    // One entry in the table of spans and one in the image for each slot, except for the pages at the ends of both.
    let tables = SLOTS * (size_of::<super::super::page::Page>() + 16) - 4 * 4096;
    let gone = trim();
    assert!(gone >= SLOTS * SLOT + tables, "{gone} bytes");
    assert_eq!(trim(), 0, "nothing was written since");
}

#[test]
fn the_heap_keeps_the_rules_of_macos() {
    let (purged, shifts, _) = exercise::<MacOs>(2, 0, false);
    assert!(purged > 1 << 20 && shifts == 0, "{purged} {shifts}");
}

#[test]
fn the_heap_keeps_the_rules_of_windows() {
    let (purged, shifts, _) = exercise::<Windows>(3, 0, false);
    assert!(purged > 1 << 20 && shifts == 0, "{purged} {shifts}");
}

/// A request fails if its memory cannot be committed, and the heap stays usable.
#[test]
fn a_commit_that_fails_is_a_refused_request() {
    for seed in 4..8 {
        let (_, _, refused) = exercise::<Windows>(seed, 3 << 20, false);
        assert!(refused > 0);
    }
}

/// A failed purge leaves the contents unchanged, and the heap reports no dirty block as clean.
#[test]
fn a_purge_that_fails_changes_nothing() {
    let (purged, _, _) = exercise::<MacOs>(9, 0, true);
    assert_eq!(purged, 0);
}

/// Frees small blocks of `class` at these addresses.
fn give_all<S: System>(pages: &mut Pages<S>, class: usize, blocks: &[NonNull<u8>]) {
    for &block in blocks {
        give(pages, Live { block, size: 0, class: Some(class), fill: 0 });
    }
}

/// A block may start before the released memory and extend into it: that memory is no longer clean.
#[test]
fn what_reaches_into_memory_that_was_given_back_is_noticed() {
    const SIZE: usize = 48;
    let mut pages = fresh();
    let class = class_of_size(SIZE);
    let mut page = || {
        let mut chain = pages.allocate(class, 16 * 1024 / SIZE);
        let mut blocks: Vec<_> = std::iter::from_fn(|| chain.pop()).collect();
        // SAFETY: the blocks belong to the test.
        blocks.iter().for_each(|block| unsafe { block.write_bytes(7, SIZE) });
        blocks.sort_unstable();
        blocks
    };
    let (other, first) = (page(), page());
    assert_eq!((first.len(), other.len()), (16 * 1024 / SIZE, 16 * 1024 / SIZE));
    let start = first[0];
    // All blocks except those that lie only in the first slot.
    let inside = SLOT / SIZE;
    give_all(&mut pages, class, &first[inside..]);
    pages.trim();
    let reaching = allocate_one(&mut pages, class).unwrap();
    assert_eq!(reaching, first[inside], "it reaches from the first slot into the second");
    // SAFETY: the block belongs to the test.
    unsafe { reaching.as_ptr().write_bytes(7, SIZE) };
    give_all(&mut pages, class, &other[..1]);
    give_all(&mut pages, class, &[reaching]);
    give_all(&mut pages, class, &first[..inside]);
    // The page is closed, and its memory satisfies a large request.
    let (block, dirty) = pages.allocate_large(16 * 1024, SLOT, true).unwrap();
    assert_eq!(block, start);
    // SAFETY: the block has these bytes.
    let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), 16 * 1024) };
    assert!(dirty || bytes.iter().all(|&byte| byte == 0), "called clean, and is not");
}

/// A free block before a slot may have its mark in that slot, so the heap does not release the slot.
#[test]
fn marks_stay_with_their_blocks() {
    const SIZE: usize = 24;
    let mut pages = fresh();
    let class = cache::class_of(SIZE, 8).unwrap();
    let mut page = || {
        let mut chain = pages.allocate(class, objects(class));
        let mut blocks: Vec<_> = std::iter::from_fn(|| chain.pop()).collect();
        blocks.sort_unstable();
        blocks
    };
    let (other, mut first) = (page(), page());
    let start = first[0];
    let live = first.remove(200);
    let across = first.iter().find(|block| block.addr().get() % SLOT == SLOT - 8).copied().unwrap();
    assert_eq!([live, across].map(|block| (block.addr().get() - start.addr().get()) / SLOT), [1, 1]);
    give_all(&mut pages, class, &first);
    assert!(pages.trim() >= 2 * SLOT);
    // SAFETY: the block is of the class.
    assert!(unsafe { Block::is_free(across.cast().as_ptr()) });
    give_all(&mut pages, class, &other[..1]);
    give_all(&mut pages, class, &[live]);
    // The page is closed, and its memory satisfies a large request.
    let (block, dirty) = pages.allocate_large(16 * 1024, SLOT, true).unwrap();
    assert_eq!(block, start);
    // SAFETY: the block has these bytes.
    let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), 16 * 1024) };
    assert!(dirty || bytes.iter().all(|&byte| byte == 0), "called clean, and is not");
}

/// A listed page with released parts always has free blocks, even if no block starts in some of these parts.
#[test]
fn listed_pages_have_free_blocks() {
    const PAGES: usize = 4;
    for size in [3000, 6000, 12_000, 20_000, LARGEST] {
        let mut pages = fresh();
        let class = class_of_size(size);
        let count = PAGES * objects(class);
        for _ in 0..2 {
            let blocks: Vec<_> = (0..count)
                .map(|_| {
                    let chain = pages.allocate(class, 1);
                    assert_eq!(chain.count, 1, "{size} bytes");
                    NonNull::new(chain.first).unwrap().cast()
                })
                .collect();
            // Live blocks keep the pages.
            let (kept, freed): (Vec<_>, Vec<_>) =
                blocks.into_iter().enumerate().partition(|(n, _)| n % objects(class) == 0);
            let only =
                |blocks: Vec<(usize, _)>| blocks.into_iter().map(|(_, block)| block).collect::<Vec<_>>();
            give_all(&mut pages, class, &only(freed));
            pages.trim();
            let blocks: Vec<_> = (PAGES..count)
                .map(|_| {
                    let mut chain = pages.allocate(class, 1);
                    assert_eq!(chain.count, 1, "{size} bytes, after parts went back");
                    chain.pop().unwrap()
                })
                .collect();
            give_all(&mut pages, class, &blocks);
            give_all(&mut pages, class, &only(kept));
            pages.trim();
        }
    }
}
