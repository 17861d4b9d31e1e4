//! Memory for the allocators.

/// Every arena starts at a multiple of this, in bytes, so that what an allocator does does not depend on where the
/// system puts the memory: buddies, for example, lie at multiples of their length.
pub const ALIGNMENT: usize = 64 << 20;

/// Zeroed memory, which becomes real when it is touched.
pub struct Arena {
    memory: Vec<u8>,
    start: usize,
}

/// What an allocator is given.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first byte.
    pub start: *mut u8,
    /// Bytes.
    pub size: usize,
}

impl Arena {
    /// At least `size` bytes, at any skew below [`ALIGNMENT`]; `None` if there is no such memory.
    pub fn new(size: usize) -> Option<Self> {
        let size = size.checked_add(2 * ALIGNMENT)?;
        // Asked for first without a panic; then as zeros, which are not written.
        Vec::<u8>::new().try_reserve_exact(size).ok()?;
        let memory = vec![0; size];
        let start = memory.as_ptr().addr().next_multiple_of(ALIGNMENT) - memory.as_ptr().addr();
        Some(Self { memory, start })
    }

    /// `size` bytes that start `skew` bytes behind a multiple of [`ALIGNMENT`].
    pub fn range(&mut self, size: usize, skew: usize) -> Range {
        let start = &mut self.memory[self.start + skew..][..size];
        Range { start: start.as_mut_ptr(), size }
    }
}
