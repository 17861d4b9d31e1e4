//! Instances of 10^3 to 10^6 buffers, each in a separate process, so that the system reports its memory.

use anyhow::Result;

use super::alone::{Alone, spawn};
use super::run::{above, find, head, idealloc, percent};
use super::{Args, Findings};
use crate::plot;
use crate::results::{Results, Row};
use crate::table::Table;

/// Name, time limit in seconds, and the result of idealloc on another machine.
const NAMED: [(&str, f64, &str); 3] =
    [("resnet50", 1.0, "+0.6 %"), ("G_1", 1.0, "+0.3 %"), ("S_1", 10.0, "+1.6 % in 31 s")];

const RANDOM: [(usize, f64); 5] =
    [(10_000, 3.0), (30_000, 3.0), (100_000, 3.0), (300_000, 3.0), (1_000_000, 7.0)];

const SIZES: [usize; 7] = [1000, 3162, 10_000, 31_623, 100_000, 316_228, 1_000_000];

/// Measures all large instances, and how time and memory grow.
pub fn large(args: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    let label = if args.idealloc.is_some() { "measured beside, 1 try" } else { "reference, another machine" };
    found.line(format!(
        "Each in a process of its own, two threads. The limit is for the search; checking the plan comes on top and is in the last \
         time. `random N`: N buffers, 1 B to 1 MiB, 64 live on average. idealloc: {label}.\n"
    ));
    found.line(head(&[
        "instance",
        "buffers",
        "limit, s",
        "peak, B",
        "above the bound",
        "first plan, s",
        "best plan, s",
        "all, s",
        "resident, MiB",
        "idealloc",
    ]));
    let row = |found: &mut Findings, name: &str, limit: f64, row: &Alone, peer: &str| {
        let gap = percent(row.peak, row.bound);
        let Alone { buffers, peak, first, best, all, most, .. } = row;
        found.line(format!(
            "| {name} | {buffers} | {limit} | {peak} | {gap} | {first:.3} | {best:.3} | {all:.2} | {most} | {peer} |"
        ));
    };
    for (name, limit, reference) in NAMED {
        let Some(path) = find(args, &format!("idealloc/{name}.csv")) else { continue };
        let run = spawn(&path.to_string_lossy(), limit)?;
        let peer = match &args.idealloc {
            Some(program) => {
                let (peak, seconds) = idealloc(program, &path, 1)?;
                format!("{} in {seconds:.2} s", percent(peak, run.bound))
            }
            None => reference.into(),
        };
        row(&mut found, name, limit, &run, &peer);
        let gap = above(run.peak, run.bound);
        let measured = format!("{gap:+.3} % in {:.2} s, all {:.2} s", run.best, run.all);
        if name == "S_1" {
            let met = gap <= 0.18 + 0.005 && run.best <= 10.0;
            found.target(
                "S_1 ≤ +0.18 % in 10 s",
                measured,
                met,
                "other work on the machine leaves too little of 10 s: docs/lab/planner.md",
            );
        } else {
            found.target(
                &format!("{name} at the lower bound in < 1 s"),
                measured,
                gap <= 0.0 && run.best < 1.0,
                "",
            );
        }
    }
    for (count, limit) in RANDOM {
        let run = spawn(&count.to_string(), limit)?;
        row(&mut found, &format!("random {count}"), limit, &run, "–");
        if count == 1_000_000 {
            let measured = format!(
                "{} in {:.1} s, first plan after {:.1} s; {} MiB (instance: {})",
                percent(run.peak, run.bound),
                run.all,
                run.first,
                run.most,
                run.before
            );
            found.target(
                "10^6 random buffers in < 10 s and 2 GiB",
                measured,
                run.all < 10.0 && run.most < 2048,
                "other work on the machine; the first plan takes 1.1 s of processor time: docs/lab/planner.md",
            );
        }
    }
    growth(&mut found)?;
    Ok(found)
}

/// Shows the time of the first plan over the number of buffers as a table, a chart and an exponent.
fn growth(found: &mut Findings) -> Result<()> {
    const METRIC: &str = "processor seconds to the first plan";
    found.line("\nBound and first plan by number of random buffers, processor seconds, median of 5 runs.\n");
    found.line(head(&[
        "buffers",
        "processor s",
        "µs per buffer",
        "÷ n log n, ns",
        "above the bound",
        "resident, MiB",
    ]));
    let mut rows = Vec::new();
    let mut points: Vec<(f64, f64)> = Vec::new();
    for n in SIZES {
        let mut runs = (0..5).map(|_| spawn(&n.to_string(), 0.0)).collect::<Result<Vec<_>>>()?;
        runs.sort_by(|a, b| a.first.total_cmp(&b.first));
        let run = &runs[2];
        let work = n as f64 * (n as f64).log2();
        let (each, unit) = (run.first / n as f64 * 1e6, run.first / work * 1e9);
        let gap = percent(run.peak, run.bound);
        found.line(format!("| {n} | {:.4} | {each:.2} | {unit:.0} | {gap} | {} |", run.first, run.most));
        points.push((work, run.first));
        rows.push(Row::new(n.to_string(), "allotment", METRIC, run.first));
    }
    // The reference line goes through the middle.
    let (work, time) = points[points.len() / 2];
    for (n, (other, _)) in SIZES.iter().zip(&points) {
        rows.push(Row::new(n.to_string(), "n log n", METRIC, time * other / work));
    }
    let table = Table { title: "First plan over the number of buffers", metric: METRIC, ..Table::default() };
    let results = Results { origin: Vec::new(), rows };
    let home = super::super::home();
    plot::curves(&home.join("results/plan/growth.svg"), &table, &results)?;
    found.line("\n![First plan over the number of buffers](results/plan/growth.svg)");
    let ratios: Vec<f64> = points.iter().map(|(work, time)| time / work).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    found.target(
        "linear-logarithmic growth from 10^3 to 10^6, plotted",
        format!("time ÷ n log n within a factor of {:.1}", most / least),
        most / least < 4.0,
        "caches are left behind at about 10^5 buffers",
    );
    Ok(())
}
