//! Subjects without an arena limit, and the one that does nothing.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use super::Subject;
use crate::arena::Range;

/// Does nothing: its cost is that of the harness.
pub struct Null;

// SAFETY: `MEMORY` is false.
unsafe impl Subject for Null {
    const CONFINED: bool = false;
    const MEMORY: bool = false;

    unsafe fn new(_: Range) -> Option<Box<Self>> {
        Some(Box::new(Self))
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        opaque();
        ptr::without_provenance_mut(layout.align())
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, _: *mut u8, _: Layout) {
        opaque();
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, _: Layout, _: usize) -> *mut u8 {
        opaque();
        block
    }
}

/// No instruction, but something that the compiler may not leave out with the call around it.
#[inline(always)]
fn opaque() {
    // SAFETY: there is nothing in it.
    unsafe { std::arch::asm!("", options(nostack, preserves_flags)) }
}

macro_rules! global {
    ($(#[$doc:meta])* $name:ident, $value:expr) => {
        $(#[$doc])*
        pub struct $name;

        // SAFETY: a global allocator makes the same promises.
        unsafe impl Subject for $name {
            const CONFINED: bool = false;

            unsafe fn new(_: Range) -> Option<Box<Self>> {
                Some(Box::new(Self))
            }

            #[inline(always)]
            unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
                // SAFETY: passed on.
                unsafe { $value.alloc(layout) }
            }

            #[inline(always)]
            unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
                // SAFETY: passed on.
                unsafe { $value.dealloc(block, layout) }
            }

            #[inline(always)]
            unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
                // SAFETY: passed on.
                unsafe { $value.realloc(block, layout, size) }
            }
        }
    };
}

global!(
    /// The system's malloc.
    System,
    std::alloc::System
);

#[cfg(feature = "mimalloc")]
global!(
    /// mimalloc.
    MiMalloc,
    mimalloc::MiMalloc
);

#[cfg(feature = "snmalloc")]
global!(
    /// snmalloc.
    SnMalloc,
    snmalloc_rs::SnMalloc
);
