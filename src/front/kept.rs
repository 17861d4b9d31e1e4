//! [`Kept`]: blocks reserved for large requests.

use crate::error::FreeError;
use crate::error::misuse::{report_refused, without_unwinding};
use crate::error::out_of_memory::{Cause, OutOfMemory};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, global_alloc, pass_on};
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

/// A memory that keeps `COUNT` blocks for requests of certain sizes, so that these never fail, however fragmented the memory becomes.
///
/// A device that reconnects for years needs a buffer of 16 KiB for each TLS connection, and one day finds enough free bytes, but not in
/// one piece. This front allocates its blocks at the first request, while the memory is in one piece, and uses them for requests in a
/// given range of sizes. A freed block is kept for the next such request.
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
/// While all kept blocks are in use, further requests of these sizes go to the memory, like all others. Kept blocks suit alignments of up
/// to 8 bytes. If there is no room for a block at first, the front tries again whenever a block of such a size is freed
/// ([`Kept::missing`] counts the missing ones). The memory's statistics count kept blocks as used.
/// Dropping the front does not free them.
///
/// A request fails with [`Cause::Kept`] if a free kept block is long enough, but is reserved for other requests. If `YIELDS` is true,
/// each request that finds no room gets the memory of free kept blocks. They are then missing.
///
/// A request or free of fewer than `least` bytes costs a load and a comparison more than in the memory alone; within the range the cost
/// is O(`COUNT`).
pub struct Kept<M, const COUNT: usize = 1, L = lock::Default, const YIELDS: bool = false> {
    memory: M,
    least: usize,
    most: usize,
    /// Bytes of the smallest request that takes the slow path: 0 before the first request, then `least`.
    from: AtomicUsize,
    /// Returns whether the current request may get a kept block.
    only: Option<fn() -> bool>,
    lock: Locked<[Place; COUNT], L>,
}

/// A kept block: null while it is missing, its address while it is in use, and its address plus one while it is free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place(*mut u8);

// SAFETY: the block belongs to the memory, and nothing else has its address.
unsafe impl Send for Place {}

impl Place {
    const MISSING: Self = Self(ptr::null_mut());

    fn free(block: NonNull<u8>) -> Self {
        Self(block.as_ptr().wrapping_add(1))
    }

    /// Returns `None` for an odd address, which no block has.
    fn used(block: NonNull<u8>) -> Option<Self> {
        Some(Self(block.as_ptr())).filter(|place| !place.is_free())
    }

    fn is_free(self) -> bool {
        self.0.addr() % 2 != 0
    }
}

impl<M, const COUNT: usize, L: Lock, const YIELDS: bool> Kept<M, COUNT, L, YIELDS> {
    /// The alignment of kept blocks in bytes.
    const ALIGN: usize = 8;

    /// Creates a front of `memory` that keeps `COUNT` blocks of `most` bytes for requests of `least` to `most` bytes.
    ///
    /// # Panics
    ///
    /// If `least` is zero or more than `most`. In a static this is a compiler error.
    pub const fn new(memory: M, least: usize, most: usize) -> Self {
        assert!(0 < least && least <= most && most <= isize::MAX as usize - 7, "a range of sizes goes up");
        let lock = Locked::new([Place::MISSING; COUNT]);
        Self { memory, least, most, from: AtomicUsize::new(0), only: None, lock }
    }

    /// Reserves kept blocks for requests for which `asked` returns true, such as those under a tag. Each request in the range of sizes
    /// calls it.
    ///
    /// ```
    /// use allotment::{Heap, Kept, Memory, heap, observe};
    /// use core::alloc::Layout;
    ///
    /// static HEAP: Kept<Heap> = Kept::new(heap!(8 * 1024), 1, 1500).only(|| observe::tag() == Some("net"));
    ///
    /// let small = Layout::new::<[u8; 200]>();
    /// while HEAP.try_allocate(small).is_ok() {}
    /// assert!(observe::with_tag("net", || HEAP.try_allocate(small)).is_ok());
    /// ```
    #[must_use]
    pub const fn only(mut self, asked: fn() -> bool) -> Self {
        self.only = Some(asked);
        self
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the number of free kept blocks. O(`COUNT`).
    pub fn available(&self) -> usize {
        self.count(Place::is_free)
    }

    /// Returns how many blocks are still to be allocated: all of them before the first request. O(`COUNT`).
    pub fn missing(&self) -> usize {
        self.count(|place| place == Place::MISSING)
    }

    fn count(&self, is: impl Fn(Place) -> bool) -> usize {
        self.lock.with(|places| places.iter().filter(|&&place| is(place)).count())
    }

    /// Returns whether a request or free is too small for a kept block.
    #[inline(always)]
    fn passes(&self, layout: Layout) -> bool {
        layout.size() < self.from.load(Ordering::Relaxed)
    }

    /// Returns whether a kept block may have this layout.
    #[inline(always)]
    fn is_kept(&self, layout: Layout) -> bool {
        layout.size().wrapping_sub(self.least) <= self.most - self.least && layout.align() <= Self::ALIGN
    }

    /// Changes the first place for which `is` returns true, and returns its block.
    #[inline(always)]
    fn mark(&self, is: impl Fn(Place) -> bool, new: impl Fn(NonNull<u8>) -> Place) -> Option<NonNull<u8>> {
        self.lock.with(|places| {
            let place = places.iter_mut().find(|place| is(**place))?;
            let block = NonNull::new(place.0.wrapping_sub(usize::from(place.is_free())))?;
            *place = new(block);
            Some(block)
        })
    }

    /// Marks a free place as used, and returns its block.
    fn pick(&self) -> Option<NonNull<u8>> {
        self.mark(Place::is_free, |block| Place(block.as_ptr()))
    }

    /// Checks a kept block. Returns `None` if the block is not a kept one.
    fn check_kept(&self, block: NonNull<u8>, layout: Layout) -> Option<Result<(), FreeError>> {
        if !self.is_kept(layout) {
            return None;
        }
        self.lock.with(|places| {
            let free = places.contains(&Place::free(block)).then_some(Err(FreeError::AlreadyFree));
            free.or_else(|| places.contains(&Place::used(block)?).then_some(Ok(())))
        })
    }

    /// Marks the kept block at this address as free. Returns `None` if there is none.
    fn keep_again(&self, block: NonNull<u8>) -> Option<Result<(), FreeError>> {
        self.lock.with(|places| {
            places.iter_mut().find_map(|place| {
                if *place == Place::free(block) {
                    return Some(Err(FreeError::AlreadyFree));
                }
                (Some(*place) == Place::used(block)).then(|| *place = Place::free(block)).map(Ok)
            })
        })
    }
}

impl<M: Memory, const COUNT: usize, L: Lock, const YIELDS: bool> Kept<M, COUNT, L, YIELDS> {
    /// Allocates a kept block, if this layout may have one and one is free. The first request reserves all kept blocks.
    #[inline(always)]
    fn kept_for(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.begin();
        if self.is_kept(layout) && self.may_have() { self.pick() } else { None }
    }

    /// Reserves the kept blocks before the first request.
    #[inline(always)]
    fn begin(&self) {
        if self.from.load(Ordering::Relaxed) == 0 {
            self.from.store(self.least, Ordering::Relaxed);
            self.reserve();
        }
    }

    /// Returns whether the caller's requests may have kept blocks.
    #[inline(always)]
    fn may_have(&self) -> bool {
        self.only.is_none_or(without_unwinding)
    }

    /// Allocates a block for the first request, or for a request that may get a kept block. The parameters are those of the global
    /// allocator, in its order, so that no register has to be moved.
    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller has a layout of this size and alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        self.kept_for(layout).or_else(|| self.request(layout))
    }

    /// Allocates a block of the memory, including that of kept blocks if `YIELDS` is true.
    #[inline(always)]
    fn request(&self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.memory.allocate(layout);
        if YIELDS && block.is_none() { self.yielded(layout) } else { block }
    }

    /// Frees kept blocks that are not in use until the request finds room.
    #[cold]
    #[inline(never)]
    fn yielded(&self, layout: Layout) -> Option<NonNull<u8>> {
        let kept = Layout::from_size_align(self.most, Self::ALIGN).ok()?;
        while let Some(block) = self.mark(Place::is_free, |_| Place::MISSING) {
            // SAFETY: the block is live, has this layout, and only this call has its address.
            unsafe { self.memory.deallocate(block, kept) };
            if let Some(block) = self.memory.allocate(layout) {
                return Some(block);
            }
        }
        self.reserve();
        None
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
            let kept = self.is_kept(layout);
            if kept && let Some(freed) = self.keep_again(block) {
                report_refused(freed, block);
                return;
            }
            self.memory.deallocate(block, layout);
            if kept && self.missing() > 0 {
                self.reserve();
            }
        }
    }

    /// Allocates missing blocks until the memory has no room.
    #[cold]
    #[inline(never)]
    fn reserve(&self) {
        let Ok(layout) = Layout::from_size_align(self.most, Self::ALIGN) else { return };
        while self.missing() > 0 {
            // Outside the lock, in which the memory's lock might not nest.
            let Some(block) = self.memory.allocate(layout) else { return };
            let kept = self.lock.with(|places| {
                let missing = places.iter_mut().find(|place| **place == Place::MISSING);
                missing.map(|place| *place = Place::free(block)).is_some()
            });
            if !kept {
                // Another caller reserved the last one meanwhile.
                // SAFETY: the block is live, has this layout, and only this call has its address.
                unsafe { self.memory.deallocate(block, layout) };
            }
        }
    }
}

// SAFETY: a kept block is a live block of the memory, which has one user at a time: the lock guards its mark.
unsafe impl<M: Memory, const COUNT: usize, L: Lock, const YIELDS: bool> Memory for Kept<M, COUNT, L, YIELDS> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.passes(layout) {
            self.request(layout)
        } else {
            self.allocate_large(layout.size(), layout.align())
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let block = match self.kept_for(layout) {
            Some(block) => block,
            None => match self.memory.allocate_zeroed(layout) {
                None if YIELDS => self.yielded(layout)?,
                block => return block,
            },
        };
        // SAFETY: the block has at least this many bytes.
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
        if self.is_kept(layout)
            && self.lock.with(|places| Place::used(block).is_some_and(|used| places.contains(&used)))
        {
            return self.least <= size && size <= self.most;
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_resize(block, layout, size) }
    }

    fn largest_free(&self) -> usize {
        self.begin();
        let kept = if self.available() > 0 && self.may_have() { self.most } else { 0 };
        self.memory.largest_free().max(kept)
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let error = self.memory.out_of_memory(layout);
        // If no kept block is free, the request fails as it would without the front.
        let kept = layout.size() <= self.most && layout.align() <= Self::ALIGN && self.available() > 0;
        OutOfMemory { rule: error.rule.or(kept.then_some(Cause::Kept)), ..error }
    }

    pass_on!(|self| self.memory; statistics, region, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, const COUNT: usize, L: Lock, const YIELDS: bool] Kept<M, COUNT, L, YIELDS>);
allocator!([M: Memory, const COUNT: usize, L: Lock, const YIELDS: bool] Kept<M, COUNT, L, YIELDS>);

debug!([M, const COUNT: usize, L: Lock, const YIELDS: bool] Kept<M, COUNT, L, YIELDS>, |self| least: self.least, most: self.most, available: self.available());
