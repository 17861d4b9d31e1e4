//! Two-level segregated fit.

use super::coalescing::{Coalescing, Fit};
use crate::meta::{Id, InBand, Meta, NIL};
use crate::units::{Index, class_of, class_rows, class_start};

/// Classes per power of two unless a type says otherwise.
const DEFAULT_COLUMNS: usize = if usize::BITS > 32 { 16 } else { 8 };

/// The largest region that the default table serves: the whole index space on hosts; 16 MiB on
/// microcontrollers, whose RAM the table must not eat.
const DEFAULT_ROWS: usize =
    if usize::BITS > 32 { class_rows::<16>(1 << 31) } else { class_rows::<8>(16 << 20 >> 3) };

/// Rows that a [`Tlsf`] table with `SL` columns needs for regions of up to `bytes` bytes in granules
/// of `granule` bytes.
///
/// ```
/// use allotment::{Tlsf, meta::InBand, placement::table_rows};
/// type Small = Tlsf<InBand<u16, 8, 1>, { table_rows::<4>(16 * 1024, 8) }, 4>;
/// assert!(size_of::<Small>() <= 192);
/// ```
pub const fn table_rows<const SL: usize>(bytes: usize, granule: usize) -> usize {
    class_rows::<SL>(bytes / granule)
}

/// Two-level segregated fit: O(1) allocation and O(1) free, dense, headerless.
///
/// After Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time
/// systems" (ECRTS 2004). Free blocks are in lists by size class, `SL` classes per power of two (the
/// lengths below `2 * SL` granules have a class each), and two levels of bitmaps find a
/// class that is not empty. What is different here:
///
/// * blocks have no headers ([`InBand`] keeps edge bits);
/// * the request's own class is looked at before the next larger one, so that a block of the same
///   size that was just freed is found again; if nothing larger is free, up to
///   [`SegregatedLists::PROBES`] of its blocks are;
/// * what an alignment skips becomes a free block;
/// * the table has `ROWS` rows of `SL` classes, as many as the largest region needs
///   ([`table_rows`]), at one index each: 29 × 16 × 4 bytes by default on 64-bit hosts (regions up
///   to 16 GiB), 20 × 8 × 4 on 32-bit targets (16 MiB), and whatever a type asks for.
///
/// Bound: an allocation touches one list head, one free block and its rest; a free touches at most
/// two neighbours and one list head; only a request that fails looks at up to `PROBES` blocks more.
pub type Tlsf<M = InBand<u32>, const ROWS: usize = DEFAULT_ROWS, const SL: usize = DEFAULT_COLUMNS> =
    Coalescing<M, SegregatedLists<<M as Meta>::Index, ROWS, SL>>;

/// A [`Tlsf`] for microcontrollers: 16-bit indices, 8-byte granules and blocks, one region of up to
/// 512 KiB, a table of 252 bytes.
pub type CompactTlsf = Tlsf<InBand<u16, 8, 1>, { class_rows::<8>(u16::MAX as usize) }, 8>;

/// The index of [`Tlsf`]: lists of free blocks by size class, and bitmaps of the lists in use.
///
/// ```text
///  rows   0000...0101            which rows have a block at all
///  maps   row 0: 0000000000100010    which classes of the row have one
///  heads  row 0: [ , x, , , , x, ..]   the first block of each class
/// ```
pub struct SegregatedLists<I, const ROWS: usize, const SL: usize> {
    /// Bit `r`: a class of row `r` is not empty.
    rows: u32,
    /// Bit `c` of element `r`: class `r * SL + c` is not empty.
    maps: [u16; ROWS],
    /// First block of each class; the second link of a first block is stale.
    heads: [[I; SL]; ROWS],
}

impl<I: Index, const ROWS: usize, const SL: usize> SegregatedLists<I, ROWS, SL> {
    /// Blocks of its own class that a request looks at before it fails.
    pub const PROBES: usize = 16;

    const CHECKED: () = {
        assert!(SL.is_power_of_two() && SL <= 16, "SL must be a power of two up to 16");
        assert!(ROWS > 0 && ROWS <= 32, "ROWS must be 1 to 32");
    };

    #[inline(always)]
    fn head(&mut self, class: usize) -> &mut I {
        debug_assert!(class / SL < ROWS);
        // SAFETY: classes come from the lengths of blocks, which are at most `MAX_LEN`, and from the
        // bitmaps, which have bits for existing classes only.
        unsafe { self.heads.as_flattened_mut().get_unchecked_mut(class) }
    }

    #[inline(always)]
    fn map(&self, row: usize) -> u32 {
        debug_assert!(row < ROWS);
        // SAFETY: as in `head`.
        u32::from(unsafe { *self.maps.get_unchecked(row) })
    }

    #[inline(always)]
    fn map_mut(&mut self, row: usize) -> &mut u16 {
        debug_assert!(row < ROWS);
        // SAFETY: as in `head`.
        unsafe { self.maps.get_unchecked_mut(row) }
    }

    /// Makes `next` the first block of `class` after its first one was taken.
    #[inline(always)]
    fn advance(&mut self, class: usize, next: Id) {
        *self.head(class) = I::new(next);
        if next == NIL {
            let map = self.map_mut(class / SL);
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
        if row >= ROWS {
            return None;
        }
        let map = self.map(row) >> (class % SL);
        if map != 0 {
            return Some(class + map.trailing_zeros() as usize);
        }
        // Two shifts, since one by 32 is not allowed.
        let rows = self.rows >> row >> 1;
        if rows == 0 {
            return None;
        }
        let row = row + 1 + rows.trailing_zeros() as usize;
        Some(row * SL + self.map(row).trailing_zeros() as usize)
    }

    /// The first class whose head is sure to have `len` granules, and that head's length.
    #[inline(always)]
    unsafe fn class_for<M: Meta<Index = I>>(&self, meta: &M, len: usize) -> Option<(usize, Id, usize)> {
        let own = class_of::<SL>(len);
        if own / SL >= ROWS {
            return None;
        }
        // SAFETY: heads are free blocks; the row was checked.
        unsafe {
            let head = self.heads.as_flattened().get_unchecked(own).get();
            if head != NIL {
                let found = meta.len(head);
                if found >= len {
                    return Some((own, head, found));
                }
            }
            let class = self.class_from(own + 1)?;
            let head = self.heads.as_flattened().get_unchecked(class).get();
            Some((class, head, meta.len(head)))
        }
    }

    /// The last resort: a block of the request's own class behind its head.
    #[cold]
    #[inline(never)]
    unsafe fn probe<M: Meta<Index = I>>(&self, meta: &M, len: usize) -> Option<(Id, usize)> {
        let class = class_of::<SL>(len);
        if class / SL >= ROWS {
            return None;
        }
        let mut id = self.heads[class / SL][class % SL].get();
        for _ in 0..Self::PROBES {
            if id == NIL {
                break;
            }
            // SAFETY: the list holds free blocks.
            unsafe {
                if meta.len(id) >= len {
                    return Some((id, meta.len(id)));
                }
                id = meta.next(id);
            }
        }
        None
    }
}

// SAFETY: lists hold what was inserted and not removed; `class_for` and `probe` compare lengths, or
// take a class all of whose blocks are longer.
unsafe impl<M: Meta<Index = I>, I: Index, const ROWS: usize, const SL: usize> Fit<M>
    for SegregatedLists<I, ROWS, SL>
{
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self { rows: 0, maps: [0; ROWS], heads: [[I::NIL; SL]; ROWS] }
    };

    const MAX_LEN: usize = class_start::<SL>(ROWS * SL) - 1;

    #[inline(always)]
    unsafe fn find(&self, meta: &M, len: usize) -> Option<(Id, usize)> {
        // SAFETY: passed on.
        unsafe {
            match self.class_for(meta, len) {
                Some((_, id, found)) => Some((id, found)),
                None => self.probe(meta, len),
            }
        }
    }

    #[inline(always)]
    unsafe fn pop(&mut self, meta: &mut M, len: usize) -> Option<(Id, usize)> {
        // SAFETY: passed on; the head of a class is free and linked.
        unsafe {
            let Some((class, id, found)) = self.class_for(meta, len) else {
                let (id, found) = self.probe(meta, len)?;
                self.remove(meta, id, found);
                return Some((id, found));
            };
            let next = meta.next(id);
            self.advance(class, next);
            Some((id, found))
        }
    }

    unsafe fn insert(&mut self, meta: &mut M, id: Id, len: usize) {
        let class = class_of::<SL>(len);
        let old = self.head(class).get();
        *self.head(class) = I::new(id);
        // SAFETY: `id` is free, and so is a class's first block; blocks of one granule have a class.
        unsafe {
            meta.set_next(id, len, old);
            if old != NIL {
                meta.set_prev(old, len, id);
                return;
            }
        }
        *self.map_mut(class / SL) |= 1 << (class % SL);
        self.rows |= 1 << (class / SL);
    }

    unsafe fn remove(&mut self, meta: &mut M, id: Id, len: usize) {
        let class = class_of::<SL>(len);
        // SAFETY: `id` is in the list of its class; unless it is the first, its second link is
        // current.
        unsafe {
            let next = meta.next(id);
            if self.head(class).get() == id {
                self.advance(class, next);
                return;
            }
            let prev = meta.prev(id);
            meta.set_next(prev, len, next);
            if next != NIL {
                meta.set_prev(next, len, prev);
            }
        }
    }

    unsafe fn largest(&self, meta: &M) -> usize {
        if self.rows == 0 {
            return 0;
        }
        let row = self.rows.ilog2() as usize;
        let mut id = self.heads[row][self.map(row).ilog2() as usize].get();
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
