//! A heap with a cache per thread.

use super::classes::{class_of, layout_of};
use super::depot::{Depot, Round};
use super::local::{self, Behind, Owner};
use crate::heap::{Heap, OutOfMemory};
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::observe::{Counters, Statistics, Stats};
use crate::out_of_memory::refused;
use crate::placement::{LayoutPlacement, Tiered};
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{self, NonNull};

/// Puts a cache per thread in front of a [`Heap`], so that threads get and free small blocks without taking its
/// lock.
///
/// ```
/// use allotment::os::{Cached, Depot};
/// use allotment::{Heap, Tiered, heap};
///
/// static HEAP: Heap<Tiered> = heap!(64 * 1024 * 1024);
/// static DEPOT: Depot<Tiered> = Depot::new(&HEAP, 512 * 1024); // bytes that a thread may keep
/// #[global_allocator]
/// static CACHED: Cached<Tiered> = Cached::new(&DEPOT);
///
/// let words: Vec<String> = "any thread".split(' ').map(str::to_owned).collect();
/// assert!(HEAP.used() > 0);
/// # drop(words);
/// ```
///
/// ```text
///  thread     8 B | 16 B | 24 B | .. | 4 KiB          per class two magazines: arrays of free blocks
///                    |  full v  ^ empty
///  depot      8 B | 16 B | 24 B | .. | 4 KiB          magazines on their way between threads
///                    |       v  ^ batches, one lock
///  heap
/// ```
///
/// Blocks of up to 4 KiB (with alignments up to 8) are divided into 48 classes; other requests go to the heap. Any
/// thread may free a block, which then stays in that thread's cache. If a thread frees more than it allocates, the
/// surplus goes through the depot to threads that allocate more than they free, a magazine at a time and without a
/// lock. A thread keeps a bounded number of bytes, few of classes that it rarely uses, and none after it has ended.
/// When a request fails, the caches of its thread and the depot are given back at once, and the request is tried
/// again; the other threads give their caches back at their next operation. The heap regards cached blocks as in
/// use: [`Heap::used`] counts them, and wrong frees are detected only when the blocks go back.
///
/// A thread caches the first four heaps that it uses, and accesses further ones directly. `Cached` can be the
/// global allocator wherever thread-local storage needs no allocation, that is, on all targets with native support
/// for it.
///
/// Both operations are O(1), including batches of at most 64 operations of the heap. (Bonwick and Adams, "Magazines
/// and Vmem", USENIX 2001.)
pub struct Cached<P: 'static = Tiered, L: 'static = lock::Default, S: 'static = Counters> {
    depot: &'static Depot<P, L, S>,
}

impl<P, L, S> Clone for Cached<P, L, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, L, S> Copy for Cached<P, L, S> {}

impl<P: LayoutPlacement, L: Lock, S: Statistics> Behind for Heap<P, L, S> {
    fn take(&self, layout: Layout, blocks: &mut [Round]) -> usize {
        self.allocate_many(layout, blocks)
    }

    unsafe fn give(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        // SAFETY: the caller's contract.
        unsafe { self.deallocate_many(layout, blocks) }
    }
}

impl<P: LayoutPlacement, L: Lock, S: Statistics> Cached<P, L, S> {
    /// Makes caches in front of the heap of `depot`, through which the threads exchange blocks.
    ///
    /// The heap may be used directly as well, but a block must be freed through `Cached` if and only if it was
    /// allocated through it.
    pub const fn new(depot: &'static Depot<P, L, S>) -> Self {
        Self { depot }
    }

    /// Returns the heap behind the caches.
    pub const fn heap(&self) -> &'static Heap<P, L, S> {
        self.depot.heap
    }

    /// Gives everything that the calling thread and the depot keep back to the heap. Call it before a thread sleeps
    /// for long, or to see what is really in use.
    pub fn flush(&self) {
        local::flush(self.owner());
    }

    fn owner(&self) -> Owner {
        Owner { heap: self.heap(), depot: &self.depot.exchange }
    }

    #[inline(never)]
    fn take_anywhere(&self, class: usize) -> *mut u8 {
        let request = || local::take_anywhere(self.owner(), class);
        request().map_or_else(|| refused(self.heap(), layout_of(class), request), NonNull::as_ptr)
    }

    #[inline(never)]
    unsafe fn give_anywhere(&self, class: usize, block: NonNull<u8>) {
        // SAFETY: the caller's contract.
        unsafe { local::give_anywhere(self.owner(), class, block) }
    }

    /// Serves a request that has no class. It is not inlined, so that the fast path saves no registers.
    #[inline(never)]
    fn allocate_uncached(&self, layout: Layout) -> *mut u8 {
        let request = || self.heap().try_allocate(layout).ok();
        self.with_reclaim(request).map_or_else(|| refused(self.heap(), layout, request), NonNull::as_ptr)
    }

    /// Frees a block that has no class.
    ///
    /// # Safety
    ///
    /// It must be a live block of the heap for `layout`, and must not be used afterwards.
    #[inline(never)]
    unsafe fn deallocate_uncached(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.heap().dealloc(block, layout) }
    }

    /// Makes a request, and once more after giving the caches back if it failed.
    fn with_reclaim(&self, request: impl Fn() -> Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        if let Some(block) = request() {
            return Some(block);
        }
        local::reclaim(self.owner());
        request()
    }

    /// Serves a request; `None` if there is no room, which is not reported.
    fn attempt(&self, layout: Layout) -> Option<NonNull<u8>> {
        match class_of(layout) {
            Some(class) => local::take(self.depot.exchange.token(), class)
                .or_else(|| local::take_anywhere(self.owner(), class)),
            None => self.with_reclaim(|| self.heap().try_allocate(layout).ok()),
        }
    }

    /// As [`Self::attempt`], with zeroed memory.
    fn attempt_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if class_of(layout).is_none() {
            return self.with_reclaim(|| self.heap().try_allocate_zeroed(layout).ok());
        }
        let block = self.attempt(layout)?;
        // SAFETY: the block has the bytes asked for.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }
}

// SAFETY: blocks come from the heap, which fulfils the contract, and are handed out once until they are freed.
// Blocks of a class have the length of the class, and so have the layouts passed to the heap.
unsafe impl<P: LayoutPlacement, L: Lock, S: Statistics> GlobalAlloc for Cached<P, L, S> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(layout) else { return self.allocate_uncached(layout) };
        match local::take(self.depot.exchange.token(), class) {
            Some(block) => block.as_ptr(),
            None => self.take_anywhere(class),
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null. It came from `alloc`, so it has the layout
        // of its class, if it has one.
        unsafe {
            let Some(class) = class_of(layout) else { return self.deallocate_uncached(block, layout) };
            let block = NonNull::new_unchecked(block);
            if !local::give(self.depot.exchange.token(), class, block) {
                self.give_anywhere(class, block);
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let request = || self.attempt_zeroed(layout);
        request().map_or_else(|| refused(self.heap(), layout, request), NonNull::as_ptr)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block and a new size that makes a valid layout. A block with a class
        // never becomes one without in place, or the reverse. Both blocks of the copy are live.
        unsafe {
            let wanted = Layout::from_size_align_unchecked(new_size, layout.align());
            match (class_of(layout), class_of(wanted)) {
                (Some(old), Some(new)) if old == new => return block,
                (None, None) => {
                    let quietly =
                        |wanted| self.heap().try_allocate(wanted).map_or(ptr::null_mut(), NonNull::as_ptr);
                    let request = || NonNull::new(self.heap().reallocate(block, layout, new_size, quietly));
                    return self
                        .with_reclaim(request)
                        .map_or_else(|| refused(self.heap(), wanted, request), NonNull::as_ptr);
                }
                _ => {}
            }
            let new = self.alloc(wanted);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

// SAFETY: `GlobalAlloc` above fulfils the contract, and the heap checks checked frees.
unsafe impl<P: LayoutPlacement, L: Lock, S: Statistics> Memory for Cached<P, L, S> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.attempt(layout).ok_or_else(|| self.heap().out_of_memory(layout))
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.attempt_zeroed(layout).ok_or_else(|| self.heap().out_of_memory(layout))
    }

    /// Frees a block after the heap's check. A cached block is live for the heap, so freeing it again is not
    /// detected.
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        // SAFETY: the caller's contract.
        unsafe { self.dealloc(block.as_ptr(), layout) };
        Ok(())
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.dealloc(block.as_ptr(), layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return false };
        match (class_of(layout), class_of(wanted)) {
            // SAFETY: the caller's contract; blocks without a class belong to the heap.
            (None, None) => unsafe { self.heap().try_resize(block, layout, size) },
            (old, new) => old == new,
        }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.heap().check_block(block, class_of(layout).map_or(layout, layout_of))
    }

    /// Returns the statistics of the heap, which regards cached blocks as in use.
    fn statistics(&self) -> Option<Stats> {
        self.heap().snapshot()
    }

    fn largest_free(&self) -> usize {
        self.heap().largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.heap().region(n)
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller hands over the memory of the region.
        unsafe { self.heap().take_reserve(region) }
    }
}

impl<P, L, S> fmt::Debug for Cached<P, L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").finish_non_exhaustive()
    }
}
