//! Threads: the recorded order of events is consistent.

use super::{layout, replay};
use allotment::Observed;
use allotment::lock::Spin;
use allotment::observe::{Leaks, Observation, Observer, Trace, with_tag};
use allotment::{Heap, Memory, Tlsf, heap};
use std::alloc::GlobalAlloc;

#[test]
fn an_address_comes_back_before_it_is_handed_out_again() {
    static HEAP: Observed<Heap<Tlsf, Spin>, (Trace<{ 1 << 20 }>, Leaks<256>), Spin> =
        Observed::new(heap!(4096), (Trace::new(), Leaks::new()));
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut live = Vec::new();
                for _ in 0..20_000 {
                    let layout = layout(random.usize(1..64));
                    // SAFETY: blocks are live and freed with their layouts.
                    unsafe {
                        if random.bool() && live.len() < 8 {
                            let block = with_tag("work", || HEAP.alloc(layout));
                            if !block.is_null() {
                                live.push((block, layout));
                            }
                        } else if let Some((block, layout)) = live.pop() {
                            HEAP.dealloc(block, layout);
                        }
                    }
                }
                for (block, layout) in live {
                    // SAFETY: as above.
                    unsafe { HEAP.dealloc(block, layout) };
                }
            });
        }
    });
    let mut bytes = Vec::new();
    HEAP.observers(|all| {
        all.0.drain(|part| bytes.extend(part));
        assert_eq!((all.0.lost(), all.1.blocks().count(), all.1.unlisted()), (0, 0, 0));
    });
    assert!(replay(&bytes).is_empty());
    assert!(bytes.len() > 100_000);
}

/// An observer that panics ends the program: it must not unwind through the allocator.
#[test]
fn a_panicking_observer_aborts() {
    struct Panics;
    impl Observer for Panics {
        fn observe(&mut self, _: &Observation<'_>) {
            panic!("an observer with a bug");
        }
    }
    if std::env::var_os("ALLOTMENT_TEST_ABORT").is_some() {
        let heap = Observed::<Heap<Tlsf, Spin>, Panics, Spin>::new(heap!(4096), Panics);
        let _ =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| heap.try_allocate(layout(8)).is_ok()));
        return;
    }
    let mut again = crate::again::again();
    let again = again.args(["--exact", "observe::threads::a_panicking_observer_aborts", "--nocapture"]);
    let output = again.env("ALLOTMENT_TEST_ABORT", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    // A signal, or what Windows calls a fast failure.
    assert!(matches!(output.status.code(), None | Some(-0x3fff_fbf7)), "{:?}: {text}", output.status);
    assert!(text.contains("an observer with a bug"), "{text}");
}
