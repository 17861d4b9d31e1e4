//! Children of a program with threads.

use crate::{HEAP, alone};
use std::hint::black_box;
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

/// Requests that mostly need the heap's lock.
fn work(seed: usize) {
    for size in 1..60 {
        drop(black_box(vec![seed as u8; size * 3001]));
    }
}

/// Returns whether a child ends by itself, and well.
fn ends(child: i32) -> bool {
    let (begin, mut status) = (Instant::now(), -1);
    // SAFETY: the child is ours, and the status a valid place.
    unsafe {
        while waitpid(child, &mut status, WITHOUT_WAITING) == 0 {
            if begin.elapsed() > Duration::from_secs(20) {
                kill(child, SIGKILL);
                waitpid(child, &mut status, 0);
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    status == 0
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
            ends(child)
        }
    });
    STOP.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all_end, "a child hung or failed");
}
