//! A randomised tree of the free blocks, in the two links that every free block has.

use super::free_index::{Found, FreeIndex};
use crate::meta::{FreeBlocks, Id, NIL};
use crate::misuse::{Fault, corrupted};
use crate::units::Index;
use core::marker::PhantomData;

/// How a [`FreeTree`] is ordered and balanced.
///
/// # Safety
///
/// [`TreeOrder::left_of`] is a strict total order, and the answers depend on the blocks alone.
/// [`TreeOrder::find`] returns a block of the tree of at least the length asked for, or none.
pub unsafe trait TreeOrder<M: FreeBlocks> {
    /// True if the root is the longest block, so its length need not be stored separately.
    const ROOT_IS_LONGEST: bool;

    /// The longest request in granules that is cut from a block's back, as for [`FreeIndex::FROM_FRONT`].
    const FROM_FRONT: usize;

    /// Whether free block `a` stands left of free block `b`.
    ///
    /// # Safety
    ///
    /// Both are free blocks of `meta`.
    unsafe fn left_of(meta: &M, a: Id, b: Id) -> bool;

    /// Whether free block `a` may stand above free block `b`.
    ///
    /// # Safety
    ///
    /// Both are free blocks of `meta`.
    unsafe fn above(meta: &M, a: Id, b: Id) -> bool;

    /// The block that serves a request for `len` granules in the tree under `root`, or [`NIL`].
    ///
    /// # Safety
    ///
    /// `root` is the root of a tree of free blocks of `meta`, or [`NIL`].
    unsafe fn find(meta: &M, root: Id, len: usize) -> Id;
}

/// Returns the block that a link of block `at` leads to, and ends the program if that does not belong below it. Each step then
/// leads down, so that every walk in a damaged tree ends: at level `Off` as well, where a double free would make circles.
///
/// # Safety
///
/// `at` is in a tree of free blocks of `meta`, and `to` is one of its links.
#[inline(always)]
pub(super) unsafe fn below<M: FreeBlocks, O: TreeOrder<M>>(meta: &M, at: Id, to: Id) -> Id {
    // SAFETY: blocks in a tree are free; a damaged link leads to a fault of the processor at worst, not to a write.
    if to != NIL && !unsafe { O::above(meta, at, to) } {
        corrupted(Fault::BrokenList, 0);
    }
    to
}

/// A number that looks random, from the place of a block: what balances the tree.
pub(super) fn scatter(offset: usize) -> u32 {
    // The multiplier is 2^32 / golden ratio; the upper bits are the well mixed ones.
    (offset as u32).wrapping_mul(0x9e37_79b9)
}

/// A treap (Aragon and Seidel, "Randomized search trees", FOCS 1989) in which a block's
/// two links are its children: no parent links, no balance field, so that the smallest free block
/// still has room. Every operation takes O(depth), O(log n) expected for n free blocks.
///
/// ```text
///            (c)          order from left to right: `TreeOrder::left_of`
///           /   \         order from top to bottom: `TreeOrder::above`
///        (a)     (e)
///          \     /
///          (b) (d)
/// ```
pub struct FreeTree<I, O> {
    root: I,
    /// Length of the longest block, unless that is the root.
    longest: I,
    order: PhantomData<O>,
}

/// Where a link to a node is kept: the root, or one of a node's two links.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Left(Id),
    Right(Id),
}

impl<I: Index, O> FreeTree<I, O> {
    /// Returns the link of block `at` to its left or to its right, and the block there.
    ///
    /// # Safety
    ///
    /// `at` is in the tree.
    #[inline(always)]
    unsafe fn down<M: FreeBlocks<Index = I>>(meta: &M, at: Id, left: bool) -> (Slot, Id)
    where
        O: TreeOrder<M>,
    {
        // SAFETY: blocks in the tree are free.
        unsafe {
            let (slot, to) =
                if left { (Slot::Left(at), meta.next(at)) } else { (Slot::Right(at), meta.prev(at)) };
            (slot, below::<M, O>(meta, at, to))
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

// SAFETY: the tree holds what was inserted and not removed; `TreeOrder::find` compares lengths.
unsafe impl<M: FreeBlocks<Index = I>, I: Index, O: TreeOrder<M>> FreeIndex<M> for FreeTree<I, O> {
    const EMPTY: Self = Self { root: I::NIL, longest: I::NIL, order: PhantomData };
    const MAX_LEN: usize = usize::MAX;

    const FROM_FRONT: usize = O::FROM_FRONT;
    type Spot = ();

    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<()>> {
        // SAFETY: the root is NIL or a free block.
        unsafe {
            match O::find(meta, self.root.get(), len) {
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
            while at != NIL && O::above(meta, at, id) {
                (slot, at) = Self::down::<M>(meta, at, O::left_of(meta, id, at));
            }
            self.set(meta, slot, id);
            // What was there falls apart into what stands left and right of the new block.
            let (mut left, mut right) = (Slot::Left(id), Slot::Right(id));
            while at != NIL {
                if O::left_of(meta, at, id) {
                    self.set(meta, left, at);
                    (left, at) = Self::down::<M>(meta, at, false);
                } else {
                    self.set(meta, right, at);
                    (right, at) = Self::down::<M>(meta, at, true);
                }
            }
            self.set(meta, left, NIL);
            self.set(meta, right, NIL);
        }
        if !O::ROOT_IS_LONGEST && len > self.longest.get() {
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
                (slot, at) = Self::down::<M>(meta, at, O::left_of(meta, id, at));
            }
            // Its subtrees are merged in its place.
            let mut left = below::<M, O>(meta, id, meta.next(id));
            let mut right = below::<M, O>(meta, id, meta.prev(id));
            while left != NIL && right != NIL {
                if O::above(meta, left, right) {
                    self.set(meta, slot, left);
                    (slot, left) = Self::down::<M>(meta, left, false);
                } else {
                    self.set(meta, slot, right);
                    (slot, right) = Self::down::<M>(meta, right, true);
                }
            }
            self.set(meta, slot, if left != NIL { left } else { right });
            if !O::ROOT_IS_LONGEST && len == self.longest.get() {
                // In this order the longest block is the rightmost one.
                let mut at = self.root.get();
                let mut longest = 0;
                while at != NIL {
                    longest = meta.len(at);
                    (_, at) = Self::down::<M>(meta, at, false);
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
                    let left = last == NIL || O::left_of(meta, last, at);
                    if left {
                        next = at;
                    }
                    (_, at) = Self::down::<M>(meta, at, left);
                }
            }
            if next == NIL {
                return;
            }
            visit(next);
            last = next;
        }
    }

    unsafe fn largest(&self, meta: &M) -> usize {
        let root = self.root.get();
        if !O::ROOT_IS_LONGEST {
            self.longest.get()
        } else if root == NIL {
            0
        } else {
            // SAFETY: the root is a free block.
            unsafe { meta.len(root) }
        }
    }
}
