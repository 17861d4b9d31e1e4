//! Events of a heap, and the compact binary form in which a device records them.
//!
//! # Text form
//!
//! The form for people and tools: one event per line, with decimal numbers.
//!
//! ```text
//! a <id> <size> <align>   allocate; align 0: unknown
//! r <id> <new size>       reallocate; the block keeps its id
//! f <id>                  free
//! # ...                   a comment
//! ```
//!
//! Each event may be followed by ` @<timestamp>` (decimal), ` #<tag>` and ` &<address>` (hexadecimal: where the
//! block lies from this event on), in any order. In a tag's name, white space, control characters and `%` are
//! written as `%` and two hexadecimal digits per byte. Three kinds of comments carry what the binary form has but
//! the text form has no event for: `# failed <size> <align>` (which may have a timestamp and a tag), `# lost
//! <events>`, and `# | <a line of text>`, a [`Record::Note`] on the previous event; a note of several lines takes
//! several of them.
//!
//! # Binary form
//!
//! The trace starts with a header of [`Header::SIZE`] bytes:
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
//! Records follow without gaps until the end. Bits 0 to 2 of a record's first byte are its kind. Bit 3 says whether
//! a timestamp follows, and bit 4 whether a new tag follows. Bits 5 to 7 depend on the kind, or are 0. The
//! following fields come next, if present, in this order:
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
//! The kinds 4 to 6 have neither timestamp nor tag, and a text has at most [`Encoder::MAX_TEXT`] bytes. *Unsigned*
//! is LEB128: seven bits per byte, the lowest first, with bit 7 set on all but the last byte. *Signed* is a
//! difference modulo 2^64, zigzag-encoded (0, -1, 1, -2 as 0, 1, 2, 3), then LEB128. An id is *signed*: the
//! difference from the previous id in the stream, in whatever record; 0 before the first. An allocation takes 3 to
//! 6 bytes, a free 2 to 4.
//!
//! On a device, which keeps no table, the id is the block's address. To convert to text, number the allocations to
//! get ids, write the addresses behind `&`, and follow the moves. To convert to binary, use the addresses as ids if
//! every allocation has one. Either conversion is lossless.

#![forbid(unsafe_code)]

mod decode;
mod encode;

pub use decode::{DecodeError, Decoder, Records};
pub use encode::{EncodeError, Encoder};

/// The header of a trace in binary form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Header {
    /// True if the ids of events are the addresses of their blocks.
    pub addresses: bool,
    /// Bytes of an address or a size: 2, 4 or 8.
    pub width: u8,
    /// Events that were lost before the first record.
    pub lost: u64,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = 16;
    /// The version that is written and read.
    pub const VERSION: u8 = 1;
    const MAGIC: [u8; 4] = [0xA1, b'A', b'L', b'T'];

    /// The header for traces of this program: ids are addresses, with the target's width.
    pub const HERE: Self = Self { addresses: true, width: size_of::<usize>() as u8, lost: 0 };

    /// Returns whether `bytes` start like a trace in binary form.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.starts_with(&Self::MAGIC)
    }

    /// Encodes the header.
    pub const fn encode(&self) -> [u8; Self::SIZE] {
        let [a, b, c, d] = Self::MAGIC;
        let [l0, l1, l2, l3, l4, l5, l6, l7] = self.lost.to_le_bytes();
        let flags = self.addresses as u8;
        [a, b, c, d, Self::VERSION, flags, self.width, 0, l0, l1, l2, l3, l4, l5, l6, l7]
    }

    /// Decodes the header at the start of `bytes`.
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

/// An event of a block. Sizes and alignments are in bytes, as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Action {
    /// A block was allocated.
    Allocate {
        /// The block's id while it is live: its address, or a number ([`Header::addresses`]).
        id: u64,
        /// Requested size in bytes.
        size: u64,
        /// Requested alignment: a power of two, or 0 if it is unknown.
        align: u64,
    },
    /// A live block was resized.
    Reallocate {
        /// The old id.
        id: u64,
        /// The new id, which differs only if ids are addresses and the block has moved.
        to: u64,
        /// The new requested size in bytes.
        size: u64,
    },
    /// A block was freed.
    Free {
        /// The block's id, which may be used again.
        id: u64,
    },
    /// A request for a block, or for a larger size, failed.
    Fail {
        /// Requested size in bytes.
        size: u64,
        /// Requested alignment: a power of two, or 0 if it is unknown.
        align: u64,
    },
}

/// An event in a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Event {
    /// The kind of event and its data.
    pub action: Action,
    /// When it happened, in the recording program's unit.
    pub time: Option<u64>,
    /// The number of the tag in whose scope it happened, 0 for none; [`Record::Name`] gives its name.
    pub tag: u32,
}

impl Event {
    /// Makes an event without time and tag.
    pub const fn new(action: Action) -> Self {
        Self { action, time: None, tag: 0 }
    }
}

/// A record of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Record<'a> {
    /// An event.
    Event(Event),
    /// Events happened here that were not recorded.
    Lost {
        /// The number of these events.
        events: u64,
    },
    /// The name of a tag, which comes before the first event with that tag.
    Name {
        /// The tag's number, not 0.
        tag: u32,
        /// The tag's name.
        name: &'a str,
    },
    /// Text on the previous event, such as an allocation's backtrace with one frame per line.
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

// The kinds of records, in the lowest bits of their first byte.
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

/// The values that differences are taken from, the same in encoder and decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct Last {
    id: u64,
    time: u64,
    tag: u32,
}

impl Last {
    const START: Self = Self { id: 0, time: 0, tag: 0 };
}
