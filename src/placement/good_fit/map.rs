//! The map of a side table: from the first granule of an allocated block to its node, by hashing with chains.

use super::nodes::{Id, NIL, Nodes};
use crate::units::Index;
use core::mem::MaybeUninit;

impl<I: Index, const MAPPED: bool> Nodes<I, MAPPED> {
    /// Returns the head of the hash chain for blocks that start at granule `offset`.
    #[inline(always)]
    fn bucket(&self, offset: usize) -> *mut I {
        // Fibonacci hashing: multiply, then scale the upper half to the table (Knuth, vol. 3, 6.4).
        let hash = (offset as u32).wrapping_mul(0x9e37_79b9);
        let index = ((u64::from(hash) * self.capacity as u64) >> 32) as usize;
        // SAFETY: `index < capacity`; the field is a `MaybeUninit<I>`, which `clear_buckets` filled.
        unsafe { (&raw mut (*self.slots.add(index)).bucket).cast() }
    }

    /// Empties the map.
    pub(super) fn clear_buckets(&mut self) {
        if MAPPED {
            for index in 0..self.capacity {
                // SAFETY: `index < capacity`.
                unsafe { (*self.slots.add(index)).bucket = MaybeUninit::new(I::NIL) };
            }
        }
    }

    /// Enters an allocated node into the map.
    pub(super) fn map_insert(&mut self, id: Id) {
        if MAPPED {
            let bucket = self.bucket(self.node(id).start.get());
            // SAFETY: `bucket` returns a pointer to an initialised bucket of the table.
            unsafe {
                self.node_mut(id).next = *bucket;
                *bucket = I::new(id);
            }
        }
    }

    /// Takes a node out of the map. Expected O(1).
    pub(super) fn map_remove(&mut self, id: Id) {
        if MAPPED {
            let bucket = self.bucket(self.node(id).start.get());
            // SAFETY: `bucket` returns a pointer to an initialised bucket of the table.
            let mut at = unsafe { (*bucket).get() };
            let next = self.node(id).next;
            if at == id {
                // SAFETY: as above.
                unsafe { *bucket = next };
                return;
            }
            while at != NIL {
                let after = self.node(at).next.get();
                if after == id {
                    self.node_mut(at).next = next;
                    return;
                }
                at = after;
            }
            debug_assert!(false, "an allocated block is in the map");
        }
    }

    /// Returns the node of the allocated block that starts at granule `offset`, or [`NIL`]. Expected O(1).
    pub(super) fn look_up(&self, offset: usize) -> Id {
        if self.capacity == 0 {
            return NIL;
        }
        // SAFETY: `bucket` returns a pointer to an initialised bucket of the table.
        let mut at = unsafe { (*self.bucket(offset)).get() };
        while at != NIL && self.node(at).start.get() != offset {
            at = self.node(at).next.get();
        }
        at
    }

    /// Enters the nodes that are in the map of `old` into this one, which has the same nodes and an empty map.
    #[cfg(feature = "alloc")]
    pub(super) fn insert_all(&mut self, old: &Self) {
        if MAPPED {
            for index in 0..old.capacity {
                // SAFETY: `index < capacity`, and `clear_buckets` filled all buckets.
                let mut id = unsafe { (*old.slots.add(index)).bucket.assume_init() }.get();
                while id != NIL {
                    self.map_insert(id);
                    id = old.node(id).next.get();
                }
            }
        }
    }
}
