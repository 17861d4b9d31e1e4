//! CSV in MiniMalloc's convention, which idealloc reads too.
//!
//! Columns, in any order: `id` (or `buffer`), `lower`/`upper` (or `start`/`end`), `size`; optional `alignment`, `hint`, `gaps`, `fixed`,
//! `alias`, `tier`, and for prices `stream`, `with`, `moves`. A column with another name is an error; a column without a name, like the
//! index of a data frame, is ignored. Fields are separated by commas, semicolons, tabs or bars, whichever is most frequent in the header.
//! Sizes and offsets are bytes (`4096`, `0x1000`, `64K`, `1.5MiB`). Numbers may be written as in data frames: `3.0`, and `NA` or `NaN`
//! for none. Ignored are blank lines, comments (`#`) and Excel's `sep=;` before the header, and after it rows without a value and the
//! rule of a Markdown table.
//!
//! The end of a lifetime is exclusive, in `end` as in `upper` (MiniMalloc itself takes `end` inclusively). Gaps are `from-to` or
//! `from-to@first:last` (the bytes that stay in use), separated by spaces. In a written plan, `offset` is ignored, and so are rows that
//! lie `in` the buffer of another row.

use std::collections::HashMap;
use std::str::FromStr;

use csv::StringRecord;

use super::{MARK, ReadError, parse_bytes, whole};
use crate::model::{Buffer, Gap, Instance};

/// The columns read, by their usual names.
const COLUMNS: &str =
    "id, lower, upper, size, alignment, hint, gaps, fixed, alias, tier, stream, with, moves";

/// Columns of plans, and alternative names of columns.
const OTHERS: [(&str, &str); 8] = [
    ("in", "in"),
    ("offset", "offset"),
    ("buffer", "id"),
    ("buffer_id", "id"),
    ("begin", "lower"),
    ("start", "lower"),
    ("end", "upper"),
    ("align", "alignment"),
];

/// Optional columns of numbers.
const NUMBERS: [Column; 6] = ["alignment", "hint", "fixed", "tier", "stream", "moves"];

/// A column, by its usual name.
type Column = &'static str;

fn column(name: &str) -> Result<Column, ReadError> {
    let lower = name.to_ascii_lowercase();
    let names = || COLUMNS.split(", ").map(|name| (name, name)).chain(OTHERS);
    if let Some((_, column)) = names().find(|&(known, _)| known == lower) {
        return Ok(column);
    }
    let alike = names().map(|(known, _)| (strsim::jaro_winkler(known, &lower), known));
    let nearest = alike.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|&(alike, _)| alike > 0.75);
    let near = nearest.map_or(String::new(), |(_, known)| format!(" (did you mean `{known}`?)"));
    Err(ReadError::Unknown { name: name.into(), hint: format!("{near}: known are {COLUMNS}") })
}

/// A table of buffers.
pub(super) struct Table<'a> {
    reader: csv::Reader<&'a [u8]>,
    columns: HashMap<Column, usize>,
    place: Place<'a>,
}

/// A row of a table.
pub(super) struct Row<'a> {
    record: &'a StringRecord,
    columns: &'a HashMap<Column, usize>,
    place: Place<'a>,
}

/// The text, and the offset of its header.
#[derive(Clone, Copy)]
struct Place<'a> {
    text: &'a [u8],
    header: usize,
}

impl Place<'_> {
    /// Returns the number of the line where the reader began a record. The reader's own count is off by one after `\r\n`.
    fn line(self, at: Option<&csv::Position>) -> u64 {
        let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let from = self.header + at.map_or(0, |at| at.byte() as usize).min(self.text.len() - self.header);
        let ends = self.text[from..].iter().take_while(|byte| is_end(byte)).count();
        let before = &self.text[..from + ends];
        let pairs = before.windows(2).filter(|pair| pair == b"\r\n").count();
        (1 + before.iter().filter(|byte| is_end(byte)).count() - pairs) as u64
    }

    fn bad(self, error: &csv::Error) -> ReadError {
        let what = match error.kind() {
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("it has {len} fields, and the header has {expected_len}")
            }
            csv::ErrorKind::Utf8 { .. } => "it is no UTF-8: save the file as UTF-8".into(),
            _ => error.to_string(),
        };
        ReadError::Line { line: self.line(error.position()), what }
    }
}

impl<'a> Table<'a> {
    /// Reads the header.
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, ReadError> {
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
            return Err(ReadError::Line { line: 1, what: "the text is UTF-16: save it as UTF-8".into() });
        }
        let text = bytes.strip_prefix(MARK).unwrap_or(bytes);
        let is_end = |&byte: &u8| matches!(byte, b'\n' | b'\r');
        let is_before = |line: &[u8]| {
            let line = line.trim_ascii();
            line.is_empty()
                || line.starts_with(b"#")
                || line.starts_with(b"sep=")
                || line.starts_with(b"SEP=")
        };
        let mut start = 0;
        let header = loop {
            let rest = &text[start..];
            let line = rest.split(is_end).next().unwrap_or_default();
            if line.len() == rest.len() || !is_before(line) {
                break line;
            }
            start += line.len() + 1;
        };
        let count = |separator: u8| header.iter().filter(|&&byte| byte == separator).count();
        // Of equally frequent separators the last wins, so the comma comes last.
        let separator = [b'|', b'\t', b';', b','].into_iter().max_by_key(|&separator| count(separator));
        let place = Place { text, header: start };
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .delimiter(separator.unwrap_or(b','))
            .from_reader(&text[start..]);
        let mut columns = HashMap::new();
        for (n, name) in reader
            .headers()
            .map_err(|error| place.bad(&error))?
            .iter()
            .enumerate()
            .filter(|(_, name)| !name.is_empty())
        {
            if columns.insert(column(name)?, n).is_some() {
                return Err(ReadError::Twice(name.into()));
            }
        }
        for column in ["id", "lower", "upper", "size"] {
            if !columns.contains_key(&column) {
                return Err(ReadError::Column(column));
            }
        }
        Ok(Self { reader, columns, place })
    }

    /// Returns whether the table has a column.
    pub(super) fn has(&self, column: Column) -> bool {
        self.columns.contains_key(&column)
    }

    /// Calls `each` for the row of each buffer; skips rows that lie in the buffer of another row.
    pub(super) fn each(
        mut self,
        mut each: impl FnMut(Row<'_>) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        let is_rule = |cell: &str| !cell.is_empty() && cell.bytes().all(|byte| matches!(byte, b'-' | b':'));
        let mut record = StringRecord::new();
        let mut first = true;
        while self.reader.read_record(&mut record).map_err(|error| self.place.bad(&error))? {
            let is_below = std::mem::replace(&mut first, false);
            if record.iter().all(|cell| cell.is_empty() || is_below && is_rule(cell)) {
                continue;
            }
            let row = Row { record: &record, columns: &self.columns, place: self.place };
            if row.field("in").is_none() {
                each(row)?;
            }
        }
        Ok(())
    }
}

impl Row<'_> {
    pub(super) fn wrong(&self, what: String) -> ReadError {
        ReadError::Line { line: self.place.line(self.record.position()), what }
    }

    /// Returns the text of a field, if it exists and is not empty.
    pub(super) fn field(&self, column: Column) -> Option<&str> {
        let field = self.columns.get(&column).and_then(|&n| self.record.get(n))?;
        let is_none = NUMBERS.contains(&column) && matches!(field, "NA" | "NaN" | "nan" | "<NA>");
        (!field.is_empty() && !is_none).then_some(field)
    }

    fn needed(&self, column: Column) -> Result<&str, ReadError> {
        self.field(column).ok_or_else(|| self.wrong(format!("`{}` is empty", column)))
    }

    /// Parses a text of `column`.
    pub(super) fn read<T, E: std::fmt::Display>(
        &self,
        column: Column,
        text: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<T, ReadError> {
        parse(text).map_err(|error| self.wrong(format!("`{}` is `{}`: {error}", column, text.escape_debug())))
    }

    fn bytes(&self, column: Column) -> Result<Option<u64>, ReadError> {
        self.field(column).map(|text| self.read(column, text, parse_bytes)).transpose()
    }

    fn time(&self, column: Column) -> Result<i64, ReadError> {
        self.read(column, self.needed(column)?, number)
    }

    /// Returns the row's buffer, without its alias.
    fn buffer(&self) -> Result<Buffer, ReadError> {
        let size = self.read("size", self.needed("size")?, parse_bytes)?;
        let (start, end) = (self.time("lower")?, self.time("upper")?);
        let mut buffer = Buffer::new(self.needed("id")?, size, start, end);
        buffer.align = self.bytes("alignment")?.unwrap_or(1);
        // MiniMalloc writes -1 for none.
        buffer.hint = if self.field("hint").map(whole) == Some("-1") { None } else { self.bytes("hint")? };
        buffer.fixed = self.bytes("fixed")?;
        let tier = self.field("tier").map(|text| self.read("tier", text, number));
        buffer.tier = tier.transpose()?.unwrap_or(0);
        for gap in self.field("gaps").unwrap_or_default().split_whitespace() {
            let wrong = || self.wrong(format!("`{gap}` is no gap: write 3-7 or 3-7@0:64"));
            buffer.gaps.push(parse_gap(gap).ok_or_else(wrong)?);
        }
        Ok(buffer)
    }
}

/// Reads a whole number.
pub(super) fn number<T: FromStr>(text: &str) -> Result<T, T::Err> {
    whole(text).parse()
}

/// Returns the index of the buffer with this name. Data frames write numeric names with a fraction if some names are missing.
pub(super) fn named(names: &HashMap<&str, usize>, name: &str) -> Option<usize> {
    names.get(name).or_else(|| names.get(whole(name))).copied()
}

/// Reads CSV text.
///
/// # Errors
/// See [`ReadError`]: lines are counted from 1.
pub fn read_csv(bytes: &[u8]) -> Result<Instance, ReadError> {
    let mut buffers = Vec::new();
    let mut aliases = Vec::new();
    let table = Table::new(bytes)?;
    let place = table.place;
    table.each(|row| {
        if let Some(alias) = row.field("alias") {
            aliases.push((buffers.len(), alias.to_string(), row.record.position().cloned()));
        }
        buffers.push(row.buffer()?);
        Ok(())
    })?;
    let names: HashMap<&str, usize> = buffers.iter().enumerate().map(|(n, b)| (b.id.as_str(), n)).collect();
    let mut found = Vec::with_capacity(aliases.len());
    for (n, alias, at) in aliases {
        let what = || format!("`{alias}`, with which `{}` may share, is not there", buffers[n].id);
        let other = named(&names, &alias);
        found
            .push((n, other.ok_or_else(|| ReadError::Line { line: place.line(at.as_ref()), what: what() })?));
    }
    for (n, other) in found {
        buffers[n].alias = Some(other);
    }
    Ok(Instance::new(buffers)?)
}

fn parse_gap(text: &str) -> Option<Gap> {
    let (times, window) = match text.split_once('@') {
        Some((times, window)) => (times, Some(window)),
        None => (text, None),
    };
    // A leading minus belongs to the number.
    let dash = times.char_indices().skip(1).find(|&(_, c)| c == '-')?.0;
    let (start, end) = (times[..dash].parse().ok()?, times[dash + 1..].parse().ok()?);
    let window = match window.map(|window| window.split_once(':')) {
        None => None,
        Some(Some((from, to))) => Some((parse_bytes(from).ok()?, parse_bytes(to).ok()?)),
        Some(None) => return None,
    };
    Some(Gap { start, end, window })
}
