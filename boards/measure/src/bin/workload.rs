//! Measures the allocator in fixed workloads, and prints one `name value` per line.
//!
//! # The workloads
//!
//! Random numbers come from a xorshift generator of 32 bits (13, 17, 5). A *mixed size* is 8 to 512 bytes,
//! uniformly, or with a chance of 1 in 16 a *tail* of 513 to 4096 bytes; blocks are aligned to 4 bytes. Blocks
//! carry their number in their first and last bytes, which is checked when they are freed.
//!
//! * `alloc_*`, `free_*`: instructions of one call in an arena of 64 KiB. They include passing the arguments, the
//!   call and the return, but not reading the counter. There are 256 places; 20,000 times a place is chosen at
//!   random, and its block is freed, or if it has none it gets one of a mixed size. So half of the places have a
//!   block, and three quarters of the arena are live. Requests that fail are counted as `failed`, and in
//!   `failed_worst` instead of `alloc_*`.
//! * `aligned_alloc_*`, `aligned_free_*`: the same where a place's blocks are aligned to 4, 8, 16, 32 or 64 bytes, each for
//!   a fifth of the places.
//! * `few_alloc_*`, `few_free_*`: the same where a place's blocks have 16, 32, 64 or 128 bytes, each for a quarter of the places.
//! * `resize_*`: the same for the resizes in the next workload that leave the block in place.
//! * `live_permille`: requested bytes that are live when the first request fails, as a share of an arena of 32 KiB;
//!   the mean over 64 seeds. At each step a block of a mixed size is allocated with a chance of 50 %, a random block
//!   is freed with 10 %, and one is resized to another mixed size with 40 %.
//! * `blocks_8`, `blocks_24`: how many blocks of that size fit in an arena of 4 KiB.
//! * `largest`: the largest block that an arena of 4 KiB allocates, in bytes.
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

    const ARENA: usize = 64 * 1024;
    const HALF: usize = 32 * 1024;
    const SMALL: usize = 4 * 1024;
    const PLACES: usize = 256;
    const STEPS: usize = 20_000;
    const SEEDS: u32 = 64;

    /// Exit status if two blocks overlap, or one is misaligned or lies outside the arena.
    const WRONG_BLOCK: i32 = 4;

    #[repr(C, align(4096))]
    struct Arena([u8; ARENA]);

    static mut MEMORY: Arena = Arena([0; ARENA]);

    struct Random(u32);

    impl Random {
        fn next(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 17;
            self.0 ^= self.0 << 5;
            self.0
        }

        /// A number below `bound`, which is small, so that the bias does not matter.
        fn below(&mut self, bound: usize) -> usize {
            ((u64::from(self.next()) * bound as u64) >> 32) as usize
        }

        fn mixed_size(&mut self) -> usize {
            if self.below(16) == 0 { 513 + self.below(4096 - 512) } else { 8 + self.below(512 - 7) }
        }
    }

    #[derive(Clone, Copy)]
    struct Block {
        start: *mut u8,
        size: usize,
    }

    const NONE: Block = Block { start: ptr::null_mut(), size: 0 };

    fn layout(size: usize) -> Layout {
        layout_aligned(size, 4)
    }

    /// A layout that the compiler does not know.
    fn layout_aligned(size: usize, align: usize) -> Layout {
        // SAFETY: all sizes here are far below the limit, and all alignments are powers of two.
        unsafe { Layout::from_size_align_unchecked(size, black_box(align)) }
    }

    /// Allocates, and counts the instructions.
    #[inline(always)]
    fn allocate(layout: Layout) -> (*mut u8, u32) {
        let from = Instant::now();
        // SAFETY: no size here is zero.
        let start = unsafe { alloc(layout) };
        let count = from.elapsed();
        // Otherwise the compiler could remove an unused block.
        (black_box(start), count)
    }

    /// Frees, and counts the instructions.
    #[inline(always)]
    unsafe fn free(start: *mut u8, layout: Layout) -> u32 {
        let from = Instant::now();
        // SAFETY: the caller passes a live block.
        unsafe { dealloc(start, layout) };
        from.elapsed()
    }

    /// Resizes, and counts the instructions.
    #[inline(always)]
    unsafe fn resize(start: *mut u8, layout: Layout, size: usize) -> (*mut u8, u32) {
        let from = Instant::now();
        // SAFETY: the caller passes a live block and a size that is not zero.
        let start = unsafe { realloc(start, layout, size) };
        (start, from.elapsed())
    }

    /// Writes a block's number at both ends.
    fn mark(block: Block, number: usize) {
        let arena = measure::memory((&raw mut MEMORY).cast());
        if block.start.addr() < arena
            || block.start.addr() % 4 != 0
            || block.start.addr() + block.size > arena + ARENA
        {
            measure::exit(WRONG_BLOCK);
        }
        // SAFETY: the block lies in the arena, as was just checked, and belongs to this program.
        unsafe {
            block.start.write(number as u8);
            block.start.add(block.size - 1).write(number as u8);
        }
    }

    /// Checks a block's number.
    fn check(block: Block, number: usize) {
        // SAFETY: the block is live.
        let (first, last) = unsafe { (block.start.read(), block.start.add(block.size - 1).read()) };
        if first != number as u8 || last != number as u8 {
            measure::exit(WRONG_BLOCK);
        }
    }

    fn start_over(size: usize) {
        // SAFETY: only the allocator uses the memory, and all earlier blocks are forgotten.
        unsafe { measure::start_over((&raw mut MEMORY).cast(), size) }
    }

    /// Instruction counts of one kind of call.
    struct Counts {
        of: [u32; 4096],
        calls: u32,
        sum: u64,
        worst: u32,
    }

    impl Counts {
        const NONE: Self = Self { of: [0; 4096], calls: 0, sum: 0, worst: 0 };

        fn add(&mut self, count: u32) {
            self.of[(count as usize).min(self.of.len() - 1)] += 1;
            self.calls += 1;
            self.sum += u64::from(count);
            self.worst = self.worst.max(count);
        }

        /// The smallest count that 99 % of the calls do not exceed.
        fn p99(&self) -> usize {
            let mut left = self.calls / 100;
            for (count, &calls) in self.of.iter().enumerate().rev() {
                if calls > left {
                    return count;
                }
                left -= calls;
            }
            0
        }

        fn print(&self, name: &str) {
            let mean = self.sum * 10 / u64::from(self.calls.max(1));
            println!("{name}_calls {}", self.calls);
            println!("{name}_mean {}.{}", mean / 10, mean % 10);
            println!("{name}_p99 {}", self.p99());
            println!("{name}_worst {}", self.worst);
        }
    }

    /// What the blocks of a place are like.
    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        /// Of mixed sizes.
        Mixed,
        /// Of mixed sizes, and of an alignment that the place says.
        Aligned,
        /// Of one of four sizes, which the place says.
        Few,
    }

    /// Alignment of the blocks of a place.
    fn align_of(place: usize, kind: Kind) -> usize {
        if kind == Kind::Aligned { 4 << (place % 5) } else { 4 }
    }

    fn instructions(empty: u32, kind: Kind, allocs: &mut Counts, frees: &mut Counts) -> (u32, u32) {
        let mut random = Random(0x2545_f491);
        let mut blocks = [NONE; PLACES];
        let (mut failed, mut failed_worst) = (0, 0);
        start_over(ARENA);
        for _ in 0..STEPS {
            let place = random.below(PLACES);
            let block = &mut blocks[place];
            if block.start.is_null() {
                let size = if kind == Kind::Few { 16 << (place % 4) } else { random.mixed_size() };
                let (start, count) = allocate(layout_aligned(size, align_of(place, kind)));
                let count = count - empty;
                if start.addr() % align_of(place, kind) != 0 {
                    measure::exit(WRONG_BLOCK);
                }
                if start.is_null() {
                    failed += 1;
                    failed_worst = count.max(failed_worst);
                    continue;
                }
                allocs.add(count);
                *block = Block { start, size };
                mark(*block, place);
            } else {
                check(*block, place);
                // SAFETY: the block is live.
                let count = unsafe { free(block.start, layout_aligned(block.size, align_of(place, kind))) };
                frees.add(count - empty);
                *block = NONE;
            }
        }
        (failed, failed_worst)
    }

    /// Returns the bytes that are live when the first request fails. Counts the resizes that do not move the block.
    fn live_at_failure(seed: u32, empty: u32, resizes: &mut Counts) -> usize {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9) | 1);
        let mut blocks = [NONE; 1024];
        let (mut count, mut live) = (0, 0);
        start_over(HALF);
        loop {
            match random.below(10) {
                0..5 => {
                    let size = random.mixed_size();
                    let (start, _) = allocate(layout(size));
                    if start.is_null() || count == blocks.len() {
                        return live;
                    }
                    blocks[count] = Block { start, size };
                    mark(blocks[count], size);
                    count += 1;
                    live += size;
                }
                5 if count > 0 => {
                    let chosen = random.below(count);
                    let block = blocks[chosen];
                    check(block, block.size);
                    // SAFETY: the block is live.
                    unsafe { free(block.start, layout(block.size)) };
                    live -= block.size;
                    count -= 1;
                    blocks[chosen] = blocks[count];
                }
                6.. if count > 0 => {
                    let block = &mut blocks[random.below(count)];
                    let size = random.mixed_size();
                    check(*block, block.size);
                    // SAFETY: the block is live, and the size is not zero.
                    let (start, count) = unsafe { resize(block.start, layout(block.size), size) };
                    if start.is_null() {
                        return live;
                    }
                    if start == block.start {
                        resizes.add(count - empty);
                    }
                    live = live - block.size + size;
                    *block = Block { start, size };
                    mark(*block, size);
                }
                _ => {}
            }
        }
    }

    fn density(empty: u32, resizes: &mut Counts) {
        let live: usize = (1..=SEEDS).map(|seed| live_at_failure(seed, empty, resizes)).sum();
        if resizes.calls > 0 {
            resizes.print("resize");
        }
        println!("live_permille {}", live * 1000 / (HALF * SEEDS as usize));
    }

    fn blocks_of(size: usize) -> usize {
        start_over(SMALL);
        let mut count = 0;
        while !allocate(layout(size)).0.is_null() {
            count += 1;
        }
        count
    }

    fn largest() -> usize {
        let fits = |size: &usize| {
            start_over(SMALL);
            !allocate(layout(*size)).0.is_null()
        };
        (1..=SMALL).rev().find(fits).unwrap_or(0)
    }

    /// Measures, and prints what it has found.
    #[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
    #[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
    fn main() -> ! {
        Instant::start();
        let empty = calibrate();
        // On the stack, which is large enough.
        let [mut allocs, mut frees, mut resizes] = [const { Counts::NONE }; 3];
        let (failed, failed_worst) = instructions(empty, Kind::Mixed, &mut allocs, &mut frees);
        allocs.print("alloc");
        frees.print("free");
        println!("failed {failed}");
        println!("failed_worst {failed_worst}");
        (allocs, frees) = (Counts::NONE, Counts::NONE);
        instructions(empty, Kind::Aligned, &mut allocs, &mut frees);
        allocs.print("aligned_alloc");
        frees.print("aligned_free");
        (allocs, frees) = (Counts::NONE, Counts::NONE);
        instructions(empty, Kind::Few, &mut allocs, &mut frees);
        allocs.print("few_alloc");
        frees.print("few_free");
        // A subject that frees nothing has nothing to measure here.
        if cfg!(not(feature = "bump")) {
            density(empty, &mut resizes);
        }
        println!("blocks_8 {}", blocks_of(8));
        println!("blocks_24 {}", blocks_of(24));
        println!("largest {}", largest());
        measure::exit(0)
    }
}
