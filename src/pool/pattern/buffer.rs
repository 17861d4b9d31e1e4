//! The buffers that a pattern allocates.

use super::{Pattern, Phase};
use crate::pool::Stream;
use crate::pool::allocator::{DeviceAllocator, Owned};
use crate::pool::stream::follow;
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// A buffer of a [`Pattern`], from its plan or from the pool. Dropping it frees the memory.
pub struct PatternBuffer<A: DeviceAllocator> {
    pattern: Pattern<A>,
    origin: Origin<A>,
}

enum Origin<A: DeviceAllocator> {
    Plan {
        lane: usize,
        slot: usize,
        /// The lane's block, which waits for other streams even if this handle is forgotten.
        block: Arc<Owned<A>>,
        address: usize,
        bytes: usize,
        /// Other streams that use the buffer.
        users: Mutex<Vec<A::Stream>>,
    },
    Pool {
        buffer: Owned<A>,
        /// The recording, the lane and the request number under which it was recorded.
        recorded: Option<(u64, usize, usize)>,
    },
}

impl<A: DeviceAllocator> PatternBuffer<A> {
    pub(super) fn planned(
        pattern: &Pattern<A>,
        lane: usize,
        slot: usize,
        block: Arc<Owned<A>>,
        address: usize,
        bytes: usize,
    ) -> Self {
        let users = Mutex::new(Vec::new());
        Self { pattern: pattern.clone(), origin: Origin::Plan { lane, slot, block, address, bytes, users } }
    }

    pub(super) fn pooled(
        pattern: &Pattern<A>,
        buffer: Owned<A>,
        recorded: Option<(u64, usize, usize)>,
    ) -> Self {
        Self { pattern: pattern.clone(), origin: Origin::Pool { buffer, recorded } }
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> usize {
        match &self.origin {
            Origin::Plan { address, .. } => *address,
            Origin::Pool { buffer, .. } => buffer.address(),
        }
    }

    /// Returns the requested length in bytes.
    pub fn bytes(&self) -> usize {
        match &self.origin {
            Origin::Plan { bytes, .. } => *bytes,
            Origin::Pool { buffer, .. } => buffer.bytes(),
        }
    }

    /// Returns the pool that the memory comes from.
    pub fn pool(&self) -> &A {
        self.pattern.pool()
    }

    /// The block of the pool that the buffer is, or lies in.
    #[cfg(feature = "gpu")]
    pub(crate) fn block(&self) -> &Owned<A> {
        match &self.origin {
            Origin::Plan { block, .. } => block,
            Origin::Pool { buffer, .. } => buffer,
        }
    }

    /// Returns whether the buffer was served from the plan.
    pub fn is_planned(&self) -> bool {
        matches!(self.origin, Origin::Plan { .. })
    }

    /// Notes that work on `stream` uses the buffer. The pool does not reuse a buffer of its own before that work is
    /// done. When a buffer of the plan is dropped, the stream that it was allocated for waits for that work, on the
    /// device; to avoid such waits, use buffers on other streams in the recorded iteration already, so that they
    /// are left to the pool.
    pub fn used_on(&self, stream: &A::Stream) {
        match &self.origin {
            Origin::Plan { lane, block, users, .. } => {
                if self.pattern.lock().lanes[*lane].stream.id() == stream.id() {
                    return;
                }
                block.used_on(stream);
                let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
                if users.iter().all(|user| user.id() != stream.id()) {
                    users.push(stream.clone());
                }
            }
            Origin::Pool { buffer, recorded } => {
                buffer.used_on(stream);
                if let Some((recording, lane, request)) = *recorded {
                    let mut state = self.pattern.lock();
                    let current = state.phase == Phase::Recording && state.stats.recorded == recording;
                    if current && state.lanes[lane].stream.id() != stream.id() {
                        state.lanes[lane].shared(request);
                    }
                }
            }
        }
    }
}

impl<A: DeviceAllocator> Drop for PatternBuffer<A> {
    fn drop(&mut self) {
        match &mut self.origin {
            Origin::Plan { lane, slot, users, .. } => {
                let users = core::mem::take(users.get_mut().unwrap_or_else(PoisonError::into_inner));
                let mut state = self.pattern.lock();
                let lane = &mut state.lanes[*lane];
                // If the driver fails, the place stays taken, so that no other buffer gets it.
                if users.iter().all(|user| follow(&lane.stream, user).is_ok()) {
                    lane.vacate(*slot);
                }
            }
            Origin::Pool { recorded: Some((recording, lane, request)), .. } => {
                let mut state = self.pattern.lock();
                if state.phase == Phase::Recording && state.stats.recorded == *recording {
                    state.lanes[*lane].freed(*request);
                }
            }
            Origin::Pool { .. } => {}
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for PatternBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let planned = self.is_planned();
        f.debug_struct("PatternBuffer").field("address", &self.address()).field("planned", &planned).finish()
    }
}
