//! Static plans in a device's memory.

use super::stream::follow;
use super::{Buffer, Pool, PoolError, Source, Stream};
use crate::placement::Space;
use crate::plan::Placed;
use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Why a buffer of a plan cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotError {
    /// The plan has no buffer of this number.
    Unknown {
        /// The number.
        slot: usize,
    },
    /// It is live already.
    Live {
        /// Its number.
        slot: usize,
    },
    /// Another one is live where it would lie: their lifetimes are apart in the plan, and were not in the program.
    Overlap {
        /// Its number.
        slot: usize,
        /// The number of the other.
        with: usize,
    },
    /// It is asked for work on another stream than that of the arena.
    Stream,
    /// It is shorter than what was asked for.
    Length {
        /// Bytes that it has.
        have: usize,
        /// Bytes asked for.
        asked: usize,
    },
    /// Its planned offset is not as aligned as typed buffers are, to 256 bytes.
    Align {
        /// Its number.
        slot: usize,
    },
    /// The driver has failed to order its last use on another stream, so that it stays out of use.
    Lost {
        /// Its number.
        slot: usize,
    },
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { slot } => write!(f, "the plan has no buffer {slot}"),
            Self::Live { slot } => write!(f, "buffer {slot} of the plan is live already"),
            Self::Overlap { slot, with } => {
                write!(f, "buffer {slot} of the plan lies where buffer {with} is live still")
            }
            Self::Stream => f.write_str("the arena of the plan is for work on another stream"),
            Self::Length { have, asked } => {
                write!(f, "{asked} bytes asked for, the plan's buffer has {have}")
            }
            Self::Align { slot } => write!(f, "buffer {slot} of the plan is not aligned to 256 bytes"),
            Self::Lost { slot } => {
                write!(
                    f,
                    "buffer {slot} of the plan may be in use on another stream, and the driver has failed"
                )
            }
        }
    }
}

impl core::error::Error for SlotError {}

/// Which buffers of a plan are live.
struct Live {
    /// Those that have bytes, by their offset.
    places: BTreeMap<usize, usize>,
    slots: Vec<SlotState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Live,
    Lost,
}

/// A static plan in one block of a pool: every buffer lies at its planned offset.
///
/// The plan is one that the compiler made ([`plan::Plan`](crate::plan::Plan), [`arena!`](crate::arena!)), or
/// one of [`plan::OwnedPlan`](crate::plan::OwnedPlan). What the program takes is checked against what is live: two
/// buffers that share memory cannot be had at once, whatever the plan says of their steps.
///
/// The work on all buffers is in the order of the arena's stream. A buffer that is used on another one
/// ([`PlannedBuffer::used_on`]) makes the arena's stream wait for that, on the device, when it is dropped.
///
/// ```
/// use allotment::arena;
/// use allotment::plan::Planned;
/// use allotment::pool::{DevicePool, PlannedArena, PoolOptions, SlotError};
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
/// assert_eq!(arena.take(Net::OUTPUT.index()).unwrap_err(), SlotError::Overlap { slot: 2, with: 0 });
/// drop(input);
/// let output = arena.take(Net::OUTPUT.index())?;
/// # let _ = (hidden, output);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlannedArena<'p, P: Space, S: Source> {
    block: Buffer<'p, P, S>,
    plan: Placed<'p>,
    stream: S::Stream,
    live: Mutex<Live>,
}

impl<'p, P: Space, S: Source> PlannedArena<'p, P, S> {
    /// Takes a block of the plan's size and alignment from the pool, for work on `stream`. O(n) beside that.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    #[track_caller]
    pub fn new(pool: &'p Pool<P, S>, plan: Placed<'p>, stream: &S::Stream) -> Result<Self, PoolError> {
        // What exceeds the address space exceeds the pool.
        let bytes = usize::try_from(plan.peak()).unwrap_or(usize::MAX);
        let align = usize::try_from(plan.align()).unwrap_or(usize::MAX);
        let block = pool.allocate_aligned(bytes, align, stream)?;
        let slots = std::vec![SlotState::Free; plan.buffers().len()];
        let live = Mutex::new(Live { places: BTreeMap::new(), slots });
        Ok(Self { block, plan, stream: stream.clone(), live })
    }

    /// The plan.
    pub fn plan(&self) -> Placed<'p> {
        self.plan
    }

    /// Address of the arena's first byte.
    pub fn address(&self) -> usize {
        self.block.address()
    }

    /// Its length in bytes: the plan's peak.
    pub fn bytes(&self) -> usize {
        self.block.bytes()
    }

    /// The pool that its memory is from.
    pub fn pool(&self) -> &'p Pool<P, S> {
        self.block.pool()
    }

    /// The stream that orders the work on its buffers.
    pub fn stream(&self) -> &S::Stream {
        &self.stream
    }

    /// The name of buffer `slot`, which need not be free.
    ///
    /// # Errors
    ///
    /// [`SlotError::Unknown`].
    pub fn slot(&self, slot: usize) -> Result<PlannedSlot<'_, 'p, P, S>, SlotError> {
        if slot < self.plan.buffers().len() {
            Ok(PlannedSlot { arena: self, slot })
        } else {
            Err(SlotError::Unknown { slot })
        }
    }

    /// Buffer `slot` of the plan, until it is dropped. O(log live).
    ///
    /// # Errors
    ///
    /// [`SlotError`] if there is none, if it is live, or if a live one lies where it shall.
    pub fn take(&self, slot: usize) -> Result<PlannedBuffer<'_, 'p, P, S>, SlotError> {
        self.slot(slot)?;
        self.enter(&mut self.lock(), slot)?;
        Ok(PlannedBuffer { arena: self, slot, users: Mutex::new(Vec::new()) })
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offset and size of a buffer, which lie within the block, whose size is a `usize`.
    fn span(&self, slot: usize) -> (usize, usize) {
        (self.plan.offsets()[slot] as usize, self.plan.buffers()[slot].size as usize)
    }

    fn enter(&self, live: &mut Live, slot: usize) -> Result<(), SlotError> {
        match live.slots[slot] {
            SlotState::Free => {}
            SlotState::Live => return Err(SlotError::Live { slot }),
            SlotState::Lost => return Err(SlotError::Lost { slot }),
        }
        let (offset, size) = self.span(slot);
        if size > 0 {
            // Those that are live do not overlap, so the nearest below the end reaches the furthest.
            if let Some((&other, &with)) = live.places.range(..offset + size).next_back() {
                if other + self.span(with).1 > offset {
                    return Err(SlotError::Overlap { slot, with });
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

    /// Makes the arena's stream wait for the others. Whether the driver did it.
    fn settle(&self, users: &mut Vec<S::Stream>) -> bool {
        while let Some(user) = users.last() {
            if follow(&self.stream, user).is_err() {
                return false;
            }
            users.pop();
        }
        true
    }
}

impl<P: Space, S: Source> fmt::Debug for PlannedArena<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lock().slots.iter().filter(|&&state| state == SlotState::Live).count();
        f.debug_struct("PlannedArena")
            .field("block", &self.block)
            .field("live", &live)
            .finish_non_exhaustive()
    }
}

/// The name of a buffer of a [`PlannedArena`], with which typed buffers of the module `gpu` are made.
pub struct PlannedSlot<'a, 'p, P: Space, S: Source> {
    arena: &'a PlannedArena<'p, P, S>,
    slot: usize,
}

impl<P: Space, S: Source> Clone for PlannedSlot<'_, '_, P, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Space, S: Source> Copy for PlannedSlot<'_, '_, P, S> {}

impl<P: Space, S: Source> fmt::Debug for PlannedSlot<'_, '_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlannedSlot").field(&self.slot).finish()
    }
}

impl<'a, 'p, P: Space, S: Source> PlannedSlot<'a, 'p, P, S> {
    /// Its number in the plan.
    pub fn number(self) -> usize {
        self.slot
    }

    /// The buffer for `bytes` bytes of work on `stream`.
    ///
    /// # Errors
    ///
    /// As [`PlannedArena::take`], and if it is too short or of another stream.
    pub fn take(self, bytes: usize, stream: &S::Stream) -> Result<PlannedBuffer<'a, 'p, P, S>, SlotError> {
        if stream.id() != self.arena.stream.id() {
            return Err(SlotError::Stream);
        }
        let (_, have) = self.arena.span(self.slot);
        if bytes > have {
            return Err(SlotError::Length { have, asked: bytes });
        }
        self.arena.take(self.slot)
    }
}

/// A buffer of a [`PlannedArena`], which others that share its memory can be had after when it is dropped.
pub struct PlannedBuffer<'a, 'p, P: Space, S: Source> {
    arena: &'a PlannedArena<'p, P, S>,
    slot: usize,
    /// Other streams that it is used on.
    users: Mutex<Vec<S::Stream>>,
}

impl<'a, 'p, P: Space, S: Source> PlannedBuffer<'a, 'p, P, S> {
    /// Its number in the plan.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The arena that it is in.
    pub fn arena(&self) -> &'a PlannedArena<'p, P, S> {
        self.arena
    }

    /// Address of its first byte, as the device counts.
    pub fn address(&self) -> usize {
        self.arena.address() + self.arena.span(self.slot).0
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> usize {
        self.arena.span(self.slot).1
    }

    /// Notes that work on `stream` uses the buffer: what lies there next comes after it.
    pub fn used_on(&self, stream: &S::Stream) {
        if stream.id() == self.arena.stream.id() {
            return;
        }
        // Should this handle be forgotten, the block as a whole still waits.
        self.arena.block.used_on(stream);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.iter().all(|user| user.id() != stream.id()) {
            users.push(stream.clone());
        }
    }

    /// Gives this buffer up for another one of the plan, both in one act: for an operator that works in place, whose
    /// output lies where its input does. Uses on other streams are waited for as when it is dropped.
    ///
    /// # Errors
    ///
    /// As [`PlannedArena::take`]; this buffer comes back with the error.
    pub fn turn_into(mut self, slot: usize) -> Result<Self, (SlotError, Self)> {
        if let Err(error) = self.arena.slot(slot) {
            return Err((error, self));
        }
        // What this one leaves may be another's at once.
        if !self.arena.settle(self.users.get_mut().unwrap_or_else(PoisonError::into_inner)) {
            return Err((SlotError::Lost { slot: self.slot }, self));
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

impl<P: Space, S: Source> Drop for PlannedBuffer<'_, '_, P, S> {
    fn drop(&mut self) {
        let users = self.users.get_mut().unwrap_or_else(PoisonError::into_inner);
        let settled = self.arena.settle(users);
        let mut live = self.arena.lock();
        if settled {
            self.arena.leave(&mut live, self.slot);
        } else {
            // It keeps its place, so that nobody else gets that.
            live.slots[self.slot] = SlotState::Lost;
        }
    }
}

impl<P: Space, S: Source> fmt::Debug for PlannedBuffer<'_, '_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        f.debug_struct("PlannedBuffer")
            .field("slot", &self.slot)
            .field("address", &address)
            .finish_non_exhaustive()
    }
}
