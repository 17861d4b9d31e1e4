//! Copies and fills, as pieces of work.

use super::Driver;
use super::space::Chunks;
use crate::abi::{Address, Code, Outcome};
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone)]
pub enum Place {
    /// Memory that the driver knows, and the id of its allocation when the work was submitted.
    Known { address: Address, id: u64 },
    /// Ordinary host memory.
    Pageable(usize),
    /// The former contents of ordinary host memory.
    Taken(Arc<[u8]>),
}

impl Place {
    /// The address, if the driver knows the memory.
    pub fn address(&self) -> Option<Address> {
        match self {
            Self::Known { address, .. } => Some(*address),
            Self::Pageable(_) | Self::Taken(_) => None,
        }
    }
}

/// A copy of rows: `height` rows of `width` bytes, whose starts are a pitch apart.
#[derive(Clone)]
pub struct Copy {
    pub to: Place,
    pub to_pitch: usize,
    pub from: Place,
    pub from_pitch: usize,
    pub width: usize,
    pub height: usize,
}

#[derive(Clone)]
pub struct Fill {
    pub address: Address,
    pub id: u64,
    pub pitch: usize,
    /// One element, in native byte order.
    pub element: Arc<[u8]>,
    /// Elements per row.
    pub width: usize,
    pub height: usize,
}

impl Driver {
    pub fn run_copy(&mut self, copy: &Copy) -> Outcome {
        let to_bytes = span(copy.to_pitch, copy.width, copy.height)?;
        let from_bytes = span(copy.from_pitch, copy.width, copy.height)?;
        let to = self.chunks(&copy.to, to_bytes, true)?;
        let from = self.chunks(&copy.from, from_bytes, false)?;
        for row in 0..copy.height {
            to.copy_from(row * copy.to_pitch, &from, row * copy.from_pitch, copy.width);
        }
        Ok(())
    }

    fn chunks(&mut self, place: &Place, bytes: usize, write: bool) -> Outcome<Chunks> {
        match place {
            Place::Known { address, id } => self.resolve(*address, bytes, *id, write),
            Place::Pageable(pointer) => Ok(Chunks::one(*pointer as *mut u8, bytes)),
            Place::Taken(taken) => Ok(Chunks::one(taken.as_ptr().cast_mut(), bytes)),
        }
    }

    pub fn run_fill(&mut self, fill: &Fill) -> Outcome {
        let row = fill.width * fill.element.len();
        let chunks = self.resolve(fill.address, span(fill.pitch, row, fill.height)?, fill.id, true)?;
        for number in 0..fill.height {
            chunks.fill(number * fill.pitch, row, &fill.element);
        }
        Ok(())
    }
}

/// Bytes from the first row's start to the last row's end.
pub fn span(pitch: usize, width: usize, height: usize) -> Outcome<usize> {
    let before = pitch.checked_mul(height.saturating_sub(1)).ok_or(Code::INVALID_VALUE)?;
    before.checked_add(width).ok_or(Code::INVALID_VALUE)
}
