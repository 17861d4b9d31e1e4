//! Reads Chrome's JSON traces that `allotment convert` wrote: each entry holds its record.

use std::io::{self, BufRead, Write};

use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::damaged;

/// Returns whether a file begins like such a trace; the graphs and plans of `allotment plan` are also JSON.
pub fn is_at(start: &[u8]) -> bool {
    let holds = |word: &[u8]| start.windows(word.len()).any(|part| part == word);
    start.trim_ascii_start().first() == Some(&b'{')
        && (holds(b"\"traceEvents\"") || holds(b"\"displayTimeUnit\""))
}

/// Writes the trace contained in the entries.
///
/// # Errors
/// If there is no trace, as in traces of other programs, or it cannot be read or written.
pub fn convert(input: &mut dyn BufRead, text: &mut dyn Write) -> io::Result<()> {
    let mut found = 0;
    let mut json = serde_json::Deserializer::from_reader(input);
    let parsed = Top { text, found: &mut found }.deserialize(&mut json).and_then(|()| json.end());
    // The error includes line and column.
    parsed.map_err(damaged)?;
    if found == 0 {
        return Err(damaged("no records: only what `allotment convert` wrote can be read"));
    }
    Ok(())
}

/// Reads the outermost object element by element.
struct Top<'a> {
    text: &'a mut dyn Write,
    found: &'a mut u64,
}

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with `traceEvents`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "traceEvents" => {
                    map.next_value_seed(Entries { text: &mut *self.text, found: &mut *self.found })?;
                }
                "otherData" => {
                    let Other { header } = map.next_value()?;
                    if let Some(header) = header.filter(|header| !header.is_empty()) {
                        line(self.text, &format!("# {header}"))?;
                    }
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Other {
    header: Option<String>,
}

/// Reads the array of entries.
struct Entries<'a> {
    text: &'a mut dyn Write,
    found: &'a mut u64,
}

#[derive(Deserialize)]
struct Entry {
    args: Option<Args>,
}

#[derive(Deserialize)]
struct Args {
    record: Option<String>,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(Entry { args }) = seq.next_element()? {
            if let Some(record) = args.and_then(|args| args.record) {
                *self.found += 1;
                line(self.text, &record)?;
            }
        }
        Ok(())
    }
}

/// Writes one line; a record never spans lines.
fn line<E: serde::de::Error>(text: &mut dyn Write, line: &str) -> Result<(), E> {
    writeln!(text, "{}", line.replace('\n', " ")).map_err(E::custom)
}
