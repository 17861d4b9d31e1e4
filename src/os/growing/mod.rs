//! A heap for the whole process that grows and shrinks: lists per thread, pages of equal blocks, spans of a reserved range
//! of addresses.
//!
//! ```text
//!  thread   16 B | 24 B | .. | 32 KiB     lists of free blocks, linked through the blocks; no lock
//!              |  ^ batches, one lock
//!  pages    one class each, 16 to 256 KiB; the descriptions are beside the memory
//!              |  ^
//!  spans    TLSF over slots of 4 KiB; blocks above 32 KiB are spans of their own
//!              |  ^ commit, purge
//!  system   64 GiB of addresses, or four times the machine's memory
//! ```

mod ask;
mod classes;
#[cfg(all(target_os = "linux", not(miri)))]
mod empty;
mod ground;
#[cfg(all(target_os = "linux", not(miri)))]
mod hardened;
mod image;
mod large;
mod memory;
mod own;
mod page;
mod pages;
mod ready;
#[cfg(all(target_os = "linux", not(miri)))]
mod record;
mod sampled;
mod spans;
mod state;
mod system;
#[cfg(test)]
mod tests;
mod thread;
mod trim;

use crate::error::FreeError;
use crate::front::pressure::Pressure;
use crate::os::cache::{self, Bin, Block, LARGEST, SIZES, Source, class_of, tabled_class_of};
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use own::Whose;
use pages::Pages;
use spans::{NOTHING, WHOLE};
use state::Shared;

#[cfg(all(target_os = "linux", not(miri)))]
pub use hardened::Hardened;
pub use own::Own;
pub use pages::GrowingStats;

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
/// assert!(HEAP.stats().used > 0);
/// # drop(words);
/// ```
///
/// There is one such heap in a process, and every value of `Growing` stands for it; [`Growing::create`] makes others, as values of
/// `Growing<Own>`. At the first request it reserves 64 GiB
/// of addresses, or four times the machine's memory if that is more, or what a limit such as `ulimit -v` leaves, and
/// commits memory from there in growing steps. If the program lowers its own limit later (`RLIMIT_AS`), the heap keeps to that. The
/// reserved addresses count all the same, so that the system may refuse other maps: call [`Growing::limit`] first.
///
/// Blocks of up to 32 KiB are cut from pages of equal blocks: sizes are multiples of 8 bytes from 16 to 128, and then eight
/// per power of two. Each thread keeps up to two lists of free blocks of each size, up to 16 KiB each, and exchanges whole
/// lists with the pages under one lock. Larger blocks are multiples of 4 KiB. Everything is aligned to 8 bytes at least, and
/// to 16 if that is asked for or the size is a multiple of it; a block is found by its address alone ([`Growing::usable_size`]).
///
/// It is a [`Memory`](crate::Memory), so every front can wrap it: `Observed<Growing, Profile>` watches the whole process. It counts no
/// blocks and so has no [`Stats`](crate::Stats); its own statistics are [`Growing::stats`].
///
/// Free memory goes back to the system when it is much (more than 16 MiB and a quarter of what is in use), before the process
/// has more memory than ever if a sixteenth of that is free, when the program frees large blocks or pages and the last time
/// was more than a second ago, and when [`Growing::trim`] is called.
///
/// A double free of a block of up to 32 KiB is detected, in any thread, until the block is allocated again or its memory has gone back
/// to the system; of blocks of 16 bytes, one in 64 escapes while no thread keeps it. Double frees of larger blocks are detected until
/// their memory is in use again. `dealloc` reports them (see [`misuse`](crate::error::misuse)), [`Growing::free`] returns an error. A write to
/// the first two words of a free block of up to 32 KiB ends the program when the block leaves its list.
///
/// Allocation and free take constant time, apart from the system's calls and the purge, which visits all free spans. A program with
/// threads may `fork`, and the child may allocate; a front with a lock of its own needs
/// [`protect_at_fork`](super::protect_at_fork) for that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growing<W = ()>(W);

/// Result of [`heap!`](crate::heap) without a size.
#[doc(hidden)]
#[macro_export]
macro_rules! __growing {
    () => {
        $crate::os::Growing::new()
    };
}

/// Allocates a block when the thread's list in use is empty; null if there is none.
#[cold]
#[inline(never)]
fn allocate_slow(heap: &'static Shared, size: usize, align: usize) -> *mut u8 {
    let sampled = if heap.samples() { sampled::allocate(size, align) } else { None };
    let block = sampled.or_else(|| cache::allocate_slow(heap, class_of(size, align)?));
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

impl Growing {
    /// Makes a handle to the heap of the process.
    pub const fn new() -> Self {
        Self(())
    }
}

#[expect(private_bounds, reason = "there are no other heaps than those two")]
impl<W: Whose> Growing<W> {
    /// Puts a block into the thread's list in use of a class, if that accepts it.
    ///
    /// # Safety
    ///
    /// It must be a block of the class that is not used any more.
    #[inline(always)]
    unsafe fn free_class(&self, class: usize, block: NonNull<u8>) -> bool {
        // SAFETY: the bin is this thread's, and the caller guarantees the block.
        unsafe { Bin::free(self.0.bin(class), block) }
    }

    /// Returns the class of the page that an address lies in, if it is one of small blocks.
    #[inline(always)]
    fn class_at(&self, block: NonNull<u8>) -> Option<usize> {
        let entry = self.0.shared().entry(block.as_ptr());
        // No class is 0, and the largest number is no class.
        (entry.wrapping_sub(1) < WHOLE - 1).then(|| entry as usize - 1)
    }

    /// Allocates a block whose class is in no table, or that has none.
    #[inline(never)]
    fn allocate_other(&self, size: usize, align: usize) -> *mut u8 {
        let heap = self.0.shared();
        let Some(class) = class_of(size, align) else {
            return heap
                .allocate_large(size, align, false)
                .map_or(ptr::null_mut(), |(block, _)| block.as_ptr());
        };
        // SAFETY: the bin is this thread's.
        let block = unsafe { Bin::allocate::<true>(self.0.bin(class)) };
        block.map_or_else(|| allocate_slow(heap, size, align), NonNull::as_ptr)
    }

    /// Limits the heap's memory to `bytes`, but to 1 MiB at least. The heap keeps memory that it has already. Before the first request
    /// this also limits the addresses that the heap reserves; later it has only those.
    pub fn limit(&self, bytes: usize) {
        self.0.shared().with(|pages| pages.limit(bytes.max(1)));
    }

    /// Allocates `size` bytes aligned to `align`, a power of two, or returns null, as it does for other alignments above 16. The block may be
    /// freed by its address alone. O(1).
    #[inline]
    pub fn allocate_raw(&self, size: usize, align: usize) -> *mut u8 {
        match tabled_class_of(size, align) {
            // SAFETY: the bin is this thread's.
            Some(class) => match unsafe { Bin::allocate::<true>(self.0.bin(class)) } {
                Some(block) => block.as_ptr(),
                None => allocate_slow(self.0.shared(), size, align),
            },
            None => self.allocate_other(size, align),
        }
    }

    /// Allocates as [`Growing::allocate_raw`], but only if the thread's list has a block. For a caller that has something to do in
    /// the other case.
    #[doc(hidden)]
    #[inline(always)]
    pub fn allocate_fast(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the bin is this thread's.
        unsafe { Bin::allocate::<true>(self.0.bin(tabled_class_of(size, align)?)) }
    }

    /// Frees a block as [`Growing::free`], but only if the thread's list has room; returns whether it had.
    ///
    /// # Safety
    ///
    /// As for [`Growing::free`].
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn free_fast(&self, block: NonNull<u8>) -> bool {
        // SAFETY: the caller guarantees the block, which lies in a page of that class.
        self.class_at(block).is_some_and(|class| unsafe { self.free_class(class, block) })
    }

    /// Allocates as [`Growing::allocate_raw`], with all bytes zero. Memory that the system has just given is not cleared again.
    pub fn allocate_raw_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        let (block, dirty) = match class_of(size, align) {
            Some(_) => (self.allocate_raw(size, align), true),
            None => match self.0.shared().allocate_large(size, align, true) {
                Some((block, dirty)) => (block.as_ptr(), dirty),
                None => return ptr::null_mut(),
            },
        };
        if dirty && !block.is_null() {
            // SAFETY: the block has the bytes asked for.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    /// Frees a block by its address alone. O(1).
    ///
    /// # Errors
    ///
    /// With nothing done: [`FreeError::Foreign`] if the address is in no block of this heap, [`FreeError::AlreadyFree`] if the
    /// block is one of up to 32 KiB that was freed and not allocated again, and [`FreeError::NotABlock`] for most addresses inside such a block:
    /// those that are less aligned than all blocks of its size.
    ///
    /// # Safety
    ///
    /// If it is one of this heap's, the block must be live and must not be used afterwards.
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees the block, which lies in a page of that class if there is one.
        unsafe {
            match self.class_at(block) {
                Some(class) if self.free_class(class, block) => Ok(()),
                Some(class) => cache::try_free_slow(self.0.shared(), class, block),
                None if self.0.shared().free_large(block) => Ok(()),
                None => match self.sampled(block) {
                    Some(layout) => sampled::free(block, layout),
                    None => Err(FreeError::Foreign),
                },
            }
        }
    }

    /// Returns the layout of the sampled block that lies, or was the last to lie, in the slot of an address; `None` if that is not one of the
    /// slots'.
    #[inline]
    fn sampled(&self, block: NonNull<u8>) -> Option<Layout> {
        if W::SAMPLES { sampled::layout_of(block) } else { None }
    }

    /// Returns how many bytes the block at an address has, at least as many as were asked for; `None` if no block is there. Any thread may
    /// ask, also while others write to the block: nothing in it is read. So a free block of up to 32 KiB has its size as well. O(1).
    pub fn usable_size(&self, block: NonNull<u8>) -> Option<usize> {
        match self.0.shared().entry(block.as_ptr()) {
            NOTHING => {
                let layout = self.sampled(block)?;
                sampled::check(block, layout).is_ok().then_some(layout.size())
            }
            WHOLE => self.0.shared().with(|pages| pages.large_size(block)),
            entry => {
                let class = entry as usize - 1;
                self.0.shared().is_start(block, class).then_some(SIZES[class] as usize)
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
        let size = self.usable_size(block)?;
        // A large block has no mark, but may have that of a small block that was there before.
        // SAFETY: a small block begins there, which is free or the caller's.
        let free = self.class_at(block).is_some() && unsafe { Block::is_free(block.cast().as_ptr()) };
        (!free).then_some(size)
    }

    /// Changes the size of a block to at least `size` bytes, in place or by moving it, and returns its new address; null if there is no
    /// memory to grow, and then the block is as it was. A moved block is aligned to `align`. A small block stays where it is as long as
    /// it is at most twice as long as asked for.
    ///
    /// # Safety
    ///
    /// The block must be a live one of this heap, aligned to `align`. If it moves, it must not be used any more at its old
    /// address.
    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller guarantees the block.
        let changed = unsafe {
            let Some(have) = self.size_of_own(block) else { return ptr::null_mut() };
            let is_large = have > LARGEST && size > LARGEST;
            if have <= LARGEST && size <= have && size >= have / 2 {
                return block.as_ptr();
            }
            // A block that shrinks may stay.
            self.resize(block, have, is_large, (size, align), |_| ())
                .or_else(|| (self.0.shared().resize_at_last(block, size) || size <= have).then_some(block))
        };
        changed.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Changes the size of a block of `have` bytes, in place if it `is_large` and stays so, and by moving it otherwise. `done` gets the address
    /// before the old block becomes free for other requests.
    ///
    /// # Safety
    ///
    /// The block must be live and have these bytes. If it moves, it must not be used any more at its old address.
    unsafe fn resize(
        &self,
        block: NonNull<u8>,
        have: usize,
        is_large: bool,
        (size, align): (usize, usize),
        done: impl FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let (allocate, free) =
            // SAFETY: the caller guarantees the block.
            (|| NonNull::new(self.allocate_raw(size, align)), || unsafe { self.free(block) });
        // SAFETY: as above.
        unsafe { self.0.shared().resize((block, have, is_large), (size, align), allocate, free, done) }
    }

    /// Releases all free memory to the system: that of the calling thread at once, that of the others when they next go to the shared
    /// pages. Returns the bytes. O(spans + free blocks).
    pub fn trim(&self) -> usize {
        self.0.shared().call_for_memory();
        self.0.shared().with(Pages::trim)
    }

    /// Sets how short memory is outside the heap, and returns the bytes that went back to the system. Under pressure all free memory
    /// goes back at once, as by [`Growing::trim`], and until the pressure ends less of it stays: 2 MiB and a sixteenth of what is in
    /// use ([`Pressure::Low`]), or 1 MiB ([`Pressure::Critical`]).
    #[doc(hidden)]
    pub fn set_pressure(&self, pressure: Pressure) -> usize {
        self.0.shared().with(|pages| pages.pressure = pressure);
        if pressure == Pressure::Normal { 0 } else { self.trim() }
    }

    /// Returns the statistics of this moment. Blocks in the caches of threads count as used.
    pub fn stats(&self) -> GrowingStats {
        self.0.shared().with(|pages| pages.stats())
    }
}
