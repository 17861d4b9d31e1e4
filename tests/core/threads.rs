//! Thread caches: every block is checked against a map of the whole arena, from all threads.

#[cfg(all(unix, panic = "unwind"))]
use crate::child::{child, role};
use allotment::lock::{Counted, Spin};
use allotment::os::{Cached, Depot};
use allotment::placement::Placement;
use allotment::{FirstFit, FreeError, Heap, Memory, Region, Slab, Tiered, Tlsf};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::RefCell;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;

/// A cached heap over its own arena, with a flag for every 8 bytes of that which says whether a block covers them.
/// All of it lives forever, as thread caches require.
struct Shadow<P: 'static> {
    cached: Cached<Heap<P, Spin>>,
    start: usize,
    taken: Vec<AtomicBool>,
}

/// A live block, whose contents follow from its seed.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    seed: u8,
}

// SAFETY: a block belongs to the owner of the value.
unsafe impl Send for Block {}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

impl Block {
    fn byte(&self, index: usize) -> u8 {
        (index as u8).wrapping_mul(31) ^ self.seed
    }

    fn fill(&self, from: usize) {
        for index in from..self.layout.size() {
            // SAFETY: the block is live and has that many bytes.
            unsafe { self.start.add(index).write(self.byte(index)) };
        }
    }

    fn check(&self, size: usize) {
        for index in 0..size {
            // SAFETY: as in `fill`.
            assert_eq!(unsafe { self.start.add(index).read() }, self.byte(index), "byte {index}");
        }
    }
}

impl<P: Placement + Send + 'static> Shadow<P> {
    fn new(size: usize, cache: usize) -> &'static Self {
        let heap: &'static Heap<P, Spin> = Box::leak(Box::new(Heap::empty()));
        let arena: &'static mut [u64] = vec![0; size / 8].leak();
        let start = NonNull::from(&mut *arena).cast::<u8>();
        // SAFETY: the arena belongs to the heap forever.
        unsafe { heap.claim(Region::new(start, size)) }.unwrap();
        let depot = Box::leak(Box::new(Depot::new(heap, cache)));
        Box::leak(Box::new(Self {
            cached: Cached::new(depot),
            start: start.addr().get(),
            taken: (0..size / 8).map(|_| AtomicBool::new(false)).collect(),
        }))
    }

    /// Marks the words of a block. `Relaxed`, so that the marks add no ordering that the allocator does not have.
    fn mark(&self, block: &Block, taken: bool) {
        let offset = block.start.addr().get().checked_sub(self.start).expect("the block lies in the arena");
        assert_eq!(block.start.addr().get() % block.layout.align(), 0);
        for word in offset / 8..(offset + block.layout.size()).div_ceil(8) {
            let before = self.taken[word].swap(taken, Ordering::Relaxed);
            assert_ne!(before, taken, "word {word} of a block at {offset} of {:?}", block.layout);
        }
    }

    fn allocate(&self, layout: Layout, seed: u8) -> Option<Block> {
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { self.cached.alloc(layout) })?;
        let block = Block { start, layout, seed };
        self.mark(&block, true);
        block.fill(0);
        Some(block)
    }

    fn allocate_zeroed(&self, layout: Layout, seed: u8) -> Option<Block> {
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { self.cached.alloc_zeroed(layout) })?;
        let block = Block { start, layout, seed };
        self.mark(&block, true);
        // SAFETY: the block is live and has that many bytes.
        assert!((0..layout.size()).all(|index| unsafe { start.add(index).read() } == 0));
        block.fill(0);
        Some(block)
    }

    fn free(&self, block: Block) {
        block.check(block.layout.size());
        self.mark(&block, false);
        // SAFETY: the block is live and not used any more.
        unsafe { self.cached.dealloc(block.start.as_ptr(), block.layout) }
    }

    fn resize(&self, block: Block, size: usize) -> Block {
        self.mark(&block, false);
        // SAFETY: as in `free`; the size is not zero.
        let start = unsafe { self.cached.realloc(block.start.as_ptr(), block.layout, size) };
        let Some(start) = NonNull::new(start) else {
            self.mark(&block, true);
            block.check(block.layout.size());
            return block;
        };
        let kept = block.layout.size().min(size);
        let block = Block { start, layout: layout(size, block.layout.align()), ..block };
        self.mark(&block, true);
        block.check(kept);
        block.fill(kept);
        block
    }

    /// Performs random operations; one block in eight is left for another thread to free.
    fn stress(&self, seed: u64, rounds: usize, mail: &[Mutex<Vec<Block>>]) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live = Vec::new();
        for _ in 0..rounds {
            let bits = random.u32(1..12);
            let size = random.usize(1..1 << bits);
            let layout = layout(size, 1 << random.u32(0..5).saturating_sub(1));
            match random.u32(0..16) {
                0 => live.extend(self.allocate_zeroed(layout, random.u8(..))),
                1..8 => live.extend(self.allocate(layout, random.u8(..))),
                _ if live.is_empty() => {}
                8 | 9 => {
                    let block = live.swap_remove(random.usize(..live.len()));
                    live.push(self.resize(block, size));
                }
                10 => {
                    let block = live.swap_remove(random.usize(..live.len()));
                    mail[random.usize(..mail.len())].lock().unwrap().push(block);
                }
                11 => {
                    let found = std::mem::take(&mut *mail[random.usize(..mail.len())].lock().unwrap());
                    found.into_iter().for_each(|block| self.free(block));
                }
                _ => self.free(live.swap_remove(random.usize(..live.len()))),
            }
        }
        live.into_iter().for_each(|block| self.free(block));
    }

    /// Checks that no block is live and that the caches of ended threads have kept nothing.
    fn finish(&self) {
        assert!(self.taken.iter().all(|word| !word.load(Ordering::Relaxed)));
        self.cached.flush();
        let stats = self.cached.heap().stats();
        assert_eq!((stats.used, stats.live_blocks), (0, 0));
    }
}

/// Runs `body` on new threads, and waits until their destructors have run.
fn on_threads(count: usize, body: impl Fn(usize) + Sync) {
    thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || body(number))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

fn stress<P: Placement + Send + 'static>(size: usize, cache: usize) {
    let shadow = Shadow::<P>::new(size, cache);
    let mail: [Mutex<Vec<Block>>; 3] = Default::default();
    let largest = shadow.cached.heap().largest_free();
    for round in 0..3 {
        on_threads(4, |number| shadow.stress(round * 4 + number as u64, 10_000, &mail));
    }
    on_threads(1, |_| {
        for letters in &mail {
            std::mem::take(&mut *letters.lock().unwrap()).into_iter().for_each(|block| shadow.free(block));
        }
    });
    shadow.finish();
    let whole = shadow.cached.heap().try_allocate(layout(largest, 1));
    assert!(whole.is_ok(), "{whole:?}");
}

#[test]
fn threads_with_room() {
    stress::<Tiered>(16 << 20, 512 << 10);
    stress::<Tlsf>(16 << 20, 512 << 10);
}

/// The threads together request several times what there is.
#[test]
fn threads_that_run_out_of_memory() {
    stress::<Tiered>(256 << 10, 128 << 10);
    stress::<Tlsf>(256 << 10, 128 << 10);
    stress::<FirstFit>(256 << 10, 16 << 10);
}

#[test]
fn threads_with_small_caches() {
    stress::<Slab>(4 << 20, 8 << 10);
    stress::<FirstFit>(4 << 20, 1);
}

/// Blocks that one thread allocates and another frees come back, although neither cache is ever flushed: the arena
/// is a small part of all that is allocated.
#[test]
fn blocks_flow_from_thread_to_thread() {
    let shadow = Shadow::<Tiered>::new(4 << 20, 64 << 10);
    let (give, take) = std::sync::mpsc::sync_channel(256);
    thread::scope(|scope| {
        let producer = scope.spawn(move || {
            let mut random = fastrand::Rng::with_seed(1);
            for round in 0..100_000 {
                give.send(shadow.allocate(layout(random.usize(1..=4096), 8), round as u8).unwrap()).unwrap();
            }
        });
        let consumer = scope.spawn(move || take.into_iter().for_each(|block| shadow.free(block)));
        producer.join().unwrap();
        consumer.join().unwrap();
    });
    assert_eq!(shadow.cached.heap().stats().failed, 0);
    shadow.finish();
}

/// Fills the heap with blocks of 64 bytes.
fn fill(shadow: &Shadow<Tlsf>) -> Vec<Block> {
    std::iter::from_fn(|| shadow.allocate(layout(64, 8), 1)).collect()
}

#[test]
fn a_failing_request_empties_its_own_cache() {
    let shadow = Shadow::<Tlsf>::new(64 << 10, 1 << 20);
    on_threads(1, |_| {
        fill(shadow).into_iter().for_each(|block| shadow.free(block));
        let large = shadow.allocate(layout(56 << 10, 8), 2).expect("what is cached is given back");
        shadow.free(large);
    });
    shadow.finish();
}

#[test]
fn a_failing_request_empties_the_depot_and_other_caches() {
    let shadow = Shadow::<Tlsf>::new(64 << 10, 1 << 20);
    let (filled, failed) = (&Barrier::new(2), &Barrier::new(2));
    let large = layout(62 << 10, 8);
    on_threads(2, |number| {
        if number == 0 {
            fill(shadow).into_iter().for_each(|block| shadow.free(block));
            filled.wait();
            failed.wait();
            // After one operation, everything that was cached here belongs to the heap again.
            shadow.free(shadow.allocate(layout(8, 8), 3).unwrap());
            filled.wait();
            failed.wait();
        } else {
            // Assert at the end, so that the other thread does not wait for one that has panicked.
            filled.wait();
            let early = shadow.allocate(large, 4);
            failed.wait();
            filled.wait();
            let late = shadow.allocate(large, 5);
            failed.wait();
            assert!(early.is_none(), "the other thread's cache holds some of it");
            shadow.free(late.expect("the other thread has heard"));
        }
    });
    shadow.finish();
}

#[test]
fn a_thread_keeps_a_bounded_number_of_bytes() {
    const BOUND: usize = 64 << 10;
    let shadow = Shadow::<Tlsf>::new(8 << 20, BOUND);
    on_threads(1, |_| {
        for size in 1..=4096 {
            let blocks: Vec<_> = (0..200).map_while(|_| shadow.allocate(layout(size, 8), 1)).collect();
            assert_eq!(blocks.len(), 200);
            blocks.into_iter().for_each(|block| shadow.free(block));
            // Its own, and the depot's.
            assert!(shadow.cached.heap().used() <= 3 * BOUND);
        }
        assert!(shadow.cached.heap().used() > 0, "nothing is cached");
        shadow.cached.flush();
        assert_eq!(shadow.cached.heap().used(), 0);
    });
}

/// Frees, allocates and frees when the thread's other destructors run.
struct Late(RefCell<Option<(&'static Shadow<Tiered>, Block)>>);

impl Drop for Late {
    fn drop(&mut self) {
        let (shadow, block) = self.0.take().expect("every thread of this test leaves a block here");
        shadow.free(block);
        shadow.free(shadow.allocate(layout(100, 8), 6).unwrap());
    }
}

thread_local! {
    static BEFORE: Late = const { Late(RefCell::new(None)) };
    static AFTER: Late = const { Late(RefCell::new(None)) };
}

/// One destructor was registered before the cache's and one after it, so one of them runs when the cache is gone.
#[test]
fn destructors_of_threads_may_free() {
    let shadow = Shadow::<Tiered>::new(1 << 20, 256 << 10);
    for _ in 0..20 {
        on_threads(2, |_| {
            BEFORE.with(|before| {
                let block = shadow.allocate(layout(100, 8), 7).unwrap();
                before.0.replace(Some((shadow, block)));
            });
            AFTER.with(|after| {
                let block = shadow.allocate(layout(100, 8), 8).unwrap();
                after.0.replace(Some((shadow, block)));
            });
            let blocks: Vec<_> = (0..100).map(|_| shadow.allocate(layout(100, 8), 9).unwrap()).collect();
            blocks.into_iter().for_each(|block| shadow.free(block));
        });
    }
    shadow.finish();
}

/// More heaps than a thread has caches for; blocks of one never come from another.
#[test]
fn heaps_do_not_mix() {
    let shadows: Vec<_> = (0..6).map(|_| Shadow::<Tiered>::new(1 << 20, 64 << 10)).collect();
    on_threads(2, |number| {
        let mut random = fastrand::Rng::with_seed(number as u64);
        let mut live: Vec<(usize, Block)> = Vec::new();
        for _ in 0..50_000 {
            if random.bool() && live.len() < 1000 {
                let heap = random.usize(..shadows.len());
                let block = shadows[heap].allocate(layout(random.usize(1..=300), 8), heap as u8).unwrap();
                live.push((heap, block));
            } else if !live.is_empty() {
                let (heap, block) = live.swap_remove(random.usize(..live.len()));
                shadows[heap].free(block);
            }
        }
        live.into_iter().for_each(|(heap, block)| shadows[heap].free(block));
    });
    shadows.iter().for_each(|shadow| shadow.finish());
}

/// The same through the `Allocator` trait.
#[cfg(feature = "allocator-api2")]
#[test]
fn collections_of_several_threads() {
    use allocator_api2::vec::Vec as VecIn;

    let shadow = Shadow::<Tiered>::new(1 << 20, 64 << 10);
    on_threads(2, |number| {
        let mut rows = VecIn::new_in(shadow.cached);
        for length in 0..200 {
            let mut row = VecIn::new_in(shadow.cached);
            (0..length).for_each(|index| row.push(index * number));
            rows.push(row);
        }
        let sum: usize = rows.iter().flatten().sum();
        assert_eq!(sum, (0..200).map(|length: usize| length * length.saturating_sub(1) / 2 * number).sum());
    });
    shadow.finish();
}

/// What a thread has of one class, as the documentation says: a list in use, another one, and what is in the depot.
#[derive(Default)]
struct Model {
    /// Blocks to request next time.
    batch: usize,
    /// Blocks in the list in use, and in the other one.
    used: usize,
    other: usize,
    /// Full lists in the depot.
    full: usize,
}

impl Model {
    /// What a list holds if the caches may have enough bytes, and the places of a depot.
    const CAPACITY: usize = 64;
    const PLACES: usize = 4;

    fn new(size: usize) -> Self {
        Self { batch: (64 / size.max(16)).max(1), ..Self::default() }
    }

    /// Allocates a block, and returns how often the lock is taken.
    fn allocate(&mut self) -> usize {
        let mut taken = 0;
        if self.used == 0 {
            self.used = std::mem::take(&mut self.other);
        }
        if self.used == 0 {
            let batch = self.batch;
            self.batch = (2 * batch).min(Self::CAPACITY);
            if self.full > 0 {
                (self.used, self.full) = (Self::CAPACITY, self.full - 1);
            } else {
                (self.used, taken) = (batch, 1);
            }
        }
        self.used -= 1;
        taken
    }

    /// Frees a block, and returns how often the lock is taken.
    fn free(&mut self) -> usize {
        let mut taken = 0;
        if self.used == Self::CAPACITY {
            match self.other {
                0 => {}
                _ if self.full < Self::PLACES => self.full += 1,
                _ => taken = 1,
            }
            (self.other, self.used) = (Self::CAPACITY, 0);
        }
        self.used += 1;
        taken
    }
}

/// Each operation takes the heap's lock as often as the lists make necessary.
#[test]
fn the_lock_is_taken_once_a_batch() {
    for size in [8, 24, 56, 64, 72, 512, 4096] {
        let heap: &'static Heap<Tlsf, Counted<Spin>> = Box::leak(Box::new(Heap::empty()));
        let arena: &'static mut [u64] = vec![0; 1 << 20].leak();
        // SAFETY: the arena belongs to the heap forever.
        unsafe { heap.claim(Region::new(NonNull::from(&mut *arena).cast(), 8 << 20)) }.unwrap();
        let cached = Cached::new(Box::leak(Box::new(Depot::new(heap, 1 << 30))));
        let block = layout(size, 8);
        on_threads(1, |_| {
            let (mut model, mut live) = (Model::new(size), Vec::new());
            let mut random = fastrand::Rng::with_seed(size as u64);
            for goal in [1, 3, 0, 200, 100, 600, 0, 700, 300, 500, 0] {
                while live.len() != goal {
                    // Mostly towards the goal.
                    let is_up = (live.len() < goal) != (random.u8(..4) == 0);
                    let before = heap.contention().taken;
                    let expected = if is_up || live.is_empty() {
                        // SAFETY: the size is not zero.
                        live.push(unsafe { cached.alloc(block) });
                        model.allocate()
                    } else {
                        let block_of = live.swap_remove(random.usize(..live.len()));
                        // SAFETY: allocated above, and not used any more.
                        unsafe { cached.dealloc(block_of, block) };
                        model.free()
                    };
                    let taken = heap.contention().taken - before;
                    assert_eq!(taken, expected, "{size} bytes, {} blocks, up: {is_up}", live.len());
                }
            }
            cached.flush();
        });
        assert_eq!(heap.used(), 0);
    }
}

/// A cached block counts as free until it is allocated again, for every thread and wherever it is cached.
#[test]
fn double_frees_of_cached_blocks_are_found() {
    let shadow: &Shadow<Tlsf> = Shadow::new(4 << 20, 1 << 20);
    let cached = shadow.cached;
    for size in [1, 8, 16, 100, 600, 2000] {
        let layout = layout(size, 8);
        // More than the two lists of a thread hold, so that the depot has some, and less than both hold.
        let count = 4 * 52.min((1 << 20) / 100 / size.next_multiple_of(8));
        let blocks: Vec<_> = (0..count).map(|_| cached.allocate(layout).unwrap()).collect();
        // SAFETY: the blocks are live, and freed once.
        blocks.iter().for_each(|&block| unsafe { cached.deallocate(block, layout) });
        let last = *blocks.last().unwrap();
        // SAFETY: the block is free, and is not freed.
        let freed = unsafe { cached.try_deallocate(last, layout) };
        assert_eq!(freed, Err(FreeError::AlreadyFree), "{size} bytes");
        let addresses: Vec<_> = blocks.iter().map(|block| block.addr()).collect();
        let refused = move || {
            let refused = |&&block: &&NonZero<usize>| {
                let block = shadow.cached.heap().region(0).unwrap().start.with_addr(block);
                // SAFETY: the block is free, and is not freed.
                unsafe { shadow.cached.try_deallocate(block, layout).is_err() }
            };
            addresses.iter().filter(refused).count()
        };
        assert_eq!(refused(), blocks.len(), "{size} bytes");
        let elsewhere = thread::spawn(refused);
        assert_eq!(elsewhere.join().unwrap(), blocks.len(), "{size} bytes");
        assert_eq!(cached.allocate(layout), Some(last));
        // SAFETY: the block is live.
        assert_eq!(unsafe { cached.try_deallocate(last, layout) }, Ok(()));
    }
}

#[test]
fn caches_show_nothing_of_themselves() {
    let shadow = Shadow::<Tiered>::new(64 << 10, 1 << 10);
    assert_eq!(format!("{:?}", shadow.cached), "Cached { .. }");
}

/// Threads share a heap of every placement, and one looks at it meanwhile: what a placement reads of blocks in use is a data race with
/// their owners, which the thread sanitizer reports.
mod shared {
    use super::*;
    use allotment::harden::Full;
    use allotment::placement::{MicroTlsf, QuickLists};
    use allotment::{BestFit, Buddy, Bump};

    /// Live blocks that threads hand to each other.
    type Mail = Mutex<Vec<Block>>;

    fn work<P: Placement + Send>(heap: &Heap<P, Spin>, seed: u64, mail: &Mail) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live: Vec<Block> = Vec::new();
        let free = |block: Block| {
            block.check(block.layout.size());
            // SAFETY: the block is live and not used any more.
            unsafe { heap.dealloc(block.start.as_ptr(), block.layout) };
        };
        for _ in 0..2_000 {
            let bits = random.u32(1..12);
            let size = random.usize(1..1 << bits);
            match random.u32(0..8) {
                0..4 => {
                    let layout = layout(size, 1 << random.u32(0..7));
                    let Ok(start) = heap.try_allocate(layout) else { continue };
                    let block = Block { start, layout, seed: random.u8(..) };
                    block.fill(0);
                    live.push(block);
                }
                _ if live.is_empty() => {}
                4 => {
                    let block = live.swap_remove(random.usize(..live.len()));
                    // SAFETY: the block is live; the size is not zero.
                    let start = unsafe { heap.realloc(block.start.as_ptr(), block.layout, size) };
                    let Some(start) = NonNull::new(start) else {
                        live.push(block);
                        continue;
                    };
                    let kept = block.layout.size().min(size);
                    let block = Block { start, layout: layout(size, block.layout.align()), ..block };
                    block.check(kept);
                    block.fill(kept);
                    live.push(block);
                }
                5 => {
                    let block = live.swap_remove(random.usize(..live.len()));
                    mail.lock().unwrap().push(block);
                }
                6 => {
                    let block = mail.lock().unwrap().pop();
                    block.into_iter().for_each(free);
                }
                _ => free(live.swap_remove(random.usize(..live.len()))),
            }
        }
        live.into_iter().for_each(free);
    }

    fn run<P: Placement + Send>() {
        let heap = Heap::<P, Spin>::empty();
        let mut memory = vec![0u128; 20_000];
        let (first, second) = memory.split_at_mut(12_000);
        for (part, is_needed) in [(first, true), (second, false)] {
            let region = Region::new(NonNull::from(&mut *part).cast(), size_of_val(part));
            // SAFETY: the memory outlives the heap, and is used by nothing else.
            let claimed = unsafe { heap.claim(region) };
            assert!(claimed.is_ok() || !is_needed, "{claimed:?}");
        }
        let mail = Mail::default();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|seed| {
                    let (heap, mail) = (&heap, &mail);
                    scope.spawn(move || work(heap, seed, mail))
                })
                .collect();
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let blocks = heap.blocks().filter(|run| run.size > 0).count();
                    assert!(blocks > 0 && heap.largest_free() <= heap.stats().capacity);
                    thread::yield_now();
                }
            });
            let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            is_done.store(true, Ordering::Relaxed);
            results.into_iter().for_each(|result| result.unwrap());
        });
        for block in mail.into_inner().unwrap() {
            // SAFETY: the block is live.
            unsafe { heap.dealloc(block.start.as_ptr(), block.layout) };
        }
        heap.trim();
        assert_eq!(heap.stats().live_blocks, 0);
    }

    macro_rules! shared {
        ($($name:ident: $placement:ty;)*) => {
            $(
                #[test]
                fn $name() {
                    run::<$placement>();
                }
            )*
        };
    }

    shared! {
        tlsf: Tlsf;
        tlsf_one_region: Tlsf<u32, 1>;
        tlsf_off: Tlsf<u32, 4, 8, false>;
        micro: MicroTlsf;
        first_fit: FirstFit;
        first_fit_unchecked: FirstFit<4, false>;
        best_fit: BestFit;
        buddy: Buddy;
        buddy_one_region: Buddy<1, 8>;
        slab: Slab;
        tiered: Tiered;
        quick_lists: QuickLists<Tlsf>;
        full: Full<Tiered>;
        full_tlsf: Full<Tlsf>;
        full_first_fit: Full<FirstFit>;
        full_buddy: Full<Buddy>;
        bump: Bump;
    }
}

/// A thread that cannot be given caches, because the system has no more keys, gets them as soon as it has.
#[test]
#[cfg(all(unix, panic = "unwind"))]
fn threads_get_caches_when_the_system_has_keys_again() {
    unsafe extern "C" {
        fn pthread_key_create(key: *mut u32, end: Option<unsafe extern "C" fn(*mut u8)>) -> i32;
        fn pthread_key_delete(key: u32) -> i32;
    }
    // Not in this process, whose other tests need keys too.
    if role().is_none() {
        let name = "threads::threads_get_caches_when_the_system_has_keys_again";
        let (success, text) = child(name, "without keys", "0");
        return assert!(success, "{text}");
    }
    let memory: &'static mut [u64] = vec![0; 4096].leak();
    let heap: &'static Heap<Tlsf, Counted<Spin>> = Box::leak(Box::new(Heap::empty()));
    // SAFETY: the memory belongs to the heap forever.
    unsafe { heap.claim(Region::new(NonNull::from(memory).cast(), 8 * 4096)) }.unwrap();
    let cached = Cached::new(Box::leak(Box::new(Depot::new(heap, 16 << 10))));
    let locks = || {
        let before = heap.contention().taken;
        let block = cached.allocate(layout(64, 8)).unwrap();
        // SAFETY: the block is live.
        unsafe { cached.deallocate(block, layout(64, 8)) };
        heap.contention().taken - before
    };
    let mut key = 0;
    // SAFETY: the keys have no destructor, and the last one is not used.
    unsafe {
        while pthread_key_create(&mut key, None) == 0 {}
        assert!((0..10).all(|_| locks() > 0), "there is no cache");
        assert_eq!(pthread_key_delete(key), 0);
    }
    assert!((0..10).any(|_| locks() == 0), "there is no cache again");
}
