//! Good fit: size classes so fine that their first block is nearly the best.

use super::coalescing::{Coalescing, Found, FreeIndex, LARGE};
use crate::meta::{Id, Meta, NIL, SideTable};
use crate::region::BRIEF;
use crate::units::{Index, class_of, class_start};

/// Classes per power of two.
const FINE: usize = 64;

/// Powers of two beside the exact classes, for the longest index.
const ROWS: usize = class_of::<FINE>(1 << 31) / FINE + 1;

/// Good fit with 64 size classes per power of two: O(1), and as dense as best fit.
///
/// The lists of [`Tlsf`](crate::Tlsf), four times as fine, so that a block is at most 1/64 longer than another
/// of its class; and of the request's own class up to [`FineLists::PROBES`] blocks are compared, and the
/// shortest that is long enough is taken. (Wilson, Johnstone, Neely and Boles, "Dynamic storage
/// allocation: a survey and critical review", IWMM 1995, call it segregated good fit.) The table takes 7
/// KiB, which is why this is the placement of pools rather than of microcontrollers.
pub type GoodFit<M = SideTable> = Coalescing<M, FineLists<<M as Meta>::Index>>;

/// The index of [`GoodFit`]: lists of free blocks by size class, and bitmaps of the lists in use.
pub struct FineLists<I> {
    /// Bit `r`: row `r` is not empty.
    rows: u32,
    /// Bit `c` of element `r`: class `r * 64 + c` is not empty.
    maps: [u64; ROWS],
    /// First block of each class; the second link of a first block is stale.
    heads: [[I; FINE]; ROWS],
}

impl<I: Index> FineLists<I> {
    /// Blocks of a class that a request compares.
    pub const PROBES: usize = 4;

    #[inline(always)]
    fn head(&self, class: usize) -> Id {
        debug_assert!(class / FINE < ROWS);
        // SAFETY: classes come from the lengths of blocks, which are at most `MAX_LEN`, and from the
        // bitmaps, which have bits for existing classes only.
        unsafe { self.heads.as_flattened().get_unchecked(class).get() }
    }

    #[inline(always)]
    fn set_head(&mut self, class: usize, id: Id) {
        debug_assert!(class / FINE < ROWS);
        // SAFETY: as in `head`.
        unsafe { *self.heads.as_flattened_mut().get_unchecked_mut(class) = I::new(id) }
    }

    /// Makes `next` the first block of `class` after its first one was taken.
    #[inline(always)]
    fn advance(&mut self, class: usize, next: Id) {
        self.set_head(class, next);
        if next == NIL {
            let row = class / FINE;
            self.maps[row] &= !(1 << (class % FINE));
            if self.maps[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// The first class that is not empty among those from `class` on.
    #[inline(always)]
    fn class_from(&self, class: usize) -> Option<usize> {
        let row = class / FINE;
        if row >= ROWS {
            return None;
        }
        let map = self.maps[row] >> (class % FINE);
        if map != 0 {
            return Some(class + map.trailing_zeros() as usize);
        }
        let rows = self.rows & (u32::MAX << row << 1);
        if rows == 0 {
            return None;
        }
        let row = rows.trailing_zeros() as usize;
        Some(row * FINE + self.maps[row].trailing_zeros() as usize)
    }

    /// The shortest of the first blocks of `class` that have `len` granules.
    ///
    /// # Safety
    ///
    /// The lists hold free blocks of `meta`.
    #[inline(always)]
    unsafe fn best_of<M: Meta>(&self, meta: &M, class: usize, len: usize) -> Option<Found<usize>> {
        let mut id = self.head(class);
        let mut best: Option<Found<usize>> = None;
        for _ in 0..Self::PROBES {
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
                id = meta.next(id);
            }
        }
        best
    }
}

// SAFETY: lists hold what was inserted and not removed; lengths are compared.
unsafe impl<M: Meta<Index = I>, I: Index> FreeIndex<M> for FineLists<I> {
    const EMPTY: Self = Self { rows: 0, maps: [0; ROWS], heads: [[I::NIL; FINE]; ROWS] };
    const MAX_LEN: usize = class_start::<FINE>(ROWS * FINE) - 1;
    const FROM_FRONT: usize = LARGE;

    /// The class.
    type Spot = usize;

    #[inline(always)]
    fn spot(len: usize) -> usize {
        class_of::<FINE>(len)
    }

    #[inline(always)]
    fn moves(from: usize, to: usize) -> bool {
        from != to
    }

    #[inline(always)]
    unsafe fn pop_exact(&mut self, meta: &mut M, len: usize) -> Option<Id> {
        if len >= BRIEF {
            return None;
        }
        // Up to here every length has its class.
        let id = self.head(len);
        if id == NIL {
            return None;
        }
        // SAFETY: heads are free blocks.
        let next = unsafe { meta.next(id) };
        self.advance(len, next);
        Some(id)
    }

    #[inline(always)]
    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<usize>> {
        let own = class_of::<FINE>(len);
        if own >= ROWS * FINE {
            return None;
        }
        // SAFETY: the caller passes lists of free blocks of `meta`.
        unsafe {
            if let Some(found) = self.best_of(meta, own, len) {
                return Some(found);
            }
            let class = self.class_from(own + 1)?;
            self.best_of(meta, class, len)
        }
    }

    unsafe fn insert(&mut self, meta: &mut M, id: Id, _len: usize, class: usize) {
        let old = self.head(class);
        self.set_head(class, id);
        // SAFETY: `id` is free, and so is a class's first block; blocks in lists have a unit or more.
        unsafe {
            meta.set_next(id, old);
            if old != NIL {
                meta.set_prev(old, id);
                return;
            }
        }
        self.maps[class / FINE] |= 1 << (class % FINE);
        self.rows |= 1 << (class / FINE);
    }

    unsafe fn remove(&mut self, meta: &mut M, id: Id, _len: usize, class: usize) {
        // SAFETY: the block is in the list of the class; unless it is the first, its second link is
        // current.
        unsafe {
            let next = meta.next(id);
            if self.head(class) == id {
                self.advance(class, next);
                return;
            }
            let prev = meta.prev(id);
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
                id = unsafe { meta.next(id) };
            }
        }
    }

    unsafe fn largest(&self, meta: &M) -> usize {
        if self.rows == 0 {
            return 0;
        }
        let row = self.rows.ilog2() as usize;
        let mut id = self.head(row * FINE + self.maps[row].ilog2() as usize);
        let mut longest = 0;
        for _ in 0..Self::PROBES {
            if id == NIL {
                break;
            }
            // SAFETY: the list holds free blocks.
            unsafe {
                longest = longest.max(meta.len(id));
                id = meta.next(id);
            }
        }
        longest
    }
}
