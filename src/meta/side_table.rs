//! Metadata in a table of nodes, for memory that is never accessed.

use super::{
    Block, DEFAULT_REGIONS, FreeBlocks, FreeError, Id, Listed, Meta, NIL, PAGE_WORDS, Page, addressable,
};
use crate::region::{Record, Region, RegionError, Regions};
use crate::units::{Index, align_up};
use core::mem::MaybeUninit;
use core::ptr;

/// One block, free or allocated: 24 bytes with 32-bit indices.
#[derive(Clone, Copy)]
struct Node<I> {
    /// Index of the first granule.
    start: I,
    /// Length in granules, and the flag for "free" in its top bit.
    len: I,
    /// The blocks before and after it in address order, within the region.
    before: I,
    after: I,
    /// Free: the placement's two links. Allocated: the hash chain, and the page record.
    /// In the pool of unused nodes: the next one.
    next: I,
    prev: I,
}

impl<I: Index> Node<I> {
    const NONE: Self =
        Self { start: I::NIL, len: I::NIL, before: I::NIL, after: I::NIL, next: I::NIL, prev: I::NIL };
}

/// Memory for one node of a [`SideTable`] and one hash bucket.
#[derive(Clone, Copy)]
pub struct NodeSlot<I: Copy> {
    cell: Cell<I>,
    bucket: MaybeUninit<I>,
}

/// A slot is a node, or the record of a slab page and the node that it belongs to.
#[derive(Clone, Copy)]
union Cell<I: Copy> {
    empty: (),
    node: Node<I>,
    page: ([u32; PAGE_WORDS], u32),
}

impl<I: Copy> NodeSlot<I> {
    /// A slot that holds nothing yet; for the initialiser of a `static` array.
    pub const EMPTY: Self = Self { cell: Cell { empty: () }, bucket: MaybeUninit::uninit() };
}

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
    slots: *mut NodeSlot<I>,
    /// The number of slots; node numbers start at 1.
    capacity: usize,
    /// The number of slots that have been used so far.
    used: usize,
    /// The head of the pool of freed nodes.
    pool: I,
    /// True if this table allocated `slots`.
    owned: bool,
}

// SAFETY: the nodes are accessed only through this value; the described memory is not accessed.
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool> Send for SideTable<I, G, R, M> {}

impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> SideTable<I, G, R, MAPPED> {
    const FREE: usize = (I::MAX >> 1) + 1;
    /// The highest index of a granule.
    const LIMIT: usize = addressable::<G>(I::MAX);
    const SHIFT: u32 = Regions::<R, G>::SHIFT;

    /// Provides a static array of nodes.
    ///
    /// # Errors
    ///
    /// The array itself if nodes are already in use.
    pub fn provide(&mut self, slots: &'static mut [NodeSlot<I>]) -> Result<(), &'static mut [NodeSlot<I>]> {
        if self.used > 0 {
            return Err(slots);
        }
        self.release_slots();
        self.slots = slots.as_mut_ptr();
        self.capacity = slots.len().min(I::MAX);
        self.clear_buckets();
        Ok(())
    }

    /// Returns the number of nodes in use, one per free or allocated block. O(pool).
    pub fn nodes(&self) -> usize {
        let mut unused = 0;
        let mut node = self.pool.get();
        while node != NIL {
            unused += 1;
            node = self.node(node).next.get();
        }
        self.used - unused
    }

    #[inline(always)]
    fn node(&self, id: Id) -> &Node<I> {
        debug_assert!(id != NIL && id <= self.used);
        // SAFETY: node numbers come from `new_node`, which made slot `id - 1` a node.
        unsafe { &(*self.slots.add(id - 1)).cell.node }
    }

    #[inline(always)]
    fn node_mut(&mut self, id: Id) -> &mut Node<I> {
        debug_assert!(id != NIL && id <= self.used);
        // SAFETY: as in `node`.
        unsafe { &mut (*self.slots.add(id - 1)).cell.node }
    }

    /// Creates a node with the given contents; [`NIL`] if there is no slot. O(1), amortised if the table grows.
    fn new_node(&mut self, node: Node<I>) -> Id {
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
        unsafe { (*self.slots.add(self.used)).cell = Cell { node } };
        self.used += 1;
        self.used
    }

    fn drop_node(&mut self, id: Id) {
        let pool = self.pool;
        self.node_mut(id).next = pool;
        self.pool = I::new(id);
    }

    /// Returns the head of the hash chain for blocks that start at granule `offset`.
    #[inline(always)]
    fn bucket(&self, offset: usize) -> *mut I {
        // Fibonacci hashing: multiply, then scale the upper half to the table (Knuth, vol. 3, 6.4).
        let hash = (offset as u32).wrapping_mul(0x9e37_79b9);
        let index = ((u64::from(hash) * self.capacity as u64) >> 32) as usize;
        // SAFETY: `index < capacity`; the field is a `MaybeUninit<I>`, which `clear_buckets` filled.
        unsafe { (&raw mut (*self.slots.add(index)).bucket).cast() }
    }

    fn clear_buckets(&mut self) {
        if MAPPED {
            for index in 0..self.capacity {
                // SAFETY: `index < capacity`.
                unsafe { (*self.slots.add(index)).bucket = MaybeUninit::new(I::NIL) };
            }
        }
    }

    fn map_insert(&mut self, id: Id) {
        if MAPPED {
            let bucket = self.bucket(self.node(id).start.get());
            // SAFETY: `bucket` returns a pointer to an initialised bucket of the table.
            unsafe {
                self.node_mut(id).next = *bucket;
                *bucket = I::new(id);
            }
        }
    }

    fn map_remove(&mut self, id: Id) {
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

    /// Returns the node of the allocated block that starts at granule `offset`, or [`NIL`]. Expected O(1) with the map, else
    /// O(blocks).
    fn find(&self, offset: usize) -> Id {
        if MAPPED {
            if self.capacity == 0 {
                return NIL;
            }
            // SAFETY: `bucket` returns a pointer to an initialised bucket of the table.
            let mut at = unsafe { (*self.bucket(offset)).get() };
            while at != NIL && self.node(at).start.get() != offset {
                at = self.node(at).next.get();
            }
            return at;
        }
        let mut at = self.firsts[self.regions.slot_of(offset)].get();
        while at != NIL && self.node(at).start.get() != offset {
            at = self.node(at).after.get();
        }
        if at != NIL && self.is_free(at) { NIL } else { at }
    }

    #[inline(always)]
    fn is_free(&self, id: Id) -> bool {
        self.node(id).len.get() & Self::FREE != 0
    }

    #[inline(always)]
    fn length(&self, id: Id) -> usize {
        self.node(id).len.get() & !Self::FREE
    }

    /// Marks node `id` as a free block of `len` granules, links unset.
    #[inline(always)]
    fn set_free(&mut self, id: Id, len: usize) {
        self.node_mut(id).len = I::new(len | Self::FREE);
    }

    /// Marks node `id` as an allocated block of `len` granules and enters it in the map.
    #[inline(always)]
    fn set_allocated(&mut self, id: Id, len: usize) -> Block<u32> {
        let node = self.node_mut(id);
        node.len = I::new(len);
        node.prev = I::NIL;
        let offset = node.start.get();
        self.map_insert(id);
        Block { offset, len, token: id as u32 }
    }

    /// Puts a new node for `[start, start + len)` behind node `id`; flags as given in `len`.
    fn insert_after(&mut self, id: Id, start: usize, len: usize) -> Id {
        let after = self.node(id).after;
        let new = self.new_node(Node {
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
    fn remove_after(&mut self, id: Id) {
        let Node { before, after, .. } = *self.node(id);
        self.node_mut(before.get()).after = after;
        if after != I::NIL {
            self.node_mut(after.get()).before = before;
        }
        self.drop_node(id);
    }

    #[cfg(feature = "alloc")]
    fn enlarge(&mut self) -> bool {
        use alloc::alloc::{Layout, alloc};
        if self.slots.is_null() || self.owned {
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
            self.release_slots();
            (self.slots, self.capacity, self.used, self.pool) = (slots, capacity, used, pool);
            self.owned = true;
            self.clear_buckets();
            // Only allocated blocks are in the map; nodes in the pool are reached from no region.
            for region in 0..self.regions.records().len() {
                let mut id = self.firsts[region].get();
                while id != NIL {
                    if !self.is_free(id) {
                        self.map_insert(id);
                    }
                    id = self.node(id).after.get();
                }
            }
            return true;
        }
        false
    }

    #[cfg(not(feature = "alloc"))]
    fn enlarge(&mut self) -> bool {
        false
    }

    /// Frees the array of slots if this table allocated it.
    fn release_slots(&mut self) {
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

impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> Drop for SideTable<I, G, R, MAPPED> {
    fn drop(&mut self) {
        self.release_slots();
    }
}

// SAFETY: a node's block is cut from the one that it was part of, and joined again only with its neighbours, so blocks
// stay disjoint and inside their region.
unsafe impl<I: Index, const G: usize, const R: usize, const MAPPED: bool> FreeBlocks
    for SideTable<I, G, R, MAPPED>
{
    const UNIT: usize = 1;
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
        let len = if node == NIL { len } else { self.length(node) };
        Block { offset, len, token: node as u32 }
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.regions.place(offset)
    }

    #[inline(always)]
    unsafe fn len(&self, id: Id) -> usize {
        self.length(id)
    }

    #[inline(always)]
    unsafe fn offset(&self, id: Id) -> usize {
        self.node(id).start.get()
    }

    #[inline(always)]
    unsafe fn next(&self, id: Id) -> Id {
        self.node(id).next.get()
    }

    #[inline(always)]
    unsafe fn prev(&self, id: Id) -> Id {
        self.node(id).prev.get()
    }

    #[inline(always)]
    unsafe fn set_next(&mut self, id: Id, to: Id) {
        self.node_mut(id).next = I::new(to);
    }

    #[inline(always)]
    unsafe fn set_prev(&mut self, id: Id, to: Id) {
        self.node_mut(id).prev = I::new(to);
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block<u32>, Id) {
        let start = self.node(id).start.get();
        let rest =
            if want < len { self.insert_after(id, start + want, (len - want) | Self::FREE) } else { NIL };
        (self.set_allocated(id, if rest == NIL { len } else { want }), rest)
    }

    #[inline(always)]
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block<u32>> {
        let rest = len - want;
        if rest == 0 {
            let block = self.set_allocated(id, len);
            self.touch(block);
            return Some(block);
        }
        let back = self.insert_after(id, self.node(id).start.get() + rest, want);
        if back == NIL {
            return None;
        }
        self.set_free(id, rest);
        let block = self.set_allocated(back, want);
        self.touch(block);
        Some(block)
    }

    unsafe fn take_middle(
        &mut self,
        id: Id,
        len: usize,
        front: usize,
        want: usize,
    ) -> Option<(Block<u32>, Id)> {
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
            self.remove_after(right.0);
        }
        let mut id = block.token as usize;
        self.map_remove(id);
        if left.0 != NIL {
            self.remove_after(id);
            id = left.0;
        }
        self.set_free(id, left.1 + block.len + right.1);
        id
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
    const EMPTY: Self = Self {
        regions: Regions::EMPTY,
        firsts: [I::NIL; R],
        slots: ptr::null_mut(),
        capacity: 0,
        used: 0,
        pool: I::NIL,
        owned: false,
    };
    const GRANULE: usize = G;
    const MAX_LEN: usize = if Self::FREE < Self::LIMIT { Self::FREE } else { Self::LIMIT } - 2;
    const BOUNDARY_BITS: bool = false;
    type Near = Self;

    #[inline(always)]
    fn near(&mut self) -> Option<Self> {
        None
    }

    #[inline(always)]
    fn regions(&self) -> &[Record] {
        self.regions.records()
    }

    unsafe fn claim(&mut self, memory: Region, edges: bool) -> Result<Block<u32>, RegionError> {
        let from = memory.start.addr().get();
        let pad = align_up(from, G).ok_or(RegionError::TooSmall)? - from;
        let len = memory.size.saturating_sub(pad) >> Self::SHIFT;
        if len == 0 {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(RegionError::TooLarge { max: Self::MAX_LEN.saturating_mul(G) });
        }
        self.regions.admissible(memory)?;
        let start = memory.start.as_ptr().wrapping_add(pad);
        let node = if edges { self.new_node(Node { len: I::new(len), ..Node::NONE }) } else { NIL };
        if edges && node == NIL {
            return Err(RegionError::NoNodes);
        }
        let slot = match self.regions.insert(memory, start, len, (1, 1), Self::LIMIT) {
            Ok(slot) => slot,
            Err(error) => {
                if edges {
                    self.drop_node(node);
                }
                return Err(error);
            }
        };
        self.firsts[slot] = I::new(node);
        let offset = self.regions.record(slot).first;
        if !edges {
            return Ok(Block { offset, len, token: NIL as u32 });
        }
        self.node_mut(node).start = I::new(offset);
        Ok(self.set_allocated(node, len))
    }

    unsafe fn extend(&mut self, start: *mut u8, more: usize) -> Result<Block<u32>, RegionError> {
        let (slot, raw) = self.regions.lengthened(start, more)?;
        let old = *self.regions.record(slot);
        let from = raw.start.addr().get();
        let len = (raw.size - (from.next_multiple_of(G) - from)) >> Self::SHIFT;
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
            while self.node(node).after != I::NIL {
                node = self.node(node).after.get();
            }
            node = self.insert_after(node, offset, len - old.len);
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
        Ok(self.set_allocated(node, len - old.len))
    }

    unsafe fn forget(&mut self, region: usize) -> Region {
        let mut node = self.firsts[region].get();
        while node != NIL {
            let after = self.node(node).after.get();
            if !self.is_free(node) {
                self.map_remove(node);
            }
            self.drop_node(node);
            node = after;
        }
        self.firsts[region] = self.firsts[self.regions.records().len() - 1];
        self.regions.remove(region)
    }

    unsafe fn allocate_whole(&mut self, region: usize, whole: Block<u32>) -> usize {
        self.touch(whole);
        let record = self.regions.record(region);
        let start = record.base.wrapping_add(record.first << Self::SHIFT).addr();
        record.raw_end() - start
    }

    unsafe fn restore(&mut self, region: usize) -> Block<u32> {
        let token = self.firsts[region].get();
        Block { offset: self.regions.record(region).first, len: self.length(token), token: token as u32 }
    }

    #[inline(always)]
    fn locate(&self, address: usize) -> Option<usize> {
        self.regions.locate(address)
    }

    #[inline(always)]
    unsafe fn unmanaged(&self, offset: usize, len: usize) -> Block<u32> {
        Block { offset, len, token: NIL as u32 }
    }

    fn checked_block_at(&self, address: usize, len: usize) -> Result<Block<u32>, FreeError> {
        let offset = self.in_region(address, len)?;
        let node = self.find(offset);
        if node == NIL || self.length(node) < len {
            return Err(FreeError::NotABlock);
        }
        Ok(Block { offset, len: self.length(node), token: node as u32 })
    }

    fn is_free_at(&self, offset: usize) -> bool {
        let mut at = self.firsts[self.regions.slot_of(offset)].get();
        while at != NIL && offset - self.node(at).start.get() >= self.length(at) {
            at = self.node(at).after.get();
        }
        at != NIL && self.is_free(at)
    }

    #[inline(always)]
    unsafe fn before(&self, block: Block<u32>) -> (Id, usize) {
        let id = self.node(block.token as usize).before.get();
        if id != NIL && self.is_free(id) { (id, self.length(id)) } else { (NIL, 0) }
    }

    #[inline(always)]
    unsafe fn after(&self, block: Block<u32>) -> (Id, usize) {
        let id = self.node(block.token as usize).after.get();
        if id != NIL && self.is_free(id) { (id, self.length(id)) } else { (NIL, 0) }
    }

    unsafe fn after_free(&self, id: Id, len: usize) -> (Id, usize) {
        // SAFETY: nodes know their neighbours whether they are free or not.
        unsafe { self.after(Block { offset: self.node(id).start.get(), len, token: id as u32 }) }
    }

    unsafe fn free_sliver(&mut self, block: Block<u32>) -> (Id, usize) {
        // SAFETY: the caller guarantees that `block` is an allocated block of this metadata.
        unsafe { self.after(block) }
    }

    unsafe fn split(&mut self, id: Id, len: usize, front: usize) -> Id {
        let start = self.node(id).start.get();
        let back = self.insert_after(id, start + front, (len - front) | Self::FREE);
        if back != NIL {
            self.set_free(id, front);
        }
        back
    }

    unsafe fn cut(&mut self, block: Block<u32>, front: usize) -> Option<(Block<u32>, Block<u32>)> {
        let id = block.token as usize;
        let back = self.insert_after(id, block.offset + front, block.len - front);
        if back == NIL {
            return None;
        }
        self.node_mut(id).len = I::new(front);
        Some((Block { len: front, ..block }, self.set_allocated(back, block.len - front)))
    }

    unsafe fn fuse(&mut self, left: Block<u32>, right: Block<u32>) -> Block<u32> {
        self.map_remove(right.token as usize);
        self.remove_after(right.token as usize);
        let len = left.len + right.len;
        self.node_mut(left.token as usize).len = I::new(len);
        Block { len, ..left }
    }

    unsafe fn first_free(&self, region: usize) -> Id {
        let id = self.firsts[region].get();
        if id != NIL && self.is_free(id) { id } else { NIL }
    }

    unsafe fn walk(
        &self,
        region: usize,
        _listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        let mut id = self.firsts[region].get();
        while id != NIL && visit(self.node(id).start.get(), self.length(id), self.is_free(id)) {
            id = self.node(id).after.get();
        }
    }

    const DIRTY_EDGES: (usize, usize) = (0, 0);

    unsafe fn open_page(&mut self, block: Block<u32>) -> Option<Page<u32>> {
        if block.token as usize == NIL {
            // A region without nodes, as `Bump` claims it, has nowhere to keep a page's record.
            return None;
        }
        let record = self.new_node(Node::NONE);
        if record == NIL {
            return None;
        }
        // SAFETY: `new_node` returns the number of an existing, unused slot.
        unsafe { (*self.slots.add(record - 1)).cell = Cell { page: ([0; PAGE_WORDS], block.token) } };
        // An allocated node does not use its second link otherwise.
        self.node_mut(block.token as usize).prev = I::new(record);
        Some(Page { block, record, header: 0 })
    }

    #[inline(always)]
    unsafe fn page_of(&self, _offset: usize, _len: usize, token: u32) -> Page<u32> {
        let node = self.node(token as usize);
        let block = Block { offset: node.start.get(), len: node.len.get(), token };
        Page { block, record: node.prev.get(), header: 0 }
    }

    fn find_page(&self, address: usize, len: usize) -> Option<Page<u32>> {
        let offset = self.locate(address)?;
        let node = self.find(offset.checked_sub(self.place(offset) & (len - 1))?);
        if node == NIL || self.node(node).prev == I::NIL || self.length(node) != len {
            return None;
        }
        // SAFETY: the node is that of an allocated block with a page record.
        Some(unsafe { self.page_of(offset, len, node as u32) })
    }

    unsafe fn page(&self, record: Id, len: usize) -> Page<u32> {
        // SAFETY: the record is that of an open page, so its slot holds a page and the page's node.
        unsafe { self.page_of(NIL, len, (*self.slots.add(record - 1)).cell.page.1) }
    }

    unsafe fn page_word(&self, page: Page<u32>, word: usize) -> u32 {
        // SAFETY: the page is open, so the slot of its record holds a page.
        unsafe { (*self.slots.add(page.record - 1)).cell.page.0[word] }
    }

    unsafe fn set_page_word(&mut self, page: Page<u32>, word: usize, value: u32) {
        // SAFETY: as in `page_word`.
        unsafe { (*self.slots.add(page.record - 1)).cell.page.0[word] = value };
    }

    unsafe fn close_page(&mut self, page: Page<u32>) {
        // SAFETY: the slot is there; it becomes a node again, which the pool links.
        unsafe {
            (*self.slots.add(page.record - 1)).cell = Cell { node: *self.node(page.block.token as usize) }
        };
        self.drop_node(page.record);
        self.node_mut(page.block.token as usize).prev = I::NIL;
    }
}
