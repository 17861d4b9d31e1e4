//! Chrome's JSON traces ("Trace Event Format"), which Perfetto also reads.
//!
//! A block is a nestable asynchronous slice (`b` to `e`, with `n` where it was resized), the live bytes are a counter
//! (`C`), and everything else is an instant (`i`). `args.record` of each holds the line of the text form, so nothing is
//! lost.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

use allotment_trace::{Action, Event, Failure as Refused, Header, Record, Writer, decompressed};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Sink;
use super::live::Live;
use crate::failure::Failure;
use crate::input::Input;

/// Writes the JSON.
pub struct Chrome<W: Write> {
    output: W,
    live: Live,
    /// Units of time per microsecond. Without times, the number of the event serves as its time.
    scale: f64,
    now: f64,
    first: bool,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: f64,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'a str>,
    args: Args<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args<'a> {
    Record { record: &'a str },
    Live { bytes: u64 },
}

impl<W: Write> Chrome<W> {
    /// Writes what precedes the events.
    pub fn new(mut output: W, header: &Header) -> io::Result<Self> {
        let text = serde_json::to_string(header.text())?;
        write!(output, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"header\":{text}}},\"traceEvents\":[")?;
        let scale = if header.get("clock") == Some("ns") { 1000.0 } else { 1.0 };
        Ok(Self { output, live: Live::default(), scale, now: 0.0, first: true })
    }

    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        self.output.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut self.output, entry)?;
        Ok(())
    }
}

impl<W: Write> Sink for Chrome<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        let mut line = Writer::new(Vec::new());
        line.record(record)?;
        let line = String::from_utf8_lossy(&line.finish()?).trim_end_matches('\n').to_owned();
        let time = match record {
            Record::Event(Event { time, .. }) | Record::Failure(Refused { time, .. }) => *time,
            _ => None,
        };
        let instant = Entry {
            name: "",
            cat: "heap",
            ph: "i",
            ts: self.now,
            pid: 1,
            tid: 1,
            id: None,
            s: Some("t"),
            args: Args::Record { record: &line },
        };
        let event = match record {
            Record::Event(event) => event,
            other => {
                let name = match other {
                    Record::Failure(_) => "request refused",
                    Record::Lost(_) => "events lost",
                    Record::Note(_) => "note",
                    _ => "comment",
                };
                if let Some(time) = time {
                    self.now = time as f64 / self.scale;
                }
                return self.entry(&Entry { name, ts: self.now, ..instant });
            }
        };
        self.now = time.map_or(self.now + 1.0, |time| time as f64 / self.scale);
        self.live.follow(event);
        let ph = match event.action {
            Action::Allocate { .. } => "b",
            Action::Reallocate { .. } => "n",
            Action::Free => "e",
        };
        let (name, id) = (event.tag.as_deref().unwrap_or("block"), Some(format!("{:#x}", event.id)));
        self.entry(&Entry { name, cat: "block", ph, ts: self.now, id, s: None, ..instant })?;
        let bytes = Args::Live { bytes: self.live.bytes };
        self.entry(&Entry {
            name: "live",
            cat: "heap",
            ph: "C",
            ts: self.now,
            pid: 1,
            tid: 1,
            id: None,
            s: None,
            args: bytes,
        })
    }

    fn finish(&mut self) -> io::Result<()> {
        writeln!(self.output, "\n]}}")
    }
}

/// Returns the text form of a Chrome trace that [`Chrome`] wrote, in an unnamed file. Traces of other programs have no
/// records and are refused.
pub fn to_text(input: &Input) -> Result<File, Failure> {
    let path = input.shown();
    let wrong = Failure::file(path);
    let input = decompressed(File::open(input.path()).map_err(&wrong)?).map_err(&wrong)?;
    let mut text = BufWriter::new(tempfile::tempfile()?);
    let mut found = 0;
    let mut json = serde_json::Deserializer::from_reader(input);
    let parsed = Top { text: &mut text, found: &mut found }.deserialize(&mut json).and_then(|()| json.end());
    // The error includes line and column.
    parsed.map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
    if found == 0 {
        let path = path.display();
        return Err(Failure::Other(format!(
            "{path}: no records: only what `allotment convert` wrote can be read"
        )));
    }
    let mut text = text.into_inner().map_err(io::IntoInnerError::into_error)?;
    text.rewind()?;
    Ok(text)
}

/// The outermost object, read element by element.
struct Top<'a, W: Write> {
    text: &'a mut W,
    found: &'a mut u64,
}

impl<'de, W: Write> DeserializeSeed<'de> for Top<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, W: Write> Visitor<'de> for Top<'_, W> {
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

/// The array of entries.
struct Entries<'a, W: Write> {
    text: &'a mut W,
    found: &'a mut u64,
}

#[derive(Deserialize)]
struct ReadEntry {
    args: Option<ReadArgs>,
}

#[derive(Deserialize)]
struct ReadArgs {
    record: Option<String>,
}

impl<'de, W: Write> DeserializeSeed<'de> for Entries<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, W: Write> Visitor<'de> for Entries<'_, W> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(ReadEntry { args }) = seq.next_element()? {
            if let Some(record) = args.and_then(|args| args.record) {
                *self.found += 1;
                line(self.text, &record)?;
            }
        }
        Ok(())
    }
}

/// Writes one line; a record is never longer than a line.
fn line<E: serde::de::Error>(text: &mut impl Write, line: &str) -> Result<(), E> {
    writeln!(text, "{}", line.replace('\n', " ")).map_err(E::custom)
}
