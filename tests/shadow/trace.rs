//! Recorded traces: `a <id> <size> <align>`, `r <id> <new size>`, `f <id>`, one event a line.

use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Allocate { id: usize, size: usize, align: usize },
    Reallocate { id: usize, size: usize },
    Free { id: usize },
}

pub struct Trace {
    pub name: String,
    pub events: Vec<Event>,
    pub ids: usize,
    /// The most bytes that are live at once.
    pub peak: usize,
    /// All bytes that are ever asked for.
    pub total: usize,
}

/// The traces in `tests/data`, and those in the folder that `ALLOTMENT_TRACES` names.
pub fn paths() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let more = std::env::var_os("ALLOTMENT_TRACES").map(PathBuf::from);
    let mut paths = Vec::new();
    for folder in [Some(own), more].into_iter().flatten() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        paths.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.ends_with(".trace.zst") || name.ends_with(".trace")
        }));
    }
    paths.sort();
    paths
}

pub fn read(path: &Path) -> Trace {
    let name = path.file_name().unwrap().to_string_lossy().split('.').next().unwrap().to_owned();
    let bytes = std::fs::read(path).unwrap();
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "zst") {
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(bytes.as_slice()).unwrap();
        decoder.read_to_string(&mut text).unwrap();
    } else {
        text = String::from_utf8(bytes).unwrap();
    }
    parse(name, &text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn parse(name: String, text: &str) -> Result<Trace, String> {
    let mut trace = Trace { name, events: Vec::new(), ids: 0, peak: 0, total: 0 };
    let mut sizes: Vec<Option<usize>> = Vec::new();
    let mut live = 0;
    for (line, event) in text.lines().enumerate() {
        let bad = |what: &str| format!("line {}: {what}: {event:?}", line + 1);
        let mut words = event.split_whitespace();
        let Some(kind) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let mut number =
            || words.next().and_then(|word| word.parse::<usize>().ok()).ok_or(bad("number expected"));
        let id = number()?;
        if id >= sizes.len() {
            sizes.resize(id + 1, None);
        }
        let event = match kind {
            "a" => Event::Allocate { id, size: number()?, align: number()? },
            "r" => Event::Reallocate { id, size: number()? },
            "f" => Event::Free { id },
            _ => return Err(bad("unknown event")),
        };
        let new = match event {
            Event::Allocate { size, .. } | Event::Reallocate { size, .. } => Some(size),
            Event::Free { .. } => None,
        };
        if matches!(event, Event::Allocate { .. }) != sizes[id].is_none() {
            return Err(bad("the id is in the wrong state"));
        }
        live = live - sizes[id].unwrap_or(0) + new.unwrap_or(0);
        sizes[id] = new;
        trace.peak = trace.peak.max(live);
        trace.total += new.unwrap_or(0);
        trace.events.push(event);
    }
    trace.ids = sizes.len();
    Ok(trace)
}
