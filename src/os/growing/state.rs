//! State that all threads share behind one lock: pages, which refill the threads' caches, and large blocks.

use super::classes::{SLOT, batch, low_bits, objects, page_size};
use super::pages::Pages;
use super::sampled;
use super::spans::{NOTHING, Spans};
use super::system::{Host, System};
use super::thread;
use crate::error::FreeError;
use crate::error::misuse::report_refused;
use crate::lock::{Futex, Lock};
use crate::os::cache::{self, CLASSES, Chain, Lists, Place, SIZES, SMALLEST, Source, class_of};
#[cfg(unix)]
use crate::os::fork;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// State of a heap, which all threads share.
pub(super) struct Shared {
    lock: &'static Futex,
    pages: UnsafeCell<Pages<Host>>,
    /// Address of the first slot; null at first.
    pub(super) base: AtomicPtr<u8>,
    /// Bytes of all committed slots.
    bytes: AtomicUsize,
    /// The map, one byte per slot.
    map: AtomicPtr<u8>,
    /// The token of the last call for memory. A thread whose lists have another token flushes them.
    call: AtomicUsize,
    /// The heap's first token. Lists with an earlier token hold blocks of a heap that has ended.
    first: AtomicUsize,
    /// The place where threads find their lists.
    place: &'static Place,
}

// SAFETY: the pages are only accessed under the lock.
unsafe impl Sync for Shared {}

/// State of the heap of the process.
pub(super) static SHARED: Shared = {
    static LOCK: Futex = Futex::INIT;
    static PLACE: Place = Place::new(thread::get, thread::set, || cache::end(&PLACE), 0);
    Shared::new(&LOCK, &PLACE)
};

impl Shared {
    pub(super) const fn new(lock: &'static Futex, place: &'static Place) -> Self {
        Self {
            lock,
            pages: UnsafeCell::new(Pages::EMPTY),
            base: AtomicPtr::new(ptr::null_mut()),
            bytes: AtomicUsize::new(0),
            map: AtomicPtr::new(ptr::null_mut()),
            call: AtomicUsize::new(0),
            first: AtomicUsize::new(0),
            place,
        }
    }

    /// Begins a heap with this state, after an earlier heap with it has ended.
    pub(super) fn begin(&self) {
        let token = cache::new_token();
        self.first.store(token, Ordering::Relaxed);
        self.call.store(token, Ordering::Relaxed);
    }

    /// Ends the heap: returns all its memory to the system, and makes the threads discard the blocks that they keep.
    ///
    /// # Safety
    ///
    /// No block of the heap may be used any more, and no other thread may use the heap.
    pub(super) unsafe fn end(&self) {
        let mut pages = self.with(|pages| {
            // Threads that flush their lists check `first` under the lock.
            self.first.store(cache::new_token(), Ordering::Relaxed);
            core::mem::replace(pages, Pages::EMPTY)
        });
        // SAFETY: nothing can reach the memory any more.
        unsafe { pages.spans.release() };
    }

    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Pages<Host>) -> T) -> T {
        if self.base.load(Ordering::Relaxed).is_null() {
            // Keep the heap consistent in children of a fork. Registering this may allocate and come back here.
            #[cfg(unix)]
            fork::protect(self.lock);
        }
        self.lock.with(|| {
            // SAFETY: the lock excludes all other callers, and nothing that runs under it allocates.
            let pages = unsafe { &mut *self.pages.get() };
            let result = f(pages);
            if pages.spans.slots.committed != self.bytes.load(Ordering::Relaxed) {
                self.publish(&pages.spans);
            }
            result
        })
    }

    /// Returns the map's entry for an address.
    #[inline(always)]
    pub(super) fn entry(&self, block: *mut u8) -> u8 {
        // A block's address comes from a thread that has set the tables' addresses or seen them.
        let offset = block.addr().wrapping_sub(self.base.load(Ordering::Relaxed).addr());
        if offset >= self.bytes.load(Ordering::Relaxed) {
            return NOTHING;
        }
        // SAFETY: the map has a byte for every committed slot, and all accesses to it are atomic.
        unsafe {
            AtomicU8::from_ptr(self.map.load(Ordering::Relaxed).add(offset / SLOT)).load(Ordering::Relaxed)
        }
    }

    /// Publishes the addresses of committed memory, before the first block there is allocated.
    #[cold]
    fn publish(&self, spans: &Spans<Host>) {
        self.map.store(spans.map.base, Ordering::Relaxed);
        self.base.store(spans.slots.base, Ordering::Relaxed);
        self.bytes.store(spans.slots.committed, Ordering::Relaxed);
    }
}

/// Returns the class of the memory for a thread's lists.
fn class_of_lists() -> Option<usize> {
    class_of(size_of::<Lists>(), align_of::<Lists>())
}

impl Source for Shared {
    fn place(&self) -> &'static Place {
        self.place
    }

    fn token(&self) -> usize {
        self.call.load(Ordering::Relaxed)
    }

    fn has(&self, token: usize) -> bool {
        // Tokens wrap around.
        token.wrapping_sub(self.first.load(Ordering::Relaxed)) <= usize::MAX / 2
    }

    fn capacity(&self, class: usize) -> usize {
        batch(class)
    }

    fn masks(&self) -> [usize; CLASSES] {
        // Sampled blocks differ in these bits, so that a free can distinguish them. Heaps created at run time have no sampled blocks, and
        // a later heap, at other addresses, may reuse their lists.
        let region = if ptr::eq(self, &SHARED) { self.with(|pages| pages.region()) } else { None };
        let far = region.map_or(0, sampled::absent_bits);
        core::array::from_fn(|class| low_bits(class) | far)
    }

    fn samples(&self) -> bool {
        ptr::eq(self, &SHARED) && sampled::is_on()
    }

    fn check(&self, class: usize, block: NonNull<u8>) -> Result<(), FreeError> {
        match self.entry(block.as_ptr()) {
            NOTHING => Err(FreeError::Foreign),
            entry if entry as usize == class + 1 && self.is_start(block, class) => Ok(()),
            _ => Err(FreeError::NotABlock),
        }
    }

    fn allocate(&'static self, class: usize, want: usize) -> Chain {
        let chain = self.insist(|pages| Some(pages.allocate(class, want)).filter(|chain| chain.count > 0));
        chain.unwrap_or(Chain::NONE)
    }

    unsafe fn free_list(&self, class: usize, list: Chain) {
        // SAFETY: the caller's contract.
        unsafe { self.free(class, list) }
    }

    unsafe fn free(&self, class: usize, chain: Chain) {
        // SAFETY: the caller's contract.
        self.with(|pages| unsafe { pages.free(class, chain) });
    }

    unsafe fn free_kept(&self, class: usize, chain: Chain, token: usize) {
        self.with(|pages| {
            if self.has(token) {
                // SAFETY: the caller's contract; the heap does not end under the lock.
                unsafe { pages.free(class, chain) }
            }
        });
    }

    fn allocate_lists(&'static self) -> Option<NonNull<Lists>> {
        // The thread has no lists now, so this allocates one block from the pages.
        Some(cache::allocate_slow(self, class_of_lists()?)?.cast())
    }

    unsafe fn free_lists(&self, lists: NonNull<Lists>) {
        if let Some(class) = class_of_lists() {
            Host::forget(lists.as_ptr().cast(), SMALLEST);
            // SAFETY: the lists are a block of this heap, and the caller does not use them any more.
            unsafe { self.free(class, Chain::one(lists.as_ptr().cast())) }
        }
    }
}

impl Shared {
    /// Makes a request to the pages, and if it fails, repeats it after asking all threads to flush their lists.
    fn insist<T>(&'static self, mut request: impl FnMut(&mut Pages<Host>) -> Option<T>) -> Option<T> {
        self.with(&mut request).or_else(|| {
            self.call_for_memory();
            self.with(request)
        })
    }

    /// Returns whether a small block, live or free, can begin at an address in a page of a class.
    pub(super) fn is_start(&self, block: NonNull<u8>, class: usize) -> bool {
        // Pages are aligned to their size, and a 32-bit division is faster.
        let base = self.base.load(Ordering::Relaxed).addr();
        let offset = ((block.addr().get() - base) % page_size(class)) as u32;
        let size = u32::from(SIZES[class]);
        offset % size == 0 && offset / size < objects(class) as u32
    }

    /// Allocates a large block. Returns it, and whether it may have nonzero bytes.
    #[inline(never)]
    pub(super) fn allocate_large(
        &'static self,
        size: usize,
        align: usize,
        zeroed: bool,
    ) -> Option<(NonNull<u8>, bool)> {
        // The largest power of two, 2^63 or 2^31, is no valid alignment either.
        if size > isize::MAX as usize || align > isize::MAX as usize || !align.is_power_of_two() {
            return None;
        }
        self.insist(|pages| pages.allocate_large(size, align, zeroed))
    }

    /// Changes the size of a block of `have` bytes: in place or by moving its memory without copying if it `is_large` and stays large,
    /// otherwise by copying. `allocate` allocates the new block and `free` frees the old block; `done` gets the address before the old
    /// block becomes free for other requests.
    ///
    /// # Safety
    ///
    /// The block must be live and have these bytes. If it moves, it must not be used at its old address any more.
    pub(super) unsafe fn resize(
        &self,
        (block, have, is_large): (NonNull<u8>, usize, bool),
        (size, align): (usize, usize),
        allocate: impl FnOnce() -> Option<NonNull<u8>>,
        free: impl FnOnce() -> Result<(), FreeError>,
        mut done: impl FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller guarantees the block; both blocks of the copy are live.
        unsafe {
            if is_large && size <= isize::MAX as usize {
                let resized = self.with(|pages| match pages.resize_large(block, size) {
                    true => Some(block),
                    false if size > have && align <= Host::page() => pages.shift_large(block, size),
                    false => None,
                });
                if let Some(resized) = resized {
                    done(resized);
                    if resized != block {
                        self.with(|pages| pages.free_large(block));
                    }
                    return Some(resized);
                }
            }
            let Some(moved) = allocate() else {
                return (is_large && self.resize_at_last(block, size)).then(|| {
                    done(block);
                    block
                });
            };
            moved.copy_from_nonoverlapping(block, have.min(size));
            done(moved);
            report_refused(free(), block);
            Some(moved)
        }
    }

    /// Resizes a large block in place, as the last resort when it cannot move. Returns whether that was possible.
    ///
    /// # Safety
    ///
    /// If a large block starts there, it must be live; bytes that are cut off must not be used any more.
    pub(super) unsafe fn resize_at_last(&self, block: NonNull<u8>, size: usize) -> bool {
        // SAFETY: the caller's contract.
        size <= isize::MAX as usize && self.with(|pages| unsafe { pages.resize_at_last(block, size) })
    }

    /// Frees a large block. Returns false, with nothing done, if none starts there.
    ///
    /// # Safety
    ///
    /// If a large block starts there, it must be live, and must not be used any more.
    #[inline(never)]
    pub(super) unsafe fn free_large(&self, block: NonNull<u8>) -> bool {
        // SAFETY: the caller's contract.
        self.with(|pages| unsafe { pages.free_large(block) })
    }

    /// Asks all threads to flush their lists, and flushes those of this thread.
    #[cold]
    pub(super) fn call_for_memory(&'static self) {
        self.call.store(cache::new_token(), Ordering::Relaxed);
        cache::flush(self);
    }
}
