//! Makes the page of a folder of instances: a sortable table, and a drawing of each plan.

use std::io;

use allotment_planner::model::Instance;
use serde::Serialize;

use super::Row;
use crate::template::filled;

const TEMPLATE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");

/// The rectangles of a plan: for each, the first time step, the step after the last, the first byte and the byte after the last.
#[derive(Serialize)]
pub(super) struct Drawing(Vec<i64>);

impl Drawing {
    pub(super) fn new(instance: &Instance, offsets: &[u64]) -> Self {
        let place = |offset: u64, at: u64| i64::try_from(offset + at).unwrap_or(i64::MAX);
        let buffers = instance.buffers().iter().zip(offsets);
        let pieces = buffers.flat_map(|(buffer, &offset)| {
            let rectangle =
                move |(start, end, from, to)| [start, end, place(offset, from), place(offset, to)];
            buffer.pieces().into_iter().map(rectangle)
        });
        Self(pieces.flatten().collect())
    }
}

/// Returns the page as self-contained HTML.
pub(super) fn page(rows: &[Row], drawings: &[Drawing], how: &str) -> io::Result<String> {
    #[derive(Serialize)]
    struct Data<'a> {
        how: &'a str,
        rows: &'a [Row],
        plans: &'a [Drawing],
    }
    let data = serde_json::to_string(&Data { how, rows, plans: drawings })?;
    Ok(filled(TEMPLATE, &data, |slot| if slot == "script" { SCRIPT.into() } else { String::new() }))
}
