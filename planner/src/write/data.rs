//! Writes CSV and JSON.

use std::collections::HashMap;

use serde::Serialize;

use super::Planned;
use crate::import::json::{JsonOp, named_ops};
use crate::model::Buffer;
use crate::schedule::{Place, Written, WrittenPlace};

/// Returns the instance with a column `offset`, and only the optional columns in use.
///
/// The rows of tensors that lie in a buffer name it in the column `in`; readers skip these rows.
pub fn csv(planned: Planned) -> String {
    let buffers = planned.schedule.lowered.instance.buffers();
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    // Omit optional columns in which all rows are empty or have the default.
    let wanted = [
        buffers.iter().any(|b| b.align != 1),
        buffers.iter().any(|b| b.hint.is_some()),
        buffers.iter().any(|b| !b.gaps.is_empty()),
        buffers.iter().any(|b| b.fixed.is_some()),
        buffers.iter().any(|b| b.alias.is_some()),
        buffers.iter().any(|b| b.tier != 0),
        !planned.schedule.lowered.inside.is_empty(),
    ];
    let names = ["alignment", "hint", "gaps", "fixed", "alias", "tier", "in"].map(String::from);
    let row = |first: [String; 4], others: [String; 7], offset: String| {
        let others = others.into_iter().zip(wanted).filter_map(|(field, wanted)| wanted.then_some(field));
        first.into_iter().chain(others).chain([offset])
    };
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail, and all records have the header's length.
    let _ =
        writer.write_record(row(["id", "lower", "upper", "size"].map(String::from), names, "offset".into()));
    for (place, offset) in planned.schedule.placed() {
        let Place { buffer: b, inside, .. } = place;
        let own = |text: String| if inside { String::new() } else { text };
        let first = [place.id.into(), place.start.to_string(), place.end.to_string(), place.size.to_string()];
        let others = [
            b.align.to_string(),
            own(number(b.hint)),
            own(gaps(b)),
            own(number(b.fixed)),
            own(b.alias.map_or(String::new(), |n| buffers[n].id.clone())),
            b.tier.to_string(),
            if inside { b.id.clone() } else { String::new() },
        ];
        let _ = writer.write_record(row(first, others, offset.to_string()));
    }
    String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default()
}

fn gaps(buffer: &Buffer) -> String {
    let gap = |gap: &crate::model::Gap| match gap.window {
        Some((from, to)) => format!("{}-{}@{from}:{to}", gap.start, gap.end),
        None => format!("{}-{}", gap.start, gap.end),
    };
    buffer.gaps.iter().map(gap).collect::<Vec<_>>().join(" ")
}

/// Version of the format that [`json`] and [`steps_csv`] write; it grows when a field changes its meaning.
const VERSION: u32 = 1;

/// Writes everything known about the plan, pretty-printed: the figures, `buffers` and `steps` (see [`Written`]), which
/// [`replay`](crate::schedule::replay) reads again. A graph's operators are listed too: the operator at index `n` runs at time `n`.
pub fn json(planned: Planned) -> String {
    #[derive(Serialize)]
    struct Plan<'a> {
        version: u32,
        name: &'a str,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        origin: &'a [String],
        status: crate::solve::Status,
        proved: String,
        peak: u64,
        lower_bound: u64,
        gap_percent: f64,
        seed: u64,
        nodes: u64,
        seconds: f64,
        #[serde(flatten)]
        written: Written<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        operators: Option<Vec<JsonOp>>,
    }
    let solution = &planned.schedule.solution;
    let plan = Plan {
        version: VERSION,
        name: planned.name,
        origin: planned.origin,
        status: solution.status,
        proved: planned.schedule.proved(),
        peak: solution.peak,
        lower_bound: solution.lower_bound,
        gap_percent: solution.gap(),
        seed: solution.seed,
        nodes: solution.nodes,
        seconds: solution.elapsed.as_secs_f64(),
        written: planned.schedule.written(),
        operators: planned.schedule.lowered.graph.as_ref().map(named_ops),
    };
    serde_json::to_string_pretty(&plan).unwrap_or_default() + "\n"
}

/// Returns the steps of a model, one line for each operand: its name, its place, and what the step does with it. Returns `None` if there
/// are no steps.
///
/// The column `role` is `read`, `write`, `overwrite` (read, then overwritten by the output) or `view` (read, with nothing computed). A
/// tensor without a place has no offset.
pub fn steps_csv(planned: Planned) -> Option<String> {
    let written = planned.schedule.written();
    let places: HashMap<&str, &WrittenPlace> =
        written.buffers.iter().map(|place| (&*place.id, place)).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = "step,time,do,operator,kind,chunk,chunks,role,id,streamed,tier,offset,size".split(',');
    // Writing to memory does not fail, and all records have the header's length.
    let _ = writer.write_record(header);
    for (number, step) in written.steps.iter().enumerate() {
        let act = serde_json::to_value(step.act).unwrap_or_default();
        let (chunk, chunks) = step.chunk.unwrap_or((0, 1));
        let role = |name| match name {
            name if step.overwrites.contains(name) => "overwrite",
            name if step.view_of.as_ref() == Some(name) => "view",
            _ => "read",
        };
        let reads = step.reads.iter().map(|name| (role(name), name));
        let operands = reads.chain(step.writes.iter().map(|name| ("write", name)));
        let mut line = |role: &str, name: &str| {
            let place = |field: fn(&WrittenPlace) -> u64| {
                places.get(name).map_or(String::new(), |place| field(place).to_string())
            };
            let streamed = if step.streamed.iter().any(|own| *own == name) { "1" } else { "" };
            let _ = writer.write_record([
                &number.to_string(),
                &step.time.to_string(),
                act.as_str().unwrap_or_default(),
                &step.operator,
                &step.kind,
                &chunk.to_string(),
                &chunks.to_string(),
                role,
                name,
                streamed,
                &place(|place| place.tier.into()),
                &place(|place| place.offset),
                &place(|place| place.size),
            ]);
        };
        if step.reads.is_empty() && step.writes.is_empty() {
            line("", "");
        }
        operands.for_each(|(role, name)| line(role, name));
    }
    let text = String::from_utf8(writer.into_inner().unwrap_or_default()).unwrap_or_default();
    Some(text).filter(|_| !written.steps.is_empty())
}
