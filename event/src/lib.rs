//! Events of a heap, and the compact binary format in which a device records them.
//!
//! # Text form
//!
//! The format for people and tools: one event per line, with decimal numbers.
//!
//! ```text
//! a <id> <size> <align>   allocate; align 0: unknown
//! r <id> <new size>       reallocate; the block keeps its id
//! f <id>                  free
//! # ...                   a comment
//! ```
//!
//! Each event may be followed by ` @<timestamp>` (decimal), ` #<tag>` and ` &<address>` (hexadecimal: where the block lies from this
//! event on), in any order. In a tag's name, white space, control characters and `%` are written as `%` and two hexadecimal digits per
//! byte. Three kinds of comments carry records of the binary format that are not events of the text format: `# failed <size> <align>` (which
//! may have a timestamp and a tag), `# lost <events>`, and `# | <a line of text>`, a [`Record::Note`] on the previous event; a note of
//! several lines becomes several comments.
//!
//! # Binary form
//!
//! The trace starts with a header of [`Header::SIZE`] bytes:
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | the magic number `A1 41 4C 54` (no text starts with it) |
//! | 4 | the version, [`Header::VERSION`] |
//! | 5 | bit 0: ids are addresses; the other bits are 0 |
//! | 6 | bytes of an address: 2, 4 or 8; no id and no size is larger |
//! | 7 | 0 |
//! | 8..16 | number of events lost before the first record, little endian |
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
//! | 0 allocate | 0: the alignment is unknown; 1 to 6: it is 1 to 32; 7: it follows | id, size *unsigned*; if 7, a byte: the logarithm of the alignment, at most 63 |
//! | 1 reallocate | bit 5: the block has moved, so it has a new id | id; if moved, the new id; size *unsigned* |
//! | 2 free | 0 | id |
//! | 3 failed | as for 0 | size *unsigned*; if 7, the byte |
//! | 4 lost | 0 | *unsigned*: the number of events missing here |
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

#![no_std]
#![forbid(unsafe_code)]

mod decode;
mod encode;
mod error;
mod form;
mod header;
mod record;
mod sample;

pub use decode::{Decoder, Records};
pub use encode::Encoder;
pub use error::{DecodeError, EncodeError};
pub use header::Header;
pub use record::{Action, Event, Record};
pub use sample::Sampler;

/// The folder of this crate's package, for build scripts that compile its `src/lib.rs` with other options.
#[cfg(feature = "folder")]
pub const FOLDER: &str = env!("CARGO_MANIFEST_DIR");
