//! The trait of memories as far as the models need it, and a memory of a few blocks.

use crate::error::FreeError;
use loom::sync::Mutex;
use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// As in the library, but for what the models do not call.
///
/// # Safety
///
/// As in the library.
pub unsafe trait Memory {
    /// As in the library.
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>>;
    /// As in the library.
    ///
    /// # Safety
    ///
    /// As in the library.
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout);
    /// As in the library.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;
    /// As in the library.
    ///
    /// # Safety
    ///
    /// As in the library.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)
    }
    /// As in the library.
    ///
    /// # Safety
    ///
    /// As in the library.
    unsafe fn try_resize(&self, _block: NonNull<u8>, _layout: Layout, _size: usize) -> bool {
        false
    }
    /// As in the library.
    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let mut count = 0;
        for place in blocks {
            let Some(block) = self.allocate(layout) else { break };
            place.write(block);
            count += 1;
        }
        count
    }
    /// As in the library.
    ///
    /// # Safety
    ///
    /// As in the library.
    unsafe fn deallocate_many(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        for &block in blocks {
            // SAFETY: the caller's contract.
            unsafe { self.deallocate(block, layout) }
        }
    }
    /// As in the library.
    fn remembers(&self) -> bool {
        false
    }
}

/// The models need none of these.
macro_rules! nothing {
    ($($tokens:tt)*) => {};
}
pub(crate) use nothing as allocator;
pub(crate) use nothing as global_alloc;
pub(crate) use nothing as pass_on;

/// Blocks of 16 bytes, with a lock of its own.
pub struct Few {
    start: NonNull<[u64; 2]>,
    free: Mutex<Vec<usize>>,
}

// SAFETY: the lock guards the list, and a block has one owner.
unsafe impl Sync for Few {}
// SAFETY: as above.
unsafe impl Send for Few {}

impl Few {
    /// Makes `count` free blocks.
    pub fn new(count: usize) -> Self {
        let blocks = Box::leak(vec![[0_u64; 2]; count].into_boxed_slice());
        Self { start: NonNull::from(blocks).cast(), free: Mutex::new((0..count).collect()) }
    }

    /// Returns the number of a block.
    pub fn number(&self, block: NonNull<u8>) -> usize {
        (block.addr().get() - self.start.addr().get()) / 16
    }

    /// Returns how many blocks are free.
    pub fn available(&self) -> usize {
        self.free.lock().expect("nothing panics").len()
    }
}

// SAFETY: a block that is not in the list has one owner.
unsafe impl Memory for Few {
    fn allocate(&self, _layout: Layout) -> Option<NonNull<u8>> {
        let number = self.free.lock().expect("nothing panics").pop()?;
        // SAFETY: there are so many blocks.
        Some(unsafe { self.start.add(number) }.cast())
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, _layout: Layout) {
        self.free.lock().expect("nothing panics").push(self.number(block));
    }

    fn check(&self, _block: NonNull<u8>, _layout: Layout) -> Result<(), FreeError> {
        Ok(())
    }
}
