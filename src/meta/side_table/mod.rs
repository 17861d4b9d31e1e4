//! Metadata in a table of nodes, for memory that is never accessed.

mod map;
mod nodes;

pub use nodes::NodeSlot;

use super::free_blocks::Cut;
use super::{Block, DEFAULT_REGIONS, FreeBlocks, Id, Listed, Meta, NIL};
use crate::error::FreeError;
use crate::region::{Numbering, Region, RegionError, RegionRecord, Regions};
use crate::units::{Index, addressable, align_up};
use nodes::{Node, Nodes};

/// A table of nodes, one per block, that never touches the memory it describes.
///
/// ```text
///  memory   |  A  |   free   |  B  | C |     free      |
///  nodes       1 <-->  4  <-->  2 <-> 7 <-->   3            linked in address order
///  buckets  hash(start of A) -> 1, hash(start of B) -> 2, ..   (allocated blocks; `MAPPED` only)
/// ```
///
/// The number of a block's node is its token, so a caller that keeps the [`Block`] frees it without a look-up. With
/// `MAPPED` (the default) a hash map from addresses to nodes serves callers that have only an address; it also detects
/// every double or foreign free. Without it, [`FreeBlocks::block_at`] walks the nodes. A block takes 28 bytes with 32-bit
/// indices.
///
/// With the feature `alloc` the table of nodes grows on the global allocator (do not register such a heap *as* the global
/// allocator). Without it, or to avoid that, provide a static array with [`SideTable::provide`]. When nodes run out, a
/// block is handed out whole instead of being split, and requests that need a split for their alignment fail.
pub struct SideTable<
    I: Index = u32,
    const GRANULE: usize = 256,
    const REGIONS: usize = DEFAULT_REGIONS,
    const MAPPED: bool = true,
> {
    regions: Regions<REGIONS, GRANULE>,
    /// Per region, the node of the block at its start. It never changes, because joins keep the left node.
    firsts: [I; REGIONS],
    nodes: Nodes<I, MAPPED>,
}

// SAFETY: the nodes are accessed only through this value; the described memory is not accessed.
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool> Send for SideTable<I, G, R, M> {}

impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> SideTable<I, G, R, MAPPED> {
    const FREE: usize = Nodes::<I, MAPPED>::FREE;
    /// The highest index of a granule.
    const LIMIT: usize = addressable::<G>(I::MAX);
    const NUMBERS: Numbering = Numbering { spacing: 1, guard: 1, limit: Self::LIMIT, near: false };
    const SHIFT: u32 = Regions::<R, G>::SHIFT;

    /// Provides a static array of nodes.
    ///
    /// # Errors
    ///
    /// The array itself if nodes are already in use.
    pub fn provide(&mut self, slots: &'static mut [NodeSlot<I>]) -> Result<(), &'static mut [NodeSlot<I>]> {
        self.nodes.provide(slots)
    }

    /// Returns the number of nodes in use, one per free or allocated block. O(pool).
    pub fn nodes(&self) -> usize {
        self.nodes.count()
    }

    /// Returns the node of the allocated block that starts at granule `offset`, or [`NIL`]. Expected O(1) with the map, else
    /// O(blocks).
    fn find(&self, offset: usize) -> Id {
        if MAPPED {
            return self.nodes.look_up(offset);
        }
        let mut at = self.firsts[self.regions.slot_of(offset)].get();
        while at != NIL && self.nodes.node(at).start.get() != offset {
            at = self.nodes.node(at).after.get();
        }
        if at != NIL && self.nodes.is_free(at) { NIL } else { at }
    }

    /// Returns the free block that ends where the allocated `block` starts, and its length; ([`NIL`], 0) if there is none.
    #[inline(always)]
    fn before(&self, block: Block<u32>) -> (Id, usize) {
        let id = self.nodes.node(block.token as usize).before.get();
        if id != NIL && self.nodes.is_free(id) { (id, self.nodes.length(id)) } else { (NIL, 0) }
    }
}

// SAFETY: a node's block is cut from the one that it was part of, and joined again only with its neighbours, so blocks
// stay disjoint and inside their region.
unsafe impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> FreeBlocks
    for SideTable<I, G, R, MAPPED>
{
    const MIN_BLOCK: usize = 1;
    // Every address is looked up and so checked, whatever the level.
    const CHECKED: bool = true;
    type Index = I;
    type Token = u32;

    #[inline(always)]
    fn address(&self, offset: usize) -> *mut u8 {
        self.regions.address(offset)
    }

    unsafe fn block_at(&self, address: usize, len: usize) -> Block<u32> {
        let offset = self.regions.locate_known(address);
        let node = if self.firsts[self.regions.slot_of(offset)] == I::NIL { NIL } else { self.find(offset) };
        // The node knows better than the caller: a block that could not be split is longer.
        let len = if node == NIL { len } else { self.nodes.length(node) };
        Block { offset, len, token: node as u32 }
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.regions.place(offset)
    }

    #[inline(always)]
    unsafe fn len(&self, id: Id) -> usize {
        self.nodes.length(id)
    }

    #[inline(always)]
    unsafe fn offset(&self, id: Id) -> usize {
        self.nodes.node(id).start.get()
    }

    #[inline(always)]
    unsafe fn next(&self, id: Id) -> Id {
        self.nodes.node(id).next.get()
    }

    #[inline(always)]
    unsafe fn prev(&self, id: Id) -> Id {
        self.nodes.node(id).prev.get()
    }

    #[inline(always)]
    unsafe fn set_next(&mut self, id: Id, to: Id) {
        self.nodes.node_mut(id).next = I::new(to);
    }

    #[inline(always)]
    unsafe fn set_prev(&mut self, id: Id, to: Id) {
        self.nodes.node_mut(id).prev = I::new(to);
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block<u32>, Id) {
        let start = self.nodes.node(id).start.get();
        let rest = if want < len {
            self.nodes.insert_after(id, start + want, (len - want) | Self::FREE)
        } else {
            NIL
        };
        (self.nodes.set_allocated(id, if rest == NIL { len } else { want }), rest)
    }

    #[inline(always)]
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block<u32>> {
        let rest = len - want;
        if rest == 0 {
            let block = self.nodes.set_allocated(id, len);
            self.touch(block);
            return Some(block);
        }
        let back = self.nodes.insert_after(id, self.nodes.node(id).start.get() + rest, want);
        if back == NIL {
            return None;
        }
        self.nodes.set_free(id, rest);
        let block = self.nodes.set_allocated(back, want);
        self.touch(block);
        Some(block)
    }

    unsafe fn take_middle(&mut self, id: Id, len: usize, front: usize, want: usize) -> Cut<Self> {
        // SAFETY: the back is an allocated block, unused until it is freed again.
        unsafe {
            let block = self.take_back(id, len, len - front)?;
            match self.cut(block, want) {
                Some((block, back)) => Some((block, self.merge((NIL, 0), back, (NIL, 0)))),
                None => {
                    self.merge((id, front), block, (NIL, 0));
                    None
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: Block<u32>) -> Result<[(Id, usize); 2], FreeError> {
        // SAFETY: the caller guarantees that `block` is an allocated block of this metadata.
        Ok(unsafe { [self.before(block), self.after(block)] })
    }

    unsafe fn merge(&mut self, left: (Id, usize), block: Block<u32>, right: (Id, usize)) -> Id {
        if right.0 != NIL {
            self.nodes.remove_after(right.0);
        }
        let mut id = block.token as usize;
        self.nodes.map_remove(id);
        if left.0 != NIL {
            self.nodes.remove_after(id);
            id = left.0;
        }
        self.nodes.set_free(id, left.1 + block.len + right.1);
        id
    }

    #[inline(always)]
    unsafe fn after(&self, block: Block<u32>) -> (Id, usize) {
        let id = self.nodes.node(block.token as usize).after.get();
        if id != NIL && self.nodes.is_free(id) { (id, self.nodes.length(id)) } else { (NIL, 0) }
    }

    #[inline(always)]
    fn touch(&mut self, block: Block<u32>) {
        self.regions.touch(block.offset, block.offset + block.len);
    }
}

// SAFETY: a region's nodes tile it in address order; cutting and joining them keeps blocks disjoint and inside.
unsafe impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> Meta
    for SideTable<I, G, R, MAPPED>
{
    const EMPTY: Self = Self { regions: Regions::EMPTY, firsts: [I::NIL; R], nodes: Nodes::EMPTY };
    const GRANULE: usize = G;
    const MAX_REGIONS: usize = R;
    const MAX_LEN: usize = if Self::FREE < Self::LIMIT { Self::FREE } else { Self::LIMIT } - 2;
    const BOUNDARY_BITS: bool = false;
    type Near = Self;

    #[inline(always)]
    unsafe fn near(&mut self) -> Option<Self> {
        None
    }

    #[inline(always)]
    fn regions(&self) -> &[RegionRecord] {
        self.regions.records()
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<Block<u32>, RegionError> {
        let from = memory.start.addr().get();
        let pad = align_up(from, G).ok_or(RegionError::TooSmall)? - from;
        let len = memory.checked_end()?.saturating_sub(from + pad) >> Self::SHIFT;
        if len == 0 {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(RegionError::TooLarge { max: Self::MAX_LEN.saturating_mul(G) });
        }
        self.regions.admissible(memory)?;
        let start = memory.start.as_ptr().wrapping_add(pad);
        let node = self.nodes.create(Node { len: I::new(len), ..Node::NONE });
        if node == NIL {
            return Err(RegionError::NoNodes);
        }
        let slot = match self.regions.insert(memory, start, len, Self::NUMBERS) {
            Ok(slot) => slot,
            Err(error) => {
                self.nodes.discard(node);
                return Err(error);
            }
        };
        self.firsts[slot] = I::new(node);
        let offset = self.regions.record(slot).first;
        self.nodes.node_mut(node).start = I::new(offset);
        Ok(self.nodes.set_allocated(node, len))
    }

    unsafe fn extend(&mut self, start: *mut u8, more: usize) -> Result<Block<u32>, RegionError> {
        let (slot, raw) = self.regions.lengthened(start, more)?;
        let old = *self.regions.record(slot);
        let len = (raw.end() - raw.start.addr().get().next_multiple_of(G)) >> Self::SHIFT;
        if len == old.len {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(RegionError::TooLarge { max: Self::MAX_LEN.saturating_mul(G) });
        }
        if len > self.regions.room(slot, 1, Self::LIMIT) {
            return Err(RegionError::IndexSpace);
        }
        let offset = old.end();
        let mut node = self.firsts[slot].get();
        if node != NIL {
            while self.nodes.node(node).after != I::NIL {
                node = self.nodes.node(node).after.get();
            }
            node = self.nodes.insert_after(node, offset, len - old.len);
            if node == NIL {
                return Err(RegionError::NoNodes);
            }
        }
        let record = self.regions.record_mut(slot);
        (record.len, record.raw) = (len, (raw.start.as_ptr(), raw.size));
        // Two marks cannot describe zeroed memory with a gap, so no memory counts as zeroed.
        record.mark = record.roof;
        if node == NIL {
            return Ok(Block { offset, len: len - old.len, token: NIL as u32 });
        }
        Ok(self.nodes.set_allocated(node, len - old.len))
    }

    unsafe fn forget(&mut self, region: usize) -> Region {
        let mut node = self.firsts[region].get();
        while node != NIL {
            let after = self.nodes.node(node).after.get();
            if !self.nodes.is_free(node) {
                self.nodes.map_remove(node);
            }
            self.nodes.discard(node);
            node = after;
        }
        self.firsts[region] = self.firsts[self.regions.records().len() - 1];
        self.regions.remove(region)
    }

    #[inline(always)]
    fn locate(&self, address: usize) -> Option<usize> {
        self.regions.locate(address)
    }

    fn checked_block_at(&self, address: usize, len: usize) -> Result<Block<u32>, FreeError> {
        let offset = self.in_region(address, len)?;
        let node = self.find(offset);
        if node == NIL || self.nodes.length(node) < len {
            return Err(FreeError::NotABlock);
        }
        Ok(Block { offset, len: self.nodes.length(node), token: node as u32 })
    }

    unsafe fn free_sliver(&mut self, block: Block<u32>) -> (Id, usize) {
        // SAFETY: the caller guarantees that `block` is an allocated block of this metadata.
        unsafe { self.after(block) }
    }

    unsafe fn cut(&mut self, block: Block<u32>, front: usize) -> Option<(Block<u32>, Block<u32>)> {
        let id = block.token as usize;
        let back = self.nodes.insert_after(id, block.offset + front, block.len - front);
        if back == NIL {
            return None;
        }
        self.nodes.node_mut(id).len = I::new(front);
        Some((Block { len: front, ..block }, self.nodes.set_allocated(back, block.len - front)))
    }

    unsafe fn fuse(&mut self, left: Block<u32>, right: Block<u32>) -> Block<u32> {
        self.nodes.map_remove(right.token as usize);
        self.nodes.remove_after(right.token as usize);
        let len = left.len + right.len;
        self.nodes.node_mut(left.token as usize).len = I::new(len);
        Block { len, ..left }
    }

    unsafe fn first_free(&self, region: usize) -> Id {
        let id = self.firsts[region].get();
        if id != NIL && self.nodes.is_free(id) { id } else { NIL }
    }

    unsafe fn walk(
        &self,
        region: usize,
        _listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        let mut id = self.firsts[region].get();
        while id != NIL
            && visit(self.nodes.node(id).start.get(), self.nodes.length(id), self.nodes.is_free(id))
        {
            id = self.nodes.node(id).after.get();
        }
    }

    const DIRTY_EDGES: (usize, usize) = (0, 0);
}
