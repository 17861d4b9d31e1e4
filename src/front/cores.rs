//! [`PerCore`]: a cache of free blocks for each core, on chips and in kernels without operating system threads.
//!
//! The program implements [`Cores`], which returns the current core and briefly keeps all other code of that core from running.
//!
//! ```
//! use allotment::cores::{Cores, PerCore};
//! use allotment::{Heap, Memory, heap};
//! use core::alloc::Layout;
//!
//! /// An RP2040, whose cores read their numbers from a register; here there is one core.
//! struct Chip;
//! // SAFETY: interrupts are masked from `enter` to `leave`, and there is one core for each number.
//! unsafe impl Cores for Chip {
//!     type Token = bool;
//!     fn enter() -> (usize, bool) {
//!         // let masked = cortex_m::register::primask::read().is_inactive();
//!         // cortex_m::interrupt::disable();
//!         // (unsafe { 0xd000_0000 as *const u32 }.read_volatile() as usize, masked)
//!         (0, false)
//!     }
//!     unsafe fn leave(_masked: bool) {
//!         // if !masked { unsafe { cortex_m::interrupt::enable() } }
//!     }
//! }
//!
//! static HEAP: PerCore<Heap, Chip> = PerCore::new(heap!(128 * 1024));
//!
//! let block = HEAP.try_allocate(Layout::new::<[u8; 40]>())?;
//! unsafe { HEAP.deallocate(block, Layout::new::<[u8; 40]>()) };
//! HEAP.flush();
//! assert_eq!(HEAP.memory().used(), 0);
//! # Ok::<(), allotment::OutOfMemory>(())
//! ```

use crate::error::{FreeError, OutOfMemory, misuse::invalid_free};
use crate::front::small::{Block, Chain, SIZES, layout_of, longest_within, tabled_class_of};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, global_alloc, pass_on};
use crate::units::{debug, each};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::hint;
use core::marker::PhantomData;
use core::mem;
use core::ptr::{self, NonNull};

/// The interface of [`PerCore`] to the cores of a machine: the number of the caller's core, and a guard.
///
/// # Safety
///
/// From `enter` to `leave`, no other code may be between the two with the same number: neither on another core nor in an interrupt
/// handler or another task of the same core. Writes before `leave` must be visible after the next `enter` with the same number, as they
/// are if each core has its own number.
pub unsafe trait Cores {
    /// State that `enter` passes to `leave`, such as whether interrupts were masked.
    type Token;

    /// Keeps other code of this core from running, by masking interrupts or preemption, and returns the core's number, from 0. Must not
    /// allocate.
    fn enter() -> (usize, Self::Token);

    /// Ends the section that [`Cores::enter`] began.
    ///
    /// # Safety
    ///
    /// The caller must call it once for each `enter`, on the same core, with its token.
    unsafe fn leave(token: Self::Token);
}

/// Bytes of the longest blocks that cores keep.
const LONGEST: usize = 512;

/// Number of classes of up to [`LONGEST`] bytes.
const CLASSES: usize = {
    let mut classes = 0;
    while SIZES[classes] as usize <= LONGEST {
        classes += 1;
    }
    classes
};

/// Most blocks in a batch.
const MOST: usize = 32;

/// Most batches of a class that the depot holds.
const PLACES: usize = 4;

/// Most batches that a core and the depot keep together.
const BATCHES: usize = CLASSES * (PLACES + 2);

/// Caches free blocks of a memory for each core, so that small requests take no lock that cores share.
///
/// ```text
///  core       16 B | 24 B | 32 B | .. | 512 B        per class two batches of free blocks, linked through the blocks
///                     |  whole batches, one lock
///  depot      16 B | 24 B | 32 B | .. | 512 B        four batches on their way between cores
///                     |  batches, one lock
///  memory
/// ```
///
/// Blocks of up to 512 bytes with an alignment of at most 8 have 31 classes; all other requests go to the memory. Any core may free a
/// block, and then keeps it. If a core frees more than it allocates, the surplus goes through the depot to cores that allocate more than
/// they free, a batch at a time. A batch has `BATCH` bytes, at least one and at most 32 blocks. [`Cores`] says which core is running; a
/// core numbered `CORES` or higher keeps nothing. `L` guards the depot: if handlers allocate, it must be a lock that they may take, as
/// for a [`Heap`](crate::Heap).
///
/// Worst case: a request enters the guard twice, for O(1) steps each, takes the depot's lock once, and allocates one batch from the
/// memory. A free enters the guard and takes the lock once, and frees one batch. Only a request that finds no memory takes longer: it
/// frees batches of the depot and its core, one at a time and of large blocks first, until there is room. Other cores still keep at most
/// two batches of each class. Over a [`Heap`](crate::Heap) of 64 KiB on a Cortex-M4F, that is at most 13,200 instructions for a request,
/// and 3,471 for a free; the memory's lock is held for a whole batch, up to 3,185 (`cargo xtask wcet`), which a smaller `BATCH` shortens.
/// The memory counts kept blocks as in use. Freeing a kept block is reported, and so is a write to it, when it is allocated again.
///
/// Dropping the front does not free what it keeps: call [`PerCore::flush`] on each core before that.
///
/// (Bonwick and Adams, "Magazines and Vmem", USENIX 2001.)
pub struct PerCore<M, C, L = lock::Default, const CORES: usize = 2, const BATCH: usize = 512> {
    memory: M,
    cores: [Core; CORES],
    lock: Locked<Depot, L>,
    program: PhantomData<fn() -> C>,
}

/// The first blocks of whole batches; in each class, null pointers come after the batches.
struct Depot([[*mut Block; PLACES]; CLASSES]);

// SAFETY: the blocks belong to the memory, which is sent with them.
unsafe impl Send for Depot {}

/// The cache of a core, on separate cache lines.
#[repr(align(64))]
struct Core(UnsafeCell<[Bin; CLASSES]>);

/// The free blocks of a class that a core keeps: a batch in use, and a whole one or none, so that any sequence of requests goes to the
/// depot at most once per batch.
struct Bin {
    /// The first block of the batch in use, or null.
    first: *mut Block,
    /// Number of blocks in the batch in use.
    count: usize,
    /// The first block of a whole batch, or null.
    other: *mut Block,
}

impl Bin {
    const EMPTY: Self = Self { first: ptr::null_mut(), count: 0, other: ptr::null_mut() };

    /// Removes a block. `whole` is the length of a whole batch.
    #[inline(always)]
    fn pop(&mut self, whole: usize) -> Option<NonNull<u8>> {
        if self.count == 0 {
            *self = Self {
                first: self.other,
                count: if self.other.is_null() { 0 } else { whole },
                ..Self::EMPTY
            };
        }
        let mut chain = Chain { first: self.first, count: self.count };
        let block = chain.pop();
        (self.first, self.count) = (chain.first, chain.count);
        block
    }

    /// Adds a block, and returns a whole batch for which the bin has no room.
    ///
    /// # Safety
    ///
    /// The block must be of the bin's class, and must not be used any more.
    #[inline(always)]
    unsafe fn push(&mut self, block: *mut Block, whole: usize) -> *mut Block {
        let mut surplus = ptr::null_mut();
        if self.count >= whole {
            surplus = mem::replace(&mut self.other, self.first);
            (self.first, self.count) = (ptr::null_mut(), 0);
        }
        // SAFETY: the caller's contract.
        unsafe { Block::link(block, self.first) };
        (self.first, self.count) = (block, self.count + 1);
        surplus
    }

    /// Makes `chain` the batch in use if that is empty, else returns `chain`.
    fn load(&mut self, chain: Chain) -> Chain {
        if self.count > 0 {
            return chain;
        }
        (self.first, self.count) = (chain.first, chain.count);
        Chain::NONE
    }
}

// SAFETY: the blocks belong to the memory, which is sent with them.
unsafe impl Send for Bin {}
// SAFETY: a core's bins are accessed only between `enter` and `leave` with its number, by one caller at a time.
unsafe impl Sync for Core {}

impl<M, C, L: Lock, const CORES: usize, const BATCH: usize> PerCore<M, C, L, CORES, BATCH> {
    /// Creates a front of `memory` with empty caches.
    pub const fn new(memory: M) -> Self {
        let cores = [const { Core(UnsafeCell::new([const { Bin::EMPTY }; CLASSES])) }; CORES];
        let lock = Locked::new(Depot([[ptr::null_mut(); PLACES]; CLASSES]));
        Self { memory, cores, lock, program: PhantomData }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Number of blocks in a whole batch of each class. A table, since the smallest chips divide in a loop.
    const WHOLE: [u8; CLASSES] = {
        let mut whole = [1; CLASSES];
        each!(class, 0..CLASSES, {
            let blocks = BATCH / SIZES[class] as usize;
            if blocks > 1 {
                whole[class] = if blocks < MOST { blocks } else { MOST } as u8;
            }
        });
        whole
    };

    /// Returns the number of blocks in a whole batch of a class.
    #[inline(always)]
    fn whole(class: usize) -> usize {
        Self::WHOLE[class] as usize
    }

    /// Adds a whole batch to the depot if it has room, and returns whether it has.
    fn leave_batch(&self, class: usize, first: *mut Block) -> bool {
        self.lock.with(|Depot(depot)| {
            let place = depot[class].iter_mut().find(|place| place.is_null());
            place.map(|place| *place = first).is_some()
        })
    }

    /// Removes a whole batch from the places of a class, if there is one.
    fn remove(class: usize, places: &mut [*mut Block; PLACES]) -> Option<Chain> {
        let place = places.iter_mut().rev().find(|place| !place.is_null())?;
        Some(Chain { first: mem::replace(place, ptr::null_mut()), count: Self::whole(class) })
    }

    /// Removes a whole batch from the depot, if there is one.
    fn remove_batch(&self, class: usize) -> Option<Chain> {
        self.lock.with(|Depot(depot)| Self::remove(class, &mut depot[class]))
    }
}

impl<M: Memory, C: Cores, L: Lock, const CORES: usize, const BATCH: usize> PerCore<M, C, L, CORES, BATCH> {
    /// Returns the class of a request, if it has one.
    #[inline(always)]
    fn class_of(&self, layout: Layout) -> Option<usize> {
        if layout.size() > LONGEST || layout.align() > 8 || self.memory.remembers() {
            return None;
        }
        let class = tabled_class_of(layout.size(), layout.align())?;
        // SAFETY: the classes of sizes up to `LONGEST` are the first ones.
        unsafe { hint::assert_unchecked(class < CLASSES) };
        Some(class)
    }

    /// Returns the largest request that is sure to succeed if the memory's largest free block has this many bytes.
    fn sure_of(&self, largest: usize) -> usize {
        if self.memory.remembers() || largest > LONGEST { largest } else { longest_within(largest) }
    }

    /// Runs `work` on this core's bins, while nothing else uses them. Returns `None` if the core has none.
    #[inline(always)]
    fn with_bins<T>(&self, work: impl FnOnce(&mut [Bin; CLASSES]) -> T) -> Option<T> {
        let (core, token) = C::enter();
        // SAFETY: after `enter`, nothing else uses this core's bins.
        let done = self.cores.get(core).map(|core| work(unsafe { &mut *core.0.get() }));
        // SAFETY: entered above.
        unsafe { C::leave(token) };
        done
    }

    /// Frees all blocks that this core and the depot keep. Useful before the core sleeps for long, or to see how much memory is in use.
    pub fn flush(&self) {
        while self.free_kept() {}
    }

    /// Frees a kept batch, if there is one: of the depot, else a whole batch of this core, else its batch in use. Starts with large
    /// blocks, which are fewest.
    fn free_kept(&self) -> bool {
        let spare = self.lock.with(|Depot(depot)| {
            let class = depot.iter().rposition(|places| !places[0].is_null())?;
            Some((class, Self::remove(class, &mut depot[class])?))
        });
        let own = |bins: &mut [Bin; CLASSES]| {
            if let Some(class) = bins.iter().rposition(|bin| !bin.other.is_null()) {
                let first = mem::replace(&mut bins[class].other, ptr::null_mut());
                return Some((class, Chain { first, count: Self::whole(class) }));
            }
            let class = bins.iter().rposition(|bin| bin.count > 0)?;
            let Bin { first, count, .. } = mem::replace(&mut bins[class], Bin::EMPTY);
            Some((class, Chain { first, count }))
        };
        let batch = spare.or_else(|| self.with_bins(own).flatten());
        batch.map(|(class, batch)| self.free_chain(class, batch)).is_some()
    }

    /// Frees blocks of a class that only the caller has.
    fn free_chain(&self, class: usize, chain: Chain) {
        // SAFETY: kept blocks come from the memory.
        unsafe { chain.free_to::<M, MOST>(&self.memory, class) }
    }

    /// Allocates up to `want` blocks from the memory.
    fn fetch(&self, class: usize, want: usize) -> Chain {
        Chain::fetch::<M, MOST>(&self.memory, class, want)
    }

    /// Allocates a block of a class when this core keeps none.
    #[cold]
    #[inline(never)]
    fn allocate_slow(&self, class: usize) -> Option<NonNull<u8>> {
        let mut chain = self.remove_batch(class).unwrap_or_else(|| self.fetch(class, Self::whole(class)));
        let mut kept = BATCHES;
        while chain.count == 0 && kept > 0 && self.free_kept() {
            kept -= 1;
            chain = self.fetch(class, Self::whole(class));
        }
        let block = chain.pop()?;
        if chain.count > 0 {
            // A handler may have freed blocks meanwhile, or the caller may now be on another core.
            let mut left = chain;
            self.with_bins(|bins| left = bins[class].load(mem::replace(&mut left, Chain::NONE)));
            self.free_chain(class, left);
        }
        Some(block)
    }

    /// Passes a whole batch to the depot, or frees it if there is no room.
    #[cold]
    #[inline(never)]
    fn free_batch(&self, class: usize, first: *mut Block) {
        if !self.leave_batch(class, first) {
            self.free_chain(class, Chain { first, count: Self::whole(class) });
        }
    }
}

// SAFETY: blocks come from the memory, which keeps the contract, and are allocated once until they are freed. Blocks of a class have the
// length of the class, as do the layouts that the memory sees.
unsafe impl<M: Memory, C: Cores, L: Lock, const CORES: usize, const BATCH: usize> Memory
    for PerCore<M, C, L, CORES, BATCH>
{
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        match self.class_of(layout) {
            Some(class) => {
                let kept = self.with_bins(|bins| bins[class].pop(Self::whole(class))).flatten();
                kept.or_else(|| self.allocate_slow(class))
            }
            None => {
                let block = self.memory.allocate(layout).or_else(|| {
                    self.flush();
                    self.memory.allocate(layout)
                })?;
                // SAFETY: the block has the layout's size.
                unsafe { Block::clear_left_over(block, layout.size()) };
                Some(block)
            }
        }
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let Some(class) = self.class_of(layout) else {
            // SAFETY: the caller's contract.
            return unsafe { self.memory.deallocate(block, layout) };
        };
        let first = block.cast::<Block>().as_ptr();
        // SAFETY: the caller passes a live block, which has two words and is not used any more.
        let kept = unsafe {
            if Block::is_free(first) {
                return invalid_free(FreeError::AlreadyFree, block.addr().get());
            }
            self.with_bins(|bins| bins[class].push(first, Self::whole(class)))
        };
        match kept {
            Some(surplus) if surplus.is_null() => {}
            Some(surplus) => self.free_batch(class, surplus),
            // SAFETY: a block of this class was allocated with this layout.
            None => unsafe { self.memory.deallocate(block, layout_of(class)) },
        }
    }

    /// Checks a block as the memory does, which regards a kept block as live.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, self.class_of(layout).map_or(layout, layout_of))
    }

    /// Checks a block as the memory does, and also that it is not kept.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let Some(class) = self.class_of(layout) else {
            // SAFETY: the caller's contract.
            return unsafe { self.memory.check_owned(block, layout) };
        };
        // SAFETY: the caller's contract; the memory checks that a block of the class can begin there.
        unsafe { self.memory.check_owned(block, layout_of(class))? };
        // SAFETY: as above.
        if unsafe { Block::is_free(block.cast().as_ptr()) } { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return false };
        let classes = (self.class_of(layout), self.class_of(new));
        // SAFETY: the caller's contract; a block without a class belongs to the memory.
        classes.0 == classes.1
            && (classes.0.is_some() || unsafe { self.memory.try_resize(block, layout, size) })
    }

    // The memory counts kept blocks as in use.
    pass_on!(|self| self.memory; statistics, region, add_reserve, remembers, own_lock);

    fn largest_free(&self) -> usize {
        self.sure_of(self.memory.largest_free())
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let error = self.memory.out_of_memory(layout);
        OutOfMemory { largest_free: self.sure_of(error.largest_free), ..error }
    }
}

global_alloc!([M: Memory, C: Cores, L: Lock, const CORES: usize, const BATCH: usize] PerCore<M, C, L, CORES, BATCH>);
allocator!([M: Memory, C: Cores, L: Lock, const CORES: usize, const BATCH: usize] PerCore<M, C, L, CORES, BATCH>);

debug!([M, C, L, const CORES: usize, const BATCH: usize] PerCore<M, C, L, CORES, BATCH>, |self| cores: CORES, batch: BATCH);
