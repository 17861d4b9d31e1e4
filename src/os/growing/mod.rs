//! A heap for the whole process that grows and shrinks: lists per thread, pages of equal blocks, and spans of a reserved address range.
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

/// The heap of the process, with a cache per thread. It gets memory from the system as the program needs it, and returns free memory.
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
/// A process has one such heap, and every value of `Growing` refers to it; [`Growing::create`] creates others, as values of
/// `Growing<Own>`. At the first request the heap reserves 64 GiB of addresses, or four times the machine's memory if that is more, or
/// what a limit such as `ulimit -v` leaves, and commits memory there in growing steps. If the program later lowers its limit
/// (`RLIMIT_AS`), the heap obeys it. The reserved addresses still count towards the limit, so the system may refuse other mappings: call
/// [`Growing::limit`] first.
///
/// Blocks of up to 32 KiB come from pages of equal blocks: sizes are multiples of 8 bytes from 16 to 128, and then eight per power of
/// two. Each thread keeps up to two lists of free blocks of each size, up to 16 KiB each, and exchanges whole lists with the pages under
/// one lock. Larger blocks are multiples of 4 KiB. All blocks are aligned to at least 8 bytes, and to 16 if the request says so or the
/// size is a multiple of 16. The heap finds a block by its address alone ([`Growing::usable_size`]).
///
/// It is a [`Memory`](crate::Memory), so every front can wrap it: `Observed<Growing, Profile>` watches the whole process. It does not
/// count blocks and so has no [`Stats`](crate::Stats); use [`Growing::stats`] instead.
///
/// The heap returns free memory to the system when there is much of it (more than 16 MiB plus a quarter of the memory in use), before the
/// process exceeds its peak with more than a sixteenth of its memory free, when the program frees large blocks or pages more than a
/// second after the last return, and when the program calls [`Growing::trim`].
///
/// The heap detects a double free of a block of up to 32 KiB, in any thread, until it allocates the block again or returns its memory to
/// the system; of 16-byte blocks, one in 64 escapes while no thread keeps it. It detects double frees of larger blocks until their memory
/// is in use again. `dealloc` reports them (see [`misuse`](crate::error::misuse)), and [`Growing::free`] returns an error. A write to the
/// first two words of a free block of up to 32 KiB ends the program when the block leaves its list.
///
/// Allocation and free take constant time, apart from system calls and the purge, which visits all free spans. A program with threads may
/// `fork`, and the child may allocate; a front with a lock needs [`protect_at_fork`](super::protect_at_fork) for that.
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

/// Allocates a block when the thread's list in use is empty; null if there is no memory.
#[cold]
#[inline(never)]
fn allocate_slow(heap: &'static Shared, size: usize, align: usize) -> *mut u8 {
    let sampled = if heap.samples() { sampled::allocate(size, align) } else { None };
    let block = sampled.or_else(|| cache::allocate_slow(heap, class_of(size, align)?));
    block.map_or(ptr::null_mut(), NonNull::as_ptr)
}

impl Growing {
    /// Creates a handle to the heap of the process.
    pub const fn new() -> Self {
        Self(())
    }
}

#[expect(private_bounds, reason = "there are no other heaps than those two")]
impl<W: Whose> Growing<W> {
    /// Puts a block into the thread's list in use for a class, and returns whether the list accepted it.
    ///
    /// # Safety
    ///
    /// The block must be of the class, and not used any more.
    #[inline(always)]
    unsafe fn free_class(&self, class: usize, block: NonNull<u8>) -> bool {
        // SAFETY: the bin belongs to this thread, and the caller guarantees the block.
        unsafe { Bin::free(self.0.bin(class), block) }
    }

    /// Returns the class of the page that contains an address, if that is a page of small blocks.
    #[inline(always)]
    fn class_at(&self, block: NonNull<u8>) -> Option<usize> {
        let entry = self.0.shared().entry(block.as_ptr());
        // A class's entry is neither 0 nor the largest number.
        (entry.wrapping_sub(1) < WHOLE - 1).then(|| entry as usize - 1)
    }

    /// Allocates a block that has no class, or none in the table.
    #[inline(never)]
    fn allocate_other(&self, size: usize, align: usize) -> *mut u8 {
        let heap = self.0.shared();
        let Some(class) = class_of(size, align) else {
            return heap
                .allocate_large(size, align, false)
                .map_or(ptr::null_mut(), |(block, _)| block.as_ptr());
        };
        // SAFETY: the bin belongs to this thread.
        let block = unsafe { Bin::allocate::<true>(self.0.bin(class)) };
        block.map_or_else(|| allocate_slow(heap, size, align), NonNull::as_ptr)
    }

    /// Limits the heap's memory to `bytes`, or to 1 MiB if that is more. The heap keeps memory that it already has. Before the first
    /// request this also limits the addresses that the heap reserves; it cannot reserve more later.
    pub fn limit(&self, bytes: usize) {
        self.0.shared().with(|pages| pages.limit(bytes.max(1)));
    }

    /// Allocates `size` bytes aligned to `align`, a power of two, or returns null, as it does for other alignments above 16.
    /// [`Growing::free`] needs only the block's address. O(1).
    #[inline]
    pub fn allocate_raw(&self, size: usize, align: usize) -> *mut u8 {
        match tabled_class_of(size, align) {
            // SAFETY: the bin belongs to this thread.
            Some(class) => match unsafe { Bin::allocate::<true>(self.0.bin(class)) } {
                Some(block) => block.as_ptr(),
                None => allocate_slow(self.0.shared(), size, align),
            },
            None => self.allocate_other(size, align),
        }
    }

    /// Allocates like [`Growing::allocate_raw`], but only if the thread's list has a block, so that the caller can act otherwise.
    #[doc(hidden)]
    #[inline(always)]
    pub fn allocate_fast(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the bin belongs to this thread.
        unsafe { Bin::allocate::<true>(self.0.bin(tabled_class_of(size, align)?)) }
    }

    /// Frees a block like [`Growing::free`], but only if the thread's list has room. Returns whether it had.
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

    /// Allocates like [`Growing::allocate_raw`], with all bytes zero. Memory fresh from the system needs no clearing.
    pub fn allocate_raw_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        let (block, dirty) = match class_of(size, align) {
            Some(_) => (self.allocate_raw(size, align), true),
            None => match self.0.shared().allocate_large(size, align, true) {
                Some((block, dirty)) => (block.as_ptr(), dirty),
                None => return ptr::null_mut(),
            },
        };
        if dirty && !block.is_null() {
            // SAFETY: the block has the requested bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    /// Frees a block by its address alone. O(1).
    ///
    /// # Errors
    ///
    /// With nothing done: [`FreeError::Foreign`] if the address is in no block of this heap, [`FreeError::AlreadyFree`] if a block of up
    /// to 32 KiB was freed and not allocated again, and [`FreeError::NotABlock`] for most addresses inside such a block, namely those
    /// that are less aligned than all blocks of its size.
    ///
    /// # Safety
    ///
    /// If the block is from this heap, it must be live and must not be used afterwards.
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

    /// Returns the layout of the current or last sampled block in the slot of an address; `None` if the address is in no slot.
    #[inline]
    fn sampled(&self, block: NonNull<u8>) -> Option<Layout> {
        if W::SAMPLES { sampled::layout_of(block) } else { None }
    }

    /// Returns how many bytes the block at an address has, at least as many as requested; `None` if no block starts there. Any thread may
    /// call this, even while others write to the block, because it does not read the block. It therefore also returns the size of a free
    /// block of up to 32 KiB. O(1).
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

    /// Returns how many bytes a live block has, like [`Growing::usable_size`], but `None` for a block that is marked as free.
    ///
    /// # Safety
    ///
    /// If a live block starts at the address, it must belong to the caller: other threads must not write to it meanwhile.
    #[doc(hidden)]
    pub unsafe fn size_of_own(&self, block: NonNull<u8>) -> Option<usize> {
        let size = self.usable_size(block)?;
        // A large block has no mark, but may contain the mark of an earlier small block.
        // SAFETY: a small block begins there, which is free or belongs to the caller.
        let free = self.class_at(block).is_some() && unsafe { Block::is_free(block.cast().as_ptr()) };
        (!free).then_some(size)
    }

    /// Changes the size of a block to at least `size` bytes, in place or by moving it, and returns its new address; null, with the block
    /// unchanged, if there is no memory to grow. A moved block is aligned to `align`. A small block stays in place as long as it is at
    /// most twice as long as requested.
    ///
    /// # Safety
    ///
    /// The block must be a live block of this heap, aligned to `align`. If it moves, it must not be used at its old address any more.
    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller guarantees the block.
        let changed = unsafe {
            let Some(have) = self.size_of_own(block) else { return ptr::null_mut() };
            let is_large = have > LARGEST && size > LARGEST;
            if have <= LARGEST && size <= have && size >= have / 2 {
                return block.as_ptr();
            }
            // A block that shrinks may stay in place.
            self.resize(block, have, is_large, (size, align), |_| ())
                .or_else(|| (self.0.shared().resize_at_last(block, size) || size <= have).then_some(block))
        };
        changed.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Changes the size of a block of `have` bytes, in place if it `is_large` and stays large, and by moving it otherwise. `done` gets
    /// the address before the old block becomes free for other requests.
    ///
    /// # Safety
    ///
    /// The block must be live and have these bytes. If it moves, it must not be used at its old address any more.
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

    /// Releases all free memory to the system, and returns the bytes. Other threads release the blocks that they keep when they next use
    /// the shared pages. O(spans + free blocks).
    pub fn trim(&self) -> usize {
        self.0.shared().call_for_memory();
        self.0.shared().with(Pages::trim)
    }

    /// Sets the memory pressure outside the heap, and returns the bytes released to the system. Under pressure the heap releases all free
    /// memory at once, like [`Growing::trim`], and until the pressure ends it keeps less: 2 MiB plus a sixteenth of the memory in use
    /// ([`Pressure::Low`]), or 1 MiB ([`Pressure::Critical`]).
    #[doc(hidden)]
    pub fn set_pressure(&self, pressure: Pressure) -> usize {
        self.0.shared().with(|pages| pages.pressure = pressure);
        if pressure == Pressure::Normal { 0 } else { self.trim() }
    }

    /// Returns the current statistics. Blocks in the caches of threads count as used.
    pub fn stats(&self) -> GrowingStats {
        self.0.shared().with(|pages| pages.stats())
    }
}
