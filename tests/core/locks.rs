//! Threads use a heap concurrently under every lock, and each checks the contents of its own blocks.

use allotment::lock::Lock;
use allotment::{Buddy, FirstFit, Heap, Memory, Region, Slab, Tlsf, heap};
use std::alloc::{GlobalAlloc, Layout};

/// Two threads allocate, reallocate, exchange and free blocks.
fn hammer<P, L>(heap: &'static Heap<P, L>)
where
    P: allotment::placement::Placement + Send,
    L: Lock + Sync,
{
    const ROUNDS: usize = 40_000;
    struct Block(*mut u8, Layout, u8);
    // SAFETY: a block belongs to the owner of the value.
    unsafe impl Send for Block {}

    let check = |Block(start, layout, tag): &Block| {
        for index in 0..layout.size() {
            // SAFETY: the block is live and has that many bytes.
            assert_eq!(unsafe { start.add(index).read() }, *tag);
        }
    };
    let (to_other, from_one) = std::sync::mpsc::sync_channel::<Block>(64);
    let worker = move |seed: u64, give: Option<std::sync::mpsc::SyncSender<Block>>| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live: Vec<Block> = Vec::new();
        for _ in 0..ROUNDS {
            // SAFETY: blocks are live until they are freed here, with their layouts.
            unsafe {
                if live.len() < 40 && random.bool() {
                    let layout =
                        Layout::from_size_align(random.usize(1..300), 1 << random.u32(0..6)).unwrap();
                    let start = heap.alloc(layout);
                    if !start.is_null() {
                        let tag = random.u8(..);
                        start.write_bytes(tag, layout.size());
                        live.push(Block(start, layout, tag));
                    }
                } else if !live.is_empty() {
                    let mut block = live.swap_remove(random.usize(0..live.len()));
                    check(&block);
                    match (random.u32(0..4), &give) {
                        (0, _) => {
                            let new = Layout::from_size_align(random.usize(1..600), block.1.align()).unwrap();
                            let moved = heap.realloc(block.0, block.1, new.size());
                            if !moved.is_null() {
                                block = Block(moved, new, block.2);
                                moved.write_bytes(block.2, new.size());
                            }
                            live.push(block);
                        }
                        (1, Some(give)) => {
                            if let Err(error) = give.try_send(block) {
                                let (std::sync::mpsc::TrySendError::Full(block)
                                | std::sync::mpsc::TrySendError::Disconnected(block)) = error;
                                live.push(block);
                            }
                        }
                        _ => heap.dealloc(block.0, block.1),
                    }
                }
            }
        }
        for block in live {
            check(&block);
            // SAFETY: as above.
            unsafe { heap.dealloc(block.0, block.1) };
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| worker(1, Some(to_other)));
        scope.spawn(|| worker(2, None));
        for block in from_one {
            check(&block);
            // SAFETY: the block was handed over live.
            unsafe { heap.dealloc(block.0, block.1) };
        }
    });
    let stats = heap.stats();
    assert_eq!((stats.used, stats.live_blocks), (0, 0));
    assert_eq!(stats.largest_free, stats.free);
    assert!(stats.peak > 1000);
}

#[cfg(feature = "spin")]
#[test]
fn spin() {
    static HEAP: Heap<Tlsf, allotment::lock::Spin> = heap!(64 * 1024);
    hammer(&HEAP);
    static SLAB: Heap<Slab, allotment::lock::Spin> = heap!(64 * 1024);
    hammer(&SLAB);
}

#[cfg(feature = "std")]
#[test]
fn futex() {
    // The default lock on an operating system.
    static HEAP: Heap<Tlsf> = heap!(64 * 1024);
    let _: &Heap<Tlsf, allotment::lock::Futex> = &HEAP;
    hammer(&HEAP);
}

#[cfg(feature = "critical-section")]
#[test]
fn critical_section() {
    static HEAP: Heap<FirstFit, allotment::lock::CriticalSection> = heap!(64 * 1024);
    hammer(&HEAP);
}

#[cfg(feature = "lock_api")]
#[test]
fn any_raw_mutex() {
    static HEAP: Heap<Buddy, allotment::lock::Raw<parking_lot::RawMutex>> = heap!(64 * 1024);
    hammer(&HEAP);
}

/// Without a lock a heap is for one thread, but can be sent to another.
#[test]
fn unsync_heaps_move_between_threads() {
    let mut memory = vec![0u64; 1024];
    let heap = Heap::<Buddy, allotment::lock::Unsync>::empty();
    // SAFETY: the memory outlives the heap's use.
    unsafe { heap.claim(Region::new(memory.as_mut_ptr(), 8192)) }.unwrap();
    let _ = Heap::<FirstFit, allotment::lock::Unsync>::empty();
    let heap = std::thread::spawn(move || {
        let block = heap.try_allocate(Layout::new::<[u64; 10]>()).unwrap();
        // SAFETY: the block is live and this is its layout.
        unsafe { heap.dealloc(block.as_ptr(), Layout::new::<[u64; 10]>()) };
        heap
    });
    assert_eq!(heap.join().unwrap().used(), 0);
}

/// A mutex may use another heap while it waits, whose mutex is held at that moment too.
#[test]
#[cfg(feature = "lock_api")]
fn a_mutex_may_wait_inside_another_one() {
    use allotment::lock::Raw;
    use lock_api::{GuardSend, RawMutex};

    /// Is never free at first. While it waits, it uses a heap.
    struct Outer(u8);
    /// Is never free at first.
    struct Inner(u8);
    static INNER: Heap<Tlsf, Raw<Inner>> = heap!(16 * 1024);
    static OUTER: Heap<Tlsf, Raw<Outer>> = heap!(16 * 1024);

    // SAFETY: one thread uses the heaps.
    unsafe impl RawMutex for Outer {
        const INIT: Self = Self(0);
        type GuardMarker = GuardSend;

        fn lock(&self) {
            let block = INNER.try_allocate(Layout::new::<u64>()).unwrap();
            // SAFETY: the block is live and has this layout.
            unsafe { INNER.try_deallocate(block, Layout::new::<u64>()) }.unwrap();
        }

        fn try_lock(&self) -> bool {
            self.0 != 0
        }

        unsafe fn unlock(&self) {}
    }
    // SAFETY: one thread uses the heaps.
    unsafe impl RawMutex for Inner {
        const INIT: Self = Self(0);
        type GuardMarker = GuardSend;

        fn lock(&self) {}

        fn try_lock(&self) -> bool {
            self.0 != 0
        }

        unsafe fn unlock(&self) {}
    }

    for _ in 0..2 {
        assert!(OUTER.try_allocate(Layout::new::<u64>()).is_ok());
    }
}

/// A lock that another thread always seems to hold for a moment: `try_acquire` fails, `acquire` succeeds.
struct Contended(std::sync::atomic::AtomicBool);

// SAFETY: only one caller at a time finds the flag unset.
unsafe impl Lock for Contended {
    const INIT: Self = Self(std::sync::atomic::AtomicBool::new(false));
    type Token = ();
    fn acquire(&self) {
        while self.0.swap(true, std::sync::atomic::Ordering::Acquire) {
            std::hint::spin_loop();
        }
    }
    fn try_acquire(&self) -> Option<()> {
        None
    }
    unsafe fn release(&self, (): ()) {
        self.0.store(false, std::sync::atomic::Ordering::Release);
    }
}

/// A caller that waited for the lock gets what one that did not wait gets.
#[test]
fn callers_that_wait_for_the_lock_get_blocks() {
    fn serves<P: allotment::placement::Placement + Send>(heap: &Heap<P, Contended>) {
        let name = std::any::type_name::<P>();
        for size in [0, 1, 24, 100, 3000] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let block = heap.allocate(layout).unwrap_or_else(|| panic!("{name} refuses {size} bytes"));
            // SAFETY: the block is live, and freed once.
            unsafe { heap.deallocate(block, layout) };
            if size == 0 {
                continue;
            }
            // SAFETY: as above; the layouts are not empty.
            unsafe {
                let block = heap.alloc(layout);
                assert!(!block.is_null(), "{name} refuses {size} bytes");
                let block = heap.realloc(block, layout, 2 * size);
                assert!(!block.is_null(), "{name} does not resize {size} bytes");
                heap.dealloc(block, Layout::from_size_align(2 * size, 8).unwrap());
                let zeros = heap.alloc_zeroed(layout);
                assert!(!zeros.is_null(), "{name} refuses {size} bytes of zeros");
                heap.dealloc(zeros, layout);
            }
        }
        assert_eq!(heap.used(), 0, "{name}");
    }
    static MICRO: Heap<allotment::placement::MicroTlsf, Contended> = heap!(32 * 1024);
    static TLSF: Heap<Tlsf, Contended> = heap!(32 * 1024);
    static BUDDY: Heap<Buddy, Contended> = heap!(32 * 1024);
    static FIRST_FIT: Heap<FirstFit, Contended> = heap!(32 * 1024);
    static SLAB: Heap<Slab, Contended> = heap!(32 * 1024);
    serves(&MICRO);
    serves(&TLSF);
    serves(&BUDDY);
    serves(&FIRST_FIT);
    serves(&SLAB);
}
