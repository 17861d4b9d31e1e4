//! The pages of sampled blocks, and a record of each block.

use crate::error::FreeError;
use crate::region::Region;
use core::alloc::Layout;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

/// Number of slots, each for a live or a remembered block.
pub(super) const SLOTS: usize = 128;

/// Bytes of the processor's largest page, which is the length of a slot on every system.
pub(in crate::os) const PAGE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 64 * 1024 };

/// Bytes of the whole range: a guard page before each slot, and one after the last.
pub(in crate::os) const BYTES: usize = (2 * SLOTS + 1) * PAGE;

/// Maximum number of return addresses of a stack.
const FRAMES: usize = 24;

/// Byte that fills the space between a block and the end of its slot, where a write does not fault.
const FILL: u8 = 0xb7;

/// The thread and the stack of an allocation or a free.
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
    /// Address of the block; 0 if the slot was never used.
    pub(super) start: usize,
    pub(super) size: usize,
    align: usize,
    pub(super) live: bool,
    pub(super) allocated: Trace,
    pub(super) freed: Trace,
}

/// The slots, in system memory that is never released: a fault may need them at any time.
pub(super) struct Pool {
    base: NonNull<u8>,
    /// The pool that was created before this one.
    pub(super) next: *mut Self,
    pub(super) slots: [Slot; SLOTS],
    /// Ring of the slots without a live block; the slot that has been free longest is next.
    queue: [u8; SLOTS],
    first: usize,
    free: usize,
}

/// Preferred position of a block in its slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// After the guard page, so that an underflow faults.
    Left,
    /// Before the guard page, as far as its alignment allows, so that an overflow faults.
    Right,
}

/// Maps addresses without access, at `wish` if that is not null and the kernel has nothing there.
pub(in crate::os) fn map(wish: *mut u8, bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping, which replaces no other.
    let start =
        unsafe { rustix::mm::mmap_anonymous(wish.cast(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast::<u8>())
}

impl Pool {
    /// Creates a pool without blocks over [`BYTES`] bytes of addresses without access.
    pub(super) fn make(base: NonNull<u8>) -> Option<NonNull<Self>> {
        let state = map(ptr::null_mut(), size_of::<Self>())?.cast::<Self>();
        let bytes = size_of::<Self>();
        // SAFETY: the mapping is new, and nothing else uses it.
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
        // SAFETY: the memory is new and long enough.
        unsafe { state.write(Self { base, next, slots: [none; SLOTS], queue, first: 0, free: SLOTS }) };
        Some(state)
    }

    pub(super) fn region(&self) -> Region {
        Region { start: self.base, size: BYTES, zeroed: false }
    }

    /// Returns the address of a slot.
    fn page(&self, n: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add((2 * n + 1) * PAGE)
    }

    /// Returns the number of the slot that contains an address; `None` in a guard page.
    fn slot_at(&self, address: usize) -> Option<usize> {
        let n = address.wrapping_sub(self.base.addr().get()) / PAGE;
        (n < 2 * SLOTS && n % 2 == 1).then_some(n / 2)
    }

    /// Allocates a block for a layout that fits into a slot; `None` if all slots are in use. O(1), and one system call.
    pub(super) fn allocate(&mut self, layout: Layout, side: Side, trace: Trace) -> Option<NonNull<u8>> {
        if self.free == 0 || layout.size() > PAGE || layout.align() > PAGE {
            return None;
        }
        let n = self.queue[self.first] as usize;
        let page = self.page(n);
        // SAFETY: the slot belongs to the pool and has no live block. Its memory was released, so it is zero.
        unsafe { rustix::mm::mprotect(page.cast(), PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }
            .ok()?;
        self.first = (self.first + 1) % SLOTS;
        self.free -= 1;
        let offset = match side {
            Side::Left => 0,
            // Even an empty block must not have the address of the next page.
            Side::Right => (PAGE - layout.size().max(1)) & !(layout.align() - 1),
        };
        let block = page.wrapping_add(offset);
        let (start, size, align) = (block.addr(), layout.size(), layout.align());
        self.slots[n] = Slot { start, size, align, live: true, allocated: trace, freed: Trace::NONE };
        // SAFETY: the bytes after the block are in the slot.
        unsafe { block.wrapping_add(size).write_bytes(FILL, PAGE - offset - size) };
        NonNull::new(block)
    }

    /// Checks whether a live block for a layout starts at an address of the range, with unchanged bytes after it, and returns its slot.
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

    /// Returns the layout of the current or last block in the slot of an address.
    pub(super) fn layout(&self, block: NonNull<u8>) -> Option<Layout> {
        let slot = &self.slots[self.slot_at(block.addr().get())?];
        Layout::from_size_align(slot.size, slot.align).ok()
    }

    /// Returns whether the bytes after a live block are unchanged.
    fn is_whole(&self, n: usize) -> bool {
        let Slot { start, size, .. } = self.slots[n];
        let end = start - self.page(n).addr() + size;
        // SAFETY: the slot has a live block, so its page is readable, and the bytes after the block are initialised.
        let rest = unsafe { core::slice::from_raw_parts(self.page(n).wrapping_add(end), PAGE - end) };
        rest.iter().fold(0, |wrong, byte| wrong | (byte ^ FILL)) == 0
    }

    /// Frees the block in a slot, so that every later access faults. O(1), and two system calls.
    pub(super) fn free(&mut self, n: usize, trace: Trace) {
        let page = self.page(n).cast::<c_void>();
        // SAFETY: the slot belongs to the pool, and its block is not used any more. If the system refuses, the slot is not used again.
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

    /// Returns the slot that an access at an address was probably meant for: the slot that contains it, or the nearest slot that was ever
    /// used.
    pub(super) fn nearest(&self, address: usize) -> Option<&Slot> {
        let page = address.wrapping_sub(self.base.addr().get()) / PAGE;
        if page > 2 * SLOTS {
            return None;
        }
        let distance = |slot: &&Slot| {
            // At equal distance, prefer a live block.
            (
                address.saturating_sub(slot.start + slot.size).max(slot.start.saturating_sub(address)),
                !slot.live,
            )
        };
        let around = &self.slots[(page.saturating_sub(1) / 2).min(SLOTS - 1)..(page / 2 + 1).min(SLOTS)];
        around.iter().filter(|slot| slot.start != 0).min_by_key(distance)
    }
}
