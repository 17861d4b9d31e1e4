//! Children of a program with threads.

use crate::forked::{_exit, fork, succeeds};
use crate::{HEAP, alone};
use allotment::os::{Growing, Own, protect_at_fork};
use allotment::pressure::Purgeable;
use allotment::{Memory, Observed, observe::Profile};
use std::alloc::Layout;
use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Requests that mostly need the heap's lock.
fn work(seed: usize) {
    for size in 1..60 {
        drop(black_box(vec![seed as u8; size * 3001]));
    }
}

/// Forks while other threads work. The children work as well.
fn fork_beside(work: fn(usize)) {
    static STOP: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    STOP.store(false, Ordering::Relaxed);
    let worker = |seed| {
        thread::spawn(move || {
            while !STOP.load(Ordering::Relaxed) {
                work(seed);
            }
        })
    };
    let workers: Vec<_> = (0..3).map(worker).collect();
    let all_end = (0..60).all(|_| {
        // SAFETY: the child uses nothing but the heap and leaves without cleaning up.
        unsafe {
            let child = fork();
            if child == 0 {
                work(9);
                // One with threads of its own.
                _exit(i32::from(thread::spawn(move || work(8)).join().is_err()));
            }
            assert!(child > 0);
            succeeds(child)
        }
    });
    STOP.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(all_end, "a child hung or failed");
}

/// The heap sees to it by itself.
#[test]
fn children_can_allocate() {
    fork_beside(work);
    assert!(HEAP.stats().used > 0);
}

/// So do heaps that are made at run time, however many they are.
#[test]
fn children_can_use_heaps_of_their_own() {
    static HEAPS: OnceLock<Vec<Growing<Own>>> = OnceLock::new();
    let create = |_| {
        let heap = Growing::create();
        // As many as these do not all have the addresses that they ask for where there are few.
        if usize::BITS == 32 {
            heap.limit(8 << 20);
        }
        heap
    };
    HEAPS.get_or_init(|| (0..70).map(create).collect());
    fork_beside(|seed| {
        for heap in HEAPS.get().into_iter().flatten() {
            let layout = Layout::from_size_align(40_000 + seed, 8).unwrap();
            let block = heap.allocate(layout).unwrap();
            // SAFETY: the block is live, and freed once.
            unsafe { heap.deallocate(block, layout) };
        }
        drop(black_box(Growing::create()));
    });
}

/// A front has a lock of its own, and the heap behind it another one, which is held once.
#[test]
fn children_can_allocate_from_a_front() {
    static FRONT: Observed<Growing, Profile> = Observed::new(Growing::new(), Profile::new());
    protect_at_fork(&FRONT).unwrap();
    fork_beside(|seed| {
        for size in 1..200 {
            let layout = Layout::from_size_align(size * 301, 16).unwrap();
            let block = FRONT.allocate(layout).unwrap();
            // SAFETY: the block is live, and freed once.
            unsafe {
                block.write_bytes(seed as u8, layout.size());
                FRONT.deallocate(block, layout);
            }
        }
    });
}

/// Blocks that may go have a lock that is no memory's. The places that a child asks for were empty at the fork.
#[test]
fn children_can_use_blocks_that_may_go() {
    static BLOCKS: Purgeable<Growing, 10> = Purgeable::new(Growing::new(), ());
    protect_at_fork(&BLOCKS).unwrap();
    fork_beside(|seed| {
        for _ in 0..300 {
            let block = BLOCKS.get(seed, 100, |bytes| bytes.fill(seed as u8));
            // Another worker may be emptying it.
            assert!(block.as_deref().map_or(seed < 8, |block| block == [seed as u8; 100]));
        }
        BLOCKS.reclaim(100);
    });
}
