//! A program that uses an allocator and knows what every live block must hold.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// An allocator that is to be misused, whatever its type.
pub trait Allocator {
    /// Allocates a block, as `GlobalAlloc::alloc` does. No request has size zero.
    fn alloc(&self, layout: Layout) -> *mut u8;
    /// Frees a block, rightly or not.
    fn dealloc(&self, block: *mut u8, layout: Layout);
    /// Resizes a block, rightly or not.
    fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8;
}

/// A live block.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its first byte.
    pub start: *mut u8,
    /// Its layout.
    pub layout: Layout,
    /// What its bytes follow from.
    seed: u8,
}

/// The memory of an allocator.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its first byte.
    pub start: *mut u8,
    /// Its bytes.
    pub size: usize,
}

/// The program.
pub struct Lab {
    /// The allocator.
    pub allocator: Box<dyn Allocator>,
    /// Another one of its kind, if that has an arena.
    pub other: Option<Box<dyn Allocator>>,
    /// The allocator's memory; `None` if it is not confined to an arena.
    pub arena: Option<Place>,
    /// Whether threads may share the allocator.
    pub shared: bool,
    live: BTreeMap<usize, Block>,
    seed: u8,
    intact: bool,
}

/// Returns the layout of `size` bytes aligned to 8.
pub fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap_or(Layout::new::<u64>())
}

/// An allocator that is used by two threads.
struct Both<'a>(&'a dyn Allocator, Block);

// SAFETY: the allocator may be shared, which the caller of `free_in_two_threads` has found out.
unsafe impl Sync for Both<'_> {}

impl Lab {
    /// Makes the program, with some live blocks.
    pub fn new(
        allocator: Box<dyn Allocator>,
        other: Option<Box<dyn Allocator>>,
        arena: Option<Place>,
        shared: bool,
    ) -> Self {
        let mut lab = Self { allocator, other, arena, shared, live: BTreeMap::new(), seed: 0, intact: true };
        for size in [8, 24, 48, 48, 100, 600, 48, 48, 16, 300, 48, 5000, 48, 600, 600] {
            lab.block(layout(size));
        }
        lab
    }

    /// Frees a block in another thread, and waits for that.
    pub fn free_in_another_thread(&self, block: Block) {
        let both = &Both(&*self.allocator, block);
        thread::scope(|scope| {
            scope.spawn(move || both.0.dealloc(both.1.start, both.1.layout));
        });
    }

    /// Frees a block in two threads at about the same time. The program must not use it any more.
    pub fn free_in_two_threads(&mut self, block: Block) {
        self.forget(block);
        let (both, barrier) = (&Both(&*self.allocator, block), &Barrier::new(2));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(move || {
                    barrier.wait();
                    both.0.dealloc(both.1.start, both.1.layout);
                });
            }
        });
    }

    fn byte(seed: u8, at: usize) -> u8 {
        // Neither zero, nor what small numbers and addresses look like.
        (seed.wrapping_mul(37) ^ (at as u8).wrapping_mul(11)) | 0x81
    }

    /// Allocates a block, checks that it overlaps no other, and fills it.
    pub fn block(&mut self, layout: Layout) -> Option<Block> {
        let start = self.allocator.alloc(layout);
        if start.is_null() {
            return None;
        }
        let (from, end) = (start.addr(), start.addr() + layout.size());
        let before = self.live.range(..end).next_back();
        if before.is_some_and(|(&at, other)| at + other.layout.size() > from) || from % layout.align() != 0 {
            self.intact = false;
            return None;
        }
        self.seed = self.seed.wrapping_add(1);
        let block = Block { start, layout, seed: self.seed };
        for at in 0..layout.size() {
            // SAFETY: the block was allocated and overlaps no other.
            unsafe { start.add(at).write(Self::byte(block.seed, at)) };
        }
        self.live.insert(from, block);
        Some(block)
    }

    /// Allocates `N` blocks of `size` bytes.
    pub fn blocks<const N: usize>(&mut self, size: usize) -> [Block; N] {
        std::array::from_fn(|_| self.block(layout(size)).expect("the arena has room"))
    }

    /// Forgets a block, which the case frees by itself or spoils.
    pub fn forget(&mut self, block: Block) {
        self.live.remove(&block.start.addr());
    }

    /// Frees a block rightly.
    pub fn free(&mut self, block: Block) {
        self.check(&block);
        self.forget(block);
        self.allocator.dealloc(block.start, block.layout);
    }

    /// Checks the contents of a block.
    fn check(&mut self, block: &Block) {
        for at in 0..block.layout.size() {
            // SAFETY: the block is live.
            if unsafe { block.start.add(at).read() } != Self::byte(block.seed, at) {
                self.intact = false;
            }
        }
    }

    /// Allocates and frees `count` blocks of `size` bytes, all live at once.
    pub fn churn(&mut self, count: usize, size: usize) {
        let blocks: Vec<_> = (0..count).map_while(|_| self.block(layout(size))).collect();
        for block in blocks {
            self.free(block);
        }
    }

    /// Replaces 400 live blocks of 1 to 512 bytes at random, and returns the nanoseconds that an allocation with its free takes: the
    /// median of 9 rounds. The first and the last byte of each block are written to.
    pub fn price(self) -> f64 {
        const PAIRS: u32 = 20_000;
        let mut live = [(ptr::null_mut::<u8>(), layout(1)); 400];
        let mut random = 1_u64;
        let mut rounds: [f64; 9] = std::array::from_fn(|_| {
            let begin = Instant::now();
            for _ in 0..PAIRS {
                // Knuth's numbers for a linear congruence.
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = &mut live[(random >> 33) as usize % 400];
                let layout = layout(1 + (random >> 50) as usize % 512);
                if !place.0.is_null() {
                    self.allocator.dealloc(place.0, place.1);
                }
                *place = (self.allocator.alloc(layout), layout);
                if !place.0.is_null() {
                    // SAFETY: the block is live, and has these bytes.
                    unsafe {
                        place.0.write_volatile(1);
                        place.0.add(layout.size() - 1).write_volatile(1);
                    }
                }
            }
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
        });
        rounds.sort_by(f64::total_cmp);
        rounds[4]
    }

    /// Goes on for a while after the misuse. Returns whether all blocks were intact all the time.
    pub fn aftermath(mut self) -> bool {
        const SIZES: [usize; 12] = [48, 8, 48, 600, 24, 48, 100, 16, 56, 600, 40, 300];
        for round in 0..5 {
            let mut mine = Vec::new();
            for at in 0..150 {
                mine.extend(self.block(layout(SIZES[(at + round) % SIZES.len()])));
                if !self.intact {
                    return false;
                }
            }
            let all: Vec<Block> = self.live.values().copied().collect();
            all.iter().for_each(|block| self.check(block));
            for at in (0..mine.len()).step_by(2).chain((0..mine.len()).skip(1).step_by(2)) {
                self.free(mine[at]);
                if !self.intact {
                    return false;
                }
            }
        }
        let all: Vec<Block> = self.live.values().copied().collect();
        for block in all {
            self.free(block);
        }
        self.intact
    }
}
