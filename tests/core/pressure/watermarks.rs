//! Pressure states, transitions, and what depends on them.

use super::{Local, feed, free, layout};
use crate::shadow::{Case, Shadow, Subject, random_run_on};
use allotment::observe::Statistics;
use allotment::placement::Placement;
use allotment::pressure::Pressure::{Critical, Low, Normal};
use allotment::pressure::{Amount, Pressure, PressureHeap, Transition, Watermarks};
use allotment::region::Run;
use allotment::{Buddy, FirstFit, FreeError, Heap, Memory, Region, RegionError, Slab, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::RefCell;
use std::ptr::NonNull;

/// A heap with watermarks passes the shadow allocator's checks like a plain one.
#[test]
fn a_heap_under_watch_is_a_heap() {
    fn run<P: Subject + 'static>() {
        for seed in 0..4 {
            let watched =
                Local::<P>::new(Heap::empty()).watermarks(Watermarks::percent(60, 20)).on_transition(&|_| ());
            let shadow = Shadow::over(Case::of::<P>(), |_| Box::new(watched), &[(60_000, 0), (9_001, 5)]);
            random_run_on(shadow, seed, 6_000, 900, 64);
        }
    }
    run::<Tlsf>();
    run::<FirstFit>();
    run::<Buddy>();
    run::<Slab>();
}

thread_local! {
    static SEEN: RefCell<Vec<(Pressure, Pressure)>> = const { RefCell::new(Vec::new()) };
}

fn note(transition: Transition) {
    SEEN.with_borrow_mut(|seen| seen.push((transition.from, transition.to)));
}

fn seen() -> Vec<(Pressure, Pressure)> {
    SEEN.take()
}

#[test]
fn each_transition_is_told_once() {
    let heap = Local::<Tlsf>::new(Heap::empty())
        .watermarks(Watermarks::bytes(4000, 1000).hysteresis(Amount::Bytes(500)))
        .on_transition(&note);
    feed(&heap, 10_000);
    let free_now = heap.free_bytes();
    assert_eq!((heap.pressure(), seen()), (Normal, vec![]));
    let first = free_now - 4000;
    let a = heap.try_allocate(layout(first)).unwrap();
    assert_eq!((heap.pressure(), seen()), (Normal, vec![]), "at the mark itself nothing is wanting");
    let b = heap.try_allocate(layout(16)).unwrap();
    assert_eq!((heap.pressure(), seen()), (Low, vec![(Normal, Low)]));
    let c = heap.try_allocate(layout(2984)).unwrap();
    assert_eq!((heap.pressure(), seen()), (Low, vec![]));
    let d = heap.try_allocate(layout(16)).unwrap();
    assert_eq!((heap.pressure(), seen()), (Critical, vec![(Low, Critical)]));
    free(&heap, d, 16);
    assert_eq!((heap.pressure(), seen()), (Critical, vec![]), "hysteresis");
    free(&heap, c, 2984);
    assert_eq!((heap.pressure(), seen()), (Low, vec![(Critical, Low)]));
    free(&heap, b, 16);
    assert_eq!((heap.pressure(), seen()), (Low, vec![]), "hysteresis");
    free(&heap, a, first);
    assert_eq!((heap.pressure(), seen()), (Normal, vec![(Low, Normal)]));
    // A single request may pass both marks, and so may a block that is resized in place.
    let all = heap.try_allocate(layout(heap.largest_free())).unwrap();
    assert_eq!(seen(), vec![(Normal, Critical)]);
    // SAFETY: the block is live and has that layout.
    assert!(unsafe { heap.try_resize(all, layout(free_now), 8) });
    assert_eq!(seen(), vec![(Critical, Normal)]);
    // SAFETY: the block is live and has that layout.
    assert!(unsafe { heap.try_resize(all, layout(8), free_now) });
    assert_eq!(seen(), vec![(Normal, Critical)]);
    free(&heap, all, free_now);
    // So may the methods of the global allocator.
    let (all, one) = (layout(heap.largest_free()), layout(16));
    seen();
    // SAFETY: blocks are used with their layouts.
    unsafe {
        let block = heap.alloc_zeroed(all);
        assert_eq!(seen(), vec![(Normal, Critical)]);
        let block = heap.realloc(block, all, 16);
        assert_eq!(seen(), vec![(Critical, Normal)]);
        heap.dealloc(block, one);
    }
}

#[test]
fn percents_follow_the_capacity() {
    let heap = Local::<Tlsf>::new(Heap::empty()).watermarks(Watermarks::percent(50, 10)).on_transition(&note);
    assert_eq!(heap.pressure(), Normal, "a heap without memory is not short of it");
    feed(&heap, 10_000);
    let block = heap.try_allocate(layout(6000)).unwrap();
    assert_eq!(heap.pressure(), Low);
    seen();
    let mut more = super::Backing::new(10_000, 0);
    let region = more.region();
    // SAFETY: the memory outlives the region's use.
    unsafe { heap.claim(region) }.unwrap();
    assert_eq!((heap.pressure(), seen()), (Normal, vec![(Low, Normal)]));
    heap.release(region.start.as_ptr()).unwrap();
    assert_eq!((heap.pressure(), seen()), (Low, vec![(Normal, Low)]));
    free(&heap, block, 6000);
}

/// The hook runs outside the lock, may use the heap, and is not entered again by its own effects.
#[test]
fn the_hook_may_use_the_heap() {
    use allotment::lock::Lock;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// A lock that fails the test when it is taken twice; other locks would wait forever.
    struct Strict(AtomicBool);
    // SAFETY: it is held once at a time, or it panics.
    unsafe impl Lock for Strict {
        const INIT: Self = Self(AtomicBool::new(false));
        type Token = ();
        fn acquire(&self) {
            assert!(!self.0.swap(true, SeqCst), "a hook runs inside the lock");
        }
        unsafe fn release(&self, (): ()) {
            self.0.store(false, SeqCst);
        }
    }

    static HEAP: PressureHeap<Tlsf, Strict> = PressureHeap::new(allotment::heap!(20_000))
        .watermarks(Watermarks::bytes(8000, 3000).hysteresis(Amount::Bytes(0)))
        .on_transition(&hook);
    static TOLD: Mutex<Vec<(Pressure, Pressure)>> = Mutex::new(Vec::new());
    static DEPTH: AtomicUsize = AtomicUsize::new(0);
    static KEPT: AtomicUsize = AtomicUsize::new(0);

    fn hook(transition: Transition) {
        assert_eq!(DEPTH.fetch_add(1, SeqCst), 0, "the hook is entered twice");
        TOLD.lock().unwrap().push((transition.from, transition.to));
        if transition.to == Low {
            // More than the hook should take: critical from here on.
            let block = HEAP.try_allocate(layout(6000)).unwrap();
            assert_eq!(HEAP.pressure(), Critical);
            KEPT.store(block.addr().get(), SeqCst);
        }
        DEPTH.fetch_sub(1, SeqCst);
    }

    let block = HEAP.try_allocate(layout(13_000)).unwrap();
    assert_eq!(*TOLD.lock().unwrap(), [(Normal, Low), (Low, Critical)]);
    let kept = NonNull::new(std::ptr::with_exposed_provenance_mut(KEPT.load(SeqCst))).unwrap();
    // SAFETY: both blocks are live, with these layouts.
    unsafe {
        HEAP.try_deallocate(block, layout(13_000)).unwrap();
        HEAP.try_deallocate(kept, layout(6000)).unwrap();
    }
    assert_eq!(TOLD.lock().unwrap()[2..], [(Critical, Normal)]);
}

#[test]
fn pressure_outside_counts_as_long_as_it_is_worse() {
    let heap = Local::<Tlsf>::new(Heap::empty()).watermarks(Watermarks::percent(50, 10)).on_transition(&note);
    feed(&heap, 10_000);
    heap.set_outside_pressure(Critical);
    assert_eq!((heap.pressure(), seen()), (Critical, vec![(Normal, Critical)]));
    let block = heap.try_allocate(layout(6000)).unwrap();
    assert_eq!((heap.pressure(), seen()), (Critical, vec![]));
    heap.set_outside_pressure(Normal);
    assert_eq!((heap.pressure(), seen()), (Low, vec![(Critical, Low)]));
    free(&heap, block, 6000);
    assert_eq!((heap.pressure(), seen()), (Normal, vec![(Low, Normal)]));
}

/// A placement that logs how saving is switched on and off.
pub struct Switched {
    inner: Tlsf,
    pub log: Vec<bool>,
}

// SAFETY: all calls are passed on.
unsafe impl Placement for Switched {
    const EMPTY: Self = Self { inner: <Tlsf as Placement>::EMPTY, log: Vec::new() };
    const MAX_REGION: usize = <Tlsf as Placement>::MAX_REGION;
    const MAX_REGIONS: usize = <Tlsf as Placement>::MAX_REGIONS;
    const REMEMBERS: bool = false;
    const MOVES_TO_SHRINK: bool = false;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.inner.claim(memory, statistics) }
    }
    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.inner.extend(start, gap, bytes, statistics) }
    }
    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        self.inner.release(start, statistics)
    }
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.inner.allocate_fast(layout, statistics)
    }
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.inner.allocate_slow(layout, statistics)
    }
    fn allocate_zeroed<S: Statistics>(
        &mut self,
        layout: Layout,
        statistics: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        self.inner.allocate_zeroed(layout, statistics)
    }
    fn has_shorter(&self, _: Layout, _: usize) -> bool {
        false
    }
    unsafe fn free_fast<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.inner.free_fast(start, layout, statistics) }
    }
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.inner.free(start, layout, statistics) }
    }
    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.inner.resize(start, layout, size, statistics) }
    }
    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { Placement::check_owned(&self.inner, start, layout) }
    }
    fn largest_free(&self) -> usize {
        Placement::largest_free(&self.inner)
    }
    fn trim(&mut self) -> bool {
        Placement::trim(&mut self.inner)
    }
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        Placement::walk(&self.inner, region, visit);
    }
    fn region(&self, n: usize) -> Option<Region> {
        Placement::region(&self.inner, n)
    }
    fn set_saving(&mut self, on: bool) {
        self.log.push(on);
    }
}

fn log(heap: &Local<Switched>) -> Vec<bool> {
    // SAFETY: the log does not affect the placement.
    unsafe { heap.with_placement(|placement| std::mem::take(&mut placement.log)) }
}

/// Saving is switched on with the first pressure of any degree, and off when the pressure ends.
#[test]
fn saving_is_switched_with_the_pressure() {
    let heap = Local::<Switched>::new(Heap::empty()).watermarks(Watermarks::percent(50, 20));
    feed(&heap, 10_000);
    let a = heap.try_allocate(layout(6000)).unwrap();
    assert_eq!(log(&heap), [true]);
    let b = heap.try_allocate(layout(2500)).unwrap();
    assert_eq!((heap.pressure(), log(&heap)), (Critical, vec![]));
    free(&heap, b, 2500);
    assert_eq!((heap.pressure(), log(&heap)), (Low, vec![]));
    free(&heap, a, 6000);
    assert_eq!(log(&heap), [false]);
    heap.set_outside_pressure(Low);
    heap.set_outside_pressure(Critical);
    heap.set_outside_pressure(Normal);
    assert_eq!(log(&heap), [true, false]);

    let heap = Local::<Switched>::new(Heap::empty()).watermarks(Watermarks::percent(50, 20)).saves(false);
    feed(&heap, 10_000);
    heap.try_allocate(layout(9000)).unwrap();
    assert_eq!((heap.pressure(), log(&heap)), (Critical, vec![]));
}

/// Much memory in short pieces is pressure, and the hook hears of its end too.
#[test]
fn short_pieces_are_pressure() {
    let heap = Local::<Tlsf>::new(Heap::empty())
        .watermarks(Watermarks::NONE.largest(Amount::Bytes(1600), Amount::Bytes(320)))
        .on_transition(&note);
    feed(&heap, 64 * 1024);
    let blocks: Vec<_> = std::iter::from_fn(|| heap.try_allocate(layout(256)).ok()).collect();
    assert_eq!(seen(), vec![(Normal, Low), (Low, Critical)]);
    // Every other block: half of the memory is free, and no piece is longer than 256 bytes.
    // The last one, beside what is left of the memory, is kept.
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.iter().rev().enumerate().partition(|(n, _)| n % 2 == 0);
    freed.iter().for_each(|&(_, &block)| free(&heap, block, 256));
    assert!(heap.free_bytes() > 30_000 && heap.largest_free() < 320);
    assert_eq!((heap.pressure(), seen()), (Critical, vec![]));
    // A free that joins pieces leaves the state by steps.
    for &(_, &block) in &kept {
        free(&heap, block, 256);
    }
    assert_eq!((heap.pressure(), seen()), (Normal, vec![(Critical, Low), (Low, Normal)]));
    // A resize in place counts as well.
    let all = heap.try_allocate(layout(heap.largest_free())).unwrap();
    assert_eq!(seen(), vec![(Normal, Critical)]);
    let size = heap.stats().used;
    // SAFETY: the block is live and has that layout.
    assert!(unsafe { heap.try_resize(all, layout(size), 8) });
    assert_eq!(seen(), vec![(Critical, Normal)]);
    free(&heap, all, 8);
}
