//! Several threads at once.

use crate::{HEAP, alone};
use std::collections::VecDeque;
use std::ptr::{self, NonNull};
use std::sync::{Barrier, mpsc};
use std::thread;

/// One thread allocates, another frees: the memory in use stays bounded.
#[test]
fn blocks_freed_by_another_thread_come_back() {
    let _alone = alone();
    let (sender, receiver) = mpsc::sync_channel::<Vec<Box<[u64; 12]>>>(4);
    let consumer = thread::spawn(move || {
        let mut sum = 0;
        for blocks in receiver {
            sum += blocks.iter().map(|block| block[5]).sum::<u64>();
        }
        sum
    });
    let before = HEAP.stats().committed;
    for round in 0..4000 {
        sender.send((0..100).map(|at| Box::new([round * 100 + at; 12])).collect()).unwrap();
    }
    drop(sender);
    assert_eq!(consumer.join().unwrap(), (0..400_000).sum());
    // 38 MB went through.
    assert!(HEAP.stats().committed <= before.max(16 << 20) + (64 << 20));
}

/// Every thread works on lists of its own and passes some on; each checks what it gets.
#[test]
fn threads_share_nothing_by_accident() {
    let _alone = alone();
    let handles: Vec<_> = (0..8)
        .map(|seed| {
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
                for _ in 0..20_000 {
                    let size =
                        if random.u32(..50) == 0 { random.usize(..100_000) } else { random.usize(..600) };
                    kept.push_back(vec![seed as u8; size]);
                    if kept.len() > 200 {
                        let at = random.usize(..kept.len());
                        let gone = kept.swap_remove_back(at).unwrap();
                        assert!(gone.iter().all(|&byte| byte == seed as u8));
                    }
                }
                kept
            })
        })
        .collect();
    for (seed, handle) in handles.into_iter().enumerate() {
        // Freed here, in another thread, after its own has ended.
        assert!(handle.join().unwrap().iter().flatten().all(|&byte| byte == seed as u8));
    }
}

/// A thread that ends leaves nothing behind.
#[test]
fn threads_that_end_give_their_lists_back() {
    let _alone = alone();
    let run = || {
        for _ in 0..50 {
            thread::spawn(|| {
                let blocks: Vec<Box<[u8; 500]>> = (0..100).map(|_| Box::new([1; 500])).collect();
                drop(blocks);
            })
            .join()
            .unwrap();
        }
    };
    run();
    HEAP.trim();
    let before = HEAP.stats().used;
    for _ in 0..10 {
        run();
    }
    HEAP.trim();
    // 500 threads with lists of 16 KiB would be 8 MB; threads of the harness take a little.
    let after = HEAP.stats().used;
    assert!(after < before + (2 << 20), "{before} {after}");
}

/// What a thread frees for another one is not what it gets next: the other one may still use the rest of these cache lines.
#[test]
fn what_another_thread_took_is_not_handed_out_next() {
    // Of a size that nothing else here has.
    const SIZE: usize = 2800;
    let _alone = alone();
    let take = || NonNull::new(HEAP.allocate_raw(SIZE, 16)).unwrap();
    let give = |block| {
        // SAFETY: the block is live.
        unsafe { HEAP.free(block) }.unwrap();
    };
    let addresses: Vec<usize> = (0..4).map(|_| take().as_ptr().expose_provenance()).collect();
    let block = |address: usize| NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            addresses[..3].iter().for_each(|&address| give(block(address)));
            let own = take();
            assert!(!addresses.contains(&own.as_ptr().addr()), "handed out at once");
            give(own);
            // From now on the thread has blocks of its own, and gets them again.
            assert_eq!(take(), own);
            give(own);
        });
    });
    give(block(addresses[3]));
}

/// A thread that only frees passes blocks on in batches.
#[test]
fn a_thread_that_only_frees_keeps_less_than_a_batch() {
    const SIZE: usize = 3000;
    let _alone = alone();
    let blocks: Vec<usize> = (0..400).map(|_| HEAP.allocate_raw(SIZE, 16).expose_provenance()).collect();
    let before = HEAP.stats().used;
    thread::scope(|scope| {
        scope.spawn(|| {
            for &block in &blocks {
                let block = NonNull::new(ptr::with_exposed_provenance_mut(block)).unwrap();
                // SAFETY: the block is live.
                unsafe { HEAP.free(block) }.unwrap();
            }
            let after = HEAP.stats().used;
            // A list holds 16 KiB; threads of the harness that start meanwhile take a little.
            assert!(after + 400 * SIZE < before + 512 * 1024, "{before} {after}");
        });
    });
}

/// A trim by one thread makes the others give their lists back when they next need the shared pages.
#[test]
fn a_trim_reaches_the_lists_of_other_threads() {
    const SIZES: [usize; 6] = [2000, 2500, 3000, 4000, 5000, 7000];
    const THREADS: usize = 8;
    let _alone = alone();
    let step = Barrier::new(THREADS + 1);
    let take_and_give = |size, count| {
        let blocks: Vec<_> = (0..count).map(|_| NonNull::new(HEAP.allocate_raw(size, 16)).unwrap()).collect();
        for block in blocks {
            // SAFETY: the block is live.
            unsafe { HEAP.free(block) }.unwrap();
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                SIZES.iter().for_each(|&size| take_and_give(size, 8));
                step.wait();
                step.wait();
                // A size of which the thread has no blocks.
                take_and_give(9000, 1);
                step.wait();
                step.wait();
            });
        }
        step.wait();
        let before = HEAP.stats().used;
        HEAP.trim();
        step.wait();
        step.wait();
        let after = HEAP.stats().used;
        step.wait();
        assert!(before >= after + THREADS * 32 * 1024, "{before} {after}");
    });
}
