//! Global allocators, as programs register them.

use std::alloc::{GlobalAlloc, Layout};

use super::Subject;
use crate::arena::Range;

/// A global allocator that a program can register with `#[global_allocator]`, lock and statistics included. Every
/// such type is a [`Subject`].
///
/// # Safety
///
/// Same contract as [`Subject`]: live blocks must not overlap and must lie in the arena.
pub unsafe trait Registered: GlobalAlloc + Sized + 'static {
    /// Whether it is confined to the arena; see [`Subject::CONFINED`].
    const CONFINED: bool = true;

    /// Whether every value needs a new thread; see [`Subject::OWN_THREAD`].
    const OWN_THREAD: bool = false;

    /// Makes an allocator over the arena; see [`Subject::new`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Subject::new`]: nothing else may use the arena while the allocator exists.
    unsafe fn over(arena: Range) -> Option<Box<Self>>;

    /// Returns the bytes of state outside the arena; see [`Subject::state`].
    fn state() -> usize {
        size_of::<Self>()
    }
}

// SAFETY: the contract of a global allocator, together with `Registered`'s on the arena, implies that of a subject.
unsafe impl<T: Registered> Subject for T {
    const CONFINED: bool = <T as Registered>::CONFINED;
    const OWN_THREAD: bool = <T as Registered>::OWN_THREAD;

    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        // SAFETY: the caller's contract.
        unsafe { T::over(arena) }
    }

    fn state() -> usize {
        <T as Registered>::state()
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { GlobalAlloc::alloc(self, layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { GlobalAlloc::dealloc(self, block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { GlobalAlloc::realloc(self, block, layout, size) }
    }
}
