//! Subjects that do nothing, whose cost is that of the harness.

use std::alloc::Layout;
use std::arch::asm;
use std::ptr;

use super::Subject;
use crate::arena::Range;

/// Does nothing and reads no arguments: its cost is that of the loop and of the calls.
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

/// An empty assembly block, which keeps the compiler from removing the call around it.
#[inline(always)]
fn opaque() {
    // SAFETY: the block is empty.
    unsafe { asm!("", options(nostack, preserves_flags)) }
}

/// Does nothing either, but has all arguments in registers, as every allocator needs them. Its cost is subtracted
/// from the other figures.
pub struct Loading(u8);

// SAFETY: `MEMORY` is false.
unsafe impl Subject for Loading {
    const CONFINED: bool = false;
    const MEMORY: bool = false;

    unsafe fn new(_: Range) -> Option<Box<Self>> {
        Some(Box::new(Self(0)))
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        need([(&raw mut self.0).addr(), layout.size(), layout.align()]);
        ptr::without_provenance_mut(layout.align())
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        need([(&raw mut self.0).addr(), block.addr(), layout.size(), layout.align()]);
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        need([(&raw mut self.0).addr(), block.addr(), layout.size(), layout.align(), size]);
        block
    }
}

/// An empty assembly block, for which all values must be in registers.
#[inline(always)]
fn need<const N: usize>(values: [usize; N]) {
    for value in values {
        // SAFETY: the block contains only a comment.
        unsafe { asm!("/* {0} */", in(reg) value, options(nostack, preserves_flags)) }
    }
}
