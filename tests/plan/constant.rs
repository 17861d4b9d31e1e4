//! Plans made in a `const`, and each constraint by itself.

use crate::oracle;
use allotment::plan::{
    Buffer, Interval, Load, Plan, PlanError, RULES, affordable_rules, check, load, plan, try_plan, validate,
};

const CHAIN: [Buffer; 4] = [
    Buffer::new(1000, 0..2).align(16).name("input"),
    Buffer::new(4000, 1..3).align(16).name("hidden"),
    Buffer::new(1000, 2..4).align(16).name("output"),
    Buffer::new(100, 0..4).align(4).name("state"),
];
const PLAN: Plan<4> = plan(&CHAIN).within(5100);

#[test]
fn a_plan_is_a_constant() {
    // The compiler knows the peak, so it can be the length of an array.
    static MEMORY: [u8; PLAN.peak() as usize] = [0; PLAN.peak() as usize];
    assert_eq!(MEMORY.len(), 5100);
    assert_eq!(PLAN.lower_bound(), 5100);
    assert_eq!(PLAN.validate(), Ok(5100));
    assert_eq!(oracle::paint(&CHAIN, PLAN.offsets()), Ok(5100));
    assert_eq!((PLAN.naive(), PLAN.align()), (6108, 16));
    assert_eq!((PLAN.worst_moment().step, PLAN.worst_moment().bytes), (1, 5100));
    assert!(RULES.contains(&PLAN.rule().unwrap()));
}

/// The number of buffers named in the target. That they are planned without `allow(long_running_const_eval)` is
/// half of the test.
#[test]
fn many_buffers_are_a_constant_too() {
    static MANY: [Buffer; 256] = {
        let mut buffers = [Buffer::new(0, 0..1); 256];
        let mut state: u32 = 1;
        let mut i = 0;
        while i < buffers.len() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (size, length) = ((state >> 20) as u64, [2, 2, 3, 5, 20][(state >> 10) as usize % 5]);
            buffers[i] = Buffer::new(size, i as u64..i as u64 + length).align(16);
            i += 1;
        }
        buffers
    };
    const PLAN: Plan<256> = plan(&MANY);
    assert_eq!(oracle::paint(&MANY, PLAN.offsets()), Ok(PLAN.peak()));
    assert!(PLAN.peak() * 100 <= PLAN.lower_bound() * 105, "{} {}", PLAN.peak(), PLAN.lower_bound());
}

fn planned<const N: usize>(buffers: [Buffer; N]) -> ([u64; N], u64) {
    let plan = try_plan(&buffers, &RULES).unwrap();
    assert_eq!(oracle::paint(&buffers, plan.offsets()), Ok(plan.peak()));
    assert_eq!(plan.validate(), Ok(plan.peak()));
    assert!(plan.lower_bound() <= plan.peak());
    (*plan.offsets(), plan.peak())
}

#[test]
fn nothing_needs_nothing() {
    assert_eq!(planned([]), ([], 0));
    assert_eq!(load(&[]), Load { step: 0, bytes: 0, bound: 0 });
    assert_eq!(planned([Buffer::new(0, 0..1).align(64)]).1, 0);
    // A buffer of size zero may lie inside others, even at a fixed offset.
    assert_eq!(planned([Buffer::new(10, 0..1), Buffer::new(0, 0..1).fixed(5), Buffer::new(0, 0..1)]).1, 10);
}

#[test]
fn offsets_are_aligned() {
    let buffers = [Buffer::new(3, 0..2), Buffer::new(5, 0..2).align(64), Buffer::new(5, 1..3).align(64)];
    // 0..5, 64..69, and 3 bytes in between.
    assert_eq!(planned(buffers).1, 69);
    assert_eq!(load(&buffers).bound, 69);
}

#[test]
fn fixed_buffers_stay() {
    let (offsets, peak) = planned([
        Buffer::new(10, 0..4),
        Buffer::new(10, 0..4).fixed(5),
        Buffer::new(5, 0..4),
        Buffer::new(20, 3..9).fixed(40),
    ]);
    assert_eq!((offsets[1], offsets[2], offsets[3], peak), (5, 0, 40, 60));
}

#[test]
fn hints_are_followed_if_they_cost_nothing() {
    // There is room for the second buffer anywhere above the first.
    let (offsets, peak) = planned([Buffer::new(100, 0..1), Buffer::new(10, 1..2).hint(70)]);
    assert_eq!((offsets[1], peak), (70, 100));
    let (offsets, peak) = planned([Buffer::new(100, 0..2), Buffer::new(10, 1..2).hint(150)]);
    assert_eq!((offsets[1], peak), (100, 110));
    // Not aligned, overlapping, and beyond 64 bits.
    for hint in [3, 8, u64::MAX, u64::MAX - 7] {
        let (offsets, peak) = planned([Buffer::new(100, 0..2), Buffer::new(10, 1..2).align(8).hint(hint)]);
        assert_eq!((offsets[1] % 8, peak), (0, 114.min(offsets[1] + 10).max(100)));
    }
}

#[test]
fn gaps_are_used_by_others() {
    const GAP: [Interval; 1] = [Interval::new(2..5)];
    let held = [Buffer::new(100, 0..8), Buffer::new(100, 2..5)];
    assert_eq!(planned(held).1, 200);
    let (offsets, peak) = planned([Buffer::new(100, 0..8).gaps(&GAP), Buffer::new(100, 2..5)]);
    assert_eq!((offsets, peak), ([0, 0], 100));
    // One step too many.
    assert_eq!(planned([Buffer::new(100, 0..8).gaps(&GAP), Buffer::new(100, 2..6)]).1, 200);
    // A gap up to the end.
    assert_eq!(planned([Buffer::new(100, 0..5).gaps(&GAP), Buffer::new(100, 2..9)]).1, 100);
    // Two with gaps that interleave.
    const ODD: [Interval; 2] = [Interval::new(0..1), Interval::new(2..3)];
    const EVEN: [Interval; 2] = [Interval::new(1..2), Interval::new(3..4)];
    assert_eq!(planned([Buffer::new(9, 0..4).gaps(&ODD), Buffer::new(9, 0..4).gaps(&EVEN)]).1, 9);
}

#[test]
fn outputs_take_their_inputs_place() {
    let chain = |alias: bool| {
        let b = |size, steps, input| {
            let b = Buffer::new(size, steps);
            if alias { b.in_place_of(input) } else { b }
        };
        [Buffer::new(100, 0..2), b(100, 1..3, 0), b(80, 2..4, 1), b(100, 3..5, 2)]
    };
    assert_eq!(planned(chain(false)).1, 200);
    assert_eq!(planned(chain(true)), ([0; 4], 100));
    assert_eq!(load(&chain(true)).bound, 100);
    // The input is read once more, so there is no effect.
    let buffers = [Buffer::new(100, 0..3), Buffer::new(100, 1..3).in_place_of(0)];
    assert_eq!(planned(buffers).1, 200);
    // Of two outputs, one takes the place.
    let two = [
        Buffer::new(100, 0..2),
        Buffer::new(100, 1..3).in_place_of(0),
        Buffer::new(100, 1..3).in_place_of(0),
    ];
    assert_eq!(planned(two).1, 200);
}

#[test]
fn some_must_be_apart() {
    let buffers = [Buffer::new(10, 0..1), Buffer::new(10, 5..6).apart_from(&[0]), Buffer::new(10, 8..9)];
    assert_eq!(planned(buffers).1, 20);
    // It does not matter which of the two names the other, and the constraint outweighs an alias.
    let buffers = [Buffer::new(10, 0..2).apart_from(&[1]), Buffer::new(10, 1..3).in_place_of(0)];
    assert_eq!(planned(buffers).1, 20);
}

/// What is never live shares its place with all, fixed ones included, and lies in the arena.
#[test]
fn empty_lifetimes_take_no_memory_of_others() {
    let buffers = [Buffer::new(10, 3..3), Buffer::new(20, 3..3), Buffer::new(5, 0..5), Buffer::new(4, 0..5)];
    let plan = try_plan(&buffers, &RULES).unwrap();
    assert_eq!((plan.peak(), plan.lower_bound()), (20, 20));
    assert_eq!(plan.validate(), Ok(20));
    let fixed =
        [Buffer::new(8, 0..4).fixed(0), Buffer::new(8, 2..2).fixed(4), Buffer::new(8, u64::MAX..u64::MAX)];
    assert_eq!(try_plan(&fixed, &RULES).unwrap().peak(), 12);
    // Unless it must be apart.
    let apart = [Buffer::new(8, 0..4), Buffer::new(8, 2..2).apart_from(&[0])];
    assert_eq!(try_plan(&apart, &RULES).unwrap().peak(), 16);
}

#[test]
fn senseless_buffers_are_refused() {
    let good = Buffer::new(8, 0..2);
    let refused = |bad: Buffer| try_plan(&[good, bad], &RULES).map(|plan| plan.peak()).unwrap_err();
    assert_eq!(refused(good.align(0)), PlanError::Align(1));
    assert_eq!(refused(good.align(12)), PlanError::Align(1));
    #[expect(clippy::reversed_empty_ranges, reason = "that is what is wrong with it")]
    let backwards = Buffer::new(8, 3..2);
    assert_eq!(refused(backwards), PlanError::Lifetime(1));
    for gaps in [
        &[Interval::new(0..2)][..],
        &[Interval::new(1..1)],
        &[Interval::new(1..3)],
        &[Interval::new(1..2), Interval::new(0..1)],
        &[Interval::new(0..1), Interval::new(1..2)],
    ] {
        assert_eq!(refused(good.gaps(gaps)), PlanError::Gaps(1));
    }
    assert_eq!(refused(good.in_place_of(1)), PlanError::Reference(1));
    assert_eq!(refused(good.in_place_of(2)), PlanError::Reference(1));
    assert_eq!(refused(good.apart_from(&[0, 7])), PlanError::Reference(1));
    assert_eq!(refused(good.align(4).fixed(2)), PlanError::FixedAlign(1));
    assert_eq!(check(&[good.fixed(0), good.fixed(7)]), Err(PlanError::FixedOverlap(0, 1)));
    assert_eq!(check(&[good.fixed(0), good.fixed(8)]), Ok(()));
    assert_eq!(try_plan(&[good], &[]).unwrap_err(), PlanError::NoRule);
}

#[test]
fn sizes_at_the_border_of_64_bits() {
    let huge = Buffer::new(u64::MAX - 1, 0..1);
    assert_eq!(planned_peak([huge]), Ok(u64::MAX - 1));
    assert_eq!(planned_peak([Buffer::new(u64::MAX, 0..1)]), Err(PlanError::TooLarge(0)));
    assert_eq!(planned_peak([huge, Buffer::new(1, 0..1)]), Err(PlanError::TooLarge(1)));
    assert_eq!(planned_peak([huge.align(2)]), Err(PlanError::TooLarge(0)));
    let fixed = Buffer::new(8, 0..1).fixed(1 << 20);
    assert_eq!(planned_peak([fixed]), Ok((1 << 20) + 8));
    assert_eq!(planned_peak([fixed.fixed(u64::MAX - 7)]), Err(PlanError::TooLarge(0)));
    assert_eq!(planned_peak([fixed.fixed(u64::MAX - 17)]), Ok(u64::MAX - 9));
    // Times and areas at the limits.
    let long = Buffer::new(1 << 62, 0..u64::MAX);
    assert_eq!(planned_peak([long, Buffer::new(1 << 62, 5..u64::MAX)]), Ok(1 << 63));
    // An alignment so large that the sum of all sizes padded to it has more than 64 bits.
    let aligned = Buffer::new(1, 0..1).align(1 << 60);
    let many = [Buffer::new(1, 0..1); 40];
    let mut buffers = [aligned; 41];
    buffers[1..].copy_from_slice(&many);
    assert_eq!(planned_peak(buffers), Ok(41));
}

fn planned_peak<const N: usize>(buffers: [Buffer; N]) -> Result<u64, PlanError> {
    try_plan(&buffers, &RULES).map(|plan| {
        assert_eq!(plan.validate(), Ok(plan.peak()));
        plan.peak()
    })
}

#[test]
fn plans_from_elsewhere_are_checked() {
    let b = Buffer::new(8, 0..2);
    let buffers = [b.align(8), b.fixed(8)];
    assert_eq!(validate(&buffers, &[0, 8], 16), Ok(16));
    assert_eq!(validate(&buffers, &[0, 8], 15), Err(PlanError::Beyond(1)));
    assert_eq!(validate(&buffers, &[0], 16), Err(PlanError::Length));
    assert_eq!(validate(&buffers, &[4, 8], 16), Err(PlanError::Misaligned(0)));
    assert_eq!(validate(&buffers, &[0, 9], 99), Err(PlanError::Moved(1)));
    assert_eq!(validate(&buffers, &[8, 8], 99), Err(PlanError::Overlap(0, 1)));
    assert_eq!(validate(&buffers, &[u64::MAX - 7, 8], u64::MAX), Err(PlanError::Beyond(0)));
    // A shared place must have the same offset.
    let pair = [b, Buffer::new(8, 1..3).in_place_of(0)];
    assert_eq!(validate(&pair, &[4, 4], 99), Ok(12));
    assert_eq!(validate(&pair, &[4, 5], 99), Err(PlanError::Overlap(0, 1)));
    let plan = Plan::from_offsets(&buffers, [16, 8]).unwrap();
    assert_eq!((plan.peak(), plan.lower_bound(), plan.rule()), (24, 16, None));
    assert_eq!(Plan::from_offsets(&[b.align(3)], [0]).unwrap_err(), PlanError::Align(0));
}

#[test]
#[should_panic = "the plan needs 12 B but the arena has 11 B; the worst moment is step 1 with 12 B live: \
                  a (4 B), #2 (8 B)"]
fn what_does_not_fit_is_named() {
    let _ = plan(&[Buffer::new(3, 2..3), Buffer::new(4, 0..2).name("a"), Buffer::new(8, 1..3)]).within(11);
}

#[test]
#[should_panic = "activation (1000000000000 B), and 12 more"]
fn many_that_do_not_fit_are_counted() {
    let _ = plan(&[Buffer::new(1_000_000_000_000, 0..2).name("activation"); 40]).within(11);
}

#[test]
#[should_panic = "two fixed buffers overlap while both are live: a (4 B) and #1 (8 B)"]
fn what_makes_no_sense_is_named() {
    plan(&[Buffer::new(4, 0..2).name("a").fixed(0), Buffer::new(8, 1..3).fixed(2)]);
}

#[test]
fn as_many_rules_as_the_compiler_can_afford() {
    assert_eq!(affordable_rules(0).len(), RULES.len());
    assert_eq!(affordable_rules(147).len(), RULES.len());
    assert_eq!(affordable_rules(256).len(), 4);
    assert_eq!(affordable_rules(10_000).len(), 1);
    assert_eq!(affordable_rules(usize::MAX).len(), 1);
}
