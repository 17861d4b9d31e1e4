//! A heap with a cache per thread.

use super::classes::{self, layout_of};
use super::depot::Depot;
use super::local::{self, Owner};
use crate::heap::Heap;
use crate::memory::{Done, Memory, allocator, global_alloc, pass_on, refused};
use crate::meta::FreeError;
use crate::misuse::wrong_free;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// Puts a cache per thread in front of a [`Heap`] or any other [`Memory`], so that threads get and free small blocks without taking
/// its lock.
///
/// ```
/// use allotment::os::{Cached, Depot};
/// use allotment::{Heap, heap};
///
/// static HEAP: Heap = heap!(64 * 1024 * 1024);
/// static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024); // bytes that a thread may keep
/// #[global_allocator]
/// static CACHED: Cached = Cached::new(&DEPOT);
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
/// use: [`Heap::used`] counts them. That a cached block is freed again, by whatever thread, is noticed and reported at once (see
/// [`misuse`](crate::misuse)); other wrong frees are detected only when the blocks go back. In front of a heap of level
/// [`Full`](crate::harden::Full) nothing is cached, so that each free is checked at once.
///
/// A thread caches the first four heaps that it uses, and accesses further ones directly. `Cached` can be the
/// global allocator wherever thread-local storage needs no allocation, that is, on all targets with native support
/// for it.
///
/// Both operations are O(1), including batches of at most 64 operations of the heap. (Bonwick and Adams, "Magazines
/// and Vmem", USENIX 2001.)
pub struct Cached<M: 'static = Heap> {
    depot: &'static Depot<M>,
}

impl<M> Clone for Cached<M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Cached<M> {}

impl<M: Memory> Cached<M> {
    /// Makes caches in front of the heap of `depot`, through which the threads exchange blocks.
    ///
    /// The heap may be used directly as well, but a block must be freed through `Cached` if and only if it was
    /// allocated through it.
    pub const fn new(depot: &'static Depot<M>) -> Self {
        Self { depot }
    }

    /// Returns the heap behind the caches.
    pub const fn heap(&self) -> &'static M {
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

    /// The class of a request that the caches serve.
    #[inline(always)]
    fn class_of(&self, layout: Layout) -> Option<usize> {
        if self.heap().remembers() { None } else { classes::class_of(layout) }
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
        let request = || self.heap().allocate(layout);
        self.with_reclaim(request).map_or_else(|| refused(self.heap(), layout, request), NonNull::as_ptr)
    }

    /// Frees a block that has no class.
    ///
    /// # Safety
    ///
    /// It must be a live block of the heap for `layout`, and must not be used afterwards.
    #[inline(never)]
    unsafe fn deallocate_uncached(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.heap().deallocate(block, layout) }
    }

    /// Makes a request, and once more after giving the caches back if it failed.
    fn with_reclaim(&self, mut request: impl FnMut() -> Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        if let Some(block) = request() {
            return Some(block);
        }
        local::reclaim(self.owner());
        request()
    }
}

// SAFETY: blocks come from the heap, which fulfils the contract, and are handed out once until they are freed.
// Blocks of a class have the length of the class, and so have the layouts passed to the heap.
unsafe impl<M: Memory> Memory for Cached<M> {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.class_of(layout) {
            Some(class) => local::take(self.depot.exchange.token(), class)
                .or_else(|| local::take_anywhere(self.owner(), class)),
            None => self.with_reclaim(|| self.heap().allocate(layout)),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.class_of(layout).is_none() {
            return self.with_reclaim(|| self.heap().allocate_zeroed(layout));
        }
        let block = self.allocate(layout)?;
        // SAFETY: the block has the bytes asked for.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a live block. It has the layout of its class, if it has one.
        unsafe {
            let Some(class) = self.class_of(layout) else { return self.deallocate_uncached(block, layout) };
            if !local::give(self.depot.exchange.token(), class, block) {
                self.give_anywhere(class, block);
            }
        }
    }

    /// Checks a block as the heap does, for which a cached one is live.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.heap().check(block, self.class_of(layout).map_or(layout, layout_of))
    }

    /// Checks a block as the heap does, and whether it is marked as cached.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let class = self.class_of(layout);
        // SAFETY: the caller's contract; the heap finds that a block of the class can begin there.
        unsafe {
            self.heap().check_owned(block, class.map_or(layout, layout_of))?;
            if class.is_some() && local::is_cached(block) { Err(FreeError::AlreadyFree) } else { Ok(()) }
        }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return false };
        match (self.class_of(layout), self.class_of(wanted)) {
            // SAFETY: the caller's contract; blocks without a class belong to the heap.
            (None, None) => unsafe { self.heap().try_resize(block, layout, size) },
            (old, new) => old == new,
        }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a live block of layout `old`. A block with a class never becomes one without in place, or the
        // reverse. Both blocks of the copy are live.
        unsafe {
            if self.class_of(old).is_some() && local::is_cached(block) {
                wrong_free(FreeError::AlreadyFree, block.addr().get());
                return None;
            }
            match (self.class_of(old), self.class_of(new)) {
                (Some(from), Some(to)) if from == to => {
                    done(block);
                    return Some(block);
                }
                (None, None) => return self.with_reclaim(|| self.heap().change(block, old, new, done)),
                _ => {}
            }
            let moved = self.allocate(new)?;
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }

    // The heap regards cached blocks as in use.
    pass_on!(|self| self.heap(); statistics, largest_free, region, out_of_memory, take_reserve, remembers, locks);

    #[inline]
    fn allocate_or_report(&self, layout: Layout) -> *mut u8 {
        let Some(class) = self.class_of(layout) else { return self.allocate_uncached(layout) };
        match local::take(self.depot.exchange.token(), class) {
            Some(block) => block.as_ptr(),
            None => self.take_anywhere(class),
        }
    }
}

global_alloc!([M: Memory] Cached<M>);
allocator!([M: Memory] Cached<M>);

impl<M> fmt::Debug for Cached<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").finish_non_exhaustive()
    }
}
