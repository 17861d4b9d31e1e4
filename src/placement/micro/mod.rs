//! The placement of small memories: every region with lists of its own.

pub(crate) mod blocks;

use super::{Grant, LayoutPlacement};
use crate::meta::FreeError;
use crate::observe::Run;
use crate::region::{Region, RegionError};
use crate::units::align_up;
use blocks::{Blocks, LISTS, Place, UNIT, WORD, bit_words, units};
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// What lies at the start of each region.
#[repr(C)]
struct Control {
    heads: [u16; LISTS],
    map: u32,
    /// Bytes of the memory as it was claimed, and how many of them are in front of this.
    size: usize,
    skipped: usize,
}

const CONTROL: usize = size_of::<Control>().next_multiple_of(UNIT);

/// Number of a region's first unit. The numbers below are those of lists.
const FIRST: usize = LISTS;

/// Units of the longest region: their numbers, and that of the place behind them, fit 16 bits.
const MAX_LEN: usize = u16::MAX as usize - FIRST;

/// A region: where unit number 0 would be, and how many units there are. Its bits follow the units.
#[derive(Clone, Copy)]
struct Slot {
    origin: *mut u8,
    len: usize,
    /// Where the bit of unit number 0 would be.
    bits: *mut u32,
}

impl Slot {
    const NONE: Self = Self { origin: ptr::null_mut(), len: 0, bits: ptr::null_mut() };

    fn control(&self) -> *mut Control {
        self.origin.wrapping_add(FIRST * UNIT - CONTROL).cast()
    }

    /// The memory as it was claimed.
    fn region(&self) -> Region {
        let control = self.control();
        // SAFETY: the region has its control data, which begins behind the address 0.
        unsafe {
            let start = control.cast::<u8>().wrapping_sub((*control).skipped);
            Region::new(NonNull::new_unchecked(start), (*control).size)
        }
    }

    /// The number behind the last unit.
    const fn end(&self) -> usize {
        FIRST + self.len
    }

    /// Whether `address` lies in a unit.
    #[inline(always)]
    fn holds(&self, address: usize) -> bool {
        Blocks(*self).index(address).wrapping_sub(FIRST) < self.len
    }
}

// SAFETY: `claim` puts control data, units and bits one behind the other; `FIRST` is above the numbers of lists.
unsafe impl Place for Slot {
    const LISTS: usize = LISTS;

    #[inline(always)]
    fn unit(self, index: usize) -> *mut u8 {
        self.origin.wrapping_add(index * UNIT)
    }

    #[inline(always)]
    fn bits(self, index: usize) -> *mut u32 {
        self.bits.wrapping_add(index / WORD)
    }

    #[inline(always)]
    fn head(self, list: usize) -> *mut u16 {
        self.origin.wrapping_add(const { FIRST * UNIT - CONTROL }).cast::<u16>().wrapping_add(list)
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        self.origin.wrapping_add(const { FIRST * UNIT - CONTROL + 2 * LISTS }).cast()
    }

    #[inline(always)]
    fn longest(self) -> usize {
        self.len
    }
}

/// Two-level segregated fit in units of 8 bytes for up to `REGIONS` small regions, each of which holds its own lists: the default of
/// microcontrollers.
///
/// ```text
///  this value         region 0 | region 1 | ..                  three words each
///                        |
///  a region           | lists | units ...                    | boundary bits |
/// ```
///
/// Allocations and frees are O(1) and short, also aligned ones; a block takes its size rounded up to 8 bytes, and one bit. A region's lists
/// take 76 bytes of it on 32-bit targets. A request looks at the regions in the order in which they were claimed. A region has
/// 511 KiB at most; [`Tlsf`](crate::Tlsf) serves larger ones.
///
/// After Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time systems" (ECRTS 2004), with two
/// lists per power of two. Memory that is known to be zero is cleared all the same.
pub struct MicroTlsf<const REGIONS: usize = 4> {
    slots: [Slot; REGIONS],
    count: usize,
}

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use.
unsafe impl<const R: usize> Send for MicroTlsf<R> {}

/// A region's parts as they follow from its memory: where its control data is, and its units.
fn parts(memory: Region) -> Result<(*mut u8, usize), RegionError> {
    let start = memory.start.addr().get();
    let end = start.checked_add(memory.size).ok_or(RegionError::Overlap)? & !(UNIT - 1);
    let first = align_up(start, UNIT).ok_or(RegionError::TooSmall)?;
    let bytes = end.saturating_sub(first).saturating_sub(CONTROL);
    // A word of bits for 32 units, and one more bit.
    let mut len = bytes / UNIT * (WORD * UNIT) / (WORD * UNIT + 4);
    while len > 0 && len * UNIT + bit_words(len) * 4 > bytes {
        len -= 1;
    }
    match len {
        0 => Err(RegionError::TooSmall),
        _ if len > MAX_LEN => Err(RegionError::TooLarge { max: MAX_BYTES }),
        _ => Ok((memory.start.as_ptr().wrapping_add(first - start), len)),
    }
}

/// Bytes of the longest region.
const MAX_BYTES: usize = CONTROL + MAX_LEN * UNIT + bit_words(MAX_LEN) * 4;

/// Clears words, one by one: it is not worth the library's function for it, which takes more code than all of a claim.
///
/// # Safety
///
/// The words are ours to write.
unsafe fn clear(from: *mut u32, words: usize) {
    for word in 0..words {
        // SAFETY: the caller's contract.
        unsafe { from.wrapping_add(word).write_volatile(0) };
    }
}

impl<const R: usize> MicroTlsf<R> {
    #[inline(always)]
    fn first(&self) -> &Slot {
        const { assert!(R > 0, "a heap needs room for at least one region") }
        &self.slots[0]
    }

    fn slots(&self) -> &[Slot] {
        self.slots.get(..self.count).unwrap_or(&[])
    }

    /// The region that holds `address`, which one does.
    #[inline(always)]
    fn slot_of(&self, address: usize) -> &Slot {
        let first = self.first();
        if R == 1 || first.holds(address) { first } else { self.slot_of_other(address) }
    }

    #[cold]
    #[inline(never)]
    fn slot_of_other(&self, address: usize) -> &Slot {
        self.slots().iter().find(|slot| slot.holds(address)).unwrap_or(self.first())
    }

    fn number(&self, start: *mut u8) -> Result<usize, RegionError> {
        let starts = |slot: &Slot| slot.region().start.as_ptr() == start;
        self.slots().iter().position(starts).ok_or(RegionError::Unknown)
    }

    /// Whether `memory` overlaps a region that does not start where it does.
    fn overlaps(&self, memory: Region) -> bool {
        let start = memory.start.addr().get();
        self.slots().iter().map(Slot::region).any(|other| {
            let from = other.start.addr().get();
            from != start && start < from + other.size && from < start + memory.size
        })
    }
}

/// See [`Blocks::take`]: once in the program, for all regions.
#[inline(never)]
unsafe fn take(slot: &Slot, len: usize, mask: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { Blocks(*slot).take(len, mask) }
}

/// See [`Blocks::give`]: once in the program, for frees, resizes and new memory.
#[inline(never)]
unsafe fn give(slot: &Slot, index: usize, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { Blocks(*slot).give(index, len) }
}

/// Changes the length of a block from `old` to `new` units where it is. Whether there was room.
#[inline(never)]
unsafe fn resize(slot: &Slot, index: usize, old: usize, new: usize) -> bool {
    let mut len = old;
    // SAFETY: what was found behind the block is allocated then, and its rest is freed, as is what is cut off.
    unsafe {
        if new > old {
            let found = Blocks(*slot).take_behind(index + old, new - old);
            if found == 0 {
                return false;
            }
            len += found;
        }
        if len > new {
            give(slot, index + new, len - new);
        }
    }
    true
}

/// Units of a block for a layout. Blocks of no bytes take one; they are so rare that the compiler shall branch.
#[inline(always)]
fn units_of(layout: Layout) -> usize {
    match units(layout.size()) {
        0 => one(),
        len => len,
    }
}

#[cold]
#[inline(never)]
fn one() -> usize {
    core::hint::black_box(1)
}

#[inline(always)]
fn granted(start: *mut u8, len: usize) -> Option<Grant> {
    Some(Grant { start: NonNull::new(start)?, size: len * UNIT })
}

// SAFETY: blocks are cut from free memory of a region and come back through `give`; the lists of a region know its memory only.
unsafe impl<const R: usize> LayoutPlacement for MicroTlsf<R> {
    const EMPTY: Self = Self { slots: [Slot::NONE; R], count: 0 };
    const MAX_REGION: usize = MAX_BYTES;
    const KEEPS: bool = false;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        let (start, len) = parts(memory)?;
        let from = memory.start.addr().get();
        if self.overlaps(memory) || self.slots().iter().any(|slot| slot.region().start.addr().get() == from) {
            return Err(RegionError::Overlap);
        }
        let Some(slot) = self.slots.get_mut(self.count) else { return Err(RegionError::TooMany { max: R }) };
        let origin = start.wrapping_add(CONTROL).wrapping_sub(FIRST * UNIT);
        let bits = origin.wrapping_add((FIRST + len) * UNIT).cast::<u32>();
        *slot = Slot { origin, len, bits: bits.wrapping_sub(FIRST / WORD) };
        self.count += 1;
        let slot = *slot;
        // SAFETY: all parts lie in the memory that the caller hands over; its units are an allocated block at first.
        unsafe {
            let control = slot.control();
            clear(control.cast(), LISTS / 2 + 1);
            (*control).size = memory.size;
            (*control).skipped = start.addr() - from;
            clear(bits, bit_words(len));
            give(&slot, FIRST, len);
        }
        Ok(len * UNIT)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let number = self.number(start)?;
        let old = self.slots[number];
        let mut region = old.region();
        region.size = region.size.checked_add(bytes).ok_or(RegionError::Overlap)?;
        let (_, len) = parts(region)?;
        if self.overlaps(region) {
            return Err(RegionError::Overlap);
        }
        if len <= old.len {
            return Err(RegionError::TooSmall);
        }
        let bits = old.origin.wrapping_add((FIRST + len) * UNIT).cast::<u32>();
        let slot = Slot { len, bits: bits.wrapping_sub(FIRST / WORD), ..old };
        self.slots[number] = slot;
        let (from, words) = (old.bits.wrapping_add(FIRST / WORD), bit_words(old.len));
        // SAFETY: the bits move to the region's new end, within its memory; the new units, which begin where the
        // bits were, are an allocated block then.
        unsafe {
            ptr::copy(from, bits, words);
            clear(bits.wrapping_add(words), bit_words(len) - words);
            (*slot.control()).size = region.size;
            give(&slot, old.end(), len - old.len);
        }
        Ok((len - old.len) * UNIT)
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let number = self.number(start)?;
        let slot = self.slots[number];
        let blocks = Blocks(slot);
        // SAFETY: a bit that is set says that the region begins with a free block.
        unsafe {
            if !blocks.is_bound(FIRST) || blocks.free_len(FIRST) != slot.len {
                return Err(RegionError::InUse);
            }
        }
        self.count -= 1;
        self.slots[number] = self.slots[self.count];
        self.slots[self.count] = Slot::NONE;
        Ok((slot.region(), slot.len * UNIT))
    }

    /// From the first region.
    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        let len = units_of(layout);
        // SAFETY: a slot without a region has no room.
        granted(unsafe { take(self.first(), len, layout.align() - 1) }, len)
    }

    /// From any region.
    #[cold]
    #[inline(never)]
    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let len = units_of(layout);
        for slot in self.slots() {
            // SAFETY: the region is there.
            let start = unsafe { take(slot, len, layout.align() - 1) };
            if !start.is_null() {
                return granted(start, len);
            }
        }
        None
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        let grant = self.allocate(layout)?;
        Some((grant, grant.size, 0))
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        if cfg!(debug_assertions) {
            self.check(start, layout)?;
        }
        let len = units_of(layout);
        let slot = self.slot_of(start.addr().get());
        // SAFETY: the block is live, as the caller vouches.
        unsafe { give(slot, Blocks(*slot).index(start.addr().get()), len) };
        Ok(len * UNIT)
    }

    #[inline(always)]
    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let old = units_of(layout);
        // Larger than any region, so that rounding up cannot overflow.
        if size > MAX_BYTES {
            return None;
        }
        let new = units(size).max(1);
        let slot = self.slot_of(start.addr().get());
        // SAFETY: the block is live, as the caller vouches.
        let done = unsafe { resize(slot, Blocks(*slot).index(start.addr().get()), old, new) };
        done.then_some((old * UNIT, new * UNIT))
    }

    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, _start: NonNull<u8>, _layout: Layout) -> Option<usize> {
        None
    }

    /// Nothing is kept.
    fn trim(&mut self) -> bool {
        false
    }

    /// There is nothing to save.
    fn set_saving(&mut self, _on: bool) {}

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let address = start.addr().get();
        let slot = *self.slots().iter().find(|slot| slot.holds(address)).ok_or(FreeError::Foreign)?;
        if layout.size() > MAX_BYTES {
            return Err(FreeError::Foreign);
        }
        // SAFETY: the region is there.
        unsafe { Blocks(slot).check(address, units_of(layout), FIRST, slot.end()) }
    }

    fn largest_free(&self) -> usize {
        // SAFETY: the regions are there.
        let largest = |slot: &Slot| unsafe { Blocks(*slot).largest() };
        self.slots().iter().map(largest).max().unwrap_or(0) * UNIT
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        let Some(&slot) = self.slots().get(region) else { return };
        // SAFETY: the region is there.
        unsafe {
            Blocks(slot).walk(FIRST, slot.end(), &mut |index, len, free| {
                visit(Run { start: slot.unit(index).addr(), size: len * UNIT, free })
            });
        }
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.slots().get(n).map(Slot::region)
    }
}
