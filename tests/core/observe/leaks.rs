//! The list of live blocks, and the blocks left since a point of the program.

use super::layout;
use allotment::Observed;
use allotment::lock::{Spin, Unsync};
use allotment::observe::{Leaks, Profile, with_tag};
use allotment::{Heap, Tlsf, heap};
use std::alloc::GlobalAlloc;

type Listed<const N: usize> = Observed<Heap<Tlsf, Spin>, (Profile, Leaks<N>), Unsync>;

#[test]
fn leaks_since_a_mark() {
    #[cfg(not(feature = "std"))]
    let _core = super::tags::ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let heap: Listed<64> = Observed::new(heap!(16 * 1024), Default::default());
    // SAFETY: blocks are live and freed with their layouts.
    unsafe {
        let before = heap.alloc(layout(10));
        let mark = heap.mark();
        assert_eq!(heap.leaks_since(mark).count(), 0);
        let [a, b, c] = [1, 2, 3].map(|n| with_tag("net", || heap.alloc(layout(100 * n))));
        heap.dealloc(b, layout(200));
        // A reallocated block is the same block, in the same scope.
        let moved = heap.realloc(a, layout(100), 4000);
        assert_ne!(a, moved);
        let before = heap.realloc(before, layout(10), 2000);
        let leaks: Vec<_> = heap.leaks_since(mark).map(|leak| (leak.address, leak.size, leak.tag)).collect();
        assert_eq!(leaks, [(moved.addr(), 4000, Some("net")), (c.addr(), 300, Some("net"))]);
        assert_eq!(heap.unlisted_since(mark), 0);
        // The heap may be used while a leak is handled.
        for leak in heap.leaks_since(mark) {
            let note = heap.alloc(layout(leak.size / 10));
            heap.dealloc(note, layout(leak.size / 10));
        }
        let later = heap.mark();
        heap.dealloc(c, layout(300));
        assert_eq!((heap.leaks_since(mark).count(), heap.leaks_since(later).count()), (1, 0));
        heap.dealloc(moved, layout(4000));
        heap.dealloc(before, layout(2000));
        assert_eq!(heap.leaks_since(mark).count(), 0);
    }
}

/// A full list is reported, also to a check for leaks.
#[test]
fn what_finds_no_room_is_counted() {
    let heap: Listed<4> = Observed::new(heap!(16 * 1024), Default::default());
    // SAFETY: blocks are live and freed with their layouts.
    unsafe {
        let mark = heap.mark();
        let blocks: Vec<_> = (0..7).map(|_| heap.alloc(layout(16))).collect();
        assert_eq!(heap.observers(|all| (all.1.blocks().count(), all.1.unlisted())), (4, 3));
        assert_eq!((heap.unlisted_since(mark), heap.leaks_since(mark).count()), (3, 4));
        // A block that is not listed stays unlisted.
        let last = heap.realloc(blocks[6], layout(16), 500);
        assert_eq!(heap.observers(|all| (all.1.blocks().count(), all.1.unlisted())), (4, 3));
        heap.dealloc(blocks[0], layout(16));
        heap.dealloc(blocks[5], layout(16));
        assert_eq!(heap.observers(|all| (all.1.blocks().count(), all.1.unlisted())), (3, 2));
        heap.dealloc(last, layout(500));
        for &block in &blocks[1..5] {
            heap.dealloc(block, layout(16));
        }
        assert_eq!(heap.observers(|all| (all.1.blocks().count(), all.1.unlisted())), (0, 0));
        assert_eq!(heap.unlisted_since(mark), 0);
    }
}
