//! Synthetic traces.

use crate::trace::{Kind, Op, Trace, op};

/// Writes a trace, and keeps track of the live blocks.
#[derive(Default)]
pub struct Writer {
    ops: Vec<Op>,
    /// Size and alignment of the block in each slot.
    blocks: Vec<(usize, usize)>,
    live: usize,
    peak: usize,
}

impl Writer {
    /// Returns the number of operations so far.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns the size of a slot's block.
    pub fn size(&self, slot: usize) -> usize {
        self.blocks[slot].0
    }

    /// Allocates a block in an empty slot.
    pub fn allocate(&mut self, slot: usize, size: usize, align: usize) {
        self.ops.push(op(Kind::Allocate, slot, size, align, 0));
        if self.blocks.len() <= slot {
            self.blocks.resize(slot + 1, (0, 1));
        }
        self.blocks[slot] = (size, align);
        self.count(0, size);
    }

    /// Resizes a slot's block.
    pub fn resize(&mut self, slot: usize, new: usize) {
        let (size, align) = self.blocks[slot];
        self.ops.push(op(Kind::Reallocate, slot, size, align, new));
        self.blocks[slot].0 = new;
        self.count(size, new);
    }

    /// Frees a slot's block.
    pub fn free(&mut self, slot: usize) {
        let (size, align) = self.blocks[slot];
        self.ops.push(op(Kind::Free, slot, size, align, 0));
        self.count(size, 0);
    }

    fn count(&mut self, old: usize, new: usize) {
        self.live = self.live - old + new;
        self.peak = self.peak.max(self.live);
    }

    /// Makes the trace, over an arena of `room` bytes if given.
    pub fn finish(self, name: impl Into<String>, room: Option<usize>) -> Trace {
        Trace { name: name.into(), ops: self.ops, slots: self.blocks.len(), peak: self.peak, room }
    }
}

/// Makes 64 vectors that grow by doubling from 16 bytes to 16 KiB, in random order, `rounds` times.
pub fn vectors(rounds: usize) -> Trace {
    const VECTORS: usize = 64;
    const FULL: usize = 16 << 10;
    let mut random = fastrand::Rng::with_seed(3);
    let mut trace = Writer::default();
    for _ in 0..rounds {
        (0..VECTORS).for_each(|slot| trace.allocate(slot, 16, 8));
        while let Some(least) = (0..VECTORS).find(|&slot| trace.size(slot) < FULL) {
            let chosen = random.usize(..VECTORS);
            let slot = if trace.size(chosen) < FULL { chosen } else { least };
            trace.resize(slot, 2 * trace.size(slot));
        }
        (0..VECTORS).for_each(|slot| trace.free(slot));
    }
    trace.finish("vectors", None)
}
