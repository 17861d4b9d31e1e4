//! Why a trace was refused, and where.

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

/// Why a trace was refused.
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
    /// True if the trace is sound up to its end, but ends too early: inside compressed data, a binary record or a line, or before all
    /// events that its header promises.
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
    /// A line that is too long to be an event.
    #[error("the line is longer than {0} bytes")]
    Long(usize),
    /// The last line is wrong and has no end, after events that are right.
    #[error("{0}, and the last line has no end: the trace is cut off here")]
    Unfinished(Box<Problem>),
    /// The line is not UTF-8.
    #[error("no text: byte {0} of the line is not UTF-8: save the file as UTF-8")]
    Text(usize),
    /// An event that is not known.
    #[error("`{0}` is no event: a, r or f")]
    Unknown(String),
    /// A binary record is wrong.
    #[error("{0}")]
    Binary(allotment_event::DecodeError),
    /// A line that ends too early.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// Something after the event that does not belong there.
    #[error("`{0}` is neither a time (@), a tag (#) nor an address (&), or is the second one")]
    Extra(String),
    /// A word that is not a number, or a number that is too large.
    #[error("`{name}` is `{word}`: {why}")]
    Number {
        /// The name of the expected number.
        name: &'static str,
        /// The word that was found.
        word: String,
        /// The reason why it is not a number.
        why: std::num::ParseIntError,
    },
    /// An alignment that is no power of two.
    #[error("{0} is no alignment: 0 or a power of two")]
    Alignment(u64),
    /// A size that no allocator can satisfy.
    #[error("{size} bytes aligned to {align} are more than an address space holds")]
    Size {
        /// The requested size in bytes.
        size: u64,
        /// Their alignment.
        align: u64,
    },
    /// More events than can be replayed.
    #[error("more than {0} events cannot be replayed")]
    Many(usize),
    /// An id that is used again too early.
    #[error("block {0} is allocated, but still live")]
    Live(u64),
    /// A block that is not there.
    #[error("block {id} is {what}, but not live")]
    NotLive {
        /// Its id.
        id: u64,
        /// What happens to it.
        what: &'static str,
    },
    /// The live blocks are more than an address space holds.
    #[error("the live blocks have more bytes than an address space holds")]
    Total,
    /// More live blocks than [`Limits`](crate::Limits) allow.
    #[error("more than {0} blocks are live")]
    Crowded(usize),
    /// More different tags than [`Limits`](crate::Limits) allow.
    #[error("more than {0} different tags")]
    Tags(usize),
    /// An event that is earlier than the one before it.
    #[error("time falls from {before} to {after}: the events are not in order")]
    Time {
        /// The time of an earlier event.
        before: u64,
        /// That of this one.
        after: u64,
    },
    /// Fewer or more events than the header says.
    #[error("the header says {said} events, and there are {found}: the trace is cut off or was changed")]
    Count {
        /// What the header says.
        said: u64,
        /// What is there.
        found: u64,
    },
}

impl Problem {
    /// The error of this problem at `place`.
    pub(crate) fn at(self, place: Place) -> TraceError {
        TraceError::At { place, problem: self }
    }
}
