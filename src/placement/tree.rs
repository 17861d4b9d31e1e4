//! A randomised tree of the free blocks, in the two links that every free block has.

use super::coalescing::LARGE;
use super::free_index::{Found, FreeIndex};
use crate::error::misuse::{Fault, corrupted};
use crate::meta::{FreeBlocks, Id, NIL};
use crate::units::Index;

/// A number that looks random, from the place of a block: what balances the tree.
fn scatter(offset: usize) -> u32 {
    // The multiplier is 2^32 / golden ratio; the upper bits are the well mixed ones.
    (offset as u32).wrapping_mul(0x9e37_79b9)
}

/// A treap (Aragon and Seidel, "Randomized search trees", FOCS 1989) in which a block's
/// two links are its children: no parent links, no balance field, so that the smallest free block
/// still has room. Every operation takes O(depth), O(log n) expected for n free blocks.
///
/// ```text
///            (c)
///           /   \         from left to right    length, address
///        (a)     (e)      from top to bottom    scattered address
///          \     /        a search finds        the best fit
///          (b) (d)
/// ```
///
/// [`BestFit`](super::BestFit) is made with it.
pub struct FreeTree<I> {
    root: I,
    /// Length of the longest block.
    longest: I,
}

/// Where a link to a node is kept: the root, or one of a node's two links.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Left(Id),
    Right(Id),
}

impl<I: Index> FreeTree<I> {
    /// Whether free block `a` stands left of free block `b`: a strict total order, since offsets are unique.
    ///
    /// # Safety
    ///
    /// Both are free blocks of `meta`.
    #[inline]
    unsafe fn left_of<M: FreeBlocks>(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe { (meta.len(a), meta.offset(a)) < (meta.len(b), meta.offset(b)) }
    }

    /// Whether free block `a` may stand above free block `b`.
    ///
    /// # Safety
    ///
    /// Both are free blocks of `meta`.
    #[inline]
    unsafe fn above<M: FreeBlocks>(meta: &M, a: Id, b: Id) -> bool {
        // SAFETY: the caller passes free blocks of `meta`.
        unsafe { scatter(meta.offset(a)) > scatter(meta.offset(b)) }
    }

    /// Returns the block that a link of block `at` leads to, and ends the program if that does not belong below it. Each
    /// step then leads down, so that every walk in a damaged tree ends: at level `Off` as well, where a double free would
    /// make circles.
    ///
    /// # Safety
    ///
    /// `at` is in a tree of free blocks of `meta`, and `to` is one of its links.
    #[inline(always)]
    unsafe fn below<M: FreeBlocks>(meta: &M, at: Id, to: Id) -> Id {
        // SAFETY: blocks in a tree are free; a damaged link leads to a fault of the processor at worst, not to a write.
        if to != NIL && !unsafe { (!M::ENCODES || meta.is_inside(to)) && Self::above(meta, at, to) } {
            corrupted(Fault::BrokenList, 0);
        }
        to
    }

    /// Finds the smallest block of at least `len` granules in the tree under `root`, the lowest of equals, or [`NIL`].
    ///
    /// # Safety
    ///
    /// `root` is the root of a tree of free blocks of `meta` by size, or [`NIL`].
    #[inline]
    unsafe fn best<M: FreeBlocks>(meta: &M, root: Id, len: usize) -> Id {
        let (mut at, mut best) = (root, NIL);
        // SAFETY: links of a free block in the tree are NIL or free blocks in the tree.
        unsafe {
            while at != NIL {
                let to = if meta.len(at) >= len {
                    best = at;
                    meta.next(at)
                } else {
                    meta.prev(at)
                };
                at = Self::below(meta, at, to);
            }
        }
        best
    }

    /// Returns the link of block `at` to its left or to its right, and the block there.
    ///
    /// # Safety
    ///
    /// `at` is in the tree.
    #[inline(always)]
    unsafe fn down<M: FreeBlocks<Index = I>>(meta: &M, at: Id, left: bool) -> (Slot, Id) {
        // SAFETY: blocks in the tree are free.
        unsafe {
            let (slot, to) =
                if left { (Slot::Left(at), meta.next(at)) } else { (Slot::Right(at), meta.prev(at)) };
            (slot, Self::below(meta, at, to))
        }
    }

    #[inline]
    unsafe fn set<M: FreeBlocks<Index = I>>(&mut self, meta: &mut M, slot: Slot, to: Id) {
        // SAFETY: slots are made from blocks in the tree, which are free.
        unsafe {
            match slot {
                Slot::Root => self.root = I::new(to),
                Slot::Left(id) => meta.set_next(id, to),
                Slot::Right(id) => meta.set_prev(id, to),
            }
        }
    }
}

// SAFETY: the tree holds what was inserted and not removed; a search returns a block that is long enough.
unsafe impl<M: FreeBlocks<Index = I>, I: Index> FreeIndex<M> for FreeTree<I> {
    const EMPTY: Self = Self { root: I::NIL, longest: I::NIL };
    const MAX_LEN: usize = usize::MAX;

    const FROM_FRONT: usize = LARGE;
    type Spot = ();

    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<()>> {
        let root = self.root.get();
        // SAFETY: the root is NIL or a free block.
        unsafe {
            match Self::best(meta, root, len) {
                NIL => None,
                id => Some(Found { id, len: meta.len(id), spot: () }),
            }
        }
    }

    fn spot(_len: usize) {}

    unsafe fn insert(&mut self, meta: &mut M, id: Id, len: usize, (): ()) {
        // SAFETY: every id met is NIL or in the tree, hence free; `id` is free.
        unsafe {
            // Down to where the new block belongs from top to bottom.
            let (mut slot, mut at) = (Slot::Root, self.root.get());
            while at != NIL && Self::above(meta, at, id) {
                (slot, at) = Self::down(meta, at, Self::left_of(meta, id, at));
            }
            self.set(meta, slot, id);
            // What was there falls apart into what stands left and right of the new block.
            let (mut left, mut right) = (Slot::Left(id), Slot::Right(id));
            while at != NIL {
                if Self::left_of(meta, at, id) {
                    self.set(meta, left, at);
                    (left, at) = Self::down(meta, at, false);
                } else {
                    self.set(meta, right, at);
                    (right, at) = Self::down(meta, at, true);
                }
            }
            self.set(meta, left, NIL);
            self.set(meta, right, NIL);
        }
        if len > self.longest.get() {
            self.longest = I::new(len);
        }
    }

    unsafe fn remove(&mut self, meta: &mut M, id: Id, len: usize, (): ()) {
        // SAFETY: as in `insert`; `id` is in the tree, so the way down ends at it.
        unsafe {
            let (mut slot, mut at) = (Slot::Root, self.root.get());
            while at != id {
                if at == NIL {
                    corrupted(Fault::BrokenList, 0);
                }
                (slot, at) = Self::down(meta, at, Self::left_of(meta, id, at));
            }
            // Its subtrees are merged in its place.
            let mut left = Self::below(meta, id, meta.next(id));
            let mut right = Self::below(meta, id, meta.prev(id));
            while left != NIL && right != NIL {
                if Self::above(meta, left, right) {
                    self.set(meta, slot, left);
                    (slot, left) = Self::down(meta, left, false);
                } else {
                    self.set(meta, slot, right);
                    (slot, right) = Self::down(meta, right, true);
                }
            }
            self.set(meta, slot, if left != NIL { left } else { right });
            if len == self.longest.get() {
                // In this order the longest block is the rightmost one.
                let mut at = self.root.get();
                let mut longest = 0;
                while at != NIL {
                    longest = meta.len(at);
                    (_, at) = Self::down(meta, at, false);
                }
                self.longest = I::new(longest);
            }
        }
    }

    unsafe fn each(&self, meta: &M, visit: &mut dyn FnMut(Id)) {
        let mut last = NIL;
        loop {
            // The leftmost block to the right of the last one.
            let (mut at, mut next) = (self.root.get(), NIL);
            // SAFETY: every id met is NIL or in the tree, hence free.
            unsafe {
                while at != NIL {
                    let left = last == NIL || Self::left_of(meta, last, at);
                    if left {
                        next = at;
                    }
                    (_, at) = Self::down(meta, at, left);
                }
            }
            if next == NIL {
                return;
            }
            visit(next);
            last = next;
        }
    }

    unsafe fn largest(&self, _meta: &M) -> usize {
        self.longest.get()
    }
}
