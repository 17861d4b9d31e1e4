//! CSV and JSON.

use serde::Serialize;

use super::Planned;
use crate::model::Buffer;

/// The instance with a column `offset`; optional columns only where they are used.
pub fn csv(planned: Planned) -> String {
    let buffers = planned.instance.buffers();
    let any = |wish: fn(&Buffer) -> bool| buffers.iter().any(wish);
    type Field<'a> = Box<dyn Fn(&Buffer) -> String + 'a>;
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let mut columns: Vec<(&str, Field)> = vec![
        ("id", Box::new(|b: &Buffer| b.id.clone())),
        ("lower", Box::new(|b| b.start.to_string())),
        ("upper", Box::new(|b| b.end.to_string())),
        ("size", Box::new(|b| b.size.to_string())),
    ];
    if any(|b| b.align != 1) {
        columns.push(("alignment", Box::new(|b| b.align.to_string())));
    }
    if any(|b| b.hint.is_some()) {
        columns.push(("hint", Box::new(move |b| number(b.hint))));
    }
    if any(|b| !b.gaps.is_empty()) {
        columns.push(("gaps", Box::new(gaps)));
    }
    if any(|b| b.fixed.is_some()) {
        columns.push(("fixed", Box::new(move |b| number(b.fixed))));
    }
    if any(|b| b.alias.is_some()) {
        columns.push(("alias", Box::new(|b| b.alias.map_or(String::new(), |n| buffers[n].id.clone()))));
    }
    if any(|b| b.tier != 0) {
        columns.push(("tier", Box::new(|b| b.tier.to_string())));
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    let header = columns.iter().map(|&(name, _)| name).chain(["offset"]);
    // Writing to memory does not fail, and all records have the header's length.
    let _ = writer.write_record(header);
    for (buffer, offset) in buffers.iter().zip(&planned.solution.offsets) {
        let _ =
            writer.write_record(columns.iter().map(|(_, field)| field(buffer)).chain([offset.to_string()]));
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

/// The plan with all that is known of it, pretty-printed.
pub fn json(planned: Planned) -> String {
    #[derive(Serialize)]
    struct Placed<'a> {
        id: &'a str,
        offset: u64,
        size: u64,
        align: u64,
        start: i64,
        end: i64,
        tier: u32,
    }
    #[derive(Serialize)]
    struct Plan<'a> {
        name: &'a str,
        status: crate::solve::Status,
        peak: u64,
        lower_bound: u64,
        gap_percent: f64,
        seed: u64,
        nodes: u64,
        seconds: f64,
        buffers: Vec<Placed<'a>>,
    }
    let solution = planned.solution;
    let buffers = planned.instance.buffers().iter().zip(&solution.offsets);
    let plan = Plan {
        name: planned.name,
        status: solution.status,
        peak: solution.peak,
        lower_bound: solution.lower_bound,
        gap_percent: solution.gap(),
        seed: solution.seed,
        nodes: solution.nodes,
        seconds: solution.elapsed.as_secs_f64(),
        buffers: buffers
            .map(|(b, &offset)| Placed {
                id: &b.id,
                offset,
                size: b.size,
                align: b.align,
                start: b.start,
                end: b.end,
                tier: b.tier,
            })
            .collect(),
    };
    serde_json::to_string_pretty(&plan).unwrap_or_default() + "\n"
}
