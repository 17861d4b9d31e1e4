//! A heap with caches as the global allocator of this test program, which makes all its allocations.
#![cfg(feature = "std")]

#[cfg(all(any(unix, windows), panic = "unwind"))]
mod again;
mod child;

use allotment::os::{Cached, Depot};
use allotment::{Heap, Tiered, heap};
use std::collections::BTreeMap;
use std::sync::mpsc;

static HEAP: Heap<Tiered> = heap!(64 * 1024 * 1024);
static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024);
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

/// Threads build maps and send them to other threads, which take them apart.
fn work() {
    let (give, take) = mpsc::channel::<BTreeMap<String, Vec<u8>>>();
    let makers: Vec<_> = (0..3u8)
        .map(|seed| {
            let give = give.clone();
            std::thread::spawn(move || {
                for round in 0..40usize {
                    let key = |number: usize| format!("{seed} {round} {number}");
                    let value = |number: usize| vec![seed; number * 7 % 1500];
                    give.send((0..200).map(|number| (key(number), value(number))).collect()).unwrap();
                }
            })
        })
        .collect();
    drop(give);
    let taker = std::thread::spawn(move || {
        let values = take.into_iter().flat_map(BTreeMap::into_values);
        values.map(|value| value.iter().map(|&byte| usize::from(byte)).sum::<usize>()).sum::<usize>()
    });
    for maker in makers {
        maker.join().unwrap();
    }
    let bytes = (0..200).map(|number| number * 7 % 1500).sum::<usize>() * 40;
    assert_eq!(taker.join().unwrap(), bytes * (1 + 2));
}

/// A free of an address at which no block can start is reported, on the fast path too, and does nothing.
#[test]
fn a_misaligned_free_is_reported() {
    use allotment::FreeError;
    use allotment::misuse::{Kind, Misuse, set_hook};
    use std::alloc::{GlobalAlloc, Layout};
    use std::sync::Mutex;

    static SEEN: Mutex<Option<Misuse>> = Mutex::new(None);
    fn take(misuse: &Misuse) {
        *SEEN.lock().unwrap() = Some(*misuse);
    }

    set_hook(take);
    let layout = Layout::new::<[u64; 6]>();
    // SAFETY: what is reported does nothing; each block is freed once besides.
    unsafe {
        let [block, other] = [(); 2].map(|()| CACHED.alloc(layout));
        // From now on the thread's list has room.
        CACHED.dealloc(other, layout);
        for offset in 1..8 {
            let inside = block.add(offset);
            CACHED.dealloc(inside, layout);
            let seen = SEEN.lock().unwrap().take().expect("the free is reported");
            assert_eq!((seen.kind, seen.address), (Kind::InvalidFree(FreeError::Misaligned), inside.addr()));
        }
        CACHED.dealloc(block, layout);
        assert_eq!(*SEEN.lock().unwrap(), None);
        assert_eq!([(); 2].map(|()| CACHED.alloc(layout)), [block, other]);
        CACHED.dealloc(other, layout);
        CACHED.dealloc(block, layout);
    }
}

#[test]
fn threads_live_on_a_cached_heap() {
    work();
    CACHED.flush();
    let before = HEAP.used();
    for _ in 0..3 {
        work();
    }
    CACHED.flush();
    let stats = HEAP.stats();
    assert_eq!(stats.failed, 0);
    assert!(stats.peak > 300_000 && stats.used < before + 100_000, "{stats:?}, {before} before");
}

/// Exhausted caches. These tests end their process or use up its memory, so each runs in a child process.
#[cfg(all(any(unix, windows), panic = "unwind"))]
mod full {
    use super::{CACHED, HEAP};
    use crate::child::{child, role};
    use allotment::OutOfMemory;
    use allotment::out_of_memory::{report_to_stderr, set_hook};
    use std::alloc::{GlobalAlloc, Layout};
    use std::hint::black_box;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A size that caches allocate, and one that they pass on to the heap.
    const SMALL: usize = 4096;
    const LARGE: usize = 64 * 1024;

    fn bytes(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    /// Allocates directly from the heap until at most `rest` bytes are free.
    fn fill(rest: usize) {
        CACHED.flush();
        let mut size = HEAP.largest_free();
        while size >= 8 && HEAP.free() > rest {
            if HEAP.try_allocate(bytes(size.min(HEAP.free() - rest).max(8))).is_err() {
                size /= 2;
            }
        }
    }

    /// Every kind of request that neither caches nor heap can satisfy is reported once, with its size.
    #[test]
    fn every_refused_request_is_reported_once() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static REQUESTED: AtomicUsize = AtomicUsize::new(0);
        fn hook(error: &OutOfMemory) {
            CALLS.fetch_add(1, Ordering::Relaxed);
            REQUESTED.store(error.requested, Ordering::Relaxed);
        }
        if role().is_none() {
            let (succeeded, text) = child("full::every_refused_request_is_reported_once", "hook", "0");
            assert!(succeeded, "{text}");
            return;
        }
        // SAFETY: no size is zero; blocks are live and have the layouts that are given.
        unsafe {
            let small = CACHED.alloc(bytes(64));
            let large = CACHED.alloc(bytes(LARGE));
            small.write_bytes(7, 64);
            set_hook(hook);
            fill(2000);
            let refused = |request: &dyn Fn() -> *mut u8, size: usize| {
                let calls = CALLS.load(Ordering::Relaxed);
                assert!(black_box(request()).is_null(), "{size}");
                assert_eq!(CALLS.load(Ordering::Relaxed), calls + 1, "{size}");
                assert_eq!(REQUESTED.load(Ordering::Relaxed), size);
            };
            refused(&|| CACHED.alloc(bytes(SMALL)), SMALL);
            refused(&|| CACHED.alloc_zeroed(bytes(SMALL)), SMALL);
            refused(&|| CACHED.realloc(small, bytes(64), SMALL), SMALL);
            refused(&|| CACHED.alloc(bytes(LARGE)), LARGE);
            refused(&|| CACHED.alloc_zeroed(bytes(LARGE)), LARGE);
            refused(&|| CACHED.realloc(large, bytes(LARGE), 4 * LARGE), 4 * LARGE);
            // The blocks that could not grow are as they were.
            assert_eq!(small.add(63).read(), 7);
            CACHED.dealloc(large, bytes(LARGE));
            let calls = CALLS.load(Ordering::Relaxed);
            assert!(!black_box(CACHED.alloc(bytes(SMALL))).is_null());
            assert_eq!(CALLS.load(Ordering::Relaxed), calls);
        }
    }

    /// A panic behind full caches prints its message and its whole backtrace, from a reserve.
    #[test]
    fn a_panic_behind_full_caches_ends() {
        let Some(rest) = role() else {
            for rest in ["2000", "200000"] {
                let (succeeded, text) = child("full::a_panic_behind_full_caches_ends", rest, "1");
                assert!(!succeeded, "{text}");
                assert!(text.contains("index out of bounds"), "{text}");
                assert!(text.contains("note: Some details are omitted"), "cut off: {text}");
                assert!(!text.contains("memory allocation of"), "{text}");
            }
            return;
        };
        set_hook(report_to_stderr);
        fill(rest.parse().unwrap());
        let none: [u8; 0] = [];
        println!("{}", none[black_box(3)]);
    }
}
