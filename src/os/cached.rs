//! A front with a cache per thread.

use super::cache::{self, Bin, Block, Lists, layout_of, tabled_class_of};
use super::{Depot, depot};
use crate::error::{FreeError, OutOfMemory, misuse::invalid_free};
use crate::front::small::longest_within;
use crate::heap::Heap;
use crate::memory::{Done, Memory, allocator, global_alloc, pass_on, refused};
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::NonNull;

/// A cache per thread in front of a [`Heap`] or any other [`Memory`], so that threads allocate and free small blocks without its lock.
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
///  thread     16 B | 24 B | 32 B | .. | 4 KiB         per class two lists of free blocks, linked through the blocks
///                     |  full lists
///  depot      16 B | 24 B | 32 B | .. | 4 KiB         lists on their way between threads
///                     |  batches, one lock
///  heap
/// ```
///
/// Blocks of up to 4 KiB (with alignments up to 8) are divided into 55 classes; other requests go to the heap. Any thread may free a
/// block, which then stays in that thread's cache. If a thread frees more than it allocates, the surplus goes through the depot to
/// threads that allocate more than they free, a list at a time and without a lock. A thread keeps a bounded number of bytes, few of
/// classes that it rarely uses, and none after it has ended. When a request fails, its thread flushes its cache and the depot at once and
/// tries again; the other threads flush their caches at their next operation. The heap regards cached blocks as in use: [`Heap::used`]
/// counts them. `Cached` reports a double free of a cached block at once, in any thread (see [`misuse`](crate::error::misuse)), and a
/// write to its first two words when the block leaves the cache. The heap detects other invalid frees only when the blocks return to it.
/// In front of a heap of level [`Full`](crate::harden::Full) `Cached` keeps no blocks, so that the heap checks each free at once.
///
/// A thread caches the first four heaps that it uses, the first one fastest, and accesses other heaps directly. `Cached` can be the
/// global allocator wherever thread-local storage needs no allocation, that is, on all targets with native support for it.
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
    /// Creates caches in front of the heap of `depot`, through which the threads exchange blocks.
    ///
    /// The program may also use the heap directly, but it must free a block through `Cached` if and only if it allocated the block
    /// through `Cached`.
    pub const fn new(depot: &'static Depot<M>) -> Self {
        Self { depot }
    }

    /// Returns the heap that refills the caches.
    pub const fn heap(&self) -> &'static M {
        self.depot.heap
    }

    /// Returns all blocks that the calling thread and the depot keep to the heap. Call it before a thread sleeps for long, or to see what
    /// is really in use.
    pub fn flush(&self) {
        self.depot.flush();
    }

    /// Returns the class of a request, if `Cached` keeps blocks for it.
    #[inline(always)]
    fn class_of(&self, layout: Layout) -> Option<usize> {
        // Blocks of the heap are aligned to 8 bytes, whatever their class.
        if layout.align() > 8 || self.heap().remembers() {
            return None;
        }
        tabled_class_of(layout.size(), layout.align())
    }

    /// Returns the calling thread's bin of a class, if the fast path applies: the thread's first lists are for this heap, and memory has
    /// not run out since their last use.
    #[inline(always)]
    fn bin(&self, class: usize) -> Option<*mut Bin> {
        let lists = depot::lists();
        // SAFETY: only this thread accesses its lists, and every place has some.
        unsafe { ((*lists).token == self.depot.token()).then(|| Lists::bin(lists, class)) }
    }

    /// Returns the largest request that is sure to succeed if the heap's largest free block has this many bytes.
    fn sure_of(&self, largest: usize) -> usize {
        let has_class =
            Layout::from_size_align(largest, 1).is_ok_and(|layout| self.class_of(layout).is_some());
        if has_class { longest_within(largest) } else { largest }
    }

    /// Allocates a block of a class by the fast path.
    #[inline(always)]
    fn allocate_class(&self, class: usize) -> Option<NonNull<u8>> {
        // SAFETY: the bin belongs to this thread.
        self.bin(class).and_then(|bin| unsafe { Bin::allocate::<false>(bin) })
    }

    #[inline(never)]
    fn allocate_slow(&self, class: usize) -> *mut u8 {
        let request = || cache::allocate_slow(self.depot, class);
        request().map_or_else(|| refused(self.heap(), layout_of(class), request), NonNull::as_ptr)
    }

    /// Allocates a block that has no class. Not inlined, so that the fast path saves no registers.
    #[inline(never)]
    fn allocate_uncached(&self, layout: Layout) -> *mut u8 {
        let request = || self.heap_block(layout);
        self.with_reclaim(request).map_or_else(|| refused(self.heap(), layout, request), NonNull::as_ptr)
    }

    /// Allocates a block directly from the heap.
    fn heap_block(&self, layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the block has the layout's size.
        self.heap().allocate(layout).inspect(|&block| unsafe { Block::clear_left_over(block, layout.size()) })
    }

    /// Frees a block that has no class.
    ///
    /// # Safety
    ///
    /// The block must be a live block of the heap for `layout`, and must not be used afterwards.
    #[inline(never)]
    unsafe fn deallocate_uncached(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.heap().deallocate(block, layout) }
    }

    /// Makes a request, and repeats it after flushing the caches if it fails.
    fn with_reclaim(&self, mut request: impl FnMut() -> Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        request().or_else(|| {
            self.depot.reclaim();
            request()
        })
    }
}

// SAFETY: blocks come from the heap, which fulfils the contract, and no block is allocated twice before it is freed. Blocks of a class
// have the class's length, as do the layouts passed to the heap.
unsafe impl<M: Memory> Memory for Cached<M> {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.class_of(layout) {
            Some(class) => self.allocate_class(class).or_else(|| cache::allocate_slow(self.depot, class)),
            None => self.with_reclaim(|| self.heap_block(layout)),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.class_of(layout).is_none() {
            return self.with_reclaim(|| self.heap().allocate_zeroed(layout));
        }
        let block = self.allocate(layout)?;
        // SAFETY: the block has the requested bytes.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller passes a live block. If it has a class, it has the layout of the class.
        unsafe {
            let Some(class) = self.class_of(layout) else { return self.deallocate_uncached(block, layout) };
            if !self.bin(class).is_some_and(|bin| Bin::free(bin, block)) {
                cache::free_slow(self.depot, class, block);
            }
        }
    }

    /// Checks a block as the heap does. The heap regards a cached block as live.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.heap().check(block, self.class_of(layout).map_or(layout, layout_of))
    }

    /// Checks a block as the heap does, and whether it is marked as cached.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let class = self.class_of(layout);
        // SAFETY: the caller's contract; the heap has found that a block of the class can begin there.
        let is_free = unsafe {
            self.heap().check_owned(block, class.map_or(layout, layout_of))?;
            class.is_some() && Block::is_free(block.cast().as_ptr())
        };
        if is_free { Err(FreeError::AlreadyFree) } else { Ok(()) }
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
        // SAFETY: the caller passes a live block of layout `old`. A block never gains or loses its class in place. Both blocks of the
        // copy are live.
        unsafe {
            if self.class_of(old).is_some() && Block::is_free(block.cast().as_ptr()) {
                invalid_free(FreeError::AlreadyFree, block.addr().get());
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
    pass_on!(|self| self.heap(); statistics, region, add_reserve, remembers, locks);

    fn largest_free(&self) -> usize {
        self.sure_of(self.heap().largest_free())
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let error = self.heap().out_of_memory(layout);
        OutOfMemory { largest_free: self.sure_of(error.largest_free), ..error }
    }

    #[inline]
    fn allocate_or_report(&self, layout: Layout) -> *mut u8 {
        let Some(class) = self.class_of(layout) else { return self.allocate_uncached(layout) };
        match self.allocate_class(class) {
            Some(block) => block.as_ptr(),
            None => self.allocate_slow(class),
        }
    }
}

global_alloc!([M: Memory] Cached<M>);
allocator!([M: Memory] Cached<M>);

debug!([M] Cached<M>, |self|);

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    static HEAP: Heap = crate::heap!(1 << 20);
    static DEPOT: Depot = Depot::new(&HEAP, 64 << 10);
    static CACHED: Cached = Cached::new(&DEPOT);

    /// Once a thread has lists, it uses the fast path, except after memory has run out or through another heap's depot.
    #[test]
    fn the_fast_path_needs_current_lists() {
        static OTHER: Depot = Depot::new(&HEAP, 64 << 10);
        thread::spawn(|| {
            let layout = Layout::new::<[u64; 2]>();
            let class = CACHED.class_of(layout).unwrap();
            assert!(CACHED.bin(class).is_none());
            let blocks = [(); 2].map(|()| CACHED.allocate(layout).unwrap());
            assert!(Cached::new(&OTHER).bin(class).is_none());
            // SAFETY: allocated above, and freed once; the bin belongs to this thread.
            unsafe {
                let bin = CACHED.bin(class).unwrap();
                assert!(blocks.iter().all(|&block| Bin::free(bin, block)));
                assert!(!Bin::free(bin, blocks[0]), "it is there already");
                assert_eq!(
                    [(); 2].map(|()| CACHED.allocate_class(class)),
                    [Some(blocks[1]), Some(blocks[0])]
                );
                DEPOT.press();
                assert!(CACHED.bin(class).is_none());
                blocks.iter().for_each(|&block| CACHED.deallocate(block, layout));
                assert!(CACHED.bin(class).is_some());
                // A second heap also has lists, but the fast path stays with the first heap.
                let other = Cached::new(&OTHER);
                let block = other.allocate(layout).unwrap();
                assert!(CACHED.bin(class).is_some() && other.bin(class).is_none());
                other.deallocate(block, layout);
                assert_eq!(other.allocate(layout), Some(block));
                other.deallocate(block, layout);
                other.flush();
            }
            CACHED.flush();
            assert_eq!(HEAP.used(), 0);
        })
        .join()
        .unwrap();
    }
}
