//! Errors of instances and plans.

#![forbid(unsafe_code)]

use core::fmt;

/// Why buffers cannot be planned. They are named by their index.
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
            | Self::NoRoom { buffer } => (Some(buffer), None),
            Self::FixedOverlap { first, second } => (Some(first), Some(second)),
            Self::NoRule => (None, None),
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

/// A rule that a plan breaks. Buffers are named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Violation {
    /// The buffers themselves cannot be planned.
    Instance(PlanError),
    /// The number of offsets differs from the number of buffers.
    Length,
    /// The offset is not a multiple of the alignment.
    Misaligned {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The offset differs from the fixed one.
    Moved {
        /// The index of the buffer.
        buffer: usize,
    },
    /// The buffer ends beyond the capacity, or beyond 64 bits.
    Beyond {
        /// The index of the buffer.
        buffer: usize,
    },
    /// Two buffers overlap that must not.
    Overlap {
        /// The index of the first buffer.
        first: usize,
        /// The index of the second buffer.
        second: usize,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Instance(error) => write!(f, "{error}"),
            Self::Length => write!(f, "the number of offsets differs from the number of buffers"),
            Self::Misaligned { buffer } => write!(f, "the offset of buffer {buffer} is not aligned"),
            Self::Moved { buffer } => write!(f, "buffer {buffer} is not at its fixed offset"),
            Self::Beyond { buffer } => write!(f, "buffer {buffer} ends beyond the arena"),
            Self::Overlap { first, second } => write!(f, "buffers {first} and {second} overlap"),
        }
    }
}

impl core::error::Error for Violation {}
