//! The pages that sampled blocks lie in, and what is known of each block.

use crate::error::FreeError;
use crate::region::Region;
use core::alloc::Layout;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Blocks that are live or remembered at a time.
pub(super) const SLOTS: usize = 128;

/// Bytes of the largest page of systems; slots are as long on all of them.
pub(in crate::os) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 * 1024 };

/// Bytes of the whole range: a guard page in front of each slot, and one behind the last.
pub(in crate::os) const BYTES: usize = (2 * SLOTS + 1) * PAGE;

/// Return addresses of a stack.
const FRAMES: usize = 24;

/// Pattern between a block and the end of its slot, where a write does not fault.
const FILL: u8 = 0xb7;

/// Who did something, and from where.
#[derive(Clone, Copy)]
pub(super) struct Trace {
    pub(super) thread: i32,
    count: usize,
    frames: [usize; FRAMES],
}

impl Trace {
    const NONE: Self = Self { thread: 0, count: 0, frames: [0; FRAMES] };

    /// Returns the calling thread and its stack.
    pub(super) fn here() -> Self {
        let mut trace = Self::NONE;
        // SAFETY: it has no preconditions.
        trace.thread = unsafe { libc::gettid() };
        #[cfg(feature = "backtrace")]
        {
            trace.count = crate::front::observed::walk(&mut trace.frames).len();
        }
        trace
    }

    /// Returns the return addresses, the innermost first; none without the feature `backtrace`.
    pub(super) fn frames(&self) -> &[usize] {
        &self.frames[..self.count.min(FRAMES)]
    }
}

/// Record of the block in a slot.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// Its address; 0 if the slot was never used.
    pub(super) start: usize,
    pub(super) size: usize,
    align: usize,
    pub(super) live: bool,
    pub(super) allocated: Trace,
    pub(super) freed: Trace,
}

/// The slots, in memory of the system that never goes back: a fault may ask for them at any time.
pub(super) struct Pool {
    base: NonNull<u8>,
    /// The pool that was made before this one.
    pub(super) next: *mut Self,
    pub(super) slots: [Slot; SLOTS],
    /// Slots without a live block, a ring: the one that is free for the longest time is next.
    queue: [u8; SLOTS],
    first: usize,
    free: usize,
}

/// Preferred position of a block in its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Behind the guard page: what writes in front of it faults.
    Left,
    /// In front of the guard page, as far as its alignment allows.
    Right,
}

/// Maps addresses without access, at `wish` if the kernel has nothing there; null is no wish.
pub(in crate::os) fn map(wish: *mut u8, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address where there is none.
    let start =
        unsafe { rustix::mm::mmap_anonymous(wish.cast(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast::<u8>())
}

impl Pool {
    /// Makes a pool without blocks over [`BYTES`] bytes of addresses that have no access.
    pub(super) fn make(base: NonNull<u8>) -> Option<NonNull<Self>> {
        let state = map(ptr::null_mut(), size_of::<Self>())?.cast::<Self>();
        let bytes = size_of::<Self>();
        // SAFETY: the mapping is new, and nothing knows of it.
        unsafe {
            let access = MprotectFlags::READ | MprotectFlags::WRITE;
            if rustix::mm::mprotect(state.as_ptr().cast(), bytes, access).is_err() {
                // The next sampled request tries again.
                let _ = rustix::mm::munmap(state.as_ptr().cast(), bytes);
                return None;
            }
        }
        let none =
            Slot { start: 0, size: 0, align: 1, live: false, allocated: Trace::NONE, freed: Trace::NONE };
        let queue = core::array::from_fn(|n| n as u8);
        let next = ptr::null_mut();
        // SAFETY: the memory is ours and long enough.
        unsafe { state.write(Self { base, next, slots: [none; SLOTS], queue, first: 0, free: SLOTS }) };
        Some(state)
    }

    pub(super) fn region(&self) -> Region {
        Region { start: self.base, size: BYTES, zeroed: false }
    }

    /// Returns where a slot begins.
    fn page(&self, n: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add((2 * n + 1) * PAGE)
    }

    /// Returns the number of the slot that an address lies in; `None` in a guard page.
    fn slot_at(&self, address: usize) -> Option<usize> {
        let n = address.wrapping_sub(self.base.addr().get()) / PAGE;
        (n < 2 * SLOTS && n % 2 == 1).then_some(n / 2)
    }

    /// Allocates a block for a layout that fits into a slot; `None` if all slots are in use. O(1), and a call of the system.
    pub(super) fn allocate(&mut self, layout: Layout, side: Side, trace: Trace) -> Option<NonNull<u8>> {
        if self.free == 0 || layout.size() > PAGE || layout.align() > PAGE {
            return None;
        }
        let n = self.queue[self.first] as usize;
        let page = self.page(n);
        // SAFETY: the slot is ours and has no live block. Its memory was released, so it is zero.
        unsafe { rustix::mm::mprotect(page.cast(), PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }
            .ok()?;
        self.first = (self.first + 1) % SLOTS;
        self.free -= 1;
        let offset = match side {
            Side::Left => 0,
            // The address of an empty block, too, differs from the next slot's.
            Side::Right => (PAGE - layout.size().max(1)) & !(layout.align() - 1),
        };
        let block = page.wrapping_add(offset);
        let (start, size, align) = (block.addr(), layout.size(), layout.align());
        self.slots[n] = Slot { start, size, align, live: true, allocated: trace, freed: Trace::NONE };
        // SAFETY: the bytes behind the block are in the slot.
        unsafe { block.wrapping_add(size).write_bytes(FILL, PAGE - offset - size) };
        NonNull::new(block)
    }

    /// Checks whether a live block for a layout starts at an address of the range, with unchanged bytes behind it, and returns its slot.
    pub(super) fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        let n = self.slot_at(block.addr().get()).ok_or(FreeError::NotABlock)?;
        let slot = &self.slots[n];
        match slot {
            Slot { start, .. } if *start != block.addr().get() => Err(FreeError::NotABlock),
            Slot { live: false, .. } => Err(FreeError::AlreadyFree),
            Slot { size, align, .. } if (*size, *align) != (layout.size(), layout.align()) => {
                Err(FreeError::NotABlock)
            }
            _ if self.is_whole(n) => Ok(n),
            _ => Err(FreeError::Overrun),
        }
    }

    /// Returns the layout of the block that lies or lay in the slot of an address.
    pub(super) fn layout(&self, block: NonNull<u8>) -> Option<Layout> {
        let slot = &self.slots[self.slot_at(block.addr().get())?];
        Layout::from_size_align(slot.size, slot.align).ok()
    }

    /// Returns whether the bytes after a live block are unchanged.
    fn is_whole(&self, n: usize) -> bool {
        let Slot { start, size, .. } = self.slots[n];
        let end = start - self.page(n).addr() + size;
        // SAFETY: the slot has a live block, so that its page can be read, and all behind the block was written.
        let rest = unsafe { core::slice::from_raw_parts(self.page(n).wrapping_add(end), PAGE - end) };
        rest.iter().fold(0, |wrong, byte| wrong | (byte ^ FILL)) == 0
    }

    /// Frees the block in a slot: from now on every access faults. O(1), and two calls of the system.
    pub(super) fn free(&mut self, n: usize, trace: Trace) {
        let page = self.page(n).cast::<c_void>();
        // SAFETY: the slot is ours, and its block is not used any more. If the system refuses, the slot is not used again.
        let closed = unsafe {
            rustix::mm::madvise(page, PAGE, Advice::LinuxDontNeed).is_ok()
                && rustix::mm::mprotect(page, PAGE, MprotectFlags::empty()).is_ok()
        };
        self.slots[n].live = false;
        self.slots[n].freed = trace;
        if closed {
            self.queue[(self.first + self.free) % SLOTS] = n as u8;
            self.free += 1;
        }
    }

    /// Returns the slot that an access at an address was meant for: the one that it lies in, or the nearest one that was used.
    pub(super) fn nearest(&self, address: usize) -> Option<&Slot> {
        let page = address.wrapping_sub(self.base.addr().get()) / PAGE;
        if page > 2 * SLOTS {
            return None;
        }
        let distance = |slot: &&Slot| {
            // A block that is live is meant rather than one that is not.
            (
                address.saturating_sub(slot.start + slot.size).max(slot.start.saturating_sub(address)),
                !slot.live,
            )
        };
        let around = &self.slots[(page.saturating_sub(1) / 2).min(SLOTS - 1)..(page / 2 + 1).min(SLOTS)];
        around.iter().filter(|slot| slot.start != 0).min_by_key(distance)
    }
}
