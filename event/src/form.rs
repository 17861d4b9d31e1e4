//! Numbers of the binary format, shared by encoder and decoder.

pub(crate) const VERSION: u8 = 1;

/// The first bytes of a trace.
pub(crate) const MAGIC: [u8; 4] = [0xA1, b'A', b'L', b'T'];

/// Largest number of bytes in a name or a note.
pub(crate) const MAX_TEXT: usize = 16 * 1024;

// The kinds of records, in the lowest bits of their first byte.
pub(crate) const ALLOCATE: u8 = 0;
pub(crate) const REALLOCATE: u8 = 1;
pub(crate) const FREE: u8 = 2;
pub(crate) const FAIL: u8 = 3;
pub(crate) const LOST: u8 = 4;
pub(crate) const NAME: u8 = 5;
pub(crate) const NOTE: u8 = 6;

pub(crate) const TIME: u8 = 1 << 3;
pub(crate) const TAG: u8 = 1 << 4;
pub(crate) const MOVED: u8 = 1 << 5;

/// The values from which differences are taken, equal in encoder and decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Last {
    pub(crate) id: u64,
    pub(crate) time: u64,
    pub(crate) tag: u32,
}

impl Last {
    pub(crate) const START: Self = Self { id: 0, time: 0, tag: 0 };
}
