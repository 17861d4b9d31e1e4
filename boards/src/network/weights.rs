//! Weights and image from a generator, the same in every build.

/// Seed of the image.
pub const IMAGE: u32 = 1;

/// Eight kernels of 3 × 3, for one channel.
pub static CONV: [i8; 8 * 9] = weights(2);
/// A kernel of 3 × 3 for each of eight channels.
pub static DEPTHWISE: [i8; 8 * 9] = weights(3);
/// Sixteen outputs of eight channels.
pub static POINTWISE: [i8; 16 * 8] = weights(4);
/// Sixteen kernels of 3 × 3, for sixteen channels.
pub static RESIDUE: [i8; 16 * 9 * 16] = weights(5);
/// Ten scores from sixteen channels.
pub static SCORES: [i8; 10 * 16] = weights(6);

const fn weights<const N: usize>(seed: u32) -> [i8; N] {
    let mut values = [0; N];
    fill(&mut values, seed);
    values
}

/// Fills `values` with the upper bits of Numerical Recipes' linear congruential generator: −64 to 63.
pub const fn fill(values: &mut [i8], seed: u32) {
    let mut state = seed;
    let mut i = 0;
    while i < values.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        values[i] = (state >> 25) as i8 - 64;
        i += 1;
    }
}
