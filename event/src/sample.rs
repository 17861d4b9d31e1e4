//! Samples blocks by bytes.

/// Chooses blocks at random, on average one per `mean` requested bytes: the bytes up to the next choice have an exponential distribution,
/// so a block's choice does not depend on earlier blocks (Poisson sampling, as in jemalloc and tcmalloc).
///
/// A block of `size` bytes is chosen with the probability `p = 1 - exp(-size / mean)`, so it represents `1 / p` blocks, and sums over the
/// chosen blocks with these weights are unbiased estimates. A request for no bytes is never chosen.
///
/// ```
/// use allotment_event::Sampler;
///
/// let mut sampler = Sampler::new(4096, 7);
/// let chosen = (0..100_000).filter(|_| sampler.chooses(64)).count();
/// assert!((1400..1700).contains(&chosen), "{chosen} of about 1550");
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    mean: u64,
    left: u64,
    random: u64,
}

impl Sampler {
    /// Creates a sampler with a mean in bytes, at least 1. Samplers with equal seeds choose alike.
    pub const fn new(mean: u64, seed: u64) -> Self {
        Self { mean: if mean == 0 { 1 } else { mean }, left: 0, random: seed }
    }

    /// Returns whether a block of `size` bytes is chosen. O(1).
    #[inline]
    pub fn chooses(&mut self, size: u64) -> bool {
        if size < self.left {
            self.left -= size;
            return false;
        }
        self.chooses_now(size)
    }

    #[cold]
    fn chooses_now(&mut self, size: u64) -> bool {
        // Draw the first distance.
        if self.left == 0 {
            self.left = Self::distance(self.mean, &mut self.random);
            return self.chooses(size);
        }
        self.left = Self::distance(self.mean, &mut self.random);
        true
    }

    /// Returns the bytes up to the next choice, at least 1, and advances the random number. A block is chosen if it has at least the
    /// remaining bytes; a smaller block reduces them by its size.
    pub fn distance(mean: u64, random: &mut u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
        *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = *random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        let uniform = ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-logarithm(uniform) * mean as f64) as u64 + 1
    }
}

/// Returns the natural logarithm of a normal number, to about 1e-10, since `core` has no logarithm.
fn logarithm(number: f64) -> f64 {
    let bits = number.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    // ln m = 2 artanh((m - 1) / (m + 1)), whose series converges fast.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let series = (0..10).rev().fold(0.0, |sum, n| sum * square + 1.0 / f64::from(2 * n + 1));
    exponent as f64 * core::f64::consts::LN_2 + 2.0 * z * series
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn the_logarithm_is_one() {
        for number in [f64::MIN_POSITIVE, 1e-16, 0.1, 0.5, 0.7, 0.999_999, 1.0] {
            let error = (logarithm(number) - number.ln()).abs();
            assert!(error < 1e-9 * number.ln().abs().max(1.0), "{number}: {error}");
        }
    }

    /// Estimates of a run of blocks of many sizes, with 2,000 seeds, are unbiased and in at least 95 % of cases within the error that the
    /// tool states: twice the root of mean times bytes.
    #[test]
    fn estimates_have_no_bias_and_the_stated_error() {
        let mean = 4096;
        let sizes: std::vec::Vec<u64> = (0..3000_u64)
            .map(|n| [16, 24, 100, 700, 4096, 20_000][(n * n % 17 % 6) as usize] + n % 13)
            .collect();
        let (bytes, blocks) = (sizes.iter().sum::<u64>() as f64, sizes.len() as f64);
        let stated = 2.0 * (mean as f64 * bytes).sqrt();
        let seeds = 2000;
        let (mut within, mut sum, mut count, mut squares) = (0, 0.0, 0.0, 0.0);
        for seed in 0..seeds {
            let mut sampler = Sampler::new(mean, seed);
            let (mut estimate, mut number) = (0.0, 0.0);
            for &size in sizes.iter().filter(|&&size| sampler.chooses(size)) {
                let weight = -1.0 / (-(size as f64) / mean as f64).exp_m1();
                estimate += weight * size as f64;
                number += weight;
            }
            within += u64::from((estimate - bytes).abs() <= stated);
            sum += estimate;
            count += number;
            squares += (estimate - bytes) * (estimate - bytes);
        }
        let deviation = (squares / seeds as f64).sqrt();
        let bias = (sum / seeds as f64 - bytes).abs();
        assert!(bias < 4.0 * deviation / (seeds as f64).sqrt(), "{bias} of {bytes} B, deviation {deviation}");
        assert!((count / seeds as f64 / blocks - 1.0).abs() < 0.02, "{count} of {blocks} times {seeds}");
        assert!(within * 100 >= seeds * 95, "{within} of {seeds}");
        // The stated error is not uselessly large.
        assert!(deviation > stated / 5.0, "{deviation}, {stated}");
    }
}
