//! Segregated lists: the free blocks by length.

use super::nodes::{Id, NIL, Nodes};
use crate::units::{Index, class_of, rare};

/// Classes per power of two.
const FINE: usize = if usize::BITS > 32 { 64 } else { 32 };

/// Number of rows, up to that of the longest block.
const ROWS: usize = class_of::<FINE>(LONGEST) / FINE + 1;

/// Each length below this one has a class.
const EXACT: usize = 2 * FINE;

/// The longest block that the lists can hold.
pub(super) const LONGEST: usize = (1 << 31) - 1;

/// A free block found by a search.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) id: Id,
    /// The length of the block in granules.
    pub(super) len: usize,
}

/// Lists of free blocks by size class, and bitmaps of the lists in use.
///
/// ```text
///  rows          ..0101              which rows have a block
///  maps   row 0: 0000000000100010    which classes of the row have a block
///  heads  row 0: [ , x, , , , x, ..]   the first block of each class
/// ```
///
/// A row has the classes of a power of two.
pub(super) struct Lists<I> {
    /// Bit `r` is set if row `r` is not empty.
    rows: usize,
    /// Bit `c` of element `r` is set if class `r * FINE + c` is not empty.
    maps: [usize; ROWS],
    /// First block of each class; the second link of a first block is stale.
    heads: [[I; FINE]; ROWS],
}

impl<I: Index> Lists<I> {
    pub(super) const EMPTY: Self = Self { rows: 0, maps: [0; ROWS], heads: [[I::NIL; FINE]; ROWS] };

    /// Returns the class of blocks of `len` granules.
    #[inline(always)]
    pub(super) fn class(len: usize) -> usize {
        class_of::<FINE>(len)
    }

    #[inline(always)]
    fn head(&self, class: usize) -> Id {
        debug_assert!(class < ROWS * FINE);
        // SAFETY: classes come from lengths up to `LONGEST`, and from the bitmaps, which have bits for existing classes only.
        unsafe { self.heads.as_flattened().get_unchecked(class).get() }
    }

    #[inline(always)]
    fn set_head(&mut self, class: usize, id: Id) {
        debug_assert!(class < ROWS * FINE);
        // SAFETY: as in `head`.
        unsafe { *self.heads.as_flattened_mut().get_unchecked_mut(class) = I::new(id) }
    }

    /// Returns the bitmap with the bit of `class`.
    #[inline(always)]
    fn map(&mut self, class: usize) -> &mut usize {
        debug_assert!(class < ROWS * FINE);
        // SAFETY: as in `head`.
        unsafe { self.maps.get_unchecked_mut(class / FINE) }
    }

    /// Returns the first class that has a block, from `class` on.
    #[inline(always)]
    fn class_from(&self, class: usize) -> Option<usize> {
        let row = class / FINE;
        let map = self.maps.get(row)? >> (class % FINE);
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
        Some(row * FINE + map.trailing_zeros() as usize)
    }

    /// Returns the shortest of the first `COMPARED` blocks of `class` that have at least `len` granules.
    #[inline(always)]
    fn best_of<const COMPARED: usize>(&self, nodes: &Nodes<I>, class: usize, len: usize) -> Option<Found> {
        let mut id = self.head(class);
        let mut best: Option<Found> = None;
        for _ in 0..COMPARED {
            if id == NIL {
                break;
            }
            let found = nodes.length(id);
            if found >= len && best.is_none_or(|best| found < best.len) {
                best = Some(Found { id, len: found });
                if found == len {
                    break;
                }
            }
            id = nodes.node(id).next.get();
        }
        best
    }

    /// Finds a block of at least `len` granules: the shortest sufficient one among the first `COMPARED` of the first class that has any.
    #[inline(always)]
    pub(super) fn find<const COMPARED: usize>(&self, nodes: &Nodes<I>, len: usize) -> Option<Found> {
        if len > LONGEST {
            return None;
        }
        let own = Self::class(len);
        let class = if len < EXACT {
            self.class_from(own)?
        } else {
            if let Some(found) = self.best_of::<COMPARED>(nodes, own, len) {
                return Some(found);
            }
            self.class_from(own + 1)?
        };
        if class >= EXACT {
            return self.best_of::<COMPARED>(nodes, class, len);
        }
        let id = self.head(class);
        Some(Found { id, len: nodes.length(id) })
    }

    /// Enters the free block `id` of `class`.
    #[inline(always)]
    pub(super) fn insert(&mut self, nodes: &mut Nodes<I>, id: Id, class: usize) {
        let old = self.head(class);
        self.set_head(class, id);
        nodes.node_mut(id).next = I::new(old);
        if old != NIL {
            nodes.node_mut(old).prev = I::new(id);
            return;
        }
        let map = self.map(class);
        let old = *map;
        *map = old | 1 << (class % FINE);
        if old == 0 {
            rare();
            self.rows |= 1 << (class / FINE);
        }
    }

    /// Removes the free block `id` of `class`.
    #[inline(always)]
    pub(super) fn remove(&mut self, nodes: &mut Nodes<I>, id: Id, class: usize) {
        let next = nodes.node(id).next;
        if self.head(class) == id {
            self.set_head(class, next.get());
            if next == I::NIL {
                let map = self.map(class);
                *map &= !(1 << (class % FINE));
                if *map == 0 {
                    self.rows &= !(1 << (class / FINE));
                }
            }
            return;
        }
        let prev = nodes.node(id).prev;
        nodes.node_mut(prev.get()).next = next;
        if next != I::NIL {
            nodes.node_mut(next.get()).prev = prev;
        }
    }

    /// Returns the length of the longest block that [`Self::find`] would find, or 0 if there is none.
    pub(super) fn longest<const COMPARED: usize>(&self, nodes: &Nodes<I>) -> usize {
        if self.rows == 0 {
            return 0;
        }
        let row = self.rows.ilog2() as usize;
        let mut id = self.head(row * FINE + self.maps[row].ilog2() as usize);
        let mut longest = 0;
        for _ in 0..COMPARED {
            if id == NIL {
                break;
            }
            longest = longest.max(nodes.length(id));
            id = nodes.node(id).next.get();
        }
        longest
    }
}
