//! How blocks come back to a pool.

use super::error::ReturnError;
use super::front::{Allocation, Pool};
use super::records::Holder;
use super::state::State;
use super::{Segment, Source, Stream};
use crate::placement::Space;

impl<P: Space, S: Source> Pool<P, S> {
    /// Whether the block is from this pool.
    pub(super) fn is_owner(&self, allocation: &Allocation) -> bool {
        allocation.pool == self.id
    }

    /// The record of an allocation, if it is live.
    #[inline(always)]
    pub(super) fn record(&self, state: &State<P, S>, allocation: &Allocation) -> Result<u32, ReturnError> {
        let number = allocation.record;
        match state.records.find(number) {
            Some(record) if allocation.pool == self.id => {
                let live = matches!(record.holder, Holder::Live | Holder::Shared);
                if live && record.serial == allocation.serial {
                    Ok(number)
                } else {
                    Err(ReturnError::AlreadyFree)
                }
            }
            _ => Err(ReturnError::Foreign),
        }
    }

    /// Frees a block. It may be used again at once by what is submitted to its stream from here on; by other
    /// streams when the work that was submitted up to here is over, also that on the streams of
    /// [`Pool::note_use`].
    ///
    /// # Errors
    ///
    /// [`ReturnError::Foreign`] if it is from another pool, and what the chosen checks find.
    #[inline]
    pub fn deallocate(&self, allocation: Allocation) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, &allocation)?;
        let sound = self.leave(&mut state, number);
        self.free(&mut state, number);
        sound
    }

    /// As [`Pool::deallocate`], where the last work on the block was submitted to `stream`, which its own stream need
    /// not wait for: it gets the block back after an event.
    ///
    /// # Errors
    ///
    /// As [`Pool::deallocate`].
    pub fn deallocate_on(&self, allocation: Allocation, stream: &S::Stream) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, &allocation)?;
        let sound = self.leave(&mut state, number);
        self.free_on(&mut state, number, stream);
        sound
    }

    /// Frees the block at an address that was allocated and not freed yet, for callers that keep nothing else.
    /// O(blocks).
    ///
    /// # Errors
    ///
    /// [`ReturnError::AlreadyFree`] if the address is in a segment of the pool, [`ReturnError::Foreign`] if not.
    pub fn deallocate_at(&self, address: usize) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let live = |holder| matches!(holder, Holder::Live | Holder::Shared);
        let found = state
            .records
            .iter()
            .find(|(_, record)| live(record.holder) && self.user_address(&state, record) == address);
        let Some((number, _)) = found else {
            let mut segments = state.segments.iter().flatten();
            let memory =
                segments.find(|entry| address.wrapping_sub(entry.memory.address.get()) < entry.memory.bytes);
            return Err(if memory.is_some() { ReturnError::AlreadyFree } else { ReturnError::Foreign });
        };
        let sound = self.leave(&mut state, number);
        self.free(&mut state, number);
        sound
    }

    /// Notes that work on `stream` uses the block: when it is freed, nobody else gets it before that work is over.
    /// O(streams of the block).
    ///
    /// # Errors
    ///
    /// [`ReturnError::Foreign`] if it is from another pool.
    pub fn note_use(&self, allocation: &Allocation, stream: &S::Stream) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, allocation)?;
        let (id, own) = (stream.id(), usize::from(state.records.get(number).arena));
        if state.arenas[own].id == id {
            return Ok(());
        }
        let users = state.users.entry(number).or_default();
        if !users.iter().any(|user| user.id() == id) {
            users.push(stream.clone());
        }
        state.records.get_mut(number).holder = Holder::Shared;
        Ok(())
    }

    /// The segment that a block is in, as it is now; `None` if it is not a block of this pool. O(1).
    pub fn segment_of(&self, allocation: &Allocation) -> Option<Segment> {
        let state = self.lock();
        let number = self.record(&state, allocation).ok()?;
        Some(state.entry(state.records.get(number).segment).memory)
    }

    /// What is done with a block before it is freed.
    #[inline(always)]
    fn leave(&self, state: &mut State<P, S>, number: u32) -> Result<(), ReturnError> {
        if state.is_watched() {
            self.watch_free(state, number);
        }
        if self.checked { self.check_old(state, number) } else { Ok(()) }
    }

    /// What a trace and the usage are told.
    #[cold]
    fn watch_free(&self, state: &mut State<P, S>, number: u32) {
        if state.trace.is_some() {
            self.trace_free(state, number);
        }
        let len = state.records.get(number).len as usize;
        if let Some(usage) = &mut state.usage {
            usage.freed(len);
        }
    }

    /// What the chosen checks do when a block is freed.
    #[cold]
    fn check_old(&self, state: &mut State<P, S>, number: u32) -> Result<(), ReturnError> {
        state.sites.remove(&number);
        self.inspect(state, number)
    }
}
