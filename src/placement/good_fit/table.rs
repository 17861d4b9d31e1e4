//! The table that knows all blocks of a [`GoodFit`](crate::GoodFit): their nodes, and the lists of the free ones.

use super::lists::{Found, LONGEST, Lists};
use super::nodes::{Id, NIL, NodeSlot, Nodes};
use super::regions::Regions;
use crate::error::FreeError;
use crate::region::{DEFAULT_REGIONS, Region, RegionError};
use crate::units::{Index, addressable};

/// Requests longer than this many granules are cut from the front of a block, shorter ones from its back: what lives long and grows in
/// place is kept apart from what comes and goes.
const FROM_FRONT: usize = 512;

/// A table of nodes, one per block, that never touches the memory it describes.
///
/// ```text
///  memory   |  A  |   free   |  B  | C |     free      |
///  nodes       1 <-->  4  <-->  2 <-> 7 <-->   3            linked in address order
///  buckets  hash(start of A) -> 1, hash(start of B) -> 2, ..   (allocated blocks; `MAPPED` only)
/// ```
///
/// The number of a block's node is its token, so a caller that keeps the [`Block`](crate::placement::Block) frees it without a look-up. With
/// `MAPPED` (the default) a hash map from addresses to nodes serves callers that have only an address; it also detects
/// every double or foreign free. Without it, a free walks the nodes. A block takes 28 bytes with 32-bit indices.
///
/// With the feature `alloc` the table of nodes grows on the global allocator (do not register such a heap *as* the global
/// allocator). Without it, or to avoid that, provide a static array with [`GoodFit::provide`](crate::GoodFit::provide). When nodes run out, a
/// block is allocated whole instead of being split, and requests that need a split for their alignment fail.
pub struct SideTable<
    I: Index = u32,
    const GRANULE: usize = 256,
    const REGIONS: usize = DEFAULT_REGIONS,
    const MAPPED: bool = true,
> {
    pub(super) regions: Regions<REGIONS, GRANULE>,
    nodes: Nodes<I, MAPPED>,
    lists: Lists<I>,
}

// SAFETY: the nodes are accessed only through this value; the described memory is not accessed.
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool> Send for SideTable<I, G, R, M> {}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> SideTable<I, G, R, MAPPED> {
    pub(super) const EMPTY: Self = Self { regions: Regions::EMPTY, nodes: Nodes::EMPTY, lists: Lists::EMPTY };

    /// Indices of granules are below this.
    const LIMIT: usize = addressable::<G>(I::MAX);
    /// The longest region in granules.
    pub(super) const MAX_LEN: usize = least(least(Nodes::<I, MAPPED>::FREE - 1, LONGEST), Self::LIMIT - 2);

    pub(super) fn provide(
        &mut self,
        slots: &'static mut [NodeSlot<I>],
    ) -> Result<(), &'static mut [NodeSlot<I>]> {
        self.nodes.provide(slots)
    }

    pub(super) fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// Returns the first granule and the length of block `id`.
    #[inline(always)]
    pub(super) fn block(&self, id: Id) -> (usize, usize) {
        (self.nodes.start(id), self.nodes.length(id))
    }

    /// Returns the live block of at least `len` granules that starts at `address`. Expected O(1) with the map, else O(blocks).
    ///
    /// # Errors
    ///
    /// [`FreeError`] if there is no such block.
    #[inline(always)]
    pub(super) fn live_at(&self, address: usize, len: usize) -> Result<Id, FreeError> {
        let (region, index) = self.regions.locate(address).ok_or(FreeError::Foreign)?;
        if address % G != 0 {
            return Err(FreeError::Misaligned);
        }
        if len > region.end() - index {
            return Err(FreeError::Foreign);
        }
        let mut id = if MAPPED { self.nodes.look_up(index) } else { region.node };
        while id != NIL && self.nodes.start(id) != index {
            id = self.nodes.node(id).after.get();
        }
        let is_live = id != NIL && !self.nodes.is_free(id) && self.nodes.length(id) >= len;
        if is_live { Ok(id) } else { Err(FreeError::NotABlock) }
    }

    /// Makes block `id` a free one of `len` granules, in the list of its class.
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

    /// Changes the length of the free block `id`, which keeps its place in its list if its class stays.
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
        let found = self.lists.find::<COMPARED, MAPPED>(&self.nodes, len)?;
        let front = if len > FROM_FRONT { 0 } else { found.len - len };
        let block = self.carve(found, front, len);
        // Without a node for the rest, the block keeps it, which needs none.
        if block.is_some() { block } else { self.carve(found, 0, len) }
    }

    /// Allocates an aligned block: from one that is so long that it has an aligned place wherever it lies, or from one that is just long
    /// enough and happens to have one.
    #[inline(never)]
    fn allocate_aligned<const COMPARED: usize>(&mut self, len: usize, align: usize) -> Option<Id> {
        let padded = len.checked_add(align - 1)?;
        [padded, len].into_iter().find_map(|wanted| {
            let found = self.lists.find::<COMPARED, MAPPED>(&self.nodes, wanted)?;
            let room = found.len - len;
            let start = self.regions.address(self.nodes.start(found.id)).addr() / G;
            let front = if len > FROM_FRONT {
                start.wrapping_neg() & (align - 1)
            } else {
                room.wrapping_sub((start + room) & (align - 1))
            };
            if front <= room { self.carve(found, front, len) } else { None }
        })
    }

    /// Allocates `len` granules of a free block, `front` granules from its start. `None`, with nothing changed, if there is a front
    /// and no node for what is behind it; without a node for the rest, the block keeps that.
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
        self.nodes.map_remove(id);
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

    /// Changes the length of the live block `id` to `to` granules without moving it, and returns its new length. It stays longer where
    /// a node for the rest is missing.
    #[inline(never)]
    pub(super) fn resize(&mut self, id: Id, to: usize) -> Option<usize> {
        let (start, len) = self.block(id);
        if to == len {
            return Some(len);
        }
        let right = self.nodes.free_behind(id);
        if right != NIL {
            // The border to the free block moves.
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

    /// Adds a region, and returns its granules.
    pub(super) fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        let node = self.nodes.create_empty();
        let added = self.regions.add(memory, Self::MAX_LEN, Self::LIMIT);
        match added {
            Ok(region) if node != NIL => {
                region.node = node;
                let (first, len) = (region.first, region.len);
                self.nodes.node_mut(node).start = I::new(first);
                self.enter(node, len);
                Ok(len)
            }
            Ok(_) => {
                self.regions.remove(self.regions.all().len() - 1);
                Err(RegionError::NoNodes)
            }
            Err(error) => {
                if node != NIL {
                    self.nodes.discard(node);
                }
                Err(error)
            }
        }
    }

    /// Lengthens the region that starts at `start`, and returns how many granules it gains.
    pub(super) fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let number = self.regions.number(start)?;
        let new = self.regions.lengthened(number, bytes, Self::MAX_LEN, Self::LIMIT)?;
        let end = self.regions.all()[number].end();
        let more = new.end() - end;
        let mut last = new.node;
        while self.nodes.node(last).after != I::NIL {
            last = self.nodes.node(last).after.get();
        }
        if self.nodes.is_free(last) {
            self.relist(last, self.nodes.length(last) + more);
        } else {
            let node = self.nodes.insert_after(last, end, more);
            if node == NIL {
                return Err(RegionError::NoNodes);
            }
            self.enter(node, more);
        }
        *self.regions.get_mut(number) = new;
        Ok(more)
    }

    /// Removes the region that starts at `start` if nothing in it is live. Also returns its granules.
    pub(super) fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let number = self.regions.number(start)?;
        let region = self.regions.all()[number];
        if !self.nodes.is_free(region.node) || self.nodes.length(region.node) != region.len {
            return Err(RegionError::InUse);
        }
        self.leave(region.node);
        self.nodes.discard(region.node);
        Ok((self.regions.remove(number), region.len))
    }

    /// Returns the length of the longest block that a request with natural alignment finds now.
    #[inline(always)]
    pub(super) fn longest<const COMPARED: usize>(&self) -> usize {
        self.lists.longest::<COMPARED, MAPPED>(&self.nodes)
    }

    /// Shows `visit` the blocks of region number `region` in the order of addresses, as first granule, length and whether it is free,
    /// until it returns false.
    pub(super) fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let mut id = self.regions.all()[region].node;
        while id != NIL && visit(self.nodes.start(id), self.nodes.length(id), self.nodes.is_free(id)) {
            id = self.nodes.node(id).after.get();
        }
    }
}
