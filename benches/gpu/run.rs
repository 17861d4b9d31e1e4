//! Rounds, in each of which every subject is measured in turn.

use std::time::Instant;

use allotment_benches::gpu;
use allotment_benches::results::Row;
use anyhow::{Context, Result};

use crate::measures;
use crate::setup::{Sample, Setup};

/// Runs of which the least counts.
const LEAST_OF: usize = 5;

/// Runs the measures `names`, and passes on all rows so far after each.
pub fn run(
    setup: &Setup,
    names: &[&'static str],
    mut each: impl FnMut(&[Row]) -> Result<()>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in names {
        eprintln!("{name}");
        // In the order of their first appearance.
        let mut found = Vec::new();
        let (parts, start) = (measures::parts(name, setup), Instant::now());
        for part in 0..parts {
            setup.begin(start, (part + 1) as f64 / parts as f64);
            // Counts do not vary.
            let rounds = if *name == measures::COUNT { 1 } else { setup.rounds };
            for round in 0..rounds {
                if round > 0 && setup.is_late() {
                    break;
                }
                once(setup, name, part, &mut found)
                    .with_context(|| format!("measure {name}, round {round}"))?;
            }
        }
        for Figure { case, subject, metric, values } in found {
            rows.extend(gpu::rows(&case, subject, metric, &values));
        }
        each(&rows)?;
    }
    Ok(rows)
}

/// A figure in all rounds so far.
struct Figure {
    case: String,
    subject: &'static str,
    metric: &'static str,
    values: Vec<f64>,
}

/// One round of a part of a measure, for every subject. What else the machine does only adds to the CPU's time where there is no
/// driver, so of several runs in turn the least counts.
fn once(setup: &Setup, name: &'static str, part: usize, found: &mut Vec<Figure>) -> Result<()> {
    let mut samples: Vec<(&'static str, Sample)> = Vec::new();
    for run in 0..if name == measures::RMM && setup.is_vulkan() { LEAST_OF } else { 1 } {
        for subject in measures::subjects(name) {
            // The stand-in's own allocators run, but their figures are meaningless.
            let is_meaningful = !setup.is_stand_in() || subject.is_own();
            if !subject.is_there(setup) || run > 0 && subject.grows(setup) {
                continue;
            }
            let id = subject.id();
            let more = measures::measure(name, part, subject, setup).with_context(|| id)?;
            for sample in more.into_iter().filter(|_| is_meaningful) {
                let same = |known: &&mut (&str, Sample)| {
                    known.0 == id && known.1.case == sample.case && known.1.metric == sample.metric
                };
                match samples.iter_mut().find(same) {
                    Some((_, known)) => known.value = known.value.min(sample.value),
                    None => samples.push((id, sample)),
                }
            }
        }
    }
    for (subject, Sample { case, metric, value }) in samples {
        let same =
            |known: &&mut Figure| known.case == case && known.subject == subject && known.metric == metric;
        match found.iter_mut().find(same) {
            Some(known) => known.values.push(value),
            None => found.push(Figure { case, subject, metric, values: vec![value] }),
        }
    }
    Ok(())
}
