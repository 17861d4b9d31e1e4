//! The errors of reading traces, and their places.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// A place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a text, from 1.
    Line(u64),
    /// A record of a binary trace, from 1; 0 is its header.
    Record(u64),
    /// The end of the input, after this many events.
    End(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record(record) => write!(f, "record {record}"),
            Self::End(events) => write!(f, "after event {events}"),
        }
    }
}

/// An error that stops the reading of a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{path}: {source}")]
    Open {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line or a record is wrong.
    #[error("{place}: {problem}")]
    At {
        /// The place of the error.
        place: Place,
        /// The error.
        problem: Problem,
    },
}

impl TraceError {
    /// Returns whether the trace is valid up to its end, but ends too early: inside compressed data, a binary record or a line, or before
    /// all events stated in its header.
    pub fn is_cut(&self) -> bool {
        match self {
            Self::At { problem: Problem::Io(error), .. } => error.kind() == io::ErrorKind::UnexpectedEof,
            Self::At { problem: Problem::Unfinished(_), .. } => true,
            Self::At { problem: Problem::Count { said, found }, .. } => found < said,
            Self::At { problem: Problem::Binary(error), place: Place::Record(record) } => {
                *record > 0 && matches!(error, allotment_event::DecodeError::Truncated)
            }
            _ => false,
        }
    }
}

/// Errors in the contents of a trace.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The input cannot be read, or its compressed form is damaged.
    #[error("the input cannot be read on: {0}")]
    Io(#[from] io::Error),
    /// A line is too long to be an event.
    #[error("the line is longer than {0} bytes")]
    Long(usize),
    /// The last line is wrong and has no end, after valid events.
    #[error("{0}, and the last line has no end: the trace is cut off here")]
    Unfinished(Box<Problem>),
    /// The line is not UTF-8.
    #[error("no text: byte {0} of the line is not UTF-8: save the file as UTF-8")]
    Text(usize),
    /// The kind of event is not known.
    #[error("`{0}` is no event: a, r or f")]
    Unknown(String),
    /// A binary record is wrong.
    #[error("{0}")]
    Binary(allotment_event::DecodeError),
    /// A line ends too early.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// A field after the event is invalid or repeated.
    #[error("`{0}` is neither a time (@), a tag (#) nor an address (&), or is the second one")]
    Extra(String),
    /// A word is not a number, or the number is too large.
    #[error("`{name}` is `{word}`: {why}")]
    Number {
        /// The name of the expected number.
        name: &'static str,
        /// The word found.
        word: String,
        /// The reason why it is not a number.
        why: std::num::ParseIntError,
    },
    /// An alignment is not a power of two.
    #[error("{0} is no alignment: 0 or a power of two")]
    Alignment(u64),
    /// No allocator can satisfy a request of this size.
    #[error("{size} bytes aligned to {align} are more than an address space holds")]
    Size {
        /// The requested size in bytes.
        size: u64,
        /// The alignment in bytes.
        align: u64,
    },
    /// There are more events than can be replayed.
    #[error("more than {0} events cannot be replayed")]
    Many(usize),
    /// An id is used again while its block is live.
    #[error("block {0} is allocated, but still live")]
    Live(u64),
    /// A block is freed or resized while it is not live.
    #[error("block {id} is {what}, but not live")]
    NotLive {
        /// Its id.
        id: u64,
        /// What the event does to it.
        what: &'static str,
    },
    /// The live blocks are more than an address space holds.
    #[error("the live blocks have more bytes than an address space holds")]
    Total,
    /// There are more live blocks than [`Limits`](crate::Limits) allow.
    #[error("more than {0} blocks are live")]
    Crowded(usize),
    /// There are more distinct tags than [`Limits`](crate::Limits) allow.
    #[error("more than {0} different tags")]
    Tags(usize),
    /// An event is earlier than its predecessor.
    #[error("time falls from {before} to {after}: the events are not in order")]
    Time {
        /// The time of an earlier event.
        before: u64,
        /// The time of this event.
        after: u64,
    },
    /// There are fewer or more events than the header states.
    #[error("the header says {said} events, and there are {found}: the trace is cut off or was changed")]
    Count {
        /// The number in the header.
        said: u64,
        /// The number found.
        found: u64,
    },
}

impl Problem {
    /// Returns the error of this problem at `place`.
    pub(crate) fn at(self, place: Place) -> TraceError {
        TraceError::At { place, problem: self }
    }
}
