//! Searches for the most instructions that a call can take, and prints one `name value` per line.
//!
//! # The programs
//!
//! Lengths are in units of 8 bytes. Every call of every program is counted, including passing the arguments, the
//! call and the return, but not reading the counter. Blocks are checked as in `workload`.
//!
//! * *neighbours*: a block is freed, or resized, between two neighbours that are free or not, of lengths around the
//!   borders of size classes, whose lists hold other blocks before them, behind them, both, or neither.
//! * *fill and drain*: blocks of one length until a request fails, every second one freed, the next length.
//! * *crowded lists*: many free blocks that are a little too short for the request.
//! * *Robson's program* (1974): blocks of powers of two, of which those are kept that spoil most.
//! * *palettes*: random calls with a few lengths that are sums and multiples of each other, in an arena that is small
//!   enough to be full half of the time; 400 seeds.
//!
//! The figures: `alloc` is a request that is satisfied, `aligned` one for more than 8 bytes' alignment, `failing` one
//! that is not satisfied, `free`, `resize` (that stays in place), and `moving` (a resize that moves, of blocks of up to
//! 64 bytes, copying included). With the feature `_masked` it is the longest time with the lock instead; each with `_calls`, the number that was counted, and `_worst`.
#![no_std]
#![no_main]

extern crate alloc;

#[cfg(not(target_family = "wasm"))]
mod program {
    use alloc::alloc::{alloc, dealloc, realloc};
    use core::alloc::Layout;
    use core::hint::black_box;
    use core::ptr;

    use measure::{Instant, calibrate};
    use semihosting::println;

    use super::alloc;

    const UNIT: usize = 8;
    const ARENA: usize = 64 * 1024;
    const SMALL: usize = 8 * 1024;
    const SEEDS: u32 = 400;
    const STEPS: usize = 250;
    /// The most bytes that a moving resize copies.
    const COPIED: usize = 64;
    /// The most live blocks of a program.
    const LIVE: usize = 1200;

    /// Exit status if a block lies outside the arena or is not aligned.
    const WRONG_BLOCK: i32 = 4;

    /// Lengths around the borders of size classes.
    const LENGTHS: [usize; 12] = [1, 2, 5, 15, 16, 17, 31, 32, 33, 63, 129, 300];

    #[repr(C, align(4096))]
    struct Arena([u8; ARENA]);

    static mut MEMORY: Arena = Arena([0; ARENA]);

    #[derive(Clone, Copy)]
    struct Block {
        start: *mut u8,
        layout: Layout,
    }

    /// The most instructions of one kind of call.
    #[derive(Clone, Copy)]
    struct Most {
        calls: u32,
        worst: u32,
    }

    #[derive(Clone, Copy)]
    enum Call {
        Alloc,
        Aligned,
        Failing,
        Free,
        Resize,
        Moving,
    }

    const NAMES: [&str; 6] = ["alloc", "aligned", "failing", "free", "resize", "moving"];

    /// A program, with its live blocks.
    struct Program {
        empty: u32,
        most: [Most; 6],
        blocks: [Block; LIVE],
        count: usize,
    }

    struct Random(u32);

    impl Random {
        /// A number below `bound`, which is small, so that the bias does not matter.
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 17;
            self.0 ^= self.0 << 5;
            ((u64::from(self.0) * bound as u64) >> 32) as usize
        }
    }

    fn layout(units: usize, align: usize) -> Layout {
        // SAFETY: all sizes here are far below the limit, and alignments are powers of two.
        unsafe { Layout::from_size_align_unchecked(units * UNIT, align) }
    }

    impl Program {
        fn start_over(&mut self, arena: usize) {
            // SAFETY: only the allocator uses the memory, and all earlier blocks are forgotten.
            unsafe { measure::start_over((&raw mut MEMORY).cast(), arena) }
            self.count = 0;
        }

        fn count(&mut self, call: Call, count: u32) {
            let most = &mut self.most[call as usize];
            most.calls += 1;
            // A call that takes no lock counts as nothing.
            most.worst = most.worst.max(measure::window(count).saturating_sub(self.empty));
        }

        /// Returns whether a block was allocated; if so, its number is the last one.
        fn aligned(&mut self, units: usize, align: usize) -> bool {
            if self.count == LIVE {
                return false;
            }
            let layout = black_box(layout(units, align));
            // What was not counted is not this call's.
            measure::window(0);
            let from = Instant::now();
            // SAFETY: no size here is zero.
            let start = unsafe { alloc(layout) };
            let count = from.elapsed();
            let start = black_box(start);
            if start.is_null() {
                self.count(Call::Failing, count);
                return false;
            }
            self.count(if align > UNIT { Call::Aligned } else { Call::Alloc }, count);
            let arena = measure::memory((&raw mut MEMORY).cast());
            let end = start.addr() + layout.size();
            if start.addr() < arena || end > arena + ARENA || start.addr() % align != 0 {
                measure::exit(WRONG_BLOCK);
            }
            self.blocks[self.count] = Block { start, layout };
            self.count += 1;
            true
        }

        fn alloc(&mut self, units: usize) -> bool {
            self.aligned(units, UNIT)
        }

        /// Frees block number `number`; the last block takes its number.
        fn free(&mut self, number: usize) {
            let Block { start, layout } = self.blocks[number];
            // What was not counted is not this call's.
            measure::window(0);
            let from = Instant::now();
            // SAFETY: the block is live.
            unsafe { dealloc(start, layout) };
            let count = from.elapsed();
            self.count(Call::Free, count);
            self.count -= 1;
            self.blocks[number] = self.blocks[self.count];
        }

        fn resize(&mut self, number: usize, units: usize) {
            let Block { start, layout: old } = self.blocks[number];
            let size = black_box(units * UNIT);
            // What was not counted is not this call's.
            measure::window(0);
            let from = Instant::now();
            // SAFETY: the block is live, and the size is not zero.
            let moved = unsafe { realloc(start, old, size) };
            let count = from.elapsed();
            if moved.is_null() {
                self.count(Call::Failing, count);
                return;
            }
            if moved == start {
                self.count(Call::Resize, count);
            } else if old.size().min(size) <= COPIED {
                self.count(Call::Moving, count);
            }
            self.blocks[number] = Block { start: moved, layout: layout(units, old.align()) };
        }

        /// The number of the block at `start`.
        fn find(&self, start: *mut u8) -> usize {
            self.blocks[..self.count].iter().position(|block| block.start == start).unwrap_or(0)
        }

        fn neighbours(&mut self) {
            for left in LENGTHS {
                for right in LENGTHS {
                    for case in 0..64u32 {
                        let bit = |n: u32| case >> n & 1 == 1;
                        let middle = if bit(4) { 3 } else { left };
                        self.start_over(SMALL);
                        // Other blocks of the same lengths, each between walls: x x | left middle right | x x
                        let lengths = [left, 1, right, 1, left, middle, right, 1, left, 1, right, 1];
                        let mut starts = [ptr::null_mut(); 12];
                        for (start, units) in starts.iter_mut().zip(lengths) {
                            if !self.alloc(units) {
                                break;
                            }
                            *start = self.blocks[self.count - 1].start;
                        }
                        if self.count < starts.len() {
                            continue;
                        }
                        let mut free_numbered = |number: usize| {
                            let number = self.find(starts[number]);
                            self.free(number);
                        };
                        if bit(0) {
                            [0, 2].into_iter().for_each(&mut free_numbered);
                        }
                        if bit(1) {
                            free_numbered(4);
                        }
                        if bit(2) {
                            free_numbered(6);
                        }
                        if bit(3) {
                            [8, 10].into_iter().for_each(&mut free_numbered);
                        }
                        let number = self.find(starts[5]);
                        if bit(5) {
                            for units in [middle + right, middle + 1, 1, middle] {
                                self.resize(number, units);
                            }
                        }
                        let number = self.find(starts[5]);
                        self.free(number);
                        for (units, align) in [(middle, UNIT), (left + right, UNIT), (2, 256)] {
                            self.aligned(units, align);
                        }
                    }
                }
            }
        }

        fn fill_and_drain(&mut self) {
            for length in LENGTHS {
                for next in LENGTHS {
                    self.start_over(SMALL);
                    while self.alloc(length) {}
                    for number in (0..self.count).rev().step_by(2) {
                        self.free(number);
                    }
                    while self.alloc(next) {}
                    while self.aligned(next, 128) {}
                    while self.count > 0 {
                        self.free(self.count / 2);
                    }
                }
            }
        }

        fn crowded_lists(&mut self) {
            for length in LENGTHS {
                for more in 1..4 {
                    self.start_over(SMALL);
                    // Allocate blocks and walls in turn; then free all blocks, and take what is left.
                    let mut pairs = 0;
                    while pairs < 40 && self.alloc(length) && self.alloc(1) {
                        pairs += 1;
                    }
                    for number in (0..pairs).rev() {
                        self.free(2 * number);
                    }
                    while self.alloc(length + 4) {}
                    for units in [length + more, length, length + more] {
                        self.alloc(units);
                        self.aligned(units, 64);
                    }
                }
            }
        }

        fn robson(&mut self, live: usize, most: usize) {
            self.start_over(ARENA);
            for _ in 0..live {
                self.alloc(1);
            }
            let place = |block: &Block| block.start.addr() / UNIT;
            let occupies = |block: &Block, f: usize, len: usize| {
                f.wrapping_sub(place(block)) % len < block.layout.size() / UNIT
            };
            let (mut f, mut len) = (0, 2);
            while len <= most {
                let spoilt = |program: &Self, f: usize| -> usize {
                    let kept = program.blocks[..program.count].iter().filter(|block| occupies(block, f, len));
                    kept.map(|block| len - block.layout.size() / UNIT).sum()
                };
                if spoilt(self, f + len / 2) > spoilt(self, f) {
                    f += len / 2;
                }
                for number in (0..self.count).rev() {
                    if !occupies(&self.blocks[number], f, len) {
                        self.free(number);
                    }
                }
                let used: usize =
                    self.blocks[..self.count].iter().map(|block| block.layout.size() / UNIT).sum();
                for _ in 0..live.saturating_sub(used) / len {
                    self.alloc(len);
                }
                len *= 2;
            }
        }

        fn palettes(&mut self) {
            for seed in 1..=SEEDS {
                let mut random = Random(seed.wrapping_mul(0x9e37_79b9) | 1);
                let (a, b) = (1 + random.below(40), 1 + random.below(12));
                let palette = [a, b, a + b, 2 * a, a + 1, 1, 8 * b, 2 * a + b];
                self.start_over(SMALL);
                for step in 0..STEPS {
                    let units = palette[random.below(palette.len())];
                    // Fill up first, then empty.
                    let fill = if step / 64 % 2 == 0 { 8 } else { 3 };
                    match random.below(14) {
                        call if call < fill => _ = self.alloc(units),
                        8 => _ = self.aligned(units, 16 << random.below(6)),
                        9 | 10 if self.count > 0 => {
                            let number = random.below(self.count);
                            self.resize(number, units);
                        }
                        _ if self.count > 0 => {
                            let number = random.below(self.count);
                            self.free(number);
                        }
                        _ => {}
                    }
                }
                while self.count > 0 {
                    let number = random.below(self.count);
                    self.free(number);
                }
            }
        }
    }

    const NONE: Block = Block { start: ptr::null_mut(), layout: Layout::new::<()>() };

    /// Measures, and prints what it has found.
    #[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
    #[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
    fn main() -> ! {
        Instant::start();
        let empty = calibrate();
        // On the stack, which is large enough.
        let mut program =
            Program { empty, most: [Most { calls: 0, worst: 0 }; 6], blocks: [NONE; LIVE], count: 0 };
        program.neighbours();
        program.fill_and_drain();
        program.crowded_lists();
        for (live, most) in [(256, 16), (1024, 32), (1024, 256)] {
            program.robson(live, most);
        }
        program.palettes();
        for (name, Most { calls, worst }) in NAMES.into_iter().zip(program.most) {
            println!("{name}_calls {calls}");
            println!("{name}_worst {worst}");
        }
        measure::exit(0)
    }
}

// A module is only linked, never run.
#[cfg(target_family = "wasm")]
use measure as _;
