//! The errors of writing and reading records.

use crate::form;
use core::fmt;

/// The reason why a record could not be written. No part of it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is too short.
    NoRoom,
    /// This alignment is neither 0 nor a power of two.
    Align(u64),
    /// A name was given for tag 0, which means no tag.
    NoTag,
    /// A name or a note has more than [`Encoder::MAX_TEXT`](crate::Encoder::MAX_TEXT) bytes.
    TextTooLong,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("no room for the record"),
            Self::Align(align) => write!(f, "the alignment {align} is not a power of two"),
            Self::NoTag => f.write_str("tag 0 means no tag and has no name"),
            Self::TextTooLong => write!(f, "a name or a note has more than {} bytes", form::MAX_TEXT),
        }
    }
}

impl core::error::Error for EncodeError {}

/// The reason why a trace in binary format could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside the header or a record. When reading a stream, read more and try again.
    Truncated,
    /// The bytes do not start with the magic number.
    NoTrace,
    /// The trace has this version, which is not supported.
    Version(u8),
    /// The header has an unknown flag, or an address width other than 2, 4 and 8.
    Header,
    /// A record starts with this byte, which has no meaning.
    UnknownKind(u8),
    /// A number has more than 64 bits, an id or a size exceeds the trace's address width, or a text has more than
    /// [`Encoder::MAX_TEXT`](crate::Encoder::MAX_TEXT) bytes.
    Overflow,
    /// This logarithm of an alignment is 64 or more, or should have been encoded in the first byte.
    Align(u8),
    /// There is a name for tag 0, or a tag number has more than 32 bits.
    Tag,
    /// A name or a note is not UTF-8.
    Text,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the trace ends inside a record"),
            Self::NoTrace => f.write_str("not a trace in binary form: the magic number is missing"),
            Self::Version(version) => {
                write!(f, "version {version} of the binary form, {} is known", form::VERSION)
            }
            Self::Header => f.write_str("the header has unknown flags or an impossible address width"),
            Self::UnknownKind(byte) if *byte == form::MAGIC[0] => {
                f.write_str("a second trace begins here: a file holds one trace")
            }
            Self::UnknownKind(byte) => write!(f, "unknown kind of record: first byte {byte:#04x}"),
            Self::Overflow => f.write_str("a number is too large for the trace"),
            Self::Align(log) => write!(f, "impossible alignment: 2 to the power of {log}"),
            Self::Tag => f.write_str("impossible number of a tag"),
            Self::Text => f.write_str("a name or a note is not UTF-8"),
        }
    }
}

impl core::error::Error for DecodeError {}
