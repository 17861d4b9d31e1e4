//! Static plans in a pool's memory.

use super::{KIB, MIB, hand_over, pool};
use allotment::arena;
use allotment::plan::{Buffer, OwnedPlan, PlanError, Planned, RULES};
use allotment::pool::{DevicePool, PlannedArena, PoolError, PoolOptions, SourceErrorKind};
use allotment::sim::{DeviceMemory, Stream};

arena! {
    struct Net(64 * 1024 * 1024) {
        INPUT: [f32; 256 * 1024] = 0..2, align(256);
        HIDDEN: [f32; 512 * 1024] = 1..3, align(256);
        OUTPUT: [f32; 256 * 1024] = 2..4, align(256);
        SCALED: [f32; 256 * 1024] = 3..5, align(256), in_place_of(OUTPUT);
    }
}

#[test]
fn buffers_lie_where_they_are_planned() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let plan = Net::PLACED;
    let arena = PlannedArena::new(&pool, plan, &stream).unwrap();
    assert_eq!((arena.bytes() as u64, arena.address() % 256), (plan.peak(), 0));
    let stats = pool.stats();
    assert_eq!((stats.blocks.current, stats.requested.current), (1, plan.peak()), "one block");
    for slot in 0..4 {
        let buffer = arena.take(slot).unwrap();
        assert_eq!(buffer.address() - arena.address(), plan.offsets()[slot] as usize);
        assert_eq!((buffer.bytes() as u64, buffer.slot()), (plan.buffers()[slot].size, Some(slot)));
        let text = format!("PlannedBuffer {{ slot: Some({slot}), address: {}, .. }}", buffer.address());
        assert_eq!(format!("{buffer:?}"), text);
    }
    assert_eq!(pool.stats().blocks.total, 1);
    drop(arena);
    assert_eq!(pool.stats().blocks.current, 0);
}

#[test]
fn what_overlaps_is_not_had_at_once() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let arena = PlannedArena::new(&pool, Net::PLACED, &stream).unwrap();
    let (input, output) = (Net::INPUT.index(), Net::OUTPUT.index());
    assert!(Net::INPUT.shares_place_with(Net::OUTPUT));
    let held = arena.take(input).unwrap();
    assert_eq!(arena.take(input).unwrap_err(), PoolError::SlotLive { slot: input });
    assert_eq!(arena.take(output).unwrap_err(), PoolError::SlotOverlap { slot: output, with: input });
    assert_eq!(arena.take(4).unwrap_err(), PoolError::NoSlot { slot: 4 });
    let hidden = arena.take(Net::HIDDEN.index()).unwrap();
    drop(held);
    let held = arena.take(output).unwrap();
    // Another buffer that shares memory is live, so this one stays unchanged.
    let (error, held) = held.turn_into(Net::HIDDEN.index()).unwrap_err();
    assert_eq!((error, held.slot()), (PoolError::SlotLive { slot: 1 }, Some(output)));
    assert_eq!(arena.take(input).unwrap_err(), PoolError::SlotOverlap { slot: input, with: output });
    drop(hidden);
    let scaled = Net::SCALED.index();
    assert_eq!(arena.take(scaled).unwrap_err(), PoolError::SlotOverlap { slot: scaled, with: output });
    let (address, held) = (held.address(), held.turn_into(scaled).unwrap());
    assert_eq!((held.slot(), held.address()), (Some(scaled), address), "in place");
    let (error, _held) = held.turn_into(9).unwrap_err();
    assert_eq!(error, PoolError::NoSlot { slot: 9 });
}

/// Random buffers, taken and dropped at random: live ones never overlap, and no free one is refused.
#[test]
fn random_takes_are_refused_exactly_when_they_overlap() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..30 {
        let buffers: Vec<Buffer> = (0..random.usize(1..40))
            .map(|_| {
                let start = random.u64(0..50);
                let size = if random.u32(0..10) == 0 { 0 } else { random.u64(1..100_000) };
                Buffer::new(size, start..start + random.u64(1..20)).align(1 << random.u32(0..12))
            })
            .collect();
        let plan = OwnedPlan::new(&buffers, &RULES).unwrap();
        let pool = pool(64, PoolOptions::new());
        let stream = pool.source().stream();
        let arena = PlannedArena::new(&pool, plan.placed(), &stream).unwrap();
        assert_eq!(arena.address() as u64 % plan.placed().align(), 0);
        let mut live = vec![];
        for _ in 0..400 {
            let slot = random.usize(..buffers.len());
            let span = |slot: usize| {
                let start = plan.placed().offsets()[slot];
                start..start + buffers[slot].size
            };
            let clashes = |other: &allotment::pool::PlannedBuffer<_>| {
                let (a, b) = (span(slot), span(other.slot().unwrap()));
                other.slot() == Some(slot)
                    || (a.start < b.end && b.start < a.end && !a.is_empty() && !b.is_empty())
            };
            match arena.take(slot) {
                Ok(buffer) => {
                    assert!(!live.iter().any(clashes));
                    live.push(buffer);
                }
                Err(PoolError::SlotLive { .. } | PoolError::SlotOverlap { .. }) => {
                    assert!(live.iter().any(clashes))
                }
                Err(error) => panic!("{error}"),
            }
            if random.bool() && !live.is_empty() {
                live.swap_remove(random.usize(..live.len()));
            }
        }
    }
}

#[test]
fn what_lies_there_next_comes_after_work_on_other_streams() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let input = arena.take(Net::INPUT.index()).unwrap();
    own.launch(1, input.address(), input.bytes());
    hand_over(&own, &other);
    input.used_on(&other);
    let last = other.launch(1, input.address(), input.bytes());
    drop(input);
    let output = arena.take(Net::OUTPUT.index()).unwrap();
    let first = own.launch(2, output.address(), output.bytes());
    // Work on the other stream does not run, so the arena's stream must not get beyond its own work.
    assert!(own.step());
    assert!(!own.step() && !device.is_done(first));
    other.run();
    own.run();
    assert!(device.is_done(last) && device.is_done(first));
    drop(output);
    drop(arena);
    drop(pool);
    assert_eq!(device.take_hazards(), []);
}

/// The same when a buffer is exchanged for another one.
#[test]
fn what_turns_into_another_one_is_waited_for_too() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let input = arena.take(Net::INPUT.index()).unwrap();
    own.launch(1, input.address(), input.bytes());
    hand_over(&own, &other);
    input.used_on(&other);
    other.launch(1, input.address(), input.bytes());
    let hidden = input.turn_into(Net::HIDDEN.index()).unwrap();
    let output = arena.take(Net::OUTPUT.index()).unwrap();
    own.launch(2, output.address(), output.bytes());
    own.run();
    other.run();
    own.run();
    drop((hidden, output));
    drop(arena);
    drop(pool);
    assert_eq!(device.take_hazards(), []);
}

#[test]
fn what_the_driver_cannot_order_stays_out_of_use() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let input = arena.take(Net::INPUT.index()).unwrap();
    input.used_on(&other);
    device.fail("simRecord", 1);
    drop(input);
    assert_eq!(arena.take(0).unwrap_err(), PoolError::SlotLost { slot: 0 });
    assert_eq!(arena.take(2).unwrap_err(), PoolError::SlotOverlap { slot: 2, with: 0 });
    assert!(arena.take(1).is_ok());
}

/// A question that fails is replaced by a wait, unless the device is lost.
#[test]
fn what_the_driver_cannot_tell_is_waited_for() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let kinds = [SourceErrorKind::Other, SourceErrorKind::Capturing, SourceErrorKind::Lost];
    for (kind, waits) in kinds.into_iter().zip([1, 2, 2]) {
        let input = arena.take(Net::INPUT.index()).unwrap();
        input.used_on(&other);
        other.launch(1, input.address(), input.bytes());
        device.fail_as(Some("simQuery"), 1, 1, kind);
        drop(input);
        assert_eq!(device.calls("simWait"), waits, "{kind:?}");
        let again = arena.take(Net::INPUT.index()).map(drop);
        let lost = Err(PoolError::SlotLost { slot: Net::INPUT.index() });
        assert_eq!(again, if kind == SourceErrorKind::Lost { lost } else { Ok(()) });
    }
    [&other, &own].into_iter().for_each(Stream::run);
}

/// A buffer that the driver cannot order stays what it is when it should turn into another one.
#[test]
fn what_the_driver_cannot_order_does_not_turn() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let input = arena.take(Net::INPUT.index()).unwrap();
    input.used_on(&other);
    other.launch(1, input.address(), input.bytes());
    device.fail("simRecord", 1);
    let (error, input) = input.turn_into(Net::OUTPUT.index()).unwrap_err();
    assert_eq!((error, input.slot()), (PoolError::SlotLost { slot: 0 }, Some(0)));
    assert_eq!(arena.take(2).unwrap_err(), PoolError::SlotOverlap { slot: 2, with: 0 });
    let output = input.turn_into(Net::OUTPUT.index()).unwrap();
    assert_eq!((output.slot(), device.calls("simWait")), (Some(2), 1));
    drop(output);
    assert!(arena.take(0).is_ok());
}

/// Every other stream that used a buffer is waited for, once, and the arena's own is not.
#[test]
fn each_user_is_waited_for_once() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let [own, one, other] = [(); 3].map(|()| device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let arena = PlannedArena::new(&pool, Net::PLACED, &own).unwrap();
    let input = arena.take(Net::INPUT.index()).unwrap();
    for user in [&one, &own, &other, &other] {
        input.used_on(user);
    }
    own.launch(1, input.address(), 1);
    one.launch(1, input.address(), 1);
    other.launch(1, input.address(), 1);
    drop(input);
    assert_eq!((device.calls("simRecord"), device.calls("simWait")), (2, 2));
}

#[test]
fn plans_that_make_no_sense_or_find_no_room_are_refused() {
    let (a, b) = (Buffer::new(100, 0..2), Buffer::new(50, 1..3));
    assert!(matches!(OwnedPlan::new(&[a, b], &[]), Err(PlanError::NoRule)));
    assert!(matches!(OwnedPlan::new(&[a.align(3)], &RULES), Err(PlanError::Align(0))));
    let buffers = [a, b];
    let wrong = OwnedPlan::from_offsets(&buffers, vec![0, 99]);
    assert!(matches!(wrong, Err(PlanError::Overlap(0, 1))));
    assert!(matches!(OwnedPlan::from_offsets(&buffers, vec![0]), Err(PlanError::Length)));
    let right = OwnedPlan::from_offsets(&buffers, vec![0, 100]).unwrap();
    assert_eq!((right.placed().peak(), right.placed().lower_bound()), (150, 150));

    let pool = pool(1, PoolOptions::new().small(0, 0));
    let stream = pool.source().stream();
    let large = [Buffer::new((2 * MIB) as u64, 0..1), Buffer::new(u64::MAX / 4, 0..1)];
    let plan = OwnedPlan::new(&large[..1], &RULES).unwrap();
    assert!(matches!(PlannedArena::new(&pool, plan.placed(), &stream), Err(PoolError::OutOfMemory(_))));
    let plan = OwnedPlan::new(&large, &RULES).unwrap();
    assert!(matches!(PlannedArena::new(&pool, plan.placed(), &stream), Err(PoolError::TooLarge { .. })));
    let aligned = [Buffer::new(KIB as u64, 0..1).align(1 << 62)];
    let plan = OwnedPlan::new(&aligned, &RULES).unwrap();
    assert!(matches!(PlannedArena::new(&pool, plan.placed(), &stream), Err(PoolError::TooLarge { .. })));
    let plan = OwnedPlan::new(&[], &RULES).unwrap();
    assert_eq!(PlannedArena::new(&pool, plan.placed(), &stream).unwrap().bytes(), 0, "nothing is a plan too");
}
