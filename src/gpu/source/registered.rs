//! The program's own memory, page-locked.

use super::pinned::{Share, default_limit};
use super::{ALIGNMENT, check_one_address, check_size, segment};
use crate::gpu::{Context, Error, Stream, library::call};
use crate::lock::Mutex;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _, vacant};
use crate::region::Capabilities;
use crate::units::debug;
use core::ops::DerefMut;
use stable_deref_trait::StableDeref;
use std::collections::BTreeMap;

/// The program's own memory, such as a vector or a memory-mapped file, which `cuMemHostRegister` page-locks while this value exists. The
/// source reserves segments in this memory, in multiples of 512 bytes, until it is used up.
///
/// The source owns the memory, because a submitted copy must not outlive it: if segments are still reserved when this is dropped, the
/// memory leaks. [`Registered::into_memory`] returns the memory.
pub struct Registered<M: StableDeref + DerefMut<Target = [u8]> + 'static> {
    context: Context,
    /// `None` once this is dropped or has returned the memory.
    memory: Option<M>,
    /// The registered memory.
    pointer: *mut u8,
    /// Address of the first aligned byte; `bytes` bytes from there can be reserved.
    start: usize,
    bytes: usize,
    /// The reserved segments: their lengths in bytes, by address.
    reserved: Mutex<BTreeMap<usize, usize>>,
    share: Option<Share>,
}

// SAFETY: the pointer points to the memory, which may move to another thread.
unsafe impl<M: StableDeref + DerefMut<Target = [u8]> + 'static + Send> Send for Registered<M> {}
// SAFETY: shared access goes through the lock and does not touch the memory, and the driver allows any thread to use any memory.
unsafe impl<M: StableDeref + DerefMut<Target = [u8]> + 'static + Send> Sync for Registered<M> {}

impl<M: StableDeref + DerefMut<Target = [u8]> + 'static> Registered<M> {
    /// Page-locks memory for all contexts. It counts towards the default limit of pinned memory
    /// ([`Pinned::limit`](crate::gpu::Pinned::limit)).
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] at the limit, [`SourceErrorKind::Invalid`] if the memory is empty or already page-locked,
    /// [`Error::Unsupported`] if its device addresses differ from its host addresses, or the error of the driver. An error drops the
    /// memory.
    pub fn new(context: &Context, memory: M) -> Result<Self, Error> {
        Self::with_limit(context, memory, default_limit())
    }

    /// Page-locks memory like [`Registered::new`], with a limit in bytes for all memory that the process pins through this module.
    ///
    /// # Errors
    ///
    /// The errors of [`Registered::new`].
    pub fn with_limit(context: &Context, mut memory: M, limit: usize) -> Result<Self, Error> {
        let slice = &mut *memory;
        let (pointer, len) = (slice.as_mut_ptr(), slice.len());
        if len == 0 {
            return Err(SourceError::new(SourceErrorKind::Invalid, "cuMemHostRegister").into());
        }
        let share = Share::allocate(len, limit)?;
        let _bound = context.enter_relaxed()?;
        const PORTABLE_AND_MAPPED: u32 = 1 | 2;
        // SAFETY: this value owns the memory, and its drop unregisters it.
        unsafe { call!(cuMemHostRegister_v2(pointer.cast(), len, PORTABLE_AND_MAPPED))? };
        let address = pointer.expose_provenance();
        let start = address.next_multiple_of(ALIGNMENT);
        let bytes = len.saturating_sub(start - address) / ALIGNMENT * ALIGNMENT;
        let (reserved, memory, share) = (Mutex::default(), Some(memory), Some(share));
        let made = Self { context: context.clone(), memory, pointer, start, bytes, reserved, share };
        check_one_address(pointer)?;
        Ok(made)
    }

    /// Returns the memory, unless segments of it are still reserved. Does not wait: segments are released only after their work.
    ///
    /// # Errors
    ///
    /// This value.
    pub fn into_memory(mut self) -> Result<M, Self> {
        match self.take() {
            Some(memory) => Ok(memory),
            None => Err(self),
        }
    }

    /// Ends the registration, unless work may still be queued on the memory.
    fn take(&mut self) -> Option<M> {
        if !self.reserved.lock().is_empty() {
            return None;
        }
        let memory = self.memory.take()?;
        // SAFETY: `with_limit` registered the memory, and nothing uses it. A drop cannot report an error.
        let _ = self
            .context
            .enter_relaxed()
            .and_then(|_bound| unsafe { call!(cuMemHostUnregister(self.pointer.cast())) });
        self.share = None;
        Some(memory)
    }
}

impl<M: StableDeref + DerefMut<Target = [u8]> + 'static> Drop for Registered<M> {
    fn drop(&mut self) {
        if self.take().is_none() {
            // Segments are still reserved, so copies may still be under way.
            core::mem::forget((self.memory.take(), self.share.take()));
        }
    }
}

debug!([M: StableDeref + DerefMut<Target = [u8]> + 'static] Registered<M>, |self| bytes: self.bytes);

// SAFETY: each range is reserved once, inside the memory and aligned. This value owns the memory and leaks it rather than free it under a
// segment, and the CPU can use it.
unsafe impl<M: StableDeref + DerefMut<Target = [u8]> + 'static> Source for Registered<M> {
    describe!(|self| "registered", cpu_visible: true, Capabilities::PINNED.union(Capabilities::DMA), granularity: ALIGNMENT, alignment: ALIGNMENT, copies: OnHost);

    /// Returns the size of the usable slice and the unreserved part of it. No driver call. O(segments).
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let reserved: usize = self.reserved.lock().values().sum();
        Ok(Capacity { total: self.bytes, free: self.bytes - reserved })
    }

    /// Reserves the lowest free range. No driver call. O(segments).
    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("reserve", bytes, ALIGNMENT)?;
        let mut reserved = self.reserved.lock();
        let within = self.start..self.start + self.bytes;
        let full = SourceError::new(SourceErrorKind::OutOfMemory, "reserve");
        let taken = reserved.iter().map(|(&address, &taken)| (address, taken));
        let at = vacant(taken, within, ALIGNMENT, bytes).ok_or(full)?;
        let segment = segment("reserve", at as u64, bytes)?;
        reserved.insert(at, bytes);
        Ok(segment)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let unknown = SourceError::new(SourceErrorKind::Invalid, "release");
        self.reserved.lock().remove(&segment.address.get()).map(drop).ok_or(unknown)
    }
}
