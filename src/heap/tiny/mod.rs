//! The smallest heaps: [`TinyHeap`], and [`TinyBump`] for programs that never free.

mod bump;
mod granules;

pub use bump::TinyBump;

use crate::error::FreeError;
use crate::error::out_of_memory::OutOfMemory;
use crate::lock::{self, Lock};
use crate::memory::{Done, Memory, allocator, forward::raised, refused_for_good};
use crate::observe::{Counters, NoStatistics, Statistics, Stats};
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;
pub(crate) use granules::bytes_for;
use granules::{GRANULE, Granules, granules};

/// The heap with the smallest code and the least bookkeeping: `BYTES` bytes in all, bookkeeping included.
///
/// ```
/// use allotment::TinyHeap;
///
/// #[global_allocator]
/// static HEAP: TinyHeap<{ 256 * 1024 }> = TinyHeap::new();
///
/// let numbers: Vec<u32> = (0..100).collect();
/// # drop(numbers);
/// ```
///
/// It is meant for microcontrollers with little memory. Allocations and frees are O(1). Blocks have no headers: a block takes its size
/// rounded up to 8 bytes, plus one bit per 8 bytes. In a heap of 16 KiB the free lists take 53 bytes. Unlike the general
/// [`Heap`](crate::Heap), it has only one region, adds no memory at run time, and does not track which memory is zero.
///
/// * The memory is part of the value and all zero before the first use: the static lies in `.bss`, and there is
///   nothing to initialise. `BYTES` must be a multiple of 8, from 64 bytes to 512 KiB; anything else does not
///   compile.
///
///   ```compile_fail
///   use allotment::{TinyHeap, lock::Spin};
///   static TOO_LARGE: TinyHeap<{ 1024 * 1024 }, Spin> = TinyHeap::new();
///   ```
/// * `L` is the [lock](crate::lock). `S` is the statistics: [`NoStatistics`] by default; with [`Counters`] the heap has
///   [`TinyHeap::used`], [`TinyHeap::stats`] and similar methods.
/// * A block that grows stays in place if there is room after it. A block that shrinks moves to another free block if one fits, which
///   reduces fragmentation; otherwise it shrinks in place. To resize a block without a copy, call [`TinyHeap::try_resize`].
/// * `CHECKED` is the [hardening level](crate::harden): whether the global allocator looks for invalid frees and damaged lists, as
///   [`MicroTlsf`](crate::placement::MicroTlsf) does. The default is true on targets with an operating system. Debug builds detect
///   invalid frees in any case. [`TinyHeap::try_deallocate`] always checks.
///
/// A reference, `&TinyHeap<..>`, implements [`Memory`] and `Allocator`.
///
/// The algorithm is two-level segregated fit (see [`Tlsf`](crate::Tlsf)) with two lists per power of two.
pub struct TinyHeap<
    const BYTES: usize,
    L = lock::Default,
    S = NoStatistics,
    const CHECKED: bool = { !cfg!(target_os = "none") },
> {
    lock: L,
    state: UnsafeCell<State<BYTES, S>>,
}

#[repr(C, align(8))]
struct State<const BYTES: usize, S> {
    memory: [u8; BYTES],
    statistics: S,
}

// SAFETY: the state is accessed only while the lock is held, and a lock that is `Sync` excludes all other callers.
unsafe impl<const BYTES: usize, L: Sync, S: Send, const C: bool> Sync for TinyHeap<BYTES, L, S, C> {}

/// Returns the length in granules of a block of `size` bytes; a block of size zero takes one granule.
#[inline(always)]
fn some_granules(size: usize) -> usize {
    granules(size).max(1)
}

#[allow(clippy::new_without_default, reason = "a heap is a static")]
impl<const BYTES: usize, L: Lock, S: Statistics, const C: bool> TinyHeap<BYTES, L, S, C> {
    /// Number of bytes available for blocks: `BYTES` less the free lists and boundary bits.
    pub const CAPACITY: usize = Granules::<BYTES, C>::LEN * GRANULE;

    /// Creates an empty heap, all zero.
    pub const fn new() -> Self {
        // Evaluating `CAPACITY` also rejects invalid sizes.
        let () = const { assert!(Self::CAPACITY > 0) };
        Self { lock: L::INIT, state: UnsafeCell::new(State { memory: [0; BYTES], statistics: S::EMPTY }) }
    }

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce(Granules<BYTES, C>, &mut S) -> T) -> T {
        self.lock.with(|| {
            let state = self.state.get();
            // SAFETY: the lock lets only one closure run at a time; the memory was all zero at first, and the statistics lie outside it.
            unsafe { f(Granules::new((&raw mut (*state).memory).cast()), &mut (*state).statistics) }
        })
    }

    /// Runs `f` like `with`, but makes the memory available first and reports it to the statistics once.
    #[cold]
    fn with_settled<T>(&self, f: impl FnOnce(Granules<BYTES, C>, &mut S) -> T) -> T {
        self.with(|granules, statistics| {
            granules.settle();
            if granules.announce() {
                statistics.grown(Self::CAPACITY);
            }
            f(granules, statistics)
        })
    }

    /// Allocates `len` granules. Returns null if there is no room, which counts as a failure unless it is an `attempt`.
    #[inline(always)]
    fn allocate_granules(&self, len: usize, layout: Layout, attempt: bool) -> *mut u8 {
        self.with(|granules, statistics| {
            // SAFETY: `len` is at least one, and the alignment of a layout is a power of two.
            let start = unsafe { granules.allocate(len, layout.align() - 1) };
            if !start.is_null() {
                statistics.allocated(len * GRANULE);
            } else if !attempt {
                statistics.failed(layout.size());
            }
            start
        })
    }

    /// Changes the length of a block from `from` to `to` granules. A block that grows stays in place if there is room after it, and moves
    /// otherwise. A block that shrinks moves if there is room for it elsewhere. `done` gets the address before the old block becomes
    /// free.
    ///
    /// # Safety
    ///
    /// `block` must be live and have layout `old`. If it moves, it must not be used at its old address any more.
    #[inline(always)]
    unsafe fn change_granules(
        &self,
        block: NonNull<u8>,
        (old, from): (Layout, usize),
        (new, to): (Layout, usize),
        done: impl FnOnce(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let same = new.align() == old.align();
        let shrinks = same && to < from;
        // SAFETY: the caller passes a live block; both blocks of the copy are live, so they do not overlap.
        unsafe {
            if same && !shrinks && self.resize(block.as_ptr(), from, to) {
                done(block);
                return Some(block);
            }
            match NonNull::new(self.allocate_granules(to, new, shrinks)) {
                Some(moved) => {
                    moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
                    done(moved);
                    self.free_granules(block.as_ptr(), from);
                    Some(moved)
                }
                None if shrinks && self.resize(block.as_ptr(), from, to) => {
                    done(block);
                    Some(block)
                }
                None => None,
            }
        }
    }

    /// Allocates a block for `layout`; a layout of size zero gets a block of 8 bytes. O(1).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the sizes that explain the failure.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        NonNull::new(self.allocate_granules(some_granules(layout.size()), layout, false))
            .ok_or_else(|| self.reason(layout))
    }

    /// Returns the error of a failed request for `layout`.
    fn reason(&self, layout: Layout) -> OutOfMemory {
        self.with_settled(|granules, statistics| {
            let largest_free = granules.largest() * GRANULE;
            let free = statistics.free().unwrap_or(largest_free);
            OutOfMemory::new(layout, free, largest_free)
        })
    }

    /// Frees a block after a check in O(1). The check always detects foreign and misaligned addresses. It detects double frees while the
    /// block's first or last granule is still at the edge of a free block.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check fails; the heap is unchanged then.
    ///
    /// # Safety
    ///
    /// If the check passes, the block must be live, must have been allocated with `layout` from this heap, and must
    /// not be used any more.
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|granules, statistics| {
            let len = some_granules(layout.size());
            granules.check(block.addr().get(), len)?;
            // SAFETY: the block passed the check, so the caller guarantees that it is live and has `len` granules.
            if !unsafe { granules.free(block.as_ptr(), len) } {
                return Err(FreeError::AlreadyFree);
            }
            statistics.freed(len * GRANULE);
            Ok(())
        })
    }

    /// Frees a block. Debug builds check it beforehand.
    ///
    /// # Safety
    ///
    /// The block must be live, have `len` granules, and not be used any more.
    #[inline(always)]
    unsafe fn free_granules(&self, block: *mut u8, len: usize) {
        let freed = self.with(|granules, statistics| {
            if cfg!(debug_assertions) {
                granules.check(block.addr(), len)?;
            }
            // SAFETY: the caller guarantees that the block is live and has `len` granules.
            if !unsafe { granules.free(block, len) } {
                return Err(granules.check(block.addr(), len).err().unwrap_or(FreeError::AlreadyFree));
            }
            statistics.freed(len * GRANULE);
            Ok(())
        });
        if let Err(error) = freed {
            crate::error::misuse::invalid_free(error, block.addr());
        }
    }

    /// Changes the length of a block in place, in granules. Returns whether that was possible. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live and have `old` granules; granules that it cuts off must not be used any more.
    unsafe fn resize(&self, block: *mut u8, old: usize, new: usize) -> bool {
        self.with(|granules, statistics| {
            // SAFETY: the caller guarantees a live block of `old` granules.
            let done = unsafe { granules.resize(block, old, new) };
            if done {
                statistics.resized(old * GRANULE, new * GRANULE);
            }
            done
        })
    }

    /// Grows or shrinks a block without moving it. Returns whether that was possible. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live and must have been allocated with `layout` from this heap (or resized to it); bytes that it cuts off must
    /// not be used any more.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // Larger sizes never fit, and rounding them up could overflow.
        size <= BYTES
            // SAFETY: the caller guarantees a live block of `layout`.
            && unsafe { self.resize(block.as_ptr(), some_granules(layout.size()), some_granules(size)) }
    }

    /// Returns the largest request in bytes, with an alignment of at most 8, that would succeed now. Always current.
    /// O(1).
    pub fn largest_free(&self) -> usize {
        self.with_settled(|granules, _| granules.largest() * GRANULE)
    }
}

impl<const BYTES: usize, L: Lock, const C: bool> TinyHeap<BYTES, L, Counters, C> {
    /// Returns the bytes in live blocks, each rounded up to a multiple of 8. O(1).
    pub fn used(&self) -> usize {
        self.with(|_, statistics| statistics.used())
    }

    /// Returns the high-water mark: the largest value that [`TinyHeap::used`] has had. O(1).
    pub fn peak(&self) -> usize {
        self.with(|_, statistics| statistics.peak())
    }

    /// Returns a consistent copy of all statistics. O(1).
    pub fn stats(&self) -> Stats {
        self.with_settled(|granules, statistics| statistics.stats(granules.largest() * GRANULE))
    }

    /// Resets the high-water mark to the current use.
    pub fn reset_peak(&self) {
        self.with(|_, statistics| statistics.reset_peak());
    }
}

// SAFETY: blocks are disjoint and have at least the requested size and alignment; the lock excludes concurrent
// callers; no method unwinds.
unsafe impl<const BYTES: usize, L: Lock, S: Statistics, const C: bool> GlobalAlloc
    for TinyHeap<BYTES, L, S, C>
{
    // The contract of `GlobalAlloc` excludes sizes of zero.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let layout = raised(layout);
        let block = self.allocate_granules(granules(layout.size()), layout, false);
        if block.is_null() { refused_for_good(|| self.reason(layout)) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block.
        unsafe { self.free_granules(block, granules(layout.size())) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a size that makes a valid layout.
        unsafe {
            let (block, new) =
                (NonNull::new_unchecked(block), Layout::from_size_align_unchecked(size, layout.align()));
            let (from, to) = (granules(layout.size()), granules(size));
            match self.change_granules(block, (layout, from), (new, to), |_| ()) {
                Some(block) => block.as_ptr(),
                None => refused_for_good(|| self.reason(new)),
            }
        }
    }
}

// SAFETY: `TinyHeap` keeps these promises while it does not move, and the shared reference prevents moves.
unsafe impl<const BYTES: usize, L: Lock, S: Statistics, const C: bool> Memory for &TinyHeap<BYTES, L, S, C> {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.allocate_granules(some_granules(layout.size()), layout, false))
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of `try_deallocate`.
        unsafe { (**self).try_deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a live block of this heap and its layout.
        unsafe { self.free_granules(block.as_ptr(), some_granules(layout.size())) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller keeps the contract of `try_resize`.
        unsafe { (**self).try_resize(block, layout, size) }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        let (from, to) = (some_granules(old.size()), some_granules(new.size()));
        // SAFETY: the caller passes a live block of layout `old`.
        unsafe { self.change_granules(block, (old, from), (new, to), done) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let (address, size) = (block.addr().get(), some_granules(layout.size()) * GRANULE);
        let offset = address.wrapping_sub(self.with(|granules, _| granules.start()).addr());
        if offset >= TinyHeap::<BYTES, L, S, C>::CAPACITY
            || size > TinyHeap::<BYTES, L, S, C>::CAPACITY - offset
        {
            return Err(FreeError::Foreign);
        }
        if address % GRANULE.max(layout.align()) == 0 { Ok(()) } else { Err(FreeError::Misaligned) }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|granules, _| granules.check(block.addr().get(), some_granules(layout.size())))
    }

    fn statistics(&self) -> Option<Stats> {
        self.with_settled(|granules, statistics| statistics.snapshot(granules.largest() * GRANULE))
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        self.reason(layout)
    }

    fn largest_free(&self) -> usize {
        (**self).largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        let start = self.with(|granules, _| NonNull::new(granules.start()))?;
        (n == 0).then_some(Region::new(start, TinyHeap::<BYTES, L, S, C>::CAPACITY))
    }

    #[cfg(all(feature = "std", unix))]
    fn locks(&self, visit: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {
        visit(self.lock.at_fork());
    }
}

allocator!([const BYTES: usize, L: Lock, S: Statistics, const C: bool] &'_ TinyHeap<BYTES, L, S, C>);

impl<const BYTES: usize, L: Lock, const C: bool> fmt::Debug for TinyHeap<BYTES, L, Counters, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TinyHeap").field(&self.stats()).finish()
    }
}
