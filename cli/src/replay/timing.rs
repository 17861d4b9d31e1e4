//! Measures times as ratios, in interleaved rounds.

use std::time::Duration;

use allotment_trace::Program;

use super::arena::Arena;
use super::run;
use super::subject::{Make, Visitor, with};

/// The placement to which all ratios refer.
pub const BASE: &str = "tlsf";

/// The shortest sample that the clock can measure well.
const ENOUGH: Duration = Duration::from_millis(5);

struct Timed<'a> {
    program: &'a Program,
    memory: &'a mut Arena,
    arena: usize,
    repeat: usize,
}

impl Visitor for Timed<'_> {
    type Out = Option<Duration>;

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        run::time(make, self.program, self.memory, self.arena, self.repeat)
    }
}

/// Measures the time of each placement relative to [`BASE`]: the median over `rounds`. In each round every placement replays the trace on
/// the same warm memory, in rotating order; slow placements take part in only two rounds. Omits placements that cannot use the arena, or
/// that were not replayed before the arena's deadline. The result is empty without `BASE`.
pub fn ratios<'a>(
    ids: &[&'a str],
    program: &Program,
    memory: &mut Arena,
    arena: usize,
    rounds: usize,
) -> Vec<(&'a str, f64)> {
    let mut sample = |id: &str, repeat: usize| -> Option<f64> {
        let time = with(id, Timed { program, memory, arena, repeat })??;
        Some(time.as_secs_f64() / repeat as f64)
    };
    let mut plan = Vec::new();
    for id in ids.iter().copied().filter(|&id| id != BASE).chain([BASE]) {
        // The first replay warms the memory.
        let once = sample(id, 1).and_then(|_| sample(id, 1));
        let Some(once) = once else { continue };
        let repeat = (ENOUGH.as_secs_f64() / once.max(1e-9)).ceil().clamp(1.0, 1e6) as usize;
        let rounds = if once > 40.0 * ENOUGH.as_secs_f64() { rounds.min(2) } else { rounds };
        plan.push((id, repeat, rounds));
    }
    if plan.last().is_none_or(|last| last.0 != BASE) {
        return Vec::new();
    }
    let base = plan.len() - 1;
    let mut times = vec![Vec::new(); plan.len()];
    for round in 0..rounds {
        let before = times.iter().map(Vec::len).sum::<usize>();
        for place in 0..plan.len() {
            let subject = (place + round) % plan.len();
            let (id, repeat, rounds) = plan[subject];
            if let Some(time) = (round < rounds).then(|| sample(id, repeat)).flatten() {
                times[subject].push(time);
            }
        }
        // Further rounds would measure nothing more.
        if times.iter().map(Vec::len).sum::<usize>() == before {
            break;
        }
    }
    let ratio = |subject: usize| {
        let mut ratios: Vec<f64> =
            times[subject].iter().zip(&times[base]).map(|(time, base)| time / base.max(1e-12)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied()
    };
    let of = |&id: &&'a str| {
        let subject = plan.iter().position(|plan| plan.0 == id)?;
        Some((id, ratio(subject)?))
    };
    ids.iter().filter_map(of).collect()
}
