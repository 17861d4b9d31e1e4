//! Placements whose state is a map beside the memory: nothing is written to what they divide.
//!
//! ```text
//!  a region   | granules ...                          | the map's words |
//! ```
//!
//! [`Mapped`] brings a [`RegionMap`] to each of its regions, and turns layouts and addresses into lengths and indices. The
//! map does the rest, in a file of its own: it knows no addresses. [`Apart`] does the same for a segment of a
//! [`Pool`](crate::pool::Pool), with the words in the host's memory.

#[cfg(feature = "alloc")]
mod apart;
mod map;

#[cfg(feature = "alloc")]
pub use apart::Apart;
pub use map::RegionMap;

use super::{Grant, LayoutPlacement};
use crate::meta::{DEFAULT_REGIONS, FreeError};
use crate::observe::{NoStatistics, Statistics};
use crate::region::{Region, RegionError, Run};
use crate::units::align_up;
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// Bytes of a word of a map.
const WORD: usize = size_of::<u32>();

/// Divides up to `REGIONS` regions in granules of `GRANULE` bytes, each by a [`RegionMap`] at the region's end.
///
/// A request looks at the regions in the order in which they were claimed. Every free is checked against the map, so a double
/// free, a free of a part of a block and a foreign block are errors at every [hardening level](crate::harden).
pub struct Mapped<M: RegionMap, const GRANULE: usize, const REGIONS: usize = DEFAULT_REGIONS> {
    slots: [Slot<M>; REGIONS],
    count: usize,
}

/// A region and its map.
#[derive(Clone, Copy)]
struct Slot<M> {
    memory: Region,
    /// The first granule.
    base: *mut u8,
    len: usize,
    /// The map is empty as long as the region is allocated as one block.
    map: M,
    whole: bool,
}

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use.
unsafe impl<M: RegionMap + Send, const G: usize, const R: usize> Send for Mapped<M, G, R> {}

impl<M: RegionMap> Slot<M> {
    const NONE: Self = Self {
        memory: Region::new(NonNull::<u8>::dangling(), 0),
        base: ptr::null_mut(),
        len: 0,
        map: M::EMPTY,
        whole: false,
    };

    /// Returns where the map's words are.
    fn words<const G: usize>(&self) -> *mut u32 {
        let words = M::words(self.base.addr() / G, self.len);
        // Behind the region's last whole word.
        let end = self.memory.end() & !(WORD - 1);
        let start = self.memory.start.as_ptr();
        start.wrapping_add(end - words * WORD - start.addr()).cast()
    }

    /// Starts the map, with all granules free.
    ///
    /// # Safety
    ///
    /// Nothing else may use the region.
    unsafe fn open<const G: usize>(&mut self) {
        let words = self.words::<G>();
        // SAFETY: `parts` left room for so many words.
        unsafe { self.map.open(words, self.base.addr() / G, self.len) }
    }

    /// Returns the bytes of the region as one block.
    fn whole_size(&self) -> usize {
        self.memory.end() - self.base.addr()
    }
}

/// Returns the first granule of a region and how many granules it has.
fn parts<M: RegionMap, const G: usize>(memory: Region) -> Result<(*mut u8, usize), RegionError> {
    let start = memory.start.addr().get();
    let end = memory.checked_end()? & !(WORD - 1);
    let first = align_up(start, G).ok_or(RegionError::TooSmall)?;
    let Some(bytes) = end.checked_sub(first) else { return Err(RegionError::TooSmall) };
    let place = first / G;
    let mut len = bytes / G;
    if len > M::MAX_LEN {
        return Err(RegionError::TooLarge { max: M::MAX_LEN * G });
    }
    // Each round leaves room for the words of the round before, and so for those of fewer granules.
    while len > 0 && len * G + M::words(place, len) * WORD > bytes {
        let over = len * G + M::words(place, len) * WORD - bytes;
        len = len.saturating_sub(over.div_ceil(G + G));
    }
    if len == 0 {
        return Err(RegionError::TooSmall);
    }
    Ok((memory.start.as_ptr().wrapping_add(first - start), len))
}

impl<M: RegionMap, const G: usize, const R: usize> Mapped<M, G, R> {
    const CHECKED: () =
        assert!(G.is_power_of_two() && G >= WORD && R > 0, "a granule is a power of two and a word at least");

    fn slots(&self) -> &[Slot<M>] {
        // SAFETY: there are no more regions than places for them.
        unsafe { self.slots.get_unchecked(..self.count) }
    }

    fn slots_mut(&mut self) -> &mut [Slot<M>] {
        // SAFETY: as in `slots`.
        unsafe { self.slots.get_unchecked_mut(..self.count) }
    }

    /// Returns the length and the alignment of a layout in granules. A block of no bytes takes one granule.
    #[inline(always)]
    fn measure(layout: Layout) -> (usize, usize) {
        let len = if layout.size() == 0 { 1 } else { layout.size().div_ceil(G) };
        (len, if layout.align() <= G { 1 } else { layout.align() / G })
    }

    /// Returns the region's number and the index of the granule at `address`.
    #[inline(always)]
    fn locate(&self, address: usize) -> Result<(usize, usize), FreeError> {
        let holds = |slot: &Slot<M>| address.wrapping_sub(slot.base.addr()) < slot.len * G;
        let number = self.slots().iter().position(holds).ok_or(FreeError::Foreign)?;
        let offset = address - self.slots[number].base.addr();
        if offset % G == 0 { Ok((number, offset / G)) } else { Err(FreeError::Misaligned) }
    }

    fn number(&self, start: *mut u8) -> Result<usize, RegionError> {
        let starts = |slot: &Slot<M>| slot.memory.start.as_ptr() == start;
        self.slots().iter().position(starts).ok_or(RegionError::Unknown)
    }

    /// Returns whether `memory` overlaps a region, number `except` excepted.
    fn overlaps(&self, memory: Region, except: usize) -> bool {
        let mut slots = self.slots().iter().enumerate();
        slots.any(|(number, slot)| number != except && slot.memory.meets(&memory))
    }

    /// Allocates a region of which nothing is allocated, with the memory of its map. O(regions · log n).
    #[cold]
    #[inline(never)]
    fn allocate_whole<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let fits = |slot: &&mut Slot<M>| {
            let aligned = slot.base.addr() & (layout.align() - 1) == 0;
            aligned && slot.whole_size() >= layout.size() && slot.map.is_free()
        };
        let slot = self.slots_mut().iter_mut().find(fits)?;
        slot.map = M::EMPTY;
        slot.whole = true;
        statistics.allocated(slot.len * G);
        NonNull::new(slot.base)
    }

    /// Checks whether a region that is one block is the block of `layout` at granule `index`.
    fn check_whole(slot: &Slot<M>, index: usize, layout: Layout) -> Result<(), FreeError> {
        if index == 0 && layout.size() <= slot.whole_size() { Ok(()) } else { Err(FreeError::NotABlock) }
    }
}

// SAFETY: a map keeps the same promises in granules of its region.
unsafe impl<M: RegionMap, const G: usize, const R: usize> LayoutPlacement for Mapped<M, G, R> {
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self { slots: [Slot::NONE; R], count: 0 }
    };
    const MAX_REGION: usize = M::MAX_LEN * G;
    const MAX_REGIONS: usize = R;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        let (base, len) = parts::<M, G>(memory)?;
        if self.overlaps(memory, usize::MAX) {
            return Err(RegionError::Overlap);
        }
        let Some(slot) = self.slots.get_mut(self.count) else { return Err(RegionError::TooMany { max: R }) };
        *slot = Slot { memory, base, len, ..Slot::NONE };
        self.count += 1;
        // SAFETY: the caller hands the memory over.
        unsafe { slot.open::<G>() };
        Ok(len * G)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let number = self.number(start)?;
        let old = self.slots[number];
        if old.whole {
            return Err(RegionError::InUse);
        }
        let size = old.memory.size.checked_add(bytes).ok_or(RegionError::Overlap)?;
        let memory = Region { size, ..old.memory };
        let (_, len) = parts::<M, G>(memory)?;
        if self.overlaps(memory, number) {
            return Err(RegionError::Overlap);
        }
        if len <= old.len {
            return Err(RegionError::TooSmall);
        }
        let slot = &mut self.slots[number];
        *slot = Slot { memory, len, ..old };
        // SAFETY: the words move towards the region's new end, within its memory.
        unsafe { slot.map.extend(slot.words::<G>(), len) };
        Ok((len - old.len) * G)
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let number = self.number(start)?;
        let slot = self.slots[number];
        if slot.whole || !slot.map.is_free() {
            return Err(RegionError::InUse);
        }
        self.count -= 1;
        self.slots[number] = self.slots[self.count];
        self.slots[self.count] = Slot::NONE;
        Ok((slot.memory, slot.len * G))
    }

    #[inline(always)]
    fn allocate_counted<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let (len, align) = Self::measure(layout);
        for slot in self.slots_mut() {
            if let Some(index) = slot.map.allocate(len, align) {
                statistics.allocated(M::granted(len, align) * G);
                return NonNull::new(slot.base.wrapping_add(index * G));
            }
        }
        None
    }

    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        self.allocate(layout)
    }

    #[inline(never)]
    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let fast = self.allocate_counted(layout, &mut NoStatistics);
        let start = if fast.is_some() { fast } else { self.allocate_slow(layout, &mut NoStatistics) }?;
        let (len, align) = Self::measure(layout);
        let mut size = M::granted(len, align).saturating_mul(G);
        if let Ok((number, _)) = self.locate(start.addr().get()) {
            if self.slots[number].whole {
                size = self.slots[number].whole_size();
            }
        }
        Some(Grant { start, size })
    }

    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        if M::WHOLE { self.allocate_whole(layout, statistics) } else { None }
    }

    #[inline(always)]
    unsafe fn deallocate_counted<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        let (len, align) = Self::measure(layout);
        let (number, index) = self.locate(start.addr().get())?;
        let slot = &mut self.slots[number];
        if slot.whole {
            Self::check_whole(slot, index, layout)?;
            slot.whole = false;
            // SAFETY: the caller no longer uses the block, which is the whole region.
            unsafe { slot.open::<G>() };
            statistics.freed(slot.len * G);
            return Ok(());
        }
        slot.map.free(index, len, align)?;
        statistics.freed(M::granted(len, align) * G);
        Ok(())
    }

    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        let (number, _) = self.locate(start.addr().get())?;
        let slot = &self.slots[number];
        let (len, align) = Self::measure(layout);
        let size = if slot.whole { slot.len } else { M::granted(len, align) };
        // SAFETY: the caller keeps the contract.
        unsafe { self.deallocate_counted(start, layout, &mut NoStatistics)? };
        Ok(size * G)
    }

    #[inline(always)]
    unsafe fn resize_counted<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller keeps the contract.
        match unsafe { self.resize(start, layout, size) } {
            Some((old, new)) => {
                statistics.resized(old, new);
                true
            }
            None => false,
        }
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let (len, align) = Self::measure(layout);
        let to = if size == 0 { 1 } else { size.div_ceil(G) };
        let (number, index) = self.locate(start.addr().get()).ok()?;
        let slot = &mut self.slots[number];
        if slot.whole {
            return (size <= slot.whole_size()).then_some((slot.len * G, slot.len * G));
        }
        let resized = slot.map.resize(index, len, to, align);
        resized.then(|| (M::granted(len, align) * G, M::granted(to, align) * G))
    }

    /// Keeps nothing.
    fn trim(&mut self) -> bool {
        false
    }

    /// Saves nothing.
    fn set_saving(&mut self, _on: bool) {}

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let (len, align) = Self::measure(layout);
        let (number, index) = self.locate(start.addr().get())?;
        let slot = &self.slots[number];
        if slot.whole { Self::check_whole(slot, index, layout) } else { slot.map.check(index, len, align) }
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(start, layout)
    }

    fn largest_free(&self) -> usize {
        let largest = |slot: &Slot<M>| {
            if M::WHOLE && slot.map.is_free() { slot.whole_size() } else { slot.map.largest() * G }
        };
        self.slots().iter().map(largest).max().unwrap_or(0)
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        let Some(slot) = self.slots().get(region) else { return };
        if slot.whole {
            visit(Run { start: slot.base.addr(), size: slot.len * G, free: false });
            return;
        }
        slot.map.walk(&mut |index, len, free| {
            visit(Run { start: slot.base.addr() + index * G, size: len * G, free })
        });
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.slots().get(n).map(|slot| slot.memory)
    }
}
