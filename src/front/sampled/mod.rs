//! [`Sampled`]: catches writes past the end of blocks and uses of freed ones in the field, with the chip's memory protection.
//!
//! One request in [`PERIOD`](Sampled) gets a block that ends where a guard of 32 bytes begins. The chip watches the guard: an access to
//! it is a fault, whose handler learns where the block was allocated. The guard moves over live and freed blocks, so it soon catches a
//! frequent bug on a device in the field, for a few instructions per request.
//!
//! ```text
//!  live       | block of 40 bytes |  guard  |        a write past its end is a fault
//!  freed      |  g  u  a  r  d          . . |        each access is a fault, and the memory is not allocated again yet
//!  before     | block of 40 bytes | record  |        the guard has moved on, and its place remembers the block
//! ```
//!
//! On a Cortex-M3, with the MPU's region 7:
//!
//! ```
//! use allotment::sampled::{Protection, Sampled};
//! use allotment::{Heap, heap};
//! # use core::ops::Range;
//! # /// In place of `allotment::sampled::ArmV7Mpu`.
//! # struct ArmV7Mpu;
//! # // SAFETY: it stops nothing.
//! # unsafe impl Protection for ArmV7Mpu {
//! #     fn enable() {}
//! #     fn set(_: Range<usize>) {}
//! #     fn clear() {}
//! #     fn fault_address() -> Option<usize> { None }
//! # }
//!
//! static HEAP: Sampled<Heap, ArmV7Mpu> = Sampled::new(heap!(32 * 1024));
//!
//! fn main() {
//!     HEAP.start(1); // or a number that differs from boot to boot
//! }
//!
//! // #[exception]
//! fn hard_fault() {
//!     if let Some(caught) = HEAP.fault() {
//!         println!("{caught}"); // or `defmt`, or into memory that survives the reset
//!     }
//! }
//! # main();
//! # hard_fault();
//! ```
//!
//! (Serebryany and others, "GWP-ASan: Sampling-Based Detection of Memory-Safety Bugs in Production", 2023; KFENCE of Linux.)

#[cfg(all(target_arch = "arm", target_os = "none"))]
mod mpu;
#[cfg(all(target_arch = "riscv32", target_os = "none"))]
mod pmp;

#[cfg(all(target_arch = "arm", target_os = "none"))]
pub use mpu::{ArmV7Mpu, ArmV8Mpu};
#[cfg(all(target_arch = "riscv32", target_os = "none"))]
pub use pmp::RiscvPmp;

use crate::error::{FreeError, misuse::invalid_free};
use crate::front::small::Block;
use crate::lock::{self, Lock, Locked};
use crate::memory::{Done, Memory, allocator, global_alloc, pass_on};
use crate::observe::current_tag;
use crate::units::debug;
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

/// Number of return addresses kept for each call.
const CALLERS: usize = 4;

/// The return addresses of a call, innermost first, followed by zeros.
type Callers = [usize; CALLERS];

/// Bytes of a guard, and its alignment: what the hardware can watch, with room for a record.
const GRANULE: usize = size_of::<[usize; 8]>();

/// Hardware that stops each access to one range of memory, for [`Sampled`].
///
/// # Safety
///
/// It must not stop accesses outside the range, nor any access after `clear` has returned.
pub unsafe trait Protection {
    /// Prepares the hardware. Called once, outside handlers.
    fn enable();

    /// Watches this range, or as much of it as the hardware can: at least 32 bytes. The bounds are multiples of 32, and no range is
    /// watched before the call.
    fn set(range: Range<usize>);

    /// Stops watching.
    fn clear();

    /// Returns the address that the faulting access tried, if a guard stopped it. Called by the fault handler.
    fn fault_address() -> Option<usize>;

    /// Writes the return addresses of the current call to `into`, which is all zero, innermost first, as far as they can be found.
    #[inline(always)]
    fn callers(into: &mut [usize; CALLERS]) {
        let _ = into;
    }
}

/// A stopped access, and the block that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Caught {
    /// The address of the access.
    pub address: usize,
    /// The address of the block.
    pub block: usize,
    /// Requested bytes.
    pub size: usize,
    /// The tag that was current when the block was allocated.
    pub tag: Option<&'static str>,
    /// Return addresses of the allocation, innermost first, then zeros. On RISC-V without frame pointers, some may be other words of the
    /// stack that look like return addresses.
    pub allocated: [usize; CALLERS],
    /// Return addresses of the free, or `None` if the block is live and the access was past its end.
    pub freed: Option<[usize; CALLERS]>,
}

impl fmt::Display for Caught {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.freed.is_some() { "freed block" } else { "block" };
        write!(
            f,
            "access to {:#x}, {} bytes from ",
            self.address,
            self.address.wrapping_sub(self.block) as isize
        )?;
        write!(f, "the start of a {what} of {} bytes", self.size)?;
        if let Some(tag) = self.tag {
            write!(f, ", {tag}")?;
        }
        write!(f, "; allocated at {:x?}", self.allocated)?;
        self.freed.map_or(Ok(()), |freed| write!(f, ", freed at {freed:x?}"))
    }
}

/// Record of a sampled block, at the start of the guard after it. A short overflow, while the guard is elsewhere, hits the least
/// important fields.
#[repr(C)]
struct Record {
    allocated: Callers,
    tag: Option<&'static str>,
    size: usize,
    /// The record of the next unwatched live block, or null.
    next: *mut Record,
}

const _: () = assert!(size_of::<Record>() <= GRANULE, "a record has room in place of the guard");

/// State inside the lock.
struct State {
    /// The record of the watched block, or null.
    watched: *mut Record,
    /// Return addresses of the free, if the watched block is not live.
    freed: Option<Callers>,
    /// The record of the first unwatched live block, or null.
    others: *mut Record,
}

impl State {
    /// Returns the link to the unwatched live block that ends at `end`, or else the null link at the end of the list.
    #[inline(always)]
    fn link_to(&mut self, end: usize) -> *mut *mut Record {
        let mut link = &raw mut self.others;
        // SAFETY: each link belongs to the state or to an unwatched record, and leads to such a record or is null.
        unsafe {
            while !(*link).is_null() && (*link).addr() != end {
                link = &raw mut (**link).next;
            }
        }
        link
    }
}

/// Rounds a size up to granules.
#[inline(always)]
const fn rounded(size: usize) -> usize {
    (size + (GRANULE - 1)) & !(GRANULE - 1)
}

/// Returns the layout of a block together with the guard after it.
const fn whole_layout(length: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and blocks have at most half the bytes that a layout can have.
    unsafe { Layout::from_size_align_unchecked(length, GRANULE) }
}

/// Places a hardware guard after sampled blocks of a memory, and over freed ones; see the [module](self).
///
/// The guard moves on with each sample, and with each free of a sampled block, which returns to the memory when the guard leaves it. Only
/// requests whose size is a multiple of their alignment, as in all of Rust's types, with an alignment of at most 32, are sampled,
/// including those of `realloc`.
///
/// A request costs one decrement of a counter more than in the memory alone, and about one in `PERIOD`, a power of two, gets up to 63
/// bytes more than it needs. A free also tests its address. Freeing a sampled block is linear in the number of live sampled ones. `G` is
/// the hardware: `ArmV7Mpu`, `ArmV8Mpu`, `RiscvPmp`, or an implementation of the program. It watches only the core that samples, so the
/// chip should have one core.
pub struct Sampled<M, G, L = lock::Default, const PERIOD: u32 = 128> {
    memory: M,
    /// Number of requests until the next sample. Before the start 0, which wraps around, so that nothing is sampled and no initial value
    /// takes flash.
    left: AtomicU32,
    /// A bit for the end of each sampled block, by its granule's number modulo 32.
    marks: AtomicU32,
    random: AtomicU32,
    lock: Locked<State, L>,
    hardware: PhantomData<fn() -> G>,
}

// SAFETY: the records lie in blocks of the memory, which is sent with them.
unsafe impl Send for State {}

impl<M, G, L: Lock, const PERIOD: u32> Sampled<M, G, L, PERIOD> {
    /// Creates a front of `memory` that samples nothing before [`Sampled::start`].
    pub const fn new(memory: M) -> Self {
        const { assert!(PERIOD.is_power_of_two() && PERIOD < 1 << 15, "the period is a power of two") }
        let state = State { watched: ptr::null_mut(), freed: None, others: ptr::null_mut() };
        Self {
            memory,
            left: AtomicU32::new(0),
            marks: AtomicU32::new(0),
            random: AtomicU32::new(0),
            lock: Locked::new(state),
            hardware: PhantomData,
        }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns whether to sample a request.
    #[inline(always)]
    fn is_due(&self) -> bool {
        // The load and the store are not atomic together: a handler in between delays the next sample by one request.
        let left = self.left.load(Ordering::Relaxed).wrapping_sub(1);
        self.left.store(left, Ordering::Relaxed);
        left == 0
    }

    /// Returns whether a block may be sampled. Always true for a sampled block, and for fewer than 1 in 4 of the others.
    #[inline(always)]
    fn may_be_sampled(&self, block: NonNull<u8>, layout: Layout) -> bool {
        let end = block.addr().get().wrapping_add(layout.size());
        end % GRANULE == 0 && self.marks.load(Ordering::Relaxed).wrapping_shr((end / GRANULE) as u32) & 1 != 0
    }

    /// Checks a sampled block: `Err` if it is free, and `None` if the block is not sampled.
    fn find(&self, block: NonNull<u8>, layout: Layout) -> Option<Result<(), FreeError>> {
        if !self.may_be_sampled(block, layout) {
            return None;
        }
        let end = block.addr().get() + layout.size();
        self.lock.with(|state| {
            if state.watched.addr() == end {
                return Some(state.freed.map_or(Ok(()), |_| Err(FreeError::AlreadyFree)));
            }
            // SAFETY: the link belongs to the state or to a record.
            (!unsafe { *state.link_to(end) }.is_null()).then_some(Ok(()))
        })
    }
}

impl<M, G: Protection, L: Lock, const PERIOD: u32> Sampled<M, G, L, PERIOD> {
    /// Prepares the hardware, and starts to sample with the next request. Call it outside handlers. `seed` determines which requests are
    /// sampled.
    pub fn start(&self, seed: u32) {
        G::enable();
        self.random.store(seed, Ordering::Relaxed);
        self.left.store(1, Ordering::Relaxed);
    }

    /// Returns the access and its block, for the handler of a fault, if the guard caused the fault. Watching then stops until the next
    /// sample, so the access succeeds if the handler returns.
    pub fn fault(&self) -> Option<Caught> {
        let address = G::fault_address()?;
        // The lock is free, since no access is stopped while it is held.
        self.lock.with(|state| {
            if state.watched.is_null() {
                return None;
            }
            G::clear();
            // SAFETY: it is the record of the block, which is no longer watched.
            let &mut Record { allocated, tag, size, .. } = unsafe { &mut *state.watched };
            let end = state.watched.addr();
            let start = if state.freed.is_some() { end - rounded(size) } else { end };
            let caught = Caught { address, block: end - size, size, tag, allocated, freed: state.freed };
            (start..end + GRANULE).contains(&address).then_some(caught)
        })
    }

    /// Removes the live sampled block that ends at `end` from the list. Returns `Err` if it is already free, and `None` if there is none.
    #[inline(always)]
    fn remove_live(&self, end: usize) -> Option<Result<*mut Record, FreeError>> {
        self.lock.with(|state| {
            let found = state.watched;
            if found.addr() == end {
                if state.freed.is_some() {
                    return Some(Err(FreeError::AlreadyFree));
                }
                state.watched = ptr::null_mut();
                return Some(Ok(found));
            }
            let link = state.link_to(end);
            // SAFETY: the link belongs to the state or to a record, and leads to an unwatched record or is null.
            unsafe {
                let found = *link;
                if found.is_null() {
                    return None;
                }
                *link = (*found).next;
                Some(Ok(found))
            }
        })
    }
}

impl<M: Memory, G: Protection, L: Lock, const PERIOD: u32> Sampled<M, G, L, PERIOD> {
    /// Moves the guard to this block, which has a record, and frees the memory of the previous one if the program has freed it.
    #[inline(never)]
    fn guard(&self, end: *mut Record, freed: Option<&Callers>) {
        let released = self.lock.with(|state| {
            G::clear();
            let mut released = ptr::null_mut();
            if state.freed.is_some() {
                released = state.watched;
            } else if !state.watched.is_null() {
                // SAFETY: it is the record of a live block, which is no longer watched.
                unsafe { (*state.watched).next = state.others };
                state.others = state.watched;
            }
            (state.watched, state.freed) = (end, freed.copied());
            // SAFETY: the record is not watched now.
            let size = unsafe {
                (*end).next = state.others;
                (*end).size
            };
            let mut marks = 0;
            let mut at = end;
            while !at.is_null() {
                marks |= 1_u32.wrapping_shl((at.addr() / GRANULE) as u32);
                // SAFETY: it is the record after a block.
                at = unsafe { (*at).next };
            }
            self.marks.store(marks, Ordering::Relaxed);
            let start = if state.freed.is_some() { end.addr() - rounded(size) } else { end.addr() };
            G::set(start..end.addr() + GRANULE);
            released
        });
        if let Some(released) = NonNull::new(released) {
            // SAFETY: the block was allocated with this layout, the program has freed it, and nothing else refers to it.
            unsafe {
                let length = rounded(released.as_ref().size);
                self.memory.deallocate(released.cast::<u8>().sub(length), whole_layout(length + GRANULE));
            }
        }
    }

    /// Allocates a block with a guard after it. Returns `None` if the memory has no room, or the layout does not suit.
    #[cold]
    #[inline(never)]
    fn allocate_guarded(&self, layout: Layout) -> Option<NonNull<u8>> {
        let random = self.random.load(Ordering::Relaxed).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random.store(random, Ordering::Relaxed);
        self.left.store((random >> 16) % (2 * PERIOD) + 1, Ordering::Relaxed);
        let size = layout.size();
        let odd = size & (layout.align() - 1);
        let fits = size.wrapping_sub(1) < isize::MAX as usize / 2 && layout.align() <= GRANULE;
        if !fits || odd != 0 {
            return None;
        }
        let length = rounded(size);
        let start = self.memory.allocate(whole_layout(length + GRANULE))?;
        // SAFETY: the guard is the last granule of the block.
        let end = unsafe { start.add(length) };
        let record = end.cast::<Record>().as_ptr();
        // SAFETY: the granule after the block is aligned, and nothing else uses it.
        unsafe {
            record.write(Record { allocated: [0; CALLERS], tag: current_tag(), size, next: ptr::null_mut() });
            G::callers(&mut (*record).allocated);
        }
        self.guard(record, None);
        // SAFETY: the block has at least `size` bytes before `end`.
        unsafe {
            let block = end.sub(size);
            Block::clear_left_over(block, size);
            Some(block)
        }
    }

    /// Frees a block that may be sampled. Called last, so that frees of other blocks need not save registers for it.
    ///
    /// # Safety
    ///
    /// As for [`Memory::deallocate`].
    #[cold]
    #[inline(never)]
    unsafe fn free_guarded(&self, block: NonNull<u8>, layout: Layout) {
        let mut freed = [0; CALLERS];
        G::callers(&mut freed);
        match self.remove_live(block.addr().get() + layout.size()) {
            // SAFETY: the caller's contract; the block comes from the memory.
            None => unsafe { self.memory.deallocate(block, layout) },
            Some(Ok(end)) => self.guard(end, Some(&freed)),
            Some(Err(error)) => invalid_free(error, block.addr().get()),
        }
    }
}

// SAFETY: a sampled block is a part of a live block of the memory that nothing else uses; all others come from the memory.
unsafe impl<M: Memory, G: Protection, L: Lock, const PERIOD: u32> Memory for Sampled<M, G, L, PERIOD> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.is_due() {
            if let Some(block) = self.allocate_guarded(layout) {
                return Some(block);
            }
        }
        self.memory.allocate(layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.is_due() {
            if let Some(block) = self.allocate_guarded(layout) {
                // SAFETY: the block has the layout's size.
                unsafe { block.write_bytes(0, layout.size()) };
                return Some(block);
            }
        }
        self.memory.allocate_zeroed(layout)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract; a block that cannot be sampled comes from the memory.
        unsafe {
            if self.may_be_sampled(block, layout) {
                return self.free_guarded(block, layout);
            }
            self.memory.deallocate(block, layout)
        }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.find(block, layout).unwrap_or_else(|| self.memory.check(block, layout))
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract; the block comes from the memory.
        self.find(block, layout).unwrap_or_else(|| unsafe { self.memory.check_owned(block, layout) })
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // A sampled block ends at its guard.
        if self.find(block, layout).is_some() {
            return size == layout.size();
        }
        // SAFETY: the caller's contract; the block comes from the memory.
        unsafe { self.memory.try_resize(block, layout, size) }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        let guarded = if self.is_due() { self.allocate_guarded(new) } else { None };
        // A sampled block cannot change in place. Others that may be sampled move too, which saves a search.
        let moves = guarded.is_some() || self.may_be_sampled(block, old);
        // SAFETY: the caller's contract; the block comes from the memory, or else the copy is between two live blocks.
        unsafe {
            if !moves {
                return self.memory.change(block, old, new, done);
            }
            let moved = guarded.or_else(|| self.memory.allocate(new))?;
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }

    pass_on!(
        |self| self.memory;
        allocate_many, statistics, largest_free, region, out_of_memory, add_reserve, remembers, own_lock
    );
}

global_alloc!([M: Memory, G: Protection, L: Lock, const PERIOD: u32] Sampled<M, G, L, PERIOD>);
allocator!([M: Memory, G: Protection, L: Lock, const PERIOD: u32] Sampled<M, G, L, PERIOD>);

debug!([M, G, L, const PERIOD: u32] Sampled<M, G, L, PERIOD>, |self| left: self.left);
