//! Errors of instances and plans.

#![forbid(unsafe_code)]

use core::fmt;

/// Why buffers cannot be planned, why offsets are no plan for them, or why a buffer of an arena cannot be used. Buffers are named by
/// their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum PlanError {
    /// The alignment is not a power of two.
    Align {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The lifetime ends before it starts.
    Lifetime {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The gaps are out of order, touch each other, are empty, or exceed the lifetime.
    Gaps {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The buffer's alias or list of buffers to keep apart names itself or a buffer that does not exist.
    Reference {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The fixed offset is not a multiple of the alignment.
    FixedAlign {
        /// The index of the buffer.
        buffer: usize,
    },
    /// Two fixed buffers overlap while both are live.
    FixedOverlap {
        /// The index of the first buffer.
        first: usize,
        /// The index of the second buffer.
        second: usize,
    },
    /// Offsets might exceed 64 bits: the sizes, alignments and fixed offsets up to this buffer are too large.
    TooLarge {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The list of rules is empty.
    NoRule,
    /// The buffer must lie in a tier that does not exist or is too small for it alone.
    Tier {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The buffer fits in no tier next to the others.
    NoRoom {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The number of offsets differs from the number of buffers.
    Length,
    /// An offset is not a multiple of its buffer's alignment.
    Misaligned {
        /// The index of the buffer.
        buffer: usize,
    },
    /// A buffer is not at its fixed offset, or not in its tier.
    Moved {
        /// The index of the buffer.
        buffer: usize,
    },
    /// A buffer ends beyond the arena.
    Beyond {
        /// The index of the buffer.
        buffer: usize,
    },
    /// Two buffers overlap while both are live.
    Overlap {
        /// The index of the first buffer.
        first: usize,
        /// The index of the second buffer.
        second: usize,
    },
    /// A plan that changes has no place for another buffer.
    TooMany {
        /// The buffers that it has places for.
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
        /// The bytes that it would need.
        needed: usize,
    },
    /// A buffer of an arena is not live at the step at which it was asked for.
    NotLive {
        /// The index of the buffer.
        buffer: usize,
        /// The step.
        step: u64,
    },
}

impl PlanError {
    /// Describes the error in a few words, without the index, so that a `const` can print it.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Align { .. } => "an alignment is not a power of two",
            Self::Lifetime { .. } => "a lifetime ends before it starts",
            Self::Gaps { .. } => "gaps are out of order, empty, touching, or outside the lifetime",
            Self::Reference { .. } => "a buffer refers to itself or to one that does not exist",
            Self::FixedAlign { .. } => "a fixed offset is not aligned",
            Self::FixedOverlap { .. } => "two fixed buffers overlap while both are live",
            Self::TooLarge { .. } => "offsets might exceed 64 bits",
            Self::NoRule => "the list of rules to plan by is empty",
            Self::Tier { .. } => "a tier does not exist or is too small for a buffer that must lie in it",
            Self::NoRoom { .. } => "a buffer fits in no tier",
            Self::Length => "the number of offsets differs from the number of buffers",
            Self::Misaligned { .. } => "an offset is not aligned",
            Self::Moved { .. } => "a buffer is not at its fixed offset",
            Self::Beyond { .. } => "a buffer ends beyond the arena",
            Self::Overlap { .. } => "two buffers overlap",
            Self::TooMany { .. } => "the plan has no place for another buffer",
            Self::Unknown => "the plan has no buffer with this id",
            Self::Senseless => "the lifetime is empty, or a number is out of range",
            Self::Constraint => "a plan that changes supports only size, alignment and lifetime",
            Self::Full { .. } => "the plan would be longer than its arena",
            Self::NotLive { .. } => "a buffer is not live at the step",
        }
    }
}

impl PlanError {
    /// The indices of the buffers at fault: one, two or none.
    pub(super) const fn buffers(&self) -> (Option<usize>, Option<usize>) {
        match *self {
            Self::Align { buffer }
            | Self::Lifetime { buffer }
            | Self::Gaps { buffer }
            | Self::Reference { buffer }
            | Self::FixedAlign { buffer }
            | Self::TooLarge { buffer }
            | Self::Tier { buffer }
            | Self::NoRoom { buffer }
            | Self::Misaligned { buffer }
            | Self::Moved { buffer }
            | Self::Beyond { buffer }
            | Self::NotLive { buffer, .. } => (Some(buffer), None),
            Self::FixedOverlap { first, second } | Self::Overlap { first, second } => {
                (Some(first), Some(second))
            }
            Self::NoRule
            | Self::Length
            | Self::TooMany { .. }
            | Self::Unknown
            | Self::Senseless
            | Self::Constraint
            | Self::Full { .. } => (None, None),
        }
    }
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffers() {
            (Some(first), Some(second)) => write!(f, "buffers {first} and {second}: {}", self.reason()),
            (Some(buffer), None) => write!(f, "buffer {buffer}: {}", self.reason()),
            (None, _) => f.write_str(self.reason()),
        }
    }
}

impl core::error::Error for PlanError {}
