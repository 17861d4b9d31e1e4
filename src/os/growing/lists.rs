//! The lists of free blocks that each thread keeps, and the pages that all threads share, behind one lock.

use super::classes::{self, BATCHES, SIZES, class_of_size};
use super::local::Local;
use super::pages::{Block, Chain, Pages};
use super::spans::{NOTHING, Places};
use super::system::{Host, System};
use super::thread;
use crate::lock::{Futex, Lock};
use crate::meta::FreeError;
use crate::misuse::wrong_free;
use crate::os::at_end::AtEnd;
#[cfg(unix)]
use crate::os::fork;
use core::cell::UnsafeCell;
use core::mem;
use core::ptr::{self, NonNull};
#[cfg(unix)]
use core::sync::atomic::AtomicBool;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering};

/// What all threads share.
pub(super) struct Shared {
    pub(super) lock: Futex,
    pages: UnsafeCell<Pages<Host>>,
    /// The first slot; null at first.
    pub(super) base: AtomicPtr<u8>,
    /// Bytes of all committed slots.
    bytes: AtomicUsize,
    /// One byte per slot.
    map: AtomicPtr<u8>,
    /// Counts the calls for memory: a thread whose number is another one gives its lists back.
    call: AtomicU32,
}

// SAFETY: the pages are only accessed under the lock.
unsafe impl Sync for Shared {}

pub(super) static SHARED: Shared = Shared {
    lock: Futex::INIT,
    pages: UnsafeCell::new(Pages::EMPTY),
    base: AtomicPtr::new(ptr::null_mut()),
    bytes: AtomicUsize::new(0),
    map: AtomicPtr::new(ptr::null_mut()),
    call: AtomicU32::new(0),
};

impl Shared {
    pub(super) fn with<T>(&self, f: impl FnOnce(&mut Pages<Host>) -> T) -> T {
        if self.base.load(Ordering::Relaxed).is_null() {
            begin();
        }
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
    pub(super) fn entry(&self, block: *mut u8) -> u8 {
        // A block's address comes from a thread that saw the places, or set them.
        let offset = block.addr().wrapping_sub(self.base.load(Ordering::Relaxed).addr());
        if offset >= self.bytes.load(Ordering::Relaxed) {
            return NOTHING;
        }
        // SAFETY: the map has a byte for every committed slot, of which all accesses are atomic.
        unsafe {
            AtomicU8::from_ptr(self.map.load(Ordering::Relaxed).add(offset / classes::SLOT))
                .load(Ordering::Relaxed)
        }
    }

    /// Publishes how far memory is committed, before a block there is handed out.
    #[cold]
    fn publish(&self, places: Places) {
        self.map.store(places.map.cast_mut(), Ordering::Relaxed);
        self.base.store(places.base, Ordering::Relaxed);
        self.bytes.store(places.bytes, Ordering::Relaxed);
    }
}

/// Sees to it that children of a fork find the heap whole, before its first use. Registering that may allocate and come back here.
#[cold]
fn begin() {
    #[cfg(unix)]
    {
        static BEGUN: AtomicBool = AtomicBool::new(false);
        if !BEGUN.swap(true, Ordering::Relaxed) {
            fork::protect(&SHARED.lock);
        }
    }
}

static AT_END: AtEnd = AtEnd::new();

/// Gives the lists back when the thread ends.
fn retire_lists() {
    let local = thread::get();
    thread::set(CLOSED);
    if local.addr() > CLOSED.addr() {
        // SAFETY: the lists are this thread's, which uses them no more.
        unsafe { retire(local) }
    }
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
                let (first, count) = bin.unload_other();
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

/// Makes a request of the pages, and once more after all threads were asked for memory if it failed.
fn insist<T>(mut request: impl FnMut(&mut Pages<Host>) -> Option<T>) -> Option<T> {
    SHARED.with(&mut request).or_else(|| {
        call_for_memory();
        SHARED.with(request)
    })
}

/// Takes one block from the pages.
fn take_one(class: usize) -> Option<NonNull<u8>> {
    let block = insist(|pages| NonNull::new(pages.take_one(class)))?;
    // SAFETY: the block is ours.
    unsafe { Block::clear_mark(block.as_ptr()) };
    Some(block.cast())
}

/// Gives one block back to the pages.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
unsafe fn give_one(block: NonNull<u8>, class: usize) {
    let first = block.cast::<Block>().as_ptr();
    // SAFETY: the caller's contract.
    unsafe {
        Block::mark(first);
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

/// Makes the thread's lists. If there is no memory for them now, its next request tries again.
#[cold]
fn make_lists() -> Option<*mut Local> {
    // What is called here may allocate and come back.
    thread::set(CLOSED);
    let class = class_of_size(size_of::<Local>());
    let local = take_one(class).and_then(|block| {
        if AT_END.register(retire_lists) {
            return Some(block.cast::<Local>());
        }
        // SAFETY: the block is ours, and not used.
        unsafe { give_one(block, class) };
        None
    });
    if let Some(local) = local {
        // SAFETY: the block is long enough, and aligned to 16.
        unsafe {
            local.write(Local { call: SHARED.call.load(Ordering::Relaxed), ..Local::NEW });
        }
    }
    thread::set(local.map_or(ptr::null_mut(), NonNull::as_ptr));
    local.map(NonNull::as_ptr)
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
            // Before its first blocks from the pages, a thread has those of others only.
            if bin.demand == 0 {
                return None;
            }
            bin.swap(class);
            bin.take()
        });
        match block {
            Some(block) => return block.as_ptr(),
            None => bin.ask(class, SIZES[class] as usize),
        }
    };
    let chain = insist(|pages| Some(pages.take(class, want)).filter(|chain| chain.count > 0));
    let Some(chain) = chain else { return ptr::null_mut() };
    // SAFETY: as above; the list in use is empty.
    let block = unsafe {
        let bin = (*local).bin(class);
        bin.load(class, chain.first, chain.count);
        bin.take()
    };
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

/// Takes a block of `class` back when the thread's list in use has not taken it.
///
/// # Errors
///
/// [`FreeError::AlreadyFree`] if the block is marked as free.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[cold]
#[inline(never)]
pub(super) unsafe fn give_slowly(block: NonNull<u8>, class: usize) -> Result<(), FreeError> {
    // SAFETY: only this thread accesses its lists, and nothing below does; the caller guarantees the block.
    unsafe {
        if Block::is_marked(block.cast().as_ptr()) {
            return Err(FreeError::AlreadyFree);
        }
        let Some(local) = lists() else {
            give_one(block, class);
            return Ok(());
        };
        let bin = (*local).bin(class);
        if bin.give(block) {
            return Ok(());
        }
        if bin.keep_apart(block) {
            if bin.others >= BATCHES[class] {
                let (first, count) = bin.unload_other();
                SHARED.with(|pages| pages.put(class, Chain { first, count }));
            }
            return Ok(());
        }
        let (first, count) = bin.unload(class);
        let others = mem::replace(&mut bin.others, count as u16) as usize;
        let other = mem::replace(&mut bin.other, first);
        if others > 0 {
            SHARED.with(|pages| pages.put(class, Chain { first: other, count: others }));
        }
        bin.give(block);
    }
    Ok(())
}

/// Takes a block of `class` back as [`give_slowly`], and reports a block that is free already.
///
/// # Safety
///
/// As for [`give_slowly`].
#[cold]
#[inline(never)]
unsafe fn give_or_report(block: NonNull<u8>, class: usize) {
    // SAFETY: the caller's contract.
    if let Err(error) = unsafe { give_slowly(block, class) } {
        wrong_free(error, block.addr().get());
    }
}

/// Takes a block of `class` from the thread's list in use, if it has one.
#[inline(always)]
pub(super) fn take_quickly(class: usize) -> Option<NonNull<u8>> {
    let local = thread::get();
    if local.addr() <= CLOSED.addr() {
        return None;
    }
    // SAFETY: only this thread accesses its lists.
    unsafe { (*local).bin(class) }.take()
}

/// Takes a block of `class`.
#[inline(always)]
pub(super) fn take(class: usize) -> *mut u8 {
    match take_quickly(class) {
        Some(block) => block.as_ptr(),
        None => take_slowly(class),
    }
}

/// Puts a block of `class` into the thread's list in use, and returns whether there was room and the block is not marked as free.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[inline(always)]
pub(super) unsafe fn give_quickly(block: NonNull<u8>, class: usize) -> bool {
    let local = thread::get();
    // SAFETY: only this thread accesses its lists; the caller guarantees the block.
    local.addr() > CLOSED.addr() && unsafe { (*local).bin(class).give(block) }
}

/// Takes a block of `class` back, and reports one that is free already.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[inline(always)]
pub(super) unsafe fn give(block: NonNull<u8>, class: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        if !give_quickly(block, class) {
            give_or_report(block, class);
        }
    }
}

/// Takes a large block. Returns it, and whether it may have bytes that are not zero.
#[inline(never)]
pub(super) fn take_large(size: usize, align: usize, zeroed: bool) -> Option<(NonNull<u8>, bool)> {
    // An alignment of 2 to the power 63 or 31 is a power of two too.
    if size > isize::MAX as usize || align > isize::MAX as usize || !align.is_power_of_two() {
        return None;
    }
    insist(|pages| pages.take_large(size, align, zeroed))
}

/// Takes a large block, or returns null.
#[inline(never)]
pub(super) fn take_large_block(size: usize, align: usize) -> *mut u8 {
    take_large(size, align, false).map_or(ptr::null_mut(), |(block, _)| block.as_ptr())
}

/// Changes the size of a large block that stays one, in place or by moving its memory without copying. `done` gets its address before
/// the old one becomes free for other requests.
///
/// # Safety
///
/// The block must be a live large one of `have` bytes, and must not be used at its old address if it moves.
pub(super) unsafe fn resize_large(
    block: NonNull<u8>,
    size: usize,
    have: usize,
    align: usize,
    mut done: impl FnMut(NonNull<u8>),
) -> Option<NonNull<u8>> {
    if size > isize::MAX as usize {
        return None;
    }
    // SAFETY: the caller guarantees the block.
    let resized = SHARED.with(|pages| unsafe {
        if pages.resize_large(block, size) {
            return Some(block);
        }
        if size > have && align <= Host::page() { pages.shift_large(block, size) } else { None }
    })?;
    done(resized);
    if resized != block {
        // SAFETY: the old block is live, and its contents have moved.
        SHARED.with(|pages| unsafe { pages.put_large(block) });
    }
    Some(resized)
}

/// Changes the size of a block that stays a large one, in place, when no other place was found for it. Returns whether that was possible.
///
/// # Safety
///
/// A large block that starts there must be live; bytes that are cut off must not be used any more.
pub(super) unsafe fn resize_at_last(block: NonNull<u8>, size: usize) -> bool {
    // SAFETY: the caller's contract.
    size <= isize::MAX as usize && SHARED.with(|pages| unsafe { pages.resize_at_last(block, size) })
}

/// Frees a large block. Returns false, with nothing done, if none starts there.
///
/// # Safety
///
/// If one starts there, it must be live and not be used any more.
pub(super) unsafe fn give_large(block: NonNull<u8>) -> bool {
    // SAFETY: the caller's contract.
    SHARED.with(|pages| unsafe { pages.put_large(block) })
}

/// Asks all threads to give their lists back, and gives back those of this thread.
#[cold]
pub(super) fn call_for_memory() {
    SHARED.call.fetch_add(1, Ordering::Relaxed);
    let _ = lists();
}
