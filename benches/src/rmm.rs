//! The random-allocation workload of RMM's benchmarks.
//!
//! One thread and one stream. The generator is C++'s `minstd_rand0` with seed 1 behind libstdc++'s
//! `uniform_int_distribution`, so that every allocator gets the same requests as in RMM's own benchmark.

/// The numbers of allocations.
pub const COUNTS: [usize; 3] = [1000, 10_000, 100_000];
/// The largest sizes in MiB.
pub const SIZES: [u64; 6] = [1, 4, 64, 256, 1024, 4096];
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// The most bytes that may be live.
pub const CAP: u64 = 16_000 * MIB;

/// An allocator that the workload runs on.
pub trait Target {
    /// The type by which a block is freed.
    type Block;

    /// Allocates a block; `None` if there is no room.
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block>;

    /// Frees a block of this many bytes.
    fn free(&mut self, block: Self::Block, bytes: u64);
}

/// No allocator, to measure the harness alone.
pub struct Nothing;

impl Target for Nothing {
    type Block = u64;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        Some(bytes)
    }

    #[inline]
    fn free(&mut self, _: u64, _: u64) {}
}

/// C++'s `minstd_rand0`.
struct Minstd(u64);

impl Minstd {
    const MODULUS: u64 = 2_147_483_647;

    fn next(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % Self::MODULUS;
        self.0
    }

    /// Draws a number from `low` to `high`. The generator yields 1 to 2^31 - 2. A smaller range is scaled down and
    /// the remainder rejected; for a larger one, two numbers are combined.
    fn uniform(&mut self, low: u64, high: u64) -> u64 {
        let (range, given) = (high - low, Self::MODULUS - 2);
        if range < given {
            let wanted = range + 1;
            let scaling = given / wanted;
            loop {
                let number = self.next() - 1;
                if number < wanted * scaling {
                    return low + number / scaling;
                }
            }
        }
        if range == given {
            return low + self.next() - 1;
        }
        loop {
            let upper = (given + 1) * self.uniform(0, range / (given + 1));
            let number = upper + (self.next() - 1);
            if number >= upper && number <= range {
                return low + number;
            }
        }
    }
}

/// The result of a run.
pub struct Outcome {
    /// Number of requests that found no room.
    pub failed: usize,
    /// The most bytes live at once, as requested.
    pub peak: u64,
    /// The most blocks live at once.
    pub blocks: usize,
}

/// Runs 2 `count` operations with sizes of up to `max` MiB.
pub fn workload<T: Target>(target: &mut T, count: usize, max: u64) -> Outcome {
    let mut random = Minstd(1);
    let mut live: Vec<(T::Block, u64)> = Vec::new();
    let (mut made, mut bytes) = (0, 0);
    let mut outcome = Outcome { failed: 0, peak: 0, blocks: 0 };
    for _ in 0..2 * count {
        let size = random.uniform(1, max * MIB);
        let allocate = if live.is_empty() {
            true
        } else {
            random.uniform(0, 99) < 73 && made < count && bytes + size < CAP
        };
        let mut block = None;
        if allocate {
            block = target.allocate(size);
            outcome.failed += usize::from(block.is_none());
        }
        if let Some(block) = block {
            live.push((block, size));
            made += 1;
            bytes += size;
            outcome.peak = outcome.peak.max(bytes);
            outcome.blocks = outcome.blocks.max(live.len());
        } else if !live.is_empty() {
            let place = random.uniform(0, count as u64 - 1) as usize % live.len();
            let (block, size) = live.swap_remove(place);
            target.free(block, size);
            bytes -= size;
        }
    }
    outcome
}

/// Checks the workload against known figures of RMM's own.
pub fn is_sound() -> bool {
    let outcome = workload(&mut Nothing, 1000, 1);
    outcome.blocks == 638 && (outcome.peak as f64 / MIB as f64 - 308.8).abs() < 0.06
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_is_rmms() {
        assert!(is_sound());
        let outcome = workload(&mut Nothing, 100_000, 1);
        assert_eq!(outcome.blocks, 36_071);
        assert_eq!((outcome.peak as f64 / MIB as f64).round() as u64, 16_000);
    }
}
