//! The measures: one module each.

pub mod alignment;
pub mod efficiency;
pub mod fill;
pub mod instructions;
pub mod levels;
pub mod misuse;
pub mod offsets;
pub mod pathological;
pub mod pools;
pub mod programs;
pub mod random;
pub mod realloc;
pub mod reconnects;
pub mod scale;
pub mod single;
pub mod smallest;
pub mod synthetic;
pub mod threads;
pub mod throughput;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use anyhow::Result;

use crate::results::{Results, Row};
use crate::subjects::{self, Entry, Form, TINY};
use crate::table::Table;
use crate::trace::{self, Trace};

/// A measure.
pub struct Measure {
    /// Its name on the command line and in file names.
    pub name: &'static str,
    /// What it finds out, in one line.
    pub about: &'static str,
    /// Runs the measure.
    pub run: fn(&Options) -> Result<Vec<Row>>,
    /// Arranges the figures in tables.
    pub tables: fn(&Results) -> Vec<Table>,
}

/// All measures, in the order of the report.
pub const ALL: &[Measure] = &[
    instructions::MEASURE,
    throughput::MEASURE,
    random::MEASURE,
    realloc::MEASURE,
    alignment::MEASURE,
    smallest::MEASURE,
    single::MEASURE,
    fill::MEASURE,
    efficiency::MEASURE,
    threads::MEASURE,
    programs::MEASURE,
    pathological::MEASURE,
    misuse::MEASURE,
    levels::MEASURE,
    offsets::MEASURE,
    pools::MEASURE,
    scale::MEASURE,
    reconnects::MEASURE,
];

/// The settings for all measures.
pub struct Options {
    /// Whether to run fewer rounds and only small traces.
    pub quick: bool,
    /// A folder for files that are passed between processes.
    pub scratch: PathBuf,
    traces: OnceLock<Vec<Trace>>,
}

impl Options {
    /// Makes options. Traces are read when a measure first asks for them.
    pub fn new(quick: bool, scratch: PathBuf) -> Self {
        Self { quick, scratch, traces: OnceLock::new() }
    }

    /// Returns the traces; in quick runs, only those of fewer than 100,000 operations.
    pub fn traces(&self) -> Result<&[Trace]> {
        if let Some(traces) = self.traces.get() {
            return Ok(traces);
        }
        let mut traces = trace::all()?;
        if self.quick {
            traces.retain(|trace| trace.ops.len() < 100_000);
        }
        Ok(self.traces.get_or_init(|| traces))
    }

    /// Returns `full`, or `quick` in quick runs.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Returns the subjects that `admit` accepts.
pub fn subjects(admit: impl Fn(&Entry) -> bool) -> Vec<&'static Entry> {
    let chosen = |entry: &Entry| {
        let is_base = [Form::Registered, Form::Bare].map(subjects::base).contains(&entry.id);
        CHOSEN.get().is_none_or(|ids| is_base || ids.iter().any(|id| id == entry.id))
    };
    subjects::ENTRIES.iter().filter(|entry| chosen(entry) && admit(entry)).collect()
}

/// The subjects that the command line names; all if it names none.
static CHOSEN: OnceLock<Vec<String>> = OnceLock::new();

/// Confines all measures to these subjects, and to those that ratios are to.
pub fn choose(ids: Vec<String>) -> Result<()> {
    if let Some(id) = ids.iter().find(|id| subjects::entry(id).is_none()) {
        anyhow::bail!("there is no subject {id:?}; `list` names them");
    }
    CHOSEN.set(ids).map_err(|_| anyhow::anyhow!("subjects are chosen once"))
}

/// Returns the subjects for measures of density: ours as registered and stripped, and peers as plain values, whose
/// locks are not charged. Thread caches and heaps of fixed size are left out.
pub fn dense() -> Vec<&'static Entry> {
    subjects(|entry| {
        let form = match entry.own {
            true => entry.form != Form::Bare,
            false => entry.form == Form::Bare || entry.id.starts_with("embedded"),
        };
        form && entry.confined && !entry.own_thread && !entry.id.starts_with("TinyHeap")
    })
}

/// Returns whether a subject is so slow that only one of its forms is used for instructions and times.
pub fn is_slow_twin(entry: &Entry) -> bool {
    matches!(entry.id, "linked-list, no lock" | "embedded-llff")
}

/// Returns whether a subject can run a trace whose arena has `size` bytes.
pub fn serves(entry: &Entry, size: usize) -> bool {
    match entry.id {
        "Heap<Tlsf16>, stripped" | "TinyHeap" | "TinyHeap, no lock" => size <= TINY,
        "rlsf-small, no lock" => size <= 128 << 10,
        _ => true,
    }
}

/// Applies `f` to all items on all cores, and returns the results in the order of the items.
pub fn parallel<T: Sync, U: Send>(items: &[T], f: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(place) else { break };
                    let value = f(item);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((place, value));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|&(place, _)| place);
    done.into_iter().map(|(_, value)| value).collect()
}
