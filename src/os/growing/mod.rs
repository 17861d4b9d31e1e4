//! A heap for the whole process that grows and shrinks: lists per thread, pages of equal blocks, spans of a reserved range
//! of addresses.
//!
//! ```text
//!  thread   16 B | 32 B | .. | 32 KiB     lists of free blocks, linked through the blocks; no lock
//!              |  ^ batches, one lock
//!  pages    one class each, 16 to 256 KiB; the descriptions are beside the memory
//!              |  ^
//!  spans    TLSF over slots of 4 KiB; blocks above 32 KiB are spans of their own
//!              |  ^ commit, purge
//!  system   64 GiB of addresses, or four times the machine's memory
//! ```

mod classes;
mod local;
mod pages;
mod spans;
mod system;
mod thread;

use crate::lock::{Futex, Lock};
use crate::meta::FreeError;
use classes::{LARGEST, SIZES, class_of, class_of_layout, class_of_size};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use local::Local;
use pages::{Chain, Pages};
use spans::{NOTHING, Places, WHOLE};
use std::thread_local;
use system::{Host, System};

pub use pages::Figures;

/// The heap of the process. It takes memory from the system as the program needs it and gives free memory back, with a
/// cache per thread.
///
/// ```
/// use allotment::{heap, os::Growing};
///
/// #[global_allocator]
/// static HEAP: Growing = heap!();
///
/// let words: Vec<String> = "any thread".split(' ').map(str::to_owned).collect();
/// assert!(HEAP.figures().used > 0);
/// # drop(words);
/// ```
///
/// There is one such heap in a process, and every value of this type stands for it. At the first request it reserves 64 GiB
/// of addresses, or four times the machine's memory if that is more, or what a limit such as `ulimit -v` leaves, and
/// commits memory from there in growing steps.
///
/// Blocks of up to 32 KiB are cut from pages of equal blocks: sizes are multiples of 16 bytes up to 256, and then eight
/// per power of two. Each thread keeps up to two lists of free blocks of each size, up to 16 KiB each, and exchanges whole
/// lists with the pages under one lock. Larger blocks are multiples of 4 KiB. Everything is aligned to 16 bytes at least, and
/// a block is found by its address alone ([`Growing::usable_size`]).
///
/// Free memory goes back to the system when it is much (more than 16 MiB and a quarter of what is in use), when the program
/// frees large blocks or pages and the last time was more than a second ago, and when [`Growing::trim`] is called.
///
/// Allocation and free take constant time, apart from the system's calls and the purge, which visits all free spans. After a
/// `fork` of a program with threads, the child may allocate only if [`Growing::before_fork`] and its counterparts were
/// called around it; the C library `liballotment` does that by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing(());

/// What [`heap!`](crate::heap) without a size stands for.
#[doc(hidden)]
#[macro_export]
macro_rules! __growing {
    () => {
        $crate::os::Growing::new()
    };
}

/// What all threads share.
struct Shared {
    lock: Futex,
    pages: UnsafeCell<Pages<Host>>,
    /// The first slot; null at first.
    base: AtomicPtr<u8>,
    /// Bytes of all committed slots.
    bytes: AtomicUsize,
    /// One byte per slot.
    map: AtomicPtr<u8>,
    /// Counts the calls for memory: a thread whose number is another one gives its lists back.
    call: AtomicU32,
}

// SAFETY: the pages are only accessed under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    lock: Futex::INIT,
    pages: UnsafeCell::new(Pages::EMPTY),
    base: AtomicPtr::new(ptr::null_mut()),
    bytes: AtomicUsize::new(0),
    map: AtomicPtr::new(ptr::null_mut()),
    call: AtomicU32::new(0),
};

impl Shared {
    fn with<T>(&self, f: impl FnOnce(&mut Pages<Host>) -> T) -> T {
        self.lock.with(|| {
            // SAFETY: the lock excludes all others, and nothing that runs under it allocates.
            let pages = unsafe { &mut *self.pages.get() };
            let result = f(pages);
            let places = pages.places();
            if places.bytes != self.bytes.load(Ordering::Relaxed) {
                self.publish(places);
            }
            result
        })
    }

    /// Returns what the map says of an address.
    #[inline(always)]
    fn entry(&self, block: *mut u8) -> u8 {
        // A block's address comes from a thread that saw the places, or set them.
        let offset = block.addr().wrapping_sub(self.base.load(Ordering::Relaxed).addr());
        if offset >= self.bytes.load(Ordering::Relaxed) {
            return NOTHING;
        }
        // SAFETY: the map has a byte for every committed slot.
        unsafe { *self.map.load(Ordering::Relaxed).add(offset / classes::SLOT) }
    }

    /// Publishes how far memory is committed, before a block there is handed out.
    #[cold]
    fn publish(&self, places: Places) {
        self.map.store(places.map.cast_mut(), Ordering::Relaxed);
        self.base.store(places.base, Ordering::Relaxed);
        self.bytes.store(places.bytes, Ordering::Relaxed);
    }
}

/// Gives the lists back when the thread ends.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        let local = thread::get();
        thread::set(CLOSED);
        if !local.is_null() && local != CLOSED {
            // SAFETY: the lists are this thread's, which uses them no more.
            unsafe { retire(local) }
        }
    }
}

thread_local! {
    static GUARD: Guard = const { Guard };
}

/// Stands for the lists of a thread that has none: while they are made, and when it has ended.
const CLOSED: *mut Local = ptr::without_provenance_mut(1);

/// Gives everything in a thread's lists back to the pages.
///
/// # Safety
///
/// Only the caller may access the lists.
unsafe fn flush(local: *mut Local) {
    // SAFETY: the caller's contract. The blocks in the lists are free.
    unsafe {
        SHARED.with(|pages| {
            for (class, bin) in (*local).bins.iter_mut().enumerate() {
                let (first, count) = bin.unload(class);
                if count > 0 {
                    pages.put(class, Chain { first, count });
                }
                let count = mem::take(&mut bin.others) as usize;
                let first = mem::replace(&mut bin.other, ptr::null_mut());
                if count > 0 {
                    pages.put(class, Chain { first, count });
                }
                bin.demand = 0;
            }
        });
    }
}

/// Gives a thread's lists and their own memory back.
///
/// # Safety
///
/// Only the caller may access the lists, and they must not be used afterwards.
unsafe fn retire(local: *mut Local) {
    // SAFETY: the lists are a block of this heap.
    unsafe {
        flush(local);
        give_one(NonNull::new_unchecked(local.cast()), class_of_size(size_of::<Local>()));
    }
}

/// Takes one block from the pages.
fn take_one(class: usize) -> Option<NonNull<u8>> {
    let chain = SHARED.with(|pages| {
        let chain = pages.take(class, 1);
        if chain.count <= 1 {
            return chain;
        }
        // A whole bundle, for lack of anything else.
        // SAFETY: the blocks behind the first one are free.
        unsafe {
            let rest = (*chain.first).next;
            (*chain.first).next = ptr::null_mut();
            pages.put(class, Chain { first: rest, count: chain.count - 1 });
        }
        Chain { count: 1, ..chain }
    });
    NonNull::new(chain.first.cast())
}

/// Gives one block back to the pages.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
unsafe fn give_one(block: NonNull<u8>, class: usize) {
    let first = block.cast::<pages::Block>().as_ptr();
    // SAFETY: the caller's contract.
    unsafe {
        (*first).next = ptr::null_mut();
        SHARED.with(|pages| pages.put(class, Chain { first, count: 1 }));
    }
}

/// Returns the thread's lists, made if it has none yet and may have some. They are emptied first if memory was called for.
fn lists() -> Option<*mut Local> {
    let local = thread::get();
    if local == CLOSED {
        return None;
    }
    if local.is_null() {
        return make_lists();
    }
    let call = SHARED.call.load(Ordering::Relaxed);
    // SAFETY: only this thread accesses its lists.
    unsafe {
        if (*local).call != call {
            (*local).call = call;
            flush(local);
        }
    }
    Some(local)
}

#[cold]
fn make_lists() -> Option<*mut Local> {
    // Registering the guard may allocate and come back here.
    thread::set(CLOSED);
    let guarded = GUARD.try_with(|_| ()).is_ok();
    let local = take_one(class_of_size(size_of::<Local>())).filter(|_| guarded)?.cast::<Local>();
    // SAFETY: the block is long enough, and aligned to 16.
    unsafe {
        local.write(Local { call: SHARED.call.load(Ordering::Relaxed), ..Local::NEW });
    }
    thread::set(local.as_ptr());
    Some(local.as_ptr())
}

/// Takes a block of `class` when the thread's list in use is empty.
#[cold]
#[inline(never)]
fn take_slowly(class: usize) -> *mut u8 {
    let Some(local) = lists() else {
        return take_one(class).map_or(ptr::null_mut(), NonNull::as_ptr);
    };
    // SAFETY: only this thread accesses its lists, and nothing in this block does otherwise.
    let want = unsafe {
        let bin = (*local).bin(class);
        let block = bin.take().or_else(|| {
            bin.swap(class);
            bin.take()
        });
        match block {
            Some(block) => return block.as_ptr(),
            None => bin.ask(class, SIZES[class] as usize),
        }
    };
    let mut chain = SHARED.with(|pages| pages.take(class, want));
    if chain.count == 0 {
        Growing::new().call_for_memory();
        chain = SHARED.with(|pages| pages.take(class, 1));
    }
    // SAFETY: as above; the list in use is empty.
    let block = unsafe {
        let bin = (*local).bin(class);
        bin.load(class, chain.first, chain.count);
        bin.take()
    };
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Takes a block of `class` back when the thread's list in use has no room.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[cold]
#[inline(never)]
unsafe fn give_slowly(block: NonNull<u8>, class: usize) {
    // SAFETY: only this thread accesses its lists, and nothing below does; the caller guarantees the block.
    unsafe {
        let Some(local) = lists() else { return give_one(block, class) };
        let bin = (*local).bin(class);
        if bin.give(block) {
            return;
        }
        let (first, count) = bin.unload(class);
        let others = mem::replace(&mut bin.others, count as u16) as usize;
        let other = mem::replace(&mut bin.other, first);
        if others > 0 {
            SHARED.with(|pages| pages.put(class, Chain { first: other, count: others }));
        }
        bin.give(block);
    }
}

/// Takes a block of `class` from the thread's list in use, if it has one.
#[inline(always)]
fn take_quickly(class: usize) -> Option<NonNull<u8>> {
    let local = thread::get();
    if local.addr() <= CLOSED.addr() {
        return None;
    }
    // SAFETY: only this thread accesses its lists.
    unsafe { (*local).bin(class) }.take()
}

/// Takes a block of `class`.
#[inline(always)]
fn take(class: usize) -> *mut u8 {
    match take_quickly(class) {
        Some(block) => block.as_ptr(),
        None => take_slowly(class),
    }
}

/// Puts a block of `class` into the thread's list in use, and returns whether there was room.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[inline(always)]
unsafe fn give_quickly(block: NonNull<u8>, class: usize) -> bool {
    let local = thread::get();
    // SAFETY: only this thread accesses its lists; the caller guarantees the block.
    local.addr() > CLOSED.addr() && unsafe { (*local).bin(class).give(block) }
}

/// Takes a block of `class` back.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[inline(always)]
unsafe fn give(block: NonNull<u8>, class: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !give_quickly(block, class) {
            give_slowly(block, class);
        }
    }
}

/// Takes a large block. Returns it, and whether it may have bytes that are not zero.
#[inline(never)]
fn take_large(size: usize, align: usize, zeroed: bool) -> Option<(NonNull<u8>, bool)> {
    if size > isize::MAX as usize || align > isize::MAX as usize {
        return None;
    }
    let request = || SHARED.with(|pages| pages.take_large(size, align, zeroed));
    request().or_else(|| {
        Growing::new().call_for_memory();
        request()
    })
}

/// Takes a large block, or returns null.
#[inline(never)]
fn take_large_block(size: usize, align: usize) -> *mut u8 {
    take_large(size, align, false).map_or(ptr::null_mut(), |(block, _)| block.as_ptr())
}

impl Growing {
    /// Makes a value that stands for the heap of the process.
    pub const fn new() -> Self {
        Self(())
    }

    /// Limits the addresses that the heap reserves, and with them its memory, to `bytes`, rounded up to 1 MiB. It has an effect
    /// only before the first request.
    pub fn limit(&self, bytes: usize) {
        SHARED.with(|pages| pages.limit(bytes.max(1)));
    }

    /// Allocates `size` bytes aligned to `align`, a power of two, or returns null. The block may be freed by its address
    /// alone. O(1).
    #[inline]
    pub fn take(&self, size: usize, align: usize) -> *mut u8 {
        match class_of(size, align) {
            Some(class) => take(class),
            None => take_large_block(size, align),
        }
    }

    /// Allocates as [`Growing::take`], but only if the thread's list has a block. For a caller that has something to do in
    /// the other case.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_quickly(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        take_quickly(class_of(size, align)?)
    }

    /// Frees a block as [`Growing::give`], but only if the thread's list has room; returns whether it had.
    ///
    /// # Safety
    ///
    /// As for [`Growing::give`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn give_quickly(&self, block: NonNull<u8>) -> bool {
        let entry = SHARED.entry(block.as_ptr());
        // No class is 0, and the largest number is no class.
        // SAFETY: the caller guarantees the block, which lies in a page of that class.
        entry.wrapping_sub(1) < WHOLE - 1 && unsafe { give_quickly(block, entry as usize - 1) }
    }

    /// Allocates as [`Growing::take`], with all bytes zero. Memory that the system has just lent is not cleared again.
    pub fn take_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        if let Some(class) = class_of(size, align) {
            let block = take(class);
            if !block.is_null() {
                // SAFETY: the block has the bytes asked for.
                unsafe { block.write_bytes(0, size) };
            }
            return block;
        }
        let Some((block, dirty)) = take_large(size, align, true) else { return ptr::null_mut() };
        let block = block.as_ptr();
        if dirty {
            // SAFETY: the block has the bytes asked for.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    /// Frees a block by its address alone. O(1).
    ///
    /// # Errors
    ///
    /// [`FreeError::Foreign`], with nothing done, if the address is in no block of this heap.
    ///
    /// # Safety
    ///
    /// If it is one of this heap's, the block must be live and must not be used afterwards.
    #[inline]
    pub unsafe fn give(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        let entry = SHARED.entry(block.as_ptr());
        // No class is 0, and the largest number is no class.
        if entry.wrapping_sub(1) < WHOLE - 1 {
            // SAFETY: the caller guarantees the block, which lies in a page of that class.
            unsafe { give(block, entry as usize - 1) };
            return Ok(());
        }
        // SAFETY: the caller guarantees the block.
        unsafe { self.give_large(block) }
    }

    #[inline(never)]
    unsafe fn give_large(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees the block.
        let found = SHARED.with(|pages| unsafe { pages.put_large(block) });
        if found { Ok(()) } else { Err(FreeError::Foreign) }
    }

    /// Returns how many bytes a live block has, at least as many as were asked for; `None` if the address is no block's. O(1).
    pub fn usable_size(&self, block: NonNull<u8>) -> Option<usize> {
        match SHARED.entry(block.as_ptr()) {
            NOTHING => None,
            WHOLE => SHARED.with(|pages| pages.large_size(block)),
            entry => Some(SIZES[entry as usize - 1] as usize),
        }
    }

    /// Changes the size of a block to at least `size` bytes, in place or by moving it, and returns its new address; null if
    /// there is no memory, and then the block is as it was. A moved block is aligned to `align`. A small block stays where it is
    /// as long as it is at most twice as long as asked for.
    ///
    /// # Safety
    ///
    /// The block must be a live one of this heap, aligned to `align`. If it moves, it must not be used any more at its old
    /// address.
    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        let Some(have) = self.usable_size(block) else { return ptr::null_mut() };
        // SAFETY: the caller guarantees the block; both blocks of the copy are live.
        unsafe {
            if have <= LARGEST {
                if size <= have && size >= have / 2 {
                    return block.as_ptr();
                }
            } else if size > LARGEST {
                if let Some(block) = resize_large(block, size, have, align) {
                    return block.as_ptr();
                }
            }
            let new = self.take(size, align);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block.as_ptr(), new, have.min(size));
                let _ = self.give(block);
            }
            new
        }
    }

    /// Gives all free memory back to the system: that of the calling thread at once, that of the others when they next go to
    /// the shared pages. Returns the bytes. O(spans + free blocks).
    pub fn trim(&self) -> usize {
        self.call_for_memory();
        SHARED.with(Pages::trim)
    }

    /// Asks all threads to give their lists back, and gives back those of this thread.
    #[cold]
    fn call_for_memory(&self) {
        SHARED.call.fetch_add(1, Ordering::Relaxed);
        let _ = lists();
    }

    /// Returns the figures of this moment. Blocks in the caches of threads count as used.
    pub fn figures(&self) -> Figures {
        SHARED.with(|pages| pages.figures())
    }

    /// Takes the heap's lock, so that no other thread is in the middle of something when the process is copied. Call
    /// [`Growing::after_fork`] in the parent and [`Growing::after_fork_in_child`] in the child.
    #[doc(hidden)]
    pub fn before_fork(&self) {
        SHARED.lock.acquire();
    }

    /// Releases the lock that [`Growing::before_fork`] took.
    ///
    /// # Safety
    ///
    /// This thread must have called [`Growing::before_fork`].
    #[doc(hidden)]
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's contract.
        unsafe { SHARED.lock.release() }
    }

    /// Releases the lock in the child. What the other threads had in their lists stays lost there.
    ///
    /// # Safety
    ///
    /// The process must be the child of a fork before which this thread has called [`Growing::before_fork`].
    #[doc(hidden)]
    pub unsafe fn after_fork_in_child(&self) {
        // SAFETY: the caller's contract. There are no other threads.
        unsafe { SHARED.lock.reset() }
    }
}

/// Resizes a large block that stays one, in place or by moving its memory without copying.
unsafe fn resize_large(block: NonNull<u8>, size: usize, have: usize, align: usize) -> Option<NonNull<u8>> {
    if size > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller guarantees the block.
    SHARED.with(|pages| unsafe {
        if pages.resize_large(block, size) {
            return Some(block);
        }
        if size > have && align <= Host::page() { pages.shift_large(block, size) } else { None }
    })
}

// SAFETY: lists, pages and spans hand out disjoint blocks of the requested size and alignment; nothing unwinds.
unsafe impl GlobalAlloc for Growing {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block with its layout, which is not null.
        unsafe {
            let block = NonNull::new_unchecked(block);
            match class_of_layout(layout) {
                Some(class) => give(block, class),
                None => {
                    let _ = self.give_large(block);
                }
            }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take_zeroed(layout.size(), layout.align())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block with its layout; both blocks of the copy are live.
        unsafe {
            let old = NonNull::new_unchecked(block);
            let wanted = Layout::from_size_align_unchecked(new_size, layout.align());
            match (class_of_layout(layout), class_of_layout(wanted)) {
                // The class must be that of the layout, by which the block will be freed.
                (Some(old), Some(new)) if old == new => return block,
                (None, None) => {
                    let have = layout.size().next_multiple_of(classes::SLOT);
                    if let Some(block) = resize_large(old, new_size, have, layout.align()) {
                        return block.as_ptr();
                    }
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
