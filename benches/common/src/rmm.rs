//! The random-allocation workload of RMM's benchmarks.
//!
//! One thread and one stream. The generator is C++'s `minstd_rand0` with seed 1 behind the
//! `uniform_int_distribution` of libstdc++, so that every allocator gets the requests that RMM's own get.

/// The numbers of allocations.
pub const COUNTS: [usize; 3] = [1000, 10_000, 100_000];
/// The largest sizes in MiB.
pub const SIZES: [u64; 6] = [1, 4, 64, 256, 1024, 4096];
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// No more bytes than this are live.
pub const CAP: u64 = 16_000 * MIB;

/// What the workload asks for memory.
pub trait Target {
    /// What a block is freed by.
    type Block;

    /// A block, or `None` if there is no room.
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block>;

    /// Frees a block of so many bytes.
    fn free(&mut self, block: Self::Block, bytes: u64);
}

/// Only the harness.
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

    /// A number from `low` to `high`. The generator yields 1 to 2^31 - 2; where the range is smaller, it is
    /// scaled down and what is left over is rejected, and where it is larger, two numbers are combined.
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

/// What became of a run.
pub struct Outcome {
    /// Requests that found no room.
    pub failed: usize,
    /// The most bytes live at once, as requested.
    pub peak: u64,
    /// The most blocks live at once.
    pub blocks: usize,
}

/// 2 `count` operations with sizes of up to `max` MiB.
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

/// Whether the workload is RMM's: its own figures, which are known.
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
