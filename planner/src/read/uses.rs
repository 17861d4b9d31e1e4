//! The columns of a CSV file that say how buffers are used: `stream` (a number), `with` (names of buffers that are used together with
//! it, separated by spaces) and `moves` (bytes that are moved if it is kept in a slower memory; `no`: it cannot be).

use std::collections::HashMap;

use super::ReadError;
use crate::model::Instance;
use crate::reuse::Uses;

/// Reads how the buffers of `instance`, which was read from the same text, are used. Columns that are missing leave their part empty.
///
/// # Errors
/// [`ReadError::Line`] with the line, counted from 1, the header's.
pub fn read_uses(bytes: &[u8], instance: &Instance) -> Result<Uses, ReadError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let bad = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        ReadError::Line { line, what: error.to_string() }
    };
    let header = reader.headers().map_err(bad)?.clone();
    let column = |name: &str| header.iter().position(|column| column.eq_ignore_ascii_case(name));
    let [stream, with, moves] = ["stream", "with", "moves"].map(column);
    let mut uses = Uses::default();
    if stream.is_none() && with.is_none() && moves.is_none() {
        return Ok(uses);
    }
    let names: HashMap<&str, usize> =
        instance.buffers().iter().enumerate().map(|(n, buffer)| (buffer.id.as_str(), n)).collect();
    for (n, record) in reader.records().enumerate() {
        let record = record.map_err(bad)?;
        let line = record.position().map_or(0, csv::Position::line);
        let wrong = |what: String| ReadError::Line { line, what };
        let field = |column: Option<usize>| column.and_then(|column| record.get(column)).unwrap_or_default();
        if stream.is_some() {
            let number = match field(stream) {
                "" => 0,
                text => text.parse().map_err(|error| wrong(format!("`stream` is `{text}`: {error}")))?,
            };
            uses.streams.push(number);
        }
        for name in field(with).split_whitespace() {
            let missing = || wrong(format!("`{name}`, in `with`, is not there"));
            uses.together.push((n, *names.get(name).ok_or_else(missing)?));
        }
        if moves.is_some() {
            uses.moves.push(match field(moves) {
                "" | "no" => None,
                text => Some(text.parse().map_err(|error| wrong(format!("`moves` is `{text}`: {error}")))?),
            });
        }
    }
    Ok(uses)
}
