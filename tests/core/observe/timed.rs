//! Histograms of latencies with a clock of the test's own, and contention of a lock that refuses when the test says so.

use super::layout;
use allotment::lock::{Contention, Counted, Lock, Spin, Unsync};
use allotment::observe::Profile;
use allotment::{FreeError, Heap, Memory, Observed, OutOfMemory, Region, Timed, Tlsf, heap};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

std::thread_local! {
    /// The time, and how much of it each operation takes.
    static NOW: Cell<u64> = const { Cell::new(0) };
    static TAKES: Cell<u64> = const { Cell::new(0) };
}

fn now() -> u64 {
    NOW.get()
}

fn pass(ticks: u64) {
    NOW.set(NOW.get() + ticks);
}

/// Memory whose operations take the time that the test sets.
struct Slow(Heap<Tlsf, Unsync>);

// SAFETY: the heap keeps the contract.
unsafe impl Memory for Slow {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        pass(TAKES.get());
        self.0.allocate(layout)
    }
    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        pass(TAKES.get());
        self.0.allocate_zeroed(layout)
    }
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        pass(TAKES.get());
        // SAFETY: the caller's contract.
        unsafe { self.0.deallocate(block, layout) }
    }
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        pass(TAKES.get());
        // SAFETY: the caller's contract.
        unsafe { Memory::try_deallocate(&self.0, block, layout) }
    }
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.0.check(block, layout)
    }
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        pass(TAKES.get());
        // SAFETY: the caller's contract.
        unsafe { Memory::try_resize(&self.0, block, layout, size) }
    }
    fn largest_free(&self) -> usize {
        Memory::largest_free(&self.0)
    }
    fn region(&self, n: usize) -> Option<Region> {
        self.0.region(n)
    }
    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        Memory::out_of_memory(&self.0, layout)
    }
}

#[test]
fn operations_are_counted_by_the_time_they_take() {
    let mut memory = vec![0u128; 1000];
    let timed = Timed::<Slow, Unsync>::new(Slow(Heap::empty()), now);
    // SAFETY: the memory outlives the heap.
    unsafe { timed.memory().0.claim(Region::new(memory.as_mut_ptr(), 16_000)) }.unwrap();
    NOW.set(1000);
    let after = |ticks| TAKES.set(ticks);
    let blocks = [0, 1, 7, 8, 15, 1 << 40].map(|ticks| {
        after(ticks);
        timed.allocate(layout(100)).unwrap()
    });
    let timings = timed.timings();
    assert_eq!(timings.allocate.histogram().collect::<Vec<_>>(), [(1, 2), (4, 1), (8, 2), (1 << 31, 1)]);
    assert_eq!((timings.allocate.count, timings.allocate.longest), (6, 1 << 40));
    assert_eq!(timings.allocate.total, 31 + (1 << 40));
    let within = [0, 333, 334, 500, 501, 833, 834, 1000, 2000].map(|share| timings.allocate.within(share));
    assert_eq!(within, [1, 1, 7, 7, 15, 15, 1 << 40, 1 << 40, 1 << 40]);
    assert_eq!((timings.grown, timings.elapsed), (600, 31 + (1 << 40)));
    assert_eq!((timings.free.count, timings.resize.count, timings.free.within(990)), (0, 0, 0));

    // From here on, only what comes now.
    assert_eq!(timed.take(), timings);
    assert_eq!((timed.timings().allocate.count, timed.timings().elapsed), (0, 0));
    let [first, second, ..] = blocks;
    after(5);
    // SAFETY: the blocks are live, have these layouts, and are freed once.
    unsafe {
        assert!(timed.try_resize(first, layout(100), 40));
        assert!(!timed.try_resize(first, layout(40), 100_000), "it fails, and takes its time");
        after(3);
        timed.deallocate(first, layout(40));
        timed.try_deallocate(second, layout(100)).unwrap();
        let wrong = timed.try_deallocate(second, layout(100));
        assert!(wrong.is_err(), "{wrong:?}");
    }
    after(100);
    assert_eq!(timed.allocate(layout(100_000)), None);
    let timings = timed.take();
    assert_eq!(timings.resize.histogram().collect::<Vec<_>>(), [(4, 2)]);
    assert_eq!(timings.free.histogram().collect::<Vec<_>>(), [(2, 3)]);
    assert_eq!(timings.allocate.within(500), 100, "at most the longest");
    assert_eq!((timings.grown, timings.elapsed), (-200, 119));
    assert_eq!((timings.growth(119), timings.growth(1190), timed.timings().growth(1)), (-200, -2000, 0));
    pass(50);
    let block = timed.allocate_zeroed(layout(60)).unwrap();
    pass(50);
    assert_eq!((timed.timings().grown, timed.timings().growth(1000)), (60, 300));
    after(0);
    // SAFETY: the block is live and has this layout, and is given up for the new one.
    let moved = unsafe { timed.change(block, layout(60), layout(2000), &mut |_| ()) };
    assert!(moved.is_some());
    assert_eq!((timed.timings().grown, timed.timings().resize.count), (2000, 1));
    // A clock that goes backwards.
    NOW.set(0);
    assert_eq!(timed.timings().elapsed, 0);
}

/// Wrapped by observers, and used from several threads, all is counted.
#[test]
fn fronts_and_threads() {
    type Measured = Timed<Heap<Tlsf, Counted<Spin>>, Spin>;
    static HEAP: Observed<Measured, Profile, Spin> =
        Observed::new(Timed::new(heap!(64 * 1024), now), Profile::new());
    let work = || {
        for _ in 0..500 {
            let block = HEAP.try_allocate(layout(40)).unwrap();
            // SAFETY: the block is live and has this layout.
            unsafe { HEAP.deallocate(block, layout(40)) };
        }
    };
    std::thread::scope(|scope| [scope.spawn(work), scope.spawn(work)].map(|thread| thread.join().unwrap()));
    let timings = HEAP.memory().timings();
    assert_eq!((timings.allocate.count, timings.free.count, timings.grown), (1000, 1000, 0));
    let Contention { taken, waited } = HEAP.memory().memory().contention();
    assert!(taken >= 2000 && waited <= taken, "{taken} {waited}");
}

/// A lock that is held whenever the test says so.
struct Held;

std::thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: the tests use one thread for each such lock.
unsafe impl Lock for Held {
    const INIT: Self = Self;
    type Token = ();
    fn acquire(&self) {
        HELD.set(false);
    }
    fn try_acquire(&self) -> Option<()> {
        (!HELD.get()).then_some(())
    }
    unsafe fn release(&self, (): ()) {}
}

#[test]
fn a_lock_that_is_held_is_counted_once() {
    let lock = Counted::<Held>::INIT;
    let ran = Cell::new(0);
    let run = || {
        ran.set(ran.get() + 1);
        ran.get()
    };
    assert_eq!((lock.with(run), lock.contention()), (1, Contention { taken: 1, waited: 0 }));
    HELD.set(true);
    assert_eq!((lock.with(run), lock.contention()), (2, Contention { taken: 2, waited: 1 }));
    HELD.set(true);
    assert_eq!(lock.try_lock().unwrap().unlock_returning(run()), 3);
    assert_eq!((ran.get(), lock.contention()), (3, Contention { taken: 3, waited: 2 }));
}

/// The counts are exact, since they are inside the lock; and so is what the lock guards.
#[test]
fn a_counted_lock_excludes() {
    static LOCK: Counted<Spin> = Counted::INIT;
    struct Guarded(Cell<usize>);
    // SAFETY: the cell is used only under the lock.
    unsafe impl Sync for Guarded {}
    static COUNT: Guarded = Guarded(Cell::new(0));
    let work = || {
        for _ in 0..5000 {
            LOCK.with(|| COUNT.0.set(COUNT.0.get() + 1));
        }
    };
    std::thread::scope(|scope| [scope.spawn(work), scope.spawn(work)].map(|thread| thread.join().unwrap()));
    assert_eq!((COUNT.0.get(), LOCK.contention().taken), (10_000, 10_000));
}
