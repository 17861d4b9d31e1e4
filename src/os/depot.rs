//! The depot, which stands between the threads' caches and a heap.

use super::cache::{
    self, Block, Chain, Lists, NONE, Place, SIZES, Source, TABLED_CLASSES as CLASSES, layout_of,
};
use super::rack::Rack;
use crate::error::FreeError;
use crate::heap::Heap;
use crate::memory::Memory;
use crate::units::each;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of blocks in a list.
const MOST: usize = 64;

/// The depot in which the threads of a [`Cached`](super::Cached) heap exchange free blocks: up to 4 full lists per class, without a lock.
#[repr(C, align(64))]
pub struct Depot<M: 'static = Heap> {
    /// Token that a thread's lists must carry for the fast path. Every operation reads it, so the rest of its cache line is never
    /// written.
    token: AtomicUsize,
    /// Maximum number of blocks in a list, for each class.
    capacities: [u8; CLASSES],
    racks: [Rack<Block>; CLASSES],
    pub(super) heap: &'static M,
}

impl<M> Depot<M> {
    /// Creates a depot for `heap`. Each thread keeps at most `bytes` bytes of its memory, and the depot itself at most twice as much.
    pub const fn new(heap: &'static M, bytes: usize) -> Self {
        let racks = [const { Rack::new() }; CLASSES];
        Self { token: AtomicUsize::new(0), capacities: capacities(bytes), racks, heap }
    }

    /// Returns the token that a thread's lists must carry for the fast path; 0 at first.
    #[inline(always)]
    pub(super) fn token(&self) -> usize {
        self.token.load(Ordering::Relaxed)
    }

    /// Changes the token, so that each thread flushes its cache at its next operation.
    pub(super) fn press(&self) {
        self.token.store(cache::new_token(), Ordering::Relaxed);
    }
}

impl<M: Memory> Depot<M> {
    /// Flushes this thread's cache and the depot.
    pub(super) fn flush(&'static self) {
        cache::flush(self);
        for (class, rack) in self.racks.iter().enumerate() {
            while let Some(first) = rack.take() {
                // SAFETY: a list that was removed from the depot belongs to this thread.
                unsafe { self.free(class, Chain { first, count: self.capacity(class) }) };
            }
        }
    }

    /// Handles a lack of memory: flushes this thread's cache and the depot, and asks the other threads to flush theirs.
    #[cold]
    pub(super) fn reclaim(&'static self) {
        self.press();
        self.flush();
    }
}

/// Number of heaps that a thread caches: the first ones that it uses.
const HEAPS: usize = 4;

thread_local! {
    // It has no destructor, so accessing it needs no check and no allocation, and is always possible. Only a pointer lies here: with the
    // lists themselves and the growing heap's pointer, a library would exceed the static storage that the loader reserves.
    static FIRST: Cell<*mut Lists> = const { Cell::new(NONE) };
}

/// The place of a thread's lists for all heaps with caches.
pub(super) static PLACE: Place = Place::new(lists, |lists| FIRST.set(lists), || cache::end(&PLACE), HEAPS);

/// Returns the lists for the first heap that the calling thread has used.
#[inline(always)]
pub(super) fn lists() -> *mut Lists {
    FIRST.get()
}

impl<M: Memory> Source for Depot<M> {
    fn place(&self) -> &'static Place {
        &PLACE
    }

    fn token(&self) -> usize {
        if self.token() == 0 {
            self.press();
        }
        self.token()
    }

    fn capacity(&self, class: usize) -> usize {
        self.capacities.get(class).copied().unwrap_or(0).into()
    }

    fn masks(&self) -> [usize; cache::CLASSES] {
        core::array::from_fn(|class| layout_of(class).align() - 1)
    }

    fn check(&self, class: usize, block: NonNull<u8>) -> Result<(), FreeError> {
        // Check only what needs no lock: the heap checks the block when it returns there.
        if block.addr().get() % layout_of(class).align() == 0 { Ok(()) } else { Err(FreeError::Misaligned) }
    }

    fn allocate(&'static self, class: usize, want: usize) -> Chain {
        if let Some(first) = self.racks[class].take() {
            return Chain { first, count: self.capacity(class) };
        }
        let mut chain = Chain::fetch::<M, MOST>(self.heap, class, want);
        if chain.count == 0 {
            self.reclaim();
            chain = Chain::fetch::<M, MOST>(self.heap, class, 1);
        }
        chain
    }

    unsafe fn free_list(&self, class: usize, list: Chain) {
        if list.count < self.capacity(class) || !self.racks[class].put(list.first) {
            // SAFETY: the caller's contract.
            unsafe { self.free(class, list) }
        }
    }

    unsafe fn free(&self, class: usize, chain: Chain) {
        // SAFETY: the caller's contract; the blocks come from the heap.
        unsafe { chain.free_to::<M, MOST>(self.heap, class) }
    }
}

/// Computes how many blocks a list of each class may hold so that two full lists of each class take at most `bytes` bytes.
///
/// The capacities are inversely proportional to the square root of the block size. If a class misses its cache in inverse proportion to
/// its capacity, and programs use all classes equally, this minimises the total number of misses.
const fn capacities(bytes: usize) -> [u8; CLASSES] {
    const fn capacity(scale: usize, class: usize) -> usize {
        // Take 64 times the root, to keep its fraction.
        let capacity = scale / (SIZES[class] as usize * 4096).isqrt();
        if capacity > MOST { MOST } else { capacity }
    }

    const fn total(scale: usize) -> usize {
        let mut total = 0;
        each!(class, 0..CLASSES, {
            total += 2 * capacity(scale, class) * SIZES[class] as usize;
        });
        total
    }

    // Find the largest scale that stays within `bytes`. At `high` the largest class has `MOST` blocks.
    let (mut low, mut high) = (0, (MOST + 1) * (SIZES[CLASSES - 1] as usize * 4096).isqrt());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if total(middle) <= bytes {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut capacities = [0; CLASSES];
    each!(class, 0..CLASSES, {
        capacities[class] = capacity(low, class) as u8;
    });
    capacities
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token changes whenever memory has run out, and never becomes that of another depot.
    #[test]
    fn tokens_change_and_stay_apart() {
        static HEAP: Heap = crate::heap!(4096);
        static DEPOTS: [Depot; 2] = [const { Depot::new(&HEAP, 4096) }; 2];
        assert_eq!(DEPOTS[0].token(), 0);
        let mut had = std::collections::BTreeSet::new();
        for depot in DEPOTS.iter().cycle().take(1000) {
            depot.press();
            assert!(had.insert(Source::token(depot)));
            assert_eq!(Source::token(depot), depot.token());
        }
    }

    #[test]
    fn caches_keep_to_their_bytes() {
        for bytes in [0, 100, 1000, 4096, 20_000, 64 * 1024, 512 * 1024, 2 << 20, 1 << 30] {
            let capacities = capacities(bytes);
            let sizes = || SIZES[..CLASSES].iter().map(|&size| usize::from(size));
            let total: usize =
                capacities.iter().zip(sizes()).map(|(&n, size)| 2 * usize::from(n) * size).sum();
            assert!(total <= bytes);
            // The remaining bytes are too few for one more block of every class.
            let full = capacities.iter().all(|&n| usize::from(n) == MOST);
            assert!(full || total + 2 * sizes().sum::<usize>() > bytes, "{total} of {bytes}");
            assert!(capacities.is_sorted_by(|a, b| a >= b));
        }
        let capacities = capacities(512 * 1024);
        assert!(capacities[0] >= 48 && capacities[CLASSES - 1] >= 3, "{capacities:?}");
    }
}
