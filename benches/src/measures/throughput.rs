//! Throughput over the traces as a ratio to talc 5, in interleaved rounds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Measure, Options, is_slow_twin, serves, subjects};
use crate::arena::Arena;
use crate::replay;
use crate::results::{Results, Row};
use crate::statistics::{median, quantile};
use crate::subjects::{Form, LOADING, Subject, Visitor, base, entry, isolated, with};
use crate::table::{Better, Table};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "throughput",
    about: "throughput over the traces as a ratio to talc 5, arena 1.5 x peak",
    run,
    tables,
};

/// The metric of the first table.
pub const PLAIN: &str = "throughput / talc 5";
/// The same without what the loop around the calls takes.
pub const SUBTRACTED: &str = "throughput / talc 5, harness subtracted";
/// The metric of its spread.
pub const SPREAD: &str = "quartile spread of throughput / talc 5";

fn tables(_: &Results) -> Vec<Table> {
    let common = Table { better: Better::Higher, digits: 2, level: true, by_form: true, ..Table::default() };
    let plain = Table {
        title: "Throughput",
        text: "Median over rounds of (time of talc 5 / time of the subject), talc 5 behind its lock for what is registered \
               and as a plain value for what has no lock; in every round each subject replays the trace on the same warm \
               memory, in an order that rotates. Blocks are not touched by the harness. Arena 1.5 x the peak of live \
               bytes."
            .into(),
        metric: PLAIN,
        plot: Some("throughput"),
        ..common.clone()
    };
    let subtracted = Table {
        title: "Throughput, harness subtracted",
        text: "The same after the time of a subject that does nothing with its arguments has been subtracted from both.".into(),
        metric: SUBTRACTED,
        ..common.clone()
    };
    let mut tables = plain.by_set();
    tables.extend(subtracted.by_set().into_iter().take(1));
    tables.push(Table {
        title: "Throughput, spread",
        text: "Upper minus lower quartile of the first table's ratios over the rounds.".into(),
        metric: SPREAD,
        better: Better::Neither,
        ..common
    });
    tables
}

fn run(options: &Options) -> Result<Vec<Row>> {
    compare(options, options.traces()?)
}

/// Compares all subjects on every trace.
pub fn compare(options: &Options, traces: &[Trace]) -> Result<Vec<Row>> {
    let rounds = options.pick(15, 5);
    let mut rows = Vec::new();
    for trace in traces {
        let arena = Arena::new(trace.arena())?;
        // Touch every page before the clock runs.
        // SAFETY: the arena is ours.
        unsafe { arena.start().write_bytes(0, arena.size()) };
        let admitted = subjects(|entry| serves(entry, trace.arena()) && !is_slow_twin(entry));
        let ids: Vec<_> = [LOADING].into_iter().chain(admitted.iter().map(|entry| entry.id)).collect();
        let sample = |id: &str, repeat: usize| -> Result<Duration> {
            with(id, Timed { trace, arena: &arena, repeat }).context("no such subject")?
        };
        // How often a replay is repeated to take long enough for the clock, and which subjects are so slow that two
        // rounds must suffice.
        let once = sample(base(Form::Bare), 1)?.min(sample(base(Form::Bare), 1)?);
        let enough = Duration::from_millis(options.pick(20, 5));
        let repeat = (enough.as_nanos() / once.as_nanos().max(1)).max(1) as usize;
        let mut plans = Vec::new();
        for &id in &ids {
            let cost = sample(id, 1)?;
            let slow = cost > 5 * enough && cost > 15 * once;
            plans.push(if slow { (id, 1, 2) } else { (id, repeat, rounds) });
        }
        let mut times = vec![vec![]; ids.len()];
        for round in 0..rounds {
            for place in 0..ids.len() {
                let subject = (place + round) % ids.len();
                let (id, repeat, rounds) = plans[subject];
                if round < rounds {
                    times[subject].push(sample(id, repeat)?.as_secs_f64() / repeat as f64);
                }
            }
        }
        for (subject, &id) in ids.iter().enumerate().filter(|&(_, &id)| id != LOADING) {
            let form = entry(id).context("no such subject")?.form;
            let base = ids.iter().position(|&id| id == base(form)).context("talc 5 is a subject")?;
            let ratios = |harness: bool| -> Vec<f64> {
                let own = times[subject].iter().enumerate();
                own.map(|(round, time)| {
                    let loop_time = if harness { times[0][round] } else { 0.0 };
                    (times[base][round] - loop_time) / (time - loop_time).max(1e-12)
                })
                .collect()
            };
            let plain = ratios(false);
            rows.push(Row::new(&trace.name, id, PLAIN, median(&plain)));
            rows.push(Row::new(&trace.name, id, SUBTRACTED, median(&ratios(true))));
            rows.push(Row::new(&trace.name, id, SPREAD, quantile(&plain, 0.75) - quantile(&plain, 0.25)));
        }
    }
    Ok(rows)
}

/// Measures the time of `repeat` replays, each on a fresh subject.
pub struct Timed<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// The memory.
    pub arena: &'a Arena,
    /// The number of replays.
    pub repeat: usize,
}

impl Visitor for Timed<'_> {
    type Out = Result<Duration>;

    fn visit<S: Subject>(self) -> Self::Out {
        let mut total = Duration::ZERO;
        for _ in 0..self.repeat {
            total += isolated::<S, _>(|| -> Result<Duration> {
                let mut blocks = replay::table(self.trace);
                // SAFETY: the arena is ours and outlives the subject, whose blocks are not used after it.
                unsafe {
                    let mut subject = S::new(self.arena.whole()).context("the arena is too small")?;
                    let start = Instant::now();
                    replay::measured_loop(&mut *subject, &mut blocks, &self.trace.ops);
                    Ok(start.elapsed())
                }
            })?;
        }
        Ok(total)
    }
}
