//! Requests of zeroed memory, where the heap's memory was zero at first and where it was not.

use crate::shadow::{AnyHeap, Case};
use allotment::lock::Unsync;
use allotment::observe::NoStatistics;
use allotment::placement::Placement;
use allotment::{BestFit, Heap, Region, Tlsf};
use std::alloc::Layout;
use std::ptr::NonNull;

/// A heap and its live blocks. All that is allocated gets written to.
struct Used {
    heap: Box<dyn AnyHeap>,
    live: Vec<(NonNull<u8>, Layout)>,
    /// What the heap uses, so it is dropped last.
    _memory: Vec<u64>,
}

impl Used {
    fn new(case: &'static Case, bytes: usize, zeroed: bool) -> Self {
        let mut memory = vec![if zeroed { 0 } else { u64::MAX }; bytes / 8];
        let heap = (case.empty)(bytes);
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the memory outlives the heap, and is zero if that is said.
        unsafe { heap.claim(Region { zeroed, ..Region::new(start, bytes) }).unwrap() };
        Self { heap, live: Vec::new(), _memory: memory }
    }

    fn allocate(&mut self, size: usize, align: usize, zeroed: bool) {
        let layout = Layout::from_size_align(size, align).unwrap();
        let block =
            if zeroed { self.heap.try_allocate_zeroed(layout) } else { self.heap.try_allocate(layout) };
        let Ok(block) = block else { return };
        // SAFETY: the block has that many bytes.
        unsafe {
            let dirty = zeroed.then(|| (0..size).find(|&at| block.add(at).read() != 0)).flatten();
            assert_eq!(dirty, None, "the first byte of {layout:?} that is not zero");
            block.write_bytes(0xff, size);
        }
        self.live.push((block, layout));
    }

    fn resize(&mut self, at: usize, size: usize) {
        let (block, layout) = self.live[at];
        let new = Layout::from_size_align(size, layout.align()).unwrap();
        // SAFETY: the block is live, and has the new size if that is possible.
        unsafe {
            if self.heap.try_resize(block, layout, size) {
                block.write_bytes(0xff, size);
                self.live[at].1 = new;
            }
        }
    }

    fn free(&mut self, at: usize) {
        let (block, layout) = self.live.swap_remove(at);
        // SAFETY: the block is live and has this layout.
        unsafe { self.heap.try_deallocate(block, layout).unwrap() };
    }
}

mod short_lives {
    use super::*;

    /// Few steps in many heaps: how far the memory has been used is soon all of it.
    fn run(case: &'static Case) {
        for seed in 0..400 {
            let mut random = fastrand::Rng::with_seed(seed);
            // Of memory that is not zero all is cleared.
            let mut used = Used::new(case, 16 * 1024, seed % 8 < 6);
            if seed % 4 == 1 {
                let all = used.heap.stats().largest_free;
                used.allocate(all, 1, true);
                if !used.live.is_empty() {
                    used.free(0);
                }
            }
            let largest = [20, 300, 5_000][seed as usize % 3];
            for _ in 0..12 {
                let (size, live) = (random.usize(1..=largest), used.live.len());
                match random.u8(0..6) {
                    0 | 1 if live > 0 => used.free(random.usize(0..live)),
                    2 if live > 0 => used.resize(random.usize(0..live), size),
                    3 | 4 => used.allocate(size, 1 << random.u8(0..7), true),
                    _ => used.allocate(size, 1 << random.u8(0..7), false),
                }
            }
        }
    }

    for_each_placement!(run);
}

/// Memory that was never used is not cleared again, but for the bookkeeping at its ends.
#[test]
fn fresh_memory_is_left_alone() {
    fn check<P: Placement>() {
        let layout = Layout::from_size_align(3000, 8).unwrap();
        let mut memory = vec![0u64; 8192];
        let heap = Heap::<P, Unsync>::empty();
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the memory outlives the heap and is zero; what is allocated past the statistics is freed so as well.
        unsafe {
            heap.claim(Region { zeroed: true, ..Region::new(start, 65_536) }).unwrap();
            let cleared = || {
                let zeroed = |placement: &mut P| placement.allocate_zeroed(layout, &mut NoStatistics);
                let (block, front, back) = heap.with_placement(zeroed).unwrap();
                (block, front + back)
            };
            let blocks = [(); 15].map(|()| cleared());
            assert!(blocks.iter().all(|&(_, bytes)| bytes <= 64), "{blocks:?}");
            for (block, _) in blocks {
                heap.with_placement(|placement| placement.free(block, layout, &mut NoStatistics)).unwrap();
            }
            for _ in blocks {
                let (_, bytes) = cleared();
                assert!((3000..3016).contains(&bytes), "{bytes} of a block that was used");
            }
        }
    }
    check::<Tlsf>();
    check::<Tlsf<u32, 1>>();
    check::<allotment::Tlsf16>();
    check::<BestFit>();
}
