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
#[cfg(test)]
mod fake;
mod ground;
mod large;
mod lists;
mod local;
mod memory;
mod pages;
mod spans;
mod system;
mod thread;

use crate::meta::FreeError;
use crate::pressure::Pressure;
use classes::{LARGEST, SIZES, class_of, objects, page_size};
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;
use lists::SHARED;
use pages::{Block, Pages};
use spans::{NOTHING, WHOLE};

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
/// commits memory from there in growing steps. If the program lowers its own limit later (`RLIMIT_AS`), the heap keeps to that. The
/// reserved addresses count all the same, so that the system may refuse other maps: call [`Growing::limit`] first.
///
/// Blocks of up to 32 KiB are cut from pages of equal blocks: sizes are multiples of 16 bytes up to 256, and then eight
/// per power of two. Each thread keeps up to two lists of free blocks of each size, up to 16 KiB each, and exchanges whole
/// lists with the pages under one lock. Larger blocks are multiples of 4 KiB. Everything is aligned to 16 bytes at least, and
/// a block is found by its address alone ([`Growing::usable_size`]).
///
/// It is a [`Memory`](crate::Memory), so every front can wrap it: `Observed<Growing, Profile>` watches the whole process. It counts no
/// blocks and so has no [`Stats`](crate::Stats); its own figures are [`Growing::figures`].
///
/// Free memory goes back to the system when it is much (more than 16 MiB and a quarter of what is in use), before the process
/// has more memory than ever if a sixteenth of that is free, when the program frees large blocks or pages and the last time
/// was more than a second ago, and when [`Growing::trim`] is called.
///
/// A second free of a block of up to 32 KiB is noticed, in any thread, until the block is handed out again or its memory has gone back
/// to the system; of blocks of 16 bytes, one in 64 escapes while no thread keeps it. Second frees of larger blocks are noticed until
/// their memory is in use again. `dealloc` reports them (see [`misuse`](crate::misuse)), [`Growing::give`] returns an error.
///
/// Allocation and free take constant time, apart from the system's calls and the purge, which visits all free spans. A program with
/// threads may `fork`, and the child may allocate; a front with a lock of its own needs
/// [`protect_at_fork`](super::protect_at_fork) for that.
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

/// Returns whether a small block can begin at an address in a page of a class, live or free.
fn is_start(block: NonNull<u8>, class: usize) -> bool {
    // Pages lie at multiples of their size.
    let base = SHARED.base.load(Ordering::Relaxed).addr();
    let offset = (block.addr().get() - base) % page_size(class);
    let size = SIZES[class] as usize;
    offset % size == 0 && offset / size < objects(class)
}

/// Returns whether the small block at an address is marked as free, or cannot begin there.
///
/// # Safety
///
/// The address must lie in a page. A live block there must be the caller's: others write to theirs.
unsafe fn is_free(block: NonNull<u8>) -> bool {
    let block = block.cast::<Block>();
    // SAFETY: pages have whole blocks, so that two words follow an address that is aligned as blocks are.
    block.addr().get() % SIZES[0] as usize != 0 || unsafe { Block::is_marked(block.as_ptr()) }
}

impl Growing {
    /// Makes a value that stands for the heap of the process.
    pub const fn new() -> Self {
        Self(())
    }

    /// Limits the heap's memory to `bytes`, but to 1 MiB at least. What it has already stays. Before the first request this also limits the
    /// addresses that the heap reserves; later it has only those.
    pub fn limit(&self, bytes: usize) {
        SHARED.with(|pages| pages.limit(bytes.max(1)));
    }

    /// Allocates `size` bytes aligned to `align`, a power of two, or returns null, as it does for other alignments above 16. The block may be
    /// freed by its address alone. O(1).
    #[inline]
    pub fn take(&self, size: usize, align: usize) -> *mut u8 {
        match class_of(size, align) {
            Some(class) => lists::take(class),
            None => lists::take_large_block(size, align),
        }
    }

    /// Allocates as [`Growing::take`], but only if the thread's list has a block. For a caller that has something to do in
    /// the other case.
    #[doc(hidden)]
    #[inline(always)]
    pub fn take_quickly(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        lists::take_quickly(class_of(size, align)?)
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
        entry.wrapping_sub(1) < WHOLE - 1 && unsafe { lists::give_quickly(block, entry as usize - 1) }
    }

    /// Allocates as [`Growing::take`], with all bytes zero. Memory that the system has just given is not cleared again.
    pub fn take_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        if let Some(class) = class_of(size, align) {
            let block = lists::take(class);
            if !block.is_null() {
                // SAFETY: the block has the bytes asked for.
                unsafe { block.write_bytes(0, size) };
            }
            return block;
        }
        let Some((block, dirty)) = lists::take_large(size, align, true) else { return ptr::null_mut() };
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
    /// With nothing done: [`FreeError::Foreign`] if the address is in no block of this heap, and [`FreeError::AlreadyFree`] if the
    /// block is one of up to 32 KiB that was freed and not handed out again.
    ///
    /// # Safety
    ///
    /// If it is one of this heap's, the block must be live and must not be used afterwards.
    #[inline]
    pub unsafe fn give(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        let entry = SHARED.entry(block.as_ptr());
        // No class is 0, and the largest number is no class.
        if entry.wrapping_sub(1) < WHOLE - 1 {
            let class = entry as usize - 1;
            // SAFETY: the caller guarantees the block, which lies in a page of that class.
            return unsafe {
                if lists::give_quickly(block, class) { Ok(()) } else { lists::give_slowly(block, class) }
            };
        }
        // SAFETY: the caller guarantees the block.
        unsafe { self.give_large(block) }
    }

    #[inline(never)]
    unsafe fn give_large(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees the block.
        if unsafe { lists::give_large(block) } { Ok(()) } else { Err(FreeError::Foreign) }
    }

    /// Returns how many bytes the block at an address has, at least as many as were asked for; `None` if no block is there. Any thread may
    /// ask, also while others write to the block: nothing in it is read. So a free block of up to 32 KiB has its size as well. O(1).
    pub fn usable_size(&self, block: NonNull<u8>) -> Option<usize> {
        match SHARED.entry(block.as_ptr()) {
            NOTHING => None,
            WHOLE => SHARED.with(|pages| pages.large_size(block)),
            entry => {
                let class = entry as usize - 1;
                is_start(block, class).then_some(SIZES[class] as usize)
            }
        }
    }

    /// Returns how many bytes a live block has, like [`Growing::usable_size`]; `None` also for a free one, which is marked.
    ///
    /// # Safety
    ///
    /// If a block is live at the address, it must be the caller's: other threads must not write to it meanwhile.
    #[doc(hidden)]
    pub unsafe fn size_of_own(&self, block: NonNull<u8>) -> Option<usize> {
        match SHARED.entry(block.as_ptr()) {
            NOTHING => None,
            WHOLE => SHARED.with(|pages| pages.large_size(block)),
            // SAFETY: the address lies in a page; the caller's contract.
            _ if unsafe { is_free(block) } => None,
            entry => Some(SIZES[entry as usize - 1] as usize),
        }
    }

    /// Changes the size of a block to at least `size` bytes, in place or by moving it, and returns its new address; null if
    /// there is no memory, and then the block is as it was; that it becomes smaller needs none. A moved block is aligned to `align`. A small
    /// block stays where it is as long as it is at most twice as long as asked for.
    ///
    /// # Safety
    ///
    /// The block must be a live one of this heap, aligned to `align`. If it moves, it must not be used any more at its old
    /// address.
    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller guarantees the block.
        let Some(have) = (unsafe { self.size_of_own(block) }) else { return ptr::null_mut() };
        // SAFETY: the caller guarantees the block; both blocks of the copy are live.
        unsafe {
            if have <= LARGEST {
                if size <= have && size >= have / 2 {
                    return block.as_ptr();
                }
            } else if size > LARGEST {
                if let Some(block) = lists::resize_large(block, size, have, align, |_| ()) {
                    return block.as_ptr();
                }
            }
            let new = self.take(size, align);
            if !new.is_null() {
                ptr::copy_nonoverlapping(block.as_ptr(), new, have.min(size));
                let _ = self.give(block);
            } else if lists::resize_at_last(block, size) || size <= have {
                return block.as_ptr();
            }
            new
        }
    }

    /// Gives all free memory back to the system: that of the calling thread at once, that of the others when they next go to
    /// the shared pages. Returns the bytes. O(spans + free blocks).
    pub fn trim(&self) -> usize {
        lists::call_for_memory();
        SHARED.with(Pages::trim)
    }

    /// Sets how short memory is outside the heap, and returns the bytes that went back to the system. Under pressure all free memory
    /// goes back at once, as by [`Growing::trim`], and until the pressure ends less of it stays: 2 MiB and a sixteenth of what is in
    /// use ([`Pressure::Low`]), or 1 MiB ([`Pressure::Critical`]).
    #[doc(hidden)]
    pub fn set_pressure(&self, pressure: Pressure) -> usize {
        SHARED.with(|pages| pages.pressure = pressure);
        if pressure == Pressure::Normal { 0 } else { self.trim() }
    }

    /// Returns the figures of this moment. Blocks in the caches of threads count as used.
    pub fn figures(&self) -> Figures {
        SHARED.with(|pages| pages.figures())
    }
}
