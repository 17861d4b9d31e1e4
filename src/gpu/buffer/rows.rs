//! The shapes of row copies.

#![forbid(unsafe_code)]

use super::Error;

/// The shape of a row copy; see [`View::copy_rows_to`](super::View::copy_rows_to). All lengths are in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Number of values per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Number of values from the start of one row to the start of the next in the buffer.
    pub pitch: usize,
    /// The same distance in the host's slice.
    pub host_pitch: usize,
}

impl Rows {
    pub(super) const fn new([width, height]: [usize; 2], [pitch, host_pitch]: [usize; 2]) -> Self {
        Self { width, height, pitch, host_pitch }
    }

    /// Returns the number of bytes to copy, for a checked shape.
    pub(super) fn bytes<T>(&self) -> usize {
        self.width * self.height * size_of::<T>()
    }

    /// Refuses a shape that does not fit into the two lengths.
    pub(super) fn check(&self, buffer: usize, host: usize) -> Result<(), Error> {
        let Self { width, height, pitch, host_pitch } = *self;
        if width == 0 || height == 0 {
            return Ok(());
        }
        for (pitch, have) in [(pitch, buffer), (host_pitch, host)] {
            if pitch < width {
                return Err(Error::Pitch { pitch, width });
            }
            let span = pitch.checked_mul(height - 1).and_then(|before| before.checked_add(width));
            let asked = span.unwrap_or(usize::MAX);
            if asked > have {
                return Err(Error::Length { have, asked });
            }
        }
        Ok(())
    }
}
