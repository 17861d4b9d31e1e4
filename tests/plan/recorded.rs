//! Recorded plans: on recorded runs of PyTorch, and when runs differ from the plan.

use crate::trace::{self, Event};
use allotment::lock::{Spin, Unsync};
use allotment::plan::{PlanError, RecordedPlan, Recorder};
use allotment::planned::{IterationReport, PlannedHeap};
use allotment::{Heap, Memory, Region, Tlsf};
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;

/// Memory for a heap, freed at the end.
struct Backing {
    start: NonNull<u8>,
    layout: Layout,
}

impl Backing {
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size, 4096).unwrap();
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).unwrap();
        Self { start, layout }
    }

    fn heap(&self) -> Heap<Tlsf, Unsync> {
        let heap = Heap::empty();
        // SAFETY: the memory belongs to this value, which outlives the heap in every test.
        unsafe { heap.claim(Region::new(self.start, self.layout.size())) }.unwrap();
        heap
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Blocks of a planned heap, which are checked not to overlap and to keep their contents.
struct Blocks<'a, const N: usize> {
    heap: &'a PlannedHeap<Heap<Tlsf, Unsync>, N, Unsync>,
    live: BTreeMap<usize, (usize, Layout, *mut u8)>,
    failed: usize,
}

impl<'a, const N: usize> Blocks<'a, N> {
    fn new(heap: &'a PlannedHeap<Heap<Tlsf, Unsync>, N, Unsync>) -> Self {
        Self { heap, live: BTreeMap::new(), failed: 0 }
    }

    /// The address of a new block.
    fn allocate(&mut self, id: usize, size: usize, align: usize) -> Option<usize> {
        let layout = Layout::from_size_align(size, align).unwrap();
        // SAFETY: no trace has empty blocks.
        let block = unsafe { self.heap.alloc(layout) };
        if block.is_null() {
            self.failed += 1;
            return None;
        }
        let start = block.addr();
        assert_eq!(start % align, 0);
        let below = self.live.range(..=start).next_back();
        assert!(below.is_none_or(|(&at, (_, layout, _))| at + layout.size() <= start), "overlap below");
        assert!(self.live.range(start..).next().is_none_or(|(&at, _)| start + size <= at), "overlap above");
        // SAFETY: a live block of that size.
        unsafe { block.write_bytes(id as u8, size.min(64)) };
        self.live.insert(start, (id, layout, block));
        Some(start)
    }

    fn free(&mut self, start: usize) {
        let (id, layout, block) = self.live.remove(&start).unwrap();
        for k in 0..layout.size().min(64) {
            // SAFETY: the block is live, and was written up to there.
            assert_eq!(unsafe { block.add(k).read() }, id as u8, "block {id} was overwritten");
        }
        // SAFETY: the block is live and has this layout.
        unsafe { self.heap.dealloc(block, layout) };
    }

    fn run(&mut self, events: &[Event], addresses: &mut [Option<usize>]) {
        for event in events {
            match *event {
                Event::Allocate { id, size, align } => addresses[id] = self.allocate(id, size, align),
                Event::Free { id } => {
                    if let Some(start) = addresses[id].take() {
                        self.free(start);
                    }
                }
                Event::Reallocate { .. } => unreachable!("tensors are not resized"),
            }
        }
    }
}

/// A recorded run, split into the events before the iterations, the iterations, and the events after them.
struct Run {
    events: Vec<Event>,
    ids: usize,
    peak: usize,
    /// Where each iteration begins, and where the last one ends.
    bounds: Vec<usize>,
}

/// An iteration has `period` events, and the last `tail` events belong to none.
fn read(name: &str, iterations: usize, period: usize, tail: usize) -> Run {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tensors").join(name);
    let trace = trace::read(&path);
    let end = trace.events.len() - tail;
    let bounds = (0..=iterations).rev().map(|k| end - k * period).collect();
    Run { events: trace.events, ids: trace.ids, peak: trace.peak, bounds }
}

type Planned<const N: usize> = PlannedHeap<Heap<Tlsf, Unsync>, N, Unsync>;

/// Replays a run with a given plan, or with one that is made from the events before the iterations and made again
/// whenever an iteration was not allocated from it entirely. Returns the reports and the last plan.
fn replay<const N: usize>(
    run: &Run,
    memory: usize,
    plan: Option<&RecordedPlan<N>>,
) -> (Vec<IterationReport>, RecordedPlan<N>) {
    let backing = Backing::new(memory);
    let heap = Box::new(Planned::<N>::new(backing.heap()));
    let mut blocks = Blocks::new(&heap);
    let mut addresses = vec![None; run.ids];
    let mut reports = Vec::new();
    heap.begin();
    blocks.run(&run.events[..run.bounds[0]], &mut addresses);
    match plan {
        Some(plan) => heap.load(plan).unwrap(),
        None => heap.replan().unwrap(),
    }
    for bounds in run.bounds.windows(2) {
        heap.begin();
        blocks.run(&run.events[bounds[0]..bounds[1]], &mut addresses);
        let report = heap.report();
        reports.push(report);
        if report.hits < report.requests && plan.is_none() {
            heap.replan().unwrap();
        }
    }
    let plan = heap.plan();
    blocks.run(&run.events[*run.bounds.last().unwrap()..], &mut addresses);
    assert_eq!((blocks.failed, blocks.live.len()), (0, 0));
    drop(heap);
    (reports, plan)
}

fn serves_all(report: &IterationReport, requests: usize) {
    assert_eq!((report.requests, report.hits), (requests, requests));
    assert_eq!(report.bytes, report.planned_bytes);
    assert_eq!(report.hit_rate(), 1.0);
    let limit = report.lower_bound + report.lower_bound / 100;
    assert!(report.arena <= limit, "{} of {}", report.arena, report.lower_bound);
}

/// Four equal iterations after one that differs, because the optimiser creates its state in it.
fn training<const N: usize>(run: &Run, requests: usize, at_first: usize) {
    let (reports, plan) = replay::<N>(run, run.peak * 2, None);
    assert_eq!(reports.len(), 4);
    // With the plan of the first iteration, the second is allocated from it as far as the two are equal.
    assert_eq!((reports[0].requests, reports[0].hits), (requests, at_first));
    for report in &reports[1..] {
        serves_all(report, requests);
        assert!(report.saved > report.arena);
    }
    // With the recorded plan, another run is allocated from it from its second iteration on.
    let (reports, _) = replay::<N>(run, run.peak * 2, Some(&plan));
    for report in &reports {
        serves_all(report, requests);
    }
}

#[test]
fn training_a_residual_network() {
    training::<1024>(&read("resnet18_train.trace.zst", 4, 1426, 184), 713, 589);
}

#[test]
fn training_a_transformer() {
    training::<2048>(&read("gpt_train.trace.zst", 4, 2998, 304), 1499, 1499);
}

/// No two requests for a network have the same length: longer ones enlarge the plan, shorter ones fit.
#[test]
fn requests_of_random_lengths() {
    let run = read("bert_infer.trace.zst", 40, 298, 81);
    assert_eq!(run.bounds[0], 81);
    let (reports, plan) = replay::<256>(&run, run.peak + run.peak / 10, None);
    let (requests, hits) =
        reports.iter().fold((0, 0), |(r, h), report| (r + report.requests, h + report.hits));
    assert_eq!((reports.len(), requests, hits), (40, 5960, 5343));
    // Three lengths were longer than all before, and the first was new; all others are allocated from it entirely.
    assert_eq!(reports.iter().filter(|report| report.hits < report.requests).count(), 5);
    assert!(plan.peak() <= plan.lower_bound() + plan.lower_bound() / 100);
}

/// Makes requests of 100, 200 and 300 bytes, of which two are live at once, and replans for that.
fn three(heap: &Planned<8>) -> Blocks<'_, 8> {
    let mut blocks = Blocks::new(heap);
    heap.begin();
    let a = blocks.allocate(0, 100, 8).unwrap();
    let b = blocks.allocate(1, 200, 8).unwrap();
    blocks.free(a);
    let c = blocks.allocate(2, 300, 8).unwrap();
    blocks.free(b);
    blocks.free(c);
    assert_eq!(heap.report().hits, 0);
    heap.replan().unwrap();
    assert_eq!((heap.plan().len(), heap.plan().peak(), heap.plan().naive()), (3, 500, 608));
    heap.begin();
    blocks
}

#[test]
fn what_is_freed_too_late_is_not_overlapped() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    let mut blocks = three(&heap);
    let plan = heap.plan();
    // The first shares memory with the third.
    assert!(plan.offsets()[0] < plan.offsets()[2] + 300 && plan.offsets()[2] < plan.offsets()[0] + 100);
    let a = blocks.allocate(0, 100, 8).unwrap();
    let b = blocks.allocate(1, 200, 8).unwrap();
    let c = blocks.allocate(2, 300, 8).unwrap();
    assert_eq!(heap.report().hits, 2, "the third goes to the heap, since the first is still there");
    for block in [a, b, c] {
        blocks.free(block);
    }
}

#[test]
fn runs_that_differ_fall_back() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    let mut blocks = three(&heap);
    let hits = |sizes: &[usize], blocks: &mut Blocks<8>| {
        heap.begin();
        for &size in sizes {
            let block = blocks.allocate(0, size, 8).unwrap();
            blocks.free(block);
        }
        heap.report().hits
    };
    assert_eq!(hits(&[100, 200, 300], &mut blocks), 3);
    assert_eq!(hits(&[99, 1, 300], &mut blocks), 3, "smaller ones fit");
    assert_eq!(hits(&[200, 300], &mut blocks), 2, "one is left out");
    assert_eq!(hits(&[1000, 100, 200, 300], &mut blocks), 3, "one is new");
    assert_eq!(hits(&[100, 200, 301], &mut blocks), 2, "one is larger");
    assert_eq!(hits(&[100, 200, 300, 100], &mut blocks), 3, "one comes when the plan has ended");
    assert_eq!(hits(&[], &mut blocks), 0);
    assert_eq!(heap.report().hit_rate(), 1.0);
    // An alignment larger than recorded.
    heap.begin();
    let block = blocks.allocate(0, 100, 64).unwrap();
    blocks.free(block);
    assert_eq!(heap.report().hits, 0);
}

#[test]
fn places_grow_and_do_not_shrink() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    let mut blocks = Blocks::new(&heap);
    let mut hits = |sizes: [usize; 2]| {
        heap.begin();
        let both = sizes.map(|size| blocks.allocate(0, size, 8).unwrap());
        both.into_iter().for_each(|block| blocks.free(block));
        let report = heap.report();
        if report.hits < 2 {
            heap.replan().unwrap();
        }
        (report.hits, heap.report().arena)
    };
    assert_eq!(hits([100, 48]), (0, 148));
    assert_eq!(hits([48, 100]), (1, 204));
    assert_eq!(hits([100, 100]), (2, 204));
    // A different number of requests leads to a different plan.
    heap.begin();
    let block = blocks.allocate(0, 500, 8).unwrap();
    blocks.free(block);
    heap.replan().unwrap();
    assert_eq!(heap.report().arena, 500);
}

#[test]
fn plans_change_only_when_nothing_lives_in_them() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    let mut blocks = three(&heap);
    let a = blocks.allocate(0, 100, 8).unwrap();
    assert_eq!(heap.replan(), Err(PlanError::Busy { live: 1 }));
    assert_eq!(heap.plan().len(), 3);
    blocks.free(a);
    // The heap has no room for the plan, so all requests go to the heap.
    let mut recorder = Recorder::<8>::new();
    recorder.allocated(1, 1 << 20, 8);
    recorder.freed(1);
    assert_eq!(heap.load(&recorder.plan().unwrap()), Err(PlanError::OutOfMemory { requested: 1 << 20 }));
    heap.begin();
    let a = blocks.allocate(0, 100, 8).unwrap();
    assert_eq!((heap.report().hits, heap.report().requests, heap.report().arena), (0, 1, 0));
    blocks.free(a);
    assert_eq!(heap.heap().used(), 0, "the arena was given back");
    drop(blocks);
    heap.load(&RecordedPlan::EMPTY).unwrap();
    drop(heap);
}

#[test]
fn the_arena_is_given_back() {
    let backing = Backing::new(16 * 1024);
    let shared = backing.heap();
    let heap = PlannedHeap::<_, 4, Unsync>::new(&shared);
    let mut recorder = Recorder::<4>::new();
    recorder.allocated(1, 1000, 64);
    recorder.freed(1);
    heap.load(&recorder.plan().unwrap()).unwrap();
    assert!(shared.used() >= 1000);
    drop(heap);
    assert_eq!(shared.used(), 0);
}

#[test]
fn planned_memory_can_be_zeroed() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    drop(three(&heap));
    let layout = Layout::from_size_align(100, 8).unwrap();
    for planned in [1, 0] {
        heap.begin();
        // SAFETY: the layout is not empty; the block is written and read within it, and freed.
        unsafe {
            if planned == 0 {
                heap.load(&RecordedPlan::EMPTY).unwrap();
            }
            let block = heap.alloc(layout);
            block.write_bytes(7, 100);
            heap.dealloc(block, layout);
            heap.begin();
            let block = heap.alloc_zeroed(layout);
            assert_eq!(heap.report().hits, planned);
            assert_eq!(std::slice::from_raw_parts(block, 100), [0; 100]);
            let block = heap.realloc(block, layout, 200);
            assert_eq!(std::slice::from_raw_parts(block, 100), [0; 100]);
            heap.dealloc(block, Layout::from_size_align(200, 8).unwrap());
        }
    }
}

/// A block of no bytes has an address that no other block has, and is freed where it was allocated: in the arena, not behind it.
#[test]
fn requests_of_no_bytes_have_places() {
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    let layouts = [64, 0, 0].map(|size| Layout::from_size_align(size, 1).unwrap());
    let mut recorder = Recorder::<8>::new();
    // As another program may have recorded it.
    layouts.iter().enumerate().for_each(|(at, layout)| recorder.allocated(at, layout.size(), 1));
    (0..3).for_each(|at| recorder.freed(at));
    heap.load(&recorder.plan().unwrap()).unwrap();
    for hits in [1, 3, 3] {
        heap.begin();
        let mut blocks = layouts.map(|layout| heap.try_allocate(layout).unwrap());
        let freed = blocks.into_iter().zip(layouts);
        // SAFETY: each block is live and has this layout.
        freed.for_each(|(block, layout)| unsafe { heap.try_deallocate(block, layout) }.unwrap());
        blocks.sort_unstable();
        assert!(blocks.is_sorted_by(|a, b| a < b), "{blocks:?}");
        assert_eq!(heap.report().hits, hits);
        heap.replan().unwrap();
    }
    assert_eq!(heap.heap().stats().live_blocks, 1, "the arena");
}

#[test]
#[cfg(feature = "allocator-api2")]
fn collections_can_be_planned() {
    use allocator_api2::vec::Vec;
    let backing = Backing::new(16 * 1024);
    let heap = Planned::<8>::new(backing.heap());
    for round in 0..2 {
        heap.begin();
        let mut numbers = Vec::with_capacity_in(50, &heap);
        numbers.extend(0..100u32);
        assert_eq!(numbers.iter().sum::<u32>(), 4950);
        let empty: Vec<u32, _> = Vec::new_in(&heap);
        drop((numbers, empty));
        let report = heap.report();
        assert_eq!((report.requests, report.hits), (2, 2 * round));
        heap.replan().unwrap();
    }
}

#[test]
fn recorders_have_room_for_some() {
    let mut recorder = Recorder::<2>::new();
    for k in 0..3 {
        recorder.allocated(k, 10, 1);
    }
    recorder.freed(0);
    recorder.freed(2);
    assert_eq!((recorder.requests().len(), recorder.lost()), (2, 1));
    // The second outlives the iteration.
    assert_eq!(recorder.plan().unwrap().len(), 1);
    recorder.clear();
    assert_eq!(
        (recorder.requests(), recorder.lost(), recorder.plan().unwrap().is_empty()),
        (&[][..], 0, true)
    );
    recorder.allocated(1, 10, 3);
    recorder.freed(1);
    assert!(recorder.plan().is_err());
    recorder.clear();
    recorder.allocated(1, usize::MAX, 1);
    recorder.freed(1);
    assert!(recorder.plan().is_err());
}

#[test]
fn threads_share_a_plan() {
    static HEAP: PlannedHeap<Heap<Tlsf, Spin>, 64, Spin> = PlannedHeap::new(allotment::heap!(256 * 1024));
    for _ in 0..20 {
        HEAP.begin();
        std::thread::scope(|scope| {
            for id in 0..4u8 {
                scope.spawn(move || {
                    for k in 1..16usize {
                        let layout = Layout::from_size_align(k * 24, 8).unwrap();
                        // SAFETY: the block is written and read within its layout, and freed.
                        unsafe {
                            let block = HEAP.alloc(layout);
                            block.write_bytes(id, layout.size());
                            std::thread::yield_now();
                            assert!((0..layout.size()).all(|k| block.add(k).read() == id));
                            HEAP.dealloc(block, layout);
                        }
                    }
                });
            }
        });
        assert_eq!(HEAP.report().requests, 60);
        HEAP.replan().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// Iterations that differ at random: nothing overlaps and nothing is lost.
    #[test]
    fn random_iterations(iterations in proptest::collection::vec(
        proptest::collection::vec((any::<bool>(), 1..6usize, any::<usize>()), 1..40), 1..8))
    {
        let backing = Backing::new(64 * 1024);
        let heap = Planned::<16>::new(backing.heap());
        let mut blocks = Blocks::new(&heap);
        let mut live = Vec::new();
        for (k, iteration) in iterations.iter().enumerate() {
            heap.begin();
            for &(allocate, size, pick) in iteration {
                if allocate || live.is_empty() {
                    live.extend(blocks.allocate(live.len(), size * 40, 8 << (pick % 3)));
                } else {
                    blocks.free(live.swap_remove(pick % live.len()));
                }
            }
            if k % 3 != 2 {
                live.drain(..).for_each(|block| blocks.free(block));
            }
            match heap.replan() {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, PlanError::Busy { .. }), "{error}"),
            }
        }
        live.drain(..).for_each(|block| blocks.free(block));
        assert_eq!(blocks.failed, 0);
    }
}
