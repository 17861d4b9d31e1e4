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

    /// Returns the bytes in front of the user's part of a block, in that part, and behind it.
    fn parts(&self, record: &Record<P::Token>) -> (usize, usize, usize) {
        let front = self.guard(1 << record.align) * P::GRANULE;
        let own = record.requested as usize;
        (front, own, bytes_of::<P>(record.len as usize) as usize - front - own)
    }

    /// Checks that a block which becomes live was not written while it was free, and fills its guards.
    pub(super) fn prepare(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        if !S::CPU_VISIBLE {
            self.guard_on_device(state, number);
            return Ok(());
        }
        let record = state.record(number);
        let start = state.address(record);
        let (front, own, back) = self.parts(record);
        if let Some(value) = self.filled() {
            // SAFETY: free memory was filled, and the block was given to no user yet.
            if let Some(offset) = unsafe { first_other(start, front + own + back, value) } {
                return Err(PoolError::WrittenAfterFree { address: start + offset });
            }
        }
        if self.options.checks.guard {
            // SAFETY: the guards belong to the block and are never given to a user.
            unsafe {
                fill(start, front, GUARD);
                fill(start + front + own, back, GUARD);
            }
        }
        Ok(())
    }

    /// Fills the guards of a block that the CPU cannot access, unless that would become part of a graph, or the source cannot.
    fn guard_on_device(&self, state: &mut State<P, S>, number: u32) {
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        if !self.options.checks.guard || !matches!(stream.capture(), Ok(None)) {
            return;
        }
        let (start, (front, own, back)) = (state.address(record), self.parts(record));
        // SAFETY: the guards belong to the block and are never given to a user.
        let filled = unsafe {
            let before = self.source.fill(start, front, GUARD, stream);
            before.and_then(|()| self.source.fill(start + front + own, back, GUARD, stream))
        };
        // A device that fails says so at the next call; such a block has no guards.
        if filled.is_ok() {
            state.extra.guarded.insert(number, ());
        }
    }

    /// Checks the guards of a block that the CPU cannot access, once the work on its stream is done.
    fn inspect_on_device(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        let guarded = state.extra.guarded.remove(&number).is_some();
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        if !guarded || !matches!(stream.capture(), Ok(None)) {
            return Ok(());
        }
        let (start, (front, own, back)) = (state.address(record), self.parts(record));
        for (address, bytes, offset) in
            [(start, front, -(front as isize)), (start + front + own, back, own as isize)]
        {
            let mut read = std::vec![GUARD; bytes];
            // SAFETY: the guards are the pool's. What cannot be read, since the device was lost, is as it was.
            let _ = unsafe { self.source.read(address, &mut read, stream) };
            if let Some(first) = read.iter().position(|&byte| byte != GUARD) {
                return Err(PoolError::Overrun { offset: offset + first as isize });
            }
        }
        Ok(())
    }

    /// Checks that the guards of a block are unchanged.
    pub(super) fn inspect(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        if !S::CPU_VISIBLE {
            return self.inspect_on_device(state, number);
        }
        if !self.options.checks.guard {
            return Ok(());
        }
        let record = state.record(number);
        if Self::is_gone(state, record) {
            return Ok(());
        }
        let start = state.address(record);
        let (front, own, back) = self.parts(record);
        // SAFETY: the guards were filled when the block became live.
        let (before, after) =
            unsafe { (first_other(start, front, GUARD), first_other(start + front + own, back, GUARD)) };
        let before = before.map(|offset| offset as isize - front as isize);
        match before.or(after.map(|offset| (own + offset) as isize)) {
            Some(offset) => Err(PoolError::Overrun { offset }),
            None => Ok(()),
        }
    }
}
