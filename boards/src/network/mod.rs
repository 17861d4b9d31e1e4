//! A small convolutional network in 8-bit integers, whose activations lie in a planned arena.
//!
//! The weights and the image come from a generator. The output is compared with the result of an independent
//! program (`data/expect.py`). There is no heap and no unsafe code.

mod layers;
mod weights;

use allotment::arena;
use allotment::plan::{Arena, ArenaRun};
use core::fmt;

arena! {
    /// The activations. A step is a layer; an activation is live from the layer that makes it to the last one that
    /// reads it.
    pub struct Activations(8 * 1024) {
        IMAGE: [i8; 32 * 32] = 0..1;
        CONV: [i8; 16 * 16 * 8] = 0..2;
        DEPTHWISE: [i8; 16 * 16 * 8] = 1..3;
        POINTWISE: [i8; 16 * 16 * 16] = 2..4;
        RECTIFIED: [i8; 16 * 16 * 16] = 3..5, in_place_of(POINTWISE);
        POOLED: [i8; 8 * 8 * 16] = 4..7;
        RESIDUE: [i8; 8 * 8 * 16] = 5..7;
        SUM: [i8; 8 * 8 * 16] = 6..8, in_place_of(RESIDUE);
        MEAN: [i8; 16] = 7..9;
        SCORES: [i32; 10] = 8..10;
    }
}

static ACTIVATIONS: Arena<Activations> = Arena::new();

/// The scores computed by `data/expect.py`.
const EXPECTED: [i32; 10] = include!("data/scores.txt");

/// The measurements of a run. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number of inferences.
    pub rounds: u32,
    /// Size of the arena for the plan.
    pub planned: usize,
    /// Size of the activations if none shared memory.
    pub naive: usize,
    /// The lower bound of all plans.
    pub bound: usize,
    /// The class with the largest score.
    pub class: usize,
}

/// Why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_os = "none", derive(defmt::Format))]
pub enum Failure {
    /// The arena is in use.
    Busy,
    /// The output differs from the expected one.
    Scores {
        /// Round, from 1.
        round: u32,
        /// The first class whose score differs.
        class: usize,
        /// The computed score.
        score: i32,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => write!(f, "the arena is in use"),
            Self::Scores { round, class, score } => {
                write!(f, "round {round}: the score of class {class} is {score}, not {}", EXPECTED[*class])
            }
        }
    }
}

/// Runs the network `rounds` times, and checks its output each time.
pub fn run(rounds: u32) -> Result<Summary, Failure> {
    let mut class = 0;
    for round in 1..=rounds {
        let mut run = ACTIVATIONS.begin().ok_or(Failure::Busy)?;
        let scores = infer(&mut run);
        for (class, (&score, &expected)) in scores.iter().zip(&EXPECTED).enumerate() {
            if score != expected {
                return Err(Failure::Scores { round, class, score });
            }
        }
        class = (0..scores.len()).max_by_key(|&class| scores[class]).unwrap_or(0);
    }
    let plan = ACTIVATIONS.plan();
    let (planned, naive, bound) = (plan.peak() as usize, plan.naive() as usize, plan.lower_bound() as usize);
    let summary = Summary { rounds, planned, naive, bound, class };
    #[cfg(target_os = "none")]
    defmt::info!("activations: {} B planned, {} B side by side, {} B at least", planned, naive, bound);
    #[cfg(target_os = "none")]
    defmt::info!(
        "summary rounds={=u32} peak={=usize} naive={=usize} bound={=usize} class={=usize}",
        rounds,
        planned,
        naive,
        bound,
        class
    );
    Ok(summary)
}

/// Runs one inference, layer by layer.
fn infer(run: &mut ArenaRun<'_, Activations>) -> [i32; 10] {
    use Activations as A;

    let (image, conv) = run.at::<0>().get((A::IMAGE, A::CONV));
    weights::fill(&mut image[..], weights::IMAGE);
    layers::convolve(image, [32, 32, 1], conv, 2, &weights::CONV, 5);

    let (conv, depthwise) = run.at::<1>().get((A::CONV, A::DEPTHWISE));
    layers::convolve_channels(conv, [16, 16, 8], depthwise, &weights::DEPTHWISE, 5);

    let (depthwise, pointwise) = run.at::<2>().get((A::DEPTHWISE, A::POINTWISE));
    layers::mix_channels(depthwise, 8, pointwise, &weights::POINTWISE, 5);

    layers::rectify(run.at::<3>().in_place(A::POINTWISE, A::RECTIFIED));

    let (rectified, pooled) = run.at::<4>().get((A::RECTIFIED, A::POOLED));
    layers::pool(rectified, [16, 16, 16], pooled);

    let (pooled, residue) = run.at::<5>().get((A::POOLED, A::RESIDUE));
    layers::convolve(pooled, [8, 8, 16], residue, 1, &weights::RESIDUE, 8);

    run.at::<6>().in_place(A::RESIDUE, A::SUM);
    let (pooled, sum) = run.at::<6>().get((A::POOLED, A::SUM));
    layers::add(sum, pooled);

    let (sum, mean) = run.at::<7>().get((A::SUM, A::MEAN));
    layers::mean(sum, mean);

    let (mean, scores) = run.at::<8>().get((A::MEAN, A::SCORES));
    layers::score(mean, scores, &weights::SCORES);

    *run.at::<9>().get(A::SCORES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_the_expected_one() {
        let summary = run(3).unwrap();
        assert_eq!((summary.rounds, summary.class), (3, (0..10).max_by_key(|&k| EXPECTED[k]).unwrap()));
    }

    #[test]
    fn the_arena_is_as_small_as_it_can_be() {
        let plan = ACTIVATIONS.plan();
        assert_eq!((plan.peak(), plan.lower_bound(), plan.naive()), (6144, 6144, 16_440));
        assert_eq!(plan.buffers().len(), 10);
        assert!(Activations::SUM.shares_place_with(Activations::RESIDUE));
        assert!(Activations::RECTIFIED.shares_place_with(Activations::POINTWISE));
    }
}
