//! The depot: magazines on their way between threads.

#![forbid(unsafe_code)]

use super::classes::{CLASSES, SIZES};
use crate::heap::Heap;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// A place for the address of a free block.
pub(super) type Round = MaybeUninit<NonNull<u8>>;

/// An array of free blocks of one class. It is itself a block of the heap, with one place per block of the class's
/// capacity.
pub(super) type Magazine = *mut Round;

/// How many full, and how many empty, magazines of a class a depot holds.
const PLACES: usize = 4;

/// The most blocks that a magazine can hold.
const MOST: usize = 64;

/// A few places for magazines. Any thread may put one in or take one out, and none of them waits.
struct Rack([AtomicPtr<Round>; PLACES]);

impl Rack {
    const fn empty() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; PLACES])
    }

    /// Puts a magazine in, and returns whether there was a free place.
    fn put(&self, magazine: Magazine) -> bool {
        self.0.iter().any(|place| {
            // The load first avoids exclusive access if the place is occupied. `Release`: the thread that takes the
            // magazine sees its contents, and all accesses to its blocks have ended.
            place.load(Ordering::Relaxed).is_null()
                && place
                    .compare_exchange(ptr::null_mut(), magazine, Ordering::Release, Ordering::Relaxed)
                    .is_ok()
        })
    }

    /// Takes a magazine out, if there is one.
    fn take(&self) -> Option<Magazine> {
        self.0.iter().find_map(|place| {
            if place.load(Ordering::Relaxed).is_null() {
                return None;
            }
            // A swap cannot confuse a magazine with another one that was here before (the ABA problem). `Acquire`:
            // see `put`.
            let magazine = place.swap(ptr::null_mut(), Ordering::Acquire);
            (!magazine.is_null()).then_some(magazine)
        })
    }
}

/// The magazines of one class, on separate cache lines.
#[repr(align(64))]
struct Shelf {
    full: Rack,
    empty: Rack,
}

/// The part of a depot that does not depend on the heap's types.
#[repr(C, align(64))]
pub(super) struct Exchange {
    /// Counts how often memory ran out. Every operation reads it, and nothing else on its cache line is written.
    pressure: AtomicUsize,
    capacities: [u8; CLASSES],
    shelves: [Shelf; CLASSES],
}

impl Exchange {
    /// Makes an exchange for threads that keep at most `bytes` bytes each.
    pub(super) const fn new(bytes: usize) -> Self {
        let capacities = capacities(bytes);
        let shelves = [const { Shelf { full: Rack::empty(), empty: Rack::empty() } }; CLASSES];
        Self { pressure: AtomicUsize::new(0), capacities, shelves }
    }

    /// Returns a number that is unique to this exchange and changes when memory has run out: its address, with a
    /// counter in the low bits, which are zero in the address.
    #[inline(always)]
    pub(super) fn token(&'static self) -> usize {
        ptr::from_ref(self).addr() | self.pressure.load(Ordering::Relaxed)
    }

    /// Asks all threads to give back what they keep, at their next operation.
    pub(super) fn press(&self) {
        let next = (self.pressure.load(Ordering::Relaxed) + 1) % align_of::<Self>();
        // Two threads that do this at once may count only once, which serves both.
        self.pressure.store(next, Ordering::Relaxed);
    }

    /// Returns how many blocks a magazine of `class` holds.
    pub(super) fn capacity(&self, class: usize) -> usize {
        self.capacities[class] as usize
    }

    /// Puts a full magazine in, and returns whether there was a free place.
    pub(super) fn put_full(&self, class: usize, magazine: Magazine) -> bool {
        self.shelves[class].full.put(magazine)
    }

    /// Takes a full magazine out, if there is one.
    pub(super) fn take_full(&self, class: usize) -> Option<Magazine> {
        self.shelves[class].full.take()
    }

    /// Puts an empty magazine in, and returns whether there was a free place.
    pub(super) fn put_empty(&self, class: usize, magazine: Magazine) -> bool {
        self.shelves[class].empty.put(magazine)
    }

    /// Takes an empty magazine out, if there is one.
    pub(super) fn take_empty(&self, class: usize) -> Option<Magazine> {
        self.shelves[class].empty.take()
    }
}

/// Computes how many blocks a magazine of each class may hold so that two full ones of each take at most `bytes`
/// bytes.
///
/// The capacities are inversely proportional to the square root of the block size. If a class misses its cache in
/// inverse proportion to its capacity, and all classes are used equally, this division minimises the total number
/// of misses.
const fn capacities(bytes: usize) -> [u8; CLASSES] {
    /// The bytes of a block and its address.
    const fn cost(class: usize) -> usize {
        SIZES[class] as usize + size_of::<Round>()
    }

    const fn capacity(scale: usize, class: usize) -> usize {
        // 64 times the root, to keep its fraction.
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

    // Find the largest scale that stays within `bytes`. At `high` the largest class has `MOST` blocks.
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

/// The depot in which the threads of a [`Cached`](super::Cached) heap exchange free blocks: up to 4 full and 4
/// empty magazines per class.
///
/// (Bonwick and Adams, "Magazines and Vmem", USENIX 2001. Their depot has a lock; this one is an array of places
/// that are filled and emptied by single atomic operations.)
pub struct Depot<M: 'static = Heap> {
    pub(super) exchange: Exchange,
    pub(super) heap: &'static M,
}

impl<M> Depot<M> {
    /// Makes a depot for `heap`. Each thread keeps at most `bytes` bytes of its memory, magazines included, and the
    /// depot itself at most twice as much.
    pub const fn new(heap: &'static M, bytes: usize) -> Self {
        Self { exchange: Exchange::new(bytes), heap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magazines come out once each, of their class and kind, and there are four places for each.
    #[test]
    fn magazines_have_their_places() {
        let mut rounds = [[Round::uninit(); 4 * PLACES]; CLASSES];
        let exchange = Exchange::new(4096);
        let mut magazines = rounds.iter_mut().map(|rounds| {
            let mut all = rounds.iter_mut().map(ptr::from_mut);
            [(); 2].map(|()| [(); PLACES + 1].map(|()| all.next().expect("there are enough")))
        });
        let magazines: [[[Magazine; PLACES + 1]; 2]; CLASSES] =
            core::array::from_fn(|_| magazines.next().expect("there are as many"));
        for (class, [full, empty]) in magazines.iter().enumerate() {
            for place in 0..=PLACES {
                assert_eq!(exchange.put_full(class, full[place]), place < PLACES);
                assert_eq!(exchange.put_empty(class, empty[place]), place < PLACES);
            }
        }
        for (class, [full, empty]) in magazines.iter().enumerate() {
            let taken = |take: &dyn Fn() -> Option<Magazine>| {
                let mut taken: std::vec::Vec<_> = core::iter::from_fn(take).collect();
                taken.sort_unstable();
                taken
            };
            assert_eq!(taken(&|| exchange.take_full(class)), full[..PLACES]);
            assert_eq!(taken(&|| exchange.take_empty(class)), empty[..PLACES]);
            assert!(exchange.put_full(class, full[0]) && exchange.take_full(class) == Some(full[0]));
        }
    }

    /// The token changes whenever memory has run out, and never becomes that of another exchange.
    #[test]
    fn tokens_change_and_stay_apart() {
        static EXCHANGE: Exchange = Exchange::new(4096);
        let start = ptr::from_ref(&EXCHANGE).addr();
        let mut last = EXCHANGE.token();
        assert_eq!(last, start);
        for _ in 0..1000 {
            EXCHANGE.press();
            let token = EXCHANGE.token();
            assert!(token != last && (start..start + align_of::<Exchange>()).contains(&token));
            last = token;
        }
    }

    #[test]
    fn caches_keep_to_their_bytes() {
        for bytes in [0, 100, 1000, 4096, 20_000, 64 * 1024, 512 * 1024, 2 << 20, 1 << 30] {
            let capacities = capacities(bytes);
            let rounds = capacities.iter().zip(SIZES);
            let total: usize = rounds.map(|(&n, size)| 2 * usize::from(n) * (usize::from(size) + 8)).sum();
            assert!(total <= bytes);
            // What is left would not serve one more block of every class.
            let full = capacities.iter().all(|&n| usize::from(n) == MOST);
            let all: usize = SIZES.iter().map(|&size| 2 * (usize::from(size) + 8)).sum();
            assert!(full || total + all > bytes, "{total} of {bytes}");
            assert!(capacities.is_sorted_by(|a, b| a >= b));
        }
        let capacities = capacities(512 * 1024);
        assert_eq!((capacities[0], capacities[CLASSES - 1] >= 3), (MOST as u8, true), "{capacities:?}");
    }
}
