//! A front that knows whether each block of the growing heap is live.
//!
//! ```text
//!  block   | data .................. | canary |     zero from its free to its next allocation
//!  states  one byte for 16 bytes of the heap, in a range of addresses of its own
//! ```

use super::classes::SLOT;
use super::empty;
use super::ground::GRAIN;
use super::own::Whose;
use super::pages::Pages;
use super::record::{self, FRESH, state_at};
use super::spans::{NOTHING, WHOLE};
use super::state::SHARED;
use super::system::{Host, System};
use super::{Growing, ask};
use crate::error::FreeError;
use crate::error::misuse::{Kind, corrupted, report_refused};
use crate::memory::{Done, Memory, allocator, global_alloc, pass_on};
use crate::os::cache::{self, Bin, Block, LARGEST, SIZES, SMALLEST, class_of};
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// The heap of the process for programs that must withstand attacks through memory errors: [`Growing`], with a record of every block
/// beside the memory.
///
/// ```
/// use allotment::os::Hardened;
///
/// #[global_allocator]
/// static HEAP: Hardened = Hardened;
///
/// let words: Vec<String> = "any thread".split(' ').map(str::to_owned).collect();
/// # drop(words);
/// ```
///
/// For blocks of up to 32 KiB it adds:
///
/// * A table records for each address whether a live block starts there. It detects every free of anything but a live block, even if two
///   threads free a block at the same time, and whatever the program has written to its memory.
/// * A canary of 8 bytes ends each block. It depends on the address and on a random number of the process. A free detects an overflow up
///   to the end of the block's size class, and an underflow of the next block.
/// * A freed block stays zero until its next allocation, which detects a write to it and ends the program. A new block never contains old
///   data.
/// * Even with a damaged list, an allocation returns only free blocks of its class, and none twice.
/// * A freed block of up to 1 KiB waits in one of 256 places, chosen with the random number. The block that waited there before becomes
///   free.
/// * A block of no bytes has an address without memory.
///
/// Larger blocks are zero when allocated. Their metadata lies beside the memory, and the heap detects double frees until the memory is in
/// use again. The program cannot access a freed block above 128 KiB while it waits in one of 8 places.
/// [`Guarded`](super::super::Guarded) around this heap puts sampled blocks between pages without access, and so detects reads too.
///
/// Allocation and free take time in proportion to the block's size, because they check and clear it. The table takes a sixteenth of the
/// memory in small blocks, and a sixteenth of the heap's addresses. [`Growing`] has the statistics, the limit and other settings; do not
/// allocate from it.
///
/// Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardened;

/// Bytes of the canary.
const CANARY: usize = size_of::<u64>();

/// The state of an address where a freed block starts, which is zero after its first two words. Other states are [`FRESH`] or [`live`].
const FREED: u8 = u8::MAX;

/// The random number of the process. Set before the record begins.
static SECRET: AtomicUsize = AtomicUsize::new(0);

/// Freed blocks that wait before their next allocation.
static WAITING: [AtomicPtr<u8>; PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; PLACES];
const PLACES: usize = 256;

/// Bytes of the longest block that waits.
const LONGEST: usize = 1024;

/// Returns the state of a live block: its start within the bytes of the state, plus 1.
fn live(block: NonNull<u8>) -> u8 {
    (block.addr().get() % SMALLEST) as u8 + 1
}

/// Returns a number for an address that only this process can compute.
#[inline(always)]
fn key(block: NonNull<u8>) -> u64 {
    let mixed = (block.addr().get() ^ SECRET.load(Ordering::Relaxed)) as u64;
    mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns the address of a block's canary.
#[inline(always)]
fn canary(block: NonNull<u8>, class: usize) -> *mut u64 {
    block.as_ptr().wrapping_add(SIZES[class] as usize - CANARY).cast()
}

/// Returns the value of a block's canary. Its first byte is not zero, so that even a string's terminating zero changes it.
#[inline(always)]
fn value(block: NonNull<u8>) -> u64 {
    key(block) | 1
}

/// Freed large blocks that no access reaches, until others take their places.
static HIDDEN: [AtomicPtr<u8>; HIDDEN_PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; HIDDEN_PLACES];
const HIDDEN_PLACES: usize = 8;

/// Bytes above which a freed block is hidden. For shorter ones the system calls would take longer than all else.
const HIDDEN_FROM: usize = 128 * 1024;

/// Bytes above which the memory of a hidden block goes back to the system. For shorter ones the page faults would take longer than clearing.
const PURGED_FROM: usize = 512 * 1024;

/// The state of the start of a large block that is hidden.
const IS_HIDDEN: u8 = FREED - 1;

/// The class of blocks of no bytes.
const EMPTY: usize = usize::MAX;

/// Returns the class of a request, with room for the canary; `None` if it gets a large block.
#[inline(always)]
fn class_for(size: usize, align: usize) -> Option<usize> {
    if size == 0 && align <= SMALLEST {
        return Some(EMPTY);
    }
    class_of(size.checked_add(CANARY)?, align)
}

/// Creates the table.
#[cold]
fn begin() -> bool {
    let Some(region) = ask::reserved() else { return false };
    let bytes = (region.size / SMALLEST).next_multiple_of(GRAIN);
    // Lock, so that only one thread creates the table.
    SHARED.with(|_| {
        if record::is_kept() {
            return true;
        }
        let mut secret = [0; size_of::<usize>()];
        // SAFETY: the place is valid for a write.
        let random = unsafe { libc::getrandom(secret.as_mut_ptr().cast(), secret.len(), 0) };
        let Some(table) = Host::reserve(bytes) else { return false };
        // SAFETY: the range was just reserved, and stays unused if this fails.
        unsafe {
            if random != secret.len() as isize || !Host::commit(table.as_ptr(), bytes) {
                Host::release(table, bytes);
                return false;
            }
        }
        SECRET.store(usize::from_ne_bytes(secret), Ordering::Relaxed);
        empty::reserve();
        // A thread that sees the record also sees the number.
        // SAFETY: the bytes are committed, and nothing else uses them.
        unsafe { record::begin(region, table.as_ptr()) };
        true
    })
}

impl Hardened {
    /// Allocates `size` bytes aligned to `align`. Returns the block, and whether it may have nonzero bytes; `None` if there is no memory.
    #[inline]
    fn allocate_block(&self, size: usize, align: usize) -> Option<(NonNull<u8>, bool)> {
        if !record::is_kept() && !begin() {
            return None;
        }
        let class = match class_for(size, align) {
            None => return self.allocate_large(size.max(LARGEST + 1), align),
            Some(EMPTY) => match empty::allocate() {
                Some(block) => return Some((block, false)),
                None => class_for(1, align)?,
            },
            Some(class) => class,
        };
        // SAFETY: the bin belongs to this thread.
        let block = unsafe { Bin::allocate::<false>(().bin(class)) }
            .or_else(|| self.insist(|| cache::allocate_slow(&SHARED, class)))?;
        Some((block, self.admit(block, class)))
    }

    /// Allocates a large block, with all bytes zero.
    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> Option<(NonNull<u8>, bool)> {
        let (block, dirty) = self.insist(|| SHARED.allocate_large(size, align, true))?;
        if dirty {
            // SAFETY: the block has whole slots.
            unsafe { block.write_bytes(0, size.next_multiple_of(SLOT)) };
        }
        Some((block, false))
    }

    /// Checks a block from the lists, and makes it live. Returns whether it may have nonzero bytes.
    #[inline(always)]
    fn admit(&self, block: NonNull<u8>, class: usize) -> bool {
        let broken = || corrupted(Kind::BrokenList, block.addr().get());
        if SHARED.entry(block.as_ptr()) as usize != class + 1 {
            broken();
        }
        let Some(state) = state_at(block.as_ptr()) else { broken() };
        let is_fresh = match state.load(Ordering::Relaxed) {
            FREED => {
                // SAFETY: the block is free, and no other thread owns it.
                if unsafe { !is_zero(block, SIZES[class] as usize) } {
                    corrupted(Kind::WrittenAfterFree, block.addr().get());
                }
                false
            }
            FRESH if SHARED.is_start(block, class) => true,
            _ => broken(),
        };
        state.store(live(block), Ordering::Relaxed);
        // SAFETY: the block has these bytes, and this call owns it.
        unsafe {
            block.cast::<[usize; 2]>().write([0; 2]);
            canary(block, class).write(value(block));
        }
        is_fresh
    }

    /// Allocates `size` bytes aligned to `align`, a power of two, or returns null. [`Hardened::free`] needs only the block's address.
    #[doc(hidden)]
    #[inline]
    pub fn allocate_raw(&self, size: usize, align: usize) -> *mut u8 {
        self.allocate_block(size, align).map_or(ptr::null_mut(), |(block, _)| block.as_ptr())
    }

    /// Allocates like [`Hardened::allocate_raw`], with all bytes zero. Freed blocks are already zero.
    #[doc(hidden)]
    pub fn allocate_raw_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        let Some((block, dirty)) = self.allocate_block(size, align) else { return ptr::null_mut() };
        if dirty {
            // SAFETY: the block has the requested bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block.as_ptr()
    }

    /// Returns the class of the live small or empty block that starts at an address; `None` for a large one.
    #[inline(always)]
    fn class_of_live(&self, block: NonNull<u8>) -> Result<Option<usize>, FreeError> {
        let entry = SHARED.entry(block.as_ptr());
        match entry {
            NOTHING => return empty::check(block).map(|()| Some(EMPTY)),
            WHOLE => {
                let is_hidden = |state: &AtomicU8| state.load(Ordering::Relaxed) == IS_HIDDEN;
                let hidden = state_at(block.as_ptr()).is_some_and(is_hidden);
                return if hidden { Err(FreeError::AlreadyFree) } else { Ok(None) };
            }
            _ => {}
        }
        match state_at(block.as_ptr()).map(|state| state.load(Ordering::Relaxed)) {
            Some(FREED) => Err(FreeError::AlreadyFree),
            Some(state) if state == live(block) => Ok(Some(entry as usize - 1)),
            _ => Err(FreeError::NotABlock),
        }
    }

    /// Frees a block by its address alone.
    ///
    /// # Errors
    ///
    /// With nothing done: [`FreeError::Foreign`] if the address is in no block of this heap, [`FreeError::AlreadyFree`] and
    /// [`FreeError::NotABlock`] if no live block starts there, and [`FreeError::Overrun`] if the block's canary was overwritten.
    ///
    /// # Safety
    ///
    /// If a live block starts at the address, it must belong to the caller, and must not be used afterwards.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn free(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        let Some(class) = self.class_of_live(block)? else {
            // SAFETY: the caller guarantees the block.
            return unsafe { self.free_large(block) };
        };
        if class == EMPTY {
            return empty::free(block);
        }
        let size = SIZES[class] as usize;
        // SAFETY: a live block of the class starts there, and belongs to the caller.
        unsafe {
            if canary(block, class).read() != value(block) {
                return Err(FreeError::Overrun);
            }
            let state = state_at(block.as_ptr()).ok_or(FreeError::Foreign)?;
            // Another thread may free the block at the same time.
            if state.compare_exchange(live(block), FREED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
                return Err(FreeError::AlreadyFree);
            }
            block.write_bytes(0, size);
        }
        if size > LONGEST {
            // SAFETY: the block belongs to the caller, and is not used any more.
            unsafe { self.free_block(class, block) };
            return Ok(());
        }
        let place = &WAITING[(key(block) >> 56) as usize % PLACES];
        if let Some(block) = NonNull::new(place.swap(block.as_ptr(), Ordering::AcqRel)) {
            let class = SHARED.entry(block.as_ptr()) as usize - 1;
            // SAFETY: the block was freed, has waited, and belongs to nothing else. Its link and mark are not written yet.
            unsafe {
                if block.cast::<[usize; 2]>().read() != [0; 2] {
                    corrupted(Kind::WrittenAfterFree, block.addr().get());
                }
                self.free_block(class, block);
            }
        }
        Ok(())
    }

    /// Frees a large block: hides it if it is long, and frees one that was hidden before.
    ///
    /// # Errors
    ///
    /// [`FreeError::NotABlock`] or [`FreeError::AlreadyFree`], with nothing done.
    ///
    /// # Safety
    ///
    /// The contract of [`Hardened::free`].
    #[inline(never)]
    unsafe fn free_large(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        let state = state_at(block.as_ptr()).ok_or(FreeError::Foreign)?;
        let free = |pages: &mut Pages<Host>| {
            let bytes = pages.large_size(block)?;
            // SAFETY: the caller guarantees the block.
            (bytes > HIDDEN_FROM || unsafe { pages.free_large(block) }).then_some(bytes)
        };
        let bytes = SHARED.with(free).ok_or(FreeError::NotABlock)?;
        if bytes <= HIDDEN_FROM {
            return Ok(());
        }
        // Another thread may free it as well.
        if state.swap(IS_HIDDEN, Ordering::Relaxed) == IS_HIDDEN {
            return Err(FreeError::AlreadyFree);
        }
        // SAFETY: the block is the caller's, and not used any more.
        unsafe {
            if bytes > PURGED_FROM {
                SHARED.with(|pages| pages.purge_large(block));
            }
            if protect(block, bytes, libc::PROT_NONE) {
                let place = &HIDDEN[(key(block) >> 56) as usize % HIDDEN_PLACES];
                self.show(place.swap(block.as_ptr(), Ordering::AcqRel));
                return Ok(());
            }
            state.store(FRESH, Ordering::Relaxed);
            if SHARED.free_large(block) { Ok(()) } else { Err(FreeError::NotABlock) }
        }
    }

    /// Frees a large block that was in a place of [`HIDDEN`], or does nothing if it is null.
    fn show(&self, block: *mut u8) {
        let Some(block) = NonNull::new(block) else { return };
        let (Some(bytes), Some(state)) = (Growing::new().usable_size(block), state_at(block.as_ptr())) else {
            return;
        };
        // SAFETY: the block was freed, and nothing else has it. Without access it is not used again.
        unsafe {
            if protect(block, bytes, libc::PROT_READ | libc::PROT_WRITE) {
                state.store(FRESH, Ordering::Relaxed);
                SHARED.with(|pages| match bytes > PURGED_FROM {
                    true => pages.free_purged(block),
                    false => _ = pages.free_large(block),
                });
            }
        }
    }

    /// Makes a request, and once more without hidden blocks if it failed.
    #[inline(always)]
    fn insist<T>(&self, request: impl Fn() -> Option<T>) -> Option<T> {
        request().or_else(|| {
            HIDDEN.iter().for_each(|place| self.show(place.swap(ptr::null_mut(), Ordering::AcqRel)));
            request()
        })
    }

    /// Puts a freed block into the lists.
    ///
    /// # Safety
    ///
    /// The block must be of the class, and in no list.
    #[inline(always)]
    unsafe fn free_block(&self, class: usize, block: NonNull<u8>) {
        // SAFETY: the caller's contract.
        unsafe {
            if !Growing::new().free_class(class, block) {
                cache::free_slow(&SHARED, class, block);
            }
        }
    }

    /// Returns how many bytes of the live block at an address the program may use, at least as many as it requested; `None` if no live
    /// block starts there. Any thread may call this. O(1).
    #[doc(hidden)]
    pub fn usable_size(&self, block: NonNull<u8>) -> Option<usize> {
        match self.class_of_live(block).ok()? {
            Some(EMPTY) => Some(0),
            Some(class) => Some(SIZES[class] as usize - CANARY),
            None => Growing::new().usable_size(block),
        }
    }

    /// Changes the size of a block to at least `size` bytes, in place or by moving it, and returns its new address; null, with the block
    /// unchanged, if there is no memory. A moved block is aligned to `align`. A small block stays in place as long as it is at most twice
    /// as long as requested.
    ///
    /// # Safety
    ///
    /// The block must be a live block of this heap, aligned to `align`. If it moves, it must not be used at its old address any more.
    #[doc(hidden)]
    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        let Some(have) = self.usable_size(block) else { return ptr::null_mut() };
        if have <= LARGEST && size <= have && size >= have / 2 {
            return block.as_ptr();
        }
        // SAFETY: the caller's contract.
        let moved = unsafe { self.resize(block, have, (size, align), |_| ()) };
        // A block that shrinks may stay in place.
        moved.or((size <= have).then_some(block)).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Changes the size of a block of `have` bytes, in place if it is large and stays large, and by moving it otherwise.
    ///
    /// # Safety
    ///
    /// The block must be live and have these bytes. If it moves, it must not be used at its old address any more.
    unsafe fn resize(
        &self,
        block: NonNull<u8>,
        have: usize,
        (size, align): (usize, usize),
        done: impl FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let is_aligned = block.addr().get() % align == 0;
        let is_large = have > LARGEST && class_for(size, align).is_none() && size > LARGEST && is_aligned;
        let (allocate, free) = (
            || self.allocate_block(size, align).map(|(block, _)| block),
            // SAFETY: the caller guarantees the block.
            || unsafe { self.free(block) },
        );
        // SAFETY: as above.
        unsafe { SHARED.resize((block, have, is_large), (size, align), allocate, free, done) }
    }
}

/// Allows or forbids access to the whole pages of a freed block. Returns whether that was possible.
///
/// # Safety
///
/// The block must have these bytes, and must not be used any more.
unsafe fn protect(block: NonNull<u8>, bytes: usize, access: i32) -> bool {
    let page = Host::page();
    let skipped = block.addr().get().wrapping_neg() % page;
    let start = block.as_ptr().wrapping_add(skipped);
    // SAFETY: the pages are the block's alone.
    unsafe { libc::mprotect(start.cast(), bytes.saturating_sub(skipped) / page * page, access) == 0 }
}

/// Returns whether a free block is zero after its link and mark.
///
/// # Safety
///
/// The block must have `size` bytes, a multiple of 8, and nothing else may write to it.
#[inline(always)]
unsafe fn is_zero(block: NonNull<u8>, size: usize) -> bool {
    let words = (size - size_of::<Block>()) / size_of::<u64>();
    // SAFETY: the caller guarantees the bytes, which the free initialised.
    let words = unsafe {
        core::slice::from_raw_parts(block.as_ptr().wrapping_add(size_of::<Block>()).cast::<u64>(), words)
    };
    words.iter().fold(0, |all, word| all | word) == 0
}

// SAFETY: the blocks come from `Growing`, and none is live twice; nothing unwinds.
unsafe impl Memory for Hardened {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (block, _) = self.allocate_block(layout.size(), layout.align())?;
        Some(block)
    }

    /// Allocates zeroed memory, and clears only blocks that may not be zero.
    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.allocate_raw_zeroed(layout.size(), layout.align()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        report_refused(unsafe { self.try_deallocate(block, layout) }, block);
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        // SAFETY: the caller's contract.
        unsafe { self.free(block) }
    }

    /// Checks that a live block of the layout's class starts at the address.
    #[inline]
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let live = self.class_of_live(block)?;
        let has = |size| live == class_for(size, layout.align());
        // A block of no bytes is one of a byte if there are very many.
        if has(layout.size()) || layout.size() == 0 && has(1) { Ok(()) } else { Err(FreeError::NotABlock) }
    }

    /// Checks a block and its canary.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        match class_for(layout.size(), layout.align()) {
            Some(EMPTY) => Ok(()),
            // SAFETY: the block belongs to the caller.
            Some(class) if unsafe { canary(block, class).read() != value(block) } => Err(FreeError::Overrun),
            _ => Ok(()),
        }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        match (class_for(layout.size(), layout.align()), class_for(size, layout.align())) {
            (None, None) => {
                let size = size.max(LARGEST + 1);
                // SAFETY: the caller's contract.
                SHARED.with(|pages| unsafe { pages.resize_large(block, size) })
            }
            (old, new) => old == new,
        }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a live block with its layout.
        unsafe {
            if !report_refused(self.check_owned(block, old), block) {
                return None;
            }
            let (from, to) = (class_for(old.size(), old.align()), class_for(new.size(), new.align()));
            if from.is_some() && from == to {
                done(block);
                return Some(block);
            }
            let have = if from.is_none() { self.usable_size(block)? } else { old.size() };
            self.resize(block, have, (new.size(), new.align()), done)
        }
    }

    /// Returns true, because this heap checks each free.
    fn remembers(&self) -> bool {
        true
    }

    pass_on!(|self| Growing::new(); largest_free, region, locks);
}

global_alloc!([] Hardened, plainly);
allocator!([] Hardened);
