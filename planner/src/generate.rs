//! Instances made by chance: of known optimum, and of any size.

use crate::model::{Buffer, Instance};

/// A rectangle of `steps` time steps and `height` bytes cut into `count` buffers at random places.
///
/// The buffers pack the rectangle perfectly, so `height` is the optimum. Each cut takes a rectangle chosen by area
/// and halves it at a random place, across its lifetime or its bytes. Fewer buffers come out if the pieces get too small to be cut.
pub fn perfect_packing(count: usize, steps: u32, height: u64, seed: u64) -> Instance {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pieces = vec![(0_i64, i64::from(steps), 0_u64, height)];
    let mut failures = 0;
    while pieces.len() < count && failures < 1000 * count {
        // The larger of two is a choice by area, near enough.
        let pick = |random: &mut fastrand::Rng| random.usize(..pieces.len());
        let area = |n: usize| (pieces[n].1 - pieces[n].0) as f64 * (pieces[n].3 - pieces[n].2) as f64;
        let (a, b) = (pick(&mut random), pick(&mut random));
        let n = if area(a) >= area(b) { a } else { b };
        let (start, end, from, to) = pieces[n];
        if random.bool() && end - start > 1 {
            let cut = random.i64(start + 1..end);
            pieces[n] = (start, cut, from, to);
            pieces.push((cut, end, from, to));
        } else if to - from > 1 {
            let cut = random.u64(from + 1..to);
            pieces[n] = (start, end, from, cut);
            pieces.push((start, end, cut, to));
        } else {
            failures += 1;
        }
    }
    random.shuffle(&mut pieces);
    let named = pieces.iter().enumerate();
    let buffers = named.map(|(n, &(start, end, from, to))| Buffer::new(n.to_string(), to - from, start, end));
    Instance::new(buffers.collect()).expect("pieces of a rectangle are valid buffers")
}

/// Cuts a rectangle of `steps` time steps and `height` bytes into at most `count` buffers by pinwheels: four rectangles around a fifth.
///
/// The buffers pack the rectangle perfectly, so `height` is the optimum; unlike those of [`perfect_packing`], no cut from edge to edge
/// divides a pinwheel, so joining neighbours does not undo it.
pub fn pinwheel_packing(count: usize, steps: u32, height: u64, seed: u64) -> Instance {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pieces = vec![(0_i64, i64::from(steps), 0_u64, height)];
    let mut failures = 0;
    while pieces.len() + 4 <= count && failures < 100 * count {
        let (a, b) = (random.usize(..pieces.len()), random.usize(..pieces.len()));
        let area = |n: usize| (pieces[n].1 - pieces[n].0) as f64 * (pieces[n].3 - pieces[n].2) as f64;
        let n = if area(a) >= area(b) { a } else { b };
        let (start, end, from, to) = pieces[n];
        if end - start < 3 || to - from < 3 {
            failures += 1;
            continue;
        }
        // Two moments and two heights around the fifth.
        let early = random.i64(start + 1..end - 1);
        let late = random.i64(early + 1..end);
        let low = random.u64(from + 1..to - 1);
        let high = random.u64(low + 1..to);
        pieces[n] = (start, late, from, low);
        pieces.push((late, end, from, high));
        pieces.push((early, end, high, to));
        pieces.push((start, early, low, to));
        pieces.push((early, late, low, high));
    }
    random.shuffle(&mut pieces);
    let named = pieces.iter().enumerate();
    let buffers = named.map(|(n, &(start, end, from, to))| Buffer::new(n.to_string(), to - from, start, end));
    Instance::new(buffers.collect()).expect("pieces of a rectangle are valid buffers")
}

/// `count` buffers of random size (1 byte to 1 MiB, log-uniform) and lifetime, with `live` of them live at once on
/// average; a tenth of the lifetimes are ten times longer than the rest.
pub fn random(count: usize, live: u32, seed: u64) -> Instance {
    let mut random = fastrand::Rng::with_seed(seed);
    let mean = f64::from(live) / 1.9;
    let buffers = (0..count).map(|n| {
        let size = 2_f64.powf(random.f64() * 20.0) as u64;
        let long = if random.u8(..10) == 0 { 10.0 } else { 1.0 };
        let length = 1 + (-(1.0 - random.f64()).ln() * mean * long) as i64;
        let start = random.i64(0..count.max(1) as i64);
        Buffer::new(n.to_string(), size.max(1), start, start + length)
    });
    Instance::new(buffers.collect()).expect("every lifetime is at least one step long")
}
