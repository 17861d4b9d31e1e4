//! The header of the binary format.

use crate::error::DecodeError;
use crate::form;

/// The header of a trace in binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Header {
    /// Whether the ids of events are the addresses of their blocks.
    pub addresses: bool,
    /// Bytes of an address or a size: 2, 4 or 8.
    pub width: u8,
    /// Number of events lost before the first record.
    pub lost: u64,
}

impl Header {
    /// Bytes of a header.
    pub const SIZE: usize = 16;
    /// The version written and read.
    pub const VERSION: u8 = form::VERSION;

    /// The header for traces of this program: ids are addresses, with the target's width.
    pub const HERE: Self = Self { addresses: true, width: size_of::<usize>() as u8, lost: 0 };

    /// Returns whether `bytes` start like a trace in binary format.
    pub fn is_at(bytes: &[u8]) -> bool {
        bytes.starts_with(&form::MAGIC)
    }

    /// Encodes the header.
    pub const fn encode(&self) -> [u8; Self::SIZE] {
        let [a, b, c, d] = form::MAGIC;
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
            let known = bytes.len().min(form::MAGIC.len());
            let wrong = bytes[..known] != form::MAGIC[..known];
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

    /// Returns the largest id or size.
    pub(crate) const fn max(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.width as u32)
    }
}
