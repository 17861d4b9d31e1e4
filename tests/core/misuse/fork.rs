//! Children of a program with threads, which may use protected heaps.

use super::layout;
use crate::forked::{_exit, fork, succeeds};
use allotment::{Heap, heap, os::protect_at_fork};
use std::alloc::GlobalAlloc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Allocates and frees. Returns whether all requests were served.
fn work<A: GlobalAlloc>(heap: &A) -> bool {
    (1..200).all(|size| {
        // SAFETY: the block is freed once, with its layout.
        unsafe {
            let block = heap.alloc(layout(size));
            if block.is_null() {
                return false;
            }
            block.write_bytes(1, size);
            heap.dealloc(block, layout(size));
        }
        true
    })
}

#[test]
fn children_can_allocate() {
    static HEAP: Heap = heap!(1024 * 1024);
    static OTHER: Heap<allotment::Tlsf> = heap!(64 * 1024);
    static STOP: AtomicBool = AtomicBool::new(false);
    protect_at_fork(&HEAP).unwrap();
    protect_at_fork(&OTHER).unwrap();
    protect_at_fork(&HEAP).unwrap();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            thread::spawn(|| {
                while !STOP.load(Ordering::Relaxed) {
                    assert!(work(&HEAP) && work(&OTHER));
                }
            })
        })
        .collect();
    let mut failed = 0;
    for _ in 0..60 {
        // SAFETY: the child uses nothing but the heaps and leaves without cleaning up.
        unsafe {
            let child = fork();
            assert!(child >= 0);
            if child == 0 {
                _exit(if work(&HEAP) && work(&OTHER) { 0 } else { 1 });
            }
            failed += usize::from(!succeeds(child));
        }
        if failed > 0 {
            break;
        }
    }
    STOP.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.join().unwrap();
    }
    assert_eq!(failed, 0, "children that hung or failed");
}
