//! Errors of pools.

#![forbid(unsafe_code)]

use super::SourceError;
use super::shown::{Size, debug_as_display};
use crate::plan::PlanError;
use core::fmt;
use std::boxed::Box;
use std::string::String;
use std::vec::Vec;

/// A pool, and every pool that it falls back to, had no room. All figures are in bytes; the message shows them in KiB and MiB.
#[derive(Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes that were requested.
    pub requested: usize,
    /// Alignment that was requested.
    pub align: usize,
    /// Free bytes in the pool's segments.
    pub free: usize,
    /// Bytes in the pool's segments.
    pub reserved: usize,
    /// The most that the pool may reserve; `usize::MAX` if there is no limit.
    pub limit: usize,
    /// The pool's largest free block. If `free` is at least `requested` and this is less, fragmentation was the
    /// obstacle.
    pub largest_free: usize,
    /// The source's error when the pool last tried to reserve more; `None` if the pool's own limit forbade it.
    pub source: Option<SourceError>,
    /// The name of every pool that was asked, in order, with the bytes that it has reserved.
    pub pools: Vec<(String, usize)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requested, reserved, free, largest, limit] =
            [self.requested, self.reserved, self.free, self.largest_free, self.limit].map(Size::of);
        write!(
            f,
            "out of memory: {requested} aligned to {} bytes requested, {reserved} reserved, {free} of them free, largest \
             free block {largest}",
            self.align
        )?;
        match self.source {
            Some(error) => write!(f, "; {error}")?,
            None => write!(f, "; the limit is {limit}")?,
        }
        for (index, (name, bytes)) in self.pools.iter().enumerate() {
            let start = if index == 0 { "; reserved by pool" } else { "," };
            write!(f, "{start} {name}: {}", Size::of(*bytes))?;
        }
        Ok(())
    }
}

debug_as_display!(OutOfMemory);
impl core::error::Error for OutOfMemory {}

/// Why a pool could not be made, could not serve a request, or did not free a block, or why a place of a plan is not available.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no room, even after everything that could be released was.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is longer than the placement allows, or its alignment is not a power of two or is too large.
    #[error("the request exceeds the {} that one block may have, or its alignment is not a power of two", Size::of(*max))]
    TooLarge {
        /// The most bytes that one block may have.
        max: usize,
    },
    /// Memory was written while it was free ([`PoolOptions::fill`](super::PoolOptions::fill)). The block that was to be
    /// allocated stays out of use.
    #[error("the byte at {address:#x} was written while its memory was free")]
    WrittenAfterFree {
        /// The address of the first changed byte.
        address: usize,
    },
    /// The pool already serves 65,535 streams, the most it can.
    #[error("the pool already serves 65535 streams, the most it can")]
    TooManyStreams,
    /// A stream of the pool is capturing a graph, and the request of another stream cannot be served before memory
    /// is released or work is waited for, which could spoil the capture.
    #[error("a stream is capturing a graph, and the request needs a driver call that a capture forbids")]
    Capturing,
    /// The stream is not capturing a graph.
    #[error("the stream is not capturing a graph")]
    NotCapturing,
    /// The option that this method of [`PoolOptions`](super::PoolOptions) sets has a value that cannot work.
    #[error("the pool's option `{0}` has a value that cannot work")]
    Option(&'static str),
    /// The source failed for a reason other than a lack of memory.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The block is not from this pool. Nothing was changed.
    #[error("the block is not from this pool")]
    Foreign,
    /// The block was freed before. Nothing was changed.
    #[error("the block is already free")]
    AlreadyFree,
    /// The block was freed, but the guards next to it had been overwritten
    /// ([`PoolOptions::guards`](super::PoolOptions::guards)).
    #[error("byte {offset}, outside the block, was overwritten")]
    Overrun {
        /// The first overwritten byte, relative to the start of the block.
        offset: isize,
    },
    /// The plan has no buffer with this number.
    #[error("the plan has no buffer {slot}")]
    NoSlot {
        /// The number that was requested.
        slot: usize,
    },
    /// The buffer of a plan is already live.
    #[error("buffer {slot} of the plan is already live")]
    SlotLive {
        /// The buffer's number.
        slot: usize,
    },
    /// Another live buffer occupies its memory: their lifetimes do not overlap in the plan, but they do in the
    /// program.
    #[error("buffer {slot} of the plan shares memory with buffer {with}, which is still live")]
    SlotOverlap {
        /// The buffer's number.
        slot: usize,
        /// The number of the other buffer.
        with: usize,
    },
    /// A buffer of a plan was requested for work on a stream other than the arena's.
    #[error("the plan's arena is for work on another stream")]
    SlotStream,
    /// The buffer of a plan is shorter than requested.
    #[error("{asked} bytes requested, but the plan's buffer has {have}")]
    SlotLength {
        /// The buffer's length in bytes.
        have: usize,
        /// The requested length in bytes.
        asked: usize,
    },
    /// Its planned offset is not aligned to 256 bytes, as typed buffers require.
    #[error("buffer {slot} of the plan is not aligned to 256 bytes")]
    SlotAlign {
        /// The buffer's number.
        slot: usize,
    },
    /// The driver failed to order the buffer's last use on another stream, so the buffer stays out of use.
    #[error("buffer {slot} of the plan may still be in use on another stream, because the driver failed")]
    SlotLost {
        /// The buffer's number.
        slot: usize,
    },
    /// Buffers of a [`Pattern`](super::Pattern)'s old plan are live. The old plan stays, and the iteration is served from it.
    #[error("{live} buffers of the old plan are still live")]
    SlotsLive {
        /// The number of these buffers.
        live: usize,
    },
    /// The requests cannot be planned. All requests of a [`Pattern`](super::Pattern) go to the pool.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

debug_as_display!(PoolError);
