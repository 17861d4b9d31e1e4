//! Memory for replays on allocators.

use allotment_planner::deadline::Deadline;
use memmap2::{MmapMut, MmapOptions};

/// Alignment of every arena in bytes. It makes an allocator's behaviour independent of where the system puts the memory: buddies, for
/// example, lie at multiples of their length.
pub const ALIGNMENT: usize = 64 << 20;

/// Zeroed memory, which uses physical memory only when it is written.
pub struct Arena {
    memory: MmapMut,
    start: usize,
    deadline: Deadline,
}

/// The memory range of an allocator.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first byte.
    pub start: *mut u8,
    /// Size in bytes.
    pub size: usize,
}

impl Arena {
    /// Reserves at least `size` bytes at any skew below [`ALIGNMENT`]; `None` if there is not enough memory.
    pub fn new(size: usize) -> Option<Self> {
        let size = size.checked_add(2 * ALIGNMENT)?;
        let memory = MmapOptions::new().len(size).no_reserve_swap().map_anon().ok()?;
        let start = memory.as_ptr().addr().next_multiple_of(ALIGNMENT) - memory.as_ptr().addr();
        Some(Self { memory, start, deadline: Deadline::never() })
    }

    /// Sets the deadline at which replays end unfinished.
    pub fn until(&mut self, deadline: Deadline) {
        self.deadline = deadline;
    }

    /// Returns the deadline at which replays end, finished or not.
    pub fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Returns `size` bytes that start `skew` bytes after a multiple of [`ALIGNMENT`].
    pub fn range(&mut self, size: usize, skew: usize) -> Range {
        let start = &mut self.memory[self.start + skew..][..size];
        Range { start: start.as_mut_ptr(), size }
    }
}
