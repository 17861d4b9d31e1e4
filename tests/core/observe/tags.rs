//! Scopes, and statistics per tag.

use super::layout;
use allotment::Observed;
use allotment::lock::{Spin, Unsync};
use allotment::observe::{Tags, swap_tag, tag, with_tag};
use allotment::{Heap, Tlsf, heap};
use std::alloc::GlobalAlloc;
#[cfg(not(feature = "std"))]
use std::sync::Mutex;

/// Without `std` all threads of this program count as one core, which runs one test after the other.
#[cfg(not(feature = "std"))]
pub static ONE_CORE: Mutex<()> = Mutex::new(());

#[test]
fn scopes_nest_and_end() {
    #[cfg(not(feature = "std"))]
    let _core = ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert_eq!(tag(), None);
    with_tag("outer", || {
        assert_eq!(tag(), Some("outer"));
        with_tag("inner", || assert_eq!(tag(), Some("inner")));
        assert_eq!(tag(), Some("outer"));
        let panicked = std::panic::catch_unwind(|| with_tag("inner", || panic!("in a scope")));
        assert!(panicked.is_err());
        assert_eq!(tag(), Some("outer"));
        assert_eq!(swap_tag(None), Some("outer"));
        assert_eq!(tag(), None);
    });
    assert_eq!(tag(), None);
}

#[cfg(feature = "std")]
#[test]
fn each_thread_has_its_own() {
    with_tag("here", || {
        let other = std::thread::spawn(|| (tag(), with_tag("there", tag)));
        assert_eq!(other.join().unwrap(), (None, Some("there")));
        assert_eq!(tag(), Some("here"));
    });
}

/// Without `std`, each core has its own tag if the number of the core is known.
#[cfg(not(feature = "std"))]
#[test]
fn each_core_has_its_own() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    static CORE: AtomicUsize = AtomicUsize::new(0);
    let _core = ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: the function only returns the simulated core number.
    unsafe { allotment::observe::set_core_number(|| CORE.load(Relaxed)) };
    with_tag("first", || {
        CORE.store(1, Relaxed);
        assert_eq!(tag(), None);
        with_tag("second", || {
            CORE.store(0, Relaxed);
            assert_eq!(tag(), Some("first"));
            CORE.store(1, Relaxed);
            assert_eq!(tag(), Some("second"));
        });
        CORE.store(0, Relaxed);
    });
    assert_eq!(tag(), None);
}

#[test]
fn blocks_belong_to_the_tag_that_allocated_them() {
    #[cfg(not(feature = "std"))]
    let _core = ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let heap: Observed<Heap<Tlsf, Spin>, Tags<2, 8>, Unsync> = Observed::new(heap!(16 * 1024), Tags::new());
    let of = |tag| {
        let stats = heap.observers(|tags| tags.of(tag));
        assert_eq!(stats.tag, tag);
        (stats.live_blocks, stats.live_bytes, stats.peak_bytes, stats.allocations, stats.failures)
    };
    // SAFETY: blocks are live and freed with their layouts.
    unsafe {
        let plain = heap.alloc(layout(5));
        let net = with_tag("net", || heap.alloc(layout(100)));
        let tls = with_tag("net", || with_tag("tls", || heap.alloc(layout(1000))));
        assert_eq!(of(Some("net")), (1, 100, 100, 1, 0));
        assert_eq!(of(Some("tls")), (1, 1000, 1000, 1, 0));
        assert_eq!(of(None), (1, 5, 5, 1, 0));
        // Growing and freeing elsewhere does not change the block's tag.
        let net = with_tag("tls", || heap.realloc(net, layout(100), 300));
        assert_eq!(of(Some("net")), (1, 300, 300, 1, 0));
        with_tag("net", || heap.dealloc(tls, layout(1000)));
        assert_eq!(of(Some("tls")), (0, 0, 1000, 1, 0));
        assert!(with_tag("tls", || heap.alloc(layout(100_000))).is_null());
        assert_eq!(of(Some("tls")), (0, 0, 1000, 1, 1));
        // There is room for two tags.
        let disk = with_tag("disk", || heap.alloc(layout(7)));
        let others = heap.observers(|tags| tags.others());
        assert_eq!((others.live_bytes, others.allocations), (7, 1));
        assert_eq!(of(Some("disk")), (0, 0, 0, 0, 0));
        let all: Vec<_> = heap.observers(|tags| tags.iter().map(|stats| stats.tag).collect());
        assert_eq!(all, [None, Some("net"), Some("tls")]);
        for (block, size) in [(plain, 5), (net, 300), (disk, 7)] {
            heap.dealloc(block, layout(size));
        }
        assert_eq!(heap.observers(|tags| tags.iter().map(|stats| stats.live_bytes).sum::<usize>()), 0);
        assert_eq!(heap.observers(|tags| tags.others().live_blocks), 0);
        // More blocks than there is room for.
        let blocks: Vec<_> = (0..10).map(|_| heap.alloc(layout(5))).collect();
        assert_eq!((of(None).0, of(None).3), (8, 11));
        assert_eq!(heap.observers(|tags| tags.unlisted()), 2);
        // A block that is not listed belongs to no tag, even after it was reallocated.
        let last = heap.realloc(blocks[9], layout(5), 400);
        assert_eq!((of(None).0, heap.observers(|tags| tags.unlisted())), (8, 2));
        heap.dealloc(last, layout(400));
        for &block in &blocks[..9] {
            heap.dealloc(block, layout(5));
        }
        assert_eq!((of(None).0, heap.observers(|tags| tags.unlisted())), (0, 0));
    }
}
