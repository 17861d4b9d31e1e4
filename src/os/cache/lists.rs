//! The lists of one thread, and the source that refills them.

use super::at_end::AtEnd;
use crate::error::FreeError;
use crate::front::small::{Block, CLASSES, Chain, SIZES};
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Allocates and frees the blocks of threads' lists: pages of the growing heap, or any heap behind a depot. No method may unwind into the
/// lists, but any method may call back into them.
pub(in crate::os) trait Source {
    /// Returns the place where a thread finds its lists for this source.
    fn place(&self) -> &'static Place;

    /// Returns a number that changes whenever memory has run out, so that each thread flushes its lists. No two sources of a place ever
    /// have the same number.
    fn token(&self) -> usize;

    /// Returns whether the blocks in lists with a token still belong to the source. If not, they no longer exist.
    fn has(&self, _token: usize) -> bool {
        true
    }

    /// Returns how many blocks of a class a list may hold, at most 64; with 0, threads keep none.
    fn capacity(&self, class: usize) -> usize;

    /// Returns whether some slow-path requests get sampled blocks from elsewhere.
    fn samples(&self) -> bool {
        false
    }

    /// Returns, for each class, bits that are zero in the addresses of all its blocks.
    fn masks(&self) -> [usize; CLASSES];

    /// Checks whether a block of a class, live or free, can begin at an address, without reading the block.
    fn check(&self, class: usize, block: NonNull<u8>) -> Result<(), FreeError>;

    /// Allocates up to `want` blocks of a class, or a whole list that another thread has freed. Returns an empty chain only if memory has
    /// run out, even after asking all threads to flush their lists.
    fn allocate(&'static self, class: usize, want: usize) -> Chain;

    /// Frees a whole list, which another thread may allocate.
    ///
    /// # Safety
    ///
    /// All blocks must be of the class and from this source, and must not be used any more.
    unsafe fn free_list(&self, class: usize, list: Chain);

    /// Frees blocks.
    ///
    /// # Safety
    ///
    /// As for [`Source::free_list`].
    unsafe fn free(&self, class: usize, chain: Chain);

    /// Frees blocks from lists with a token, if they still belong to the source. Another thread may end the source at the same time.
    ///
    /// # Safety
    ///
    /// As for [`Source::free_list`].
    unsafe fn free_kept(&self, class: usize, chain: Chain, _token: usize) {
        // SAFETY: the caller's contract; a source that never ends owns all its blocks.
        unsafe { self.free(class, chain) }
    }

    /// Allocates the memory for a thread's lists, if the place does not provide it.
    fn allocate_lists(&'static self) -> Option<NonNull<Lists>> {
        None
    }

    /// Frees the memory of a thread's lists.
    ///
    /// # Safety
    ///
    /// The memory must come from [`Source::allocate_lists`] in the same thread, and must not be used any more.
    unsafe fn free_lists(&self, _: NonNull<Lists>) {}
}

/// Returns a new token, which no source has had.
pub(in crate::os) fn new_token() -> usize {
    static LAST: AtomicUsize = AtomicUsize::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// A thread-local place where each thread finds its lists, either for the growing heap or for all heaps with caches. Code that uses one
/// place must not mention the other place's thread-local variable, or the linker would include it.
pub(in crate::os) struct Place {
    /// Returns the first lists of the calling thread.
    pub(super) get: fn() -> *mut Lists,
    /// Sets the first lists of the calling thread.
    pub(super) set: fn(*mut Lists),
    /// Frees the lists of the calling thread, with [`super::end`].
    pub(super) end: fn(),
    /// Maximum number of sources for which a thread has lists, in memory of the system's heap; 0 if the place has one source, which
    /// provides the memory.
    pub(super) most: usize,
    pub(super) at_end: AtEnd,
}

impl Place {
    pub(in crate::os) const fn new(
        get: fn() -> *mut Lists,
        set: fn(*mut Lists),
        end: fn(),
        most: usize,
    ) -> Self {
        Self { get, set, end, most, at_end: AtEnd::new(most > 0) }
    }
}

/// The free blocks of one class that a thread keeps: the list in use, and another list that is full or missing, so that no sequence of
/// requests goes to the source more often than once per list.
///
/// (Bonwick and Adams, "Magazines and Vmem", USENIX 2001; theirs are arrays.)
#[repr(C)]
pub(in crate::os) struct Bin {
    /// First block of the list in use, or null.
    head: *mut Block,
    /// The room in the list in use and the requests since the last [`Lists::count`], so that an operation updates both in one
    /// instruction. With room for `n` blocks after `r` requests it is `(n * SHARE - r - e) * REQUESTS + r`, where `e` is below [`SHARE`].
    /// A free takes the fast path only if this is positive: it is not if the list is full, nor from time to time if a list stays neither
    /// full nor empty.
    counts: i32,
    /// Number of blocks to request from the source next time; 0 before the first time. It doubles each time, so that a rarely used class
    /// keeps few blocks.
    demand: u16,
    /// Number of blocks in the other list.
    others: u16,
    /// First block of the other list, or null. Until the thread allocates a block of the class, the other list collects what the thread
    /// frees: other threads allocated these blocks, and may use their neighbours in the same cache lines.
    other: *mut Block,
    /// Bits that are zero in the addresses of all blocks of the class.
    mask: usize,
}

/// A number above the most requests that a bin counts, which is [`SHARE`] for each block of a list, plus one list.
const REQUESTS: i32 = 1 << 13;

/// Number of requests that a bin counts before a free takes the slow path, per block for which the list in use has room.
const SHARE: i32 = 64;

/// A token that no source has.
const NO_TOKEN: usize = usize::MAX;

/// One thread's lists for one source.
#[repr(C)]
pub(in crate::os) struct Lists {
    bins: [Bin; CLASSES],
    /// The source's token at the thread's last check.
    pub(in crate::os) token: usize,
    /// The source; `None` in [`NEVER`].
    pub(in crate::os) source: Option<&'static dyn Source>,
    /// Number of requests before the next sample, if the source samples; `i32::MIN` at first.
    pub(in crate::os) left: i32,
    /// The thread's lists for the next source of the place.
    pub(super) next: *mut Lists,
}

impl Bin {
    /// An empty bin without room, so that the first request or free of the class takes the slow path.
    const NEW: Self =
        Self { head: ptr::null_mut(), counts: 0, demand: 0, others: 0, other: ptr::null_mut(), mask: 0 };

    /// Allocates the first block of the list in use, unless something wrote to it after its free. Counts the request if `COUNTS`: a
    /// source that never samples needs no count, and without it no free takes the slow path for counting.
    ///
    /// # Safety
    ///
    /// Only the calling thread may access the bin, or the bin must stay [`Bin::NEW`] forever.
    #[inline(always)]
    pub(in crate::os) unsafe fn allocate<const COUNTS: bool>(bin: *mut Self) -> Option<NonNull<u8>> {
        // SAFETY: the caller guarantees the bin, which this changes only if it has a block. Blocks in lists are free.
        unsafe {
            let block = NonNull::new((*bin).head)?;
            (*bin).head = Block::next_checked(block.as_ptr())?;
            Block::clear_mark(block.as_ptr());
            (*bin).counts += if COUNTS { (SHARE - 1) * REQUESTS + 1 } else { SHARE * REQUESTS };
            Some(block.cast())
        }
    }

    /// Puts a block into the list in use. Returns false, with nothing done, if the list has no room, the address has a bit of the mask,
    /// the block is marked as free, or the requests must be counted first.
    ///
    /// # Safety
    ///
    /// As for [`Bin::allocate`]; the block must be of the bin's class, and not used any more.
    #[inline(always)]
    pub(in crate::os) unsafe fn free(bin: *mut Self, block: NonNull<u8>) -> bool {
        let block = block.cast::<Block>().as_ptr();
        // SAFETY: the caller guarantees the block and the bin, which this changes only if it has room.
        unsafe {
            if block.addr() & (*bin).mask != 0 || (*bin).counts <= 0 || Block::is_free(block) {
                return false;
            }
            (*bin).counts -= SHARE * REQUESTS;
            Block::link(block, (*bin).head);
            (*bin).head = block;
        }
        true
    }

    /// Frees a block for which the list in use has no room. Returns the list that must then return to the source, if any.
    ///
    /// # Safety
    ///
    /// The block must be of the bin's class, and not used any more. `capacity` must be the capacity of the class, and not 0.
    pub(super) unsafe fn free_slow(&mut self, block: NonNull<u8>, capacity: usize) -> Chain {
        // SAFETY: the caller guarantees the block.
        unsafe {
            if self.demand == 0 && self.head.is_null() {
                let block = block.cast().as_ptr();
                Block::link(block, self.other);
                (self.other, self.others) = (block, self.others + 1);
                return if self.others as usize >= capacity { self.unload_other() } else { Chain::NONE };
            }
            let other = self.set_aside(capacity);
            let kept = Self::free(self, block);
            debug_assert!(kept, "an empty list has room");
            other
        }
    }

    /// Makes the list in use the other list, and returns the previous other list.
    pub(super) fn set_aside(&mut self, capacity: usize) -> Chain {
        let other = self.unload_other();
        let list = self.unload(capacity);
        (self.other, self.others) = (list.first, list.count as u16);
        other
    }

    /// Returns for how many blocks the list in use has room.
    fn room(&self) -> i32 {
        ((self.counts >> REQUESTS.trailing_zeros()) + self.requests() + SHARE - 1) / SHARE
    }

    /// Returns the number of requests since the last count.
    fn requests(&self) -> i32 {
        self.counts & (REQUESTS - 1)
    }

    /// Sets the room of the list in use. The next count of the requests comes `early` requests early, at most `SHARE - 1`.
    fn set_room(&mut self, room: usize, early: i32) {
        self.counts = (SHARE * room as i32 - early) * REQUESTS;
    }

    /// Allocates a block when the list in use is empty, from the other list if that came from the source. Until a thread gets blocks from
    /// the source, its other list holds only blocks of other threads. Ends the program if the list in use is damaged.
    pub(super) fn allocate_other(&mut self, capacity: usize) -> Option<NonNull<u8>> {
        if !self.head.is_null() {
            // SAFETY: blocks in lists are free and linked.
            unsafe { Block::next(self.head) };
        } else if self.demand > 0 {
            let other = self.unload_other();
            self.load(other, capacity);
        }
        // SAFETY: the caller owns the bin.
        unsafe { Self::allocate::<false>(self) }
    }

    /// Puts a list into use if the list in use is empty, and returns it otherwise.
    pub(super) fn load(&mut self, list: Chain, capacity: usize) -> Chain {
        if !self.head.is_null() {
            return list;
        }
        self.head = list.first;
        self.set_room(capacity - list.count, 0);
        Chain::NONE
    }

    /// Removes and returns the list in use.
    fn unload(&mut self, capacity: usize) -> Chain {
        let count = if self.head.is_null() { 0 } else { capacity - self.room() as usize };
        self.set_room(capacity, 0);
        Chain { first: mem::replace(&mut self.head, ptr::null_mut()), count }
    }

    /// Removes and returns the other list.
    fn unload_other(&mut self) -> Chain {
        let count = mem::take(&mut self.others) as usize;
        Chain { first: mem::replace(&mut self.other, ptr::null_mut()), count }
    }

    /// Returns how many blocks to request from the source: at first as many as fill a cache line, then twice as many each time.
    pub(super) fn ask(&mut self, class: usize, capacity: usize) -> usize {
        let want = match self.demand {
            0 => 64 / SIZES[class] as usize,
            demand => demand.into(),
        };
        let want = want.clamp(1, capacity);
        self.demand = (2 * want).min(capacity) as u16;
        want
    }

    /// Resets the bin, and returns its two lists.
    pub(super) fn unload_all(&mut self, capacity: usize) -> [Chain; 2] {
        let lists = [self.unload(capacity), self.unload_other()];
        *self = Self { mask: self.mask, ..Self::NEW };
        lists
    }
}

impl Lists {
    /// Empty lists without a source.
    const EMPTY: Self = Self {
        bins: [const { Bin::NEW }; CLASSES],
        token: NO_TOKEN,
        source: None,
        left: i32::MIN,
        next: ptr::null_mut(),
    };

    /// Creates empty lists for a source.
    pub(super) fn new(source: &'static dyn Source, next: *mut Self) -> Self {
        let bins = source.masks().map(|mask| Bin { mask, ..Bin::NEW });
        Self { bins, token: source.token(), source: Some(source), next, ..Self::EMPTY }
    }

    /// Counts the requests of a class since the last call. Returns whether a sample is due.
    pub(super) fn count(&mut self, class: usize) -> bool {
        let bin = &mut self.bins[class];
        let requests = bin.requests();
        if requests > 0 {
            self.left = self.left.saturating_sub(requests);
            // Vary the distance, so that it never matches a period of the program.
            let early = (self.left as u32).wrapping_mul(0x9e37_79b1) >> 26;
            bin.set_room(bin.room() as usize, early as i32 % SHARE);
        }
        self.left <= 0
    }

    /// Returns the bin of a class.
    ///
    /// # Safety
    ///
    /// The lists must be valid, and `class` below [`CLASSES`].
    #[inline(always)]
    pub(in crate::os) unsafe fn bin(lists: *mut Self, class: usize) -> *mut Bin {
        debug_assert!(class < CLASSES);
        // SAFETY: the caller's contract.
        unsafe { (&raw mut (*lists).bins).cast::<Bin>().add(class) }
    }
}

/// Lists that are never written to.
#[repr(transparent)]
pub(in crate::os) struct Never(Lists);

// SAFETY: the lists are only read, and have no source.
unsafe impl Sync for Never {}

pub(in crate::os) static NEVER: [Never; 2] = [const { Never(Lists::EMPTY) }; 2];

/// The lists of a thread that has none yet. They have neither blocks nor room, so every operation takes the slow path.
pub(in crate::os) const NONE: *mut Lists = ptr::from_ref(&NEVER[0].0).cast_mut();

/// The lists of a thread that must not create any: while it is creating them, and after it has ended.
pub(super) const CLOSED: *mut Lists = ptr::from_ref(&NEVER[1].0).cast_mut();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::small::class_of;

    #[test]
    fn a_class_asks_for_twice_as_many_each_time() {
        for (size, most) in [(16, 64), (48, 64), (64, 10), (600, 27), (20_000, 1)] {
            let class = class_of(size, 8).unwrap();
            let (mut bin, mut want) = (Bin::NEW, (64 / size).clamp(1, most));
            for _ in 0..12 {
                assert_eq!(bin.ask(class, most), want, "{size} bytes");
                want = (2 * want).min(most);
            }
            assert_eq!(want, most);
        }
    }

    /// Returns the blocks of a list in reverse order.
    fn blocks(mut list: Chain) -> Vec<NonNull<u8>> {
        let count = list.count;
        let mut blocks: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
        assert_eq!((blocks.len(), list.count), (count, 0));
        blocks.reverse();
        blocks
    }

    #[test]
    fn lists_agree_with_stacks() {
        const MOST: usize = 20;
        let mut random = fastrand::Rng::with_seed(4);
        let mut memory = std::vec![[0_usize; 2]; 4 * MOST];
        let mut free: Vec<NonNull<u8>> = memory.iter_mut().map(|block| NonNull::from(block).cast()).collect();
        // The expected blocks of the list in use and of the other list, in reverse order.
        let (mut used, mut other) = (Vec::new(), Vec::new());
        let mut bin = Bin::NEW;
        let mut seen = [0; 5];
        // SAFETY: all blocks belong to the test, and are in at most one list.
        unsafe {
            assert!(!Bin::free(&mut bin, free[0]), "there is no room at first");
            // Blocks of other threads stay separate, and return to the source as a whole list.
            for n in 1..=MOST + 3 {
                let full = bin.free_slow(free[n], MOST);
                assert_eq!(full.count, if n == MOST { MOST } else { 0 });
                assert!(n != MOST || blocks(full) == free[1..=MOST]);
            }
            assert_eq!(bin.allocate_other(MOST), None);
            let [none, apart] = bin.unload_all(MOST);
            assert!(none.count == 0 && blocks(apart) == free[MOST + 1..MOST + 4]);
            bin.demand = 1;
            for _ in 0..5000 {
                match random.u8(..40) {
                    0 => {
                        let demand = bin.demand;
                        let lists = bin.unload_all(MOST).map(blocks);
                        assert_eq!(lists, [used.clone(), other.clone()]);
                        (bin.demand, seen[0]) = (demand, seen[0] + 1);
                        free.extend(used.drain(..).chain(other.drain(..)));
                    }
                    1 if used.is_empty() => {
                        let count = random.usize(1..=MOST);
                        let mut list = Chain::NONE;
                        for block in free.drain(..count) {
                            Block::link(block.cast().as_ptr(), list.first);
                            list = Chain { first: block.cast().as_ptr(), count: list.count + 1 };
                            used.push(block);
                        }
                        assert_eq!(bin.load(list, MOST).count, 0);
                        let more = bin.load(Chain { first: ptr::null_mut(), count: 7 }, MOST);
                        assert_eq!(more.count, 7, "there is a list in use");
                        seen[1] += 1;
                    }
                    2..21 => {
                        let mut allocated = Bin::allocate::<true>(&mut bin);
                        assert_eq!(allocated, used.pop());
                        if allocated.is_none() {
                            (used, other) = (other, Vec::new());
                            allocated = bin.allocate_other(MOST);
                            assert_eq!(allocated, used.pop());
                            seen[2] += 1;
                        }
                        free.extend(allocated);
                    }
                    _ => {
                        let Some(block) = free.pop() else { continue };
                        if Bin::free(&mut bin, block) {
                            assert!(!Bin::free(&mut bin, block), "it is there already");
                            seen[3] += 1;
                        } else {
                            let full = blocks(bin.free_slow(block, MOST));
                            assert_eq!(full, other);
                            free.extend(full);
                            other = core::mem::take(&mut used);
                            seen[4] += 1;
                        }
                        used.push(block);
                    }
                }
                assert!(used.len() <= MOST);
            }
        }
        assert!(seen.iter().all(|&times| times > 20), "{seen:?}");
    }

    /// A list with room for one block accepts it any number of times, unless the bin counts requests.
    #[test]
    fn what_is_not_counted_stays_on_the_fast_path() {
        let mut block = [0_usize; 2];
        let block = NonNull::from(&mut block).cast();
        let mut bin = Bin::NEW;
        let _ = bin.unload(1);
        // SAFETY: the block belongs to the test, and is in the list at most once.
        unsafe {
            let mut pairs = |counts: bool| {
                let allocate = if counts { Bin::allocate::<true> } else { Bin::allocate::<false> };
                let pair = |_: &u32| Bin::free(&mut bin, block) && allocate(&mut bin) == Some(block);
                (0..10 * REQUESTS as u32).take_while(pair).count()
            };
            assert_eq!(pairs(false), 10 * REQUESTS as usize);
            assert_eq!(pairs(true), SHARE as usize + 1);
        }
    }

    /// The list accepts a block without a mark and rejects every other one.
    #[test]
    fn marks_are_of_one_block_with_one_link() {
        let mut memory = [[0_usize; 2]; 3];
        let [first, second, third] = memory.each_mut().map(|block| ptr::from_mut(block).cast::<Block>());
        // SAFETY: the blocks belong to the test.
        unsafe {
            assert!(!Block::is_free(first));
            Block::link(first, second);
            Block::link(second, ptr::null_mut());
            assert!(Block::is_free(first) && Block::is_free(second));
            assert_eq!((Block::next(first), Block::next(second)), (second, ptr::null_mut()));
            // A copy of a mark is not valid, nor is a mark after a write to the link.
            ptr::copy_nonoverlapping(first, third, 1);
            assert!(!Block::is_free(third));
            first.cast::<*mut Block>().write(third);
            assert!(!Block::is_free(first) && Block::next_checked(first).is_none());
            Block::mark_again(first);
            assert!(Block::is_free(first) && Block::next(first) == third);
            Block::clear_mark(first);
            assert!(!Block::is_free(first));
        }
    }
}
