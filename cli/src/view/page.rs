//! Writes the page: template, style, script and data in one file.

use std::io;

use super::report::Report;
use crate::template::filled;

const TEMPLATE: &str = include_str!("page/template.html");
const STYLE: &str = include_str!("page/style.css");

/// The scripts in their order: each uses definitions of those before it.
const SCRIPTS: [&str; 9] = [
    include_str!("page/data.js"),
    include_str!("page/format.js"),
    include_str!("page/state.js"),
    include_str!("page/input.js"),
    include_str!("page/charts.js"),
    include_str!("page/map.js"),
    include_str!("page/bars.js"),
    include_str!("page/who.js"),
    include_str!("page/main.js"),
];

/// Returns the page of a report: HTML that needs no other file.
///
/// Data from the trace, such as the names of its tags, is in the page as JSON without `<`, `>` and `&`, so it cannot end
/// the element around it; the script inserts it as text and never as HTML. A policy in the page forbids all other scripts
/// and every connection.
///
/// # Errors
/// Those of serialising the report: none in practice.
pub fn page(report: &Report) -> io::Result<String> {
    let part = |slot: &str| if slot == "style" { STYLE.into() } else { SCRIPTS.concat() };
    Ok(filled(TEMPLATE, &serde_json::to_string(report)?, part))
}
