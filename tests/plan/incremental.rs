//! Plans that change, compared with the painter and with the load counted step by step.

use crate::oracle;
use allotment::plan::{Buffer, Incremental, Interval, PlanError};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Change {
    Add { size: u64, align: u64, start: u64, length: u64 },
    Remove(usize),
    Resize(usize, u64),
    Replan,
}

fn change(most: u64) -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..=most, 0..5u32, 0..20u64, 1..8u64)
            .prop_map(|(size, shift, start, length)| Change::Add { size, align: 1 << shift, start, length }),
        2 => any::<usize>().prop_map(Change::Remove),
        2 => (any::<usize>(), 0..=most).prop_map(|(k, size)| Change::Resize(k, size)),
        1 => Just(Change::Replan),
    ]
}

/// Makes all changes, and checks the whole plan after each.
fn check<const N: usize, const LIMIT: usize>(changes: &[Change], capacity: usize) {
    let mut plan = Incremental::<N, LIMIT>::new(capacity);
    let mut live: Vec<(u32, Buffer)> = Vec::new();
    for change in changes {
        let before: Vec<_> = live.iter().map(|&(id, _)| plan.offset(id)).collect();
        let generation = plan.generation();
        let mut changed = None;
        match *change {
            Change::Add { size, align, start, length } => {
                let buffer = Buffer::new(size, start..start + length).align(align);
                match plan.add(&buffer) {
                    Ok(id) => live.push((id, buffer)),
                    Err(PlanError::TooMany { room }) => assert!(room == N && live.len() == N),
                    Err(PlanError::Full { needed }) => assert!(needed > capacity && live.len() < N),
                    Err(error) => panic!("{error}"),
                }
            }
            Change::Remove(k) if !live.is_empty() => {
                let (id, _) = live.remove(k % live.len());
                plan.remove(id).unwrap();
                assert_eq!(plan.remove(id), Err(PlanError::Unknown));
                assert_eq!(plan.offset(id), None);
                changed = Some(k % (live.len() + 1));
            }
            Change::Resize(k, size) if !live.is_empty() => {
                let k = k % live.len();
                changed = Some(k);
                match plan.resize(live[k].0, size) {
                    Ok(()) => live[k].1.size = size,
                    Err(PlanError::Full { needed }) => assert!(needed > capacity),
                    Err(error) => panic!("{error}"),
                }
            }
            Change::Replan => {
                let peak = plan.peak();
                plan.replan();
                assert!(plan.peak() <= peak);
            }
            _ => {}
        }
        let offsets: Vec<u64> = live.iter().map(|&(id, _)| plan.offset(id).unwrap() as u64).collect();
        let buffers: Vec<Buffer> = live.iter().map(|&(_, buffer)| buffer).collect();
        assert_eq!(oracle::paint(&buffers, &offsets), Ok(plan.peak() as u64));
        let load = |step| buffers.iter().filter(|b| b.is_live(step)).map(|b| b.size).sum::<u64>();
        assert_eq!(plan.lower_bound() as u64, (0..30).map(load).max().unwrap());
        assert_eq!((plan.len(), plan.is_empty()), (live.len(), live.is_empty()));
        assert!(plan.peak() <= capacity);
        if plan.generation() == generation && !matches!(change, Change::Remove(_)) {
            let moved = before
                .iter()
                .zip(&offsets)
                .enumerate()
                .filter(|(k, (old, new))| changed != Some(*k) && **old != Some(**new as usize));
            assert_eq!(moved.count(), 0, "only what changes may move");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes(changes in proptest::collection::vec(change(40), 80)) {
        check::<24, 32>(&changes, 1 << 20);
    }

    /// Hardly any room, and few neighbours examined.
    #[test]
    fn changes_in_need(changes in proptest::collection::vec(change(40), 80)) {
        check::<12, 3>(&changes, 120);
    }
}

#[test]
fn senseless_changes_are_refused() {
    const GAP: [Interval; 1] = [Interval::new(1..2)];
    let mut plan = Incremental::<4>::new(usize::MAX);
    let b = Buffer::new(8, 0..3);
    for bad in [
        b.align(0),
        b.align(3),
        Buffer::new(1, 1..1),
        Buffer::new(1, 0..1 << 33),
        Buffer::new(u64::MAX, 0..1),
    ] {
        let error = plan.add(&bad).unwrap_err();
        assert!(matches!(error, PlanError::Senseless | PlanError::Full { .. }), "{error}");
    }
    for bad in [b.fixed(0), b.in_place_of(0), b.gaps(&GAP), b.apart_from(&[1])] {
        assert_eq!(plan.add(&bad), Err(PlanError::Constraint));
    }
    let id = plan.add(&b).unwrap();
    assert!(plan.resize(id, u64::MAX).is_err());
    assert_eq!(plan.add(&b.align(1 << 63)).map(drop), Err(PlanError::Full { needed: (1 << 63) + 8 }));
    assert_eq!((plan.offset(id), plan.peak()), (Some(0), 8));
    // The place is used again, with another id.
    plan.remove(id).unwrap();
    let other = plan.add(&b).unwrap();
    assert_ne!(id, other);
    assert_eq!((plan.offset(id), plan.resize(id, 1)), (None, Err(PlanError::Unknown)));
}

/// A chain of layers whose sizes change: the plan adapts and stays near its bound.
#[test]
fn shapes_that_change() {
    let mut plan = Incremental::<64>::new(1 << 20);
    let layer = |i: u64, length: u64| Buffer::new((1 + i % 7) * 16 * length, i..i + 2).align(16);
    let ids: Vec<_> = (0..50).map(|i| plan.add(&layer(i, 64)).unwrap()).collect();
    for length in [100, 7, 255, 16, 200, 1, 128] {
        for (i, &id) in ids.iter().enumerate() {
            plan.resize(id, layer(i as u64, length).size).unwrap();
        }
        plan.replan();
        assert!(plan.peak() <= plan.lower_bound() * 9 / 8, "{} {}", plan.peak(), plan.lower_bound());
    }
    assert!(plan.generation() > 0);
}
