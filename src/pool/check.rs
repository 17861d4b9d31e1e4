//! Memory checks: guards around blocks, and the contents of free memory. The CPU fills and reads memory that it can access; the source
//! does so for other memory, in the order of the stream.

use super::error::PoolError;
use super::segments::Record;
use super::state::{State, bytes_of};
use super::{RawPool, Source, SourceErrorKind, Stream as _};
use crate::placement::SegmentPlacement;
use core::{ptr, slice};

/// The fill byte of guards.
const GUARD: u8 = 0xfd;

/// Bytes to read from a device at once.
const PIECE: usize = 1 << 20;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns whether the CPU fills free memory or writes guards into it, which must wait until the work on that memory is done.
    pub(super) fn fills_late(&self) -> bool {
        S::CPU_VISIBLE && (self.options.checks.fill.is_some() || self.options.checks.guard)
    }

    /// Returns whether a stream may reuse its own freed blocks while they wait for other streams.
    pub(super) fn reuses_waiting(&self) -> bool {
        self.options.checks.fill.is_none() && !self.fills_late()
    }

    /// Returns whether the pool can fill and read memory of this stream now: not if the device is lost, nor during a capture, when a fill
    /// would become part of the graph.
    fn can_check(stream: &S::Stream) -> bool {
        match stream.capture() {
            Ok(captured) => S::CPU_VISIBLE || captured.is_none(),
            Err(error) => S::CPU_VISIBLE && error.kind != SourceErrorKind::Lost,
        }
    }

    /// Fills memory, and returns whether that succeeded. A failed device reports its error at the next call.
    ///
    /// # Safety
    ///
    /// The range must lie in a segment of this pool. Nothing may use it at that point in the order of `stream`, or at any time if the CPU
    /// can access it.
    unsafe fn fill(&self, address: usize, bytes: usize, value: u8, stream: &S::Stream) -> bool {
        if !Self::can_check(stream) {
            return false;
        }
        if S::CPU_VISIBLE {
            // SAFETY: the caller's contract; such segments are valid through exposed provenance.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(value, bytes) };
            return true;
        }
        // SAFETY: the caller's contract.
        unsafe { self.source.fill(address, bytes, value, stream).is_ok() }
    }

    /// Finds the first byte of a range that is not `value`, and waits for the stream if the CPU cannot access the memory. Bytes that
    /// cannot be read count as unchanged.
    ///
    /// # Safety
    ///
    /// The contract of [`RawPool::fill`], and the range must be initialized.
    unsafe fn first_other(
        &self,
        address: usize,
        bytes: usize,
        value: u8,
        stream: &S::Stream,
    ) -> Option<usize> {
        let is_other = |&byte: &u8| byte != value;
        if !Self::can_check(stream) {
            return None;
        }
        if S::CPU_VISIBLE {
            let start = ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller's contract.
            return unsafe { slice::from_raw_parts(start, bytes) }.iter().position(is_other);
        }
        let mut read = std::vec![value; bytes.min(PIECE)];
        for start in (0..bytes).step_by(PIECE) {
            let piece = &mut read[..PIECE.min(bytes - start)];
            // SAFETY: the caller's contract.
            unsafe { self.source.read(address + start, piece, stream).ok()? };
            if let Some(place) = piece.iter().position(is_other) {
                return Some(start + place);
            }
        }
        None
    }

    /// Fills free memory of a segment, in the order of its stream heap. If that fails, the segment is no longer checked.
    ///
    /// # Safety
    ///
    /// The range must lie in the segment and be free, and the work on it must be done or come earlier in that order.
    unsafe fn fill_free(&self, state: &mut State<P, S>, segment: u32, address: usize, bytes: usize) {
        let Some(value) = self.options.checks.fill else { return };
        let heap = state.heap(state.entry(segment).heap);
        // A graph writes to its memory at every launch, even where that is free.
        // SAFETY: the caller's contract.
        if heap.private || unsafe { !self.fill(address, bytes, value, heap.stream()) } {
            state.entry_mut(segment).unfilled = true;
        }
    }

    /// Fills a new segment, the added part of a lengthened one, or a hole that was mapped again. Other streams need not wait for the
    /// fill: the request that needed the memory waits when it reads its block.
    pub(super) fn fill_new(&self, state: &mut State<P, S>, segment: u32, address: usize, bytes: usize) {
        // SAFETY: the source just reserved these bytes for this pool.
        unsafe { self.fill_free(state, segment, address, bytes) };
    }

    /// Fills a block that is about to become free.
    pub(super) fn fill_freed(&self, state: &mut State<P, S>, number: u32) {
        let record = state.record(number);
        let (segment, address) = (record.segment, state.address(record));
        let bytes = bytes_of::<P>(record.len as usize) as usize;
        // SAFETY: the block no longer has a user, and its work is done or on the stream of its segment.
        unsafe { self.fill_free(state, segment, address, bytes) };
    }

    /// Returns the guards of a block: their addresses, lengths and offsets from the user's first byte.
    fn guards(&self, state: &State<P, S>, record: &Record<P::Token>) -> [(usize, usize, isize); 2] {
        let (start, bytes) = (state.address(record), bytes_of::<P>(record.len as usize) as usize);
        let (front, own) = (self.guard(1 << record.align) * P::GRANULE, record.requested as usize);
        [(start, front, -(front as isize)), (start + front + own, bytes - front - own, own as isize)]
    }

    /// Checks that a block about to become live was not written while it was free, and fills its guards.
    pub(super) fn prepare(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        if let Some(value) = self.options.checks.fill {
            let (start, bytes) = (state.address(record), bytes_of::<P>(record.len as usize) as usize);
            if !state.entry(record.segment).unfilled {
                // SAFETY: free memory was filled, and the block has no user yet.
                if let Some(offset) = unsafe { self.first_other(start, bytes, value, stream) } {
                    return Err(PoolError::WrittenAfterFree { address: start + offset });
                }
            }
        }
        if self.options.checks.guard {
            self.fill_guards(state, number);
        }
        Ok(())
    }

    /// Fills the guards of a block, which are checked when it is freed.
    fn fill_guards(&self, state: &mut State<P, S>, number: u32) {
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        let fill = |&(address, bytes, _): &_| {
            // SAFETY: the guards belong to the block, and no user accesses them.
            unsafe { self.fill(address, bytes, GUARD, stream) }
        };
        if self.guards(state, record).iter().all(fill) {
            state.extra.guarded.insert(number, ());
        } else {
            state.extra.guarded.remove(&number);
        }
    }

    /// Fills the guards of a block that has moved, if the CPU checks them: it would read them before the stream has copied them.
    pub(super) fn move_guards(&self, state: &mut State<P, S>, number: u32) {
        if S::CPU_VISIBLE && state.extra.guarded.contains_key(&number) {
            self.fill_guards(state, number);
        }
    }

    /// Checks that the guards of a block are unchanged, if it has any.
    pub(super) fn inspect(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        if state.extra.guarded.remove(&number).is_none() {
            return Ok(());
        }
        let record = state.record(number);
        let stream = state.heap(usize::from(record.heap)).stream();
        for (address, bytes, offset) in self.guards(state, record) {
            // SAFETY: the guards were filled when the block became live.
            if let Some(first) = unsafe { self.first_other(address, bytes, GUARD, stream) } {
                return Err(PoolError::Overrun { offset: offset + first as isize });
            }
        }
        Ok(())
    }
}
