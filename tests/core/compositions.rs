//! Fronts around fronts, in various orders: each passes the same sequence of requests, and each layer sees all of it.

#[cfg(feature = "std")]
use allotment::harden::Full;
use allotment::lock::Spin;
use allotment::observe::Profile;
#[cfg(feature = "std")]
use allotment::os::{Cached, Depot};
use allotment::plan::Recorder;
use allotment::pressure::PressureHeap;
#[cfg(feature = "std")]
use allotment::pressure::Shortage;
use allotment::region::Capabilities;
use allotment::zones::{Zone, Zones};
use allotment::{
    Bounded, FreeError, Heap, Kept, Memory, Observed, PlannedHeap, Sealable, Tiered, Tlsf, heap,
};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

/// Allocates, resizes, checks and frees blocks, through `Memory` and through `GlobalAlloc`. Everything is freed at the end.
fn exercise<M: Memory + GlobalAlloc>(memory: &M) {
    let mut random = fastrand::Rng::with_seed(5);
    let mut live: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
    let fill = |block: NonNull<u8>, layout: Layout, seed: u8| {
        // SAFETY: the block is live and has the layout's size.
        unsafe { block.write_bytes(seed, layout.size()) }
    };
    let verify = |block: NonNull<u8>, layout: Layout, seed: u8| {
        // SAFETY: the block is live, was filled and has the layout's size.
        let bytes = unsafe { std::slice::from_raw_parts(block.as_ptr(), layout.size()) };
        assert!(bytes.iter().all(|&byte| byte == seed));
        assert_eq!(block.addr().get() % layout.align(), 0);
    };
    for round in 0..400u32 {
        let seed = round as u8;
        let layout = Layout::from_size_align(random.usize(1..600), 1 << random.u32(0..6)).unwrap();
        let block = match round % 4 {
            0 => memory.allocate(layout),
            1 => memory.try_allocate(layout).ok(),
            // SAFETY: the layout is not empty.
            2 => NonNull::new(unsafe { memory.alloc(layout) }),
            _ => memory.allocate_zeroed(layout).inspect(|&block| verify(block, layout, 0)),
        };
        let block = block.expect("there is room");
        assert_eq!(memory.check(block, layout), Ok(()));
        fill(block, layout, seed);
        live.push((block, layout, seed));
        if live.len() > 30 {
            let (block, layout, seed) = live.swap_remove(random.usize(..live.len()));
            verify(block, layout, seed);
            let new = Layout::from_size_align(random.usize(1..600), layout.align()).unwrap();
            let moved = match round % 2 {
                // SAFETY: the block is live, has this layout, and is not used at its old address.
                0 => unsafe { memory.change(block, layout, new, &mut |_| ()) },
                // SAFETY: the block is live, has this layout, and is not used at its old address.
                _ => NonNull::new(unsafe { memory.realloc(block.as_ptr(), layout, new.size()) }),
            };
            let moved = moved.expect("there is room");
            let kept = Layout::from_size_align(layout.size().min(new.size()), 1).unwrap();
            verify(moved, kept, seed);
            // SAFETY: the block is live, has the new layout, and is not used afterwards.
            unsafe {
                match round % 3 {
                    0 => memory.deallocate(moved, new),
                    1 => memory.try_deallocate(moved, new).unwrap(),
                    _ => memory.dealloc(moved.as_ptr(), new),
                }
            }
        }
    }
    for (block, layout, seed) in live {
        verify(block, layout, seed);
        // SAFETY: the block is live, has this layout, and is not used afterwards.
        unsafe { memory.deallocate(block, layout) };
    }
    // A request that cannot be satisfied fails alike everywhere, and leaves everything as it was.
    let huge = Layout::from_size_align(1 << 30, 8).unwrap();
    assert_eq!(memory.allocate(huge), None);
    assert_eq!(memory.try_allocate_zeroed(huge).unwrap_err().requested, 1 << 30);
    let foreign = Box::new([0u64; 4]);
    let address = NonNull::from(&*foreign).cast();
    // SAFETY: the check does not pass.
    let refused = unsafe { memory.try_deallocate(address, Layout::new::<[u64; 4]>()) };
    assert!(matches!(refused, Err(FreeError::Foreign)), "{refused:?}");
}

/// The profile of an observer after [`exercise`] must show that all was seen and all was freed.
fn settled(profile: &Profile) {
    assert!(profile.allocations >= 400, "{profile:?}");
    assert_eq!((profile.live_blocks, profile.live_bytes), (0, 0));
}

#[test]
fn observed_planned_pressure() {
    static HEAP: PressureHeap<Tiered, Spin> = PressureHeap::new(heap!(256 * 1024));
    let planned = PlannedHeap::<_, 64, Spin>::new(&HEAP);
    // A plan whose places some of the requests take.
    let mut recorder = Recorder::<64>::new();
    for k in 0..64 {
        recorder.allocated(k + 1, 50 + 8 * k, 32);
    }
    (0..64).for_each(|k| recorder.freed(k + 1));
    planned.load(&recorder.plan().unwrap()).unwrap();
    planned.begin();
    let front = Observed::<_, _, Spin>::new(planned, Profile::new());
    exercise(&front);
    front.observers(|profile| settled(profile));
    let report = front.memory().report();
    assert!(report.hits > 0 && report.hits < report.requests, "{report:?}");
    drop(front);
    assert_eq!(HEAP.used(), 0);
}

#[test]
fn planned_observed_zones() {
    static FAST: Heap<Tlsf, Spin> = heap!(16 * 1024);
    static SLOW: PressureHeap<Tlsf, Spin> = PressureHeap::new(heap!(256 * 1024));
    let zones = Zones::<2, 8, Spin>::new([
        Zone::new("fast", &FAST, Capabilities::FAST).up_to(100),
        Zone::new("slow", &SLOW, Capabilities::EXTERNAL),
    ])
    .fallback(&[1]);
    let front = PlannedHeap::<_, 8, Spin>::new(Observed::<_, _, Spin>::new(zones, Profile::new()));
    exercise(&front);
    front.heap().observers(|profile| settled(profile));
    assert!(FAST.peak() > 0 && SLOW.stats().peak > 0);
    assert_eq!((FAST.used(), SLOW.used()), (0, 0));
}

/// Zones of fronts, one of which is a zone itself.
#[test]
fn zones_of_fronts() {
    static INNER: Heap<Tlsf, Spin> = heap!(256 * 1024);
    static OBSERVED: Observed<Heap<Tlsf, Spin>, Profile, Spin> =
        Observed::new(heap!(32 * 1024), Profile::new());
    let zone = Zone::new("inner", &INNER, Capabilities::EXTERNAL);
    let zones = Zones::<2, 8, Spin>::new([
        Zone::new("observed", &OBSERVED, Capabilities::INTERNAL).up_to(64),
        Zone::new("zone", &zone, Capabilities::EXTERNAL),
    ])
    .fallback(&[0, 1]);
    exercise(&zones);
    OBSERVED.observers(|profile| assert!(profile.allocations > 0 && profile.live_blocks == 0));
    assert!(INNER.peak() > 0);
    assert_eq!(INNER.used(), 0);
}

#[cfg(feature = "std")]
#[test]
fn observed_cached_observed_pressure() {
    type Inner = Observed<PressureHeap<Tiered, Spin>, Profile, Spin>;
    static INNER: Inner = Observed::new(PressureHeap::new(heap!(512 * 1024)), Profile::new());
    static DEPOT: Depot<Inner> = Depot::new(&INNER, 16 * 1024);
    let cached = Cached::new(&DEPOT);
    let front = Observed::<_, _, Spin>::new(cached, Profile::new());
    exercise(&front);
    front.observers(|profile| settled(profile));
    // The caches answer for most of it.
    let inner = INNER.observers(|profile| profile.allocations);
    assert!(inner > 0 && inner < 400, "{inner}");
    cached.flush();
    assert_eq!(INNER.memory().used(), 0);
}

/// The bytes within a bound are those that were asked for.
#[test]
fn bounded_observed() {
    static HEAP: Heap<Tlsf, Spin> = heap!(256 * 1024);
    let bounded = Bounded::<_, Spin>::new(Observed::<_, _, Spin>::new(&HEAP, Profile::new()), 64 * 1024);
    exercise(&bounded);
    bounded.memory().observers(|profile| {
        settled(profile);
        assert_eq!(profile.peak_bytes, bounded.peak());
    });
    assert_eq!((bounded.used(), HEAP.used()), (0, 0));
}

/// A front that is not sealed changes nothing.
#[test]
fn sealable_observed() {
    static HEAP: Heap<Tlsf, Spin> = heap!(256 * 1024);
    let front = Sealable::<_>::new(Observed::<_, _, Spin>::new(&HEAP, Profile::new()));
    exercise(&front);
    front.memory().observers(|profile| settled(profile));
    assert_eq!(HEAP.used(), 0);
}

/// Kept blocks change hands below an observer, which sees each as a block of its own.
#[test]
fn observed_kept() {
    static HEAP: Heap<Tlsf, Spin> = heap!(256 * 1024);
    let kept = Kept::<_, 4, Spin>::new(&HEAP, 100, 400);
    let front = Observed::<_, _, Spin>::new(kept, Profile::new());
    exercise(&front);
    front.observers(|profile| settled(profile));
    assert_eq!(front.memory().available(), 4);
    assert_eq!(HEAP.used(), 4 * 400);
}

/// Where each free is checked against what the heap remembers of the block, the caches keep nothing, fronts between them or not.
#[cfg(feature = "std")]
#[test]
fn nothing_is_cached_where_each_free_is_checked() {
    type Checked = Observed<Heap<Full<Tiered>, Spin>, Profile, Spin>;
    static HEAP: Checked = Observed::new(heap!(512 * 1024), Profile::new());
    static DEPOT: Depot<Checked> = Depot::new(&HEAP, 16 * 1024);
    let cached = Cached::new(&DEPOT);
    let block = |bytes| Layout::array::<u8>(bytes).unwrap();
    let kept = cached.allocate(block(48)).unwrap();
    let freed = cached.allocate(block(48)).unwrap();
    // SAFETY: the first free is right. The others are wrong, which is found before anything is done.
    unsafe {
        assert_eq!(cached.try_deallocate(freed, block(48)), Ok(()));
        assert_eq!(HEAP.observers(|profile| profile.live_blocks), 1);
        assert_eq!(cached.try_deallocate(freed, block(48)), Err(FreeError::AlreadyFree));
        // Of the same class, but not what was asked for.
        assert_eq!(cached.try_deallocate(kept, block(47)), Err(FreeError::Overrun));
        assert_eq!(cached.try_deallocate(kept, block(48)), Ok(()));
    }
    exercise(&cached);
}

/// A hook of the wrapped heap may use the cache around it, from inside the cache's own request.
#[cfg(feature = "std")]
#[test]
fn a_hook_comes_back_to_the_cache() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};
    static INNER: PressureHeap<Tlsf, Spin> = PressureHeap::new(heap!(16 * 1024));
    static DEPOT: Depot<PressureHeap<Tlsf, Spin>> = Depot::new(&INNER, 4 * 1024);
    static CACHED: Cached<PressureHeap<Tlsf, Spin>> = Cached::new(&DEPOT);
    static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    static ASKED: AtomicBool = AtomicBool::new(false);
    const BLOCK: Layout = Layout::new::<[u64; 8]>();
    INNER
        .register(0, &|_: &Shortage| {
            ASKED.store(true, Ordering::Relaxed);
            let Some(block) = KEPT.lock().unwrap().pop() else { return 0 };
            let block = NonNull::new(std::ptr::with_exposed_provenance_mut(block)).unwrap();
            // SAFETY: the block is live, has this layout, and is in no list any more.
            unsafe { CACHED.deallocate(block, BLOCK) };
            // And a request of its own, for which there may be no room.
            if let Some(block) = CACHED.allocate(BLOCK) {
                // SAFETY: it was just allocated.
                unsafe { CACHED.deallocate(block, BLOCK) };
            }
            BLOCK.size()
        })
        .unwrap();
    while !ASKED.load(Ordering::Relaxed) {
        let block = CACHED.allocate(BLOCK).expect("the hook gives one back");
        KEPT.lock().unwrap().push(block.as_ptr().expose_provenance());
    }
    let live = KEPT.lock().unwrap().len();
    let mut mine = Vec::new();
    // Each request gets what the hook frees.
    for _ in 0..live {
        mine.extend(CACHED.allocate(BLOCK));
    }
    let addresses: std::collections::BTreeSet<_> =
        mine.iter().map(|block| block.addr().get()).chain(KEPT.lock().unwrap().iter().copied()).collect();
    assert_eq!(addresses.len(), mine.len() + KEPT.lock().unwrap().len(), "no block twice");
    // Not in the loop: a free can need a magazine, and so come to the hook.
    let kept = std::mem::take(&mut *KEPT.lock().unwrap());
    for block in kept {
        mine.extend(NonNull::new(std::ptr::with_exposed_provenance_mut(block)));
    }
    for block in mine {
        // SAFETY: the blocks are live, have this layout, and are not used afterwards.
        unsafe { CACHED.deallocate(block, BLOCK) };
    }
    CACHED.flush();
    assert_eq!(INNER.used(), 0);
}
