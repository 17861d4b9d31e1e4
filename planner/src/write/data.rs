//! CSV and JSON.

use serde::Serialize;

use super::{Planned, Row};
use crate::graph::Op;
use crate::model::Buffer;

/// The instance with a column `offset`; optional columns only where they are used.
///
/// Tensors that lie in a buffer name it in the column `in`; reading the text again leaves these rows out.
pub fn csv(planned: Planned) -> String {
    let buffers = planned.instance.buffers();
    type Field<'a> = Box<dyn Fn(&Row) -> String + 'a>;
    let number = |value: Option<u64>| value.map_or(String::new(), |value| value.to_string());
    let mut columns: Vec<(&str, Field)> = vec![
        ("id", Box::new(|row: &Row| row.id.into())),
        ("lower", Box::new(|row| row.start.to_string())),
        ("upper", Box::new(|row| row.end.to_string())),
        ("size", Box::new(|row| row.size.to_string())),
    ];
    // The name, whether a buffer has it, its text, and whether what lies in a buffer has it as well.
    type Wish<'a> = (&'static str, fn(&Buffer) -> bool, Box<dyn Fn(&Buffer) -> String + 'a>, bool);
    let wishes: [Wish; 6] = [
        ("alignment", |b| b.align != 1, Box::new(|b| b.align.to_string()), true),
        ("hint", |b| b.hint.is_some(), Box::new(move |b| number(b.hint)), false),
        ("gaps", |b| !b.gaps.is_empty(), Box::new(gaps), false),
        ("fixed", |b| b.fixed.is_some(), Box::new(move |b| number(b.fixed)), false),
        (
            "alias",
            |b| b.alias.is_some(),
            Box::new(|b| b.alias.map_or(String::new(), |n| buffers[n].id.clone())),
            false,
        ),
        ("tier", |b| b.tier != 0, Box::new(|b| b.tier.to_string()), true),
    ];
    for (name, _, text, inside) in wishes.into_iter().filter(|(_, has, ..)| buffers.iter().any(has)) {
        let field = move |row: &Row| if row.inside && !inside { String::new() } else { text(row.buffer) };
        columns.push((name, Box::new(field)));
    }
    if !planned.inside.is_empty() {
        columns.push(("in", Box::new(|row| if row.inside { row.buffer.id.clone() } else { String::new() })));
    }
    columns.push(("offset", Box::new(|row| row.offset.to_string())));
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail, and all records have the header's length.
    let _ = writer.write_record(columns.iter().map(|&(name, _)| name));
    for row in planned.rows() {
        let _ = writer.write_record(columns.iter().map(|(_, field)| field(&row)));
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

/// The plan with all that is known of it, pretty-printed. Of a graph also the operators: step `n` is the one at place `n` of the list.
pub fn json<'a>(planned: Planned<'a>) -> String {
    #[derive(Serialize)]
    struct Placed<'a> {
        id: &'a str,
        offset: u64,
        size: u64,
        align: u64,
        start: i64,
        end: i64,
        tier: u32,
        #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
        inside: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Operator<'a> {
        name: &'a str,
        kind: &'a str,
        inputs: Vec<&'a str>,
        outputs: Vec<&'a str>,
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
        #[serde(skip_serializing_if = "Option::is_none")]
        operators: Option<Vec<Operator<'a>>>,
    }
    let solution = planned.solution;
    let operators = planned.graph.map(|graph| {
        let names = |list: &[usize]| list.iter().map(|&n| graph.tensors[n].name.as_str()).collect();
        let operator = |op: &'a Op| Operator {
            name: &op.name,
            kind: &op.kind,
            inputs: names(&op.inputs),
            outputs: names(&op.outputs),
        };
        graph.ops.iter().map(operator).collect()
    });
    let plan = Plan {
        name: planned.name,
        status: solution.status,
        peak: solution.peak,
        lower_bound: solution.lower_bound,
        gap_percent: solution.gap(),
        seed: solution.seed,
        nodes: solution.nodes,
        seconds: solution.elapsed.as_secs_f64(),
        buffers: planned
            .rows()
            .map(|row| Placed {
                id: row.id,
                offset: row.offset,
                size: row.size,
                align: row.buffer.align,
                start: row.start,
                end: row.end,
                tier: row.buffer.tier,
                inside: row.inside.then_some(&row.buffer.id),
            })
            .collect(),
        operators,
    };
    serde_json::to_string_pretty(&plan).unwrap_or_default() + "\n"
}
