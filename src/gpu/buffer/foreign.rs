//! Memory that does not come from an allocator of this crate: of another library, process or mapping.

use super::{Backing, Buffer, Memory};
use crate::gpu::stream::Stream;
use crate::pool::{Stream as _, Uses};
use core::mem::{self, ManuallyDrop};
use cudarc::driver::DeviceRepr;

/// Device memory that is accessible as long as its owner `P` exists. Dropping this waits for the work on the memory and
/// then drops the owner; if `P` has no destructor, as `()`, it does neither. An owner that frees the memory in the order of the
/// stream, as a slice of cudarc, is dropped without waiting on the host.
pub(in crate::gpu) struct Foreign<P> {
    piece: ManuallyDrop<P>,
    address: usize,
    bytes: usize,
    stream: Stream,
    uses: Uses<Stream>,
    /// Whether dropping the owner frees the memory in the order of the stream.
    in_order: bool,
}

impl<P> Foreign<P> {
    /// Makes a backing of the `bytes` bytes at `address`.
    ///
    /// # Safety
    ///
    /// They must be memory of the stream's device, and nothing else in this process may use them until `piece` is
    /// dropped.
    pub(in crate::gpu) unsafe fn new(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        let (piece, uses) = (ManuallyDrop::new(piece), Uses::new());
        Self { piece, address, bytes, stream: stream.clone(), uses, in_order: false }
    }

    /// Makes a backing of memory that dropping `piece` frees in the order of `stream`.
    ///
    /// # Safety
    ///
    /// The contract of [`Foreign::new`].
    pub(super) unsafe fn in_order(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        // SAFETY: the caller's contract.
        let mut foreign = unsafe { Self::new(piece, address, bytes, stream) };
        foreign.in_order = true;
        foreign
    }
}

// SAFETY: only the drop uses the owner, which needs no reference that threads could share; all other fields are `Sync`.
unsafe impl<P> Sync for Foreign<P> {}

// SAFETY: the creator guarantees that the memory is there until the piece is dropped, which happens after the work
// on it.
unsafe impl<P: Send> Backing for Foreign<P> {
    fn address(&self) -> usize {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn used_on(&self, stream: &Stream) {
        self.uses.add(stream);
    }

    fn device(&self) -> Option<usize> {
        Some(self.stream.context().device().ordinal)
    }
}

impl<P> Drop for Foreign<P> {
    /// Waits for the work on the memory. A drop cannot report an error; the memory is leaked in that case, since it
    /// may still be in use.
    fn drop(&mut self) {
        let settled = self.uses.settle(&self.stream);
        if !mem::needs_drop::<P>() {
            return;
        }
        if settled.and_then(|()| if self.in_order { Ok(()) } else { self.stream.synchronize() }).is_ok() {
            // SAFETY: the piece is dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.piece) };
        }
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Makes a buffer of `len` values that another library has in a device's memory, for work on `stream`. `owner` frees
    /// the memory when it is dropped, after the work of this buffer; with `()` the other library frees it.
    ///
    /// # Safety
    ///
    /// The memory must be that of the stream's device, aligned for `T` and hold `len` values from `address` on. Until
    /// this buffer is dropped nothing else may use it, and it must not be freed; with an owner that has no destructor,
    /// not before the work that was submitted to the stream is done either.
    pub unsafe fn from_raw(address: u64, len: usize, owner: impl Send + 'static, stream: &Stream) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            let backing = Foreign::new(owner, address as usize, len * size_of::<T>(), stream);
            Self::from_memory(Memory::other(backing), len, stream)
        }
    }
}
