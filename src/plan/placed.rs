//! A plan without the number of its buffers in the type.

#![forbid(unsafe_code)]

use super::buffer::Buffer;
use crate::units::each;

/// Buffers and offsets that are a valid plan. Only [`Plan::placed`](super::Plan::placed) and `OwnedPlan::placed` return one.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Placed<'a> {
    pub(super) buffers: &'a [Buffer<'a>],
    pub(super) offsets: &'a [u64],
    pub(super) peak: u64,
    pub(super) bound: u64,
}

impl<'a> Placed<'a> {
    /// Returns the bytes of the smallest arena that holds the plan. O(1).
    pub const fn peak(&self) -> u64 {
        self.peak
    }

    /// Returns the bytes that every plan needs. O(1).
    pub const fn lower_bound(&self) -> u64 {
        self.bound
    }

    /// Returns the bytes that the buffers would take if none shared memory, including alignment padding. O(n).
    pub const fn naive(&self) -> u64 {
        naive(self.buffers)
    }

    /// Returns the largest alignment of a buffer, which the arena must have. O(n).
    pub const fn align(&self) -> u64 {
        alignment(self.buffers)
    }

    /// Returns the buffers.
    pub const fn buffers(&self) -> &'a [Buffer<'a>] {
        self.buffers
    }

    /// Returns the offsets in bytes.
    pub const fn offsets(&self) -> &'a [u64] {
        self.offsets
    }
}

/// Returns the bytes that the buffers of a checked instance would take if none shared memory. O(n).
pub(super) const fn naive(buffers: &[Buffer<'_>]) -> u64 {
    let mut sum: u64 = 0;
    each!(i, 0..buffers.len(), {
        let b = &buffers[i];
        sum = ((sum + (b.align - 1)) & !(b.align - 1)) + b.size;
    });
    sum
}

/// Returns the largest alignment of a buffer. O(n).
pub(super) const fn alignment(buffers: &[Buffer<'_>]) -> u64 {
    let mut align = 1;
    each!(i, 0..buffers.len(), {
        align = if buffers[i].align > align { buffers[i].align } else { align };
    });
    align
}
