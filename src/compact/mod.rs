//! The smallest heaps: [`CompactHeap`], and [`CompactBump`] for programs that never free.

mod bump;
mod units;

pub use bump::CompactBump;

use crate::heap::{OutOfMemory, misuse};
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::observe::{Counters, NoStatistics, Statistics, Stats};
use crate::out_of_memory::refused_for_good;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::{self, NonNull};
pub(crate) use units::bytes_for;
use units::{UNIT, Units, units};

/// A heap of `BYTES` bytes, all that it needs included: the smallest code, the least memory beside the blocks.
///
/// ```
/// use allotment::CompactHeap;
///
/// #[global_allocator]
/// static HEAP: CompactHeap<{ 256 * 1024 }> = CompactHeap::new();
///
/// let numbers: Vec<u32> = (0..100).collect();
/// # drop(numbers);
/// ```
///
/// For microcontrollers that have less memory than the general [`Heap`](crate::Heap) deserves. Allocations and
/// frees are O(1); blocks have no headers; a block takes its size rounded up to 8 bytes, and one bit. In a heap
/// of 16 KiB the lists of the free blocks take 53 bytes. What it does not have: several regions,
/// memory given at run time, memory that is known to be zero.
///
/// * The memory is part of the value, all zero before the first use: the static lies in `.bss`, and there is nothing
///   to initialise. `BYTES` is a multiple of 8, at least 64, at most 512 KiB; anything else
///   does not compile.
///
///   ```compile_fail
///   use allotment::{CompactHeap, lock::Spin};
///   static TOO_LARGE: CompactHeap<{ 1024 * 1024 }, Spin> = CompactHeap::new();
///   ```
/// * `L` is the [lock](crate::lock). `S` is [`NoStatistics`] unless asked for: with [`Counters`] there are
///   [`CompactHeap::used`], [`CompactHeap::stats`] and the like.
/// * A block that grows stays where it is if there is room behind it. One that shrinks moves if that leaves the heap
///   less fragmented (to a block that is free already and fits better), else it stays: resizing a block that must not
///   be copied is what [`CompactHeap::try_resize`] is for.
/// * A wrong free is noticed as by [`Heap`](crate::Heap): in debug builds, the program ends; in release builds
///   the global allocator does not look, and [`CompactHeap::try_deallocate`] does.
///
/// It can be shared as [`Memory`] and as `Allocator` by reference: `&CompactHeap<..>`.
///
/// The algorithm is two-level segregated fit (see [`Tlsf`](crate::Tlsf)) with two lists per power of two.
pub struct CompactHeap<const BYTES: usize, L = lock::Default, S = NoStatistics> {
    lock: L,
    state: UnsafeCell<State<BYTES, S>>,
}

#[repr(C, align(8))]
struct State<const BYTES: usize, S> {
    memory: [u8; BYTES],
    statistics: S,
}

// SAFETY: the state is reached only inside the lock, which is `Sync` and so excludes all others.
unsafe impl<const BYTES: usize, L: Sync, S: Send> Sync for CompactHeap<BYTES, L, S> {}

/// Blocks of no bytes take a unit.
#[inline(always)]
fn some_units(size: usize) -> usize {
    units(size).max(1)
}

#[allow(clippy::new_without_default, reason = "a heap is a static")]
impl<const BYTES: usize, L: Lock, S: Statistics> CompactHeap<BYTES, L, S> {
    /// The bytes that blocks can have: those of the lists and of the edge bits are taken off.
    pub const CAPACITY: usize = Units::<BYTES>::LEN * UNIT;

    /// A heap that nobody has used yet, all zero.
    pub const fn new() -> Self {
        // Also what refuses the size.
        let () = const { assert!(Self::CAPACITY > 0) };
        Self { lock: L::INIT, state: UnsafeCell::new(State { memory: [0; BYTES], statistics: S::EMPTY }) }
    }

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce(Units<BYTES>, &mut S) -> T) -> T {
        self.lock.with(|| {
            let state = self.state.get();
            // SAFETY: the lock lets only one closure run at a time; the memory was all zero at first, and the
            // statistics do not lie in it.
            unsafe { f(Units::new((&raw mut (*state).memory).cast()), &mut (*state).statistics) }
        })
    }

    /// As `with`, after the first use, which the statistics know of.
    #[cold]
    fn with_settled<T>(&self, f: impl FnOnce(Units<BYTES>, &mut S) -> T) -> T {
        self.with(|units, statistics| {
            units.settle();
            if units.announce() {
                statistics.grown(Self::CAPACITY);
            }
            f(units, statistics)
        })
    }

    /// Allocates `len` units; null if there is no room, which counts as a failure unless it is only an `attempt`.
    #[inline(always)]
    fn take(&self, len: usize, layout: Layout, attempt: bool) -> *mut u8 {
        self.with(|units, statistics| {
            // SAFETY: there is a unit at least, and layouts have powers of two for alignment.
            let start = unsafe {
                if layout.align() > UNIT { units.take_aligned(len, layout.align()) } else { units.take(len) }
            };
            if !start.is_null() {
                statistics.allocated(len * UNIT);
            } else if !attempt {
                statistics.failed(layout.size());
            }
            start
        })
    }

    /// Allocates a block for `layout`; a layout of size zero gets a block of 8 bytes. O(1).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the figures that tell why.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        NonNull::new(self.take(some_units(layout.size()), layout, false)).ok_or_else(|| self.reason(layout))
    }

    /// Why a request for `layout` fails.
    fn reason(&self, layout: Layout) -> OutOfMemory {
        self.with_settled(|units, statistics| {
            let largest_free = units.largest() * UNIT;
            let free = statistics.free().unwrap_or(largest_free);
            OutOfMemory { requested: layout.size(), align: layout.align(), free, largest_free }
        })
    }

    /// Frees a block, after a check in O(1) that it can be one: foreign and misaligned addresses are found always,
    /// double frees as long as the block's first or last unit is still at the edge of a free block.
    ///
    /// # Errors
    ///
    /// [`FreeError`]; the heap is unchanged then.
    ///
    /// # Safety
    ///
    /// If the check passes, the block must be live, allocated with `layout` from this heap, and not be
    /// used any more.
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|units, statistics| {
            let len = some_units(layout.size());
            units.check(block.addr().get(), len)?;
            // SAFETY: the caller vouches for a block that passes the check.
            unsafe { units.give(block.as_ptr(), len) };
            statistics.freed(len * UNIT);
            Ok(())
        })
    }

    /// Frees a block that the caller vouches for, looking only in debug builds.
    #[inline(always)]
    unsafe fn give(&self, block: *mut u8, len: usize) {
        let freed = self.with(|units, statistics| {
            if cfg!(debug_assertions) {
                units.check(block.addr(), len)?;
            }
            // SAFETY: the block is live, as the caller vouches.
            unsafe { units.give(block, len) };
            statistics.freed(len * UNIT);
            Ok(())
        });
        if let Err(error) = freed {
            misuse(error);
        }
    }

    /// Changes the length of a block where it is.
    unsafe fn resize(&self, block: *mut u8, old: usize, new: usize) -> bool {
        self.with(|units, statistics| {
            // SAFETY: passed on.
            let done = unsafe { units.resize(block, old, new) };
            if done {
                statistics.resized(old * UNIT, new * UNIT);
            }
            done
        })
    }

    /// Grows or shrinks a block without moving it. Returns whether that was possible. O(1).
    ///
    /// # Safety
    ///
    /// The block is live and was allocated with `layout` from this heap (or resized to it); what is
    /// cut off is not used any more.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // Longer than any heap: rounding such a size up could overflow.
        size <= BYTES
            // SAFETY: passed on.
            && unsafe { self.resize(block.as_ptr(), some_units(layout.size()), some_units(size)) }
    }

    /// The largest request, in bytes and with an alignment of 8 at most, that would succeed now. Always current,
    /// O(1).
    pub fn largest_free(&self) -> usize {
        self.with_settled(|units, _| units.largest() * UNIT)
    }
}

impl<const BYTES: usize, L: Lock> CompactHeap<BYTES, L, Counters> {
    /// Bytes in live blocks, each rounded up to what it takes. O(1).
    pub fn used(&self) -> usize {
        self.with(|_, statistics| statistics.used())
    }

    /// The high-water mark: the most that [`CompactHeap::used`] ever was. O(1).
    pub fn peak(&self) -> usize {
        self.with(|_, statistics| statistics.peak())
    }

    /// All statistics at one moment. O(1): nothing is walked.
    pub fn stats(&self) -> Stats {
        self.with_settled(|units, statistics| statistics.stats(units.largest() * UNIT))
    }

    /// Starts a new high-water mark at what is in use now.
    pub fn reset_peak(&self) {
        self.with(|_, statistics| statistics.reset_peak());
    }
}

// SAFETY: blocks are disjoint, as long as asked for, and aligned to a unit or as asked for; the lock excludes
// concurrent callers; nothing unwinds.
unsafe impl<const BYTES: usize, L: Lock, S: Statistics> GlobalAlloc for CompactHeap<BYTES, L, S> {
    // Sizes of zero are against the rules here, so they need no look.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.take(units(layout.size()), layout, false);
        if block.is_null() { refused_for_good(|| self.reason(layout)) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block.
        unsafe { self.give(block, units(layout.size())) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (old, new) = (units(layout.size()), units(size));
        // SAFETY: the caller passes a live block and a size that makes a valid layout; the two blocks of the copy
        // are both live and so do not overlap.
        unsafe {
            if new >= old && self.resize(block, old, new) {
                return block;
            }
            let moved = self.take(new, Layout::from_size_align_unchecked(size, layout.align()), new < old);
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.give(block, old);
            } else if new < old {
                self.resize(block, old, new);
                return block;
            } else {
                return refused_for_good(|| {
                    self.reason(Layout::from_size_align_unchecked(size, layout.align()))
                });
            }
            moved
        }
    }
}

// SAFETY: `CompactHeap` makes these promises as long as it is not moved, which the reference sees to.
unsafe impl<const BYTES: usize, L: Lock, S: Statistics> Memory for &CompactHeap<BYTES, L, S> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        (**self).try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        let block = (**self).try_allocate(layout)?;
        // SAFETY: the block has the layout's size.
        unsafe { block.write_bytes(0, layout.size()) };
        Ok(block)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { (**self).try_deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { self.give(block.as_ptr(), some_units(layout.size())) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        unsafe { (**self).try_resize(block, layout, size) }
    }

    /// As [`GlobalAlloc::realloc`], which moves a block that shrinks if there is room for it elsewhere.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let (start, from, to) = (block.as_ptr(), some_units(old.size()), some_units(new.size()));
        // SAFETY: the caller passes a live block of layout `old`; the two blocks of the copy are both live.
        unsafe {
            if new.align() == old.align() && to >= from && self.resize(start, from, to) {
                done(block);
                return Some(block);
            }
            let shrinks = new.align() == old.align() && to < from;
            match NonNull::new(self.take(to, new, shrinks)) {
                Some(moved) => {
                    moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
                    done(moved);
                    self.give(start, from);
                    Some(moved)
                }
                None if shrinks && self.resize(start, from, to) => {
                    done(block);
                    Some(block)
                }
                None => None,
            }
        }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|units, _| units.check(block.addr().get(), some_units(layout.size())))
    }

    fn statistics(&self) -> Option<Stats> {
        self.with_settled(|units, statistics| statistics.snapshot(units.largest() * UNIT))
    }

    fn largest_free(&self) -> usize {
        (**self).largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        let start = self.with(|units, _| NonNull::new(units.start()))?;
        (n == 0).then_some(Region::new(start, CompactHeap::<BYTES, L, S>::CAPACITY))
    }
}

impl<const BYTES: usize, L: Lock> fmt::Debug for CompactHeap<BYTES, L, Counters> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CompactHeap").field(&self.stats()).finish()
    }
}
