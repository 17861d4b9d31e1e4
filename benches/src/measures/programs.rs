//! Whole programs, each linked once per allocator.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{Measure, Options};
use crate::results::{Results, Row};
use crate::statistics::{median, quantile};
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "programs",
    about: "whole programs: time and peak memory as ratios to the system's malloc",
    run,
    tables,
};

/// Time as a ratio to the system's heap.
pub const TIME: &str = "time / system";
const MEMORY: &str = "peak memory / system";
const SPREAD: &str = "quartile spread of time / system";

const PROGRAMS: [&str; 5] = ["json", "source", "words", "threads", "image"];

/// The subjects and the names of their binaries, which the package `programs` makes. The first is what ratios are to.
const SUBJECTS: [(&str, &str); 9] = [
    ("system", "programs-system"),
    ("Heap", "programs-heap"),
    ("Cached", "programs-cached"),
    ("talc-5", "programs-talc"),
    ("mimalloc", "programs-mimalloc"),
    ("snmalloc", "programs-snmalloc"),
    ("jemalloc", "programs-jemalloc"),
    ("rusty_alloc", "programs-rusty"),
    ("sefer-alloc", "programs-sefer"),
];

fn tables(_: &Results) -> Vec<Table> {
    let common = Table { mean: true, level: true, digits: 3, ..Table::default() };
    vec![
        Table {
            title: "Time of whole programs",
            text: "Five programs made of common crates, linked to each allocator and started anew in every round; median over \
                   interleaved rounds of (wall time / wall time with the system's malloc). *json*: serde_json writes, \
                   parses and changes documents. *source*: the sources of allotment are parsed with syn, changed, and laid out \
                   with prettyplease. *words*: regular expressions and hash maps over text. *threads*: rayon counts \
                   and sorts words. *image*: pictures are coded, decoded, blurred and cut into tiles. `Heap`, `Cached` and \
                   talc have a static arena of 192 MiB."
                .into(),
            metric: TIME,
            better: Better::Lower,
            ..common.clone()
        },
        Table {
            title: "Peak memory of whole programs",
            text: "The most memory that was resident, code and stacks included, by the kernel's count (VmHWM): of an arena, what \
                   was touched. Median over the rounds of the ratio to the system's malloc."
                .into(),
            metric: MEMORY,
            better: Better::Lower,
            ..common.clone()
        },
        Table {
            title: "Time of whole programs, spread",
            text: "Upper minus lower quartile of the first table's ratios.".into(),
            metric: SPREAD,
            better: Better::Neither,
            mean: false,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let folder = std::env::current_exe()?.parent().context("this program lies in a folder")?.to_owned();
    // Those that compile C or C++ may have been left out.
    let subjects: Vec<(&str, PathBuf)> = SUBJECTS
        .iter()
        .map(|&(id, binary)| (id, folder.join(binary)))
        .filter(|(_, path)| path.exists())
        .collect();
    ensure!(
        subjects.first().is_some_and(|subject| subject.0 == SUBJECTS[0].0),
        "the programs are not built; `cargo xtask bench programs` builds them"
    );
    let mut rows = Vec::new();
    for program in PROGRAMS {
        let mut runs = vec![vec![]; subjects.len()];
        let expected = once(&subjects[0].1, program)?.result;
        for round in 0..options.pick(15, 3) {
            for place in 0..subjects.len() {
                let subject = (place + round) % subjects.len();
                let (id, path) = &subjects[subject];
                let run = once(path, program).with_context(|| format!("{program} on {id}"))?;
                ensure!(run.result == expected, "{program} on {id} has another result");
                runs[subject].push(run);
            }
        }
        for ((id, _), own) in subjects.iter().zip(&runs) {
            let ratios = |of: fn(&Run) -> f64| -> Vec<f64> {
                own.iter().zip(&runs[0]).map(|(own, base)| of(own) / of(base)).collect()
            };
            let times = ratios(|run| run.seconds);
            rows.push(Row::new(program, *id, TIME, median(&times)));
            rows.push(Row::new(program, *id, SPREAD, quantile(&times, 0.75) - quantile(&times, 0.25)));
            rows.push(Row::new(program, *id, MEMORY, median(&ratios(|run| run.memory))));
        }
    }
    Ok(rows)
}

/// What one run took.
#[derive(Clone)]
struct Run {
    result: u64,
    seconds: f64,
    memory: f64,
}

fn once(binary: &PathBuf, program: &str) -> Result<Run> {
    let start = Instant::now();
    let output = Command::new(binary).arg(program).output()?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (result, memory) = text.trim().split_once(' ').context("the program prints two numbers")?;
    Ok(Run { result: result.parse()?, seconds, memory: memory.parse()? })
}
