//! [`Kept`]: blocks that stay available for large requests.

use crate::error::{FreeError, misuse::report_refused};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, global_alloc, pass_on, refused};
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A memory that keeps `COUNT` blocks for requests of certain sizes, so that these never fail however fragmented it becomes.
///
/// A device that reconnects for years needs a buffer of 16 KiB for each TLS connection, and one day finds enough bytes free, but not in
/// one piece. This front allocates the blocks at the first request, while the memory is in one piece, and hands them out for requests in
/// the range of sizes that it is given. A freed block is kept for the next such request.
///
/// ```
/// use allotment::{Heap, Kept, Memory, heap};
/// use core::alloc::Layout;
///
/// // Two buffers of a TLS connection, of up to 16,717 bytes each.
/// static HEAP: Kept<Heap, 2> = Kept::new(heap!(96 * 1024), 16_384, 16_717);
///
/// let buffer = Layout::new::<[u8; 16_717]>();
/// let small = Layout::new::<[u8; 200]>();
/// while HEAP.try_allocate(small).is_ok() {} // all other memory is in use
/// assert!(HEAP.try_allocate(buffer).is_ok() && HEAP.try_allocate(buffer).is_ok());
/// ```
///
/// While the kept blocks are in use, further requests of these sizes are the memory's, like all others. Blocks are kept for alignments of up
/// to 8 bytes. If there is no room for a block at first, the front tries again whenever a block of such a size is freed
/// ([`Kept::missing`] counts the rest). The memory's statistics count kept blocks as used.
///
/// A request or free of fewer than `least` bytes costs a load and a comparison more than the memory's own; one in the range is O(`COUNT`).
pub struct Kept<M, const COUNT: usize = 1, L = lock::Default> {
    memory: M,
    least: usize,
    most: usize,
    /// The size from which requests are looked at: all of them before the first one, then `least` bytes.
    from: AtomicUsize,
    lock: Locked<[Place; COUNT], L>,
}

/// A kept block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The memory had no room for it yet.
    Missing,
    Free(NonNull<u8>),
    Used(NonNull<u8>),
}

// SAFETY: the block belongs to the memory, and nothing else knows of it.
unsafe impl Send for Place {}

impl<M, const COUNT: usize, L: Lock> Kept<M, COUNT, L> {
    /// The alignment of kept blocks in bytes.
    const ALIGN: usize = 8;

    /// Creates a front of `memory` that keeps `COUNT` blocks of `most` bytes for requests of `least` to `most` bytes.
    ///
    /// # Panics
    ///
    /// If `least` is zero or more than `most`. In a static this is a compiler error.
    pub const fn new(memory: M, least: usize, most: usize) -> Self {
        assert!(0 < least && least <= most && most <= isize::MAX as usize - 7, "a range of sizes goes up");
        Self { memory, least, most, from: AtomicUsize::new(0), lock: Locked::new([Place::Missing; COUNT]) }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns how many kept blocks the next requests can have. O(`COUNT`).
    pub fn available(&self) -> usize {
        self.count(|place| matches!(place, Place::Free(_)))
    }

    /// Returns how many blocks found no room yet: all of them before the first request. O(`COUNT`).
    pub fn missing(&self) -> usize {
        self.count(|place| place == Place::Missing)
    }

    fn count(&self, is: impl Fn(Place) -> bool) -> usize {
        self.lock.with(|places| places.iter().filter(|&&place| is(place)).count())
    }

    /// Returns whether a request or free is shorter than all that are looked at.
    #[inline(always)]
    fn passes(&self, layout: Layout) -> bool {
        layout.size() < self.from.load(Ordering::Relaxed)
    }

    /// Returns whether blocks of this layout may be kept ones.
    #[inline(always)]
    fn is_kept(&self, layout: Layout) -> bool {
        layout.size().wrapping_sub(self.least) <= self.most - self.least && layout.align() <= Self::ALIGN
    }

    /// Marks a free place as used, and returns its block.
    fn pick(&self) -> Option<NonNull<u8>> {
        self.lock.with(|places| {
            places.iter_mut().find_map(|place| match *place {
                Place::Free(block) => {
                    *place = Place::Used(block);
                    Some(block)
                }
                _ => None,
            })
        })
    }

    /// Checks a kept block; `None` if the memory behind has it.
    fn check_kept(&self, block: NonNull<u8>, layout: Layout) -> Option<Result<(), FreeError>> {
        let place = self.is_kept(layout).then(|| self.place_of(block)).flatten()?;
        Some(if matches!(place, Place::Free(_)) { Err(FreeError::AlreadyFree) } else { Ok(()) })
    }

    /// Returns the state of the kept block at this address, if there is one.
    fn place_of(&self, block: NonNull<u8>) -> Option<Place> {
        let is = |place: Place| place == Place::Used(block) || place == Place::Free(block);
        self.lock.with(|places| places.iter().copied().find(|&place| is(place)))
    }

    /// Marks the kept block at this address as free; `None` if there is none.
    fn keep_again(&self, block: NonNull<u8>) -> Option<Result<(), FreeError>> {
        self.lock.with(|places| {
            places.iter_mut().find_map(|place| match *place {
                Place::Used(used) if used == block => {
                    *place = Place::Free(block);
                    Some(Ok(()))
                }
                Place::Free(free) if free == block => Some(Err(FreeError::AlreadyFree)),
                _ => None,
            })
        })
    }
}

impl<M: Memory, const COUNT: usize, L: Lock> Kept<M, COUNT, L> {
    /// Allocates a kept block, if this layout may have one and one is free. Reserves them at the first request.
    #[inline(always)]
    fn kept_for(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.from.load(Ordering::Relaxed) == 0 {
            self.from.store(self.least, Ordering::Relaxed);
            self.reserve();
        }
        if self.is_kept(layout) { self.pick() } else { None }
    }

    /// Allocates a block for a request that may get a kept one, or is the first. Size and alignment come as the global allocator gets
    /// them, so that nothing has to be moved.
    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller has a layout of this size and alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        self.kept_for(layout).or_else(|| self.memory.allocate(layout))
    }

    /// Frees a block that may be a kept one.
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::deallocate`].
    #[inline(never)]
    unsafe fn free_large(&self, block: NonNull<u8>, size: usize, align: usize) {
        // SAFETY: the caller has a layout of this size and alignment, and keeps the contract.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, align);
            if self.is_kept(layout) {
                report_refused(self.try_deallocate(block, layout), block);
            } else {
                self.memory.deallocate(block, layout);
            }
        }
    }

    /// Allocates the blocks that are missing, as far as there is room.
    #[cold]
    #[inline(never)]
    fn reserve(&self) {
        let Ok(layout) = Layout::from_size_align(self.most, Self::ALIGN) else { return };
        while self.missing() > 0 {
            // Outside the lock, which the memory's need not nest in.
            let Some(block) = self.memory.allocate(layout) else { return };
            let kept = self.lock.with(|places| {
                let missing = places.iter_mut().find(|place| **place == Place::Missing);
                missing.map(|place| *place = Place::Free(block)).is_some()
            });
            if !kept {
                // Another caller was faster.
                // SAFETY: the block is live, has this layout, and is known to this caller only.
                unsafe { self.memory.deallocate(block, layout) };
            }
        }
    }
}

// SAFETY: a kept block is a live block of the memory, which has one user at a time: the lock guards its mark.
unsafe impl<M: Memory, const COUNT: usize, L: Lock> Memory for Kept<M, COUNT, L> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.passes(layout) {
            self.memory.allocate(layout)
        } else {
            self.allocate_large(layout.size(), layout.align())
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let Some(block) = self.kept_for(layout) else { return self.memory.allocate_zeroed(layout) };
        // SAFETY: the block has as many bytes.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.passes(layout) {
                self.memory.deallocate(block, layout);
            } else {
                self.free_large(block, layout.size(), layout.align());
            }
        }
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.is_kept(layout) {
            if let Some(freed) = self.keep_again(block) {
                return freed;
            }
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_deallocate(block, layout)? };
        if self.is_kept(layout) && self.missing() > 0 {
            self.reserve();
        }
        Ok(())
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check_kept(block, layout).unwrap_or_else(|| self.memory.check(block, layout))
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        self.check_kept(block, layout).unwrap_or_else(|| unsafe { self.memory.check_owned(block, layout) })
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        if self.is_kept(layout) && self.place_of(block).is_some() {
            return self.least <= size && size <= self.most;
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_resize(block, layout, size) }
    }

    fn largest_free(&self) -> usize {
        let kept = if self.available() > 0 { self.most } else { 0 };
        self.memory.largest_free().max(kept)
    }

    #[inline]
    fn allocate_or_report(&self, layout: Layout) -> *mut u8 {
        if self.passes(layout) {
            return self.memory.allocate_or_report(layout);
        }
        self.allocate_large(layout.size(), layout.align()).map_or_else(
            || refused(self, layout, || self.allocate_large(layout.size(), layout.align())),
            NonNull::as_ptr,
        )
    }

    pass_on!(|self| self.memory; statistics, out_of_memory, region, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, const COUNT: usize, L: Lock] Kept<M, COUNT, L>);
allocator!([M: Memory, const COUNT: usize, L: Lock] Kept<M, COUNT, L>);

debug!([M, const COUNT: usize, L: Lock] Kept<M, COUNT, L>, |self| least: self.least, most: self.most, available: self.available());
