//! `Observed` around every front, driven by the shadow allocator: blocks are the same as without it, and observers
//! see everything.

use super::{layout, replay};
use crate::shadow::{self, Case, Front, Shadow, Subject};
use allotment::Observed;
use allotment::lock::{Spin, Unsync};
use allotment::observe::{Leaks, Observation, Observer, Operation, Profile, Stats, Tags, Trace};
use allotment::{FirstFit, FreeError, Heap, Memory, Region, RegionError, Slab, Tiered, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;

/// A model: the expected observations in a separate table.
#[derive(Default)]
struct Model {
    live: BTreeMap<usize, Layout>,
    peak: usize,
    moves: usize,
    fails: usize,
    recorded: Vec<u8>,
}

impl Observer for Model {
    fn observe(&mut self, observation: &Observation<'_>) {
        match observation.operation {
            Operation::Allocate { block, layout } => assert_eq!(self.live.insert(block, layout), None),
            Operation::Reallocate { block, layout, to, size } => {
                assert_eq!(self.live.remove(&block), Some(layout));
                self.moves += usize::from(to != block);
                let new = Layout::from_size_align(size, layout.align()).unwrap();
                assert_eq!(self.live.insert(to, new), None);
            }
            Operation::Free { block, layout } => assert_eq!(self.live.remove(&block), Some(layout)),
            Operation::Fail { .. } => self.fails += 1,
        }
        self.peak = self.peak.max(self.live.values().map(Layout::size).sum());
    }
}

type All = (Model, Profile, Leaks<4096>, Tags<2, 4096>, Trace<{ 1 << 16 }>);
type Watched<P> = Observed<Heap<P, Unsync>, &'static mut All, Unsync>;

/// Made on the heap, since it is too large for a stack.
fn all() -> &'static mut All {
    Box::leak(Box::default())
}

/// All observers agree with the model, which agrees with the memory.
fn agree((model, profile, leaks, tags, trace): &mut All, used: usize) {
    let bytes: usize = model.live.values().map(Layout::size).sum();
    assert!(bytes <= used || used == 0, "{bytes} bytes asked for in {used}");
    assert_eq!((profile.live_blocks, profile.live_bytes), (model.live.len(), bytes));
    assert_eq!((profile.peak_bytes, profile.moves), (model.peak, model.moves));
    assert_eq!(profile.failures, model.fails);
    assert_eq!(profile.allocations - profile.frees, profile.live_blocks);
    assert_eq!(profile.histogram().map(|(_, (live, _))| live).sum::<usize>(), profile.live_blocks);
    let mut listed: Vec<_> = leaks.blocks().map(|block| (block.address, block.size)).collect();
    listed.sort();
    assert!(listed.iter().copied().eq(model.live.iter().map(|(&block, layout)| (block, layout.size()))));
    assert_eq!((leaks.unlisted(), tags.unlisted()), (0, 0));
    let untagged = tags.of(None);
    assert_eq!((untagged.live_blocks, untagged.live_bytes), (profile.live_blocks, profile.live_bytes));
    assert_eq!((untagged.peak_bytes, untagged.failures), (model.peak, model.fails));
    trace.drain(|part| model.recorded.extend(part));
    assert_eq!(trace.lost(), 0);
    let left = replay(&model.recorded);
    assert!(
        left.into_iter().eq(model.live.iter().map(|(&block, layout)| (block as u64, layout.size() as u64)))
    );
}

impl<P: Subject> Front for Watched<P> {
    fn stats(&self) -> Stats {
        self.memory().stats()
    }
    fn largest_free(&self) -> usize {
        self.memory().largest_free()
    }
    fn trim(&self) {
        self.memory().trim();
    }
    unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.memory().claim(region) }
    }
    fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        let used = self.memory().stats().used;
        self.observers(|all| agree(all, used));
        self.memory().release(start)
    }
}

fn watched<P: Subject + 'static>() {
    #[cfg(not(feature = "std"))]
    let _core = super::tags::ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    for seed in 0..4 {
        let ready = |_| -> Box<dyn Front> { Box::new(Watched::<P>::new(Heap::empty(), all())) };
        let shadow = Shadow::over(Case::of::<P>(), ready, &[(40_000, 0), (30_000, 8)]);
        shadow::random_run_on(shadow, seed, 6_000, 900, 64);
    }
}

#[test]
fn a_heap_is_what_it_was() {
    watched::<Tlsf>();
    watched::<FirstFit>();
    watched::<Tiered>();
    watched::<Slab>();
}

/// Performs random operations on any memory through `GlobalAlloc`, and frees everything at the end.
fn run(memory: &impl GlobalAlloc, steps: usize, mut look: impl FnMut()) {
    let mut random = fastrand::Rng::with_seed(11);
    let mut live: Vec<(*mut u8, Layout)> = Vec::new();
    for step in 0..steps {
        let size = if random.bool() { random.usize(1..100) } else { random.usize(1..3000) };
        let wanted = Layout::from_size_align(size, 1 << random.u32(0..6)).unwrap();
        // SAFETY: blocks are live and have the layouts that are kept with them.
        unsafe {
            match random.u32(0..10) {
                0..=4 => {
                    let zeroed = random.bool();
                    let block = if zeroed { memory.alloc_zeroed(wanted) } else { memory.alloc(wanted) };
                    if !block.is_null() {
                        block.write_bytes(0xee, size);
                        live.push((block, wanted));
                    }
                }
                5..=6 if !live.is_empty() => {
                    let at = random.usize(0..live.len());
                    let (block, old) = live[at];
                    let new = memory.realloc(block, old, size);
                    if !new.is_null() {
                        live[at] = (new, Layout::from_size_align(size, old.align()).unwrap());
                    }
                }
                _ if !live.is_empty() => {
                    let (block, layout) = live.swap_remove(random.usize(0..live.len()));
                    memory.dealloc(block, layout);
                }
                _ => {}
            }
        }
        if step % 500 == 0 {
            look();
        }
    }
    for (block, layout) in live {
        // SAFETY: as above.
        unsafe { memory.dealloc(block, layout) };
    }
    look();
}

/// Runs the same on any observed memory.
fn observe(memory: impl Memory) {
    #[cfg(not(feature = "std"))]
    let _core = super::tags::ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let observed = Observed::<_, _, Unsync>::new(memory, all());
    run(&observed, 6000, || observed.observers(|all| agree(all, 0)));
    let (fails, moves) = observed.observers(|all| (all.0.fails, all.0.moves));
    assert!(fails > 10 && moves > 100, "{fails} fails, {moves} moves: the arena is not tight");
    observed.observers(|all| assert!(all.0.live.is_empty()));
}

fn region(size: usize) -> Region {
    let memory = vec![0u128; size / 16].leak();
    Region::new(NonNull::from(&mut *memory).cast(), size)
}

fn heap<P: allotment::placement::Placement>(size: usize) -> Heap<P, Spin> {
    let heap = Heap::empty();
    // SAFETY: the memory is leaked and this heap's alone.
    unsafe { heap.claim(region(size)) }.unwrap();
    heap
}

#[test]
fn a_reference_to_a_heap() {
    let heap = heap::<Tlsf>(60_000);
    observe(&heap);
}

#[test]
fn a_compact_heap() {
    use allotment::TinyHeap;
    let heap: &'static TinyHeap<60_000, Spin> = Box::leak(Box::new(TinyHeap::new()));
    observe(heap);
}

#[test]
fn a_heap_under_pressure() {
    use allotment::pressure::{PressureHeap, Watermarks};
    let heap =
        PressureHeap::<Tlsf, Spin>::new(Heap::empty()).watermarks(Watermarks::percent(40, 15)).headroom(512);
    // SAFETY: the memory is leaked and this heap's alone.
    unsafe { heap.claim(region(60_000)) }.unwrap();
    observe(heap);
}

#[test]
fn zones() {
    use allotment::region::Capabilities as Can;
    use allotment::zones::{Zone, Zones};
    let (fast, bulk): (&'static _, &'static _) =
        (Box::leak(Box::new(heap::<Tlsf>(20_000))), Box::leak(Box::new(heap::<FirstFit>(40_000))));
    observe(
        Zones::<2, 8, Spin>::new([
            Zone::new("fast", fast, Can::FAST).up_to(256),
            Zone::new("bulk", bulk, Can::EXTERNAL).above(256).cache_line(64),
        ])
        .fallback(&[1]),
    );
}

#[cfg(feature = "std")]
#[test]
fn caches_per_thread() {
    use allotment::os::{Cached, Depot};
    let heap: &'static Heap<Tiered, Spin> = Box::leak(Box::new(heap(100_000)));
    let depot: &'static Depot<Heap<Tiered, Spin>> = Box::leak(Box::new(Depot::new(heap, 8 * 1024)));
    observe(Cached::new(depot));
}

/// Another thread gets the block that was just freed, before the freeing thread has left the heap.
#[test]
fn an_address_comes_back_before_it_is_handed_out_again() {
    struct Busy<F: Fn(Layout)>(Heap<Tlsf, Unsync>, F);
    // SAFETY: the heap fulfils the contract.
    unsafe impl<F: Fn(Layout)> Memory for Busy<F> {
        fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
            self.0.allocate(layout)
        }
        fn check(&self, _: NonNull<u8>, _: Layout) -> Result<(), FreeError> {
            Ok(())
        }
        unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
            // SAFETY: the caller's contract.
            unsafe { self.0.dealloc(block.as_ptr(), layout) };
            self.1(layout);
        }
        unsafe fn try_resize(&self, _: NonNull<u8>, _: Layout, _: usize) -> bool {
            false
        }
        fn largest_free(&self) -> usize {
            self.0.largest_free()
        }
        fn region(&self, n: usize) -> Option<Region> {
            self.0.region(n)
        }
    }
    type Taken = Box<dyn Fn(Layout)>;
    let heap = Heap::empty();
    // SAFETY: the memory is leaked and this heap's alone.
    unsafe { heap.claim(region(20_000)) }.unwrap();
    let other: std::rc::Rc<std::cell::OnceCell<Taken>> = Default::default();
    let calls = other.clone();
    let busy = Busy(heap, move |layout| calls.get().unwrap()(layout));
    let observed: &'static _ = Box::leak(Box::new(Observed::<_, Model, Unsync>::new(busy, Model::default())));
    let taken = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let takes = taken.clone();
    let take = move |layout| takes.borrow_mut().push(observed.try_allocate(layout).unwrap());
    assert!(other.set(Box::new(take)).is_ok());
    let [a, b, c] = [16, 32, 48].map(|size| observed.try_allocate(layout(size)).unwrap());
    // SAFETY: blocks are live and freed with their layouts.
    unsafe {
        observed.dealloc(a.as_ptr(), layout(16));
        observed.try_deallocate(b, layout(32)).unwrap();
        assert!(!observed.realloc(c.as_ptr(), layout(48), 400).is_null());
    }
    assert_eq!(*taken.borrow(), [a, b, c], "each was taken at once");
    assert_eq!(observed.observers(|model| model.live.len()), 4);
}

/// A zone can be observed by itself.
#[test]
fn a_zone_of_observed_memory() {
    use allotment::region::Capabilities as Can;
    use allotment::zones::{Zone, Zones};
    let observed: &'static Observed<_, Profile, Spin> =
        Box::leak(Box::new(Observed::new(heap::<Tlsf>(20_000), Profile::new())));
    let zones = Zones::<1, 8, Spin>::new([Zone::new("only", observed, Can::FAST)]);
    let block = zones.allocate(layout(100), Can::FAST).unwrap();
    assert_eq!(observed.observers(|profile| profile.live_bytes), 100);
    // SAFETY: the block is live and this is its layout.
    unsafe { zones.deallocate(block.cast(), layout(100)) }.unwrap();
    assert_eq!(observed.observers(|profile| (profile.live_bytes, profile.frees)), (0, 1));
}

#[cfg(feature = "allocator-api2")]
#[test]
fn collections() {
    use allocator_api2::vec::Vec;
    let observed =
        Observed::<_, (Profile, Trace<4096>), Unsync>::new(heap::<Tlsf>(20_000), Default::default());
    let mut numbers = Vec::new_in(&observed);
    for number in 0..500u32 {
        numbers.push(number);
    }
    let profile = observed.observers(|all| all.0);
    assert_eq!((profile.live_blocks, profile.live_bytes), (1, numbers.capacity() * 4));
    assert!(profile.allocations == 1 && profile.reallocations >= 5, "growing is one operation: {profile:?}");
    drop(numbers);
    let mut bytes = std::vec::Vec::new();
    observed.observers(|all| all.1.drain(|part| bytes.extend(part)));
    assert!(replay(&bytes).is_empty());
}

/// A refused operation is not observed.
#[test]
fn refused_frees_are_not_told() {
    let observed = Observed::<_, Profile, Unsync>::new(heap::<Tlsf>(20_000), Profile::new());
    let block = observed.try_allocate(layout(100)).unwrap();
    let odd = block.map_addr(|address| address.saturating_add(1));
    let mut foreign = 0u64;
    // SAFETY: invalid frees are found by the check; the last one is right.
    unsafe {
        assert_eq!(observed.try_deallocate(odd, layout(100)), Err(FreeError::Misaligned));
        let foreign = NonNull::from(&mut foreign).cast();
        assert_eq!(observed.try_deallocate(foreign, layout(8)), Err(FreeError::Foreign));
        assert_eq!(observed.observers(|profile| (profile.frees, profile.live_bytes)), (0, 100));
        observed.try_deallocate(block, layout(100)).unwrap();
    }
    assert_eq!(observed.observers(|profile| (profile.frees, profile.live_bytes)), (1, 0));
}

/// `()` leaves only a lock.
#[test]
fn no_observer_no_cost() {
    struct Never;
    impl Observer for Never {
        const ACTIVE: bool = false;
        fn observe(&mut self, _: &Observation<'_>) {
            panic!("not called");
        }
    }
    let observed = Observed::<_, (Never, ()), Unsync>::new(heap::<Tlsf>(20_000), (Never, ()));
    let block = observed.try_allocate(layout(100)).unwrap();
    // SAFETY: the block is live and this is its layout.
    unsafe { observed.try_deallocate(block, layout(100)) }.unwrap();
    assert!(size_of::<Observed<Heap<Tlsf, Unsync>, (), Unsync>>() <= size_of::<Heap<Tlsf, Unsync>>() + 8);
    fn active<O: Observer>(_: &O) -> (bool, bool, u32) {
        (O::ACTIVE, O::LISTS, O::BACKTRACES)
    }
    assert_eq!(active(&(Never, ())), (false, false, 0));
    assert_eq!(active(&((), Profile::new())), (true, false, 0));
    assert_eq!(active(&(Profile::new(), Leaks::<2>::new())), (true, true, 0));
}

/// Observers cannot be entered from within themselves.
#[test]
#[should_panic(expected = "in use")]
fn observers_inside_observers() {
    let observed = Observed::<_, Profile, Unsync>::new(heap::<Tlsf>(20_000), Profile::new());
    observed.observers(|_| observed.observers(|_| ()));
}

/// The closure that uses the observers may use the memory if the lock allows it, and is not observed. A panic
/// releases the observers.
#[test]
fn what_the_observers_do_is_not_observed() {
    let observed = Observed::<_, Profile, Unsync>::new(heap::<Tlsf>(20_000), Profile::new());
    observed.observers(|_| {
        let block = observed.try_allocate(layout(100)).unwrap();
        // SAFETY: the block is live and this is its layout.
        unsafe { observed.try_deallocate(block, layout(100)) }.unwrap();
    });
    assert_eq!(observed.observers(|profile| *profile), Profile::new());
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        observed.observers(|_| panic!("in the user's closure"));
    }));
    assert!(caught.is_err());
    assert_eq!(observed.observers(|profile| *profile), Profile::new());
}
