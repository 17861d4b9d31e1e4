//! Memory that is zero at first: what has been used since is cleared for a request of zeroed memory.

use crate::shadow::{AnyHeap, Case};
use allotment::Region;
use std::alloc::Layout;
use std::ptr::NonNull;

/// A heap over memory that is zero, and its live blocks. All that is handed out gets written to.
struct Used {
    heap: Box<dyn AnyHeap>,
    live: Vec<(NonNull<u8>, Layout)>,
    /// What the heap uses, so it is dropped last.
    _memory: Vec<u64>,
}

impl Used {
    fn new(case: &'static Case, bytes: usize) -> Self {
        let mut memory = vec![0u64; bytes / 8];
        let heap = (case.empty)(bytes);
        let start = NonNull::from(memory.as_mut_slice()).cast();
        // SAFETY: the memory outlives the heap and is zero.
        unsafe { heap.claim(Region { zeroed: true, ..Region::new(start, bytes) }).unwrap() };
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
            let mut used = Used::new(case, 16 * 1024);
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
