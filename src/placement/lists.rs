//! Segregated lists: the index of [`GoodFit`](crate::GoodFit).

use super::coalescing::LARGE;
use super::free_index::{Found, FreeIndex, check_links, sound};
use crate::meta::{FreeBlocks, Id, NIL};
use crate::units::{Index, class_of, class_start, rare};

/// The index of [`GoodFit`](crate::GoodFit): lists of free blocks by size class, and bitmaps of the lists in use.
///
/// ```text
///  rows          ..0101              which rows have a block
///  maps   row 0: 0000000000100010    which classes of the row have a block
///  heads  row 0: [ , x, , , , x, ..]   the first block of each class
/// ```
///
/// A row has the `SL` classes of a power of two. Of a class, the shortest of the first `COMPARED` blocks that are long enough is taken.
pub struct SegregatedLists<I, const ROWS: usize, const SL: usize, const COMPARED: usize> {
    /// Bit `r`: row `r` is not empty.
    rows: usize,
    /// Bit `c` of element `r`: class `r * SL + c` is not empty.
    maps: [usize; ROWS],
    /// First block of each class; the second link of a first block is stale.
    heads: [[I; SL]; ROWS],
}

impl<I: Index, const ROWS: usize, const SL: usize, const COMPARED: usize>
    SegregatedLists<I, ROWS, SL, COMPARED>
{
    /// All classes.
    const CLASSES: usize = ROWS * SL;

    const CHECKED: () = {
        assert!(SL.is_power_of_two(), "SL must be a power of two");
        assert!(SL <= usize::BITS as usize, "SL is at most the bits of a word");
        assert!(ROWS > 0, "a table needs a row");
        assert!(ROWS < usize::BITS as usize, "a table has fewer rows than a word has bits");
    };

    /// Lengths below this have a class each.
    const EXACT: usize = 2 * SL;

    #[inline(always)]
    fn head(&self, class: usize) -> Id {
        debug_assert!(class < Self::CLASSES);
        // SAFETY: classes come from the lengths of blocks, which are at most `MAX_LEN`, and from the
        // bitmaps, which have bits for existing classes only.
        unsafe { self.heads.as_flattened().get_unchecked(class).get() }
    }

    #[inline(always)]
    fn set_head(&mut self, class: usize, id: Id) {
        debug_assert!(class < Self::CLASSES);
        // SAFETY: as in `head`.
        unsafe { *self.heads.as_flattened_mut().get_unchecked_mut(class) = I::new(id) }
    }

    /// The bitmap that `class` is in.
    #[inline(always)]
    fn map(&mut self, class: usize) -> &mut usize {
        debug_assert!(class < Self::CLASSES);
        // SAFETY: as in `head`.
        unsafe { self.maps.get_unchecked_mut(class / SL) }
    }

    /// Makes `next` the first block of `class` after its first one was taken.
    #[inline(always)]
    fn advance(&mut self, class: usize, next: Id) {
        self.set_head(class, next);
        if next == NIL {
            let map = self.map(class);
            *map &= !(1 << (class % SL));
            if *map == 0 {
                self.rows &= !(1 << (class / SL));
            }
        }
    }

    /// The first class that is not empty among those from `class` on.
    #[inline(always)]
    fn class_from(&self, class: usize) -> Option<usize> {
        let row = class / SL;
        let map = self.maps.get(row)? >> (class % SL);
        if map != 0 {
            return Some(class + map.trailing_zeros() as usize);
        }
        let rows = self.rows & (!1 << row);
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        // SAFETY: `rows` has bits for existing rows only.
        let map = unsafe { *self.maps.get_unchecked(row) };
        Some(row * SL + map.trailing_zeros() as usize)
    }

    /// The shortest of the first `COMPARED` blocks of `class` that have `len` granules.
    ///
    /// # Safety
    ///
    /// The lists hold free blocks of `meta`.
    #[inline(always)]
    unsafe fn best_of<M: FreeBlocks>(&self, meta: &M, class: usize, len: usize) -> Option<Found<usize>> {
        let mut id = self.head(class);
        let mut best: Option<Found<usize>> = None;
        for _ in 0..COMPARED {
            if id == NIL {
                break;
            }
            // SAFETY: lists hold free blocks.
            unsafe {
                let found = meta.len(id);
                if found >= len && best.is_none_or(|best| found < best.len) {
                    best = Some(Found { id, len: found, spot: class });
                    if found == len {
                        break;
                    }
                }
                id = sound(meta, meta.next(id));
            }
        }
        best
    }
}

// SAFETY: lists hold what was inserted and not removed; `find` and `search` compare lengths, or take a
// class all of whose blocks are longer.
unsafe impl<M: FreeBlocks<Index = I>, I: Index, const ROWS: usize, const SL: usize, const COMPARED: usize>
    FreeIndex<M> for SegregatedLists<I, ROWS, SL, COMPARED>
{
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self { rows: 0, maps: [0; ROWS], heads: [[I::NIL; SL]; ROWS] }
    };

    // Where the classes reach beyond the largest number, that is the longest.
    const MAX_LEN: usize = class_start::<SL>(Self::CLASSES).wrapping_sub(1);
    const FROM_FRONT: usize = LARGE;

    /// The class.
    type Spot = usize;

    #[inline(always)]
    fn spot(len: usize) -> usize {
        class_of::<SL>(len)
    }

    #[inline(always)]
    fn moves(from: usize, to: usize) -> bool {
        from != to
    }

    #[inline(always)]
    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<usize>> {
        let own = class_of::<SL>(len);
        // SAFETY: lists hold free blocks.
        unsafe {
            let spot = if len < Self::EXACT {
                self.class_from(own)?
            } else {
                // What the last class alone could hold is left to `search`.
                if own >= Self::CLASSES - 1 {
                    rare();
                    return None;
                }
                if let Some(found) = self.best_of(meta, own, len) {
                    return Some(found);
                }
                self.class_from(own + 1)?
            };
            if spot >= Self::EXACT {
                return self.best_of(meta, spot, len);
            }
            let id = self.head(spot);
            Some(Found { id, len: meta.len(id), spot })
        }
    }

    #[inline(always)]
    fn lacks(&self, len: usize) -> bool {
        let class = class_of::<SL>(len);
        class >= Self::CLASSES || self.rows >> (class / SL) == 0
    }

    /// Adds a last resort: what the last class alone can hold.
    unsafe fn search(&self, meta: &M, len: usize) -> Option<Found<usize>> {
        if len > <Self as FreeIndex<M>>::MAX_LEN {
            return None;
        }
        // SAFETY: lists hold free blocks.
        unsafe {
            let found = self.find(meta, len);
            let own = class_of::<SL>(len);
            if found.is_some() || own < Self::CLASSES - 1 { found } else { self.best_of(meta, own, len) }
        }
    }

    #[inline(always)]
    unsafe fn insert(&mut self, meta: &mut M, id: Id, _len: usize, class: usize) {
        let old = self.head(class);
        self.set_head(class, id);
        // SAFETY: `id` is free, and so is a class's first block; blocks in lists have a minimum block or more.
        unsafe {
            meta.set_next(id, old);
            if old != NIL {
                meta.set_prev(old, id);
                return;
            }
        }
        let map = self.map(class);
        let old = *map;
        *map = old | 1 << (class % SL);
        if old == 0 {
            rare();
            self.rows |= 1 << (class / SL);
        }
    }

    #[inline(always)]
    unsafe fn pop(&mut self, meta: &mut M, found: Found<usize>) {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.remove(meta, found.id, found.len, found.spot) }
    }

    unsafe fn remove(&mut self, meta: &mut M, id: Id, _len: usize, class: usize) {
        // SAFETY: the block is in the list of the class; unless it is the first, its second link is
        // current.
        unsafe {
            let next = sound(meta, meta.next(id));
            if self.head(class) == id {
                self.advance(class, next);
                return;
            }
            let prev = sound(meta, meta.prev(id));
            check_links(meta, id, prev, next);
            meta.set_next(prev, next);
            if next != NIL {
                meta.set_prev(next, prev);
            }
        }
    }

    unsafe fn each(&self, meta: &M, visit: &mut dyn FnMut(Id)) {
        for head in self.heads.as_flattened() {
            let mut id = head.get();
            while id != NIL {
                visit(id);
                // SAFETY: heads, and what follows them, are free blocks.
                id = unsafe { sound(meta, meta.next(id)) };
            }
        }
    }

    unsafe fn largest(&self, meta: &M) -> usize {
        if self.rows == 0 {
            return 0;
        }
        let row = self.rows.ilog2() as usize;
        let mut id = self.head(row * SL + self.maps[row].ilog2() as usize);
        let mut longest = 0;
        for _ in 0..COMPARED {
            if id == NIL {
                break;
            }
            // SAFETY: the list holds free blocks.
            unsafe {
                longest = longest.max(meta.len(id));
                id = sound(meta, meta.next(id));
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GoodFit;
    use crate::meta::InBand;
    use crate::placement::{Coalescing, Placement};
    use crate::region::Region;
    use core::alloc::Layout;
    use core::ptr::NonNull;

    /// What a block has grown into is not taken for zeroed memory when it is allocated again.
    #[test]
    fn memory_that_a_block_grew_into_is_cleared() {
        use crate::placement::LayoutPlacement;
        let mut memory = vec![0u64; 8192];
        let mut space = <GoodFit<InBand<u32>> as Placement>::EMPTY;
        let layout = |size| Layout::from_size_align(size, 8).unwrap();
        // SAFETY: the memory outlives the placement; the blocks are live and of their sizes.
        unsafe {
            let start = NonNull::from(memory.as_mut_slice()).cast();
            let region = Region { start, size: 8 * 8192, zeroed: true };
            Placement::claim(&mut space, region).unwrap();
            let start = LayoutPlacement::allocate(&mut space, layout(8192)).unwrap().start;
            assert_eq!(LayoutPlacement::resize(&mut space, start, layout(8192), 32768), Some((8192, 32768)));
            start.write_bytes(0xff, 32768);
            let cut = LayoutPlacement::resize(&mut space, start, layout(32768), 8192);
            assert_eq!(cut, Some((32768, 8192)));
            let (behind, front, back) = space.allocate_zeroed(layout(16384)).unwrap();
            let next = behind.start;
            assert_eq!(next, start.add(8192));
            next.write_bytes(0, front);
            next.add(behind.size - back).write_bytes(0, back);
            assert!((0..16384).all(|at| next.add(at).read() == 0));
        }
    }

    /// What the last class alone can hold is found.
    #[test]
    fn the_longest_block_is_found() {
        type Space = Coalescing<InBand<u32, 8, 1>, SegregatedLists<u32, 4, 4, 4>>;
        for len in [20, 26, 28, 30] {
            let mut memory = [0_u64; 32];
            let mut space = <Space as Placement>::EMPTY;
            // With a word for the boundary bits.
            let region = Region::new(NonNull::from(memory.as_mut_slice()).cast(), 8 * len + 8);
            // SAFETY: the memory outlives the placement.
            unsafe { Placement::claim(&mut space, region).unwrap() };
            assert_eq!(space.largest(), len);
            let quick = space.allocate_quick(len, 1);
            let block = if quick.is_some() { quick } else { Placement::allocate(&mut space, len, 1) };
            assert_eq!(block.map(|block| block.len), Some(len));
        }
    }

    /// A glance that says that a request fails is right, with one region and with two, and what the largest block can serve
    /// is served.
    #[test]
    fn a_glance_is_never_wrong() {
        let mut memory = vec![0u64; 2 * 4096];
        let mut space = <GoodFit<InBand<u32, 8, 2>> as Placement>::EMPTY;
        let mut random = fastrand::Rng::with_seed(5);
        for half in memory.chunks_mut(4096) {
            // SAFETY: the memory outlives the placement.
            unsafe { space.claim(Region::new(NonNull::from(half).cast(), 8 * 4096)).unwrap() };
            let (mut live, mut glances) = (Vec::new(), 0);
            for _ in 0..4000 {
                let len = 1 << random.u32(0..12) | random.usize(0..64);
                let largest = space.largest();
                if space.lacks(len) {
                    assert!(largest < len, "{len} of {largest}");
                    glances += 1;
                }
                let mut block = space.allocate_quick(len, 1);
                if block.is_none() {
                    block = space.allocate(len, 1);
                }
                assert!(block.is_some() || largest < len, "{len} of {largest}");
                live.extend(block);
                if block.is_none() || random.bool() {
                    let block = live.swap_remove(random.usize(..live.len()));
                    // SAFETY: the block is live and not used any more.
                    unsafe { space.deallocate(block, block.len, 1).unwrap() };
                }
            }
            assert!(glances > 100, "{glances}");
            for block in live {
                // SAFETY: as above.
                unsafe { space.deallocate(block, block.len, 1).unwrap() };
            }
        }
    }
}
