//! [`Kept`]: blocks that stay available for large requests.

use crate::error::{FreeError, misuse::invalid_free};
use crate::front::locked::Locked;
use crate::lock::{self, Lock};
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
/// A request of this range always takes a whole block: while the kept ones are in use, further ones come from the memory, which gets them
/// back. Blocks are kept for alignments of up to 8 bytes. If there is no room for a block at first, the front tries again whenever a block
/// of such a size is freed ([`Kept::missing`] counts the rest). The memory's statistics count kept blocks as used.
///
/// A request or free of fewer than `least` bytes costs a load and a comparison more than the memory's own; one in the range is O(`COUNT`).
pub struct Kept<M, const COUNT: usize = 1, L = lock::Default> {
    memory: M,
    least: usize,
    most: usize,
    /// The size from which requests are looked at: all of them before the first one, then `least` bytes.
    from: AtomicUsize,
    lock: Locked<Places<COUNT>, L>,
}

/// The blocks of the range.
struct Places<const COUNT: usize> {
    /// Those that wait, the first `free` places.
    blocks: [NonNull<u8>; COUNT],
    free: usize,
    /// How many are in use.
    used: usize,
}

// SAFETY: the blocks belong to the memory, and nothing else knows of them.
unsafe impl<const COUNT: usize> Send for Places<COUNT> {}

impl<const COUNT: usize> Places<COUNT> {
    /// How many are missing.
    fn missing(&self) -> usize {
        COUNT.saturating_sub(self.free + self.used)
    }

    /// Returns whether the block waits already.
    fn has(&self, block: NonNull<u8>) -> bool {
        self.blocks.iter().take(self.free).any(|&free| free == block)
    }

    /// Adds a block that waits, if one is missing.
    fn add(&mut self, block: NonNull<u8>) -> bool {
        let missing = self.missing() > 0;
        if let Some(place) = self.blocks.get_mut(self.free).filter(|_| missing) {
            *place = block;
            self.free += 1;
        }
        missing
    }
}

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
        let places = Places { blocks: [NonNull::dangling(); COUNT], free: 0, used: 0 };
        Self { memory, least, most, from: AtomicUsize::new(0), lock: Locked::new(places) }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns how many kept blocks the next requests can have. O(1).
    pub fn available(&self) -> usize {
        self.lock.with(|places| places.free)
    }

    /// Returns how many blocks found no room yet: all of them before the first request. O(1).
    pub fn missing(&self) -> usize {
        self.lock.with(|places| places.missing())
    }

    /// Returns whether a request or free is none of the front's business.
    #[inline(always)]
    fn passes(&self, layout: Layout) -> bool {
        layout.size() < self.from.load(Ordering::Relaxed)
    }

    /// Returns whether blocks of this layout are of the range.
    #[inline(always)]
    fn is_kept(&self, layout: Layout) -> bool {
        self.is_in_range(layout.size()) && layout.align() <= Self::ALIGN
    }

    #[inline(always)]
    fn is_in_range(&self, size: usize) -> bool {
        size.wrapping_sub(self.least) <= self.most - self.least
    }

    /// Returns the layout of all blocks of the range.
    #[inline(always)]
    const fn whole(&self) -> Layout {
        // SAFETY: `new` has checked that the size can be rounded up, and the alignment is a power of two.
        unsafe { Layout::from_size_align_unchecked(self.most, Self::ALIGN) }
    }
}

impl<M: Memory, const COUNT: usize, L: Lock> Kept<M, COUNT, L> {
    /// Allocates a block for a request that may be of the range, or is the first. Size and alignment come as the global allocator gets
    /// them, so that nothing has to be moved.
    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller has a layout of this size and alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        if self.from.load(Ordering::Relaxed) == 0 {
            self.from.store(self.least, Ordering::Relaxed);
            self.reserve();
        }
        if !self.is_kept(layout) {
            return self.memory.allocate(layout);
        }
        let kept = self.lock.with(|places| {
            places.free = places.free.checked_sub(1)?;
            places.used += 1;
            places.blocks.get(places.free).copied()
        });
        kept.or_else(|| {
            // Counted only when it is there, so that no other thread takes the kept blocks for too many.
            let block = self.memory.allocate(self.whole())?;
            self.lock.with(|places| places.used += 1);
            Some(block)
        })
    }

    /// Frees a block that may be of the range.
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::deallocate`].
    #[inline(never)]
    unsafe fn free_large(&self, block: NonNull<u8>, size: usize, align: usize) {
        // SAFETY: the caller has a layout of this size and alignment.
        let mut layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        if self.is_kept(layout) {
            let freed = self.lock.with(|places| {
                if places.has(block) {
                    return Err(FreeError::AlreadyFree);
                }
                places.used = places.used.saturating_sub(1);
                Ok(places.add(block))
            });
            match freed {
                Ok(false) => layout = self.whole(),
                Ok(true) => return self.reserve(),
                Err(error) => return invalid_free(error, block.addr().get()),
            }
        }
        // SAFETY: the caller's contract; a block of the range was allocated as a whole one.
        unsafe { self.memory.deallocate(block, layout) };
    }

    /// Allocates the blocks that are missing, as far as there is room.
    fn reserve(&self) {
        while self.missing() > 0 {
            // Outside the lock, which the memory's need not nest in.
            let Some(block) = self.memory.allocate(self.whole()) else { return };
            if !self.lock.with(|places| places.add(block)) {
                // Another caller was faster.
                // SAFETY: the block is live, has this layout, and is known to this caller only.
                unsafe { self.memory.deallocate(block, self.whole()) };
            }
        }
    }

    /// Checks a free of the range: an error if the block waits already, or the layout that the memory knows.
    fn known(&self, block: NonNull<u8>, layout: Layout) -> Result<Layout, FreeError> {
        match self.is_kept(layout) {
            true if self.lock.with(|places| places.has(block)) => Err(FreeError::AlreadyFree),
            true => Ok(self.whole()),
            false => Ok(layout),
        }
    }
}

// SAFETY: a kept block is a live block of the memory, which has one user at a time: the lock guards the places.
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
        if !self.is_kept(layout) && self.from.load(Ordering::Relaxed) != 0 {
            return self.memory.allocate_zeroed(layout);
        }
        let block = self.allocate_large(layout.size(), layout.align())?;
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

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, self.known(block, layout)?)
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let known = self.known(block, layout)?;
        // SAFETY: the caller's contract.
        unsafe { self.memory.check_owned(block, known) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let (is, stays) = (self.is_kept(layout), self.is_in_range(size) && layout.align() <= Self::ALIGN);
        if is || stays {
            return is && stays;
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
