//! Chrome's JSON traces ("Trace Event Format"), which Perfetto also reads.
//!
//! A block is a nestable asynchronous slice (`b` to `e`, with `n` for a resize), the live bytes are a counter (`C`), and everything else
//! is an instant (`i`). `args.record` of each holds its line in the text format, so nothing is lost.

use std::io::{self, Write};

use allotment_trace::{Action, Event, Failure as Refused, Header, Record, Writer};
use serde::Serialize;

use super::Sink;
use super::live::Live;

/// Writes the JSON.
pub struct Chrome<W: Write> {
    output: W,
    live: Live,
    /// Units of time per microsecond. Without times, the time is the number of the event.
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
    /// Writes the beginning of the file.
    pub fn new(mut output: W, header: &Header) -> io::Result<Self> {
        let text = serde_json::to_string(header.text())?;
        write!(output, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"header\":{text}}},\"traceEvents\":[")?;
        let scale = if header.get("clock") == Some("ns") { 1000.0 } else { 1.0 };
        Ok(Self { output, live: Live::new(header), scale, now: 0.0, first: true })
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
