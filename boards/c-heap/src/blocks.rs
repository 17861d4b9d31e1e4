//! A heap whose blocks are freed by their address alone.

use allotment::lock::Lock;
use allotment::observe::{Counters, Statistics};
use allotment::placement::{MicroTlsf, Placement};
use allotment::{Region, RegionError, Stats};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

/// Bytes of a granule, of which blocks take whole ones.
const GRANULE: usize = 8;

/// Bits of a word of the map.
const WORD: usize = 32;

/// Words in which a free looks for the end of a block.
const LOOKS: usize = 9;

/// Bytes of the longest block whose end is always in these words. Longer ones have a [`Header`].
const LARGE: usize = (LOOKS * WORD - (WORD - 1)) * GRANULE;

/// How many regions there may be.
const REGIONS: usize = 4;

/// How many blocks can be kept.
const KEPT: usize = 4;

/// Kinds of requests.
const SMALL: u8 = 0;
const ALIGNED: u8 = 1;
const LONG: u8 = 2;

/// What a large block has in front of it.
#[repr(C)]
struct Header {
    /// Bytes of the block.
    bytes: usize,
    /// Bytes from the start of the placement's block to this one.
    offset: usize,
}

const _: () = assert!(size_of::<Header>() <= GRANULE || size_of::<usize>() > 4);

/// A region, and the map behind its granules.
///
/// ```text
///  granules   |  a block of 5     |  one of 2  |     free      | ..
///  map      1   0   0   0   1     1     1     0   0   0   0
/// ```
///
/// A bit is set for the first and for the last granule of each live block, which has two at least. A free whose address has no bit is refused:
/// the block was freed before, or none ever started there. Only the address of a block's last granule is taken for a start.
#[derive(Clone, Copy)]
struct Area {
    start: usize,
    bytes: usize,
    /// Where the word for the address 0 would be.
    map: *mut u32,
}

impl Area {
    const NONE: Self = Self { start: 0, bytes: 0, map: ptr::null_mut() };

    /// Returns the map's word for an address.
    #[inline(always)]
    fn word(&self, address: usize) -> *mut u32 {
        self.map.wrapping_add(address / (GRANULE * WORD))
    }

    /// Flips the bit of the granule at an address.
    #[inline(always)]
    unsafe fn flip(&self, address: usize) {
        // SAFETY: the address lies in the area, whose map has a bit for each granule.
        unsafe { *self.word(address) ^= 0x8000_0000 >> (address / GRANULE % WORD) }
    }

    /// Returns the bytes of the block that starts at an address, as far as the map's next words tell: `Some(None)` if it is longer, and
    /// `None` if none starts there.
    #[inline(always)]
    unsafe fn measure(&self, address: usize) -> Option<Option<usize>> {
        let first = address / GRANULE % WORD;
        // SAFETY: the address lies in the area, and only words of its map are read.
        unsafe {
            let mut word = self.word(address);
            let bits = *word << first;
            if bits & 0x8000_0000 == 0 || address % GRANULE != 0 {
                return None;
            }
            let bits = bits << 1;
            if bits != 0 {
                return Some(Some((bits.leading_zeros() as usize + 2) * GRANULE));
            }
            let last = self.word(self.start + self.bytes - 1);
            let mut granules = WORD - first;
            for _ in 1..LOOKS {
                if word == last {
                    break;
                }
                word = word.add(1);
                if *word != 0 {
                    return Some(Some((granules + (*word).leading_zeros() as usize + 1) * GRANULE));
                }
                granules += WORD;
            }
        }
        Some(None)
    }
}

struct State {
    placement: MicroTlsf<REGIONS>,
    counters: Counters,
    areas: [Area; REGIONS],
    kept: Kept,
}

/// Large blocks that stay available for requests of certain sizes. All of them are live to the placement and in the map.
struct Kept {
    least: usize,
    most: usize,
    /// Their addresses, the next ones while they are free; null where there is none.
    places: [*mut u8; KEPT],
}

impl Kept {
    /// Returns whether a request may get a kept block.
    fn serves(&self, size: usize) -> bool {
        self.least <= size && size <= self.most
    }

    /// Returns the place of a kept block, and whether it is free.
    fn place(&mut self, block: *mut u8) -> Option<(&mut *mut u8, bool)> {
        let place = self.places.iter_mut().find(|place| place.addr() & !1 == block.addr())?;
        let free = place.addr() != block.addr();
        Some((place, free))
    }
}

/// A live block as the placement knows it.
struct Found {
    area: Area,
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes in front of the caller's.
    offset: usize,
}

impl State {
    /// Returns the area that an address lies in.
    #[inline(always)]
    fn area(&self, address: usize) -> Option<&Area> {
        self.areas.iter().find(|area| address.wrapping_sub(area.start) < area.bytes)
    }

    /// Returns the live block whose bytes for the caller start at an address.
    #[inline(always)]
    unsafe fn find(&mut self, block: NonNull<u8>) -> Option<Found> {
        let area = *self.area(block.addr().get())?;
        // SAFETY: the address lies in the area; a large block has its header.
        unsafe {
            let bytes = area.measure(block.addr().get())?;
            match bytes {
                Some(bytes) if bytes <= LARGE => Some(Found { area, start: block, bytes, offset: 0 }),
                _ => self.large(area, block),
            }
        }
    }

    /// Returns a large block; `None` if it is a kept one that is free.
    #[cold]
    #[inline(never)]
    unsafe fn large(&mut self, area: Area, block: NonNull<u8>) -> Option<Found> {
        if matches!(self.kept.place(block.as_ptr()), Some((_, true))) {
            return None;
        }
        // SAFETY: the caller guarantees a large block.
        let Header { bytes, offset } = unsafe { block.cast::<Header>().sub(1).read() };
        // SAFETY: as above; that many bytes are in front.
        Some(Found { area, start: unsafe { block.sub(offset) }, bytes, offset })
    }

    /// Marks the block as free if it is a kept one.
    #[cold]
    #[inline(never)]
    fn keep_again(&mut self, block: NonNull<u8>) -> bool {
        let place = self.kept.place(block.as_ptr());
        place.map(|(place, _)| *place = block.as_ptr().wrapping_add(1)).is_some()
    }

    /// Frees the granules of a block, and takes it out of the map.
    #[inline(always)]
    unsafe fn free(&mut self, found: &Found) -> bool {
        let address = found.start.addr().get() + found.offset;
        // SAFETY: the caller guarantees that the block was found and is not used any more.
        unsafe {
            found.area.flip(address);
            found.area.flip(address + found.bytes - GRANULE);
            let layout = plain(found.bytes + found.offset);
            self.placement.free(found.start, layout, &mut self.counters).is_ok()
        }
    }
}

/// Returns the layout of so many bytes.
#[inline(always)]
fn plain(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and blocks are shorter than half of the addresses.
    unsafe { Layout::from_size_align_unchecked(bytes, GRANULE) }
}

/// Rounds a request up to what a block can have: two granules at least.
#[inline(always)]
fn rounded(size: usize) -> usize {
    (size.max(GRANULE + 1) + (GRANULE - 1)) & !(GRANULE - 1)
}

/// The heap.
pub struct Heap<L> {
    lock: L,
    state: UnsafeCell<State>,
}

// SAFETY: the state is accessed only under the lock.
unsafe impl<L: Lock + Sync> Sync for Heap<L> {}

impl<L: Lock> Heap<L> {
    /// Creates a heap without memory.
    pub const fn new() -> Self {
        let state = State {
            placement: <MicroTlsf<REGIONS> as Placement>::EMPTY,
            counters: <Counters as Statistics>::EMPTY,
            areas: [Area::NONE; REGIONS],
            kept: Kept { least: 0, most: 0, places: [ptr::null_mut(); KEPT] },
        };
        Self { lock: L::INIT, state: UnsafeCell::new(state) }
    }

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        // SAFETY: the lock excludes all others, and no closure of this module calls back into the heap.
        self.lock.with(|| f(unsafe { &mut *self.state.get() }))
    }

    /// Adds memory.
    ///
    /// # Safety
    ///
    /// The bytes must be valid for reads and writes, and nothing else may use them.
    pub unsafe fn add(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        let skip = start.addr().wrapping_neg() % GRANULE;
        // A word of the map is for 32 granules, and the first and the last word may be for fewer.
        let granules = bytes.saturating_sub(skip) / GRANULE;
        let words = granules / (WORD + 1) + 2;
        let room =
            (granules * GRANULE).checked_sub(words.next_multiple_of(2) * 4).ok_or(RegionError::TooSmall)?;
        let start = start.wrapping_add(skip);
        let map = start.wrapping_add(room).cast::<u32>();
        self.with(|state| {
            let area = state.areas.iter_mut().find(|area| area.bytes == 0);
            let area = area.ok_or(RegionError::TooMany { max: REGIONS })?;
            // SAFETY: the caller hands the memory over; the map lies behind what the placement gets.
            unsafe {
                state.placement.claim(Region::new(start, room), &mut state.counters)?;
                map.write_bytes(0, words);
            }
            let map = map.wrapping_sub(start.addr() / (GRANULE * WORD));
            *area = Area { start: start.addr(), bytes: room, map };
            Ok(())
        })
    }

    /// Allocates `size` bytes aligned to `align`, a power of two of 8 at least.
    #[inline(always)]
    pub fn allocate(&self, size: usize, align: usize) -> *mut u8 {
        if size > LARGE {
            return self.allocate_large(size, align);
        }
        let bytes = rounded(size);
        if align <= GRANULE {
            return self.allocate_at::<SMALL>(plain(bytes), 0);
        }
        // SAFETY: the size is small, and the caller guarantees the alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(bytes, align) };
        self.allocate_at::<ALIGNED>(layout, 0)
    }

    /// Allocates a block for a layout, and enters what is behind its first `offset` bytes into the map. Each `KIND` of request has code
    /// of its own, which is shorter for small ones without an alignment.
    #[inline(always)]
    fn allocate_at<const KIND: u8>(&self, layout: Layout, offset: usize) -> *mut u8 {
        self.with(|state| {
            let Some(block) = state.placement.allocate_fast(layout, &mut state.counters) else {
                state.counters.failed(layout.size());
                return ptr::null_mut();
            };
            let start = block.as_ptr().wrapping_add(offset);
            // SAFETY: blocks lie in areas.
            unsafe {
                let area = state.area(block.addr().get()).unwrap_unchecked();
                area.flip(start.addr());
                area.flip(block.addr().get() + layout.size() - GRANULE);
            }
            start
        })
    }

    #[inline(never)]
    fn allocate_large(&self, size: usize, align: usize) -> *mut u8 {
        if size > isize::MAX as usize / 2 || align > isize::MAX as usize / 4 {
            self.with(|state| state.counters.failed(size));
            return ptr::null_mut();
        }
        let kept = self.with(|state| {
            let serves = state.kept.serves(size) && align <= size_of::<Header>();
            let place = state.kept.places.iter_mut().find(|place| serves && place.addr() % 2 != 0)?;
            *place = place.wrapping_sub(1);
            Some(*place)
        });
        if let Some(block) = kept {
            return block;
        }
        let (bytes, offset) = (rounded(size), align.max(size_of::<Header>()));
        // SAFETY: both are far below the largest layout.
        let layout = unsafe { Layout::from_size_align_unchecked(bytes + offset, align) };
        let start = self.allocate_at::<LONG>(layout, offset);
        if !start.is_null() {
            // SAFETY: the block has room for it in front.
            unsafe { start.cast::<Header>().sub(1).write(Header { bytes, offset }) };
        }
        start
    }

    /// Frees a block. Returns false, with nothing done, if none starts there.
    ///
    /// # Safety
    ///
    /// If one does, it must not be used any more.
    #[inline(always)]
    pub unsafe fn free(&self, block: NonNull<u8>) -> bool {
        // SAFETY: the caller's contract.
        self.with(|state| unsafe {
            match state.find(block) {
                Some(found) if found.offset > 0 && state.keep_again(block) => true,
                Some(found) => state.free(&found),
                None => false,
            }
        })
    }

    /// Returns the bytes of a block; `None` if none starts there.
    pub fn size(&self, block: NonNull<u8>) -> Option<usize> {
        // SAFETY: the map tells whether a block starts there.
        self.with(|state| unsafe { state.find(block) }.map(|found| found.bytes))
    }

    /// Changes a block's size in place. Returns whether that was possible, and the bytes that it had; `None` if no block starts there.
    ///
    /// # Safety
    ///
    /// Bytes that are cut off must not be used any more.
    pub unsafe fn resize(&self, block: NonNull<u8>, size: usize) -> Option<(bool, usize)> {
        self.with(|state| {
            // SAFETY: the map tells whether a block starts there; the caller's contract.
            unsafe {
                let found = state.find(block)?;
                if found.offset > 0 && state.kept.place(block.as_ptr()).is_some() {
                    return Some((state.kept.serves(size), found.bytes));
                }
                if size > isize::MAX as usize / 2 || (size > LARGE) != (found.offset > 0) {
                    return Some((false, found.bytes));
                }
                let (old, new) = (plain(found.bytes + found.offset), rounded(size));
                let counters = &mut state.counters;
                let done = state.placement.resize(found.start, old, new + found.offset, counters);
                if done {
                    let last = block.addr().get() - GRANULE;
                    found.area.flip(last + found.bytes);
                    found.area.flip(last + new);
                    if found.offset > 0 {
                        (*block.cast::<Header>().sub(1).as_ptr()).bytes = new;
                    }
                }
                Some((done, found.bytes))
            }
        })
    }

    /// Keeps `count` blocks of `most` bytes for requests of `least` bytes and more. Returns false, with nothing kept, if there is no room, if
    /// blocks are kept already, or if `least` is not above `LARGE`.
    pub fn keep(&self, least: usize, most: usize, count: usize) -> bool {
        let valid = LARGE < least && least <= most && (1..=KEPT).contains(&count);
        if !valid || self.with(|state| state.kept.most != 0) {
            return false;
        }
        let mut blocks = [ptr::null_mut(); KEPT];
        blocks[..count].fill_with(|| self.allocate_large(most, GRANULE));
        let room = blocks[..count].iter().all(|block| !block.is_null());
        if room {
            let places = blocks.map(|block| if block.is_null() { block } else { block.wrapping_add(1) });
            self.with(|state| state.kept = Kept { least, most, places });
        } else {
            for block in blocks.into_iter().filter_map(NonNull::new) {
                // SAFETY: the block is live, and nothing else knows of it.
                unsafe { self.free(block) };
            }
        }
        room
    }

    /// Returns the figures of this moment, and how many bytes of kept blocks are free.
    pub fn stats(&self) -> (Option<Stats>, usize) {
        self.with(|state| {
            let free =
                state.kept.places.iter().filter(|place| place.addr() % 2 != 0).count() * state.kept.most;
            let largest = state.placement.largest_free().max(if free > 0 { state.kept.most } else { 0 });
            (state.counters.snapshot(largest), free)
        })
    }
}
