//! The one-minute version: instruction counts against ceilings.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::measures::{Options, instructions};
use crate::origin;
use crate::results::{self, Results};
use crate::subjects;
use crate::trace;

/// The file of ceilings in the folder of results.
const FILE: &str = "ceilings";

/// Two traces of different character that are in the repository.
const TRACES: [&str; 2] = ["lua_small", "mosquitto"];

/// How far a count may exceed its ceiling: compilers differ by less.
const SLACK: f64 = 0.05;

/// Counts the instructions per operation of all of allotment's placements and compares them with the ceilings,
/// or makes them the ceilings.
pub fn run(folder: &Path, bless: bool) -> Result<()> {
    let scratch = tempfile::tempdir().context("no folder for temporary files")?;
    let options = Options::new(false, scratch.path().to_owned());
    let own: Vec<_> = subjects::ENTRIES.iter().filter(|entry| entry.own).map(|entry| entry.id).collect();
    let traces: Vec<_> = trace::all()?.into_iter().filter(|t| TRACES.contains(&t.name.as_str())).collect();
    let rows = instructions::count(&options, &own, &traces)?;
    if bless {
        let mut origin = origin::describe("--check --bless");
        origin.push(format!(
            "ceilings of instructions per operation; {} % above them is a failure",
            SLACK * 100.0
        ));
        return results::write(folder, FILE, &Results { origin, rows });
    }

    let ceilings = results::read(folder, FILE)?
        .context("there are no ceilings; `cargo xtask bench --check --bless` makes them")?;
    let mut broken = Vec::new();
    println!("{:24} {:12} {:>8} {:>8}", "allocator", "trace", "now", "ceiling");
    for row in &rows {
        let ceiling = ceilings.get(&row.metric, &row.case, &row.subject);
        let shown = ceiling.map_or("none".into(), |ceiling| format!("{ceiling:.1}"));
        println!("{:24} {:12} {:8.1} {shown:>8}", row.subject, row.case, row.value);
        if ceiling.is_none_or(|ceiling| row.value > ceiling * (1.0 + SLACK)) {
            broken.push(format!("{} on {}", row.subject, row.case));
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    bail!(
        "more instructions than allowed, or no ceiling: {}; if that is intended, \
         `cargo xtask bench --check --bless` sets new ceilings",
        broken.join(", ")
    )
}
