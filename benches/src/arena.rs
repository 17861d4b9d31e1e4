//! Memory for the allocators: reserved from the operating system, untouched, at an aligned address.

use std::ptr;

use anyhow::{Result, bail};

/// Every arena starts at a multiple of this, so that what an allocator does with its first bytes does not
/// depend on where the system puts the map.
pub const ALIGNMENT: usize = 64 << 20;

/// A range of memory that is given back when it is dropped.
pub struct Arena {
    map: *mut u8,
    mapped: usize,
    start: *mut u8,
    size: usize,
}

// SAFETY: the map belongs to this value alone.
unsafe impl Send for Arena {}

// SAFETY: shared, it gives away only its address and size.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `size` bytes, which read as zero and take real memory only when they are touched.
    pub fn new(size: usize) -> Result<Self> {
        let mapped = size + ALIGNMENT;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map at a place that the system chooses disturbs nothing.
        let map = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            bail!("no address space for an arena of {size} bytes: {}", std::io::Error::last_os_error());
        }
        let map = map.cast::<u8>();
        // SAFETY: the offset is below `ALIGNMENT`, by which the map is longer than the arena.
        let start = unsafe { map.add(map.align_offset(ALIGNMENT)) };
        Ok(Self { map, mapped, start, size })
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The first `size` bytes of it, for an allocator.
    pub fn range(&self, size: usize) -> Range {
        assert!(size <= self.size, "the arena is that long");
        Range { start: self.start, size }
    }

    /// All of it, for an allocator.
    pub fn whole(&self) -> Range {
        self.range(self.size)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the map was made by `new` with these values.
        unsafe { libc::munmap(self.map.cast(), self.mapped) };
    }
}

/// What an allocator is given: start and size in bytes.
#[derive(Clone, Copy)]
pub struct Range {
    /// The first byte.
    pub start: *mut u8,
    /// Bytes.
    pub size: usize,
}

// SAFETY: a pair of numbers until it is given to an allocator.
unsafe impl Send for Range {}
