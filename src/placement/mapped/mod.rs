//! Placements whose state is a map beside the memory: they never write to the memory that they divide.
//!
//! ```text
//!  a region   | granules ...                          | the map's words |
//! ```
//!
//! [`Mapped`] has a [`RegionMap`] for each of its regions, and turns layouts and addresses into lengths and indices. The map, which knows
//! no addresses, does the rest. [`Apart`] is the counterpart for a segment of a [`Pool`](crate::pool::RawPool), with the words in the
//! host's memory.

#[cfg(feature = "alloc")]
mod apart;
mod map;

#[cfg(feature = "alloc")]
pub use apart::Apart;
pub use map::RegionMap;

use super::{MOST_COPIED, Placement};
use crate::error::FreeError;
use crate::error::misuse::names_kinds;
use crate::observe::Statistics;
use crate::region::DEFAULT_REGIONS;
use crate::region::{Region, RegionError, Run};
use crate::units::align_up;
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// Bytes of a word of a map.
const WORD: usize = size_of::<u32>();

/// Divides up to `REGIONS` regions into granules of `GRANULE` bytes, each with a [`RegionMap`] at the region's end.
///
/// A request tries the regions in the order in which they were claimed. Every free is checked against the map, so freeing a block twice,
/// a part of a block or a foreign block is an error at every [hardening level](crate::harden).
pub struct Mapped<M: RegionMap, const GRANULE: usize, const REGIONS: usize = DEFAULT_REGIONS> {
    slots: [Slot<M>; REGIONS],
    count: usize,
}

/// A region and its map.
#[derive(Clone, Copy)]
struct Slot<M> {
    /// The region's memory, or null if there is no region.
    start: *mut u8,
    size: usize,
    /// The first granule.
    base: *mut u8,
    /// The region's map, closed while the region is allocated as one block.
    map: M,
    /// Number of the region's granules while it is allocated as one block, else 0.
    whole: usize,
}

// SAFETY: the pointers lead to memory that `claim` got for exclusive use.
unsafe impl<M: RegionMap + Send, const G: usize, const R: usize> Send for Mapped<M, G, R> {}

impl<M: RegionMap> Slot<M> {
    /// An empty slot. All of its bytes are zero, so a heap in a static takes no room in flash.
    const NONE: Self =
        Self { start: ptr::null_mut(), size: 0, base: ptr::null_mut(), map: M::EMPTY, whole: 0 };

    fn memory(&self) -> Region {
        // SAFETY: a region has a start.
        Region::new(unsafe { NonNull::new_unchecked(self.start) }, self.size)
    }

    /// Returns the number of granules of the region.
    fn len(&self) -> usize {
        self.map.granules() + self.whole
    }

    /// Opens the map, with all granules free.
    ///
    /// # Safety
    ///
    /// Nothing else may use the region, which must have `len` granules.
    unsafe fn open<const G: usize>(&mut self, len: usize) {
        let words = words::<M, G>(self.memory(), self.base, len);
        self.whole = 0;
        // SAFETY: there is room for the words after the granules.
        unsafe { self.map.open(words, self.base.addr() / G, len) }
    }

    /// Returns the bytes that the region counts for, including its map's if one request can get them all.
    fn size<const G: usize>(&self) -> usize {
        if M::WHOLE { (self.memory().end() - self.base.addr()) & !(G - 1) } else { self.len() * G }
    }

    /// Returns whether the region is one block, at `address`.
    fn is_whole(&self, address: usize) -> bool {
        M::WHOLE && self.whole > 0 && address == self.base.addr()
    }
}

/// Returns the first granule of a region and how many granules it has.
fn parts<M: RegionMap, const G: usize>(memory: Region) -> Result<(*mut u8, usize), RegionError> {
    let start = memory.start.addr().get();
    let end = memory.checked_end()? & !(WORD - 1);
    let first = align_up(start, G).ok_or(RegionError::TooSmall)?;
    let bytes = end.saturating_sub(first);
    let most = bytes / G;
    if most > M::MAX_LEN {
        return Err(RegionError::TooLarge { max: M::MAX_LEN.saturating_mul(G) });
    }
    // Find the greatest length that leaves room for its map, bit by bit.
    let mut len = 0;
    for bit in (0..usize::BITS).rev() {
        let longer = len | 1 << bit;
        if longer <= most && longer * G + M::words(first / G, longer) * WORD <= bytes {
            len = longer;
        }
    }
    if len == 0 {
        return Err(RegionError::TooSmall);
    }
    Ok((memory.start.as_ptr().wrapping_add(first - start), len))
}

/// Returns the words of a region's map, which lie after its granules, up to its last whole word.
fn words<M: RegionMap, const G: usize>(memory: Region, base: *mut u8, len: usize) -> *mut u32 {
    let end = memory.end() & !(WORD - 1);
    let start = end - M::words(base.addr() / G, len) * WORD;
    base.wrapping_add(start - base.addr()).cast()
}

/// Returns the length of a block of `size` bytes in granules. A block of no bytes takes one granule.
#[inline(always)]
fn length<const G: usize>(size: usize) -> usize {
    // Signed arithmetic takes an instruction less on most machines; a layout's size fits it.
    (size as isize - 1).max(0) as usize / G + 1
}

/// Limits a length or an alignment in granules to more than any region has, so that sums with an index do not wrap around. The compiler
/// knows that sizes in a layout are less.
#[inline(always)]
pub(super) fn limited(granules: usize) -> usize {
    granules.min(usize::MAX / 4)
}

/// Returns the shape of a request.
#[inline(always)]
fn shape<M: RegionMap, const G: usize>(size: usize, align: usize) -> M::Shape {
    M::shape(length::<G>(size), (align - 1) / G + 1)
}

impl<M: RegionMap, const G: usize, const R: usize> Mapped<M, G, R> {
    const CHECKED: () =
        assert!(G.is_power_of_two() && G >= WORD && R > 0, "a granule is a power of two and a word at least");

    fn slots(&self) -> &[Slot<M>] {
        // SAFETY: there are at most as many regions as slots.
        unsafe { self.slots.get_unchecked(..self.count) }
    }

    fn slots_mut(&mut self) -> &mut [Slot<M>] {
        // SAFETY: as in `slots`.
        unsafe { self.slots.get_unchecked_mut(..self.count) }
    }

    /// Returns the maps of all regions.
    pub(super) fn maps(&mut self) -> impl Iterator<Item = &mut M> {
        self.slots_mut().iter_mut().map(|slot| &mut slot.map)
    }

    /// Returns the first slot, used or not, from which the others can be reached.
    #[inline(always)]
    fn first(this: NonNull<Self>) -> NonNull<Slot<M>> {
        // SAFETY: it is a field of an existing value.
        unsafe { NonNull::new_unchecked(&raw mut (*this.as_ptr()).slots) }.cast()
    }

    /// Returns the slot after `slot`, if it has a region. Not inlined in firmware for Arm, where nearly all heaps have one region, and a
    /// call costs no registers on the common path.
    #[cfg_attr(all(target_os = "none", target_arch = "arm"), inline(never), cold)]
    #[cfg_attr(not(all(target_os = "none", target_arch = "arm")), inline(always))]
    fn behind(this: NonNull<Self>, slot: NonNull<Slot<M>>) -> Option<NonNull<Slot<M>>> {
        // SAFETY: it is a field of this value. It is read only here, since the common path does not need it.
        let count = unsafe { (&raw const (*this.as_ptr()).count).read_volatile() };
        // SAFETY: there are at most as many regions as slots, and `slot` is one of these.
        let (next, end) = unsafe { (slot.add(1), Self::first(this).add(count)) };
        (next < end).then_some(next)
    }

    /// Returns the region with a granule at `address`, and the granule's index. The region may be changed if `this` may be.
    #[inline(always)]
    fn locate(this: NonNull<Self>, address: usize) -> Option<(NonNull<Slot<M>>, usize)> {
        let mut slot = Self::first(this);
        loop {
            // SAFETY: `first` and `behind` return slots of this value.
            let (base, len) = unsafe { (slot.as_ref().base, slot.as_ref().map.granules()) };
            // An address inside a granule becomes an index beyond all others.
            let index = address.wrapping_sub(base.addr()).rotate_right(G.ilog2());
            if index < len {
                return Some((slot, index));
            }
            slot = Self::behind(this, slot)?;
        }
    }

    /// Returns the number of the region that starts at `start`.
    fn number(&self, start: *mut u8) -> Result<usize, RegionError> {
        let starts = |slot: &Slot<M>| slot.start == start;
        self.slots().iter().position(starts).ok_or(RegionError::Unknown)
    }

    /// Returns whether `memory` overlaps a region other than number `except`.
    fn overlaps(&self, memory: Region, except: usize) -> bool {
        let mut slots = self.slots().iter().enumerate();
        slots.any(|(number, slot)| number != except && slot.memory().meets(&memory))
    }

    /// Allocates a block in the first region that has one.
    #[cfg_attr(target_os = "none", inline)]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn allocate_parts<S: Statistics>(
        &mut self,
        size: usize,
        align: usize,
        statistics: &mut S,
    ) -> Option<NonNull<u8>> {
        let shape = shape::<M, G>(size, align);
        let this = NonNull::from(self);
        let mut at = Self::first(this);
        loop {
            // SAFETY: as in `locate`; this value is borrowed for changes.
            let slot = unsafe { at.as_mut() };
            if let Some(index) = slot.map.allocate(shape) {
                statistics.allocated(M::granted(shape) * G);
                // SAFETY: a block lies in its region.
                return Some(unsafe { NonNull::new_unchecked(slot.base.wrapping_add(index * G)) });
            }
            at = Self::behind(this, at)?;
        }
    }

    /// Allocates a whole region without live blocks, including the memory of its map. O(regions · log n).
    #[cold]
    #[inline(never)]
    fn allocate_whole<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let fits = |slot: &&mut Slot<M>| {
            let aligned = slot.base.addr() & (layout.align() - 1) == 0;
            aligned && slot.size::<G>() >= layout.size() && slot.map.is_free()
        };
        let slot = self.slots_mut().iter_mut().find(fits)?;
        slot.whole = slot.map.granules();
        slot.map.close();
        statistics.allocated(slot.size::<G>());
        NonNull::new(slot.base)
    }

    /// Frees a block that is a whole region, or returns why a block cannot be freed.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::free`].
    #[cold]
    #[inline(never)]
    unsafe fn free_rest<S: Statistics>(
        &mut self,
        start: usize,
        shape: M::Shape,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        let Some(slot) = self.slots_mut().iter_mut().find(|slot| slot.is_whole(start)) else {
            return if names_kinds() { self.check_at(start, shape) } else { Ok(()) }
                .and(Err(FreeError::NotABlock));
        };
        statistics.freed(slot.size::<G>());
        // SAFETY: the caller no longer uses the block, which is the whole region.
        unsafe { slot.open::<G>(slot.whole) };
        Ok(())
    }

    /// Checks whether a live block of this shape is at `address`.
    fn check_at(&self, address: usize, shape: M::Shape) -> Result<(), FreeError> {
        if let Some((slot, index)) = Self::locate(NonNull::from(self), address) {
            // SAFETY: `locate` returns regions.
            return unsafe { slot.as_ref() }.map.check(index, shape);
        }
        let holds = |slot: &&Slot<M>| address.wrapping_sub(slot.base.addr()) < slot.len() * G;
        match self.slots().iter().find(holds) {
            None => Err(FreeError::Foreign),
            Some(_) if address % G != 0 => Err(FreeError::Misaligned),
            Some(slot) if slot.is_whole(address) => Ok(()),
            Some(_) => Err(FreeError::NotABlock),
        }
    }
}

// SAFETY: a map keeps the same promises in granules of its region.
unsafe impl<M: RegionMap, const G: usize, const R: usize> Placement for Mapped<M, G, R> {
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self { slots: [Slot::NONE; R], count: 0 }
    };
    const MAX_REGION: usize = M::MAX_LEN.saturating_mul(G);
    const MAX_REGIONS: usize = R;
    const MOVES_TO_SHRINK: bool = M::MOVES_TO_SHRINK;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        let (base, len) = parts::<M, G>(memory)?;
        if self.overlaps(memory, usize::MAX) {
            return Err(RegionError::Overlap);
        }
        let Some(slot) = self.slots.get_mut(self.count) else { return Err(RegionError::TooMany { max: R }) };
        *slot = Slot { start: memory.start.as_ptr(), size: memory.size, base, ..Slot::NONE };
        self.count += 1;
        // SAFETY: the caller hands the memory over.
        unsafe { slot.open::<G>(len) };
        statistics.grown(slot.size::<G>());
        Ok(())
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        let number = self.number(start)?;
        let slot = self.slots[number];
        let Slot { base, map, whole, .. } = slot;
        if whole > 0 {
            return Err(RegionError::InUse);
        }
        let old = slot.memory();
        let memory = Region { size: old.size.checked_add(bytes).ok_or(RegionError::Overlap)?, ..old };
        let (_, mut len) = parts::<M, G>(memory)?;
        if self.overlaps(memory, number) {
            return Err(RegionError::Overlap);
        }
        let mut target = words::<M, G>(memory, base, len);
        // A map can only move towards the end.
        let first = words::<M, G>(old, base, map.granules());
        while target < first && len > map.granules() {
            len -= 1;
            target = words::<M, G>(memory, base, len);
        }
        let mut new = Slot { size: memory.size, ..slot };
        if len <= map.granules() || M::WHOLE && new.size::<G>() <= slot.size::<G>() {
            return Err(RegionError::TooSmall);
        }
        // SAFETY: the words move towards the region's new end, within its memory.
        unsafe { new.map.extend(target, len) };
        self.slots[number] = new;
        statistics.grown(new.size::<G>() - slot.size::<G>());
        Ok(())
    }

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        let number = self.number(start)?;
        let slot = self.slots[number];
        if !slot.map.is_free() {
            return Err(RegionError::InUse);
        }
        self.count -= 1;
        self.slots[number] = self.slots[self.count];
        self.slots[self.count] = Slot::NONE;
        statistics.shrunk(slot.size::<G>());
        Ok(slot.memory())
    }

    #[inline(always)]
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.allocate_parts(layout.size(), layout.align(), statistics)
    }

    #[inline(always)]
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        if M::WHOLE { self.allocate_whole(layout, statistics) } else { None }
    }

    #[inline(always)]
    fn has_shorter(&self, layout: Layout, size: usize) -> bool {
        let (old, new) = (shape::<M, G>(layout.size(), layout.align()), shape::<M, G>(size, layout.align()));
        let shorter = length::<G>(size) < length::<G>(layout.size());
        shorter
            && size <= MOST_COPIED
            && self.slots.first().is_some_and(|slot| slot.map.has_shorter(old, new))
    }

    #[inline(always)]
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        let start = start.addr().get();
        let shape = shape::<M, G>(layout.size(), layout.align());
        if let Some((mut slot, index)) = Self::locate(NonNull::from(&mut *self), start) {
            // SAFETY: `locate` returns regions of this value, which is borrowed for changes.
            if let Ok(freed) = unsafe { slot.as_mut() }.map.free(index, shape) {
                statistics.freed(freed * G);
                return Ok(());
            }
        }
        // SAFETY: the caller keeps the contract.
        unsafe { self.free_rest(start, shape, statistics) }
    }

    #[inline(always)]
    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // `length` knows only sizes that a layout can have.
        if size > isize::MAX as usize {
            return false;
        }
        let Some((mut slot, index)) = Self::locate(NonNull::from(&mut *self), start.addr().get()) else {
            let fits = |slot: &Slot<M>| slot.is_whole(start.addr().get()) && size <= slot.size::<G>();
            return self.slots().iter().any(fits);
        };
        let (old, new) = (shape::<M, G>(layout.size(), layout.align()), shape::<M, G>(size, layout.align()));
        // SAFETY: as in `free`.
        let Some(counted) = unsafe { slot.as_mut() }.map.resize(index, old, new) else { return false };
        statistics.resized(M::granted(old) * G, counted * G);
        true
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let address = start.addr().get();
        self.check_at(address, shape::<M, G>(layout.size(), layout.align()))?;
        // A closed map does not know the length.
        let exceeds = |slot: &Slot<M>| slot.is_whole(address) && layout.size() > slot.size::<G>();
        if self.slots().iter().any(exceeds) { Err(FreeError::NotABlock) } else { Ok(()) }
    }

    fn largest_free(&self) -> usize {
        let largest = |slot: &Slot<M>| {
            if M::WHOLE && slot.map.is_free() { slot.size::<G>() } else { slot.map.largest() * G }
        };
        self.slots().iter().map(largest).max().unwrap_or(0)
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        let Some(slot) = self.slots().get(region) else { return };
        if slot.whole > 0 {
            visit(Run { start: slot.base.addr(), size: slot.size::<G>(), free: false });
            return;
        }
        slot.map.walk(&mut |index, len, free| {
            visit(Run { start: slot.base.addr() + index * G, size: len * G, free })
        });
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.slots().get(n).map(Slot::memory)
    }
}
