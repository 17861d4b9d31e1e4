//! Spans: whole slots of a reserved address range, committed as needed.

use super::classes::{LARGEST_PAGE, SLOT};
use super::ground::{GRAIN, Ground, Range};
use super::image::{IMAGE, Image, MOST};
use super::page::Page;
use super::system::{Shift, System};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, Ordering};

/// The map's entry for a slot that is in no page and starts no large block.
pub(super) const NOTHING: u8 = 0;
/// The map's entry for the first slot of a large block. Every other number is the class of the slot's page, plus 1.
pub(super) const WHOLE: u8 = u8::MAX;

/// Bytes to commit first.
const FIRST: usize = 4 << 20;
/// Maximum number of bytes to commit ahead of need.
const AHEAD: usize = 1 << 30;
/// Minimum size of a heap's address range in bytes.
const LEAST: usize = 1 << 20;
/// Minimum size of the reserved range in bytes, if the system has the addresses: 64 GiB, or a quarter of a smaller address space.
const RESERVE: usize = if usize::BITS > 32 { 64 << 30 } else { 1 << 30 };

/// Spans of slots in one reserved address range, committed as needed.
///
/// ```text
///  reserved   | slots .................. | spans .. | map .. | touched .. | bounds .. | image .. |
///  committed  | used | free | used |      one entry for each slot
/// ```
///
/// TLSF finds free spans. Its links are in an image of the slots, 16 bytes for each, so the heap does not touch free slots, and all of
/// them can return to the system. Tables beside the slots hold, for each slot, the span that it starts, a byte for its contents, and a
/// bit that is set if it was written to since the system provided it: other slots are zero, and cost nothing.
pub(super) struct Spans<S> {
    index: Image,
    pub(super) slots: Range,
    table: Range,
    pub(super) map: Range,
    bits: Range,
    ground: Ground,
    /// Number of slots in free spans not yet returned to the system, approximately.
    dirty: usize,
    /// Number of slots that the system refused at the last purge.
    refused: usize,
    /// Number of slots written to since the system provided them: the memory of the process.
    footprint: usize,
    /// The largest `footprint` after the allocation of a span.
    highest: usize,
    /// Number of blocks moved without copying. Each costs the kernel a mapping or two, and their number is limited.
    shifted: usize,
    /// Start and bytes of the whole reservation.
    whole: (*mut u8, usize),
    system: PhantomData<S>,
}

/// Maximum number of blocks to move without copying, which may take a quarter of the mappings that Linux allows.
const SHIFTS: usize = 8192;

/// An allocated span.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    /// First slot of the span.
    pub(super) slot: usize,
    /// Whether the span may have nonzero bytes.
    pub(super) dirty: bool,
}

impl<S: System> Spans<S> {
    pub(super) const EMPTY: Self = Self {
        index: Image::EMPTY,
        slots: Range::EMPTY,
        table: Range::EMPTY,
        map: Range::EMPTY,
        bits: Range::EMPTY,
        ground: Ground::NONE,
        dirty: 0,
        refused: 0,
        footprint: 0,
        highest: 0,
        shifted: 0,
        whole: (ptr::null_mut(), 0),
        system: PhantomData,
    };

    /// Returns the bytes of the tables for `bytes` bytes of slots: spans, map, bits, boundary bits and image. The image may start
    /// anywhere in its first grain.
    const fn tables(bytes: usize) -> [usize; 5] {
        let slots = bytes / SLOT;
        [
            (slots * size_of::<Page>()).next_multiple_of(GRAIN),
            slots.next_multiple_of(GRAIN),
            (slots / 8 + size_of::<usize>()).next_multiple_of(GRAIN),
            Image::bound_bytes(slots).next_multiple_of(GRAIN),
            Image::granule_bytes(slots).next_multiple_of(GRAIN) + GRAIN,
        ]
    }

    fn reserve(&mut self, most: usize) -> Option<()> {
        // Pages are aligned to their sizes, both as addresses and as slots.
        let cycle = |bytes: usize| (bytes / SLOT * IMAGE).next_power_of_two();
        let total =
            |bytes: usize| bytes + Self::tables(bytes).iter().sum::<usize>() + cycle(bytes) + LARGEST_PAGE;
        // No system provides more than three quarters of all addresses, and the size with the tables must not overflow.
        let longest = (MOST / 2).saturating_mul(SLOT).min(usize::MAX / 4 * 3);
        let most = most.clamp(LEAST, longest);
        let wanted = most & !(GRAIN - 1);
        let mut bytes = wanted;
        let base = loop {
            if let Some(base) = S::reserve(total(bytes)) {
                if bytes == wanted {
                    break base;
                }
                // Addresses are limited: leave a quarter of them to stacks, libraries and files.
                // SAFETY: the range was just reserved.
                unsafe { S::release(base, total(bytes)) };
                bytes = (bytes / 4 * 3) & !(GRAIN - 1);
                break S::reserve(total(bytes))?;
            }
            bytes = (bytes / 4 * 3) & !(GRAIN - 1);
            if bytes < LEAST {
                return None;
            }
        };
        let [table, map, bits, bounds, image] = Self::tables(bytes);
        let base = base.as_ptr();
        self.whole = (base, total(bytes));
        let mut at = base.wrapping_add(base.addr().next_multiple_of(LARGEST_PAGE) - base.addr());
        for (range, reserved) in [
            (&mut self.slots, bytes),
            (&mut self.table, table),
            (&mut self.map, map),
            (&mut self.bits, bits),
            (&mut self.index.bounds, bounds),
        ] {
            *range = Range { base: at, reserved, committed: 0 };
            at = at.wrapping_add(reserved);
        }
        let place = self.slots.base.addr() / SLOT * IMAGE;
        let skipped = place.wrapping_sub(at.addr()) & (cycle(bytes) - 1);
        self.index.start = at.wrapping_add(skipped);
        debug_assert_eq!(
            self.index.start.addr() % cycle(bytes),
            place % cycle(bytes),
            "what is aligned in the image is aligned memory"
        );
        self.index.granules =
            Range { base: at.wrapping_add(skipped & !(GRAIN - 1)), reserved: image, committed: 0 };
        self.ground = Ground { base: self.slots.base, bits: self.bits.base.cast() };
        Some(())
    }

    /// Commits memory for a span of `len` slots aligned to `align` slots, or all remaining memory if that may suffice together with free
    /// slots before it. Returns whether it has committed any.
    #[cold]
    pub(super) fn grow(&mut self, len: usize, align: usize, most: usize) -> bool {
        if self.slots.reserved == 0 && self.reserve(most).is_none() {
            return false;
        }
        let have = self.slots.committed;
        let left = self.bound(most).saturating_sub(have);
        let Some(least) = len.checked_add(align - 1) else { return false };
        if left == 0 || least > left / SLOT + self.index.largest() {
            return false;
        }
        let need = least * SLOT;
        let ahead = have.clamp(FIRST, AHEAD);
        // If the system refuses to commit ahead, it may still have enough for the need.
        [need.max(ahead), need].into_iter().any(|step| self.grow_by(step.next_multiple_of(GRAIN).min(left)))
    }

    /// Returns how many bytes of slots the heap may commit now: all reserved bytes, unless a limit has since become lower.
    fn bound(&self, most: usize) -> usize {
        let space = S::address_space();
        let slots = space - Self::tables(space).iter().sum::<usize>().min(space);
        self.slots.reserved.min(most.max(LEAST)).min(slots) & !(GRAIN - 1)
    }

    fn grow_by(&mut self, step: usize) -> bool {
        let have = self.slots.committed;
        let to = have + step;
        let [table, map, bits, bounds, image] = Self::tables(to);
        let committed = self.table.commit::<S>(table)
            && self.map.commit::<S>(map)
            && self.bits.commit::<S>(bits)
            && self.index.bounds.commit::<S>(bounds)
            && self.index.granules.commit::<S>(image)
            && self.slots.commit::<S>(to);
        if committed {
            // SAFETY: all of it is committed, and fresh memory from the system is zero.
            unsafe { self.index.lengthen(to / SLOT) };
        }
        committed
    }

    /// Returns the address of a slot.
    #[inline(always)]
    pub(super) fn address(&self, slot: usize) -> *mut u8 {
        self.slots.base.wrapping_add(slot * SLOT)
    }

    /// Returns the slot of an address in the range.
    #[inline(always)]
    pub(super) fn slot(&self, address: *mut u8) -> usize {
        (address.addr() - self.slots.base.addr()) / SLOT
    }

    /// Returns the slot of an address, if it is committed.
    pub(super) fn slot_checked(&self, address: *mut u8) -> Option<usize> {
        let offset = address.addr().wrapping_sub(self.slots.base.addr());
        (offset < self.slots.committed).then_some(offset / SLOT)
    }

    /// Returns the record of the span that starts at `slot`, which must be committed.
    #[inline(always)]
    pub(super) fn page(&self, slot: usize) -> *mut Page {
        self.table.base.cast::<Page>().wrapping_add(slot)
    }

    /// Returns the place of the length of the large block that starts at `slot`, which must be committed: in the image, which only free
    /// spans use otherwise.
    #[inline(always)]
    pub(super) fn length(&self, slot: usize) -> *mut u32 {
        self.index.granule(slot).cast()
    }

    /// Returns the map's entry of `slot`, which must be committed. Threads read it without the lock.
    #[inline(always)]
    pub(super) fn entry(&self, slot: usize) -> &AtomicU8 {
        // SAFETY: entries of committed slots are committed, and accessed only atomically.
        unsafe { AtomicU8::from_ptr(self.map.base.wrapping_add(slot)) }
    }

    /// Sets the map's entries of the `len` slots from `slot` on, which must be committed.
    pub(super) fn enter(&self, slot: usize, len: usize, value: u8) {
        (slot..slot + len).for_each(|slot| self.entry(slot).store(value, Ordering::Relaxed));
    }

    /// Allocates a span of `len` slots aligned to `align` slots, a power of two. With `zeroed`, clears the slots that were written to
    /// before, if they are few. O(1) except for growth and the bits of the slots.
    pub(super) fn allocate(&mut self, len: usize, align: usize, most: usize, zeroed: bool) -> Option<Cut> {
        let slot = match self.index.allocate(len, align) {
            Some(slot) => slot,
            None if self.grow(len, align, most) => self.index.allocate(len, align)?,
            None => return None,
        };
        let end = slot + len;
        let ground = self.ground;
        let touched = ground.touched(slot, end);
        let mut dirty = touched > 0;
        if zeroed && touched <= (len / 4).max(2) {
            let mut next = ground.first(slot, end);
            while let Some(slot) = next {
                // SAFETY: the span is committed, and nothing uses it.
                unsafe { self.address(slot).write_bytes(0, SLOT) };
                next = ground.first(slot + 1, end);
            }
            dirty = false;
        }
        self.footprint += ground.mark(slot, end);
        self.dirty = self.dirty.saturating_sub(touched);
        Some(Cut { slot, dirty })
    }

    /// Frees a span.
    ///
    /// # Safety
    ///
    /// The span must have come from [`Spans::allocate`] with this length, and must not be used any more.
    pub(super) unsafe fn free(&mut self, slot: usize, len: usize) {
        // SAFETY: the caller guarantees a span of that length.
        unsafe { self.index.free(slot, len) };
        self.dirty += len;
    }

    /// Changes the length of a span in place, and returns whether that was possible.
    ///
    /// # Safety
    ///
    /// The span must have come from [`Spans::allocate`] with length `len`; slots that are cut off must not be used any more.
    pub(super) unsafe fn resize(&mut self, slot: usize, len: usize, to: usize) -> bool {
        // SAFETY: the caller guarantees a span of that length.
        if !unsafe { self.index.resize(slot, len, to) } {
            return false;
        }
        if to > len {
            let fresh = self.ground.mark(slot + len, slot + to);
            self.dirty = self.dirty.saturating_sub(to - len - fresh);
            self.footprint += fresh;
        } else {
            self.dirty += len - to;
        }
        true
    }

    /// Moves the first `len` slots of a span to another span without copying, and returns the outcome.
    ///
    /// # Safety
    ///
    /// Both spans must be in use, disjoint, and at least `len` slots long. If the outcome is [`Shift::Lost`], the target must stay in use
    /// forever.
    pub(super) unsafe fn shift(&mut self, from: usize, to: usize, len: usize) -> Shift {
        let (start, target, bytes) = (self.address(from), self.address(to), len * SLOT);
        let page = S::page();
        if self.shifted >= SHIFTS || (start.addr() | target.addr() | bytes) % page != 0 {
            return Shift::Refused;
        }
        // SAFETY: the caller guarantees both spans, which are committed.
        let shift = unsafe { S::shift(start, target, bytes) };
        match shift {
            Shift::Moved => self.shifted += 1,
            Shift::Refused => {}
            // After one lost target, move nothing any more.
            Shift::Lost => self.shifted = usize::MAX,
        }
        shift
    }

    /// Releases everything to the system, unless other code may own a part of the addresses now.
    ///
    /// # Safety
    ///
    /// Nothing may use the memory or the spans any more.
    pub(super) unsafe fn release(&mut self) {
        let (start, bytes) = self.whole;
        if let Some(start) = NonNull::new(start).filter(|_| self.shifted < usize::MAX) {
            // SAFETY: the range was reserved, and the caller guarantees that nothing uses it.
            unsafe { S::release(start, bytes) };
        }
    }

    /// Releases the memory of free spans to the system. Returns the bytes. O(spans).
    pub(super) fn purge(&mut self) -> usize {
        if self.slots.committed == 0 {
            return 0;
        }
        let (ground, page) = (self.ground, S::page());
        let (spans, map) = (self.table.base.cast::<Page>(), self.map.base);
        let idle = |start: *mut u8, bytes: usize| {
            let skipped = start.addr().next_multiple_of(page) - start.addr();
            let whole = bytes.saturating_sub(skipped) / page * page;
            if whole > 0 {
                // SAFETY: the bytes are in a table of committed slots, and nothing reads them before the next write.
                unsafe { S::purge(start.wrapping_add(skipped), whole) };
            }
        };
        let (mut slots, mut refused) = (0, 0);
        let image = self.index.start;
        self.index.each_free(|slot, len| {
            let (purged, touched) = ground.purge::<S>(slot, slot + len, page);
            slots += touched;
            refused += ground.touched(slot, slot + len);
            if !purged.is_empty() {
                // A free span needs no records of its slots, has zeros in the map, and uses only the ends of its image.
                idle(spans.wrapping_add(slot).cast(), len * size_of::<Page>());
                idle(image.wrapping_add((slot + 1) * IMAGE), len.saturating_sub(2) * IMAGE);
                idle(map.wrapping_add(slot), len);
            }
        });
        (self.dirty, self.refused) = (refused, refused);
        self.footprint = self.footprint.saturating_sub(slots);
        slots * SLOT
    }

    /// Releases the memory of unused slots to the system, as far as they fill whole pages. Returns the first released slot and the slot
    /// after the last; the same slot twice if it released none.
    pub(super) fn purge_slots(&mut self, from: usize, end: usize) -> (usize, usize) {
        let (purged, touched) = self.ground.purge::<S>(from, end, S::page());
        self.footprint = self.footprint.saturating_sub(touched);
        (purged.start, purged.end)
    }

    /// Marks slots of a span in use as written to again.
    pub(super) fn touch(&mut self, from: usize, end: usize) {
        self.footprint += self.ground.mark(from, end);
    }

    /// Returns the bytes of the longest free span.
    pub(super) fn largest(&mut self) -> usize {
        self.index.largest() * SLOT
    }

    /// Returns whether the process has more memory than ever before, with more than one part in `share` of it, and more than `least`
    /// bytes, in free spans. Purging these now keeps the peak lower.
    #[inline]
    pub(super) fn is_wasteful_peak(&mut self, share: usize, least: usize) -> bool {
        if self.footprint <= self.highest {
            return false;
        }
        let is_wasteful = self.offered() / SLOT > (self.footprint / share).max(least / SLOT);
        if !is_wasteful {
            self.highest = self.footprint;
        }
        is_wasteful
    }

    /// Returns whether `footprint` agrees with the bits.
    #[cfg(test)]
    pub(super) fn has_exact_footprint(&self) -> bool {
        self.footprint == self.ground.touched(0, self.slots.committed / SLOT)
    }

    /// Notes that `len` slots of free spans have no memory any more.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    pub(super) fn forget_dirty(&mut self, len: usize) {
        self.dirty = self.dirty.saturating_sub(len);
    }

    /// Returns the bytes of free spans not yet returned to the system, approximately.
    pub(super) fn dirty(&self) -> usize {
        self.dirty * SLOT
    }

    /// Returns the bytes of free spans that a purge may return to the system, approximately: without those that the system refused last
    /// time.
    pub(super) fn offered(&self) -> usize {
        self.dirty.saturating_sub(self.refused) * SLOT
    }
}

/// Returns how many bytes of addresses to reserve: 64 GiB, or four times the machine's memory if that is more.
pub(super) fn default_reserve<S: System>() -> usize {
    let memory = usize::try_from(S::memory()).unwrap_or(0);
    memory.saturating_mul(4).checked_next_power_of_two().unwrap_or(0).max(RESERVE)
}
