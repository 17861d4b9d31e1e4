//! A part of a heap for one client.

use allotment::lock::Spin;
use allotment::out_of_memory::Cause;
use allotment::{Bounded, Heap, Memory, Tlsf, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

type Client = Bounded<&'static Heap<Tlsf, Spin>, Spin>;

#[test]
fn no_more_than_the_bound_is_in_use() {
    static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
    let client = Client::new(&HEAP, 1000);
    let first = client.try_allocate(bytes(600)).unwrap();
    let error = client.try_allocate(bytes(401)).unwrap_err();
    assert_eq!((error.requested, error.free, error.largest_free), (401, 400, 400));
    assert_eq!(error.cause(), Cause::Quota);
    assert_eq!((client.used(), client.largest_free()), (600, 400));
    let second = client.try_allocate_zeroed(bytes(400)).unwrap();
    assert_eq!((client.largest_free(), client.limit()), (0, 1000));
    assert!(client.allocate(bytes(1)).is_none());
    // SAFETY: both blocks are live, and freed once each; the layouts are theirs.
    unsafe {
        // Within the heap there is room, within the bound there is none.
        assert!(!client.try_resize(second, bytes(400), 408));
        assert!(client.try_resize(second, bytes(400), 200));
        assert_eq!(client.used(), 800);
        assert!(client.realloc(second.as_ptr(), bytes(200), 500).is_null());
        assert_eq!(client.used(), 800);
        client.try_deallocate(first, bytes(600)).unwrap();
        assert_eq!(client.used(), 200);
        let moved = client.realloc(second.as_ptr(), bytes(200), 500);
        assert_eq!(client.used(), 500);
        client.dealloc(moved, bytes(500));
    }
    assert_eq!((client.used(), client.peak(), HEAP.used()), (0, 1000, 0));
}

/// A block that has to move counts once, although the heap has both for a moment.
#[test]
fn a_block_that_moves_counts_once() {
    static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
    let client = Client::new(&HEAP, 1000);
    let block = client.allocate(bytes(600)).unwrap();
    let behind = HEAP.allocate(bytes(8)).unwrap();
    // SAFETY: the blocks are live, have these layouts, and are not used after they have moved or were freed.
    unsafe {
        assert!(!client.try_resize(block, bytes(600), 1000));
        let moved = client.change(block, bytes(600), bytes(1000), &mut |_| ()).unwrap();
        assert!(moved != block && client.used() == 1000 && client.peak() == 1000);
        let shorter = client.change(moved, bytes(1000), bytes(100), &mut |_| ()).unwrap();
        assert_eq!(client.used(), 100);
        client.deallocate(shorter, bytes(100));
        HEAP.deallocate(behind, bytes(8));
    }
    assert_eq!((client.used(), HEAP.used()), (0, 0));
}

/// A request within the bound that the heap refuses is not counted.
#[test]
fn what_the_heap_refuses_does_not_count() {
    static HEAP: Heap<Tlsf, Spin> = heap!(4 * 1024);
    let client = Client::new(&HEAP, 1 << 20);
    assert_eq!(client.try_allocate(bytes(8000)).unwrap_err().cause(), Cause::TooSmall);
    assert!(client.try_allocate_zeroed(bytes(8000)).is_err());
    assert_eq!(client.used(), 0);
    assert!(client.largest_free() < 4096);
    let block = client.try_allocate(bytes(100)).unwrap();
    // SAFETY: the wrong address is refused, and the block is freed once.
    unsafe {
        assert!(client.try_deallocate(NonNull::<u64>::dangling().cast(), bytes(100)).is_err());
        assert_eq!(client.used(), 100);
        // Neither in place nor elsewhere, since the heap is too small.
        assert!(!client.try_resize(block, bytes(100), 8000));
        assert!(client.change(block, bytes(100), bytes(8000), &mut |_| ()).is_none());
        assert_eq!(client.used(), 100);
        client.deallocate(block, bytes(100));
    }
    assert_eq!(client.used(), 0);
}

/// Several clients of one heap do not see each other.
#[test]
fn clients_share_a_heap() {
    static HEAP: Heap<Tlsf, Spin> = heap!(16 * 1024);
    static PARSER: Client = Bounded::new(&HEAP, 1024);
    static LOG: Client = Bounded::new(&HEAP, 2048);
    std::thread::scope(|scope| {
        for client in [&PARSER, &LOG] {
            scope.spawn(move || {
                for round in 0..2000 {
                    let block = client.allocate(bytes(1 + round % 500)).expect("within both");
                    // SAFETY: the block is live and has this layout.
                    unsafe { client.deallocate(block, bytes(1 + round % 500)) };
                }
            });
        }
    });
    assert_eq!((PARSER.used(), LOG.used(), HEAP.used()), (0, 0, 0));
    assert_eq!((PARSER.peak(), LOG.peak()), (500, 500));
}
