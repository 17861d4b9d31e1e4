//! Boxes and repairs: plans stay valid, and get no worse.

mod common;

use std::fs::{DirEntry, read_dir, read_to_string};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use allotment_planner::bounds::lower_bound;
use allotment_planner::boxes::{Join, boxes};
use allotment_planner::deadline::Deadline;
use allotment_planner::greedy::descent::{Descent, Prefer, descend};
use allotment_planner::greedy::repair::Repair;
use allotment_planner::greedy::{Baseline, Conflicts, Fit, Order, baseline, ordered, place};
use allotment_planner::model::{Buffer, Gap, Instance};
use allotment_planner::solve::{Options, Progress, Status, solve};
use allotment_planner::validate::validate;
use common::generate::{perfect_packing, random};
use common::{brute_force, solved};
use proptest::prelude::*;

const DESCENT: Descent = Descent { prefer: Prefer::Longest, mirror: false, aligned: false, noise: None };

proptest! {
    #[test]
    fn plans_of_boxes_are_plans(
        list in proptest::collection::vec((0_u64..5, 0_i64..6, 0_i64..4, 0_u32..3), 1..12), longest in any::<bool>(),
    ) {
        let buffers = list.iter().enumerate().map(|(n, &(size, start, length, shift))| Buffer {
            align: 1 << shift,
            ..Buffer::new(n.to_string(), size, start, start + length)
        });
        let instance = Instance::new(buffers.collect()).unwrap();
        let join = if longest { Join::Longest } else { Join::Forced };
        let never = Deadline::never();
        for waste in [0.0, 0.01, 0.3] {
            let boxes = boxes(&instance, join, waste, &never).unwrap();
            prop_assert!(boxes.instance.len() <= instance.len());
            let offsets = descend(&boxes.instance, DESCENT, &Deadline::never()).unwrap();
            let unpacked = boxes.unpack(&offsets);
            validate(&instance, &unpacked, None).unwrap();
            let (peak, boxed) = (instance.peak(&unpacked), boxes.instance.peak(&offsets));
            prop_assert!(peak == boxed || (waste > 0.0 && peak < boxed));
            if instance.len() <= 6 {
                prop_assert!(brute_force(&boxes.instance) >= brute_force(&instance));
            }
        }
    }

    #[test]
    fn repairs_are_valid_and_no_worse(seed in any::<u64>(), count in 20_usize..200) {
        let instance = random(count, 12, seed);
        let conflicts = Conflicts::new(&instance);
        let start = place(&instance, &conflicts, &ordered(&instance, &conflicts, Order::Start, None), Fit::First);
        let goal = lower_bound(&instance).bytes;
        let over = |offsets: &[u64]| {
            let ends = instance.buffers().iter().zip(offsets).map(|(buffer, offset)| offset + buffer.size);
            ends.map(|end| (end.saturating_sub(goal) as f64).powi(2)).sum::<f64>()
        };
        let before = over(&start);
        let mut repair = Repair::new(&instance, &conflicts, goal, start, seed);
        let unfinished = repair.run(100, &Deadline::never());
        validate(&instance, repair.offsets(), None).unwrap();
        prop_assert!(over(repair.offsets()) <= before * (1.0 + 1e-9));
        prop_assert!(unfinished || instance.peak(repair.offsets()) <= goal);
    }
}

/// A heap that grows, in which every fourth block is aligned to 1,024 bytes and the others to 64: padding is filled with what fits.
#[test]
fn padding_between_alignments_is_filled() {
    let mut random = fastrand::Rng::with_seed(1);
    let buffers = (0..3000_i64).map(|n| {
        let size = 2_f64.powf(4.0 + random.f64() * 10.0) as u64;
        let end = if n % 5 == 0 { 2 * n + 200 } else { 9000 - (n * 7919) % 3000 };
        let align = if random.u8(..4) == 0 { 1024 } else { 64 };
        Buffer { align, ..Buffer::new(n.to_string(), size, 2 * n, end) }
    });
    let instance = Instance::new(buffers.collect()).unwrap();
    let bound = lower_bound(&instance).bytes;
    let gap = |aligned| {
        let offsets = descend(&instance, Descent { aligned, ..DESCENT }, &Deadline::never()).unwrap();
        validate(&instance, &offsets, None).unwrap();
        (instance.peak(&offsets) - bound) as f64 / bound as f64
    };
    let (filled, padded) = (gap(true), gap(false));
    assert!(filled < 0.005 && padded > 0.03, "{filled} {padded}");
}

/// Coarsely aligned buffers take whole multiples, whatever else is there.
#[test]
fn coarse_alignments_raise_the_bound() {
    let buffer = |n: u64, size, align| Buffer { align, ..Buffer::new(n.to_string(), size, 0, 1) };
    let instance =
        Instance::new(vec![buffer(0, 1, 64), buffer(1, 1, 64), buffer(2, 1, 64), buffer(3, 1, 1)]).unwrap();
    assert_eq!(lower_bound(&instance).bytes, 129);
    assert_eq!(brute_force(&instance), 129);
}

/// 2,000 buffers, of which many have gaps, share a place with the one before, or are fixed: repairs keep all of that.
#[test]
fn repairs_keep_gaps_sharers_and_fixed_buffers() {
    let mut buffers = random(2000, 24, 5).buffers().to_vec();
    buffers.sort_by_key(|buffer| buffer.start);
    for n in 1..buffers.len() {
        let (start, end) = (buffers[n].start, buffers[n].end);
        match n % 5 {
            0 if end - start > 4 => {
                buffers[n].gaps = vec![Gap { start: start + 1, end: end - 1, window: Some((0, 1)) }]
            }
            1 if end - start > 4 => {
                buffers[n].gaps = vec![Gap { start: start + 2, end: end - 1, window: None }]
            }
            2 if buffers[n - 1].end > start => {
                (buffers[n].size, buffers[n].alias) = (buffers[n - 1].size, Some(n - 1));
                buffers[n - 1].end = start + 1;
                buffers[n - 1].gaps.clear();
            }
            _ => {}
        }
    }
    buffers[7].fixed = Some(64);
    let instance = Instance::new(buffers).unwrap();
    let conflicts = Conflicts::new(&instance);
    let start = place(&instance, &conflicts, &ordered(&instance, &conflicts, Order::Start, None), Fit::First);
    validate(&instance, &start, None).unwrap();
    let goal = lower_bound(&instance).bytes;
    let before = instance.peak(&start);
    let mut repair = Repair::new(&instance, &conflicts, goal, start, 1);
    repair.run(1000, &Deadline::never());
    validate(&instance, repair.offsets(), None).unwrap();
    let after = instance.peak(repair.offsets());
    assert!(after - goal < (before - goal) * 3 / 4, "{before} -> {after}, bound {goal}");
    assert_eq!(repair.offsets()[7], 64);
}

#[test]
fn repairs_come_closer() {
    let instance = random(400, 20, 3);
    let conflicts = Conflicts::new(&instance);
    let start = place(&instance, &conflicts, &ordered(&instance, &conflicts, Order::Start, None), Fit::First);
    let goal = lower_bound(&instance).bytes;
    let before = instance.peak(&start);
    let mut repair = Repair::new(&instance, &conflicts, goal, start, 1);
    repair.run(2000, &Deadline::never());
    let after = instance.peak(repair.offsets());
    assert!(after - goal < (before - goal) * 3 / 4, "{before} -> {after}, bound {goal}");
}

/// What was cut at random is put together again, whatever its size.
#[test]
fn perfect_packings_become_a_few_boxes() {
    for (count, seed) in [(500, 1), (2000, 0), (2000, 1), (10_000, 1)] {
        let instance = perfect_packing(count, 1 << 20, 1 << 24, seed);
        let boxes = boxes(&instance, Join::Forced, 0.0, &Deadline::never()).unwrap();
        assert!(boxes.instance.len() <= 20, "{count} buffers, seed {seed}: {} boxes", boxes.instance.len());
        let solution = solved(&instance, None, 60);
        assert_eq!(
            (solution.peak, solution.status),
            (1 << 24, Status::Optimal),
            "{count} buffers, seed {seed}"
        );
    }
}

#[test]
fn times_at_the_border_of_64_bits() {
    let buffers = vec![
        Buffer::new("a", 8, i64::MIN, i64::MAX),
        Buffer::new("b", 4, i64::MIN, 0),
        Buffer::new("c", 4, 0, i64::MAX),
        Buffer::new("d", 2, i64::MAX - 1, i64::MAX),
    ];
    let instance = Instance::new(buffers).unwrap();
    for (prefer, mirror) in [(Prefer::Leftmost, true), (Prefer::Longest, true), (Prefer::Longest, false)] {
        let offsets =
            descend(&instance, Descent { prefer, mirror, aligned: false, noise: None }, &Deadline::never())
                .unwrap();
        validate(&instance, &offsets, Some(14)).unwrap();
    }
    let conflicts = Conflicts::new(&instance);
    for order in Order::ALL {
        let offsets = place(&instance, &conflicts, &ordered(&instance, &conflicts, order, None), Fit::First);
        validate(&instance, &offsets, None).unwrap();
    }
    let mut repair = Repair::new(&instance, &conflicts, 14, vec![20, 14, 10, 0], 1);
    repair.run(50, &Deadline::never());
    validate(&instance, repair.offsets(), None).unwrap();
}

/// Two buffers aligned to 1,024 and two aligned to 64: from one coarse buffer to the next it is a multiple of 1,024, which the load of
/// 4,556 bytes does not know.
#[test]
fn the_bound_knows_what_lies_between_coarse_buffers() {
    let buffer = |n: u64, align| Buffer { align, ..Buffer::new(n.to_string(), 1100, 0, 4) };
    let instance =
        Instance::new(vec![buffer(0, 1024), buffer(1, 1024), buffer(2, 64), buffer(3, 64)]).unwrap();
    // 2,048 twice up to the next coarse place, and 1,024 twice of the others; less 948 that the topmost does not round, and 63.
    assert_eq!(lower_bound(&instance).bytes, 5133);
    assert_eq!(brute_force(&instance), 5196);
}

/// Parts of buffers that are aligned to 64 lie beside each other in 64 bytes: what is rounded is the buffers, not the parts.
#[test]
fn parts_of_aligned_buffers_are_not_rounded() {
    let part = |id: &str, from: u64| {
        let gap = Gap { start: 0, end: 6, window: Some((from, from + 4)) };
        Buffer { align: 64, gaps: vec![gap], ..Buffer::new(id, 64, 0, 6) }
    };
    let instance = Instance::new(vec![part("a", 4), part("b", 8), part("c", 12)]).unwrap();
    assert!(lower_bound(&instance).bytes <= 64, "{:?}", lower_bound(&instance));
    assert_eq!(solved(&instance, None, 1).peak, 64);
}

/// Blocks of a heap, one allocated at each step: a twentieth lives ten times as long as the others.
fn heap(count: usize, live: usize) -> Instance {
    let mut random = fastrand::Rng::with_seed(1);
    let buffers = (0..count as i64).map(|start| {
        let size = (16.0 * 1024_f64.powf(random.f64())) as u64;
        let long = if random.u8(..20) == 0 { 10.0 } else { 0.5 };
        let length = 1 + (-(1.0 - random.f64()).ln() * live as f64 * long) as i64;
        Buffer { align: 16, ..Buffer::new(start.to_string(), size, start, start + length) }
    });
    Instance::new(buffers.collect()).unwrap()
}

/// The processor time of all threads that there are, where the system tells it; else the time since `started`. It shrinks when a thread ends.
fn processor(started: Instant) -> Duration {
    let of = |entry: std::io::Result<DirEntry>| -> Option<u64> {
        read_to_string(entry.ok()?.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    match read_dir("/proc/self/task").into_iter().flatten().filter_map(of).sum() {
        0 => started.elapsed(),
        nanoseconds => Duration::from_nanos(nanoseconds),
    }
}

/// The plans of simple rules come before anything that takes longer, so after the first plan at most one for each rule is made until none of
/// them is better. With `--nocapture` it prints times; `RULE_BUFFERS` sets the size of the largest instance.
#[test]
fn no_answer_is_worse_than_a_simple_rule() {
    let largest = std::env::var("RULE_BUFFERS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let mut gaps = random(2000, 24, 5).buffers().to_vec();
    for buffer in gaps.iter_mut().filter(|buffer| buffer.end - buffer.start > 4) {
        buffer.gaps = vec![Gap { start: buffer.start + 1, end: buffer.end - 1, window: None }];
    }
    let instances = [
        ("random", random(200, 16, 1)),
        ("random", random(5000, 64, 1)),
        ("gaps", Instance::new(gaps).unwrap()),
        ("perfect", perfect_packing(2000, 1 << 20, 1 << 24, 1)),
        ("heap", heap(largest / 10, 60)),
        ("heap", heap(largest, largest / 550 + 20)),
    ];
    for (name, instance) in instances {
        let started = Instant::now();
        let before = processor(started);
        let conflicts = Conflicts::new(&instance);
        let listed = processor(started).saturating_sub(before);
        let rules = Baseline::ALL.map(|rule| {
            let before = processor(started);
            let peak = instance.peak(&baseline(&instance, &conflicts, rule));
            (rule, peak, listed + processor(started).saturating_sub(before))
        });
        let least = rules.iter().map(|&(_, peak, _)| peak).min().unwrap();
        let options = Options { threads: 1, ..Options::default() };
        let (history, before) = (Mutex::new(Vec::new()), processor(started));
        let enough = |progress: Progress| {
            history.lock().unwrap().push((processor(started).saturating_sub(before), progress.peak));
            options.interrupt.fetch_or(progress.peak <= least, Ordering::Relaxed);
        };
        let solution = solve(&instance, &options, Some(&enough));
        validate(&instance, &solution.offsets, None).unwrap();
        let history = history.into_inner().unwrap();
        for (rule, peak, alone) in rules {
            let plan = history.iter().position(|&(_, reached)| reached <= peak).unwrap();
            let reached = history[plan].0;
            println!(
                "{name} {}, {}: {peak} B, alone {:.4} s, reached after {:.4} s, {:.2} times that",
                instance.len(),
                rule.name(),
                alone.as_secs_f64(),
                reached.as_secs_f64(),
                reached.as_secs_f64() / alone.as_secs_f64()
            );
            assert!(plan <= Baseline::ALL.len(), "{name}, {}: plan {plan}", rule.name());
        }
    }
}
