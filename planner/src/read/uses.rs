//! The columns of a CSV file that say how buffers are used: `stream` (a number), `with` (names of buffers used together with it,
//! separated by spaces) and `moves` (bytes moved if it is kept in a slower memory, or `no` if it cannot be).

use std::collections::HashMap;

use super::csv::{Table, named, number};
use super::{ReadError, parse_bytes};
use crate::model::Instance;
use crate::reuse::Uses;

/// Reads how the buffers of `instance`, which was read from the same text, are used. Missing columns leave their part empty.
///
/// # Errors
/// [`ReadError::Line`] with the line's number, counted from 1.
pub fn read_uses(bytes: &[u8], instance: &Instance) -> Result<Uses, ReadError> {
    let table = Table::new(bytes)?;
    let [streams, moves] = ["stream", "moves"].map(|column| table.has(column));
    let mut uses = Uses::default();
    let names: HashMap<&str, usize> =
        instance.buffers().iter().enumerate().map(|(n, buffer)| (buffer.id.as_str(), n)).collect();
    let mut n = 0;
    table.each(|row| {
        if streams {
            let text = row.field("stream").unwrap_or("0");
            uses.streams.push(row.read("stream", text, number)?);
        }
        for name in row.field("with").unwrap_or_default().split_whitespace() {
            let missing = || row.wrong(format!("`{name}`, in `with`, is not there"));
            uses.together.push((n, named(&names, name).ok_or_else(missing)?));
        }
        if moves {
            let bytes = row.field("moves").filter(|&text| text != "no");
            uses.moves.push(bytes.map(|text| row.read("moves", text, parse_bytes)).transpose()?);
        }
        n += 1;
        Ok(())
    })?;
    Ok(uses)
}
