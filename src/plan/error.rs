//! Errors of instances and plans.

#![forbid(unsafe_code)]

use core::fmt;

/// The reason why buffers cannot be planned, offsets are not a plan for them, or a buffer of an arena cannot be used. A number in
/// parentheses is the index of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PlanError {
    /// The alignment is not a power of two.
    Align(usize),
    /// The lifetime ends before it starts.
    Lifetime(usize),
    /// The gaps are out of order, touch each other, are empty, or exceed the lifetime.
    Gaps(usize),
    /// The buffer's alias or list of buffers to keep apart names itself or a buffer that does not exist.
    Reference(usize),
    /// The fixed offset is not a multiple of the alignment.
    FixedAlign(usize),
    /// Two fixed buffers overlap while both are live.
    FixedOverlap(usize, usize),
    /// Offsets might exceed 64 bits: the sizes, alignments and fixed offsets up to this buffer are too large.
    TooLarge(usize),
    /// The list of rules is empty.
    NoRule,
    /// The buffer must lie in a tier that does not exist or is too small for it alone.
    Tier(usize),
    /// The buffer fits in no tier next to the others.
    NoRoom(usize),
    /// The number of offsets differs from the number of buffers.
    Length,
    /// An offset is not a multiple of its buffer's alignment.
    Misaligned(usize),
    /// A buffer is not at its fixed offset, or not in its tier.
    Moved(usize),
    /// A buffer ends beyond the arena.
    Beyond(usize),
    /// Two buffers overlap while both are live.
    Overlap(usize, usize),
    /// A plan that changes has no place for another buffer.
    TooMany {
        /// Number of buffers for which the plan has places.
        room: usize,
    },
    /// A plan that changes has no buffer with this id.
    Unknown,
    /// The lifetime is empty, or a number is out of range.
    Senseless,
    /// A plan that changes supports only size, alignment and lifetime.
    Constraint,
    /// A plan that changes would be longer than its arena.
    Full {
        /// Bytes that the plan would need.
        needed: usize,
    },
    /// A [`PlannedHeap`](crate::PlannedHeap) still has live blocks of the old plan, so it keeps that plan.
    Busy {
        /// Number of live blocks.
        live: usize,
    },
    /// The memory of a [`PlannedHeap`](crate::PlannedHeap) has no room for the plan, so all requests go to the memory.
    OutOfMemory {
        /// Bytes that the plan needs.
        requested: usize,
    },
    /// A buffer of an arena is not live at the requested step.
    NotLive {
        /// The index of the buffer.
        buffer: usize,
        /// The step.
        step: u64,
    },
}

impl PlanError {
    /// Returns a short description of the error, without the index, so that a `const` can print it.
    pub const fn reason(&self) -> &'static str {
        self.parts().0
    }

    /// Returns the reason, and the indices of the buffers at fault.
    pub(super) const fn parts(&self) -> (&'static str, Option<usize>, Option<usize>) {
        match *self {
            Self::Align(i) => ("an alignment is not a power of two", Some(i), None),
            Self::Lifetime(i) => ("a lifetime ends before it starts", Some(i), None),
            Self::Gaps(i) => {
                ("gaps are out of order, empty, touching, or outside the lifetime", Some(i), None)
            }
            Self::Reference(i) => ("a buffer refers to itself or to one that does not exist", Some(i), None),
            Self::FixedAlign(i) => ("a fixed offset is not aligned", Some(i), None),
            Self::FixedOverlap(i, j) => ("two fixed buffers overlap while both are live", Some(i), Some(j)),
            Self::TooLarge(i) => ("offsets might exceed 64 bits", Some(i), None),
            Self::NoRule => ("the list of rules to plan by is empty", None, None),
            Self::Tier(i) => {
                ("a tier does not exist or is too small for a buffer that must lie in it", Some(i), None)
            }
            Self::NoRoom(i) => ("a buffer fits in no tier", Some(i), None),
            Self::Length => ("the number of offsets differs from the number of buffers", None, None),
            Self::Misaligned(i) => ("an offset is not aligned", Some(i), None),
            Self::Moved(i) => ("a buffer is not at its fixed offset", Some(i), None),
            Self::Beyond(i) => ("a buffer ends beyond the arena", Some(i), None),
            Self::Overlap(i, j) => ("two buffers overlap", Some(i), Some(j)),
            Self::TooMany { .. } => ("the plan has no place for another buffer", None, None),
            Self::Unknown => ("the plan has no buffer with this id", None, None),
            Self::Senseless => ("the lifetime is empty, or a number is out of range", None, None),
            Self::Constraint => {
                ("a plan that changes supports only size, alignment and lifetime", None, None)
            }
            Self::Full { .. } => ("the plan would be longer than its arena", None, None),
            Self::Busy { .. } => ("blocks of the old plan are still live", None, None),
            Self::OutOfMemory { .. } => ("the memory has no room for the plan", None, None),
            Self::NotLive { buffer, .. } => ("a buffer is not live at the step", Some(buffer), None),
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (reason, Some(first), Some(second)) => write!(f, "buffers {first} and {second}: {reason}"),
            (reason, Some(buffer), None) => write!(f, "buffer {buffer}: {reason}"),
            (reason, None, _) => f.write_str(reason),
        }
    }
}

impl core::error::Error for PlanError {}
