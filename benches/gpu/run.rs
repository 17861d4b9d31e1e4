//! Rounds, in each of which every subject is measured once.

use allotment_benches::gpu;
use allotment_benches::results::Row;
use anyhow::{Context, Result};

use crate::measures;
use crate::setup::{Sample, Setup};

/// Runs the measures `names`, and passes on all rows so far after each.
pub fn run(
    setup: &Setup,
    names: &[&'static str],
    mut each: impl FnMut(&[Row]) -> Result<()>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for name in names {
        eprintln!("{name}");
        setup.begin();
        // In the order of their first appearance.
        let mut found: Vec<(String, String, &'static str, Vec<f64>)> = Vec::new();
        // Counts do not vary.
        let rounds = if *name == measures::COUNT { 1 } else { setup.rounds };
        for round in 0..rounds {
            if round > 0 && setup.is_late() {
                break;
            }
            for subject in measures::subjects(name) {
                if !subject.is_there(setup) {
                    continue;
                }
                let id = subject.id();
                let samples = measures::measure(name, subject, setup)
                    .with_context(|| format!("{id}, measure {name}, round {round}"))?;
                // The stand-in's own allocators run, but their figures are meaningless.
                if setup.is_stand_in() && !subject.is_own() {
                    continue;
                }
                for Sample { case, metric, value } in samples {
                    let known = found.iter_mut().find(|(c, s, m, _)| *c == case && *s == id && *m == metric);
                    match known {
                        Some((.., values)) => values.push(value),
                        None => found.push((case, id.to_owned(), metric, vec![value])),
                    }
                }
            }
        }
        for (case, subject, metric, values) in found {
            rows.extend(gpu::rows(&case, &subject, metric, &values));
        }
        each(&rows)?;
    }
    Ok(rows)
}
