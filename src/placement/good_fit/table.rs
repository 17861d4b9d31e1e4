//! The table of a [`GoodFit`](crate::GoodFit): the nodes of all blocks, and the lists of the free ones.

use super::lists::{Found, LONGEST, Lists};
use super::nodes::{Id, NIL, Nodes};
use crate::placement::segment::parts;
use crate::region::{Region, RegionError};
use crate::units::Index;

/// Requests longer than this many granules are cut from the front of a block, shorter ones from its back. This keeps blocks that live
/// long and grow in place apart from short-lived ones.
const FROM_FRONT: usize = 512;

/// The blocks of one region in granules of `G` bytes.
pub(super) struct Table<I: Index, const G: usize> {
    memory: Option<Region>,
    /// The address of the first granule.
    pub(super) base: usize,
    /// Number of the region's granules.
    pub(super) len: usize,
    /// The node of the first block, which never changes, because joins keep the left node.
    first: Id,
    nodes: Nodes<I>,
    lists: Lists<I>,
}

// SAFETY: the described memory is not accessed.
unsafe impl<I: Index, const G: usize> Send for Table<I, G> {}

impl<I: Index, const G: usize> Table<I, G> {
    pub(super) const EMPTY: Self = {
        assert!(G.is_power_of_two(), "the granule must be a power of two of bytes");
        Self { memory: None, base: 0, len: 0, first: NIL, nodes: Nodes::EMPTY, lists: Lists::EMPTY }
    };

    /// The longest region in granules.
    pub(super) const MAX_LEN: usize =
        if Nodes::<I>::FREE - 1 < LONGEST { Nodes::<I>::FREE - 1 } else { LONGEST };

    /// Returns the first granule and the length of block `id`.
    #[inline(always)]
    pub(super) fn block(&self, id: Id) -> (usize, usize) {
        (self.nodes.start(id), self.nodes.length(id))
    }

    /// Marks block `id` as free, with `len` granules, and adds it to the list of its class.
    #[inline(always)]
    fn enter(&mut self, id: Id, len: usize) {
        self.nodes.set_free(id, len);
        self.lists.insert(&mut self.nodes, id, Lists::<I>::class(len));
    }

    /// Removes the free block `id` from its list, and returns its length.
    #[inline(always)]
    fn leave(&mut self, id: Id) -> usize {
        let len = self.nodes.length(id);
        self.lists.remove(&mut self.nodes, id, Lists::<I>::class(len));
        len
    }

    /// Changes the length of the free block `id`, which keeps its place in its list if its class does not change.
    #[inline(always)]
    fn relist(&mut self, id: Id, len: usize) {
        if Lists::<I>::class(self.nodes.length(id)) == Lists::<I>::class(len) {
            self.nodes.set_free(id, len);
        } else {
            self.leave(id);
            self.enter(id, len);
        }
    }

    /// Allocates a block of at least `len` granules (not zero), aligned to `align` granules.
    #[inline(always)]
    pub(super) fn allocate<const COMPARED: usize>(&mut self, len: usize, align: usize) -> Option<Id> {
        if align > 1 {
            return self.allocate_aligned::<COMPARED>(len, align);
        }
        let found = self.lists.find::<COMPARED>(&self.nodes, len)?;
        let front = if len > FROM_FRONT { 0 } else { found.len - len };
        let block = self.carve(found, front, len);
        // Without a node for the rest, allocate from the start: the block then keeps the rest.
        if block.is_some() { block } else { self.carve(found, 0, len) }
    }

    /// Allocates an aligned block: from a free block so long that it has an aligned place for any start, or from one that is just long
    /// enough and happens to have an aligned place.
    #[inline(never)]
    fn allocate_aligned<const COMPARED: usize>(&mut self, len: usize, align: usize) -> Option<Id> {
        let padded = len.checked_add(align - 1)?;
        [padded, len].into_iter().find_map(|wanted| {
            let found = self.lists.find::<COMPARED>(&self.nodes, wanted)?;
            let room = found.len - len;
            let start = self.base / G + self.nodes.start(found.id);
            let front = if len > FROM_FRONT {
                start.wrapping_neg() & (align - 1)
            } else {
                room.wrapping_sub((start + room) & (align - 1))
            };
            if front <= room { self.carve(found, front, len) } else { None }
        })
    }

    /// Allocates `len` granules of a free block, `front` granules from its start. Returns `None`, with nothing changed, if `front` is not
    /// 0 and there is no node for the block; without a node for the rest, the block keeps the rest.
    #[inline(always)]
    fn carve(&mut self, found: Found, front: usize, len: usize) -> Option<Id> {
        let Found { mut id, len: all } = found;
        let start = self.nodes.start(id) + front;
        if front == 0 {
            self.leave(id);
        } else {
            let behind = self.nodes.insert_after(id, start, all - front);
            if behind == NIL {
                return None;
            }
            self.relist(id, front);
            id = behind;
        }
        let back = all - front - len;
        let rest = if back == 0 { NIL } else { self.nodes.insert_after(id, start + len, back) };
        if rest != NIL {
            self.enter(rest, back);
        }
        self.nodes.set_allocated(id, if rest == NIL { len + back } else { len });
        Some(id)
    }

    /// Frees the live block `id`, and merges it with its free neighbours.
    #[inline(always)]
    pub(super) fn free(&mut self, id: Id) {
        let mut len = self.nodes.length(id);
        let right = self.nodes.free_behind(id);
        if right != NIL {
            len += self.leave(right);
            self.nodes.remove_after(right);
        }
        let left = self.nodes.free_before(id);
        if left == NIL {
            return self.enter(id, len);
        }
        self.nodes.remove_after(id);
        self.relist(left, self.nodes.length(left) + len);
    }

    /// Changes the length of the live block `id` to `to` granules without moving it, and returns its new length. The block stays longer
    /// if there is no node for the rest.
    #[inline(never)]
    pub(super) fn resize(&mut self, id: Id, to: usize) -> Option<usize> {
        let (start, len) = self.block(id);
        if to == len {
            return Some(len);
        }
        let right = self.nodes.free_behind(id);
        if right != NIL {
            // Move the border between the two blocks.
            let all = len + self.nodes.length(right);
            if all < to {
                return None;
            }
            self.leave(right);
            if all == to {
                self.nodes.remove_after(right);
            } else {
                self.nodes.node_mut(right).start = I::new(start + to);
                self.enter(right, all - to);
            }
        } else if to > len {
            return None;
        } else {
            let rest = self.nodes.insert_after(id, start + to, len - to);
            if rest == NIL {
                return Some(len);
            }
            self.enter(rest, len - to);
        }
        self.nodes.node_mut(id).len = I::new(to);
        Some(to)
    }

    /// Adds the region.
    pub(super) fn claim(&mut self, memory: Region) -> Result<(), RegionError> {
        if self.memory.is_some() {
            return Err(RegionError::TooMany { max: 1 });
        }
        let (base, len) = parts::<G>(memory, Self::MAX_LEN)?;
        let first = self.nodes.create_empty();
        if first == NIL {
            return Err(RegionError::NoNodes);
        }
        (self.memory, self.base, self.len, self.first) = (Some(memory), base, len, first);
        self.enter(first, len);
        Ok(())
    }

    /// Lengthens the region, which starts at `start`.
    pub(super) fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        let old = self.memory.filter(|memory| memory.start.as_ptr() == start).ok_or(RegionError::Unknown)?;
        let memory = Region { size: old.size.checked_add(bytes).ok_or(RegionError::Overlap)?, ..old };
        let (_, len) = parts::<G>(memory, Self::MAX_LEN)?;
        let more = len - self.len;
        if more == 0 {
            return Err(RegionError::TooSmall);
        }
        let mut last = self.first;
        while self.nodes.node(last).after != I::NIL {
            last = self.nodes.node(last).after.get();
        }
        if self.nodes.is_free(last) {
            self.relist(last, self.nodes.length(last) + more);
        } else {
            let node = self.nodes.insert_after(last, self.len, more);
            if node == NIL {
                return Err(RegionError::NoNodes);
            }
            self.enter(node, more);
        }
        (self.memory, self.len) = (Some(memory), len);
        Ok(())
    }

    /// Returns the length of the longest block that a request with natural alignment finds now.
    #[inline(always)]
    pub(super) fn longest<const COMPARED: usize>(&self) -> usize {
        self.lists.longest::<COMPARED>(&self.nodes)
    }
}
