//! The program's own memory, page-locked.

use super::pinned::{PinnedOptions, Share};
use super::{ALIGNMENT, check_size, segment};
use crate::gpu::context::Context;
use crate::gpu::error::{Error, call};
use crate::gpu::stream::Stream;
use crate::pool::{Capacity, Direction, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::marker::PhantomData;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A slice of the program's own memory, such as a vector or a memory-mapped file, which `cuMemHostRegister`
/// page-locks while this value exists. It is lent in place, in multiples of 512 bytes, until it is used up.
#[derive(Debug)]
pub struct Registered<'a> {
    context: Context,
    /// The registered memory.
    pointer: *mut u8,
    /// Address of the first aligned byte; `bytes` can be lent from there.
    start: usize,
    bytes: usize,
    /// The lent segments: their lengths in bytes, by address.
    lent: Mutex<BTreeMap<usize, usize>>,
    _share: Share,
    _memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: the slice is borrowed for this value alone, and plain bytes may go to another thread.
unsafe impl Send for Registered<'_> {}
// SAFETY: shared access goes through the lock, and the driver allows any memory to be used from any thread.
unsafe impl Sync for Registered<'_> {}

impl<'a> Registered<'a> {
    /// Page-locks a slice for all contexts. It counts towards the default limit of pinned memory
    /// ([`PinnedOptions::limit`]).
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] at the limit, [`SourceErrorKind::Invalid`] if the slice is empty or already
    /// page-locked, or the error of the driver.
    pub fn new(context: &Context, memory: &'a mut [u8]) -> Result<Self, Error> {
        Self::with_limit(context, memory, PinnedOptions::default().limit)
    }

    /// Page-locks a slice like [`Registered::new`], with a limit in bytes for everything that the process has
    /// pinned through this module.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] at the limit, [`SourceErrorKind::Invalid`] if the slice is empty or already
    /// page-locked, or the error of the driver.
    pub fn with_limit(context: &Context, memory: &'a mut [u8], limit: usize) -> Result<Self, Error> {
        if memory.is_empty() {
            let kind = SourceErrorKind::Invalid;
            return Err(SourceError { kind, call: "cuMemHostRegister", code: 0 }.into());
        }
        let share = Share::take(memory.len(), limit)?;
        let _bound = context.enter_relaxed()?;
        let pointer = memory.as_mut_ptr();
        const PORTABLE: u32 = 1;
        // SAFETY: the slice is borrowed until this value is dropped, which unregisters it.
        unsafe { call!(cuMemHostRegister_v2(pointer.cast(), memory.len(), PORTABLE))? };
        let address = pointer.expose_provenance();
        let start = address.next_multiple_of(ALIGNMENT);
        let bytes = memory.len().saturating_sub(start - address) / ALIGNMENT * ALIGNMENT;
        let lent = Mutex::default();
        let _memory = PhantomData;
        Ok(Self { context: context.clone(), pointer, start, bytes, lent, _share: share, _memory })
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` registered the slice. A drop cannot report an error.
        let _ = self
            .context
            .enter_relaxed()
            .and_then(|_bound| unsafe { call!(cuMemHostUnregister(self.pointer.cast())) });
    }
}

// SAFETY: each range is lent once, inside the slice and aligned. The slice is borrowed as long as this value
// exists, and the CPU can use it.
unsafe impl Source for Registered<'_> {
    type Stream = Stream;
    const CPU_VISIBLE: bool = true;

    fn name(&self) -> &str {
        "registered"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::PINNED.union(Capabilities::DMA)
    }

    fn granularity(&self) -> usize {
        ALIGNMENT
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    /// Returns the size of the usable slice and what is left of it. No driver call. O(segments).
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let lent: usize = self.lent().values().sum();
        Ok(Capacity { total: self.bytes, free: self.bytes - lent })
    }

    /// Lends the lowest free range. No driver call. O(segments).
    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("reserve", bytes, ALIGNMENT)?;
        let mut lent = self.lent();
        let mut at = self.start;
        for (&address, &taken) in lent.iter() {
            if bytes <= address - at {
                break;
            }
            at = address + taken;
        }
        if bytes > self.start + self.bytes - at {
            return Err(SourceError { kind: SourceErrorKind::OutOfMemory, call: "reserve", code: 0 });
        }
        let segment = segment("reserve", at as u64, bytes)?;
        lent.insert(at, bytes);
        Ok(segment)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let unknown = SourceError { kind: SourceErrorKind::Invalid, call: "release", code: 0 };
        self.lent().remove(&segment.address.get()).map(drop).ok_or(unknown)
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees both ranges.
        unsafe { super::copy(Direction::OnHost, from, to, bytes, stream) }
    }
}
