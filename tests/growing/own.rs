//! Heaps of their own, made and destroyed at run time.

use crate::alone;
use allotment::os::{Growing, Own};
use allotment::{FreeError, Memory};
use std::alloc::Layout;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::thread;

const MIB: usize = 1 << 20;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A block that is filled, and known by number: a thread may free what another one has allocated.
struct Block {
    address: usize,
    size: usize,
    fill: u8,
}

impl Block {
    fn new(heap: &Growing<Own>, size: usize, fill: u8) -> Self {
        let block = heap.allocate(layout(size)).unwrap();
        // SAFETY: the block has that many bytes.
        unsafe { block.write_bytes(fill, size) };
        Self { address: block.as_ptr().expose_provenance(), size, fill }
    }

    fn pointer(&self) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(self.address)).unwrap()
    }

    fn free(self, heap: &Growing<Own>) {
        let block = self.pointer();
        // SAFETY: the block is live, and freed once.
        unsafe {
            let bytes = std::slice::from_raw_parts(block.as_ptr(), self.size);
            assert!(bytes.iter().all(|&byte| byte == self.fill), "{} bytes", self.size);
            heap.try_deallocate(block, layout(self.size)).unwrap();
        }
    }
}

/// What a heap has goes back when it ends, live blocks included, and each counts its own.
#[test]
#[cfg(target_os = "linux")]
fn heaps_end_with_all_their_blocks() {
    let _alone = alone();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let is_mapped = |address: usize| {
        std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|line| {
            let (from, rest) = line.split_once('-').unwrap();
            let [from, to] =
                [from, rest.split(' ').next().unwrap()].map(|at| usize::from_str_radix(at, 16).unwrap());
            (from..to).contains(&address)
        })
    };
    let (heap, other) = (Growing::create(), Growing::create());
    let used = crate::HEAP.stats().used;
    let before = resident();
    let blocks: Vec<_> = [20, 700, 30_000, 32_769, 8 * MIB].into_iter().cycle().take(50).collect();
    let blocks: Vec<_> = blocks.into_iter().map(|size| Block::new(&heap, size, 7)).collect();
    assert!(heap.stats().used >= 80 * MIB && resident() - before >= 80 * MIB);
    assert!(crate::HEAP.stats().used - used < MIB, "the process's heap has nothing of it");
    assert_eq!(other.stats().used, 0);
    assert_eq!(heap.usable_size(blocks[0].pointer()), Some(24));
    assert_eq!(other.usable_size(blocks[0].pointer()), None);
    // SAFETY: the block is not the other heap's, which refuses it.
    let refused = unsafe { other.try_deallocate(blocks[0].pointer(), layout(20)) };
    assert_eq!(refused, Err(FreeError::Foreign));
    assert!(blocks.iter().all(|block| is_mapped(block.address)));
    drop(heap);
    assert!(!blocks.iter().any(|block| is_mapped(block.address)));
    // The system may also have reclaimed pages of something else.
    let more = resident().saturating_sub(before);
    assert!(more < 4 * MIB, "{more} B");
    drop(other);
}

/// A large block that the program never wrote to may hold the mark of a small one. It moves to other addresses, and back again.
#[test]
fn a_mark_that_was_left_over_is_of_no_block() {
    let _alone = alone();
    let heap = Growing::create();
    let [small, other, large] = [layout(4096), layout(40), layout(40_000)];
    let allocate = |layout| heap.allocate(layout).unwrap();
    // SAFETY: each block is live, and is not used after it was freed or moved.
    let free = |block, layout| unsafe { heap.deallocate(block, layout) };
    let marked: BTreeSet<_> = (0..100)
        .map(|_| allocate(small))
        .collect::<Vec<_>>()
        .into_iter()
        .inspect(|&block| free(block, small))
        .collect();
    let larges: Vec<_> = (0..5).map(|_| allocate(large)).collect();
    let (mut again, first) = (Vec::new(), *larges.iter().find(|block| marked.contains(block)).unwrap());
    // SAFETY: as above.
    let moved = unsafe { Memory::change(&heap, first, large, other, &mut |_| {}) }.unwrap();
    larges.iter().filter(|&&block| block != first).for_each(|&block| free(block, large));
    while again.last() != Some(&first) {
        again.push(allocate(small));
    }
    free(first, small);
    // SAFETY: as above.
    unsafe {
        assert_eq!(Memory::change(&heap, moved, other, small, &mut |_| {}), Some(first));
        assert_eq!(heap.check_owned(first, small), Ok(()));
    }
}

/// Limits are each heap's own, and the memory can be had again.
#[test]
fn each_heap_has_a_limit() {
    let _alone = alone();
    for _ in 0..3 {
        let (small, large) = (Growing::create(), Growing::create());
        small.limit(4 * MIB);
        assert!(small.allocate(layout(5 * MIB)).is_none());
        Block::new(&large, 5 * MIB, 1).free(&large);
        let block = Block::new(&small, 3 * MIB, 2);
        block.free(&small);
        small.trim();
        assert_eq!(small.stats().used, 0);
    }
}

/// Threads live longer than heaps, and keep blocks of those that have ended. They use the next ones as if nothing had been.
#[test]
fn threads_outlive_heaps() {
    let _alone = alone();
    type Job = Box<dyn FnOnce() + Send>;
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let (sender, jobs) = mpsc::channel::<Job>();
            (sender, thread::spawn(move || jobs.into_iter().for_each(|job| job())))
        })
        .collect();
    for round in 0..60_u8 {
        // More than a thread has lists for, of different lives.
        let heaps: Vec<_> = (0..7).map(|_| Arc::new(Growing::create())).collect();
        let (sender, blocks) = mpsc::channel();
        for (worker, (jobs, _)) in workers.iter().enumerate() {
            let (heaps, sender) = (heaps.clone(), sender.clone());
            jobs.send(Box::new(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(round) * 10 + worker as u64);
                for _ in 0..300 {
                    let which = random.usize(..heaps.len());
                    let size =
                        if random.u32(..30) == 0 { random.usize(..90_000) } else { random.usize(1..900) };
                    let blocks: Vec<_> = (0..9).map(|n| Block::new(&heaps[which], size, n + round)).collect();
                    for block in blocks {
                        // Freed here, by another thread, or with the heap.
                        match random.u32(..3) {
                            0 => block.free(&heaps[which]),
                            1 => sender.send((which, block)).unwrap(),
                            _ => {}
                        }
                    }
                }
            }))
            .unwrap();
        }
        drop(sender);
        let mut live = BTreeSet::new();
        for (which, block) in blocks {
            assert!(live.insert(block.address) || which > 0);
            block.free(&heaps[which]);
            live.clear();
        }
        // A job holds its heaps until it has ended.
        for mut heap in heaps {
            while Arc::get_mut(&mut heap).is_none() {
                thread::yield_now();
            }
        }
    }
    for (jobs, worker) in workers {
        drop(jobs);
        worker.join().unwrap();
    }
}

/// What a thread keeps is the heap's again when the thread ends.
#[test]
fn threads_that_end_leave_their_blocks_to_the_heap() {
    let _alone = alone();
    let heap = Growing::create();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let blocks: Vec<_> = (0..500).map(|n| Block::new(&heap, 100, n as u8)).collect();
                blocks.into_iter().for_each(|block| block.free(&heap));
                assert!(heap.stats().used > 0, "the thread keeps some");
            });
        }
    });
    // Threads of a scope may still be ending.
    for _ in 0..1000 {
        if heap.stats().used == 0 {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{:?}", heap.stats());
}

/// Freed blocks of a heap are found twice freed, in any thread.
#[test]
fn double_frees_in_a_heap_are_found() {
    let _alone = alone();
    let heap = Growing::create();
    let block = Block::new(&heap, 48, 1);
    let pointer = block.pointer();
    block.free(&heap);
    // SAFETY: the block is free, which the heap notices.
    assert_eq!(unsafe { heap.try_deallocate(pointer, layout(48)) }, Err(FreeError::AlreadyFree));
}

/// A heap that takes the record of an earlier one, whose addresses were others, keeps all blocks that are freed.
#[test]
fn lists_pass_to_the_next_heap() {
    let _alone = alone();
    for large in [64 << 10, 8 * MIB] {
        for _ in 0..4 {
            let heap = Growing::create();
            heap.limit(if large > MIB { usize::MAX / 2 } else { 4 * MIB });
            // A large block has the range reserved before there are lists.
            let first = Block::new(&heap, large, 1);
            let blocks: Vec<_> = (0..20_000).map(|n| Block::new(&heap, 16 + n % 64, n as u8)).collect();
            blocks.into_iter().for_each(|block| block.free(&heap));
            first.free(&heap);
            heap.trim();
            assert!(heap.stats().used < 64 << 10, "{} bytes", heap.stats().used);
        }
    }
}
