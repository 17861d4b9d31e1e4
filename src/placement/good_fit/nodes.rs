//! The nodes of a side table: one for each block, linked in the order of addresses, in an array that may grow.

use crate::units::Index;
use core::mem::MaybeUninit;
use core::ptr;

/// The number of a node. [`NIL`] stands for no block.
pub(super) type Id = usize;

/// No block.
pub(super) const NIL: Id = 0;

/// One block, free or allocated: 24 bytes with 32-bit indices.
#[derive(Clone, Copy)]
pub(super) struct Node<I> {
    /// Index of the first granule.
    pub(super) start: I,
    /// Length in granules, and the flag for "free" in its top bit.
    pub(super) len: I,
    /// The blocks before and after it in address order, within the region.
    pub(super) before: I,
    pub(super) after: I,
    /// Free: the placement's two links. Allocated: the hash chain, and the page record.
    /// In the pool of unused nodes: the next one.
    pub(super) next: I,
    pub(super) prev: I,
}

impl<I: Index> Node<I> {
    const NONE: Self =
        Self { start: I::NIL, len: I::NIL, before: I::NIL, after: I::NIL, next: I::NIL, prev: I::NIL };
}

/// Memory for one node of a [`SideTable`](super::SideTable) and one hash bucket.
#[derive(Clone, Copy)]
pub struct NodeSlot<I: Copy> {
    node: MaybeUninit<Node<I>>,
    pub(super) bucket: MaybeUninit<I>,
}

impl<I: Copy> NodeSlot<I> {
    /// A slot that holds nothing yet; for the initialiser of a `static` array.
    pub const EMPTY: Self = Self { node: MaybeUninit::uninit(), bucket: MaybeUninit::uninit() };
}

/// The nodes of a table, and the pool of those that are not in use. With `MAPPED` the allocated blocks are in the map as well.
pub(super) struct Nodes<I: Index, const MAPPED: bool> {
    pub(super) slots: *mut NodeSlot<I>,
    /// The number of slots; node numbers start at 1.
    pub(super) capacity: usize,
    /// The number of slots that have been used so far.
    used: usize,
    /// The head of the pool of freed nodes.
    pool: I,
    /// True if this table allocated `slots`.
    owned: bool,
}

impl<I: Index, const MAPPED: bool> Nodes<I, MAPPED> {
    pub(super) const EMPTY: Self =
        Self { slots: ptr::null_mut(), capacity: 0, used: 0, pool: I::NIL, owned: false };

    /// The flag for "free" in a length.
    pub(super) const FREE: usize = (I::MAX >> 1) + 1;

    /// Takes a static array for the nodes. Returns it if nodes are in use already.
    pub(super) fn provide(
        &mut self,
        slots: &'static mut [NodeSlot<I>],
    ) -> Result<(), &'static mut [NodeSlot<I>]> {
        if self.used > 0 {
            return Err(slots);
        }
        self.release();
        self.slots = slots.as_mut_ptr();
        self.capacity = slots.len().min(I::MAX);
        self.clear_buckets();
        Ok(())
    }

    /// Returns the number of nodes in use. O(pool).
    pub(super) fn count(&self) -> usize {
        let mut unused = 0;
        let mut node = self.pool.get();
        while node != NIL {
            unused += 1;
            node = self.node(node).next.get();
        }
        self.used - unused
    }

    #[inline(always)]
    pub(super) fn node(&self, id: Id) -> &Node<I> {
        debug_assert!(id != NIL && id <= self.used);
        // SAFETY: node numbers come from `create`, which made slot `id - 1` a node.
        unsafe { (*self.slots.add(id - 1)).node.assume_init_ref() }
    }

    #[inline(always)]
    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node<I> {
        debug_assert!(id != NIL && id <= self.used);
        // SAFETY: as in `node`.
        unsafe { (*self.slots.add(id - 1)).node.assume_init_mut() }
    }

    /// Creates a node with the given contents; [`NIL`] if there is no slot. O(1), amortised if the table grows.
    fn create(&mut self, node: Node<I>) -> Id {
        let id = self.pool.get();
        if id != NIL {
            self.pool = self.node(id).next;
            *self.node_mut(id) = node;
            return id;
        }
        if self.used == self.capacity && !self.enlarge() {
            return NIL;
        }
        // SAFETY: `used < capacity`, so the slot is there.
        unsafe { (*self.slots.add(self.used)).node = MaybeUninit::new(node) };
        self.used += 1;
        self.used
    }

    /// Creates a node with no contents.
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

    /// Marks node `id` as an allocated block of `len` granules and enters it in the map.
    #[inline(always)]
    pub(super) fn set_allocated(&mut self, id: Id, len: usize) {
        let node = self.node_mut(id);
        node.len = I::new(len);
        node.prev = I::NIL;
        self.map_insert(id);
    }

    /// Returns the index of a block's first granule.
    #[inline(always)]
    pub(super) fn start(&self, id: Id) -> usize {
        self.node(id).start.get()
    }

    /// Returns the free block in front of block `id`, or [`NIL`] if there is none.
    #[inline(always)]
    pub(super) fn free_before(&self, id: Id) -> Id {
        self.free_or_nil(self.node(id).before.get())
    }

    /// Returns the free block behind block `id`, or [`NIL`] if there is none.
    #[inline(always)]
    pub(super) fn free_behind(&self, id: Id) -> Id {
        self.free_or_nil(self.node(id).after.get())
    }

    #[inline(always)]
    fn free_or_nil(&self, id: Id) -> Id {
        if id != NIL && self.is_free(id) { id } else { NIL }
    }

    /// Puts a new node for `[start, start + len)` behind node `id`; flags as given in `len`.
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

    /// Takes node `id`, which is not the first of its region, out of the address order.
    pub(super) fn remove_after(&mut self, id: Id) {
        let Node { before, after, .. } = *self.node(id);
        self.node_mut(before.get()).after = after;
        if after != I::NIL {
            self.node_mut(after.get()).before = before;
        }
        self.discard(id);
    }

    /// Makes room for more nodes. Returns false if that is not possible. O(nodes + slots).
    #[cfg(feature = "alloc")]
    fn enlarge(&mut self) -> bool {
        use alloc::alloc::{Layout, alloc};
        if !self.slots.is_null() && !self.owned {
            return false;
        }
        let capacity = (self.capacity * 2).max(64).min(I::MAX);
        if capacity == self.capacity {
            return false;
        }
        let Ok(layout) = Layout::array::<NodeSlot<I>>(capacity) else { return false };
        // SAFETY: the layout is not of size zero.
        let slots = unsafe { alloc(layout) }.cast::<NodeSlot<I>>();
        if slots.is_null() {
            return false;
        }
        // SAFETY: both arrays have room for the slots that were used, and are disjoint.
        unsafe { ptr::copy_nonoverlapping(self.slots.cast_const(), slots, self.used) };
        let (used, pool) = (self.used, self.pool);
        let old = core::mem::replace(self, Self { slots, capacity, used, pool, owned: true });
        self.clear_buckets();
        self.insert_all(&old);
        true
    }

    #[cfg(not(feature = "alloc"))]
    fn enlarge(&mut self) -> bool {
        false
    }

    /// Frees the array of slots if this table allocated it.
    fn release(&mut self) {
        #[cfg(feature = "alloc")]
        if self.owned {
            let layout = alloc::alloc::Layout::array::<NodeSlot<I>>(self.capacity);
            // SAFETY: `enlarge` allocated the slots with this layout.
            unsafe { alloc::alloc::dealloc(self.slots.cast(), layout.unwrap_unchecked()) };
        }
        (self.slots, self.capacity, self.used) = (ptr::null_mut(), 0, 0);
        (self.pool, self.owned) = (I::NIL, false);
    }
}

impl<I: Index, const MAPPED: bool> Drop for Nodes<I, MAPPED> {
    fn drop(&mut self) {
        self.release();
    }
}
