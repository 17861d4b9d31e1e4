//! Children of a program with threads.

use crate::forked::{_exit, fork, succeeds};
use crate::{HEAP, alone};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Requests that mostly need the heap's lock.
fn work(seed: usize) {
    for size in 1..60 {
        drop(black_box(vec![seed as u8; size * 3001]));
    }
}

#[test]
fn children_can_allocate() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    let workers: Vec<_> = (0..3)
        .map(|seed| {
            thread::spawn(move || {
                while !STOP.load(Ordering::Relaxed) {
                    work(seed);
                }
            })
        })
        .collect();
    let all_end = (0..60).all(|_| {
        // SAFETY: the calls around the fork are those that the heap asks for. The child uses nothing but the heap and leaves
        // without cleaning up.
        unsafe {
            HEAP.before_fork();
            let child = fork();
            if child == 0 {
                HEAP.after_fork_in_child();
                work(9);
                _exit(0);
            }
            HEAP.after_fork();
            assert!(child > 0);
            succeeds(child)
        }
    });
    STOP.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all_end, "a child hung or failed");
}
