//! Static plans in a device's memory.

#![forbid(unsafe_code)]

use super::allocator::{DeviceAllocator, Owned};
use super::stream::Uses;
use super::{PoolError, Stream};
use crate::plan::Placed;
use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The live buffers of a plan.
struct Live {
    /// Live buffers that are not empty, by their offset.
    places: BTreeMap<usize, usize>,
    slots: Vec<SlotState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Live,
    Lost,
}

/// A static plan in one block of a pool, in which every buffer lies at its planned offset. The pool is any
/// [`DeviceAllocator`], borrowed or shared; clones refer to the same arena, and its buffers keep it.
///
/// The plan is either made by the compiler ([`plan::Plan`](crate::plan::Plan), [`arena!`](crate::arena!)) or at run
/// time ([`plan::OwnedPlan`](crate::plan::OwnedPlan)). Every buffer that the program takes is checked against those
/// that are live: two buffers that share memory cannot be live at once, even if the program does not follow the
/// plan's steps.
///
/// Work on all buffers runs in the order of the arena's stream. When a buffer that was used on another stream
/// ([`PlannedBuffer::used_on`](crate::pool::PlannedBuffer::used_on)) is dropped, the arena's stream waits for that use, on the device.
///
/// ```
/// use allotment::arena;
/// use allotment::plan::Planned;
/// use allotment::pool::{DevicePool, PlannedArena, PoolOptions, PoolError};
/// use allotment::sim::DeviceMemory;
///
/// arena! {
///     struct Net(64 << 20) {
///         INPUT: [f32; 1 << 20] = 0..2;
///         HIDDEN: [f32; 2 << 20] = 1..3;
///         OUTPUT: [f32; 1 << 20] = 2..4;
///     }
/// }
/// let device: DeviceMemory = DeviceMemory::new(1 << 30);
/// let stream = device.stream();
/// let pool = DevicePool::new(device, PoolOptions::new())?;
/// let arena = PlannedArena::new(&pool, Net::PLACED, &stream)?;
/// assert_eq!(arena.bytes(), 12 << 20);
///
/// let input = arena.take(Net::INPUT.index())?;
/// let hidden = arena.take(Net::HIDDEN.index())?;
/// assert_eq!(arena.take(Net::OUTPUT.index()).unwrap_err(), PoolError::SlotOverlap { slot: 2, with: 0 });
/// drop(input);
/// let output = arena.take(Net::OUTPUT.index())?;
/// # let _ = (hidden, output);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlannedArena<A: DeviceAllocator>(Arc<Shared<A>>);

struct Shared<A: DeviceAllocator> {
    block: Owned<A>,
    /// The offset and size of each buffer. All lie within the block, whose size is a `usize`.
    spans: Vec<(usize, usize)>,
    stream: A::Stream,
    live: Mutex<Live>,
}

impl<A: DeviceAllocator> Clone for PlannedArena<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: DeviceAllocator> PlannedArena<A> {
    /// Takes a block of the plan's size and alignment from the pool, for work on `stream`. O(buffers) plus the
    /// pool's work.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`DeviceAllocator::allocate`].
    #[track_caller]
    pub fn new(pool: A, plan: Placed<'_>, stream: &A::Stream) -> Result<Self, PoolError> {
        // A plan larger than the address space is larger than any pool, so the request below fails.
        let bytes = usize::try_from(plan.peak()).unwrap_or(usize::MAX);
        let align = usize::try_from(plan.align()).unwrap_or(usize::MAX);
        let block = Owned::allocate(pool, bytes, align, stream)?;
        let spans = plan.offsets().iter().zip(plan.buffers());
        let spans: Vec<_> = spans.map(|(&offset, buffer)| (offset as usize, buffer.size as usize)).collect();
        let slots = std::vec![SlotState::Free; spans.len()];
        let live = Mutex::new(Live { places: BTreeMap::new(), slots });
        Ok(Self(Arc::new(Shared { block, spans, stream: stream.clone(), live })))
    }

    /// Returns the device address of the arena's first byte.
    pub fn address(&self) -> usize {
        self.0.block.address()
    }

    /// Returns the arena's length in bytes, the plan's peak.
    pub fn bytes(&self) -> usize {
        self.0.block.bytes()
    }

    /// Returns the pool that the memory comes from.
    pub fn pool(&self) -> &A {
        self.0.block.allocator()
    }

    /// Returns the stream that orders the work on the buffers.
    pub fn stream(&self) -> &A::Stream {
        &self.0.stream
    }

    /// Takes buffer `slot` of the plan.
    pub(super) fn enter_slot(&self, slot: usize) -> Result<Slot<A>, PoolError> {
        self.check(slot)?;
        self.enter(&mut self.lock(), slot)?;
        Ok(Slot { arena: self.clone(), slot, users: Uses::new() })
    }

    fn check(&self, slot: usize) -> Result<(), PoolError> {
        if slot < self.0.spans.len() { Ok(()) } else { Err(PoolError::NoSlot { slot }) }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offset and size of a buffer.
    fn span(&self, slot: usize) -> (usize, usize) {
        self.0.spans[slot]
    }

    fn enter(&self, live: &mut Live, slot: usize) -> Result<(), PoolError> {
        match live.slots[slot] {
            SlotState::Free => {}
            SlotState::Live => return Err(PoolError::SlotLive { slot }),
            SlotState::Lost => return Err(PoolError::SlotLost { slot }),
        }
        let (offset, size) = self.span(slot);
        if size > 0 {
            // Live buffers do not overlap, so the last one that starts below this end also reaches the furthest.
            if let Some((&other, &with)) = live.places.range(..offset + size).next_back() {
                if other + self.span(with).1 > offset {
                    return Err(PoolError::SlotOverlap { slot, with });
                }
            }
            live.places.insert(offset, slot);
        }
        live.slots[slot] = SlotState::Live;
        Ok(())
    }

    fn leave(&self, live: &mut Live, slot: usize) {
        let (offset, size) = self.span(slot);
        if size > 0 {
            live.places.remove(&offset);
        }
        live.slots[slot] = SlotState::Free;
    }
}

impl<A: DeviceAllocator> fmt::Debug for PlannedArena<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lock().slots.iter().filter(|&&state| state == SlotState::Live).count();
        f.debug_struct("PlannedArena")
            .field("block", &self.0.block)
            .field("live", &live)
            .finish_non_exhaustive()
    }
}

/// A buffer of an arena, taken until this is dropped.
pub(super) struct Slot<A: DeviceAllocator> {
    arena: PlannedArena<A>,
    slot: usize,
    users: Uses<A::Stream>,
}

impl<A: DeviceAllocator> Slot<A> {
    pub(super) fn number(&self) -> usize {
        self.slot
    }

    /// The block of the whole plan.
    pub(super) fn block(&self) -> &Owned<A> {
        &self.arena.0.block
    }

    pub(super) fn address(&self) -> usize {
        self.arena.address() + self.arena.span(self.slot).0
    }

    pub(super) fn bytes(&self) -> usize {
        self.arena.span(self.slot).1
    }

    pub(super) fn used_on(&self, stream: &A::Stream) {
        if stream.id() != self.arena.stream().id() {
            // If this handle is forgotten, the block as a whole still waits.
            self.block().used_on(stream);
            self.users.add(stream);
        }
    }

    /// Exchanges the buffer for another one. The old one stays after an error.
    pub(super) fn turn_into(&mut self, slot: usize) -> Result<(), PoolError> {
        self.arena.check(slot)?;
        // Another thread may take this memory at once, so settle first.
        if self.users.settle(self.arena.stream()).is_err() {
            return Err(PoolError::SlotLost { slot: self.slot });
        }
        let mut live = self.arena.lock();
        self.arena.leave(&mut live, self.slot);
        let entered = self.arena.enter(&mut live, slot);
        if entered.is_ok() {
            self.slot = slot;
        } else {
            let again = self.arena.enter(&mut live, self.slot);
            debug_assert!(again.is_ok(), "it was there just now");
        }
        drop(live);
        entered
    }
}

impl<A: DeviceAllocator> Drop for Slot<A> {
    fn drop(&mut self) {
        let settled = self.users.settle(self.arena.stream());
        let mut live = self.arena.lock();
        if settled.is_ok() {
            self.arena.leave(&mut live, self.slot);
        } else {
            // Keep the place occupied, so that no other buffer gets it.
            live.slots[self.slot] = SlotState::Lost;
        }
    }
}
