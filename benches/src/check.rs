//! The two-minute version: compares instruction counts with ceilings.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::measures::{Options, instructions, realloc};
use crate::origin;
use crate::results::{self, Results};
use crate::statistics::geometric_mean;
use crate::subjects::{self, Form};
use crate::trace::{self, Set};

/// The file of ceilings in the results folder.
const FILE: &str = "ceilings";

/// Traces of different character: two from the tuned set, and one with aligned requests.
const TRACES: [&str; 3] = ["lua_small", "mosquitto", "ffmpeg"];

/// How many operations of each trace are replayed.
const OPERATIONS: usize = 40_000;

/// How far a count may exceed its ceiling; compilers differ by less.
const SLACK: f64 = 0.05;

/// Instructions per operation above which a ceiling counts as slow to check. So do those of stripped types, which programs do not
/// register.
const SLOW: f64 = 1000.0;

/// Counts the instructions per operation of all of allotment's heaps and compares them with the ceilings, or makes
/// them the new ceilings. Ceilings that are slow to check are left out, or with `slow` the others are.
pub fn run(folder: &Path, slow: bool, bless: bool) -> Result<()> {
    let scratch = tempfile::tempdir().context("no folder for temporary files")?;
    let options = Options::new(false, scratch.path().to_owned());
    let own: Vec<_> = subjects::ENTRIES.iter().filter(|entry| entry.own).map(|entry| entry.id).collect();
    let mut traces = trace::all()?;
    traces.retain(|trace| TRACES.contains(&trace.name.as_str()));
    traces.iter_mut().for_each(|trace| trace.ops.truncate(OPERATIONS));
    traces.extend(realloc::traces(OPERATIONS / 4));
    let ceilings = results::read(folder, FILE)?;
    let is_slow = |case: &str, subject: &str| {
        let ceiling =
            ceilings.as_ref().and_then(|ceilings| ceilings.get(instructions::METRIC, case, subject));
        let stripped = subjects::entry(subject).is_some_and(|entry| entry.form == Form::Stripped);
        stripped || ceiling.is_some_and(|ceiling| ceiling > SLOW)
    };
    let mut rows = Vec::new();
    for trace in &traces {
        let wanted = own.iter().copied().filter(|id| bless || slow == is_slow(&trace.name, id));
        rows.extend(instructions::count(&options, &wanted.collect::<Vec<_>>(), std::slice::from_ref(trace))?);
    }
    rows.retain(|row| row.metric == instructions::METRIC);
    if bless {
        let mut origin = origin::describe("--check --bless");
        origin.push(format!(
            "ceilings of instructions per operation; {} % above them is a failure",
            SLACK * 100.0
        ));
        return results::write(folder, FILE, &Results { origin, rows });
    }

    let ceilings =
        ceilings.context("there are no ceilings; `cargo xtask bench --check --bless` makes them")?;
    let mut broken = Vec::new();
    println!("{:28} {:16} {:>8} {:>8}", "allocator", "trace", "now", "ceiling");
    for row in &rows {
        let ceiling = ceilings.get(&row.metric, &row.case, &row.subject);
        let shown = ceiling.map_or("none".into(), |ceiling| format!("{ceiling:.1}"));
        println!("{:28} {:16} {:8.1} {shown:>8}", row.subject, row.case, row.value);
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

/// Prints the instructions per operation of some subjects over the named traces, which may be chains of
/// reallocations, or over all recorded ones, and the geometric means of the sets.
pub fn count(names: &[String], ids: &[String]) -> Result<()> {
    let scratch = tempfile::tempdir().context("no folder for temporary files")?;
    let options = Options::new(false, scratch.path().to_owned());
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    if let Some(id) = ids.iter().find(|id| subjects::entry(id).is_none()) {
        bail!("there is no subject {id:?}; `list` names them");
    }
    let mut traces = trace::all()?;
    if !names.is_empty() {
        traces.extend(realloc::traces(OPERATIONS));
        traces.retain(|trace| names.contains(&trace.name));
    }
    anyhow::ensure!(!traces.is_empty(), "there is no such trace");
    let rows = instructions::count(&options, &ids, &traces)?;
    for row in rows.iter().filter(|row| row.metric == instructions::METRIC) {
        println!("{:28} {:16} {:8.1}", row.subject, row.case, row.value);
    }
    for id in ids {
        for set in [Set::Given, Set::Further, Set::Aligned] {
            let counts = rows.iter().filter(|row| row.subject == id && Set::of(&row.case) == set);
            let counts: Vec<f64> = counts.map(|row| row.value).collect();
            if counts.len() > 1 {
                println!("{id:28} {set:?}, mean of {} {:8.1}", counts.len(), geometric_mean(&counts));
            }
        }
    }
    Ok(())
}
