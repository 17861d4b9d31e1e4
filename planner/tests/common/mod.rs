//! What the tests share.
#![allow(dead_code)]

use std::path::PathBuf;
use std::time::Duration;

use allotment_planner::model::{Buffer, Instance};
use allotment_planner::read::read_instance;
use allotment_planner::solve::{Options, Solution, solve};
use allotment_planner::validate::validate;

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

pub fn read(path: &str) -> Instance {
    read_instance(&data(path)).unwrap()
}

/// Solves and validates.
pub fn solved(instance: &Instance, capacity: Option<u64>, seconds: u64) -> Solution {
    let options = Options { capacity, time_limit: Duration::from_secs(seconds), ..Options::default() };
    let solution = solve(instance, &options, None);
    validate(instance, &solution.offsets, None).unwrap();
    assert_eq!(solution.peak, instance.peak(&solution.offsets));
    assert!(solution.peak >= solution.lower_bound || solution.lower_bound > capacity.unwrap_or(u64::MAX));
    solution
}

/// True if two buffers at these offsets may be live together; written from the definition, byte by byte.
pub fn apart(instance: &Instance, (a, x): (usize, u64), (b, y): (usize, u64)) -> bool {
    let (p, q) = (&instance.buffers()[a], &instance.buffers()[b]);
    if instance.may_share(a, b) && x == y {
        return true;
    }
    let used = |buffer: &Buffer, time: i64, byte: u64| {
        let gap = buffer.gaps.iter().find(|gap| gap.start <= time && time < gap.end);
        let alive = buffer.start <= time && time < buffer.end;
        alive && gap.is_none_or(|gap| gap.window.is_some_and(|(from, to)| from <= byte && byte < to))
    };
    (p.start..p.end).all(|time| {
        (x..x + p.size).all(|at| {
            let inside = y <= at && at < y + q.size;
            !(inside && used(p, time, at - x) && used(q, time, at - y))
        })
    })
}

/// The smallest peak of any plan, by trying all offsets. For a handful of small buffers.
pub fn brute_force(instance: &Instance) -> u64 {
    let total: u64 =
        instance.buffers().iter().map(|b| b.size.next_multiple_of(b.align) + b.fixed.unwrap_or(0)).sum();
    (0..=total).find(|&peak| fits(instance, peak, &mut Vec::new())).expect("all in a row always fit")
}

fn fits(instance: &Instance, peak: u64, offsets: &mut Vec<u64>) -> bool {
    let n = offsets.len();
    let Some(buffer) = instance.buffers().get(n) else {
        return true;
    };
    let mut offset = buffer.fixed.unwrap_or(0);
    while offset + buffer.size <= peak {
        if (0..n).all(|other| apart(instance, (other, offsets[other]), (n, offset))) {
            offsets.push(offset);
            if fits(instance, peak, offsets) {
                return true;
            }
            offsets.pop();
        }
        if buffer.fixed.is_some() {
            return false;
        }
        offset += buffer.align;
    }
    false
}
