//! Frees of a pool's blocks.

#![forbid(unsafe_code)]

use super::base::{Allocation, RawPool};
use super::error::PoolError;
use super::options::Reuse;
use super::segments::Holder;
use super::state::{State, bytes_of};
use super::{Segment, Source, Stream};
use crate::placement::SegmentPlacement;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Frees a block. Later work on its stream may reuse the memory at once; other streams may reuse it when all work submitted so far is
    /// done, including work on the streams passed to [`RawPool::record_stream`]. O(1) plus the placement's work, and O(log segments) if
    /// the stream has several segments.
    ///
    /// # Errors
    ///
    /// [`PoolError::Foreign`] if the block is from another pool, [`PoolError::AlreadyFree`] if it was freed
    /// before, and [`PoolError::Overrun`] if the optional checks find an overwritten guard.
    #[inline]
    pub fn deallocate(&self, allocation: Allocation) -> Result<(), PoolError> {
        let Allocation { pool, record, serial, .. } = allocation;
        if self.is_direct && pool == self.id && self.state.deallocate(record, serial) {
            return Ok(());
        }
        self.deallocate_slow(&allocation)
    }

    /// Frees blocks like [`RawPool::deallocate`], and returns the number of blocks freed without an error. Successive blocks that only
    /// their own streams have used take one lock together if those streams share it.
    pub fn deallocate_many(&self, blocks: Vec<Allocation>) -> usize {
        let (mut rest, mut freed) = (&blocks[..], 0);
        while !rest.is_empty() {
            if self.is_direct {
                let own =
                    |block: &Allocation| (block.pool == self.id).then_some((block.record, block.serial));
                let quick = self.state.deallocate_many(rest.iter().map_while(own));
                (rest, freed) = (&rest[quick..], freed + quick);
            }
            if let Some((first, others)) = rest.split_first() {
                freed += usize::from(self.deallocate_slow(first).is_ok());
                rest = others;
            }
        }
        freed
    }

    /// Frees a block under the lock of everything; a timed pool first tries the heap of the block's stream alone.
    #[inline(never)]
    fn deallocate_slow(&self, allocation: &Allocation) -> Result<(), PoolError> {
        let &Allocation { pool, record, serial, .. } = allocation;
        if let Some(times) = self.times.as_ref().filter(|times| times.is_direct && pool == self.id) {
            if self.state.deallocate(record, serial) {
                times.used(record.into(), self.source.now(), -(allocation.bytes() as i128));
                return Ok(());
            }
        }
        let mut state = self.lock();
        let number = self.record(&state, allocation)?;
        self.free_checked(&mut state, number, None)
    }

    /// Runs the checks, frees a block whose last work may be on another `stream`, and trims.
    fn free_checked(
        &self,
        state: &mut State<P, S>,
        number: u32,
        stream: Option<&S::Stream>,
    ) -> Result<(), PoolError> {
        let sound = self.leave(state, number);
        if let Some(times) = &self.times {
            times.used(number.into(), self.source.now(), -i128::from(state.record(number).requested));
        }
        let heap = usize::from(state.record(number).heap);
        if let Some(stream) = stream.filter(|stream| state.heap(heap).id != stream.id()) {
            state.order.users.entry(number).or_default().push(stream.retain());
            state.record_mut(number).holder = Holder::Shared;
        }
        self.free(state, number);
        self.trim_due(state);
        sound
    }

    /// Frees a block like [`RawPool::deallocate`], but with its last work on `stream`. The block's own stream need not wait for that
    /// work: the pool reuses the memory after an event on `stream`.
    ///
    /// # Errors
    ///
    /// The same errors as [`RawPool::deallocate`].
    pub fn deallocate_on(&self, allocation: Allocation, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let number = self.record(&state, &allocation)?;
        self.free_checked(&mut state, number, Some(stream))
    }

    /// Frees the live block at an address, for callers that keep only the address. O(blocks).
    ///
    /// # Errors
    ///
    /// [`PoolError::AlreadyFree`] if the address lies in a segment of the pool but no live block starts there, [`PoolError::Foreign`] if
    /// it lies in no segment, and [`PoolError::Overrun`] as in [`RawPool::deallocate`].
    pub fn deallocate_at(&self, address: usize) -> Result<(), PoolError> {
        let mut state = self.lock();
        let live = |holder| matches!(holder, Holder::Live | Holder::Shared);
        let found = state
            .records()
            .find(|(_, record)| live(record.holder) && self.user_address(&state, record) == address);
        let Some((number, _)) = found else {
            let mut memory = state.segments().map(|(_, entry)| entry.memory);
            let owned = memory.any(|memory| address.wrapping_sub(memory.address.get()) < memory.bytes);
            return Err(if owned { PoolError::AlreadyFree } else { PoolError::Foreign });
        };
        self.free_checked(&mut state, number, None)
    }

    /// Notes that work on `stream` uses the block. Once the block is freed, the pool does not reuse its memory before that work is done.
    /// O(streams of the block).
    ///
    /// # Errors
    ///
    /// [`PoolError::Foreign`] if the block is from another pool, [`PoolError::AlreadyFree`] if it was freed.
    pub fn record_stream(&self, allocation: &Allocation, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let number = self.record(&state, allocation)?;
        if state.order.asks {
            state.touch_in_capture(number, stream);
        }
        let (id, own) = (stream.id(), usize::from(state.record(number).heap));
        if state.heap(own).id == id {
            return Ok(());
        }
        let users = state.order.users.entry(number).or_default();
        if !users.iter().any(|user| user.id() == id) {
            users.push(stream.retain());
        }
        state.record_mut(number).holder = Holder::Shared;
        Ok(())
    }

    /// Returns the segment that contains a block, in its current size; `None` if this is not a live block of the
    /// pool. O(1).
    pub fn segment_of(&self, allocation: &Allocation) -> Option<Segment> {
        let state = self.lock();
        let number = self.record(&state, allocation).ok()?;
        Some(state.entry(state.record(number).segment).memory)
    }

    /// Prepares a block's free: updates the trace and the usage statistics, and runs the checks.
    #[inline(always)]
    fn leave(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        if state.extra.is_watched() {
            self.watch_free(state, number);
        }
        if self.checked { self.check_old(state, number) } else { Ok(()) }
    }

    /// Reports a free to the trace and the usage statistics.
    #[cold]
    fn watch_free(&self, state: &mut State<P, S>, number: u32) {
        if state.extra.trace.is_some() {
            self.trace_free(state, number);
        }
        let len = state.record(number).len as usize;
        if let Some(usage) = &mut state.extra.usage {
            usage.freed(len);
        }
    }

    /// Runs the chosen checks on a block about to be freed.
    #[cold]
    fn check_old(&self, state: &mut State<P, S>, number: u32) -> Result<(), PoolError> {
        state.extra.sites.remove(&number);
        self.inspect(state, number)
    }

    /// Frees a block: at once if only its own stream used it, otherwise after events of the streams that used it.
    pub(super) fn free(&self, state: &mut State<P, S>, number: u32) {
        if state.order.asks && state.may_be_kept(number) && self.keep_for_graph(state, number) {
            return;
        }
        let record = *state.record(number);
        let heap = usize::from(record.heap);
        let granted = bytes_of::<P>(record.len as usize);
        let home = state.entry(record.segment).heap;
        let is_late = self.fills_late();
        if record.holder == Holder::Live && home == heap && !is_late {
            state.note(heap, |figures| figures.free(granted, record.requested));
            self.fill_freed(state, number);
            if self.options.reuse == Reuse::Basic && self.keep(state, number) {
                return;
            }
            self.return_block(state, number);
            return;
        }
        let mut streams = state.order.users.remove(&number).unwrap_or_default();
        if home != heap || is_late {
            streams.push(state.heap(heap).stream().clone());
        }
        state.note(heap, |figures| figures.defer(granted, record.requested));
        self.defer(state, number, streams);
        if is_late {
            // Poll at once: the CPU fills the memory only after the work on it.
            self.poll(state);
        }
    }

    /// Keeps a freed block for requests of its class. Returns `false` if its length is not a class's.
    fn keep(&self, state: &mut State<P, S>, number: u32) -> bool {
        let record = state.record(number);
        let (len, heap) = (record.len as usize, usize::from(record.heap));
        // An aligned block has a longer front guard than a request of the class.
        if state.extra.classes.binary_search(&len).is_err() || self.options.checks.guard && record.align > 0 {
            return false;
        }
        state.record_mut(number).holder = Holder::Cached;
        state.heap_mut(heap).cached.entry(len).or_default().push(number);
        true
    }
}
