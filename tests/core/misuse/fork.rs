//! Children of a program with threads, which may use protected heaps.

use crate::forked::{_exit, fork, succeeds};
use allotment::cores::{Cores, PerCore};
use allotment::observe::{Observation, Observer, Profile};
use allotment::os::{Cached, Depot, ForkError, protect_at_fork};
use allotment::zones::{Zone, Zones};
use allotment::{Heap, Memory, Observed, Tlsf, heap, region::Capabilities};
use std::array;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Allocates and frees, several of the smallest blocks at a time, so that the cores exchange them. Returns whether all requests were satisfied.
fn work(heap: &(dyn Memory + Sync)) -> bool {
    (1..100).all(|n| {
        // Up to more than caches keep.
        let size = n * n / 2 + 1;
        let layout = super::layout(size);
        let count = if size < 50 { 8 } else { 1 };
        let blocks: [_; 8] = array::from_fn(|place| if place < count { heap.allocate(layout) } else { None });
        let is_served = blocks[0].is_some();
        for block in blocks.into_iter().flatten() {
            // SAFETY: the block is freed once, with its layout.
            unsafe {
                block.write_bytes(1, size);
                heap.deallocate(block, layout);
            }
        }
        is_served
    })
}

/// Each thread is a core.
struct Threads;

thread_local! {
    static CORE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

// SAFETY: each thread has its own number.
unsafe impl Cores for Threads {
    type Token = ();

    fn enter() -> (usize, ()) {
        (CORE.with(|core| *core), ())
    }

    unsafe fn leave((): ()) {}
}

/// Forks while threads use the heaps, and lets the children use them.
fn fork_beside<const N: usize>(heaps: [&'static (dyn Memory + Sync); N]) {
    // One at a time: each takes all processors.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stop: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let worker = |_| {
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                assert!(heaps.iter().all(|heap| work(*heap)));
            }
        })
    };
    let workers: Vec<_> = (0..3).map(worker).collect();
    let all_end = (0..60).all(|_| {
        // SAFETY: the child uses nothing but the heaps and leaves without cleaning up.
        unsafe {
            let child = fork();
            assert!(child >= 0);
            if child == 0 {
                _exit(i32::from(!heaps.iter().all(|heap| work(*heap))));
            }
            succeeds(child)
        }
    });
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all_end, "a child hung or failed");
}

#[test]
fn children_can_allocate() {
    static HEAP: Heap = heap!(1024 * 1024);
    static OTHER: Heap<Tlsf> = heap!(64 * 1024);
    protect_at_fork(&HEAP).unwrap();
    protect_at_fork(&OTHER).unwrap();
    protect_at_fork(&HEAP).unwrap();
    fork_beside([&HEAP, &OTHER]);
}

/// Makes one test of children for each front.
macro_rules! fronts {
    ($($name:ident: $type:ty = $front:expr;)+) => {$(
        #[test]
        fn $name() {
            static FRONT: $type = $front;
            protect_at_fork(&FRONT).unwrap();
            fork_beside([Box::leak(Box::new(&FRONT))]);
        }
    )+};
}

static BEHIND: Heap = heap!(64 * 1024);
static DEPOT: Depot = Depot::new(&BEHIND, 4 * 1024);
static SRAM: Heap<Tlsf> = heap!(16 * 1024);
static SDRAM: Observed<Heap, Profile> = Observed::new(heap!(64 * 1024), Profile::new());

fronts! {
    tiny_heap: allotment::TinyHeap<{ 64 * 1024 }> = allotment::TinyHeap::new();
    counted_lock: Heap<Tlsf, allotment::lock::Counted> = heap!(64 * 1024);
    observers: Observed<Heap, Profile> = Observed::new(heap!(64 * 1024), Profile::new());
    pressure: allotment::pressure::PressureHeap = allotment::pressure::PressureHeap::new(heap!(64 * 1024));
    bounded: allotment::Bounded<Heap> = allotment::Bounded::new(heap!(64 * 1024), 32 * 1024);
    sealable: allotment::Sealable<Heap> = allotment::Sealable::new(heap!(64 * 1024));
    kept: allotment::Kept<Heap> = allotment::Kept::new(heap!(64 * 1024), 1000, 2000);
    timed: allotment::Timed<Heap> = allotment::Timed::new(heap!(64 * 1024), || 0);
    planned: allotment::PlannedHeap<Heap, 8> = allotment::PlannedHeap::new(heap!(64 * 1024));
    failing: allotment::inject::Failing<Heap, allotment::inject::Fail> =
        allotment::inject::Failing::new(heap!(64 * 1024), allotment::inject::Fail::Only(usize::MAX));
    // Its depot has no lock.
    cached: Cached = Cached::new(&DEPOT);
    per_core: PerCore<Heap, Threads, allotment::lock::Futex, 8, 16> = PerCore::new(heap!(64 * 1024));
    zones: Zones<'static, 2> = Zones::new([
        Zone::new("sram", &SRAM, Capabilities::INTERNAL).up_to(40),
        Zone::new("sdram", &SDRAM, Capabilities::EXTERNAL),
    ]);
    reference: Observed<allotment::Bounded<&'static Heap>, Profile> =
        Observed::new(allotment::Bounded::new(&BEHIND, 32 * 1024), Profile::new());
}

#[cfg(target_os = "linux")]
fronts! {
    guarded: allotment::os::Guarded<Heap> = allotment::os::Guarded::new(heap!(64 * 1024), 2);
}

#[cfg(feature = "spin")]
fronts! {
    spinning: Observed<Heap<Tlsf, allotment::lock::Spin>, Profile, allotment::lock::Spin> =
        Observed::new(heap!(64 * 1024), Profile::new());
}

/// An observer may use another heap, whose lock a fork may have by then.
#[test]
fn an_observer_that_allocates() {
    struct Notes;
    impl Observer for Notes {
        fn observe(&mut self, _: &Observation<'_>) {
            assert!(work(&NOTES));
        }
    }
    static NOTES: Heap = heap!(64 * 1024);
    static HEAP: Observed<Heap, Notes> = Observed::new(heap!(64 * 1024), Notes);
    // In this order, the worse one.
    protect_at_fork(&NOTES).unwrap();
    protect_at_fork(&HEAP).unwrap();
    fork_beside([&HEAP, &NOTES]);
}

/// What cannot be held is refused, also behind a front.
#[cfg(feature = "critical-section")]
#[test]
fn other_locks_are_refused() {
    type Critical = Heap<Tlsf, allotment::lock::CriticalSection>;
    static HEAP: Critical = heap!(16 * 1024);
    static FRONT: Observed<&Critical, Profile> = Observed::new(&HEAP, Profile::new());
    assert_eq!(protect_at_fork(&HEAP), Err(ForkError::UnknownLock));
    assert_eq!(protect_at_fork(&FRONT), Err(ForkError::UnknownLock));
}
