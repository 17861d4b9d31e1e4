//! Recorded traces, read by the crate `allotment-trace`.

use allotment_trace::{Action, Reader, TraceError};
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
    /// The most bytes live at once.
    pub peak: usize,
    /// The sum of all requested bytes.
    pub total: usize,
}

/// Lists the traces in `tests/data`, and those in the folder named by `ALLOTMENT_TRACES`.
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
    compile(name, allotment_trace::open(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn compile(name: String, reader: Result<Reader<'_>, TraceError>) -> Result<Trace, TraceError> {
    let mut trace = Trace { name, events: Vec::new(), ids: 0, peak: 0, total: 0 };
    for checked in reader? {
        let checked = checked?;
        let id = checked.event.id as usize;
        let event = match checked.event.action {
            Action::Allocate { size, align } => {
                Event::Allocate { id, size: size as usize, align: align as usize }
            }
            Action::Reallocate { size } => Event::Reallocate { id, size: size as usize },
            Action::Free => Event::Free { id },
        };
        if let Event::Allocate { size, .. } | Event::Reallocate { size, .. } = event {
            trace.total += size;
        }
        trace.ids = trace.ids.max(id + 1);
        trace.peak = trace.peak.max(checked.live_bytes as usize);
        trace.events.push(event);
    }
    Ok(trace)
}
