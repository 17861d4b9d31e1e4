//! Children of a program with threads, which may use protected heaps.

use super::layout;
use allotment::{Heap, heap, os::protect_at_fork};
use std::alloc::GlobalAlloc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn kill(process: i32, signal: i32) -> i32;
    fn _exit(status: i32) -> !;
}

const WITHOUT_WAITING: i32 = 1;
const SIGKILL: i32 = 9;

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
            let (begin, mut status) = (Instant::now(), -1);
            while waitpid(child, &mut status, WITHOUT_WAITING) == 0 {
                if begin.elapsed() > Duration::from_secs(20) {
                    kill(child, SIGKILL);
                    waitpid(child, &mut status, 0);
                    break;
                }
                thread::sleep(Duration::from_millis(1));
            }
            failed += usize::from(status != 0);
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
