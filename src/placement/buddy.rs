//! Binary buddies.

use super::free_index::{check_links, sound};
use super::{Held, Placement};
use crate::meta::{Block, FreeError, Id, InBand, Meta, NIL};
use crate::misuse::{Fault, corrupted};
use crate::region::{Region, RegionError};
use crate::units::Index;

/// Binary buddies: blocks of a power of two of granules, aligned to their own size.
///
/// After Knowlton, "A fast storage allocator" (CACM 1965), and Knuth, *The Art of Computer
/// Programming*, vol. 1, 2.5. A block that is freed merges with its buddy, the other half of the
/// block that both were cut from, as often as that one is free; a look at its mark (or at the
/// neighbouring node of a side table) tells. Allocation and free are O(log n) for n granules, as long as
/// the largest block size is not much smaller than the regions; a request that fails, and
/// `largest_free`, also look whether a region is all free: O(regions · (log n + region / largest block)).
///
/// Alignment comes for free up to the block's size, at the price of rounding every request up to a
/// power of two. Regions of any size and start are used whole: they are cut into the largest aligned
/// powers of two. When a request is larger than any of these but a region that is all free could hold it,
/// the whole region is handed out, the place of its marks included: a 64 KiB region
/// serves one request of 64 KiB.
///
/// `ORDERS` is the number of block sizes, from one granule up; larger regions are cut into several
/// blocks of the largest size.
pub struct Buddy<M: Meta = InBand<u32>, const ORDERS: usize = 32> {
    meta: M,
    /// Bit `k`: a block of `1 << k` granules is free.
    orders: u32,
    /// First free block of each order.
    heads: [M::Index; ORDERS],
    /// Bit `r`: region number `r` is one block.
    whole: u32,
}

impl<M: Meta, const ORDERS: usize> Buddy<M, ORDERS> {
    const CHECKED: () = assert!(ORDERS > 0 && ORDERS <= 32, "ORDERS must be 1 to 32");

    /// Order of a request: the exponent of the power of two that it is rounded up to.
    #[inline(always)]
    fn order(len: usize, align: usize) -> usize {
        let len = len.max(align).max(M::MIN_BLOCK);
        (usize::BITS - (len - 1).leading_zeros()) as usize
    }

    #[inline(always)]
    unsafe fn insert(&mut self, id: Id, order: usize) {
        let old = self.heads[order].get();
        // SAFETY: `id` is free, and so is the head of a list.
        unsafe {
            self.meta.set_next(id, old);
            self.meta.set_prev(id, NIL);
            if old != NIL {
                self.meta.set_prev(old, id);
            }
        }
        self.heads[order] = Index::new(id);
        self.orders |= 1 << order;
    }

    #[inline(always)]
    unsafe fn remove(&mut self, id: Id, order: usize) {
        // SAFETY: `id` is in the list of its order.
        unsafe {
            let (next, prev) = (sound(&self.meta, self.meta.next(id)), sound(&self.meta, self.meta.prev(id)));
            if prev != NIL {
                check_links(&self.meta, id, prev, next);
            } else if M::CHECKED
                && (self.heads[order].get() != id || next != NIL && self.meta.prev(next) != id)
            {
                corrupted(Fault::BrokenList, 0);
            }
            if next != NIL {
                self.meta.set_prev(next, prev);
            }
            if prev != NIL {
                self.meta.set_next(prev, next);
                return;
            }
            self.heads[order] = Index::new(next);
            if next == NIL {
                self.orders &= !(1 << order);
            }
        }
    }

    /// Frees a block of a power of two of granules, aligned to its size.
    unsafe fn put(&mut self, mut block: Block<M::Token>) {
        let mut order = block.len.ilog2() as usize;
        // SAFETY: buddies that are free are in the list of their order; taking one makes it
        // an allocated block, which can be fused with its neighbour.
        unsafe {
            self.meta.unmark_apart(block);
            while order + 1 < ORDERS {
                let id = self.meta.buddy_apart(block);
                if id == NIL {
                    break;
                }
                self.remove(id, order);
                let other = self.meta.take_apart(id, block.len);
                let is_later = other.offset > block.offset;
                block = if is_later { self.meta.fuse(block, other) } else { self.meta.fuse(other, block) };
                order += 1;
            }
            let id = self.meta.free_apart(block);
            self.insert(id, order);
        }
    }

    /// Frees a range of any length in the largest aligned powers of two. If a side table has no node to cut it, returns the
    /// rest: an allocated block without an owner.
    unsafe fn put_range(&mut self, mut range: Block<M::Token>) -> Option<Block<M::Token>> {
        loop {
            let place = self.meta.place(range.offset);
            let aligned = place.trailing_zeros().min(ORDERS as u32 - 1);
            let order = aligned.min(range.len.ilog2());
            // SAFETY: the range is an allocated block that is not used, and so are its two parts.
            unsafe {
                match if range.len > 1 << order { self.meta.cut(range, 1 << order) } else { None } {
                    Some((front, back)) => {
                        // So that what is in front does not merge with it yet.
                        self.meta.mark_apart(Block { len: M::MIN_BLOCK, ..back });
                        self.put(front);
                        range = back;
                    }
                    None => {
                        if range.len > 1 << order {
                            return Some(range);
                        }
                        self.put(range);
                        return None;
                    }
                }
            }
        }
    }

    /// Whether nothing of region number `region` is allocated. O(log n): its free blocks follow each
    /// other from its start to its end.
    fn is_free(&self, region: usize) -> bool {
        if self.whole >> region & 1 != 0 {
            return false;
        }
        let whole = self.meta.regions()[region].len;
        // SAFETY: the region was claimed with edges and is not one block; the ids met are free blocks.
        unsafe {
            let mut id = self.meta.first_apart(region);
            let mut covered = 0;
            while id != NIL && covered < whole {
                let len = self.meta.len(id);
                covered += len;
                if len == 0 || covered > whole {
                    // Not what was written there: the block was changed after it was freed.
                    return false;
                }
                id = self.meta.next_apart(id, len);
            }
            covered == whole
        }
    }

    /// Shows `visit` the ids of all free blocks. Ends even if a list was damaged so that it leads to itself.
    fn each(&self, visit: &mut dyn FnMut(Id)) {
        let mut most = self.meta.regions().iter().map(|record| record.len / M::MIN_BLOCK).sum::<usize>();
        for head in &self.heads {
            let mut id = head.get();
            while id != NIL && most > 0 {
                visit(id);
                most -= 1;
                // SAFETY: heads, and what follows them, are free blocks.
                id = unsafe { self.meta.next(id) };
            }
        }
    }

    /// Says why the block at `address` cannot be freed, for which no mark was found. O(free blocks).
    #[cold]
    #[inline(never)]
    fn reason(&self, address: usize) -> FreeError {
        let Some(offset) = self.meta.locate(address) else { return FreeError::Foreign };
        let mut is_free = false;
        // SAFETY: what is in the lists is free.
        self.each(&mut |id| unsafe {
            is_free |= offset.wrapping_sub(self.meta.offset(id)) < self.meta.len(id);
        });
        if is_free { FreeError::AlreadyFree } else { FreeError::NotABlock }
    }

    /// The free blocks at the start of region number `region` as one allocated block.
    unsafe fn gather(&mut self, region: usize) -> Option<Block<M::Token>> {
        let mut whole: Option<Block<M::Token>> = None;
        // SAFETY: the region's free blocks are in the lists of their orders, and follow each other.
        unsafe {
            let mut id = self.meta.first_apart(region);
            while id != NIL {
                let len = self.meta.len(id);
                let next = self.meta.next_apart(id, len);
                self.remove(id, len.ilog2() as usize);
                let block = self.meta.take_apart(id, len);
                whole = Some(whole.map_or(block, |left| self.meta.fuse(left, block)));
                id = next;
            }
        }
        whole
    }

    /// The last resort: a whole region. O(regions · log n).
    #[cold]
    #[inline(never)]
    fn allocate_whole(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        for region in 0..self.meta.regions().len() {
            let record = self.meta.regions()[region];
            let aligned = self.meta.place(record.first) & (align - 1) == 0;
            if !aligned || self.whole(region) < len || !self.is_free(region) {
                continue;
            }
            // SAFETY: nothing of the region is allocated.
            unsafe {
                let block = self.gather(region)?;
                self.meta.allocate_whole(region, block);
                self.whole |= 1 << region;
                return Some(Block { len: self.whole(region), ..block });
            }
        }
        None
    }

    /// Granules of region number `region` when it is one block, which is what a region counts as.
    fn whole(&self, region: usize) -> usize {
        let record = &self.meta.regions()[region];
        let start = self.meta.address(record.first).addr();
        (record.raw_end() - start) / M::GRANULE
    }

    /// Returns what [`Placement::checked_block_at`] does if the address lies in a region that is one block.
    #[cold]
    #[inline(never)]
    fn checked_whole_at(
        &self,
        address: usize,
        len: usize,
        align: usize,
    ) -> Option<Result<Held<Self>, FreeError>> {
        let offset = self.meta.locate(address)?;
        let region = self.meta.regions().iter().position(|record| record.contains(offset))?;
        if self.whole >> region & 1 == 0 {
            return None;
        }
        // Nothing is known of the inside of such a region.
        let start = self.meta.address(self.meta.regions()[region].first).addr();
        if start != address || len > self.whole(region) {
            return Some(Err(FreeError::NotABlock));
        }
        // SAFETY: the block starts at this address.
        Some(Ok(unsafe { self.block_at(address, len, align) }))
    }

    /// The region that is one block and starts at granule `offset`.
    #[inline(always)]
    fn whole_at(&self, offset: usize) -> Option<usize> {
        if self.whole == 0 {
            return None;
        }
        let starts =
            |region: &usize| self.whole >> region & 1 != 0 && self.meta.regions()[*region].first == offset;
        (0..self.meta.regions().len()).find(starts)
    }
}

// SAFETY: blocks are cut in halves from free blocks and come back through `put`; they are aligned
// to their length as the blocks that they are cut from.
unsafe impl<M: Meta, const ORDERS: usize> Placement for Buddy<M, ORDERS> {
    type Meta = M;
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self { meta: M::EMPTY, orders: 0, heads: [M::Index::NIL; ORDERS], whole: 0 }
    };
    const MAX_LEN: usize = M::MAX_LEN;
    const EXACT: bool = false;
    // A wrong free would have joined buddies before it is found.
    const CHECKS: bool = M::CHECKED;
    const BESIDE: bool = true;

    fn meta(&self) -> &M {
        &self.meta
    }

    unsafe fn meta_mut(&mut self) -> &mut M {
        &mut self.meta
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        // SAFETY: the memory is handed over by the caller; its granules are an unused block.
        unsafe {
            if self.meta.regions().len() >= 32 {
                return Err(RegionError::TooMany { max: 32 });
            }
            let block = self.meta.claim(memory, true)?;
            if let Some(rest) = self.put_range(block) {
                let region = self.meta.regions().len() - 1;
                if let Some(front) = self.gather(region) {
                    self.meta.fuse(front, rest);
                }
                self.meta.forget(region);
                return Err(RegionError::NoNodes);
            }
            Ok(self.whole(self.meta.regions().len() - 1) * M::GRANULE)
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let region = self.meta.region_at(start)?;
        if self.whole >> region & 1 != 0 {
            return Err(RegionError::InUse);
        }
        // SAFETY: the memory is handed over by the caller; the new granules are an unused block.
        unsafe {
            let old = self.whole(region);
            let block = self.meta.extend(start, bytes)?;
            // What a side table has no node for stays out of use.
            let rest = self.put_range(block).map_or(0, |rest| rest.len);
            Ok((self.whole(region) - old - rest) * M::GRANULE)
        }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let region = self.meta.region_at(start)?;
        let bytes = self.whole(region) * M::GRANULE;
        if !self.is_free(region) {
            return Err(RegionError::InUse);
        }
        // SAFETY: nothing of the region is allocated, and after `gather` nothing of it is listed.
        unsafe {
            let _ = self.gather(region);
            // The last region takes the number of this one, and so its place among those that are one block.
            let last = self.meta.regions().len() - 1;
            let moved = self.whole >> last & 1;
            self.whole = self.whole & !(1 << last) & !(1 << region);
            if last != region {
                self.whole |= moved << region;
            }
            Ok((self.meta.forget(region), bytes))
        }
    }

    #[inline(always)]
    fn granted(len: usize, align: usize) -> usize {
        // A request that is too large for any order was served by a whole region; its length is
        // then looked up, and what is returned here does not matter.
        1usize.checked_shl(Self::order(len, align) as u32).unwrap_or(usize::MAX)
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Held<Self>> {
        let order = Self::order(len, align);
        let fitting = if order < ORDERS { self.orders >> order } else { 0 };
        if fitting == 0 {
            return self.allocate_whole(len, align);
        }
        let mut from = order + fitting.trailing_zeros() as usize;
        // SAFETY: the head of a list is a free block of the list's order; halves are inserted.
        unsafe {
            let id = self.heads[from].get();
            self.remove(id, from);
            while from > order {
                let half = self.meta.split(id, 1 << from, 1 << (from - 1));
                if half == NIL {
                    // As a freed block it merges with the halves that were cut off before.
                    let block = self.meta.take_apart(id, 1 << from);
                    self.put(block);
                    return None;
                }
                from -= 1;
                self.insert(half, from);
            }
            let block = self.meta.take_apart(id, 1 << order);
            self.meta.mark_apart(block);
            self.meta.touch(block);
            Some(block)
        }
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, block: Held<Self>, _: usize, _: usize) -> Result<usize, FreeError> {
        // SAFETY: the block is live and not used any more, as the caller vouches.
        unsafe {
            if let Some(region) = self.whole_at(block.offset) {
                self.whole &= !(1 << region);
                let whole = self.meta.restore(region);
                // What a side table has no node for any more stays out of use.
                let rest = self.put_range(whole).map_or(0, |rest| rest.len);
                return Ok(self.whole(region) - rest);
            }
            self.put(block);
        }
        Ok(block.len)
    }

    unsafe fn resize(
        &mut self,
        mut block: Held<Self>,
        _: usize,
        to: usize,
        align: usize,
    ) -> Option<Held<Self>> {
        if let Some(region) = self.whole_at(block.offset) {
            return (to <= self.whole(region)).then_some(block);
        }
        let order = Self::order(to, align);
        let (old, want) = (block.len, if order < ORDERS { 1 << order } else { return None });
        // SAFETY: the block is live; upper halves that are cut off are not used any more; a buddy
        // that is free is in the list of its order.
        unsafe {
            // Its start stays marked, so that nothing merges with it meanwhile.
            self.meta.unmark_apart(block);
            self.meta.mark_apart(Block { len: M::MIN_BLOCK, ..block });
            while block.len < want {
                if self.meta.place(block.offset) & block.len != 0 {
                    break;
                }
                let id = self.meta.buddy_apart(block);
                if id == NIL {
                    break;
                }
                self.remove(id, block.len.ilog2() as usize);
                let other = self.meta.take_apart(id, block.len);
                block = self.meta.fuse(block, other);
                self.meta.touch(block);
            }
            let target = if block.len < want { old } else { want };
            while block.len > target {
                let Some((front, back)) = self.meta.cut(block, block.len / 2) else { break };
                self.put(back);
                block = front;
            }
            self.meta.mark_apart(block);
            (block.len >= want).then_some(block)
        }
    }

    fn set_saving(&mut self, _on: bool) {}

    fn is_whole(&self, offset: usize) -> bool {
        self.whole_at(offset).is_some()
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let record = &self.meta.regions()[region];
        if self.whole >> region & 1 != 0 {
            visit(record.first, record.len, false);
            return;
        }
        // SAFETY: the region was claimed with edges and is not one block.
        unsafe { self.meta.walk_apart(region, &|see| self.each(see), visit) }
    }

    fn largest(&self) -> usize {
        let listed = if self.orders == 0 { 0 } else { 1 << self.orders.ilog2() };
        let regions = 0..self.meta.regions().len();
        let lendable = regions.filter(|&region| self.is_free(region));
        lendable.map(|region| self.whole(region)).fold(listed, usize::max)
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize, align: usize) -> Held<Self> {
        // SAFETY: the block exists, as the caller vouches.
        let block = unsafe { self.meta.block_at(address, Self::granted(len, align)) };
        match self.whole_at(block.offset) {
            Some(region) => Block { len: self.whole(region), ..block },
            None => block,
        }
    }

    #[inline(always)]
    fn checked_block_at(&self, address: usize, len: usize, align: usize) -> Result<Held<Self>, FreeError> {
        if self.whole != 0 {
            if let Some(answer) = self.checked_whole_at(address, len, align) {
                return answer;
            }
        }
        let block = self.meta.checked_apart(address, Self::granted(len, align));
        block.map_err(|error| if error == FreeError::NotABlock { self.reason(address) } else { error })
    }
}
