//! Draws the tables and plots of measures.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::measures::Measure;
use crate::plot;
use crate::results::Results;
use crate::table::{Table, escape, ordered};

/// Draws all tables of a measure.
pub fn measure(text: &mut String, measure: &Measure, results: &Results) -> Result<()> {
    writeln!(text, "## {}\n", capital(measure.about))?;
    for line in &results.origin {
        writeln!(text, "* {line}")?;
    }
    for table in (measure.tables)(results) {
        let columns = table.columns(results);
        let subjects = ordered(results.subjects(table.metric));
        if columns.is_empty() {
            continue;
        }
        writeln!(text, "\n### {}\n", table.title)?;
        if !table.text.is_empty() {
            writeln!(text, "{}\n", table.text)?;
        }
        grid(text, &table, results, &columns, &subjects)?;
    }
    Ok(())
}

/// Draws the bar charts and curves of a measure.
pub fn plots(measure: &Measure, results: &Results, folder: &Path) -> Result<()> {
    for table in (measure.tables)(results) {
        if table.columns(results).is_empty() {
            continue;
        }
        if let Some(name) = table.plot {
            plot::bars(&folder.join(name).with_extension("svg"), &table, results)?;
        }
        if let Some(name) = table.curve {
            plot::curves(&folder.join(name).with_extension("svg"), &table, results)?;
        }
    }
    Ok(())
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

fn cell(value: Option<f64>, table: &Table) -> String {
    let digits = table.digits;
    if let Some(word) = value.and_then(|value| table.words.get(value as usize)) {
        return (*word).into();
    }
    value.filter(|value| value.is_finite()).map_or("–".into(), |value| format!("{value:.digits$}"))
}

/// Draws a table.
pub fn grid(
    text: &mut String,
    table: &Table,
    results: &Results,
    columns: &[(String, Vec<String>)],
    subjects: &[String],
) -> Result<()> {
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(columns.iter().map(|(head, _)| head.clone()));
    for subject in subjects {
        let mut row = vec![escape(subject)];
        row.extend(columns.iter().map(|(_, cases)| cell(table.value(results, cases, subject), table)));
        // Skip subjects that run only some other set of traces.
        if row[1..].iter().any(|cell| cell != "–") {
            rows.push(row);
        }
    }
    if table.transposed {
        rows =
            (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].clone()).collect()).collect();
    }
    for (number, row) in rows.iter().enumerate() {
        writeln!(text, "| {} |", row.join(" | "))?;
        if number == 0 {
            writeln!(text, "| --- |{}", " ---: |".repeat(row.len() - 1))?;
        }
    }
    Ok(())
}
