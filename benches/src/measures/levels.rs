//! What the hardening levels cost.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::misuse;
use super::smallest::Smallest;
use super::{Measure, Options, instructions, parallel};
use crate::results::{Results, Row};
use crate::statistics::mean;
use crate::subjects::{Entry, Form};
use crate::table::{Better, Table};
use crate::trace::{self, Trace};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "levels",
    about: "what the hardening levels cost: instructions, memory, code",
    run,
    tables,
};

/// Traces that the placement with the shortest regions can run as well.
const TRACES: [&str; 2] = ["lua_small", "mosquitto"];

/// How many operations of each trace are counted.
const OPERATIONS: usize = 40_000;

/// The placements, by the names of [`misuse`]'s subjects without their level.
const PLACEMENTS: [&str; 8] =
    ["Heap", "Tlsf", "QuickLists", "MicroTlsf", "FirstFit", "BestFit", "Buddy", "Slab"];

/// The levels, the one without checks first.
const LEVELS: [&str; 3] = ["Off", "Basic", "Full"];

/// The metric of the table, whose columns have units of their own.
const COST: &str = "cost of levels";

const COUNT: &str = "instructions per operation";
const MORE: &str = "beyond Off";
const SPACE: &str = "smallest arena beyond Off, %";
const CODE: &str = "Cortex-M3, bytes of code";
const MORE_CODE: &str = "beyond Off, bytes";

fn tables(_: &Results) -> Vec<Table> {
    vec![Table {
        title: "Cost of the levels",
        text: format!(
            "Instructions are counted by callgrind over the first {OPERATIONS} operations of {}, arena 1.5 x the peak, and the \
             means are shown; *smallest arena* is the mean over the same traces as a whole, the heap's own state included. \
             `Heap` has its lock, the others none. Code is that of the microcontrollers' page: `MicroTlsf` as the default heap, \
             `realloc` in place, `-Os`. Targets: `Basic` 3 instructions and 60 bytes, `Full` 25 instructions.",
            TRACES.join(", ")
        ),
        metric: COST,
        better: Better::Neither,
        digits: 1,
        ..Table::default()
    }]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let ids: Vec<String> =
        PLACEMENTS.iter().flat_map(|placement| LEVELS.map(|level| format!("{placement}, {level}"))).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut whole = trace::all()?;
    whole.retain(|trace| TRACES.contains(&trace.name.as_str()));
    let space = smallest(&names, &whole)?;
    let mut traces = whole;
    traces.iter_mut().for_each(|trace| trace.ops.truncate(OPERATIONS));
    let counted = instructions::count(options, &names, &traces)?;
    let count = |id: &str| {
        let rows = counted.iter().filter(|row| row.metric == instructions::METRIC && row.subject == id);
        mean(&rows.map(|row| row.value).collect::<Vec<_>>())
    };
    let code = code()?;
    let mut rows = Vec::new();
    for placement in PLACEMENTS {
        let off = format!("{placement}, Off");
        for level in LEVELS {
            let id = format!("{placement}, {level}");
            rows.push(Row::new(COUNT, &id, COST, count(&id)));
            if level != "Off" {
                rows.push(Row::new(MORE, &id, COST, count(&id) - count(&off)));
                let ratios: Vec<f64> = space[&id]
                    .iter()
                    .zip(&space[&off])
                    .map(|(&more, &less)| more as f64 / less as f64)
                    .collect();
                rows.push(Row::new(SPACE, &id, COST, 100.0 * (mean(&ratios) - 1.0)));
            }
            let bytes = code.get(level).filter(|_| placement == "MicroTlsf");
            if let Some(&bytes) = bytes {
                rows.push(Row::new(CODE, &id, COST, bytes));
                let less = code.get("Off").filter(|_| level != "Off");
                rows.extend(less.map(|less| Row::new(MORE_CODE, &id, COST, bytes - less)));
            }
        }
    }
    Ok(rows)
}

/// Finds the smallest arena in bytes for each subject and trace.
fn smallest(ids: &[&str], traces: &[Trace]) -> Result<BTreeMap<String, Vec<usize>>> {
    let jobs: Vec<_> = ids.iter().flat_map(|&id| traces.iter().map(move |trace| (id, trace))).collect();
    let found = parallel(&jobs, |&(id, trace)| {
        let id: &'static str = Box::leak(id.to_owned().into_boxed_str());
        let entry = Entry {
            id,
            own: true,
            form: Form::Bare,
            confined: true,
            memory: true,
            own_thread: false,
            about: "",
        };
        misuse::with(id, Smallest { trace, entry: &entry }).context("no such subject").flatten()
    });
    let mut bytes = BTreeMap::<_, Vec<_>>::new();
    for (&(id, trace), found) in jobs.iter().zip(found) {
        let found = found.with_context(|| format!("{id} on {}", trace.name))?;
        bytes
            .entry(id.to_owned())
            .or_default()
            .push(found.with_context(|| format!("{id} fails {}", trace.name))?);
    }
    Ok(bytes)
}

/// Reads the bytes of code by level from the figures of microcontrollers, as far as they are there.
fn code() -> Result<BTreeMap<&'static str, f64>> {
    let mut bytes = BTreeMap::new();
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).from_path(crate::home().join("results/mcu.csv"))?;
    for row in reader.records() {
        let row = row?;
        let level = match row.get(0) {
            Some("heap") => "Off",
            Some("heap-basic") => "Basic",
            Some("heap-full") => "Full",
            _ => continue,
        };
        let is = |column, text| row.get(column) == Some(text);
        if is(1, "thumbv7m-none-eabi") && is(2, "s") && is(3, "in-place") {
            bytes.insert(level, row.get(5).context("a column is missing in mcu.csv")?.parse()?);
        }
    }
    Ok(bytes)
}
