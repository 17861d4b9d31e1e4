//! Magazines on their way between threads.

use super::classes::{CLASSES, SIZES};
use crate::heap::Heap;
use crate::lock;
use crate::observe::Counters;
use crate::placement::Tiered;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A place for the address of a free block.
pub type Round = MaybeUninit<NonNull<u8>>;

/// An array of free blocks of one class. It is itself a block of the heap, as long as the class's capacity.
pub type Magazine = *mut Round;

/// Magazines that lie side by side; full ones and empty ones apart.
const PLACES: usize = 4;

/// Addresses that the largest magazine has.
const MOST: usize = 64;

/// A few places for magazines. Any thread may put one in or take one out; none of them waits.
struct Rack([AtomicPtr<Round>; PLACES]);

impl Rack {
    const fn empty() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; PLACES])
    }

    /// Puts a magazine in. Whether there was a place.
    fn put(&self, magazine: Magazine) -> bool {
        self.0.iter().any(|place| {
            // The first look spares others the exclusive access. `Release`: whoever takes the magazine sees what it
            // holds, and is done with what the blocks held.
            place.load(Ordering::Relaxed).is_null()
                && place
                    .compare_exchange(ptr::null_mut(), magazine, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Takes a magazine out.
    fn take(&self) -> Option<Magazine> {
        self.0.iter().find_map(|place| {
            if place.load(Ordering::Relaxed).is_null() {
                return None;
            }
            // A swap cannot take a magazine for another that was here before it. `Acquire`: see `put`.
            let magazine = place.swap(ptr::null_mut(), Ordering::Acquire);
            (!magazine.is_null()).then_some(magazine)
        })
    }
}

/// The magazines of one class, on cache lines of their own.
#[repr(align(64))]
struct Shelf {
    full: Rack,
    empty: Rack,
}

/// The part of a depot that does not depend on the heap's types.
#[repr(C, align(64))]
pub struct Exchange {
    /// Counts how often memory ran out. Every operation reads it, and nothing else on its cache line is
    /// written.
    pressure: AtomicUsize,
    capacities: [u8; CLASSES],
    shelves: [Shelf; CLASSES],
}

impl Exchange {
    /// For threads that keep at most `bytes` bytes each.
    pub const fn new(bytes: usize) -> Self {
        let capacities = capacities(bytes);
        let shelves = [const { Shelf { full: Rack::empty(), empty: Rack::empty() } }; CLASSES];
        Self { pressure: AtomicUsize::new(0), capacities, shelves }
    }

    /// A number that is this exchange's alone and changes when memory has run out: its address, and a
    /// counter in the bits that are zero in it.
    #[inline(always)]
    pub fn token(&'static self) -> usize {
        ptr::from_ref(self).addr() | self.pressure.load(Ordering::Relaxed)
    }

    /// Asks all threads to give back what they keep, at their next operation.
    pub fn press(&self) {
        let next = (self.pressure.load(Ordering::Relaxed) + 1) % align_of::<Self>();
        // Two threads that press at once may count one: both have been heard then.
        self.pressure.store(next, Ordering::Relaxed);
    }

    /// Blocks that a magazine of `class` holds.
    pub fn capacity(&self, class: usize) -> usize {
        self.capacities[class] as usize
    }

    /// Puts a full magazine in. Whether there was a place.
    pub fn put_full(&self, class: usize, magazine: Magazine) -> bool {
        self.shelves[class].full.put(magazine)
    }

    /// Takes a full magazine out.
    pub fn take_full(&self, class: usize) -> Option<Magazine> {
        self.shelves[class].full.take()
    }

    /// Puts an empty magazine in. Whether there was a place.
    pub fn put_empty(&self, class: usize, magazine: Magazine) -> bool {
        self.shelves[class].empty.put(magazine)
    }

    /// Takes an empty magazine out.
    pub fn take_empty(&self, class: usize) -> Option<Magazine> {
        self.shelves[class].empty.take()
    }
}

/// Blocks that a magazine of each class may hold so that two of each, full, take at most `bytes` bytes.
///
/// The capacities are inversely proportional to the square root of the block size. If a class misses its cache in inverse
/// proportion to its capacity, and all classes are used alike, this division misses least often in total.
const fn capacities(bytes: usize) -> [u8; CLASSES] {
    /// Bytes that a block and its address take.
    const fn cost(class: usize) -> usize {
        SIZES[class] as usize + size_of::<Round>()
    }

    const fn capacity(scale: usize, class: usize) -> usize {
        // 64 times the root, for its fraction.
        let capacity = scale / (cost(class) * 4096).isqrt();
        if capacity > MOST { MOST } else { capacity }
    }

    const fn total(scale: usize) -> usize {
        let (mut total, mut class) = (0, 0);
        while class < CLASSES {
            total += 2 * capacity(scale, class) * cost(class);
            class += 1;
        }
        total
    }

    // The largest scale that keeps to `bytes`. At `high` the largest class has `MOST` blocks.
    let (mut low, mut high) = (0, (MOST + 1) * (cost(CLASSES - 1) * 4096).isqrt());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if total(middle) <= bytes {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut capacities = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        capacities[class] = capacity(low, class) as u8;
        class += 1;
    }
    capacities
}

/// Where the threads of a [`Cached`](super::Cached) heap exchange free blocks: up to 4 full magazines and 4
/// empty ones for each class.
///
/// (Bonwick and Adams, "Magazines and Vmem", USENIX 2001. Their depot is behind a lock; this one is an array of
/// places that are filled and emptied by single atomic operations.)
pub struct Depot<P: 'static = Tiered, L: 'static = lock::Default, S: 'static = Counters> {
    pub(super) exchange: Exchange,
    pub(super) heap: &'static Heap<P, L, S>,
}

impl<P, L, S> Depot<P, L, S> {
    /// A depot for `heap`, of whose memory each thread keeps at most `bytes` bytes, magazines included. The
    /// depot itself keeps at most twice as much.
    pub const fn new(heap: &'static Heap<P, L, S>, bytes: usize) -> Self {
        Self { exchange: Exchange::new(bytes), heap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_keep_to_their_bytes() {
        for bytes in [0, 100, 1000, 4096, 20_000, 64 * 1024, 512 * 1024, 2 << 20, 1 << 30] {
            let capacities = capacities(bytes);
            let rounds = capacities.iter().zip(SIZES);
            let total: usize = rounds.map(|(&n, size)| 2 * usize::from(n) * (usize::from(size) + 8)).sum();
            assert!(total <= bytes);
            // What is left over would not serve one block more of each class.
            let full = capacities.iter().all(|&n| usize::from(n) == MOST);
            let all: usize = SIZES.iter().map(|&size| 2 * (usize::from(size) + 8)).sum();
            assert!(full || total + all > bytes, "{total} of {bytes}");
            assert!(capacities.is_sorted_by(|a, b| a >= b));
        }
        let capacities = capacities(512 * 1024);
        assert_eq!((capacities[0], capacities[CLASSES - 1] >= 3), (MOST as u8, true), "{capacities:?}");
    }
}
