//! Blocks that a program can do without until it needs them again.

use crate::lock::{self, Lock, Locked};
use crate::memory::Memory;
use crate::units::debug;
use core::alloc::Layout;
use core::fmt;
use core::mem;
use core::ops::Deref;
use core::ptr::NonNull;
use core::slice;

/// Packs the bytes of a [`Purgeable`], and unpacks them. `()` never packs, so that reclaiming empties all blocks.
pub trait Codec {
    /// Packs `bytes` in place, and returns the packed length, or `None` if it is not shorter. The contents do not matter in that case.
    fn pack(&self, bytes: &mut [u8]) -> Option<usize>;

    /// Unpacks `packed` into `bytes`. Returns false if that fails; the program then makes the bytes again.
    fn unpack(&self, packed: &[u8], bytes: &mut [u8]) -> bool;
}

impl Codec for () {
    fn pack(&self, _: &mut [u8]) -> Option<usize> {
        None
    }

    fn unpack(&self, _: &[u8], _: &mut [u8]) -> bool {
        false
    }
}

/// Holds up to `BLOCKS` blocks of bytes that the program can make again, such as glyphs, thumbnails or parsed pages. They stay in memory
/// while there is room. When memory is short, [`Purgeable::reclaim`] packs them with the codec `C`, and then empties them, the least
/// recently used ones first. A block in use is pinned, and stays.
///
/// ```
/// use allotment::pressure::{PressureHeap, Purgeable, Shortage};
/// use allotment::{Memory, heap};
///
/// static HEAP: PressureHeap = PressureHeap::new(heap!(4096));
/// static GLYPHS: Purgeable<&PressureHeap, 8> = Purgeable::new(&HEAP, ());
///
/// HEAP.register(0, &|shortage: &Shortage| GLYPHS.reclaim(shortage.requested)).unwrap();
/// let draw = |n: usize| GLYPHS.get(n, 600, |glyph| glyph.fill(n as u8)).map(|glyph| glyph[599]);
/// assert!((0..8).all(|n| draw(n) == Some(n as u8))); // eight do not fit, so earlier ones were emptied
/// assert_eq!(draw(0), Some(0)); // drawn again
/// ```
///
/// The memory's hooks, the codec and the function that makes a block run outside the lock `L`, so they may use this value.
pub struct Purgeable<M: Memory, const BLOCKS: usize, C: Codec = (), L: Lock = lock::Default> {
    memory: M,
    codec: C,
    lock: Locked<Places<BLOCKS>, L>,
}

struct Places<const BLOCKS: usize> {
    /// Number of calls of [`Purgeable::get`].
    uses: u64,
    places: [Place; BLOCKS],
}

/// The place of a block, and the state of the block.
#[derive(Clone, Copy)]
enum Place {
    Empty,
    /// A call works on the block outside the lock.
    Busy,
    Whole {
        block: NonNull<u8>,
        size: usize,
        pins: u32,
        used: u64,
    },
    Packed {
        block: NonNull<u8>,
        /// Bytes before they were packed.
        size: usize,
        len: usize,
        used: u64,
    },
}

// SAFETY: the block belongs to the memory, which is sent with it.
unsafe impl Send for Place {}

/// Frees a block when dropped, unless the block has reached its place.
struct Unplaced<'a, M: Memory, const BLOCKS: usize, C: Codec, L: Lock> {
    all: &'a Purgeable<M, BLOCKS, C, L>,
    n: usize,
    block: Option<(NonNull<u8>, usize)>,
    /// The packed block to unpack.
    packed: Option<(NonNull<u8>, usize)>,
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> Drop for Unplaced<'_, M, BLOCKS, C, L> {
    fn drop(&mut self) {
        if let Some((block, len)) = self.packed.take() {
            self.all.free(block, len);
        }
        if let Some((block, size)) = self.block.take() {
            self.all.free(block, size);
            self.all.set(self.n, Place::Empty);
        }
    }
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> Purgeable<M, BLOCKS, C, L> {
    /// Creates a set without blocks over `memory`. All blocks are of alignment 1.
    pub const fn new(memory: M, codec: C) -> Self {
        Self { memory, codec, lock: Locked::new(Places { uses: 0, places: [Place::Empty; BLOCKS] }) }
    }

    /// Returns block `n`, pinned, of `size` bytes, which must be equal in all calls for `n`. A missing block is unpacked, or else written
    /// by `make`, which gets it zeroed. O(1), plus the time of the codec and `make`.
    ///
    /// Returns `None` if there is no memory or no place `n`, if its block has another size, and while another call makes, packs or
    /// empties it.
    pub fn get(
        &self,
        n: usize,
        size: usize,
        make: impl FnOnce(&mut [u8]),
    ) -> Option<InUse<'_, M, BLOCKS, C, L>> {
        let (before, used) = self.lock.with(|Places { uses, places }| {
            let place = places.get_mut(n)?;
            *uses += 1;
            let (before, used) = (*place, *uses);
            *place = match before {
                Place::Whole { block, size: own, pins, .. } if own == size => {
                    Place::Whole { block, size, pins: pins.checked_add(1)?, used }
                }
                Place::Packed { size: own, .. } if own == size => Place::Busy,
                Place::Empty => Place::Busy,
                _ => return None,
            };
            Some((before, used))
        })?;
        let block = match before {
            Place::Whole { block, .. } => block,
            _ => self.bring(n, size, used, before, make)?,
        };
        // SAFETY: the block has `size` initialised bytes, and nothing writes to them while it is pinned.
        let bytes = unsafe { slice::from_raw_parts(block.as_ptr(), size) };
        Some(InUse { all: self, n, bytes })
    }

    /// Makes or unpacks the block of a busy place, pinned once.
    fn bring(
        &self,
        n: usize,
        size: usize,
        used: u64,
        before: Place,
        make: impl FnOnce(&mut [u8]),
    ) -> Option<NonNull<u8>> {
        let block = layout(size).and_then(|layout| self.memory.allocate_zeroed(layout));
        let Some(block) = block else {
            self.set(n, before);
            return None;
        };
        let mut unplaced = Unplaced { all: self, n, block: Some((block, size)), packed: None };
        // SAFETY: the block is new, zeroed, and has `size` bytes.
        let bytes = unsafe { slice::from_raw_parts_mut(block.as_ptr(), size) };
        let mut is_there = false;
        if let Place::Packed { block, len, .. } = before {
            unplaced.packed = Some((block, len));
            // SAFETY: a packed block has `len` bytes, and only this call uses it.
            is_there = self.codec.unpack(unsafe { slice::from_raw_parts(block.as_ptr(), len) }, bytes);
            unplaced.packed = None;
            self.free(block, len);
        }
        if !is_there {
            bytes.fill(0);
            make(bytes);
        }
        unplaced.block = None;
        self.set(n, Place::Whole { block, size, pins: 1, used });
        Some(block)
    }

    /// Packs or empties blocks that are not pinned until `bytes` bytes are freed, and returns how many were, or 0 if there is nothing to
    /// free. Packed blocks are emptied last. Call it from a [`Reclaim`](super::Reclaim) hook, or when the system is short of memory.
    /// O(`BLOCKS`) for each block.
    pub fn reclaim(&self, bytes: usize) -> usize {
        let mut freed_bytes = 0;
        while freed_bytes < bytes {
            let Some(freed) = self.purge_one() else { break };
            freed_bytes += freed;
        }
        freed_bytes
    }

    /// Packs or empties the block whose turn it is, and returns the bytes freed.
    fn purge_one(&self) -> Option<usize> {
        let (n, place) = self.lock.with(|Places { places, .. }| {
            let turn = |place| match place {
                Place::Whole { pins: 0, used, .. } => Some((false, used)),
                Place::Packed { used, .. } => Some((true, used)),
                _ => None,
            };
            let turns = places.iter().enumerate().filter_map(|(n, place)| Some((turn(*place)?, n)));
            let (_, n) = turns.min()?;
            Some((n, mem::replace(&mut places[n], Place::Busy)))
        })?;
        let (block, size, used) = match place {
            Place::Whole { block, size, used, .. } => (block, size, Some(used)),
            Place::Packed { block, len, .. } => (block, len, None),
            _ => return None,
        };
        let mut unplaced = Unplaced { all: self, n, block: Some((block, size)), packed: None };
        let Some(used) = used else { return Some(size) };
        // SAFETY: only this call uses the block, which has `size` bytes.
        let packed = self.codec.pack(unsafe { slice::from_raw_parts_mut(block.as_ptr(), size) });
        let len = packed.filter(|&len| len < size && len > 0);
        let Some((len, (old, new))) = len.and_then(|len| Some((len, (layout(size)?, layout(len)?)))) else {
            return Some(size);
        };
        // Move the packed bytes if possible, so that the free memory is not left in pieces.
        // SAFETY: the block is live with the layout `old`, and only this call uses it. Both blocks of the copy are live.
        let moved = unsafe {
            // A failing request would be reported, although the caller's request may succeed.
            let has_room = self.memory.largest_free() >= len;
            has_room.then(|| self.memory.allocate(new)).flatten().map_or_else(
                || self.memory.change(block, old, new, &mut |_| ()),
                |moved| {
                    moved.copy_from_nonoverlapping(block, len);
                    self.memory.deallocate(block, old);
                    Some(moved)
                },
            )
        };
        if let Some(block) = moved {
            unplaced.block = None;
            self.set(n, Place::Packed { block, size, len, used });
            return Some(size - len);
        }
        Some(size)
    }

    fn set(&self, n: usize, place: Place) {
        self.lock.with(|all| all.places[n] = place);
    }

    /// Frees a block of this value.
    fn free(&self, block: NonNull<u8>, size: usize) {
        if let Some(layout) = layout(size) {
            // SAFETY: callers pass a block that they have removed from its place, with its size.
            unsafe { self.memory.deallocate(block, layout) }
        }
    }
}

/// Returns the layout of a block.
fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, 1).ok()
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> Drop for Purgeable<M, BLOCKS, C, L> {
    fn drop(&mut self) {
        for place in self.lock.get_mut().places {
            match place {
                Place::Whole { block, size, .. } => self.free(block, size),
                Place::Packed { block, len, .. } => self.free(block, len),
                Place::Empty | Place::Busy => {}
            }
        }
    }
}

#[cfg(all(feature = "std", unix))]
impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> lock::Forkable for &Purgeable<M, BLOCKS, C, L> {
    fn fork_locks(&self, visit: &mut dyn FnMut(Option<lock::ForkLock>)) {
        visit(self.lock.at_fork());
        self.memory.locks(visit);
    }
}

debug!([M: Memory, const BLOCKS: usize, C: Codec, L: Lock] Purgeable<M, BLOCKS, C, L>, |self| blocks: BLOCKS);

/// The bytes of a block of a [`Purgeable`], pinned until this value is dropped.
pub struct InUse<'a, M: Memory, const BLOCKS: usize, C: Codec, L: Lock> {
    all: &'a Purgeable<M, BLOCKS, C, L>,
    n: usize,
    bytes: &'a [u8],
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> Deref for InUse<'_, M, BLOCKS, C, L> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> Drop for InUse<'_, M, BLOCKS, C, L> {
    fn drop(&mut self) {
        self.all.lock.with(|all| {
            if let Place::Whole { pins, .. } = &mut all.places[self.n] {
                *pins -= 1;
            }
        });
    }
}

impl<M: Memory, const BLOCKS: usize, C: Codec, L: Lock> fmt::Debug for InUse<'_, M, BLOCKS, C, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.bytes, f)
    }
}
