//! How much longer a heap is enough for a program when it saves memory under pressure: recorded programs are replayed in
//! arenas that are too small, until the first request fails.
//!
//! `cargo test --test core outlive -- --nocapture` prints the table.

use super::{Backing, Local, layout};
use crate::shadow::trace::{self, Event, Trace};
use allotment::observe::{NoStatistics, Statistics};
use allotment::placement::Placement;
use allotment::pressure::{PressureHeap, Watermarks};
use allotment::region::Run;
use allotment::{BestFit, Buddy, FirstFit, FreeError, Heap, Region, RegionError, Slab, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;
use std::sync::LazyLock;

static TRACES: LazyLock<Vec<Trace>> =
    LazyLock::new(|| trace::paths().iter().map(|path| trace::read(path)).collect());

/// Returns the events of `trace` that a heap of `arena` bytes satisfies before a request fails, without and with
/// saving. Both runs use the same memory, since its address matters to some placements.
fn both<P: Placement>(trace: &Trace, arena: usize) -> [usize; 2] {
    let mut backing = Backing::new(arena, 0);
    [false, true].map(|saves| life::<P>(trace, backing.region(), saves))
}

fn life<P: Placement>(trace: &Trace, memory: Region, saves: bool) -> usize {
    let heap: Local<P> =
        PressureHeap::new(Heap::empty()).watermarks(Watermarks::percent(25, 10)).saves(saves);
    // SAFETY: the memory outlives the heap.
    unsafe { heap.claim(memory) }.unwrap();
    let mut blocks: Vec<Option<(*mut u8, Layout)>> = vec![None; trace.ids];
    for (served, event) in trace.events.iter().enumerate() {
        // SAFETY: blocks are live, with their layouts, and nothing is written to them.
        unsafe {
            match *event {
                Event::Allocate { id, size, align } => {
                    let layout = Layout::from_size_align(size, if align == 0 { 8 } else { align }).unwrap();
                    let block = heap.alloc(layout);
                    if block.is_null() {
                        return served;
                    }
                    blocks[id] = Some((block, layout));
                }
                Event::Reallocate { id, size } => {
                    let (block, old) = blocks[id].unwrap();
                    let new = Layout::from_size_align(size, old.align()).unwrap();
                    let moved = heap.realloc(block, old, size);
                    if moved.is_null() {
                        return served;
                    }
                    blocks[id] = Some((moved, new));
                }
                Event::Free { id } => {
                    if let Some((block, layout)) = blocks[id].take() {
                        heap.dealloc(block, layout);
                    }
                }
            }
        }
    }
    trace.events.len()
}

/// Returns the smallest arena, in steps of 1/256 of the peak, in which a trace runs to its end. (If the need is not
/// monotone, the first one from below.)
fn smallest<P: Placement>(trace: &Trace, saves: bool) -> usize {
    (256..)
        .find(|step| {
            let mut backing = Backing::new(trace.peak * step / 256, 0);
            life::<P>(trace, backing.region(), saves) == trace.events.len()
        })
        .unwrap()
}

/// Returns the events satisfied without and with saving, summed over arenas from 1 to 1.25 times each trace's peak.
fn lives<P: Placement>(name: &str) -> [usize; 2] {
    let mut sums = [0; 2];
    for trace in TRACES.iter() {
        let mut events = [0; 2];
        for step in 32..40 {
            let served = both::<P>(trace, trace.peak * step / 32);
            events = [events[0] + served[0], events[1] + served[1]];
        }
        let longer = events[1] as f64 / events[0] as f64;
        println!("{name:>10} {:>16} {:>9} {:>9} {longer:>8.3}", trace.name, events[0], events[1]);
        sums = [sums[0] + events[0], sums[1] + events[1]];
    }
    println!(
        "{name:>10} {:>16} {:>9} {:>9} {:>8.3}",
        "all",
        sums[0],
        sums[1],
        sums[1] as f64 / sums[0] as f64
    );
    sums
}

/// Whatever a placement does to save memory, heaps last for at least as many events in total.
#[test]
fn saving_heaps_live_longer() {
    println!("{:>10} {:>16} {:>9} {:>9} {:>8}", "placement", "trace", "without", "with", "longer");
    for (name, [without, with]) in [
        ("tlsf", lives::<Tlsf>("tlsf")),
        ("first-fit", lives::<FirstFit>("first-fit")),
        ("best-fit", lives::<BestFit>("best-fit")),
        ("buddy", lives::<Buddy>("buddy")),
        ("slab", lives::<Slab>("slab")),
        ("tiered", lives::<allotment::Tiered>("tiered")),
    ] {
        assert!(with >= without, "{name}: {with} events with saving, {without} without");
    }
    let [without, with] = lives::<Quick<Tlsf>>("quick");
    assert!(with > without + without / 20, "{with} events with saving, {without} without");
    let needs = |saves| -> f64 {
        let need = |trace| smallest::<Quick<Tlsf>>(trace, saves) as f64 / 256.0;
        TRACES.iter().map(need).sum::<f64>() / TRACES.len() as f64
    };
    let [without, with] = [needs(false), needs(true)];
    println!("quick: a whole trace needs {without:.3} times its peak without saving, {with:.3} with");
    assert!(with < without);
}

/// Lists of freed blocks by size, which are allocated again before the inner placement is asked (Weinstock and
/// Wulf, "Quick Fit", 1988). This stands for any cache in a placement, which must be given up and refused under
/// pressure.
struct Quick<P> {
    inner: P,
    cached: [Vec<NonNull<u8>>; CLASSES],
    saving: bool,
}

/// Cached sizes are multiples of 8 up to this many times 8.
const CLASSES: usize = 64;
/// The number of blocks cached per size.
const DEPTH: usize = 64;

fn class(layout: Layout) -> Option<usize> {
    let class = layout.size().max(1).div_ceil(8) - 1;
    (class < CLASSES && layout.align() <= 8).then_some(class)
}

fn rounded(request: Layout) -> Layout {
    class(request).map_or(request, |class| layout((class + 1) * 8))
}

// SAFETY: a cached block is a live, unused block of the inner placement, and is allocated only for requests of its
// size.
unsafe impl<P: Placement> Placement for Quick<P> {
    const EMPTY: Self = Self { inner: P::EMPTY, cached: [const { Vec::new() }; CLASSES], saving: false };
    const MAX_REGION: usize = P::MAX_REGION;
    const MAX_REGIONS: usize = P::MAX_REGIONS;
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
        let cached = class(layout).and_then(|class| self.cached[class].pop());
        if cached.is_some() {
            statistics.allocated(rounded(layout).size());
            return cached;
        }
        self.inner.allocate(rounded(layout), statistics)
    }
    fn allocate_slow<S: Statistics>(&mut self, _: Layout, _: &mut S) -> Option<NonNull<u8>> {
        None
    }
    fn allocate_zeroed<S: Statistics>(
        &mut self,
        _: Layout,
        _: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        None
    }
    fn has_shorter(&self, _: Layout, _: usize) -> bool {
        false
    }
    unsafe fn free_fast<S: Statistics>(&mut self, _: NonNull<u8>, _: Layout, _: &mut S) -> bool {
        false
    }
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        match class(layout) {
            Some(class) if !self.saving && self.cached[class].len() < DEPTH => {
                self.cached[class].push(start);
                statistics.freed(rounded(layout).size());
                Ok(())
            }
            // SAFETY: the caller's contract.
            _ => unsafe { self.inner.free(start, rounded(layout), statistics) },
        }
    }
    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.inner.resize(start, rounded(layout), size.next_multiple_of(8), statistics) }
    }
    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.inner.check_owned(start, rounded(layout)) }
    }
    fn largest_free(&self) -> usize {
        self.inner.largest_free()
    }
    fn trim(&mut self) -> bool {
        self.inner.trim()
    }
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        self.inner.walk(region, visit);
    }
    fn region(&self, n: usize) -> Option<Region> {
        self.inner.region(n)
    }
    fn set_saving(&mut self, on: bool) {
        self.saving = on;
        self.inner.set_saving(on);
        for (class, blocks) in self.cached.iter_mut().enumerate().filter(|_| on) {
            for block in blocks.drain(..) {
                // SAFETY: cached blocks are live blocks of the inner placement, of this size.
                unsafe { self.inner.free(block, layout((class + 1) * 8), &mut NoStatistics) }.unwrap();
            }
        }
    }
}
