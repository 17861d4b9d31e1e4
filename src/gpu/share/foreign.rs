//! Memory that belongs to another process or another mapping.

use crate::gpu::buffer::{Backing, MemoryKind, Uses};
use crate::gpu::stream::Stream;
use crate::pool::Stream as _;
use core::mem::ManuallyDrop;

/// A range of memory that is accessible as long as `P` exists; dropping this gives `P` up.
#[derive(Debug)]
pub struct Foreign<P> {
    piece: ManuallyDrop<P>,
    address: usize,
    bytes: usize,
    stream: Stream,
    uses: Uses,
}

impl<P> Foreign<P> {
    /// Makes a backing of the `bytes` bytes at `address`.
    ///
    /// # Safety
    ///
    /// They must be memory of the stream's device, and nothing else in this process may use them until `piece` is
    /// dropped.
    pub(super) unsafe fn new(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        let piece = ManuallyDrop::new(piece);
        Self { piece, address, bytes, stream: stream.clone(), uses: Uses::default() }
    }
}

// SAFETY: the creator guarantees that the memory is there until the piece is dropped, which happens after the work
// on it.
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
    /// Waits for the work on the memory. A drop cannot report an error; the memory is leaked in that case, since it
    /// may still be in use.
    fn drop(&mut self) {
        if self.uses.settle(&self.stream).and_then(|()| self.stream.synchronize()).is_ok() {
            // SAFETY: the piece is dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.piece) };
        }
    }
}
