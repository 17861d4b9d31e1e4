//! Events of a heap, and the compact binary form in which a device records them.
//!
//! # Text form
//!
//! What people and tools read: one event a line, numbers in decimal.
//!
//! ```text
//! a <id> <size> <align>   allocate; align 0: not known
//! r <id> <new size>       reallocate; the block keeps its id
//! f <id>                  free
//! # ...                   a comment
//! ```
//!
//! After each event ` @<timestamp>` (decimal), ` #<tag>` and ` &<address>` (hexadecimal, where the block lies from
//! this event on) may follow, in any order. In a tag's name white space, control characters and `%` are written as
//! `%` and two hexadecimal digits for each byte. Of the comments three carry what the binary form has and the text form
//! has no event for: `# failed <size> <align>` (which may have a timestamp and a tag), `# lost <events>`, and
//! `# | <a line of text>`, a [`Record::Note`] on the event before it; a note of several lines has several of them.
//!
//! # Binary form
//!
//! A header of [`Header::SIZE`] bytes:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | the magic number `A1 41 4C 54` (no text starts with it) |
//! | 4 | the version, [`Header::VERSION`] |
//! | 5 | bit 0: ids are addresses; the others are 0 |
//! | 6 | bytes of an address: 2, 4 or 8; no id and no size is larger |
//! | 7 | 0 |
//! | 8..16 | events that were lost before the first record, little endian |
//!
//! Records follow without gaps, to the end. The first byte of a record has its kind in bits 0 to 2; in bit 3, whether a
//! timestamp follows; in bit 4, whether another tag than before follows; and in bits 5 to 7 what the kind says, or 0.
//! Then come, each if it is there, in this order:
//!
//! | field | content |
//! | --- | --- |
//! | timestamp | *signed*: the difference from the last timestamp, 0 before the first |
//! | tag | *unsigned*: the number of the tag of this and the following events, 0 for none |
//! | body | see below |
//!
//! | kind | bits 5 to 7 | body |
//! | --- | --- | --- |
//! | 0 allocate | 0: the alignment is not known; 1 to 6: it is 1 to 32; 7: it follows | id, size *unsigned*; if 7, a byte: the logarithm of the alignment, at most 63 |
//! | 1 reallocate | bit 5: the block has moved, so it has a new id | id; if moved, the new id; size *unsigned* |
//! | 2 free | 0 | id |
//! | 3 failed | as for 0 | size *unsigned*; if 7, the byte |
//! | 4 lost | 0 | *unsigned*: the events that are missing here |
//! | 5 name | 0 | the tag's number, not 0, *unsigned*; the length of its name *unsigned*; its name in UTF-8 |
//! | 6 note | 0 | the length *unsigned*; text in UTF-8 that belongs to the event before |
//!
//! The kinds 4 to 6 have neither timestamp nor tag; a text has at most [`Encoder::MAX_TEXT`] bytes. *Unsigned* is LEB128: seven bits a byte, the lowest first, bit 7 set on
//! all but the last. *Signed* is a difference modulo 2^64, zigzag (0, -1, 1, -2 as 0, 1, 2, 3), then LEB128. An id is
//! *signed*: the difference from the id before it in the stream, whatever its record; 0 before the first. An allocation
//! takes 3 to 6 bytes, a free 2 to 4.
//!
//! On a device, which keeps no table, the id is the block's address. To write text, give each allocation the next number
//! as its id and its address behind `&`, and follow the moves; to write binary, ids are the addresses if every
//! allocation has one. Nothing is lost either way.

mod decode;
mod encode;

pub use decode::{DecodeError, Decoder, Records};
pub use encode::{EncodeError, Encoder};

/// What starts a trace in binary form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Header {
    /// Whether the ids of events are the addresses of their blocks.
    pub addresses: bool,
    /// Bytes of an address, and of a size: 2, 4 or 8.
    pub width: u8,
    /// Events that were lost before the first record.
    pub lost: u64,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = 16;
    /// The version that is written, and read.
    pub const VERSION: u8 = 1;
    const MAGIC: [u8; 4] = [0xA1, b'A', b'L', b'T'];

    /// The header of a trace of this program: ids are addresses, as wide as the target's.
    pub const HERE: Self = Self { addresses: true, width: size_of::<usize>() as u8, lost: 0 };

    /// Whether `bytes` start as a trace in binary form does.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.starts_with(&Self::MAGIC)
    }

    /// Its bytes.
    pub const fn encode(&self) -> [u8; Self::SIZE] {
        let [a, b, c, d] = Self::MAGIC;
        let [l0, l1, l2, l3, l4, l5, l6, l7] = self.lost.to_le_bytes();
        let flags = self.addresses as u8;
        [a, b, c, d, Self::VERSION, flags, self.width, 0, l0, l1, l2, l3, l4, l5, l6, l7]
    }

    /// The header that `bytes` start with.
    ///
    /// # Errors
    ///
    /// [`DecodeError::Truncated`], [`DecodeError::NoTrace`], [`DecodeError::Version`] or [`DecodeError::Header`].
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some(header) = bytes.first_chunk::<{ Self::SIZE }>() else {
            let known = bytes.len().min(Self::MAGIC.len());
            let wrong = bytes[..known] != Self::MAGIC[..known];
            return Err(if wrong { DecodeError::NoTrace } else { DecodeError::Truncated });
        };
        if !Self::is_at(header) {
            return Err(DecodeError::NoTrace);
        }
        let &[_, _, _, _, version, flags, width, zero, ref lost @ ..] = header;
        if version != Self::VERSION {
            return Err(DecodeError::Version(version));
        }
        if flags > 1 || !matches!(width, 2 | 4 | 8) || zero != 0 {
            return Err(DecodeError::Header);
        }
        Ok(Self { addresses: flags == 1, width, lost: u64::from_le_bytes(*lost) })
    }

    /// The largest id or size.
    const fn max(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.width as u32)
    }
}

/// What happened to a block. Sizes and alignments are in bytes, as the program asked for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Action {
    /// A block was handed out.
    Allocate {
        /// The block's name while it is live: its address, or a number ([`Header::addresses`]).
        id: u64,
        /// Bytes asked for.
        size: u64,
        /// The alignment asked for: a power of two, or 0 if it is not known.
        align: u64,
    },
    /// A live block has another size.
    Reallocate {
        /// Its id until now.
        id: u64,
        /// Its id from now on: another one only if ids are addresses and the block has moved.
        to: u64,
        /// Bytes asked for.
        size: u64,
    },
    /// A block came back.
    Free {
        /// Its id, which may be used again.
        id: u64,
    },
    /// A request for a block, or for more room, was refused.
    Fail {
        /// Bytes asked for.
        size: u64,
        /// The alignment asked for: a power of two, or 0 if it is not known.
        align: u64,
    },
}

/// Something that happened in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Event {
    /// What.
    pub action: Action,
    /// When, in the recording program's own unit.
    pub time: Option<u64>,
    /// The number of the tag in whose scope it happened, 0 for none; [`Record::Name`] has its name.
    pub tag: u32,
}

impl Event {
    /// An event without time and tag.
    pub const fn new(action: Action) -> Self {
        Self { action, time: None, tag: 0 }
    }
}

/// A part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Record<'a> {
    /// An event.
    Event(Event),
    /// Events happened here that were not recorded.
    Lost {
        /// How many.
        events: u64,
    },
    /// The name of a tag; it comes before the first event that has the tag.
    Name {
        /// The tag's number, not 0.
        tag: u32,
        /// Its name.
        name: &'a str,
    },
    /// Text on the event before it: the backtrace of an allocation, one frame a line.
    Note {
        /// The text.
        text: &'a str,
    },
}

impl From<Event> for Record<'_> {
    fn from(event: Event) -> Self {
        Self::Event(event)
    }
}

impl From<Action> for Record<'_> {
    fn from(action: Action) -> Self {
        Self::Event(Event::new(action))
    }
}

// Kinds of records, in the lowest bits of their first byte.
const ALLOCATE: u8 = 0;
const REALLOCATE: u8 = 1;
const FREE: u8 = 2;
const FAIL: u8 = 3;
const LOST: u8 = 4;
const NAME: u8 = 5;
const NOTE: u8 = 6;

const TIME: u8 = 1 << 3;
const TAG: u8 = 1 << 4;
const MOVED: u8 = 1 << 5;

/// What differences are taken from, the same on both sides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Last {
    id: u64,
    time: u64,
    tag: u32,
}

impl Last {
    const START: Self = Self { id: 0, time: 0, tag: 0 };
}
