//! Arenas for the allocators: memory reserved from the operating system, untouched, at an aligned address.

use std::ptr;

use anyhow::{Result, bail};

/// The alignment of every arena. It makes sure that an allocator's use of the first bytes does not depend on the
/// address that the system chooses.
pub const ALIGNMENT: usize = 64 << 20;

/// A range of memory that is unmapped when it is dropped.
pub struct Arena {
    map: *mut u8,
    mapped: usize,
    start: *mut u8,
    size: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Arena {}

// SAFETY: a shared reference only reveals the address and the size.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `size` bytes, which read as zero and take up memory only when they are touched.
    pub fn new(size: usize) -> Result<Self> {
        let mapped = size + ALIGNMENT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice affects nothing else.
        let map = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            bail!("no address space for an arena of {size} bytes: {}", std::io::Error::last_os_error());
        }
        let map = map.cast::<u8>();
        // SAFETY: the offset is below `ALIGNMENT`, by which the mapping is longer than the arena.
        let start = unsafe { map.add(map.align_offset(ALIGNMENT)) };
        Ok(Self { map, mapped, start, size })
    }

    /// Returns the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the first `size` bytes, for an allocator.
    pub fn range(&self, size: usize) -> Range {
        assert!(size <= self.size, "the arena is that long");
        Range { start: self.start, size }
    }

    /// Returns the whole arena, for an allocator.
    pub fn whole(&self) -> Range {
        self.range(self.size)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping with these values.
        unsafe { libc::munmap(self.map.cast(), self.mapped) };
    }
}

/// The memory that an allocator is given.
#[derive(Clone, Copy)]
pub struct Range {
    /// The first byte.
    pub start: *mut u8,
    /// Size in bytes.
    pub size: usize,
}

// SAFETY: this is a pair of numbers until it is given to an allocator.
unsafe impl Send for Range {}
