//! CSV in MiniMalloc's convention, which idealloc reads too.
//!
//! Columns, in any order: `id` (or `buffer`), `lower`/`upper` (or `start`/`end`), `size`; optional `alignment`,
//! `hint`, `gaps`, `fixed`, `alias`, `tier`; `offset` and columns of other names are ignored. The end of a lifetime
//! is exclusive, in `end` as in `upper` (MiniMalloc itself takes `end` inclusively). Gaps are `from-to` or
//! `from-to@first:last` (the bytes that stay in use), separated by spaces.

use std::collections::HashMap;

use super::ReadError;
use crate::model::{Buffer, Gap, Instance};

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Column {
    Id,
    Start,
    End,
    Size,
    Align,
    Hint,
    Gaps,
    Fixed,
    Alias,
    Tier,
}

impl Column {
    fn new(name: &str) -> Option<Self> {
        Some(match name {
            "id" | "buffer" => Self::Id,
            "lower" | "start" => Self::Start,
            "upper" | "end" => Self::End,
            "size" => Self::Size,
            "alignment" | "align" => Self::Align,
            "hint" => Self::Hint,
            "gaps" => Self::Gaps,
            "fixed" => Self::Fixed,
            "alias" => Self::Alias,
            "tier" => Self::Tier,
            _ => return None,
        })
    }
}

/// Reads CSV text.
///
/// # Errors
/// See [`ReadError`]: lines are counted from 1, the header's.
pub fn read_csv(bytes: &[u8]) -> Result<Instance, ReadError> {
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let line_of = |error: &csv::Error| error.position().map_or(1, |position| position.line());
    let bad = |error: csv::Error| ReadError::Line { line: line_of(&error), what: error.to_string() };
    let mut columns = HashMap::new();
    for (n, name) in reader.headers().map_err(bad)?.iter().enumerate() {
        if let Some(column) = Column::new(&name.to_ascii_lowercase()) {
            if columns.insert(column, n).is_some() {
                return Err(ReadError::Twice(name.into()));
            }
        }
    }
    let needed =
        [(Column::Id, "id"), (Column::Start, "lower"), (Column::End, "upper"), (Column::Size, "size")];
    for (column, name) in needed {
        if !columns.contains_key(&column) {
            return Err(ReadError::Column(name));
        }
    }
    let mut buffers = Vec::new();
    let mut aliases = Vec::new();
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(bad)? {
        let line = record.position().map_or(0, |position| position.line());
        let field = |column: Column| {
            columns.get(&column).and_then(|&n| record.get(n)).filter(|field| !field.is_empty())
        };
        let wrong = |what: String| ReadError::Line { line, what };
        let number = |column: Column, name: &str| -> Result<Option<u64>, ReadError> {
            field(column).map(|text| parse(text, name).map_err(wrong)).transpose()
        };
        let time = |column: Column, name: &str| -> Result<i64, ReadError> {
            field(column)
                .ok_or_else(|| wrong(format!("`{name}` is empty")))
                .and_then(|text| parse(text, name).map_err(wrong))
        };
        let id = field(Column::Id).ok_or_else(|| wrong("`id` is empty".into()))?;
        let size = number(Column::Size, "size")?.ok_or_else(|| wrong("`size` is empty".into()))?;
        let mut buffer = Buffer::new(id, size, time(Column::Start, "lower")?, time(Column::End, "upper")?);
        buffer.align = number(Column::Align, "alignment")?.unwrap_or(1);
        buffer.hint = number(Column::Hint, "hint")?;
        buffer.fixed = number(Column::Fixed, "fixed")?;
        let tier = number(Column::Tier, "tier")?.unwrap_or(0);
        buffer.tier = u32::try_from(tier).map_err(|_| wrong(format!("tier {tier} is above 2^32")))?;
        for gap in field(Column::Gaps).unwrap_or_default().split_whitespace() {
            buffer.gaps.push(
                parse_gap(gap).ok_or_else(|| wrong(format!("`{gap}` is no gap: write 3-7 or 3-7@0:64")))?,
            );
        }
        if let Some(alias) = field(Column::Alias) {
            aliases.push((buffers.len(), alias.to_string(), line));
        }
        buffers.push(buffer);
    }
    let names: HashMap<String, usize> = buffers.iter().enumerate().map(|(n, b)| (b.id.clone(), n)).collect();
    for (n, alias, line) in aliases {
        let other = names.get(&alias).copied();
        let what = || format!("`{alias}`, with which `{}` may share, is not there", buffers[n].id);
        buffers[n].alias = Some(other.ok_or_else(|| ReadError::Line { line, what: what() })?);
    }
    Ok(Instance::new(buffers)?)
}

fn parse<T: std::str::FromStr>(text: &str, name: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("`{name}` is `{text}`: {error}"))
}

fn parse_gap(text: &str) -> Option<Gap> {
    let (times, window) = match text.split_once('@') {
        Some((times, window)) => (times, Some(window)),
        None => (text, None),
    };
    // A first minus belongs to the number.
    let dash = times.char_indices().skip(1).find(|&(_, c)| c == '-')?.0;
    let (start, end) = (times[..dash].parse().ok()?, times[dash + 1..].parse().ok()?);
    let window = match window.map(|window| window.split_once(':')) {
        None => None,
        Some(Some((from, to))) => Some((from.parse().ok()?, to.parse().ok()?)),
        Some(None) => return None,
    };
    Some(Gap { start, end, window })
}
