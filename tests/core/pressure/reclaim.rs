//! Reclaim hooks and the hook on failures.

use super::{Local, feed, free, layout};
use allotment::lock::Spin;
use allotment::pressure::{PressureHeap, Reclaim, Shortage, Watermarks};
use allotment::{Heap, Memory, OutOfMemory, Tlsf, heap};
use std::alloc::GlobalAlloc;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

type TestHeap = Local<Tlsf>;

/// A hook for one thread: a cache of blocks of one size that gives up one block at a time.
struct Cache {
    heap: &'static TestHeap,
    name: &'static str,
    size: usize,
    blocks: RefCell<Vec<NonNull<u8>>>,
    calls: RefCell<Vec<Shortage>>,
    /// What the hook does before it gives anything back.
    before: Cell<Option<fn(&'static TestHeap)>>,
}

// SAFETY: every test stays on its thread.
unsafe impl Sync for Cache {}

thread_local! {
    static ORDER: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

impl Cache {
    fn new(heap: &'static TestHeap, name: &'static str, size: usize, count: usize) -> &'static Self {
        let blocks = (0..count).map(|_| heap.try_allocate(layout(size)).unwrap()).collect();
        let (blocks, calls, before) = (RefCell::new(blocks), RefCell::default(), Cell::new(None));
        Box::leak(Box::new(Self { heap, name, size, blocks, calls, before }))
    }
}

impl Cache {
    /// The hook that takes a block from this cache.
    fn hook(&'static self) -> &'static Reclaim {
        Box::leak(Box::new(|shortage: &Shortage| self.reclaim(shortage)))
    }

    fn reclaim(&self, shortage: &Shortage) -> usize {
        ORDER.with_borrow_mut(|order| order.push(self.name));
        self.calls.borrow_mut().push(*shortage);
        if let Some(before) = self.before.get() {
            before(self.heap);
        }
        let Some(block) = self.blocks.borrow_mut().pop() else { return 0 };
        free(self.heap, block, self.size);
        self.size
    }
}

fn order() -> Vec<&'static str> {
    ORDER.take()
}

/// A heap of about 10,000 bytes.
fn test_heap() -> &'static TestHeap {
    let heap: &'static TestHeap = Box::leak(Box::new(TestHeap::new(Heap::empty()).on_out_of_memory(&lament)));
    feed(heap, 10_000);
    heap
}

thread_local! {
    static LAMENTS: RefCell<Vec<OutOfMemory>> = const { RefCell::new(Vec::new()) };
}

fn lament(error: &OutOfMemory) {
    LAMENTS.with_borrow_mut(|laments| laments.push(*error));
}

/// Fills the heap with blocks of 8 bytes.
fn fill(heap: &'static TestHeap) -> Vec<NonNull<u8>> {
    std::iter::from_fn(|| if heap.largest_free() >= 8 { heap.try_allocate(layout(8)).ok() } else { None })
        .collect()
}

#[test]
fn hooks_are_asked_in_order_until_there_is_room() {
    let heap = test_heap();
    let [first, second, third] =
        [("first", 2), ("second", 1), ("third", 5)].map(|(name, count)| Cache::new(heap, name, 400, count));
    heap.register(9, third.hook()).unwrap();
    heap.register(0, first.hook()).unwrap();
    heap.register(7, second.hook()).unwrap();
    fill(heap);
    // The blocks of the caches lie side by side, so one of each makes 800 bytes.
    let large = heap.try_allocate(layout(800)).unwrap();
    assert_eq!(order(), ["first", "second"]);
    let shortage = first.calls.borrow()[0];
    assert_eq!((shortage.requested, shortage.align, shortage.reclaimed), (800, 8, 0));
    assert!(shortage.largest_free < 400);
    assert_eq!(second.calls.borrow()[0].reclaimed, 400);
    // One block is enough.
    let block = heap.try_allocate(layout(400)).unwrap();
    assert_eq!(order(), ["first"]);
    // A hook with nothing to give is skipped.
    let again = heap.try_allocate(layout(400)).unwrap();
    assert_eq!(order(), ["first", "second", "third"]);
    assert_eq!(third.calls.borrow()[0].reclaimed, 0);
    assert_eq!((LAMENTS.take().len(), heap.stats().failed), (0, 0), "recovered requests did not fail");
    for (block, size) in [(block, 400), (large, 800), (again, 400)] {
        free(heap, block, size);
    }
}

#[test]
fn the_last_hook_sees_the_error() {
    let heap = test_heap();
    let cache = Cache::new(heap, "cache", 400, 2);
    heap.register(0, cache.hook()).unwrap();
    let error = heap.try_allocate(layout(50_000)).unwrap_err();
    assert_eq!((error.requested, error.align), (50_000, 8));
    assert_eq!(LAMENTS.take(), [error]);
    let stats = heap.stats();
    assert_eq!((stats.failed, stats.largest_failed, stats.free), (1, 50_000, error.free));
    // SAFETY: no block is used.
    assert!(unsafe { heap.alloc(layout(50_000)) }.is_null());
    // SAFETY: as above.
    assert!(unsafe { heap.alloc_zeroed(layout(50_000)) }.is_null());
    assert_eq!((LAMENTS.take().len(), heap.stats().failed), (2, 3));
}

/// Memory that a hook gave back is zero if zeroed memory was requested, and a block that has to move in a full heap
/// keeps its contents.
#[test]
fn recovered_blocks_are_as_asked_for() {
    let heap = test_heap();
    let cache = Cache::new(heap, "cache", 400, 4);
    for block in cache.blocks.borrow().iter() {
        // SAFETY: the block is live and has that many bytes.
        unsafe { block.as_ptr().write_bytes(0xff, 400) };
    }
    heap.register(0, cache.hook()).unwrap();
    let small = heap.try_allocate(layout(64)).unwrap();
    // SAFETY: the block is live and has that many bytes.
    unsafe { small.as_ptr().write_bytes(0x5a, 64) };
    fill(heap);
    let zeroed = heap.try_allocate_zeroed(layout(400)).unwrap();
    // SAFETY: the blocks are live and have that many bytes; `small` is replaced by `grown`.
    unsafe {
        assert!(std::slice::from_raw_parts(zeroed.as_ptr(), 400).iter().all(|&byte| byte == 0));
        let grown = heap.realloc(small.as_ptr(), layout(64), 300);
        assert!(!grown.is_null());
        assert!(std::slice::from_raw_parts(grown, 64).iter().all(|&byte| byte == 0x5a));
    }
    assert_eq!(order(), ["cache", "cache"]);
}

/// A hook's own allocation may fail as well: then the other hooks are asked, except those that are already running.
#[test]
fn a_hook_that_allocates_does_not_call_itself() {
    let heap = test_heap();
    let [greedy, other] =
        [("greedy", 1), ("other", 1)].map(|(name, count)| Cache::new(heap, name, 400, count));
    greedy.before.set(Some(|heap| {
        // There is no room, and the other cache makes some.
        let block = heap.try_allocate(layout(400)).unwrap();
        // Now there is none at all.
        assert!(heap.try_allocate(layout(400)).is_err());
        free(heap, block, 400);
    }));
    heap.register(0, greedy.hook()).unwrap();
    heap.register(1, other.hook()).unwrap();
    fill(heap);
    LAMENTS.take();
    let block = heap.try_allocate(layout(400)).unwrap();
    assert_eq!(order(), ["greedy", "other", "other"]);
    assert_eq!(LAMENTS.take().len(), 1, "only the second inner request failed");
    free(heap, block, 400);
}

#[test]
fn the_last_hook_is_not_called_by_what_it_does() {
    static HEAP: PressureHeap<Tlsf, Spin> = PressureHeap::new(heap!(4096)).on_out_of_memory(&hook);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn hook(_: &OutOfMemory) {
        CALLS.fetch_add(1, SeqCst);
        assert!(HEAP.try_allocate(layout(8192)).is_err());
    }
    assert!(HEAP.try_allocate(layout(8192)).is_err());
    assert_eq!((CALLS.load(SeqCst), HEAP.stats().failed), (1, 2));
    assert!(HEAP.try_allocate(layout(8192)).is_err());
    assert_eq!(CALLS.load(SeqCst), 2);
}

#[test]
fn hooks_come_and_go() {
    let heap = test_heap();
    let cache = Cache::new(heap, "cache", 400, 3);
    let ids: Vec<_> = (0..4).map(|priority| heap.register(priority, cache.hook()).unwrap()).collect();
    assert_eq!(heap.register(0, cache.hook()), None);
    for id in &ids[1..] {
        assert!(heap.unregister(*id) && !heap.unregister(*id));
    }
    // A hook may unregister itself while it runs.
    thread_local!(static SELF: Cell<Option<u64>> = const { Cell::new(None) });
    SELF.set(Some(ids[0]));
    cache.before.set(Some(|heap| assert!(heap.unregister(SELF.get().unwrap()))));
    fill(heap);
    let block = heap.try_allocate(layout(400)).unwrap();
    assert!(heap.try_allocate(layout(400)).is_err(), "it is gone");
    assert_eq!(order(), ["cache"]);
    free(heap, block, 400);
}

#[test]
fn memory_can_be_reclaimed_ahead() {
    let heap = test_heap();
    let caches = [("first", 1), ("second", 3)].map(|(name, count)| Cache::new(heap, name, 400, count));
    heap.register(0, caches[0].hook()).unwrap();
    heap.register(1, caches[1].hook()).unwrap();
    assert_eq!(heap.reclaim(300), 400);
    assert_eq!(order(), ["first"]);
    assert_eq!(heap.reclaim(usize::MAX), 400, "no more than the hooks have");
    assert_eq!(order(), ["first", "second"]);
    assert_eq!((heap.stats().failed, LAMENTS.take().len()), (0, 0));
}

/// Threads allocate, free and reclaim at once; nothing is lost, and nothing waits forever.
#[test]
fn threads_share_the_hooks() {
    static HEAP: PressureHeap<Tlsf, Spin> = PressureHeap::new(heap!(64 * 1024))
        .watermarks(Watermarks::percent(40, 10))
        .headroom(2048)
        .on_transition(&|_| ())
        .on_out_of_memory(&|_| ());
    static CACHE: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    const CACHED: usize = 1024;
    fn drop_one(_: &Shortage) -> usize {
        let Some(block) = CACHE.lock().unwrap().pop() else { return 0 };
        // SAFETY: the cache owned the block.
        unsafe { HEAP.dealloc(std::ptr::with_exposed_provenance_mut(block), layout(CACHED)) };
        CACHED
    }
    HEAP.register(0, &drop_one).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut live: Vec<(*mut u8, usize, u8)> = Vec::new();
                for step in 0..20_000 {
                    // SAFETY: blocks are used and freed with their layouts, by one owner.
                    unsafe {
                        if random.u32(0..8) == 0 {
                            let block = HEAP.alloc(layout(CACHED));
                            if !block.is_null() {
                                CACHE.lock().unwrap().push(block.expose_provenance());
                            }
                        } else if live.len() < 25 && random.bool() {
                            let size = random.usize(1..2000);
                            let allocate = || HEAP.alloc(layout(size));
                            let start = match step % 100 {
                                0 => HEAP.with_headroom(allocate),
                                _ => allocate(),
                            };
                            if !start.is_null() {
                                start.write_bytes(seed as u8, size);
                                live.push((start, size, seed as u8));
                            }
                        } else if !live.is_empty() {
                            let (start, size, tag) = live.swap_remove(random.usize(0..live.len()));
                            assert!(std::slice::from_raw_parts(start, size).iter().all(|&byte| byte == tag));
                            HEAP.dealloc(start, layout(size));
                        }
                    }
                }
                for (start, size, _) in live {
                    // SAFETY: as above.
                    unsafe { HEAP.dealloc(start, layout(size)) };
                }
            });
        }
    });
    HEAP.reclaim(usize::MAX);
    while HEAP.reclaim(1) > 0 {}
    let stats = HEAP.stats();
    assert_eq!((stats.used, stats.live_blocks, HEAP.headroom_stats().used), (0, 0, 0));
    assert_eq!(stats.largest_free, stats.free);
    assert_eq!(HEAP.pressure(), allotment::pressure::Pressure::Normal);
}
