//! Blocks that go under pressure and come back.
#![cfg(all(feature = "spin", feature = "std"))]

use allotment::lock::Spin;
use allotment::pressure::{Codec, PressureHeap, Purgeable, Shortage};
use allotment::{Heap, Memory, heap, placement};
use std::alloc::Layout;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

type Small = Heap<placement::Tlsf, Spin>;

/// Packs bytes that are all the same into one.
struct Runs;

impl Codec for Runs {
    fn pack(&self, bytes: &mut [u8]) -> Option<usize> {
        let (first, rest) = bytes.split_first()?;
        rest.iter().all(|byte| byte == first).then_some(1)
    }

    fn unpack(&self, packed: &[u8], bytes: &mut [u8]) -> bool {
        bytes.fill(packed[0]);
        packed.len() == 1
    }
}

#[test]
fn the_least_recently_used_blocks_go_first() {
    static HEAP: Small = heap!(8192);
    let all = Purgeable::<&Small, 4>::new(&HEAP, ());
    let made = Cell::new(0);
    let get = |n: usize| {
        let make = |bytes: &mut [u8]| {
            made.set(made.get() + 1);
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(n as u8 + 1);
        };
        all.get(n, 1000, make).unwrap()
    };
    for n in [0, 1, 2, 3, 0] {
        assert!(get(n).iter().all(|&byte| byte == n as u8 + 1));
    }
    assert_eq!((made.get(), HEAP.used()), (4, 4000));
    assert_eq!(all.reclaim(1001), 2000, "1 and 2 are the oldest");
    let pinned = get(3);
    let again = get(3);
    assert_eq!(made.get(), 4);
    assert_eq!(all.reclaim(usize::MAX), 1000, "3 is in use");
    drop(pinned);
    assert_eq!(all.reclaim(1), 0);
    assert!(again.iter().all(|&byte| byte == 4));
    drop(again);
    assert_eq!((all.reclaim(1), all.reclaim(1), HEAP.used()), (1000, 0, 0));
    assert!(get(1)[999] == 2 && made.get() == 5);
    assert!(all.get(1, 999, |_| ()).is_none(), "another size");
    assert!(all.get(4, 10, |_| ()).is_none() && all.get(0, 10_000, |_| ()).is_none());
    assert_eq!(
        all.get(0, 10, |bytes| bytes.fill(1)).as_deref(),
        Some(&[1; 10][..]),
        "a place that failed is free"
    );
    drop(all);
    assert_eq!(HEAP.used(), 0);
}

#[test]
fn blocks_are_packed_before_they_are_emptied() {
    static HEAP: Small = heap!(8192);
    let all = Purgeable::<&Small, 3, Runs>::new(&HEAP, Runs);
    let made = Cell::new(0);
    let get = |n: usize, mixed: bool| {
        let make = |bytes: &mut [u8]| {
            made.set(made.get() + 1);
            bytes.fill(n as u8);
            bytes[0] += u8::from(mixed);
        };
        all.get(n, 800, make).map(|bytes| bytes[799])
    };
    assert_eq!([get(0, false), get(1, false), get(2, true)], [Some(0), Some(1), Some(2)]);
    assert_eq!(all.reclaim(2000), 799 + 799 + 800, "what cannot be packed is emptied");
    assert_eq!((get(1, false), made.get()), (Some(1), 3));
    assert_eq!((get(2, true), made.get()), (Some(2), 4));
    // Packed ones go last.
    assert_eq!(all.reclaim(800), 799 + 800);
    assert_eq!(all.reclaim(usize::MAX), 2);
    assert_eq!((HEAP.used(), get(0, false), made.get()), (0, Some(0), 5));
}

/// A heap asks by its hook, and what makes a block may ask as well.
#[test]
fn a_heap_takes_what_it_needs() {
    static HEAP: PressureHeap<placement::Tlsf, Spin> = PressureHeap::new(heap!(8192));
    static ALL: Purgeable<&PressureHeap<placement::Tlsf, Spin>, 7, (), Spin> = Purgeable::new(&HEAP, ());
    HEAP.register(0, &|shortage: &Shortage| ALL.reclaim(shortage.requested)).unwrap();
    for n in 0..100 {
        let block = ALL.get(n % 7, 2000, |bytes| {
            let inner = ALL.get((n + 1) % 7, 2000, |inner| inner[0] = 1);
            assert!(inner.is_some_and(|inner| inner.len() == 2000));
            assert!(ALL.get(n % 7, 2000, |_| ()).is_none(), "it is being made");
            bytes[1999] = n as u8 % 7;
        });
        assert!(block.is_some());
    }
    // A request of another kind gets all of it.
    let layout = Layout::new::<[u8; 7000]>();
    let block = HEAP.try_allocate(layout).unwrap();
    assert!(ALL.get(0, 2000, |_| ()).is_none());
    // SAFETY: the block came from this heap with this layout.
    unsafe { HEAP.try_deallocate(block, layout).unwrap() };
    assert!(ALL.get(0, 2000, |_| ()).is_some());
}

#[cfg(panic = "unwind")]
#[test]
fn a_panic_leaves_the_place_empty() {
    static HEAP: Small = heap!(4096);
    let all = Purgeable::<&Small, 1>::new(&HEAP, ());
    let make = || all.get(0, 100, |_| panic!("on purpose")).is_some();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(make)).is_err());
    assert_eq!(HEAP.used(), 0);
    assert!(all.get(0, 100, |_| ()).is_some());
}

/// Packs all but the first hundred bytes away, and cannot unpack.
struct Broken;

impl Codec for Broken {
    fn pack(&self, _: &mut [u8]) -> Option<usize> {
        Some(100)
    }

    fn unpack(&self, _: &[u8], _: &mut [u8]) -> bool {
        panic!("on purpose")
    }
}

#[cfg(panic = "unwind")]
#[test]
fn a_panic_of_the_codec_frees_both_blocks() {
    static HEAP: Small = heap!(4096);
    let all = Purgeable::<&Small, 1, Broken>::new(&HEAP, Broken);
    assert!(all.get(0, 1000, |_| ()).is_some());
    assert_eq!(all.reclaim(1), 900);
    let get = || all.get(0, 1000, |_| ()).is_some();
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(get)).is_err());
    assert_eq!(HEAP.used(), 0);
}

/// A heap that is full has no room for what is packed: that is no request of the program's that fails.
#[test]
fn to_pack_in_a_full_heap_reports_nothing() {
    static FAILED: AtomicUsize = AtomicUsize::new(0);
    static HEAP: PressureHeap<placement::Tlsf, Spin> =
        PressureHeap::new(heap!(8192)).on_out_of_memory(&|_| {
            FAILED.fetch_add(1, Ordering::Relaxed);
        });
    static ALL: Purgeable<&PressureHeap<placement::Tlsf, Spin>, 7, Broken, Spin> =
        Purgeable::new(&HEAP, Broken);
    HEAP.register(0, &|shortage: &Shortage| ALL.reclaim(shortage.requested)).unwrap();
    for n in 0..6 {
        assert!(ALL.get(n, 1000, |_| ()).is_some());
    }
    let rest = Layout::from_size_align(HEAP.largest_free(), 8).unwrap();
    assert!(HEAP.try_allocate(rest).is_ok());
    assert!(HEAP.try_allocate(Layout::new::<[u8; 700]>()).is_ok());
    assert_eq!(FAILED.load(Ordering::Relaxed), 0);
}
