//! [`FixedPool`]: equal blocks that threads and interrupt handlers allocate and free without a lock.

use crate::error::FreeError;
use crate::units::debug;
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use word::Word;

/// A static pool of `N` blocks for values of type `T`, for threads and for interrupt handlers of every priority.
///
/// ```
/// use allotment::fixed::FixedPool;
///
/// static FRAMES: FixedPool<[u8; 64], 8> = FixedPool::new();
///
/// // In an interrupt handler:
/// let mut frame = FRAMES.alloc([0; 64]).expect("at most 8 frames wait");
/// frame[0] = 0x7e;
/// // In the main loop: dropping the frame frees its block.
/// assert_eq!(FRAMES.available(), 7);
/// drop(frame);
/// assert_eq!(FRAMES.available(), 8);
/// ```
///
/// `WORDS` words of 32 bits hold one bit per block that says whether it is in use; a pool of more than 32 blocks must state how many
/// words it needs: `FixedPool<Frame, 100, 4>`. A new pool is all zero, and lies in `.bss`. Setting the bit allocates a block and clearing
/// it frees the block, each with one atomic operation that also returns the old bits. Blocks are not linked, so the ABA problem cannot
/// occur, and the pool detects double frees.
///
/// [`FixedPool::alloc`] and the box that it returns work like those of `heapless::pool::boxed`, but need no macro and no memory passed in
/// first.
///
/// On processors without such operations (ARMv6-M, RISC-V without the A extension), each change of a word is a critical section (feature
/// `critical-section`) of four instructions. The pool masks interrupts at no other time, and never on other processors.
///
/// Allocating is O(`WORDS`), freeing O(1). An allocation retries only if another thread or handler has meanwhile allocated a block of the
/// same word.
pub struct FixedPool<T, const N: usize, const WORDS: usize = 1> {
    /// One bit per block, set while the block is in use.
    used: [Word; WORDS],
    blocks: UnsafeCell<[MaybeUninit<T>; N]>,
}

// SAFETY: a block has one owner at a time, on any thread, so values must be `Send`.
unsafe impl<T: Send, const N: usize, const WORDS: usize> Sync for FixedPool<T, N, WORDS> {}

impl<T, const N: usize, const WORDS: usize> FixedPool<T, N, WORDS> {
    /// Creates a pool of free blocks.
    pub const fn new() -> Self {
        const {
            assert!(N > 0, "a pool needs a block");
            assert!(N <= 32 * WORDS, "a pool needs one word for every 32 blocks: FixedPool<T, N, WORDS>");
            assert!(size_of::<T>() > 0, "values without a size need no memory");
        }
        Self {
            used: [const { Word::new() }; WORDS],
            blocks: UnsafeCell::new([const { MaybeUninit::uninit() }; N]),
        }
    }

    /// Allocates a block with undefined contents, or returns `None` if all blocks are in use.
    pub fn alloc_raw(&self) -> Option<NonNull<T>> {
        for (at, word) in self.used.iter().enumerate() {
            let mut seen = word.load();
            loop {
                let index = 32 * at + seen.trailing_ones() as usize;
                if seen == u32::MAX || index >= N {
                    break;
                }
                let bit = 1 << (index % 32);
                let old = word.set(bit);
                if old & bit == 0 {
                    return NonNull::new(self.block(index));
                }
                // Another caller got the block first.
                seen = old;
            }
        }
        None
    }

    /// Frees a block without dropping its contents.
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if no block of the pool starts at the address, or if the block is already free.
    ///
    /// # Safety
    ///
    /// The block must not be used any more.
    pub unsafe fn free_raw(&self, block: NonNull<T>) -> Result<(), FreeError> {
        let offset = block.addr().get().wrapping_sub(self.blocks.get().addr());
        if offset >= N * size_of::<T>() {
            return Err(FreeError::Foreign);
        }
        if offset % size_of::<T>() != 0 {
            return Err(FreeError::Misaligned);
        }
        let index = offset / size_of::<T>();
        let bit = 1 << (index % 32);
        // The index is below `N`, so its word exists.
        let old = self.used.get(index / 32).map_or(0, |word| word.clear(bit));
        if old & bit == 0 { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    /// Allocates a block for a value. Dropping the result frees the block.
    ///
    /// # Errors
    ///
    /// The value, if all blocks are in use.
    pub fn alloc(&self, value: T) -> Result<Fixed<'_, T, N, WORDS>, T> {
        match self.alloc_raw() {
            Some(block) => {
                // SAFETY: this call owns the block.
                unsafe { block.write(value) };
                Ok(Fixed { pool: self, block })
            }
            None => Err(value),
        }
    }

    /// Returns the number of free blocks at some moment during the call. O(`WORDS`).
    pub fn available(&self) -> usize {
        N - self.used.iter().map(|word| word.load().count_ones() as usize).sum::<usize>()
    }

    fn block(&self, index: usize) -> *mut T {
        self.blocks.get().cast::<T>().wrapping_add(index)
    }
}

impl<T, const N: usize, const WORDS: usize> Default for FixedPool<T, N, WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

debug!([T, const N: usize, const WORDS: usize] FixedPool<T, N, WORDS>, |self| blocks: N, available: self.available());

/// A box for a value in a block of a [`FixedPool`]; dropping it frees the block.
pub struct Fixed<'p, T, const N: usize, const WORDS: usize = 1> {
    pool: &'p FixedPool<T, N, WORDS>,
    block: NonNull<T>,
}

// SAFETY: it owns the value.
unsafe impl<T: Send, const N: usize, const WORDS: usize> Send for Fixed<'_, T, N, WORDS> {}
// SAFETY: as for a reference to the value.
unsafe impl<T: Sync, const N: usize, const WORDS: usize> Sync for Fixed<'_, T, N, WORDS> {}

impl<T, const N: usize, const WORDS: usize> Deref for Fixed<'_, T, N, WORDS> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the block holds a value that `self` owns.
        unsafe { self.block.as_ref() }
    }
}

impl<T, const N: usize, const WORDS: usize> DerefMut for Fixed<'_, T, N, WORDS> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.block.as_mut() }
    }
}

impl<T, const N: usize, const WORDS: usize> Drop for Fixed<'_, T, N, WORDS> {
    fn drop(&mut self) {
        /// Frees the block, also when the value's destructor panics.
        struct Free<'p, T, const N: usize, const WORDS: usize>(&'p FixedPool<T, N, WORDS>, NonNull<T>);

        impl<T, const N: usize, const WORDS: usize> Drop for Free<'_, T, N, WORDS> {
            fn drop(&mut self) {
                // SAFETY: the value is gone, and nothing else has the block.
                let _ = unsafe { self.0.free_raw(self.1) };
            }
        }

        let _free = Free(self.pool, self.block);
        // SAFETY: this owns the value and the block.
        unsafe { ptr::drop_in_place(self.block.as_ptr()) }
    }
}

impl<T: fmt::Debug, const N: usize, const WORDS: usize> fmt::Debug for Fixed<'_, T, N, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Bits that one atomic operation changes.
#[cfg(target_has_atomic = "32")]
mod word {
    use core::sync::atomic::{AtomicU32, Ordering};

    pub(super) struct Word(AtomicU32);

    impl Word {
        pub(super) const fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        #[inline(always)]
        pub(super) fn load(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }

        /// Sets bits and returns the old ones. The acquire ordering makes the last owner's writes visible to the next owner.
        #[inline(always)]
        pub(super) fn set(&self, bits: u32) -> u32 {
            self.0.fetch_or(bits, Ordering::Acquire)
        }

        /// Clears bits and returns the old ones.
        #[inline(always)]
        pub(super) fn clear(&self, bits: u32) -> u32 {
            self.0.fetch_and(!bits, Ordering::Release)
        }
    }
}

/// Bits that change in a critical section, for processors without atomic operations.
#[cfg(not(target_has_atomic = "32"))]
mod word {
    use crate::lock::{CriticalSection, Lock};
    use core::cell::UnsafeCell;

    pub(super) struct Word(UnsafeCell<u32>);

    // SAFETY: the bits are written in critical sections only, and a word is read as a whole.
    unsafe impl Sync for Word {}

    impl Word {
        pub(super) const fn new() -> Self {
            Self(UnsafeCell::new(0))
        }

        #[inline(always)]
        pub(super) fn load(&self) -> u32 {
            // SAFETY: an aligned word is read by one instruction.
            unsafe { self.0.get().read_volatile() }
        }

        #[inline(always)]
        fn change(&self, change: impl FnOnce(u32) -> u32) -> u32 {
            // SAFETY: no other writer of the word runs during the critical section.
            CriticalSection::INIT.with(|| unsafe {
                let old = *self.0.get();
                *self.0.get() = change(old);
                old
            })
        }

        /// Clears bits and returns the old ones.
        #[inline(always)]
        pub(super) fn clear(&self, bits: u32) -> u32 {
            self.change(|old| old & !bits)
        }

        /// Sets bits and returns the old ones.
        #[inline(always)]
        pub(super) fn set(&self, bits: u32) -> u32 {
            self.change(|old| old | bits)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::vec::Vec;

    #[test]
    #[cfg(panic = "unwind")]
    fn a_panic_in_a_destructor_loses_no_block() {
        struct Loud(#[allow(dead_code)] u8);
        impl Drop for Loud {
            fn drop(&mut self) {
                panic!("on purpose");
            }
        }
        static POOL: FixedPool<Loud, 2> = FixedPool::new();
        let value = POOL.alloc(Loud(1)).ok().unwrap();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(value))).is_err());
        assert_eq!(POOL.available(), 2);
    }

    #[test]
    fn every_block_is_handed_out_once() {
        static POOL: FixedPool<[u8; 24], 70, 3> = FixedPool::new();
        let mut blocks: Vec<_> = (0..70).map(|_| POOL.alloc_raw().unwrap()).collect();
        assert_eq!((POOL.alloc_raw(), POOL.available()), (None, 0));
        blocks.sort();
        assert!(blocks.windows(2).all(|pair| pair[1].addr().get() - pair[0].addr().get() == 24));
        for block in &blocks {
            // SAFETY: each block is freed once.
            unsafe { POOL.free_raw(*block) }.unwrap();
        }
        assert_eq!(POOL.available(), 70);
    }

    #[test]
    fn wrong_addresses_are_refused() {
        static POOL: FixedPool<u64, 5> = FixedPool::new();
        let block = POOL.alloc_raw().unwrap();
        let mut other = 0_u64;
        // SAFETY: only the first of the calls frees a live block.
        unsafe {
            assert_eq!(POOL.free_raw(block.byte_add(4)), Err(FreeError::Misaligned));
            assert_eq!(POOL.free_raw(NonNull::from(&mut other)), Err(FreeError::Foreign));
            assert_eq!(POOL.free_raw(block), Ok(()));
            assert_eq!(POOL.free_raw(block), Err(FreeError::AlreadyFree));
            assert_eq!(POOL.free_raw(block.add(1)), Err(FreeError::AlreadyFree));
            // Past the last block.
            assert_eq!(POOL.free_raw(block.add(5)), Err(FreeError::Foreign));
        }
        assert_eq!(POOL.available(), 5);
    }

    #[test]
    fn values_are_dropped_once() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        #[derive(Debug)]
        struct Value(#[allow(dead_code, reason = "it gives the value a size")] u32);
        impl Drop for Value {
            fn drop(&mut self) {
                DROPS.fetch_add(1, Ordering::Relaxed);
            }
        }
        static POOL: FixedPool<Value, 1> = FixedPool::new();
        let held = POOL.alloc(Value(1)).unwrap();
        let refused = POOL.alloc(Value(2)).unwrap_err();
        assert_eq!(DROPS.load(Ordering::Relaxed), 0);
        drop(held);
        drop(refused);
        assert_eq!((DROPS.load(Ordering::Relaxed), POOL.available()), (2, 1));
    }

    /// Each thread writes its name into its block, and must find nothing else there.
    #[test]
    fn threads_do_not_share_blocks() {
        static POOL: FixedPool<[AtomicUsize; 2], 3> = FixedPool::new();
        std::thread::scope(|scope| {
            for name in 1..=4 {
                scope.spawn(move || {
                    for _ in 0..1_000_000 {
                        let Some(block) = POOL.alloc_raw() else { continue };
                        // SAFETY: the block belongs to this thread, and atomic numbers need no initialisation.
                        unsafe {
                            let words = block.as_ref();
                            words[0].store(name, Ordering::Relaxed);
                            words[1].store(name, Ordering::Relaxed);
                            assert_eq!(words[0].load(Ordering::Relaxed), name);
                            assert_eq!(words[1].load(Ordering::Relaxed), name);
                            POOL.free_raw(block).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(POOL.available(), 3);
    }
}
