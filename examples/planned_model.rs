//! A small neural network whose buffers the compiler has laid out: no allocator runs, and buffers that are never live
//! at the same time share their place.
//!
//! ```sh
//! cargo run --example planned_model
//! ```

use allotment::arena;
use allotment::plan::{Arena, Planned};

const PIXELS: usize = 16 * 16;
const EDGES: usize = 14 * 14;
const MAXIMA: usize = 7 * 7;
const CLASSES: usize = 10;

arena! {
    /// The activations: which buffers are live at which step.
    struct Net(1024) {
        IMAGE: [i16; PIXELS] = 0..1;
        FILTERED: [i16; EDGES] = 0..2;
        POOLED: [i16; MAXIMA] = 1..3;
        SCORES: [i32; CLASSES] = 2..4;
    }
}

static NET: Arena<Net> = Arena::new();

/// A filter of 3 × 3 that finds edges.
fn filter(image: &[i16; PIXELS], out: &mut [i16; EDGES]) {
    for (index, value) in out.iter_mut().enumerate() {
        let (row, column) = (index / 14, index % 14);
        let around: i16 = (0..9).map(|at| image[(row + at / 3) * 16 + column + at % 3]).sum();
        *value = (9 * image[(row + 1) * 16 + column + 1] - around).max(0);
    }
}

/// The largest of each 2 × 2 values.
fn pool(filtered: &[i16; EDGES], out: &mut [i16; MAXIMA]) {
    for (index, value) in out.iter_mut().enumerate() {
        let at = index / 7 * 28 + index % 7 * 2;
        *value = filtered[at].max(filtered[at + 1]).max(filtered[at + 14]).max(filtered[at + 15]);
    }
}

/// A score for each class, from weights that a training would have found.
fn classify(pooled: &[i16; MAXIMA], out: &mut [i32; CLASSES]) {
    for (class, score) in out.iter_mut().enumerate() {
        let weight = |at: usize| (at * 31 + class * 17) as i32 % 15 - 7;
        *score = pooled.iter().enumerate().map(|(at, &value)| weight(at) * i32::from(value)).sum();
    }
}

/// The scores of the picture, computed in the planned arena.
fn run(picture: impl Fn(usize) -> i16) -> [i32; CLASSES] {
    let mut run = NET.begin().expect("one run at a time");
    let (image, filtered) = run.at::<0>().get((Net::IMAGE, Net::FILTERED));
    for (index, pixel) in image.iter_mut().enumerate() {
        *pixel = picture(index);
    }
    filter(image, filtered);
    let (filtered, pooled) = run.at::<1>().get((Net::FILTERED, Net::POOLED)); // IMAGE would not compile here
    pool(filtered, pooled);
    let (pooled, scores) = run.at::<2>().get((Net::POOLED, Net::SCORES));
    classify(pooled, scores);
    *run.at::<3>().get((Net::SCORES,)).0
}

fn main() {
    let picture = |index: usize| (index * index % 97) as i16;
    let scores = run(picture);

    // The same with a buffer for each, side by side.
    let image = std::array::from_fn(picture);
    let (mut filtered, mut pooled, mut expected) = ([0; EDGES], [0; MAXIMA], [0; CLASSES]);
    filter(&image, &mut filtered);
    pool(&filtered, &mut pooled);
    classify(&pooled, &mut expected);
    assert_eq!(scores, expected);

    let apart = size_of_val(&image) + size_of_val(&filtered) + size_of_val(&pooled) + size_of_val(&expected);
    println!("scores: {scores:?}");
    println!("{} bytes planned, {apart} side by side", Net::PLACED.peak());
}
