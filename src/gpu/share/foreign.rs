//! Memory that is not this process's own.

use crate::gpu::buffer::{Backing, MemoryKind, Uses};
use crate::gpu::stream::Stream;
use crate::pool::Stream as _;
use core::mem::ManuallyDrop;

/// A range of memory that is in the process as long as `P` is, which it is given up with when this is dropped.
#[derive(Debug)]
pub struct Foreign<P> {
    piece: ManuallyDrop<P>,
    address: usize,
    bytes: usize,
    stream: Stream,
    uses: Uses,
}

impl<P> Foreign<P> {
    /// The `bytes` bytes at `address`.
    ///
    /// # Safety
    ///
    /// They are memory of the stream's device, and used by nobody else in this process, until `piece` is dropped.
    pub(super) unsafe fn new(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        let piece = ManuallyDrop::new(piece);
        Self { piece, address, bytes, stream: stream.clone(), uses: Uses::default() }
    }
}

// SAFETY: the memory is there until the piece is dropped, as whoever made this promised; that is behind the work on it.
unsafe impl<P> Backing for Foreign<P> {
    fn address(&self) -> usize {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn used_on(&self, stream: &Stream) {
        self.uses.add(stream);
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn device(&self) -> Option<usize> {
        Some(self.stream.context().device().ordinal)
    }
}

impl<P> Drop for Foreign<P> {
    /// Waits for the work on it. An error cannot be helped here; the memory then rather stays, since it may be in use.
    fn drop(&mut self) {
        if self.uses.settle(&self.stream).and_then(|()| self.stream.synchronize()).is_ok() {
            // SAFETY: dropped here only, once.
            unsafe { ManuallyDrop::drop(&mut self.piece) };
        }
    }
}
