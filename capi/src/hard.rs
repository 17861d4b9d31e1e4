//! The heap of feature `hard`: the hardened heap, with some blocks between inaccessible pages.

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use heap::os::{Guarded, Hardened};
use heap::{FreeError, Memory};

/// One block in this many lies between inaccessible pages.
const PERIOD: u32 = 5000;

/// The heap that the C functions call.
pub static BLOCKS: Blocks = Blocks(Guarded::new(Hardened, PERIOD));

pub struct Blocks(Guarded<Hardened>);

/// The methods of [`heap::os::Growing`] that the C functions call.
impl Blocks {
    #[inline(always)]
    pub fn allocate_raw(&self, size: usize, align: usize) -> *mut u8 {
        let layout = Layout::from_size_align(size, align).ok();
        layout.and_then(|layout| self.0.allocate(layout)).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Allocates nothing: every request goes through [`Blocks::allocate_raw`], after the options are read.
    #[inline(always)]
    pub fn allocate_fast(&self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    pub fn allocate_raw_zeroed(&self, size: usize, align: usize) -> *mut u8 {
        let layout = Layout::from_size_align(size, align).ok();
        layout.and_then(|layout| self.0.allocate_zeroed(layout)).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    pub unsafe fn free_fast(&self, _: NonNull<u8>) -> bool {
        false
    }

    #[inline(always)]
    pub unsafe fn free(&self, block: NonNull<u8>) -> Result<(), FreeError> {
        // SAFETY: the caller of the C function guarantees the block.
        unsafe {
            match self.0.layout_of(block) {
                None => self.0.memory().free(block),
                Some(layout) => self.0.try_deallocate(block, layout),
            }
        }
    }

    pub fn usable_size(&self, block: NonNull<u8>) -> Option<usize> {
        match self.0.layout_of(block) {
            None => self.0.memory().usable_size(block),
            Some(layout) => self.0.check(block, layout).is_ok().then_some(layout.size()),
        }
    }

    pub unsafe fn size_of_own(&self, block: NonNull<u8>) -> Option<usize> {
        self.usable_size(block)
    }

    pub unsafe fn change(&self, block: NonNull<u8>, size: usize, align: usize) -> *mut u8 {
        // SAFETY: the caller of the C function guarantees the block; both blocks of the copy are live.
        unsafe {
            if self.0.layout_of(block).is_none() {
                return self.0.memory().change(block, size, align);
            }
            let Some(have) = self.usable_size(block) else { return ptr::null_mut() };
            let Some(moved) = NonNull::new(self.allocate_raw(size, align)) else { return ptr::null_mut() };
            moved.copy_from_nonoverlapping(block, have.min(size));
            // Ignore an error: the block was just live, and belongs to the caller.
            let _ = self.free(block);
            moved.as_ptr()
        }
    }
}
