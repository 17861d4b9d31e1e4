//! Buffers in the places of a plan.

use super::{Pattern, Phase};
use crate::pool::allocator::{DeviceAllocator, Owned};
use crate::pool::planned::{PlannedArena, Slot};
use crate::pool::stream::Uses;
use crate::pool::{PoolError, Stream};
use core::fmt;
use std::sync::Arc;

impl<A: DeviceAllocator> PlannedArena<A> {
    /// Takes buffer `slot` of the plan, which stays live until it is dropped. O(log live buffers).
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSlot`] if there is no such buffer, [`PoolError::SlotLive`] or [`PoolError::SlotLost`] if it is already
    /// live or lost, and [`PoolError::SlotOverlap`] if a live one shares its memory.
    pub fn take(&self, slot: usize) -> Result<PlannedBuffer<A>, PoolError> {
        Ok(PlannedBuffer(Origin::Slot(self.enter_slot(slot)?)))
    }
}

/// A live buffer of a [`PlannedArena`], whose drop makes room for the buffers that share its memory, or one of a
/// [`Pattern`], which lies in the recorded plan or is a block of the pool.
pub struct PlannedBuffer<A: DeviceAllocator>(Origin<A>);

enum Origin<A: DeviceAllocator> {
    /// A place in the plan of an arena.
    Slot(Slot<A>),
    /// A place in the plan of a pattern.
    Plan {
        pattern: Pattern<A>,
        lane: usize,
        slot: usize,
        /// The plan's block, which must outlive the buffer.
        block: Arc<Owned<A>>,
        address: usize,
        bytes: usize,
        users: Uses<A::Stream>,
    },
    /// A block of the pool, and the recording, lane and request while the request is recorded.
    Pool { pattern: Pattern<A>, buffer: Owned<A>, recorded: Option<(u64, usize, usize)> },
}

impl<A: DeviceAllocator> PlannedBuffer<A> {
    pub(super) fn planned(
        pattern: &Pattern<A>,
        lane: usize,
        slot: usize,
        block: Arc<Owned<A>>,
        address: usize,
        bytes: usize,
    ) -> Self {
        let (pattern, users) = (pattern.clone(), Uses::new());
        Self(Origin::Plan { pattern, lane, slot, block, address, bytes, users })
    }

    pub(super) fn pooled(
        pattern: &Pattern<A>,
        buffer: Owned<A>,
        recorded: Option<(u64, usize, usize)>,
    ) -> Self {
        Self(Origin::Pool { pattern: pattern.clone(), buffer, recorded })
    }

    /// Returns the buffer's number in the plan: of a pattern, that of the recorded request on its stream. `None` if the buffer is a
    /// block of the pool.
    pub fn slot(&self) -> Option<usize> {
        match &self.0 {
            Origin::Slot(slot) => Some(slot.number()),
            Origin::Plan { slot, .. } => Some(*slot),
            Origin::Pool { .. } => None,
        }
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> usize {
        match &self.0 {
            Origin::Slot(slot) => slot.address(),
            Origin::Plan { address, .. } => *address,
            Origin::Pool { buffer, .. } => buffer.address(),
        }
    }

    /// Returns the length in bytes: of a pattern's buffer, the requested one.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Origin::Slot(slot) => slot.bytes(),
            Origin::Plan { bytes, .. } => *bytes,
            Origin::Pool { buffer, .. } => buffer.bytes(),
        }
    }

    /// The block of the pool that has the memory.
    #[cfg(feature = "gpu")]
    pub(crate) fn block(&self) -> &Owned<A> {
        match &self.0 {
            Origin::Slot(slot) => slot.block(),
            Origin::Plan { block, .. } => block,
            Origin::Pool { buffer, .. } => buffer,
        }
    }

    /// Notes that work on `stream` uses the buffer. The next buffer at this address is ordered after that work.
    pub fn used_on(&self, stream: &A::Stream) {
        match &self.0 {
            Origin::Slot(slot) => slot.used_on(stream),
            Origin::Plan { pattern, lane, block, users, .. } => {
                if pattern.lock().lanes[*lane].stream.id() != stream.id() {
                    // If this handle is forgotten, the block as a whole still waits.
                    block.used_on(stream);
                    users.add(stream);
                }
            }
            Origin::Pool { pattern, buffer, recorded } => {
                buffer.used_on(stream);
                if let Some((recording, lane, request)) = *recorded {
                    let mut state = pattern.lock();
                    let current = state.phase == Phase::Recording && state.stats.recorded == recording;
                    if current && state.lanes[lane].stream.id() != stream.id() {
                        state.lanes[lane].shared(request);
                    }
                }
            }
        }
    }

    /// Exchanges this buffer of an arena for another one of its plan in one step: for an operator that works in place, whose
    /// output lies where its input does. Uses on other streams are waited for as in a drop, on the device.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`PlannedArena::take`], [`PoolError::NoSlot`] for a buffer of a pattern, together with this buffer,
    /// which stays live.
    pub fn turn_into(mut self, slot: usize) -> Result<Self, (PoolError, Self)> {
        let turned = match &mut self.0 {
            Origin::Slot(own) => own.turn_into(slot),
            Origin::Plan { .. } | Origin::Pool { .. } => Err(PoolError::NoSlot { slot }),
        };
        match turned {
            Ok(()) => Ok(self),
            Err(error) => Err((error, self)),
        }
    }
}

impl<A: DeviceAllocator> Drop for PlannedBuffer<A> {
    fn drop(&mut self) {
        match &mut self.0 {
            Origin::Slot(_) => {}
            Origin::Plan { pattern, lane, slot, users, .. } => {
                let mut state = pattern.lock();
                let lane = &mut state.lanes[*lane];
                // If the driver fails, the place stays taken, so that no other buffer gets it.
                if users.settle(&lane.stream).is_ok() {
                    lane.vacate(*slot);
                }
            }
            Origin::Pool { pattern, recorded, .. } => {
                if let Some((recording, lane, request)) = *recorded {
                    let mut state = pattern.lock();
                    if state.phase == Phase::Recording && state.stats.recorded == recording {
                        state.lanes[lane].freed(request);
                    }
                }
            }
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for PlannedBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, address) = (self.slot(), self.address());
        f.debug_struct("PlannedBuffer")
            .field("slot", &slot)
            .field("address", &address)
            .finish_non_exhaustive()
    }
}
