//! Boxes and repairs: plans stay valid, and get no worse.

mod common;

use allotment_planner::bounds::lower_bound;
use allotment_planner::boxes::{Join, boxes, boxes_with_waste};
use allotment_planner::deadline::Deadline;
use allotment_planner::generate::{perfect_packing, random};
use allotment_planner::greedy::descent::{Descent, Prefer, descend};
use allotment_planner::greedy::repair::Repair;
use allotment_planner::greedy::{Conflicts, Fit, Order, ordered, place};
use allotment_planner::model::{Buffer, Instance};
use allotment_planner::solve::Status;
use allotment_planner::validate::validate;
use common::{brute_force, solved};
use proptest::prelude::*;

const DESCENT: Descent = Descent { prefer: Prefer::Longest, mirror: false, noise: None };

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
            let wasteful = || boxes_with_waste(&instance, join, waste, &never).unwrap();
            let boxes = if waste > 0.0 { wasteful() } else { boxes(&instance, join) };
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
        let boxes = boxes(&instance, Join::Forced);
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
            descend(&instance, Descent { prefer, mirror, noise: None }, &Deadline::never()).unwrap();
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
