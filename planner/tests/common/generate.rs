//! Makes random instances: with a known optimum, and of any size. Other tests and the measurements use this file too.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeSet;

use allotment_planner::model::{Buffer, Instance};

/// A rectangle of `steps` time steps and `height` bytes cut into `count` buffers at random places.
///
/// The buffers pack the rectangle perfectly, so `height` is the optimum. Each cut takes a rectangle chosen by area
/// and halves it at a random place, across its lifetime or its bytes. Fewer buffers come out if the pieces get too small to be cut.
pub fn perfect_packing(count: usize, steps: u32, height: u64, seed: u64) -> Instance {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pieces = vec![(0_i64, i64::from(steps), 0_u64, height)];
    let mut failures = 0;
    while pieces.len() < count && failures < 1000 * count {
        let n = larger(&pieces, &mut random);
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
    named(pieces, &mut random)
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
        let n = larger(&pieces, &mut random);
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
    named(pieces, &mut random)
}

/// Divides a rectangle of `steps` time steps and `height` bytes into `count` buffers by walls that grow from random points, lengthwise or
/// upwards, until they meet another (a Gilbert tessellation).
///
/// The buffers pack the rectangle perfectly, so `height` is the optimum; neither cuts from edge to edge nor pinwheels undo it. Takes memory and
/// time in O(count²). Fewer buffers come out if `steps` or `height` is below about twice their number.
pub fn mosaic_packing(count: usize, steps: u32, height: u64, seed: u64) -> Instance {
    let mut random = fastrand::Rng::with_seed(seed);
    let (steps, height) = (i64::from(steps), i64::try_from(height).unwrap_or(i64::MAX));
    // No two walls share a coordinate.
    let (mut xs, mut ys) = (BTreeSet::from([0, steps]), BTreeSet::from([0, height]));
    let mut walls: Vec<Wall> = Vec::new();
    for _ in 0..20 * count {
        if walls.len() + 1 >= count || steps < 3 || height < 3 {
            break;
        }
        let (x, y) = (random.i64(1..steps), random.i64(1..height));
        if !xs.contains(&x) && !ys.contains(&y) {
            xs.insert(x);
            ys.insert(y);
            let upright = walls.len().is_multiple_of(2);
            let ends = if upright { (0, height) } else { (0, steps) };
            walls.push(Wall { at: (x, y), upright, ends, met: [i128::MAX; 2] });
        }
    }
    // At each crossing the wall that comes later ends, if the other one was not stopped before.
    let mut crossings = Vec::new();
    for (a, level) in walls.iter().enumerate().filter(|(_, wall)| !wall.upright) {
        for (b, upright) in walls.iter().enumerate().filter(|(_, wall)| wall.upright) {
            let (x, y) = (upright.at.0, level.at.1);
            let along = i128::from(x - level.at.0).abs() * i128::from(height);
            let up = i128::from(y - upright.at.1).abs() * i128::from(steps);
            let sides = (usize::from(x > level.at.0), usize::from(y > upright.at.1));
            crossings.push(match along > up {
                true => (along, up, (a, sides.0), (b, sides.1), x),
                false => (up, along, (b, sides.1), (a, sides.0), y),
            });
        }
    }
    crossings.sort_unstable();
    for (late, early, (stopped, side), (other, other_side), place) in crossings {
        if walls[stopped].met[side] == i128::MAX && walls[other].met[other_side] >= early {
            walls[stopped].met[side] = late;
            let ends = &mut walls[stopped].ends;
            if side == 0 { ends.0 = place } else { ends.1 = place }
        }
    }
    let (xs, ys): (Vec<i64>, Vec<i64>) = (xs.into_iter().collect(), ys.into_iter().collect());
    let place = |list: &[i64], at: i64| list.binary_search(&at).expect("every coordinate is listed");
    let (columns, rows) = (xs.len() - 1, ys.len() - 1);
    // Whether a cell has a wall at its right and at its top.
    let mut right = vec![false; columns * rows];
    let mut top = vec![false; columns * rows];
    for wall in &walls {
        if wall.upright {
            let column = place(&xs, wall.at.0) - 1;
            (place(&ys, wall.ends.0)..place(&ys, wall.ends.1))
                .for_each(|row| right[column * rows + row] = true);
        } else {
            let row = place(&ys, wall.at.1) - 1;
            (place(&xs, wall.ends.0)..place(&xs, wall.ends.1))
                .for_each(|column| top[column * rows + row] = true);
        }
    }
    let mut seen = vec![false; columns * rows];
    let mut pieces = Vec::new();
    for column in 0..columns {
        for row in 0..rows {
            if seen[column * rows + row] {
                continue;
            }
            let last = (column..columns - 1).find(|&c| right[c * rows + row]).unwrap_or(columns - 1);
            let highest = (row..rows - 1).find(|&r| top[column * rows + r]).unwrap_or(rows - 1);
            (column..=last).for_each(|c| seen[c * rows + row..=c * rows + highest].fill(true));
            pieces.push((xs[column], xs[last + 1], ys[row] as u64, ys[highest + 1] as u64));
        }
    }
    named(pieces, &mut random)
}

/// A wall that grows in both directions.
struct Wall {
    /// The point at which it starts to grow.
    at: (i64, i64),
    upright: bool,
    /// The point at which it ends.
    ends: (i64, i64),
    /// Its length when it met another wall, for each direction; the largest number if it did not.
    met: [i128; 2],
}

/// Returns the larger of two pieces: a choice by area, near enough.
fn larger(pieces: &[(i64, i64, u64, u64)], random: &mut fastrand::Rng) -> usize {
    let area = |n: usize| (pieces[n].1 - pieces[n].0) as f64 * (pieces[n].3 - pieces[n].2) as f64;
    let (a, b) = (random.usize(..pieces.len()), random.usize(..pieces.len()));
    if area(a) >= area(b) { a } else { b }
}

/// Buffers of pieces of a rectangle, `(start, end, from, to)`, in a random order.
fn named(mut pieces: Vec<(i64, i64, u64, u64)>, random: &mut fastrand::Rng) -> Instance {
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
