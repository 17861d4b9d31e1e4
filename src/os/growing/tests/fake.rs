//! A system in this process's own memory, which checks every call, and the heap's shared part on it: with the properties of Linux,
//! macOS and Windows, whatever the tests run on.

use super::super::classes::{SLOT, batch, objects};
use super::super::pages::Pages;
use super::super::system::{Shift, System};
use crate::front::pressure::Pressure;
use crate::os::cache::{self, Block, CLASSES, Chain, LARGEST, SIZES};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::vec;
use std::vec::Vec;

/// State of one unit of committed memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Reserved,
    Committed,
}

/// A reserved range.
struct Range {
    start: *mut u8,
    bytes: usize,
    states: Vec<State>,
}

/// State of the fake system.
#[derive(Default)]
struct World {
    ranges: Vec<Range>,
    committed: usize,
    /// Most bytes that can be committed; 0 means any number.
    limit: usize,
    /// The most bytes of addresses that were asked for at once.
    asked: usize,
    /// Bytes of the machine's memory; 0 is not known.
    memory: u64,
    /// The process may have so many addresses; 0 means any number.
    space: usize,
    /// Whether the address space is used up.
    full: bool,
    /// Purges fail from now on.
    broken: bool,
    /// Purges that failed.
    refusals: usize,
    purged: usize,
    shifts: usize,
    /// Moves without copying may lose the place that they go to.
    loses: bool,
    clock: u64,
}

std::thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

/// Commits come in multiples of this.
const UNIT: usize = 64 * 1024;

/// Reserved addresses hold this, so that committing them detects a write to them.
const UNTOUCHED: u8 = 0xa5;

impl World {
    /// Returns the range that holds all these bytes, and the first one's offset in it.
    fn range(&mut self, start: *mut u8, bytes: usize) -> (&mut Range, usize) {
        let holds = |range: &&mut Range| {
            let offset = start.addr().wrapping_sub(range.start.addr());
            offset < range.bytes && bytes <= range.bytes - offset
        };
        let range = self.ranges.iter_mut().find(holds).expect("the bytes are reserved");
        let offset = start.addr() - range.start.addr();
        (range, offset)
    }

    fn expect_committed(&mut self, start: *mut u8, bytes: usize) {
        let (range, offset) = self.range(start, bytes);
        let units = offset / UNIT..(offset + bytes).div_ceil(UNIT);
        assert!(range.states[units].iter().all(|&state| state == State::Committed));
    }
}

/// The fake, with pages of `PAGE` bytes. `SHIFTS`: whether it can move memory without copying.
struct Fake<const PAGE: usize, const SHIFTS: bool>;

// SAFETY: ranges come from the global allocator, are zeroed when they are committed and again when they are purged.
unsafe impl<const PAGE: usize, const SHIFTS: bool> System for Fake<PAGE, SHIFTS> {
    fn reserve(bytes: usize) -> Option<NonNull<u8>> {
        assert_eq!(bytes % PAGE, 0);
        WORLD.with_borrow_mut(|world| world.asked = world.asked.max(bytes));
        if bytes > 64 << 20 || WORLD.with_borrow(|world| world.full) {
            return None;
        }
        // SAFETY: the size is not zero.
        let block = NonNull::new(unsafe { alloc(Layout::from_size_align(bytes, UNIT).unwrap()) })?;
        let start = block.as_ptr();
        // SAFETY: the block has that many bytes.
        unsafe { start.write_bytes(UNTOUCHED, bytes) };
        let states = vec![State::Reserved; bytes.div_ceil(UNIT)];
        WORLD.with_borrow_mut(|world| world.ranges.push(Range { start, bytes, states }));
        Some(block)
    }

    unsafe fn release(start: NonNull<u8>, bytes: usize) {
        WORLD.with_borrow_mut(|world| {
            let whole = |range: &Range| range.start == start.as_ptr() && range.bytes == bytes;
            let n = world.ranges.iter().position(whole).expect("a whole range is given back");
            let range = world.ranges.swap_remove(n);
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(range.start, Layout::from_size_align(range.bytes, UNIT).unwrap()) };
        });
    }

    unsafe fn commit(start: *mut u8, bytes: usize) -> bool {
        assert!(bytes > 0 && bytes % UNIT == 0);
        WORLD.with_borrow_mut(|world| {
            if world.limit > 0 && world.committed + bytes > world.limit {
                return false;
            }
            let (range, offset) = world.range(start, bytes);
            assert_eq!(offset % UNIT, 0);
            for state in &mut range.states[offset / UNIT..(offset + bytes) / UNIT] {
                assert_eq!(*state, State::Reserved, "memory is committed once");
                *state = State::Committed;
            }
            // SAFETY: the range has these bytes.
            unsafe {
                let untouched = core::slice::from_raw_parts(start, bytes);
                assert!(
                    untouched.iter().all(|&byte| byte == UNTOUCHED),
                    "written to before it was committed"
                );
                start.write_bytes(0, bytes);
            }
            world.committed += bytes;
            true
        })
    }

    unsafe fn purge(start: *mut u8, bytes: usize) -> bool {
        assert!(bytes > 0 && bytes % PAGE == 0 && start.addr() % PAGE == 0);
        WORLD.with_borrow_mut(|world| {
            world.expect_committed(start, bytes);
            if world.broken {
                world.refusals += 1;
                return false;
            }
            world.purged += bytes;
            // SAFETY: the bytes are committed, and their contents are not needed.
            unsafe { start.write_bytes(0, bytes) };
            true
        })
    }

    unsafe fn shift(from: *mut u8, to: *mut u8, bytes: usize) -> Shift {
        assert!(bytes % PAGE == 0 && from.addr() % PAGE == 0 && to.addr() % PAGE == 0);
        if !SHIFTS {
            return Shift::Refused;
        }
        if WORLD.with_borrow(|world| world.loses) {
            return Shift::Lost;
        }
        WORLD.with_borrow_mut(|world| {
            world.expect_committed(from, bytes);
            world.expect_committed(to, bytes);
            world.shifts += 1;
        });
        assert!(from.addr().abs_diff(to.addr()) >= bytes, "the ranges overlap");
        // SAFETY: both ranges are committed and apart.
        unsafe {
            to.copy_from_nonoverlapping(from, bytes);
            from.write_bytes(0, bytes);
        }
        Shift::Moved
    }

    fn page() -> usize {
        PAGE
    }

    fn memory() -> u64 {
        WORLD.with_borrow(|world| world.memory)
    }

    fn address_space() -> usize {
        WORLD.with_borrow(|world| if world.space == 0 { usize::MAX } else { world.space })
    }

    fn now() -> u64 {
        WORLD.with_borrow_mut(|world| {
            world.clock += 100;
            world.clock
        })
    }
}

type Linux = Fake<4096, true>;
type MacOs = Fake<{ 16 * 1024 }, false>;
type Windows = Fake<4096, false>;

/// Returns a heap without memory, in a world of its own.
fn fresh() -> std::boxed::Box<Pages<Linux>> {
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
fn class_of_size(size: usize) -> usize {
    cache::class_of(size, 16).unwrap()
}

/// Allocates a small block, and frees what else came in its batch.
fn allocate_one<S: System>(pages: &mut Pages<S>, class: usize) -> Option<NonNull<u8>> {
    let mut chain = pages.allocate(class, 1);
    let block = chain.pop();
    if chain.count > 0 {
        // SAFETY: the blocks are free.
        unsafe { pages.free(class, chain) };
    }
    block
}

/// Takes a block of about `size` bytes, checks that it is zero where the heap says so, and fills it.
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
    // SAFETY: the block is live, and not used at its old address if it moves.
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

/// Takes, resizes, gives and trims at random. Returns the statistics of the world and the greatest memory in use.
fn exercise<S: System>(seed: u64, limit: usize, broken: bool) -> (usize, usize, usize) {
    WORLD.with_borrow_mut(|world| *world = World { limit, broken, ..World::default() });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pages: std::boxed::Box<Pages<S>> = std::boxed::Box::new(Pages::EMPTY);
    // Not a multiple of anything.
    pages.limit((48 << 20) + 12_345);
    let mut live: Vec<Live> = Vec::new();
    let mut refused = 0;
    for step in 0..6000_u32 {
        // Phases in which the heap grows, and such in which it shrinks.
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
        // SAFETY: the memory is committed, and what went back to the fake system is zero.
        let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), BYTES) };
        assert!(bytes.iter().all(|&byte| byte == expected), "block {n}");
    }
}

/// What is free goes back before new memory makes the peak higher, and stays where there was as much memory before.
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

/// A little free memory does not start a purge, whatever its share: less than 64 slots.
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

/// Large blocks are aligned to whatever is asked for.
#[test]
fn large_blocks_are_aligned() {
    let mut pages = fresh();
    pages.limit(60 << 20);
    for align in (12..=22).map(|log| 1 << log) {
        for _ in 0..2 {
            let (block, _) = pages.allocate_large(SLOT, align, false).unwrap();
            assert_eq!(block.addr().get() % align, 0, "{align}");
        }
    }
}

/// Without a limit, 64 GiB of addresses are asked for, or four times the machine's memory.
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

/// Not more addresses are asked for than free spans can be told apart in.
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
    // The fake system has no more than 64 MiB. The heap asks for three quarters as much until it gets them, and leaves a quarter of
    // these to others.
    let (reserved, ranges) = (pages.stats().reserved >> 20, WORLD.with_borrow(|world| world.ranges.len()));
    assert!((34..48).contains(&reserved) && ranges == 1, "{reserved} MiB, {ranges} ranges");
}

/// Requests fail when the system has no addresses, and when no address space could have as many as they ask for.
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
    // What is committed holds the block and is a part of what is reserved.
    let stats = pages.stats();
    assert!((SLOT..=stats.reserved).contains(&stats.committed), "{stats:?}");
}

/// So much free memory stays with the process, and the next block that is freed sends all of it back.
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

/// Free memory goes back when it is a second old, which is looked at now and then.
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
    // The clock moves by a tenth of a second for each look.
    let looks: Vec<usize> = purged_after.windows(2).map(|pair| (pair[1] - pair[0]) / 64).collect();
    assert!(!looks.is_empty() && looks.iter().all(|&looks| looks == 10), "{purged_after:?}");
}

/// With its slots the parts of the tables go back that describe free spans only, and they do so once.
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
    // An entry of the table of spans and one of the image for each slot, but for the pages at the ends of either.
    let tables = SLOTS * (size_of::<super::super::page::Page>() + 16) - 4 * 4096;
    let gone = trim();
    assert!(gone >= SLOTS * SLOT + tables, "{gone} bytes");
    assert_eq!(trim(), 0, "nothing was written since");
}

/// One block can have nearly all addresses of a heap. A request for more than all commits nothing.
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

/// What is free at the end of the committed slots serves a request together with those that are not committed yet, and these are committed to
/// the last.
#[test]
fn requests_get_the_last_addresses() {
    const SLOTS: usize = (16 << 20) / SLOT;
    let take = |slots: usize, pages: &mut Pages<Linux>| pages.allocate_large(slots * SLOT, SLOT, false);
    // Shorter blocks than the first of these are cut from the end of what is free, and would stand in the way.
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
    // A block that cannot move grows over both.
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

/// A batch serves requests for one block once memory has run out, and is counted block by block.
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
    // SAFETY: the blocks are ours.
    unsafe { pages.free(class, chains.swap_remove(n)) };
    assert_eq!(pages.bundles(class), Some(1));
    for taken in 1..=batch {
        assert!(allocate_one(&mut pages, class).is_some());
        assert_eq!(pages.stats().used, used - (batch - taken) * SIZES[class] as usize);
    }
    assert!(allocate_one(&mut pages, class).is_none());
}

/// Whole batches that are freed are allocated again as they are, and serve any other request once memory runs out.
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
        // SAFETY: the blocks are ours.
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
        // SAFETY: the blocks are ours.
        unsafe { pages.free(class, Chain { first, count: batch }) };
        let (block, _) = pages.allocate_large(240 * SLOT, SLOT, false).unwrap();
        assert_eq!(pages.bundles(class), Some(0), "all memory was needed");
        // SAFETY: the block is live.
        assert!(unsafe { pages.free_large(block) });
    }
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

/// What cannot be committed is refused, and the heap goes on with what it has.
#[test]
fn a_commit_that_fails_is_a_refused_request() {
    for seed in 4..8 {
        let (_, _, refused) = exercise::<Windows>(seed, 3 << 20, false);
        assert!(refused > 0);
    }
}

/// A purge that fails leaves the contents; no block is called clean that is not.
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

/// A block may start before the released memory and reach into it: that memory is not clean any more.
#[test]
fn what_reaches_into_memory_that_was_given_back_is_noticed() {
    const SIZE: usize = 48;
    let mut pages = fresh();
    let class = class_of_size(SIZE);
    let mut page = || {
        let mut chain = pages.allocate(class, 16 * 1024 / SIZE);
        let mut blocks: Vec<_> = std::iter::from_fn(|| chain.pop()).collect();
        // SAFETY: the blocks are ours.
        blocks.iter().for_each(|block| unsafe { block.write_bytes(7, SIZE) });
        blocks.sort_unstable();
        blocks
    };
    let (other, first) = (page(), page());
    assert_eq!((first.len(), other.len()), (16 * 1024 / SIZE, 16 * 1024 / SIZE));
    let start = first[0];
    // All but the blocks that lie in the first slot alone.
    let inside = SLOT / SIZE;
    give_all(&mut pages, class, &first[inside..]);
    pages.trim();
    let reaching = allocate_one(&mut pages, class).unwrap();
    assert_eq!(reaching, first[inside], "it reaches from the first slot into the second");
    // SAFETY: the block is ours.
    unsafe { reaching.as_ptr().write_bytes(7, SIZE) };
    give_all(&mut pages, class, &other[..1]);
    give_all(&mut pages, class, &[reaching]);
    give_all(&mut pages, class, &first[..inside]);
    // The page is gone, and its memory serves a large block.
    let (block, dirty) = pages.allocate_large(16 * 1024, SLOT, true).unwrap();
    assert_eq!(block, start);
    // SAFETY: the block has these bytes.
    let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), 16 * 1024) };
    assert!(dirty || bytes.iter().all(|&byte| byte == 0), "called clean, and is not");
}

/// A free block before a slot may have its mark in that slot, which then is not released.
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
    // SAFETY: the block is one of the class.
    assert!(unsafe { Block::is_free(across.cast().as_ptr()) });
    give_all(&mut pages, class, &other[..1]);
    give_all(&mut pages, class, &[live]);
    // The page is gone, and its memory serves a large block.
    let (block, dirty) = pages.allocate_large(16 * 1024, SLOT, true).unwrap();
    assert_eq!(block, start);
    // SAFETY: the block has these bytes.
    let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), 16 * 1024) };
    assert!(dirty || bytes.iter().all(|&byte| byte == 0), "called clean, and is not");
}

/// A page that was released in parts has blocks as long as it is listed, even if none starts in some of these parts.
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

/// Takes all memory in blocks of `class`, and returns how many there were.
fn drain(pages: &mut Pages<Linux>, class: usize) -> usize {
    std::iter::from_fn(|| allocate_one(pages, class)).count()
}

/// What other classes keep in empty pages and in bundles serves small requests before they fail.
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
            // SAFETY: the blocks are ours.
            chains.into_iter().for_each(|chain| unsafe { pages.free(class, chain) });
        }
    });
    assert_eq!(used_heap, fresh_heap);
}

/// What the system does not take back stays in the statistics. It is offered again, but not at every free or request.
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
    // The clock is looked at for one free in 64, and moves by a tenth of a second each time.
    let attempts = WORLD.with_borrow(|world| world.refusals) - before;
    assert!((10..=12).contains(&attempts), "{attempts} attempts in 10 seconds");
    WORLD.with_borrow_mut(|world| world.broken = false);
    assert_eq!((pages.trim(), pages.stats().dirty), (11 * BYTES, 0));
    assert!(pages.spans.has_exact_footprint());
}

/// Limits that become lower later hold for what is committed from then on, tables included, up to the last grain.
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

/// A place that a move may have lost is in no block again, and no other move is tried.
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
