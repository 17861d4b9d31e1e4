//! Planned memory: which buffers are available at which steps. Nothing in here is unsafe.
#![forbid(unsafe_code)]

use allotment::arena;
use allotment::plan::{Arena, PlanError};

arena! {
    /// Five buffers, two of which take the place of others.
    pub struct Net(4 * 1024) {
        INPUT: [i8; 256] = 0..2, align(64);
        /// The sums, as they come.
        SUMS: [i32; 64] = 1..3;
        SCALED: [f32; 64] = 2..4, in_place_of(SUMS);
        OUTPUT: [i8; 64] = 3..5;
        STATE: u64 = 0..5;
    }
}

#[test]
fn names_lead_to_memory() {
    static NET: Arena<Net> = Arena::new();
    let mut run = NET.begin().unwrap();
    let (input, state) = run.at::<0>().get((Net::INPUT, Net::STATE));
    assert_eq!((input.as_ptr().addr() % 64, *state), (0, 0));
    input[255] = -3;
    *state = 7;
    let (input, sums) = run.at::<1>().get((Net::INPUT, Net::SUMS));
    sums[63] = i32::from(input[255]) * 100;
    let scaled = run.at::<2>().in_place(Net::SUMS, Net::SCALED);
    // The bits of the sums, in the same memory.
    scaled[63] = (scaled[63].to_bits() as i32) as f32 / 100.0;
    let (scaled, output) = run.step(3).get((Net::SCALED, Net::OUTPUT)).unwrap();
    output[63] = scaled[63] as i8;
    let (output, state) = run.step(4).get((Net::OUTPUT, Net::STATE)).unwrap();
    assert_eq!((output[63], *state), (-3, 7));
}

#[test]
fn the_plan_saves_memory() {
    let arena = Arena::<Net>::new();
    let plan = arena.plan();
    // Input, sums and state; the output has the address of the input.
    assert_eq!((plan.peak(), plan.lower_bound(), plan.naive()), (520, 520, 840));
    assert!(Net::SCALED.shares_place_with(Net::SUMS));
    assert!(size_of::<Arena<Net>>() < 520 + 2 * 64);
}

#[test]
fn buffers_are_there_while_they_live() {
    let mut arena = Arena::<Net>::new();
    let mut run = arena.begin_mut();
    let live = [0..2, 1..3, 2..4, 3..5, 0..5];
    for step in 0..6 {
        let expected = |buffer: usize| match live[buffer].contains(&step) {
            true => Ok(()),
            false => Err(PlanError::NotLive { buffer, step }),
        };
        assert_eq!(run.step(step).get(Net::INPUT).map(drop), expected(0));
        assert_eq!(run.step(step).get(Net::SUMS).map(drop), expected(1));
        assert_eq!(run.step(step).get(Net::SCALED).map(drop), expected(2));
        assert_eq!(run.step(step).get(Net::OUTPUT).map(drop), expected(3));
        assert_eq!(run.step(step).get(Net::STATE).map(drop), expected(4));
        // One buffer that is not live makes the whole request fail.
        assert_eq!(run.step(step).get((Net::STATE, Net::INPUT)).map(drop), expected(4).and(expected(0)));
    }
    assert_eq!(run.step(9).in_place(Net::SUMS, Net::SCALED), Err(PlanError::NotLive { buffer: 1, step: 9 }));
}

#[test]
fn one_run_at_a_time() {
    static NET: Arena<Net> = Arena::new();
    let run = NET.begin().unwrap();
    assert!(NET.begin().is_none());
    std::thread::scope(|scope| {
        // A run may move to another thread and end there.
        scope.spawn(move || drop(run));
    });
    assert!(NET.begin().is_some());
    assert!(NET.begin().is_some());
}

/// Debug builds overwrite a buffer when its life ends, but keep what stays live, including in a buffer that took
/// another's place.
#[test]
#[cfg(debug_assertions)]
fn ends_are_poisoned() {
    let mut arena = Arena::<Net>::new();
    let mut run = arena.begin_mut();
    run.at::<0>().get(Net::INPUT).fill(1);
    run.at::<1>().get(Net::SUMS).fill(2);
    assert_eq!(run.at::<1>().get(Net::INPUT), &[1; 256]);
    assert_eq!(run.at::<2>().get(Net::SUMS), &[2; 64]);
    *run.at::<2>().get(Net::STATE) = 5;
    let scaled = run.at::<2>().in_place(Net::SUMS, Net::SCALED);
    assert!(scaled.iter().all(|x| x.to_bits() == 2));
    // The sums end here, but their place has been taken over.
    assert!(run.at::<3>().get(Net::SCALED).iter().all(|x| x.to_bits() == 2));
    // The output has the address of the input, which is gone.
    assert_eq!(Net::OUTPUT.offset(), Net::INPUT.offset());
    assert_eq!(run.at::<3>().get(Net::OUTPUT), &[-1; 64]);
    run.at::<4>().get(Net::OUTPUT).fill(3);
    // In the next run, the state has been live all along, but the input has not.
    let (input, state) = run.at::<0>().get((Net::INPUT, Net::STATE));
    assert_eq!((&*input, *state), (&[-1; 256], 5));
    // Skip all steps at once; floats become NaN.
    run.at::<1>().get(Net::SUMS).fill(2);
    assert!(run.at::<3>().get(Net::SCALED)[0].is_nan());
}

#[test]
#[cfg(debug_assertions)]
fn gaps_are_poisoned() {
    use allotment::plan::Interval;
    const GAP: [Interval; 1] = [Interval::new(1..2)];
    arena! {
        struct Gap(100) {
            HELD: [u8; 100] = 0..3, gaps(&GAP);
            GUEST: [u8; 100] = 1..2;
        }
    }
    let mut arena = Arena::<Gap>::new();
    let mut run = arena.begin_mut();
    run.at::<0>().get(Gap::HELD).fill(1);
    assert_eq!(run.at::<1>().get(Gap::GUEST), &[0xFF; 100]);
    assert!(run.step(1).get(Gap::HELD).is_err());
    run.at::<1>().get(Gap::GUEST).fill(2);
    assert_eq!(run.at::<2>().get(Gap::HELD), &[0xFF; 100]);
}

#[test]
fn outputs_that_cannot_take_the_place_get_a_copy() {
    arena! {
        struct Copied(100) {
            INPUT: [u8; 10] = 0..3;
            OUTPUT: [u8; 10] = 1..3, in_place_of(INPUT);
        }
    }
    let mut arena = Arena::<Copied>::new();
    let mut run = arena.begin_mut();
    run.at::<0>().get(Copied::INPUT).copy_from_slice(b"0123456789");
    let output = run.at::<1>().in_place(Copied::INPUT, Copied::OUTPUT);
    assert_eq!(output, b"0123456789");
    output.fill(0);
    assert_eq!(run.at::<2>().get(Copied::INPUT), b"0123456789");
}

#[test]
fn offsets_from_elsewhere() {
    arena! {
        struct Given(200) {
            A: [u8; 100] = 0..2;
            B: [u8; 50] = 1..3;
        } at [100, 0]
    }
    assert_eq!((Given::A.offset(), Given::B.offset()), (100, 0));
    assert_eq!(Arena::<Given>::new().plan().peak(), 200);
}

#[test]
fn a_large_alignment() {
    arena! {
        struct Large(8192) {
            A: u8 = 0..2;
            PAGE: [u8; 4096] = 1..3, align(4096);
        }
    }
    static LARGE: Arena<Large> = Arena::new();
    let mut run = LARGE.begin().unwrap();
    let (_, page) = run.at::<1>().get((Large::A, Large::PAGE));
    assert_eq!(page.as_ptr().addr() % 4096, 0);
}

/// The macro's own names hide none of the user's, and neither do the names of buffers.
#[test]
fn names_of_the_program_stay_visible() {
    const COUNT: usize = 3;
    const BUFFERS: usize = 5;
    const PLAN: usize = 7;
    const FIRST: usize = 100;
    #[derive(Clone, Copy)]
    struct Index;
    assert_eq!(size_of::<Index>(), 0);
    arena! {
        struct Named(FIRST * PLAN) {
            FIRST: [u8; FIRST] = 0..PLAN as u64;
            SECOND: [u16; COUNT + BUFFERS] = 1..3, apart_from(&[FIRST]);
        }
    }
    static NAMED: Arena<Named> = Arena::new();
    let mut run = NAMED.begin().unwrap();
    let (first, second) = run.step(2).get((Named::FIRST, Named::SECOND)).unwrap();
    assert_eq!((first.len(), second.len()), (100, 8));
    assert!(run.step(6).get(Named::FIRST).is_ok());
    assert_eq!(NAMED.plan().peak(), 116);
}
