//! The nodes of a side table: one for each block, linked in address order, in an array that may grow.

use crate::units::Index;
use alloc::vec::Vec;

/// The number of a node, or [`NIL`].
pub(super) type Id = usize;

/// Number that stands for no block.
pub(super) const NIL: Id = 0;

/// One block, free or allocated: 24 bytes with 32-bit indices.
#[derive(Clone, Copy)]
pub(super) struct Node<I> {
    /// Index of the first granule.
    pub(super) start: I,
    /// Length in granules. The top bit is set if the block is free.
    pub(super) len: I,
    /// The blocks before and after it in address order, within the region.
    pub(super) before: I,
    pub(super) after: I,
    /// Links in the list of a free block. `next` also links unused nodes.
    pub(super) next: I,
    pub(super) prev: I,
}

impl<I: Index> Node<I> {
    const NONE: Self =
        Self { start: I::NIL, len: I::NIL, before: I::NIL, after: I::NIL, next: I::NIL, prev: I::NIL };
}

/// The nodes of a table, and the pool of unused ones.
pub(super) struct Nodes<I> {
    /// The nodes, numbered from 1.
    nodes: Vec<Node<I>>,
    /// The head of the pool of unused nodes.
    pool: I,
}

impl<I: Index> Nodes<I> {
    pub(super) const EMPTY: Self = Self { nodes: Vec::new(), pool: I::NIL };

    /// The bit in a length that marks a free block.
    pub(super) const FREE: usize = (I::MAX >> 1) + 1;

    #[inline(always)]
    pub(super) fn node(&self, id: Id) -> &Node<I> {
        debug_assert!(id != NIL && id <= self.nodes.len());
        // SAFETY: node numbers come from `create`, which made the node, and no node is ever removed.
        unsafe { self.nodes.get_unchecked(id - 1) }
    }

    #[inline(always)]
    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node<I> {
        debug_assert!(id != NIL && id <= self.nodes.len());
        // SAFETY: as in `node`.
        unsafe { self.nodes.get_unchecked_mut(id - 1) }
    }

    /// Creates a node with the given contents. Returns its number, or [`NIL`] if there is no room. Amortised O(1).
    fn create(&mut self, node: Node<I>) -> Id {
        let id = self.pool.get();
        if id != NIL {
            self.pool = self.node(id).next;
            *self.node_mut(id) = node;
            return id;
        }
        if self.nodes.len() == self.nodes.capacity() && !self.enlarge() {
            return NIL;
        }
        self.nodes.push(node);
        self.nodes.len()
    }

    /// Creates a node without contents.
    pub(super) fn create_empty(&mut self) -> Id {
        self.create(Node::NONE)
    }

    /// Puts a node that nothing refers to into the pool.
    pub(super) fn discard(&mut self, id: Id) {
        let pool = self.pool;
        self.node_mut(id).next = pool;
        self.pool = I::new(id);
    }

    #[inline(always)]
    pub(super) fn is_free(&self, id: Id) -> bool {
        self.node(id).len.get() & Self::FREE != 0
    }

    #[inline(always)]
    pub(super) fn length(&self, id: Id) -> usize {
        self.node(id).len.get() & !Self::FREE
    }

    /// Marks node `id` as a free block of `len` granules, links unset.
    #[inline(always)]
    pub(super) fn set_free(&mut self, id: Id, len: usize) {
        self.node_mut(id).len = I::new(len | Self::FREE);
    }

    /// Marks node `id` as an allocated block of `len` granules.
    #[inline(always)]
    pub(super) fn set_allocated(&mut self, id: Id, len: usize) {
        self.node_mut(id).len = I::new(len);
    }

    /// Returns the index of a block's first granule.
    #[inline(always)]
    pub(super) fn start(&self, id: Id) -> usize {
        self.node(id).start.get()
    }

    /// Returns the free block before block `id`, or [`NIL`] if there is none.
    #[inline(always)]
    pub(super) fn free_before(&self, id: Id) -> Id {
        self.free_or_nil(self.node(id).before.get())
    }

    /// Returns the free block after block `id`, or [`NIL`] if there is none.
    #[inline(always)]
    pub(super) fn free_behind(&self, id: Id) -> Id {
        self.free_or_nil(self.node(id).after.get())
    }

    #[inline(always)]
    fn free_or_nil(&self, id: Id) -> Id {
        if id != NIL && self.is_free(id) { id } else { NIL }
    }

    /// Inserts a new node for `[start, start + len)` after node `id`, with the flags in `len`.
    pub(super) fn insert_after(&mut self, id: Id, start: usize, len: usize) -> Id {
        let after = self.node(id).after;
        let new = self.create(Node {
            start: I::new(start),
            len: I::new(len),
            before: I::new(id),
            after,
            next: I::NIL,
            prev: I::NIL,
        });
        if new != NIL {
            self.node_mut(id).after = I::new(new);
            if after != I::NIL {
                self.node_mut(after.get()).before = I::new(new);
            }
        }
        new
    }

    /// Removes node `id`, which is not the first of its region, from the address order.
    pub(super) fn remove_after(&mut self, id: Id) {
        let Node { before, after, .. } = *self.node(id);
        self.node_mut(before.get()).after = after;
        if after != I::NIL {
            self.node_mut(after.get()).before = before;
        }
        self.discard(id);
    }

    /// Makes room for more nodes. Returns false if that is not possible. O(nodes).
    #[cold]
    fn enlarge(&mut self) -> bool {
        let len = self.nodes.len();
        let more = len.max(64).min(I::MAX - len);
        more > 0 && self.nodes.try_reserve_exact(more).is_ok()
    }
}
