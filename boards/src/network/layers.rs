//! Layers on 8-bit integers. Images are stored row by row, with the channels of a pixel side by side. Products are
//! summed in 32 bits and shifted right.

/// Converts a sum back to eight bits.
fn quantise(sum: i32, shift: u32) -> i8 {
    (sum >> shift).clamp(-128, 127) as i8
}

/// Sums a 3 × 3 neighbourhood around pixel `y`, `x`, padded with zeros; `product` returns the product of kernel
/// element `k` and input pixel `p`.
fn around(
    y: usize,
    x: usize,
    [height, width]: [usize; 2],
    mut product: impl FnMut(usize, usize) -> i32,
) -> i32 {
    let mut sum = 0;
    for k in 0..9 {
        // One more than row and column, so that they are not negative.
        let (row, column) = (y + k / 3, x + k % 3);
        if (1..=height).contains(&row) && (1..=width).contains(&column) {
            sum += product(k, (row - 1) * width + column - 1);
        }
    }
    sum
}

/// 3 × 3 convolution with the given stride, then rectified. `weights`: output channel, kernel element, input
/// channel.
pub fn convolve(
    input: &[i8],
    [height, width, channels]: [usize; 3],
    output: &mut [i8],
    stride: usize,
    weights: &[i8],
    shift: u32,
) {
    let outputs = weights.len() / (9 * channels);
    let mut pixels = output.chunks_exact_mut(outputs);
    for y in (0..height).step_by(stride) {
        for (x, pixel) in (0..width).step_by(stride).zip(&mut pixels) {
            for (o, value) in pixel.iter_mut().enumerate() {
                let sum = around(y, x, [height, width], |k, p| {
                    let weights = &weights[(o * 9 + k) * channels..][..channels];
                    dot(&input[p * channels..][..channels], weights)
                });
                *value = quantise(sum, shift).max(0);
            }
        }
    }
}

/// 3 × 3 convolution of each channel separately, then rectified. `weights`: channel, kernel element.
pub fn convolve_channels(
    input: &[i8],
    [height, width, channels]: [usize; 3],
    output: &mut [i8],
    weights: &[i8],
    shift: u32,
) {
    let mut pixels = output.chunks_exact_mut(channels);
    for y in 0..height {
        for (x, pixel) in (0..width).zip(&mut pixels) {
            for (c, value) in pixel.iter_mut().enumerate() {
                let sum = around(y, x, [height, width], |k, p| {
                    i32::from(input[p * channels + c]) * i32::from(weights[c * 9 + k])
                });
                *value = quantise(sum, shift).max(0);
            }
        }
    }
}

/// 1 × 1 convolution. `weights`: output channel, input channel.
pub fn mix_channels(input: &[i8], channels: usize, output: &mut [i8], weights: &[i8], shift: u32) {
    let outputs = weights.len() / channels;
    for (from, to) in input.chunks_exact(channels).zip(output.chunks_exact_mut(outputs)) {
        for (value, weights) in to.iter_mut().zip(weights.chunks_exact(channels)) {
            *value = quantise(dot(from, weights), shift);
        }
    }
}

/// Sets negative values to zero.
pub fn rectify(values: &mut [i8]) {
    for value in values {
        *value = (*value).max(0);
    }
}

/// Takes the largest of every 2 × 2 pixels.
pub fn pool(input: &[i8], [height, width, channels]: [usize; 3], output: &mut [i8]) {
    let mut pixels = output.chunks_exact_mut(channels);
    for y in (0..height).step_by(2) {
        for (x, pixel) in (0..width).step_by(2).zip(&mut pixels) {
            for (c, value) in pixel.iter_mut().enumerate() {
                let at = |dy, dx| input[((y + dy) * width + x + dx) * channels + c];
                *value = at(0, 0).max(at(0, 1)).max(at(1, 0)).max(at(1, 1));
            }
        }
    }
}

/// Adds `other` with saturation.
pub fn add(values: &mut [i8], other: &[i8]) {
    for (value, other) in values.iter_mut().zip(other) {
        *value = value.saturating_add(*other);
    }
}

/// Computes the mean of each channel over 64 pixels.
pub fn mean(input: &[i8], output: &mut [i8]) {
    for (c, value) in output.iter_mut().enumerate() {
        let channels = input.len() / 64;
        let sum: i32 = input.iter().skip(c).step_by(channels).map(|&value| i32::from(value)).sum();
        *value = quantise(sum, 6);
    }
}

/// Computes a sum of products for each class. `weights`: class, channel.
pub fn score(input: &[i8], scores: &mut [i32], weights: &[i8]) {
    for (score, weights) in scores.iter_mut().zip(weights.chunks_exact(input.len())) {
        *score = dot(input, weights);
    }
}

fn dot(a: &[i8], b: &[i8]) -> i32 {
    a.iter().zip(b).map(|(&a, &b)| i32::from(a) * i32::from(b)).sum()
}
