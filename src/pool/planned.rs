//! Static plans in a device's memory.

#![forbid(unsafe_code)]

use super::allocator::{DeviceAllocator, Owned};
use super::shown::debug_as_display;
use super::stream::follow;
use super::{PoolError, Stream};
use crate::plan::{Placed, PlanError};
use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Why a buffer of a plan is not available, or an iteration has no new plan.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlannedError {
    /// The plan has no buffer with this number.
    Unknown {
        /// The number that was requested.
        slot: usize,
    },
    /// The buffer is already live.
    Live {
        /// The buffer's number.
        slot: usize,
    },
    /// Another live buffer occupies its memory: their lifetimes do not overlap in the plan, but they do in the
    /// program.
    Overlap {
        /// The buffer's number.
        slot: usize,
        /// The number of the other buffer.
        with: usize,
    },
    /// It was requested for work on a stream other than the arena's.
    Stream,
    /// The buffer is shorter than requested.
    Length {
        /// The buffer's length in bytes.
        have: usize,
        /// The requested length in bytes.
        asked: usize,
    },
    /// Its planned offset is not aligned to 256 bytes, as typed buffers require.
    Align {
        /// The buffer's number.
        slot: usize,
    },
    /// The driver failed to order the buffer's last use on another stream, so the buffer stays out of use.
    Lost {
        /// The buffer's number.
        slot: usize,
    },
    /// Buffers of the old plan are live. The old plan stays, and the iteration is served from it.
    Busy {
        /// The number of these buffers.
        live: usize,
    },
    /// The pool has no room for the plan. All requests of a [`Pattern`](super::Pattern) go to the pool.
    Pool(PoolError),
    /// The requests cannot be planned. All requests of a [`Pattern`](super::Pattern) go to the pool.
    Plan(PlanError),
}

impl fmt::Display for PlannedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { slot } => write!(f, "the plan has no buffer {slot}"),
            Self::Live { slot } => write!(f, "buffer {slot} of the plan is already live"),
            Self::Overlap { slot, with } => {
                write!(f, "buffer {slot} of the plan shares memory with buffer {with}, which is still live")
            }
            Self::Stream => f.write_str("the plan's arena is for work on another stream"),
            Self::Length { have, asked } => {
                write!(f, "{asked} bytes requested, but the plan's buffer has {have}")
            }
            Self::Align { slot } => write!(f, "buffer {slot} of the plan is not aligned to 256 bytes"),
            Self::Lost { slot } => {
                write!(
                    f,
                    "buffer {slot} of the plan may still be in use on another stream, because the driver failed"
                )
            }
            Self::Busy { live } => write!(f, "{live} buffers of the old plan are still live"),
            Self::Pool(error) => write!(f, "no room for the plan: {error}"),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

debug_as_display!(PlannedError);
impl core::error::Error for PlannedError {}

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
/// ([`PlannedBuffer::used_on`]) is dropped, the arena's stream waits for that use, on the device.
///
/// ```
/// use allotment::arena;
/// use allotment::plan::Planned;
/// use allotment::pool::{DevicePool, PlannedArena, PoolOptions, PlannedError};
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
/// assert_eq!(arena.take(Net::OUTPUT.index()).unwrap_err(), PlannedError::Overlap { slot: 2, with: 0 });
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

    /// The block of the whole plan.
    #[cfg(feature = "gpu")]
    pub(crate) fn block(&self) -> &Owned<A> {
        &self.0.block
    }

    /// Returns the stream that orders the work on the buffers.
    pub fn stream(&self) -> &A::Stream {
        &self.0.stream
    }

    /// Returns a handle to buffer `slot`, whether it is free or not.
    ///
    /// # Errors
    ///
    /// [`PlannedError::Unknown`] if the plan has no such buffer.
    pub fn slot(&self, slot: usize) -> Result<PlannedSlot<A>, PlannedError> {
        if slot < self.0.spans.len() {
            Ok(PlannedSlot { arena: self.clone(), slot })
        } else {
            Err(PlannedError::Unknown { slot })
        }
    }

    /// Takes buffer `slot` of the plan, which stays live until it is dropped. O(log live buffers).
    ///
    /// # Errors
    ///
    /// [`PlannedError`] if there is no such buffer, if it is already live or lost, or if a live one shares its memory.
    pub fn take(&self, slot: usize) -> Result<PlannedBuffer<A>, PlannedError> {
        self.slot(slot)?;
        self.enter(&mut self.lock(), slot)?;
        Ok(PlannedBuffer { arena: self.clone(), slot, users: Mutex::new(Vec::new()) })
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offset and size of a buffer.
    fn span(&self, slot: usize) -> (usize, usize) {
        self.0.spans[slot]
    }

    fn enter(&self, live: &mut Live, slot: usize) -> Result<(), PlannedError> {
        match live.slots[slot] {
            SlotState::Free => {}
            SlotState::Live => return Err(PlannedError::Live { slot }),
            SlotState::Lost => return Err(PlannedError::Lost { slot }),
        }
        let (offset, size) = self.span(slot);
        if size > 0 {
            // Live buffers do not overlap, so the last one that starts below this end also reaches the furthest.
            if let Some((&other, &with)) = live.places.range(..offset + size).next_back() {
                if other + self.span(with).1 > offset {
                    return Err(PlannedError::Overlap { slot, with });
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

    /// Makes the arena's stream wait for the others. Returns whether the driver did so.
    fn settle(&self, users: &mut Vec<A::Stream>) -> bool {
        while let Some(user) = users.last() {
            if follow(&self.0.stream, user).is_err() {
                return false;
            }
            users.pop();
        }
        true
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

/// A handle to a buffer of a [`PlannedArena`], from which typed buffers of the module `gpu` are made.
pub struct PlannedSlot<A: DeviceAllocator> {
    arena: PlannedArena<A>,
    slot: usize,
}

impl<A: DeviceAllocator> fmt::Debug for PlannedSlot<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlannedSlot").field(&self.slot).finish()
    }
}

impl<A: DeviceAllocator> PlannedSlot<A> {
    /// Returns the buffer's number in the plan.
    pub fn number(&self) -> usize {
        self.slot
    }

    /// Takes the buffer for `bytes` bytes of work on `stream`. O(log live buffers).
    ///
    /// # Errors
    ///
    /// [`PlannedError::Stream`] if `stream` is not the arena's, [`PlannedError::Length`] if the buffer is shorter, and
    /// the errors of [`PlannedArena::take`].
    pub fn take(&self, bytes: usize, stream: &A::Stream) -> Result<PlannedBuffer<A>, PlannedError> {
        if stream.id() != self.arena.stream().id() {
            return Err(PlannedError::Stream);
        }
        let (_, have) = self.arena.span(self.slot);
        if bytes > have {
            return Err(PlannedError::Length { have, asked: bytes });
        }
        self.arena.take(self.slot)
    }
}

/// A live buffer of a [`PlannedArena`]. Dropping it makes room for the buffers that share its memory.
pub struct PlannedBuffer<A: DeviceAllocator> {
    arena: PlannedArena<A>,
    slot: usize,
    /// Other streams that use the buffer.
    users: Mutex<Vec<A::Stream>>,
}

impl<A: DeviceAllocator> PlannedBuffer<A> {
    /// Returns the buffer's number in the plan.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the arena that the buffer lies in.
    pub fn arena(&self) -> &PlannedArena<A> {
        &self.arena
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> usize {
        self.arena.address() + self.arena.span(self.slot).0
    }

    /// Returns the length in bytes.
    pub fn bytes(&self) -> usize {
        self.arena.span(self.slot).1
    }

    /// Notes that work on `stream` uses the buffer. The next buffer at this address is ordered after that work.
    pub fn used_on(&self, stream: &A::Stream) {
        if stream.id() == self.arena.stream().id() {
            return;
        }
        // If this handle is forgotten, the block as a whole still waits.
        self.arena.0.block.used_on(stream);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.iter().all(|user| user.id() != stream.id()) {
            users.push(stream.clone());
        }
    }

    /// Exchanges this buffer for another one of the plan in one step: for an operator that works in place, whose
    /// output lies where its input does. Uses on other streams are waited for as in a drop, on the device.
    ///
    /// # Errors
    ///
    /// The [`PlannedError`] of [`PlannedArena::take`], together with this buffer, which stays live.
    pub fn turn_into(mut self, slot: usize) -> Result<Self, (PlannedError, Self)> {
        if let Err(error) = self.arena.slot(slot) {
            return Err((error, self));
        }
        // Another thread may take this memory at once, so settle first.
        if !self.arena.settle(self.users.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            return Err((PlannedError::Lost { slot: self.slot }, self));
        }
        let mut live = self.arena.lock();
        self.arena.leave(&mut live, self.slot);
        let entered = self.arena.enter(&mut live, slot);
        if let Err(error) = entered {
            let again = self.arena.enter(&mut live, self.slot);
            debug_assert!(again.is_ok(), "it was there just now");
            drop(live);
            return Err((error, self));
        }
        drop(live);
        self.slot = slot;
        Ok(self)
    }
}

impl<A: DeviceAllocator> Drop for PlannedBuffer<A> {
    fn drop(&mut self) {
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        let settled = self.arena.settle(users);
        let mut live = self.arena.lock();
        if settled {
            self.arena.leave(&mut live, self.slot);
        } else {
            // Keep the place occupied, so that no other buffer gets it.
            live.slots[self.slot] = SlotState::Lost;
        }
    }
}

impl<A: DeviceAllocator> fmt::Debug for PlannedBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        f.debug_struct("PlannedBuffer")
            .field("slot", &self.slot)
            .field("address", &address)
            .finish_non_exhaustive()
    }
}
