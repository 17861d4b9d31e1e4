//! The map of a heap: it contains all memory exactly once, no live block in free runs, and no free byte is missing.

use allotment::lock::Unsync;
use allotment::placement::{MicroTlsf, Placement};
use allotment::region::Run;
use allotment::{BestFit, Buddy, Bump, FirstFit, Heap, Region, Slab, Tiered, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// A heap over two regions, and its live blocks by address.
struct Subject<P: Placement> {
    heap: Heap<P, Unsync>,
    memory: [Vec<u128>; 2],
    live: BTreeMap<usize, Layout>,
    /// Bytes of a block that may appear free: none, unless its contents look like bookkeeping.
    tolerance: usize,
}

/// What the map must agree with.
#[derive(Clone, Copy, PartialEq)]
enum Detail {
    /// Free bytes agree with the statistics.
    Exact,
    /// Some free memory counts as in use.
    Coarse,
    /// A request may get more than one free block: a whole region.
    Buddies,
}

impl<P: Placement> Subject<P> {
    fn new() -> Self {
        let heap = Heap::empty();
        let mut memory = [vec![0; 3000], vec![0; 1700]];
        for part in &mut memory {
            let region = Region::new(NonNull::from(part.as_mut_slice()).cast(), part.len() * 16);
            // SAFETY: the memory lives as long as the heap.
            unsafe { heap.claim(region) }.unwrap();
        }
        Self { heap, memory, live: BTreeMap::new(), tolerance: 0 }
    }

    fn check(&self, detail: Detail) {
        let runs: Vec<Run> = self.heap.blocks().collect();
        assert!(runs.iter().all(|run| run.size > 0), "an empty run in {runs:x?}");
        for pair in runs.windows(2) {
            let near = pair[0].start + pair[0].size;
            let region = |address: usize| self.region(address).unwrap();
            let apart = region(pair[0].start) != region(pair[1].start);
            assert!(near == pair[1].start || apart, "{pair:x?} leave a gap or overlap");
            let merged = detail == Detail::Exact && !apart;
            assert!(!merged || pair[0].free || pair[1].free, "{pair:x?}: what is in use is one run");
        }
        let sum = |free: bool| runs.iter().filter(|run| run.free == free).map(|run| run.size).sum::<usize>();
        let stats = self.heap.stats();
        // The map counts as memory of buddies, since a region that is allocated whole has it.
        let marks = match detail {
            Detail::Buddies => stats.capacity / 62 + 512,
            Detail::Coarse => stats.capacity / 16 + 256,
            _ => 0,
        };
        let seen = sum(true) + sum(false);
        assert!(
            seen <= stats.capacity && stats.capacity - seen <= marks,
            "all memory is seen once: {seen} {stats:?}"
        );
        match detail {
            Detail::Coarse => assert!(sum(true) <= stats.free),
            _ => assert!(sum(true) <= stats.free && stats.free - sum(true) <= marks),
        }
        for (&block, layout) in &self.live {
            let inside =
                |run: &&Run| run.free && run.start < block + layout.size() && block < run.start + run.size;
            for free in runs.iter().filter(inside) {
                let (start, end) =
                    (block.max(free.start), (block + layout.size()).min(free.start + free.size));
                assert!(end - start <= self.tolerance, "{:x?} of {block:#x} is in {free:x?}", start..end);
            }
        }
        let largest = runs.iter().filter(|run| run.free).map(|run| run.size).max().unwrap_or(0);
        assert!(largest >= self.heap.largest_free() || matches!(detail, Detail::Coarse | Detail::Buddies));
    }

    fn region(&self, address: usize) -> Option<usize> {
        self.memory.iter().position(|part| {
            let start = part.as_ptr().addr();
            (start..start + part.len() * 16).contains(&address)
        })
    }

    fn run(mut self, detail: Detail, imitate: bool) {
        self.tolerance = if imitate { 8 } else { 0 };
        let mut random = fastrand::Rng::with_seed(5);
        self.check(detail);
        for step in 0..4000 {
            let target = if step / 500 % 2 == 0 { 70 } else { 35 };
            let size = if random.u8(0..4) > 0 { random.usize(1..200) } else { random.usize(1..4000) };
            // SAFETY: blocks are live and have their layouts.
            unsafe {
                if random.u32(0..100) < target {
                    let layout = Layout::from_size_align(size, 1 << random.u32(0..8)).unwrap();
                    let block = self.heap.alloc(layout);
                    if !block.is_null() {
                        let word = if imitate { random.u32(0..40) } else { random.u32(1 << 24..) | 0xff00 };
                        (0..size).for_each(|at| block.add(at).write(word.to_le_bytes()[at % 4]));
                        self.live.insert(block.addr(), layout);
                    }
                } else if let Some(block) =
                    self.live.keys().copied().nth(random.usize(0..self.live.len().max(1)))
                {
                    let layout = self.live.remove(&block).unwrap();
                    let part = &self.memory[self.region(block).unwrap()];
                    self.heap.dealloc(part.as_ptr().with_addr(block).cast_mut().cast(), layout);
                }
            }
            if step % 23 == 0 {
                self.check(detail);
            }
        }
    }
}

fn plain<P: Placement>(detail: Detail) {
    Subject::<P>::new().run(detail, false);
    Subject::<P>::new().run(detail, true);
}

#[test]
fn blocks_of_all_placements() {
    plain::<Tlsf>(Detail::Exact);
    plain::<BestFit>(Detail::Exact);
}

#[test]
fn maps_beside_the_memory() {
    plain::<FirstFit>(Detail::Exact);
    plain::<FirstFit<2, false>>(Detail::Exact);
}

#[test]
fn small_regions() {
    plain::<MicroTlsf>(Detail::Exact);
    plain::<BestFit<u16, 4, 2>>(Detail::Exact);
}

#[test]
fn buddies_have_free_neighbours() {
    plain::<Buddy>(Detail::Buddies);
    let mut buddies = Subject::<Buddy>::new();
    buddies.check(Detail::Buddies);
    // A region that is allocated as a whole is one block in use, whatever is written to it.
    let layout = Layout::from_size_align(3000 * 16 - 64, 8).unwrap();
    let whole = buddies.heap.try_allocate(layout).unwrap();
    // SAFETY: the block is live and has that many bytes.
    unsafe { (0..layout.size() / 4).for_each(|at| whole.cast::<u32>().add(at).write(1)) };
    buddies.live.insert(whole.addr().get(), layout);
    buddies.check(Detail::Buddies);
    assert_eq!(buddies.heap.blocks().filter(|run| !run.free).count(), 1);
}

#[test]
fn what_bump_has_passed_is_in_use() {
    let mut bump = Subject::<Bump>::new();
    bump.check(Detail::Exact);
    for size in [100, 40_000, 20_000, 500] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let block = bump.heap.try_allocate(layout).unwrap();
        bump.live.insert(block.addr().get(), layout);
        bump.check(Detail::Coarse);
    }
    let layout = Layout::from_size_align(8, 8).unwrap();
    while let Ok(block) = bump.heap.try_allocate(layout) {
        bump.live.insert(block.addr().get(), layout);
    }
    bump.check(Detail::Coarse);
    assert!(bump.heap.blocks().all(|run| !run.free), "nothing is left");
    // A visitor that has seen enough sees no more.
    assert_eq!(bump.heap.blocks().take(1).count(), 1);
}

#[test]
fn pages_are_in_use_as_a_whole() {
    plain::<Slab>(Detail::Coarse);
    plain::<Tiered>(Detail::Coarse);
}

/// The heap may be used while a run is handled.
#[test]
fn the_heap_may_change_meanwhile() {
    let mut subject = Subject::<FirstFit>::new();
    let layout = Layout::from_size_align(24, 8).unwrap();
    let blocks: Vec<_> = (0..900).map(|_| subject.heap.try_allocate(layout).unwrap()).collect();
    // SAFETY: blocks are live and freed with their layout.
    unsafe {
        blocks.iter().step_by(2).for_each(|block| subject.heap.dealloc(block.as_ptr(), layout));
        let mut last = [0; 2];
        for (n, run) in subject.heap.blocks().enumerate() {
            let region = subject.region(run.start).unwrap();
            assert!(run.start >= last[region] && run.size > 0, "no byte is seen twice");
            last[region] = run.start + run.size;
            // From the far end towards the walk, and around its position.
            if let Some(block) = blocks.iter().skip(1).step_by(2).rev().nth(n) {
                subject.heap.dealloc(block.as_ptr(), layout);
            }
        }
    }
    subject.live.clear();
    subject.check(Detail::Exact);
}

/// An empty heap has no map.
#[test]
fn no_memory_no_runs() {
    assert_eq!(Heap::<Tlsf, Unsync>::empty().blocks().next(), None);
}
