//! Two-level segregated fit: every region has its own lists.

mod fresh;
mod slot;

use super::blocks::granules::{GRANULE, WORD, bit_words, granules, opaque};
use super::blocks::{Blocks, Found, Place};
use super::{MOST_COPIED, Placement};
use crate::error::FreeError;
use crate::observe::{NoStatistics, Statistics};
use crate::region::DEFAULT_REGIONS;
use crate::region::{Region, RegionError, Run};
use crate::units::{Index, align_up};
use core::alloc::Layout;
use core::hint::assert_unchecked;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use fresh::Fresh;
use slot::{Record, Slot};

/// Two-level segregated fit in granules of 8 bytes, for up to `REGIONS` regions, each of which has its own lists.
///
/// ```text
///  this value         region 0 | region 1 | ..                  three words each
///                        |
///  a region           | granules ...                    | lists | boundary bits |
/// ```
///
/// Allocating and freeing are O(1), whatever the alignment. Blocks have no headers: a block takes its size rounded up to 8 bytes, and one
/// bit. A request tries the regions in the order in which they were claimed. Memory skipped for alignment becomes a free block.
///
/// After Masmano, Ripoll, Crespo and Real, "TLSF: a new dynamic memory allocator for real-time systems" (ECRTS 2004), with `SUBLISTS`
/// lists per power of two, itself a power of two. A request tries the list for its own length first, so that it finds a just freed block
/// of the same size. On hosts it examines up to 16 blocks of that list before it fails, and a request for zeroed memory does not clear
/// memory that was zero when its region was claimed and has not been used since.
///
/// `W` is the word of free blocks and lists: `u32` for regions of up to 32 GiB, or `u16` for regions of up to 511 KiB, whose lists take
/// half the memory. A region has as many lists as its length needs: in a region of 32 KiB they take 376 bytes with `u32` and 8 lists per
/// power of two, and 80 bytes with [`MicroTlsf`].
///
/// `CHECKED` is the [hardening level](crate::harden): if it is true, each free checks that the block lies in a region and that free
/// neighbours have the same length at both ends, and a block leaves its list only if its neighbours there point back to it. The checks
/// are on by default where there is an operating system. Firmware can turn them on: they take 316 bytes of code on Cortex-M3.
pub struct Tlsf<
    W = u32,
    const REGIONS: usize = DEFAULT_REGIONS,
    const SUBLISTS: usize = 8,
    const CHECKED: bool = { !cfg!(target_os = "none") },
    const BEST: bool = false,
> {
    slots: [Slot<W, SUBLISTS, CHECKED, BEST>; REGIONS],
    count: usize,
}

/// The smallest [`Tlsf`], the default of microcontrollers: regions of up to 511 KiB, two lists per power of two.
pub type MicroTlsf<const REGIONS: usize = 4, const CHECKED: bool = { !cfg!(target_os = "none") }> =
    Tlsf<u16, REGIONS, 2, CHECKED>;

/// A [`Tlsf`] with one region of up to 511 KiB, and eight lists per power of two.
pub type Tlsf16 = Tlsf<u16, 1, 8>;

// SAFETY: the pointers lead to memory that `claim` got for exclusive use.
unsafe impl<W, const R: usize, const SL: usize, const C: bool, const B: bool> Send for Tlsf<W, R, SL, C, B> {}

/// Whether a request examines several blocks of its own list before it fails. Not in firmware, where failing requests are as fast as
/// others.
const CARES: bool = !cfg!(target_os = "none");

/// Bytes of a word of boundary bits.
const BITS_WORD: usize = WORD / 8;

/// The parts of a region, computed from its memory.
struct Parts {
    /// The first byte in use.
    start: *mut u8,
    /// Number of granules.
    len: usize,
    /// Bytes of the lists and the record.
    control: usize,
}

impl<W: Index, const SL: usize, const C: bool, const B: bool> Slot<W, SL, C, B> {
    /// Bytes of the longest region.
    const MAX_BYTES: usize = Self::bytes_for(Self::MAX_LEN);

    /// Returns the bytes of a region of `len` granules.
    const fn bytes_for(len: usize) -> usize {
        let bytes = len * GRANULE + bit_words(len) * BITS_WORD;
        bytes + Self::control(bytes + Self::control(usize::MAX))
    }

    fn parts(memory: Region) -> Result<Parts, RegionError> {
        let start = memory.start.addr().get();
        let end = memory.checked_end()? & !(GRANULE - 1);
        let first = align_up(start, GRANULE).ok_or(RegionError::TooSmall)?;
        let control = Self::control(end.wrapping_sub(first));
        // 32 granules share a word of bits; one more bit follows that of the last granule.
        let Some(bytes) = end.checked_sub(first + control + BITS_WORD) else {
            return Err(RegionError::TooSmall);
        };
        let (words, rest) =
            (bytes / (WORD * GRANULE + BITS_WORD), bytes % (WORD * GRANULE + BITS_WORD) / GRANULE);
        let len = words * WORD + if rest < WORD { rest } else { WORD - 1 };
        match len {
            _ if len < Blocks::<Self>::MIN => Err(RegionError::TooSmall),
            _ if len > Self::MAX_LEN => Err(RegionError::TooLarge { max: Self::MAX_BYTES }),
            _ => Ok(Parts { start: memory.start.as_ptr().wrapping_add(first - start), len, control }),
        }
    }

    /// Returns the region with these parts.
    fn of(parts: &Parts) -> Self {
        let origin = parts.start.wrapping_add(Self::FRONT).wrapping_sub(Self::FIRST * GRANULE);
        let end = origin.wrapping_add((Self::FIRST + parts.len) * GRANULE);
        let bits = end.wrapping_add(parts.control - Self::FRONT).cast::<u32>();
        let bits = bits.wrapping_sub(Self::FIRST / WORD);
        Self { origin, len: parts.len, bits, fresh: Fresh::NONE, word: PhantomData }
    }

    /// Returns the words of boundary bits.
    fn all_bits(self) -> *mut u32 {
        self.bits.wrapping_add(Self::FIRST / WORD)
    }
}

/// Clears words, on 32-bit targets one by one: the library's function takes more code than a whole claim.
///
/// # Safety
///
/// The caller must own the words.
unsafe fn clear(from: *mut u32, words: usize) {
    if usize::BITS > 32 {
        // SAFETY: the caller's contract.
        return unsafe { from.write_bytes(0, words) };
    }
    for word in 0..words {
        // SAFETY: the caller's contract.
        unsafe { from.wrapping_add(word).write_volatile(0) };
    }
}

impl<W: Index, const R: usize, const SL: usize, const C: bool, const B: bool> Tlsf<W, R, SL, C, B> {
    /// Returns the bytes of an arena of at least `len` granules, at any start address.
    pub(crate) const fn arena(len: u128) -> usize {
        if len > Slot::<W, SL, C, B>::MAX_LEN as u128 {
            return usize::MAX;
        }
        // Alignment may cost up to a granule at either end.
        Slot::<W, SL, C, B>::bytes_for(len as usize) + 2 * GRANULE
    }

    /// Fewest granules of a block.
    pub(crate) const MIN: usize = Blocks::<Slot<W, SL, C, B>>::MIN;

    /// Returns `size`, or the bytes of the smallest block if that has several granules and is larger.
    #[inline(always)]
    const fn at_least(size: usize) -> usize {
        if Self::MIN > 1 && size < Self::MIN * GRANULE { Self::MIN * GRANULE } else { size }
    }

    /// Returns the granules of a block of `size` bytes; a block of no bytes takes at least one.
    #[inline(always)]
    const fn granules_of(size: usize) -> usize {
        granules(if Self::MIN == 1 && size == 0 { 1 } else { Self::at_least(size) })
    }

    /// Returns the first slot, from which the others can be reached.
    #[inline(always)]
    fn first(&self) -> *const Slot<W, SL, C, B> {
        const { assert!(R > 0, "a heap needs room for at least one region") }
        self.slots.as_ptr()
    }

    fn slots(&self) -> &[Slot<W, SL, C, B>] {
        // SAFETY: there are at most as many regions as slots.
        unsafe { self.slots.get_unchecked(..self.count) }
    }

    /// Returns the region with a granule that starts at `address`, and the granule's number. With `REGIONS` of 1, always returns that
    /// region.
    #[inline(always)]
    fn locate(&self, address: usize) -> Option<(&Slot<W, SL, C, B>, usize)> {
        let mut slot = self.first();
        // SAFETY: `behind` returns regions.
        unsafe {
            // The first slot exists even if there is no region.
            while R > 1 && !(*slot).has((*slot).starting(address)) {
                slot = self.behind(slot)?;
            }
            Some((&*slot, (*slot).starting(address)))
        }
    }

    /// Returns the slot after `slot`, if it has a region.
    #[inline(always)]
    fn behind(&self, slot: *const Slot<W, SL, C, B>) -> Option<*const Slot<W, SL, C, B>> {
        let next = slot.wrapping_add(1);
        // SAFETY: it is a field of this value. It is read only here, since the common path does not need it.
        let count = unsafe { (&raw const self.count).read_volatile() };
        (next < self.slots.as_ptr().wrapping_add(count)).then_some(next)
    }

    /// Allocates a block, and counts it. A request for no bytes finds none. The parameters are those of the global allocator, in its
    /// order, so that no register has to be moved.
    #[cfg_attr(target_os = "none", inline)]
    #[cfg_attr(target_family = "wasm", inline(never))]
    #[cfg_attr(not(any(target_os = "none", target_family = "wasm")), inline(always))]
    fn allocate_parts<S: Statistics>(
        &mut self,
        size: usize,
        align: usize,
        statistics: &mut S,
    ) -> Option<NonNull<u8>> {
        let (len, mask) = (granules(Self::at_least(size)), align - 1);
        if Self::MIN == 1 && len == 0 {
            return None;
        }
        let len = opaque(len);
        // The first slot exists even if there is no region: it then has no room.
        const { assert!(R > 0, "a heap needs room for at least one region") }
        let mut slot = self.slots.as_mut_ptr();
        let mut need = len + mask / GRANULE;
        // SAFETY: the regions are there.
        unsafe {
            loop {
                if let Some(found) = Blocks(*slot).find(need) {
                    statistics.allocated(len * GRANULE);
                    let start = if (*slot).fresh.is_known() {
                        Self::cut_and_tell(slot, found, len, need, mask)
                    } else {
                        Blocks(*slot).cut(found, len, need, mask)
                    };
                    return Some(NonNull::new_unchecked(start));
                }
                slot = self.behind(slot)?.cast_mut();
                // Keeps the compiler from hoisting the part of the search that is equal for all regions out of the loop.
                need = opaque(need);
            }
        }
    }

    /// Returns the bytes that a block of `size` bytes takes.
    #[inline(always)]
    pub(in crate::placement) const fn block_size(size: usize) -> usize {
        Self::granules_of(size) * GRANULE
    }

    /// Allocates a block of `size` bytes. A request for no bytes finds none.
    #[inline(always)]
    pub(in crate::placement) fn allocate_block(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let fast = self.allocate_parts(size, align, &mut NoStatistics);
        if fast.is_some() { fast } else { self.allocate_with_care(size, align) }
    }

    /// Allocates a part of the found block, and removes it from the memory known to be zero.
    ///
    /// # Safety
    ///
    /// As for [`Blocks::cut`].
    #[inline(never)]
    unsafe fn cut_and_tell(
        slot: *mut Slot<W, SL, C, B>,
        found: Found,
        len: usize,
        need: usize,
        mask: usize,
    ) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe {
            let start = Blocks(*slot).cut(found, len, need, mask);
            (*slot).fresh.touch(start.addr(), len * GRANULE);
            start
        }
    }

    /// Allocates a block when [`Self::allocate_parts`] finds none, by a longer search of the request's own list.
    #[inline(never)]
    fn allocate_with_care(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let (len, mask) = (granules(Self::at_least(size)), align - 1);
        let need = len.checked_add(mask / GRANULE).filter(|_| len > 0)?;
        for slot in &mut self.slots[..self.count] {
            // SAFETY: the regions are there.
            unsafe {
                if let Some(found) = Blocks(*slot).search(need) {
                    return Some(NonNull::new_unchecked(Self::cut_and_tell(slot, found, len, need, mask)));
                }
            }
        }
        None
    }

    /// Frees `size` bytes, and counts them. Firmware has one copy, for frees, resizes and new memory; on hosts, each caller inlines it.
    ///
    /// # Errors
    ///
    /// Those of a check, with nothing changed, if this placement checks.
    ///
    /// # Safety
    ///
    /// The bytes must be a live block, or part of one, that is not used any more.
    #[cfg_attr(any(target_os = "none", target_family = "wasm"), inline(never))]
    #[cfg_attr(not(any(target_os = "none", target_family = "wasm")), inline(always))]
    unsafe fn free_block<S: Statistics>(
        &mut self,
        start: *mut u8,
        size: usize,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        let len = granules(size);
        // A block of no bytes has a granule. The inner call keeps the compiler from turning the branch into two selects.
        let len = opaque(if Self::MIN == 1 && len == 0 { opaque(1) } else { len });
        let Some((slot, index)) = self.locate(start.addr()) else {
            // Without checks, an invalid free is ignored, since a report takes code.
            return if C { Err(self.why_not(start.addr())) } else { Ok(()) };
        };
        if !C {
            // The free can no longer fail, and in this order the code is shorter.
            statistics.freed(len * GRANULE);
        } else if R == 1 && !slot.has(index) {
            return Err(self.why_not(start.addr()));
        }
        // SAFETY: the caller's contract.
        if !unsafe { Blocks(*slot).free(index, len) } {
            return Err(FreeError::AlreadyFree);
        }
        if C {
            statistics.freed(len * GRANULE);
        }
        Ok(())
    }

    /// Returns why there is no block at `address`, which is not the start of a granule.
    #[cold]
    #[inline(never)]
    fn why_not(&self, address: usize) -> FreeError {
        let is_within = self.slots().iter().any(|slot| slot.holds(address));
        if is_within { FreeError::Misaligned } else { FreeError::Foreign }
    }

    /// Removes the memory from the ranges known to be zero.
    #[inline(never)]
    fn tell(&mut self, start: usize, size: usize) {
        self.slots.iter_mut().for_each(|slot| slot.fresh.touch(start, size));
    }

    fn number(&self, start: *mut u8) -> Result<usize, RegionError> {
        let starts = |slot: &Slot<W, SL, C, B>| slot.region().start.as_ptr() == start;
        self.slots().iter().position(starts).ok_or(RegionError::Unknown)
    }

    /// Returns whether `memory` overlaps a region other than number `except`.
    fn overlaps(&self, memory: Region, except: usize) -> bool {
        let mut slots = self.slots().iter().enumerate();
        slots.any(|(number, slot)| number != except && slot.region().meets(&memory))
    }
}

// SAFETY: blocks are cut from free memory of a region and return to it through `free_block`; the lists of a region have only its memory.
unsafe impl<W: Index, const R: usize, const SL: usize, const C: bool, const B: bool> Placement
    for Tlsf<W, R, SL, C, B>
{
    const EMPTY: Self = Self { slots: [Slot::NONE; R], count: 0 };
    const MAX_REGION: usize = Slot::<W, SL, C, B>::MAX_BYTES;
    const MAX_REGIONS: usize = R;
    const MOVES_TO_SHRINK: bool = B;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        let parts = Slot::<W, SL, C, B>::parts(memory)?;
        let Parts { start, len, control } = parts;
        let from = memory.start.addr().get();
        if self.overlaps(memory, usize::MAX) {
            return Err(RegionError::Overlap);
        }
        let Some(slot) = self.slots.get_mut(self.count) else { return Err(RegionError::TooMany { max: R }) };
        *slot = Slot::of(&parts);
        if memory.zeroed {
            slot.fresh = Fresh::new(slot.granule(slot.first()).addr(), slot.granule(slot.end()).addr());
        }
        self.count += 1;
        let slot = *slot;
        statistics.grown(len * GRANULE);
        statistics.found(len * GRANULE);
        // SAFETY: all parts lie in the memory that the caller hands over; its granules are one allocated block at first.
        unsafe {
            if Slot::<W, SL, C, B>::IN_FRONT {
                clear(start.cast(), (control - size_of::<Record>()) / 4);
                clear(slot.all_bits(), bit_words(len));
            } else {
                clear(slot.granule(slot.end()).cast(), control / 4 + bit_words(len));
            }
            (*slot.record()).size = memory.size;
            (*slot.record()).skipped = start.addr() - from;
            // Ignore errors: new memory cannot be free already.
            let _ = self.free_block(slot.granule(slot.first()), len * GRANULE, statistics);
        }
        Ok(())
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        let number = self.number(start)?;
        let old = self.slots[number];
        let mut region = old.region();
        let from = region.end();
        let more = gap.checked_add(bytes).ok_or(RegionError::Overlap)?;
        region.size = region.size.checked_add(more).ok_or(RegionError::Overlap)?;
        let parts = Slot::<W, SL, C, B>::parts(region)?;
        if self.overlaps(region, number) {
            return Err(RegionError::Overlap);
        }
        // The new memory up to the gap, and from its end on.
        let index = |address: usize| address.wrapping_sub(old.origin.addr()) / GRANULE;
        let end = old.first() + parts.len;
        let (stop, next) =
            if gap == 0 { (end, end) } else { (index(from), index(from + gap + (GRANULE - 1))) };
        if parts.len <= old.len || next > end {
            return Err(RegionError::TooSmall);
        }
        let slot = Slot::<W, SL, C, B> { fresh: old.fresh, ..Slot::of(&parts) };
        self.slots[number] = slot;
        let (bits, words) = (slot.all_bits(), bit_words(old.len));
        // SAFETY: the bits move to the region's new end, within its memory, and then the lists, if these come before the bits; the new
        // granules, which begin where the lists or bits were, are then an allocated block.
        unsafe {
            ptr::copy(old.all_bits(), bits, words);
            clear(bits.wrapping_add(words), bit_words(parts.len) - words);
            if !Slot::<W, SL, C, B>::IN_FRONT {
                let (from, to) = (old.granule(old.end()), slot.granule(end));
                let bytes = old.all_bits().addr() - from.addr();
                ptr::copy(from, to, bytes);
                clear(to.wrapping_add(bytes).cast(), (parts.control - bytes) / 4);
            }
            (*slot.record()).size = region.size;
            // If the memory before the new granules is damaged, these stay allocated.
            for part in [old.end()..stop, next..end] {
                if !part.is_empty() {
                    let _ =
                        self.free_block(slot.granule(part.start), part.len() * GRANULE, &mut NoStatistics);
                }
            }
        }
        statistics.grown((stop - old.end() + end - next) * GRANULE);
        Ok(())
    }

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        let number = self.number(start)?;
        let slot = self.slots[number];
        let blocks = Blocks(slot);
        // SAFETY: a set bit says that the region begins with a free block.
        unsafe {
            if !blocks.is_bound(slot.first()) || blocks.free_len(slot.first()) != slot.len {
                return Err(RegionError::InUse);
            }
        }
        self.count -= 1;
        self.slots[number] = self.slots[self.count];
        self.slots[self.count] = Slot::NONE;
        statistics.shrunk(slot.len * GRANULE);
        Ok(slot.region())
    }

    #[inline(always)]
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.allocate_parts(layout.size(), layout.align(), statistics)
    }

    /// Allocates a granule for a request for no bytes. On hosts, searches more blocks for all others.
    #[inline(always)]
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        // No layout of at least a byte has the largest alignment, and no block has it.
        if layout.size() > 0 || layout.align() > isize::MAX as usize {
            let block =
                if CARES { self.allocate_with_care(layout.size(), layout.align())? } else { return None };
            statistics.allocated(Self::block_size(layout.size()));
            return Some(block);
        }
        self.allocate_parts(1, layout.align(), statistics)
    }

    fn allocate_zeroed<S: Statistics>(
        &mut self,
        layout: Layout,
        statistics: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        if cfg!(target_os = "none") {
            return None;
        }
        let before = self.slots;
        let block = self.allocate(layout, statistics)?;
        let start = block.addr().get();
        let slot = before.iter().find(|slot| slot.holds(start))?;
        let (front, back) = slot.fresh.to_clear(start, Self::block_size(layout.size()));
        Some((block, front, back))
    }

    #[inline(always)]
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees that the block is live.
        unsafe {
            if cfg!(debug_assertions) {
                self.check_owned(start, layout)?;
            }
            self.free_block(start.as_ptr(), Self::at_least(layout.size()), statistics)
        }
    }

    /// Frees a block inline on hosts, where that saves a call.
    #[inline(always)]
    unsafe fn free_fast<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> bool {
        let size = Self::at_least(layout.size());
        // In debug builds `free` checks each block first.
        if cfg!(any(target_os = "none", target_family = "wasm", debug_assertions)) || size == 0 {
            return false;
        }
        // SAFETY: the caller keeps the contract; a refused block stays unchanged.
        unsafe { self.free_block(start.as_ptr(), size, statistics).is_ok() }
    }

    #[inline(always)]
    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // No block is so long; the limit keeps the rounding up from overflowing.
        if size > isize::MAX as usize {
            return false;
        }
        let (old, new) = (Self::granules_of(layout.size()), Self::granules_of(size));
        // Granules that the block has for now, and how many surplus ones of them are not counted as used.
        let (mut len, mut spare) = (old, 0);
        // SAFETY: the caller guarantees that the block is live. The free memory found after it is allocated first; then whatever the
        // block does not need is freed.
        unsafe {
            if new > old {
                let Some((slot, index)) = self.locate(start.addr().get()) else { return false };
                let is_known = slot.fresh.is_known();
                if C && (!slot.has(index) || old > slot.end() - index) {
                    return false;
                }
                let Some(found) = Blocks(*slot).allocate_behind(index + old, new - old) else { return false };
                len += found;
                spare = len - new;
                if is_known {
                    self.tell(start.addr().get(), new * GRANULE);
                }
                assert_unchecked(new * GRANULE > old * GRANULE);
                statistics.resized(old * GRANULE, new * GRANULE);
            }
            if len > new {
                statistics.found(spare * GRANULE);
                let rest = start.as_ptr().wrapping_add(new * GRANULE);
                return self.free_block(rest, (len - new) * GRANULE, statistics).is_ok();
            }
        }
        true
    }

    #[inline(always)]
    fn has_shorter(&self, layout: Layout, size: usize) -> bool {
        if !B || size > MOST_COPIED {
            return false;
        }
        let (need, old) =
            (Self::granules_of(size) + (layout.align() - 1) / GRANULE, Self::granules_of(layout.size()));
        // The allocation that follows searches the regions in order, so check the first one only.
        // SAFETY: the regions are there.
        self.slots().first().is_some_and(|slot| unsafe { Blocks(*slot).has_between(need, old) })
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let address = start.addr().get();
        let slot = *self.slots().iter().find(|slot| slot.holds(address)).ok_or(FreeError::Foreign)?;
        if layout.size() > Self::MAX_REGION {
            return Err(FreeError::Foreign);
        }
        // SAFETY: the region is there.
        unsafe { Blocks(slot).check(address, Self::granules_of(layout.size())) }
    }

    fn largest_free(&self) -> usize {
        // SAFETY: the regions are there.
        let largest = |slot: &Slot<W, SL, C, B>| unsafe {
            if CARES && !B { Blocks(*slot).largest_of_several() } else { Blocks(*slot).largest() }
        };
        self.slots().iter().map(largest).max().unwrap_or(0) * GRANULE
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        let Some(&slot) = self.slots().get(region) else { return };
        // SAFETY: the region is there.
        unsafe {
            Blocks(slot).walk(slot.first(), slot.end(), &mut |index, len, free| {
                visit(Run { start: slot.granule(index).addr(), size: len * GRANULE, free })
            });
        }
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.slots().get(n).map(Slot::region)
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::granules::class;
    use super::*;

    /// Checks that a region has as many granules as fit beside its lists and bits.
    fn all_is_used<W: Index, const SL: usize>() {
        let len = |start, size| {
            Slot::<W, SL, true, false>::parts(Region::from_address(start, size)).map(|parts| parts.len)
        };
        assert_eq!(len(usize::MAX - 4095, 4096), len(4096, 4088), "but for that of the address space");
        assert_eq!(len(usize::MAX - 4095, 4097), Err(RegionError::Overlap));
        for skew in 0..2 * GRANULE {
            for size in 0..3000 {
                let start = 4096 + skew;
                let (first, end) = (start.next_multiple_of(GRANULE), (start + size) / GRANULE * GRANULE);
                let control = Slot::<W, SL, true, false>::control(end.saturating_sub(first));
                let fits = |&len: &usize| first + control + len * GRANULE + bit_words(len) * BITS_WORD <= end;
                let most = (1..)
                    .take_while(fits)
                    .last()
                    .filter(|&len| len >= Blocks::<Slot<W, SL, true, false>>::MIN);
                let most = most.ok_or(RegionError::TooSmall);
                assert_eq!(len(start, size), most, "{size} bytes from {skew}");
            }
        }
    }

    #[test]
    fn regions_are_used_to_the_last_granule() {
        all_is_used::<u16, 2>();
        all_is_used::<u16, 8>();
        all_is_used::<u32, 8>();
    }

    /// A region of any length has a list for its longest block.
    #[test]
    fn there_is_a_list_for_each_length() {
        fn check<W: Index, const SL: usize>() {
            for size in (64..5000).chain((13..20).map(|shift| (1 << shift) + 200)) {
                let Ok(parts) = Slot::<W, SL, true, false>::parts(Region::from_address(4096, size)) else {
                    continue;
                };
                let slot = Slot::<W, SL, true, false>::of(&parts);
                // SAFETY: the length is in range; nothing is read.
                let last = unsafe { class::<W>(SL, parts.len) };
                let (heads, granules) = (slot.head(last).addr(), slot.granule(slot.end()).addr());
                assert!(
                    heads >= granules && heads + size_of::<W>() <= slot.all_bits().addr(),
                    "{size} bytes"
                );
            }
        }
        check::<u16, 8>();
        check::<u32, 2>();
        check::<u32, 8>();
        check::<u32, 32>();
    }
}
