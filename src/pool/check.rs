//! Checks of memory: guards around blocks, and the contents of free memory that the CPU can access.

use super::error::PoolError;
use super::segments::Record;
use super::state::{State, bytes_of};
use super::{RawPool, Source, SourceErrorKind, Stream as _};
use crate::placement::SegmentPlacement;
use core::{ptr, slice};

/// The byte that guards are filled with.
const GUARD: u8 = 0xfd;

/// Fills memory that the CPU can access.
///
/// # Safety
///
/// The range must lie in a segment of a CPU-visible source, and nothing else may use it.
unsafe fn fill(address: usize, bytes: usize, value: u8) {
    // SAFETY: the caller's contract; such segments are valid through exposed provenance.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(value, bytes) };
}

/// Finds the first byte of a range that is not `value`.
///
/// # Safety
///
/// The contract of [`fill`], and the range must have been written before.
unsafe fn first_other(address: usize, bytes: usize, value: u8) -> Option<usize> {
    // SAFETY: the caller's contract.
    let bytes = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(address), bytes) };
    bytes.iter().position(|&byte| byte != value)
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns the byte that free memory is filled with, if it is filled at all.
    pub(super) fn filled(&self) -> Option<u8> {
        if S::CPU_VISIBLE { self.options.checks.fill } else { None }
    }

    /// Fills a new segment, or the part that one was lengthened by.
    pub(super) fn fill_new(&self, address: usize, bytes: usize) {
        if let Some(value) = self.filled() {
            // SAFETY: the source has just reserved these bytes for this pool.
            unsafe { fill(address, bytes, value) };
        }
    }

    /// Returns whether the memory of a block went with its device, so that the CPU cannot access it any more.
    fn is_gone(state: &State<P, S>, record: &Record<P::Token>) -> bool {
        let capture = state.heap(usize::from(record.heap)).stream().capture();
        capture.is_err_and(|error| error.kind == SourceErrorKind::Lost)
    }

    /// Fills a block that is about to become free.
    pub(super) fn fill_freed(&self, state: &State<P, S>, number: u32) {
        if let Some(value) = self.filled() {
            let record = state.record(number);
            if Self::is_gone(state, record) {
                return;
            }
            let bytes = bytes_of::<P>(record.len as usize) as usize;
            // SAFETY: the block has no user any more, and its work is done.
            unsafe { fill(state.address(record), bytes, value) };
        }
    }

    /// Returns the guards of a block: address, length, and where it begins, counted from the user's first byte.
    fn guards(&self, state: &State<P, S>, record: &Record<P::Token>) -> [(usize, usize, isize); 2] {
        let (start, bytes) = (state.address(record), bytes_of::<P>(record.len as usize) as usize);
        let (front, own) = (self.guard(1 << record.align) * P::GRANULE, record.requested as usize);
        [(start, front, -(front as isize)), (start + front + own, bytes - front - own, own as isize)]
    }

    /// Checks that a block which becomes live was not written while it was free, and fills its guards.
    pub(super) fn prepare(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        if let Some(value) = self.filled() {
            let record = state.record(number);
            let (start, bytes) = (state.address(record), bytes_of::<P>(record.len as usize) as usize);
            // SAFETY: free memory was filled, and the block was given to no user yet.
            if let Some(offset) = unsafe { first_other(start, bytes, value) } {
                return Err(PoolError::WrittenAfterFree { address: start + offset });
            }
        }
        if self.options.checks.guard {
            self.fill_guards(state, number);
        }
        Ok(())
    }

    /// Fills the guards of a block. Memory that the CPU cannot access is filled by its source, unless that would become part of a graph.
    fn fill_guards(&self, state: &mut State<P, S>, number: u32) {
        let record = state.record(number);
        let guards = self.guards(state, record);
        if S::CPU_VISIBLE {
            // SAFETY: the guards belong to the block and are never given to a user.
            guards.iter().for_each(|&(address, bytes, _)| unsafe { fill(address, bytes, GUARD) });
            return;
        }
        let stream = state.heap(usize::from(record.heap)).stream();
        // SAFETY: as above.
        let filled =
            |&(address, bytes, _): &_| unsafe { self.source.fill(address, bytes, GUARD, stream).is_ok() };
        // A device that fails says so at the next call; such a block has no guards, nor has one of a source that cannot fill.
        if matches!(stream.capture(), Ok(None)) && guards.iter().all(filled) {
            state.extra.guarded.insert(number, ());
        }
    }

    /// Checks that the guards of a block are unchanged: where the CPU cannot access them, once the work on its stream is done.
    pub(super) fn inspect(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        let guarded = match S::CPU_VISIBLE {
            true => self.options.checks.guard,
            false => state.extra.guarded.remove(&number).is_some(),
        };
        if !guarded {
            return Ok(());
        }
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        // Memory that went with its device cannot be read, and a read by a stream that is captured would become part of the graph.
        let skips =
            if S::CPU_VISIBLE { Self::is_gone(state, record) } else { !matches!(stream.capture(), Ok(None)) };
        if skips {
            return Ok(());
        }
        for (address, bytes, offset) in self.guards(state, record) {
            let found = if S::CPU_VISIBLE {
                // SAFETY: the guards were filled when the block became live.
                unsafe { first_other(address, bytes, GUARD) }
            } else {
                let mut read = std::vec![GUARD; bytes];
                // SAFETY: the guards are the pool's.
                let done = unsafe { self.source.read(address, &mut read, stream) };
                // What cannot be read, since the device was lost, counts as unchanged.
                done.ok().and_then(|()| read.iter().position(|&byte| byte != GUARD))
            };
            if let Some(first) = found {
                return Err(PoolError::Overrun { offset: offset + first as isize });
            }
        }
        Ok(())
    }
}
