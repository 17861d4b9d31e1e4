//! [`TinyBump`], the heap that never frees.

use crate::error::out_of_memory::OutOfMemory;
use crate::lock::{self, Lock};
use crate::memory::{forward::raised, refused_for_good};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

/// A heap of `BYTES` bytes that allocates them in order and never frees. It needs one word of state and a few dozen bytes of code, and
/// suits programs that allocate only when they start.
///
/// ```
/// use allotment::{TinyBump, lock::Spin};
/// static START: TinyBump<1024, Spin> = TinyBump::new();
/// let buffer = START.try_allocate(core::alloc::Layout::new::<[u8; 1000]>())?;
/// assert!(START.try_allocate(core::alloc::Layout::new::<[u8; 1000]>()).is_err());
/// # let _ = buffer;
/// # Ok::<(), allotment::OutOfMemory>(())
/// ```
///
/// A block takes its size plus the bytes that alignment skips. A free does nothing; a `realloc` to a larger size moves the block and
/// wastes the old one ([`Bump`](crate::Bump) does better, with more code). All operations are O(1), except for the copy of a moved block.
pub struct TinyBump<const BYTES: usize, L = lock::Default> {
    lock: L,
    state: UnsafeCell<State<BYTES>>,
}

#[repr(C, align(8))]
struct State<const BYTES: usize> {
    memory: [u8; BYTES],
    used: usize,
}

// SAFETY: the state is accessed only while the lock is held, and a lock that is `Sync` excludes all other callers.
unsafe impl<const BYTES: usize, L: Sync> Sync for TinyBump<BYTES, L> {}

#[allow(clippy::new_without_default, reason = "a heap is a static")]
impl<const BYTES: usize, L: Lock> TinyBump<BYTES, L> {
    /// Number of bytes available for blocks.
    pub const CAPACITY: usize = BYTES;

    /// Creates an empty heap, all zero.
    pub const fn new() -> Self {
        const { assert!(BYTES <= isize::MAX as usize) }
        Self { lock: L::INIT, state: UnsafeCell::new(State { memory: [0; BYTES], used: 0 }) }
    }

    // Not inlined: it is short enough that the compiler would copy it into every caller.
    #[inline(never)]
    fn allocate_or_null(&self, layout: Layout) -> *mut u8 {
        self.lock.with(|| {
            let state = self.state.get();
            // SAFETY: the lock lets only one closure run at a time; the block begins at or after the end of the previous one and ends
            // within the memory.
            unsafe {
                let start = (&raw mut (*state).memory).cast::<u8>();
                let skip = start.addr().wrapping_add((*state).used).wrapping_neg() & (layout.align() - 1);
                // No overflow: `used` and `skip` are both less than half the address space.
                let from = (*state).used + skip;
                if from > BYTES || layout.size() > BYTES - from {
                    return ptr::null_mut();
                }
                (*state).used = from + layout.size();
                start.add(from)
            }
        })
    }

    /// Allocates a block for `layout`. O(1).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the remaining bytes.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        NonNull::new(self.allocate_or_null(layout)).ok_or_else(|| self.reason(layout))
    }

    /// Returns the error of a failed request for `layout`.
    fn reason(&self, layout: Layout) -> OutOfMemory {
        let free = BYTES - self.used();
        OutOfMemory::new(layout, free, free)
    }

    /// Returns the number of bytes allocated or skipped so far. O(1).
    pub fn used(&self) -> usize {
        // SAFETY: the lock lets only one closure run at a time.
        self.lock.with(|| unsafe { (*self.state.get()).used })
    }

    /// Frees everything at once. O(1).
    ///
    /// # Safety
    ///
    /// No block of this heap may be used any more.
    pub unsafe fn reset(&self) {
        // SAFETY: the lock lets only one closure run at a time.
        self.lock.with(|| unsafe { (*self.state.get()).used = 0 });
    }
}

// SAFETY: blocks are disjoint and have the requested size and alignment; the lock excludes concurrent callers; no
// method unwinds.
unsafe impl<const BYTES: usize, L: Lock> GlobalAlloc for TinyBump<BYTES, L> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.allocate_or_null(raised(layout));
        if block.is_null() { refused_for_good(|| self.reason(layout)) } else { block }
    }

    #[inline]
    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block and a size that makes a valid layout; the copy is between two disjoint blocks.
        unsafe {
            if size <= layout.size() {
                return block;
            }
            let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !moved.is_null() {
                ptr::copy_nonoverlapping(block, moved, layout.size());
            }
            moved
        }
    }
}
