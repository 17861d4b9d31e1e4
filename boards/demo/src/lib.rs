//! The program that every board runs, on whatever heap the board registered.
//!
//! A site inventory in JSON is parsed, indexed, sorted and written out as a report, which is compared with the
//! report of an independent program (`data/expect.py`) on the same document. Then everything is dropped, and the
//! next round must find the heap in its initial state. Nothing in here depends on the board.
#![no_std]

extern crate alloc;

mod inventory;
mod regions;
mod report;
mod watched;

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::fmt;

use allotment::Stats;
use allotment::placement::Placement;
use inventory::{Device, Inventory};
use watched::phase;
pub use watched::{Watched, flush, stats, watch};

/// A document and its expected report.
pub struct Job {
    /// The inventory, as JSON.
    pub document: &'static str,
    /// The expected report.
    pub report: &'static str,
}

/// 13 KiB of JSON, for boards with 64 KiB of RAM or more.
pub static INVENTORY: Job = Job {
    document: include_str!("../data/inventory.json"),
    report: include_str!("../data/inventory.report.txt"),
};

/// 2 KiB of JSON, for boards with 16 KiB of RAM.
pub static SMALL_INVENTORY: Job = Job {
    document: include_str!("../data/inventory-small.json"),
    report: include_str!("../data/inventory-small.report.txt"),
};

/// The measurements of a run. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Number of rounds.
    pub rounds: u32,
    /// Number of devices in the document, which every round must find.
    pub records: usize,
    /// The high-water mark of the heap.
    pub peak: usize,
    /// The largest free block at the end, when everything has been dropped.
    pub largest_free: usize,
    /// Bytes free at the end.
    pub free: usize,
    /// The highest external fragmentation in thousandths, sampled when half of the records of a round have been
    /// dropped.
    pub worst_fragmentation: u32,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds, records, peak, largest_free, free, worst_fragmentation } = self;
        write!(f, "summary rounds={rounds} records={records} peak={peak} largest_free={largest_free} ")?;
        write!(f, "free={free} worst_fragmentation={worst_fragmentation}")
    }
}

/// Why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Failure {
    /// The document could not be parsed.
    Parse {
        /// Line of the document, from 1.
        line: usize,
        /// Column of that line, from 1.
        column: usize,
    },
    /// Two records have the same key.
    Duplicate,
    /// The report differs from the expected one.
    Report {
        /// First line that differs, from 1.
        line: usize,
    },
    /// A round did not free everything that it allocated.
    Leak {
        /// Round, from 1.
        round: u32,
        /// Bytes in use before the first round.
        before: usize,
        /// Bytes in use after this one.
        after: usize,
    },
    /// The rounds succeeded, but the heap never saw an allocation, so it is not the global allocator.
    HeapNotUsed,
    /// A heap of two regions did not work as it should.
    Regions,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parse { line, column } => {
                write!(f, "line {line}, column {column} of the document is not understood")
            }
            Self::Duplicate => f.write_str("two records have the same key"),
            Self::Report { line } => {
                write!(f, "line {line} of the report differs from the expected one")
            }
            Self::Leak { round, before, after } => {
                write!(f, "{after} bytes are in use after round {round}, but {before} before the first")
            }
            Self::HeapNotUsed => f.write_str("the heap that is measured is not the global allocator"),
            Self::Regions => f.write_str("a heap of two regions does not work"),
        }
    }
}

impl core::error::Error for Failure {}

/// Rounds of a traced run; further ones would be the same.
const TRACED: u32 = 3;

/// Runs the job `rounds` times, or 3 times in a traced run, on the global allocator `heap`.
///
/// # Errors
///
/// The first failure, as in [`run`].
pub fn run_watched<P: Placement>(job: &Job, rounds: u32, heap: &Watched<P>) -> Result<Summary, Failure> {
    let rounds = if cfg!(feature = "trace") { rounds.min(TRACED) } else { rounds };
    let outcome = run(job, rounds, || stats(heap));
    flush(heap);
    outcome
}

/// Runs the job `rounds` times on the global allocator, whose statistics `stats` must return.
///
/// # Errors
///
/// The first failure; see [`Failure`]. If the heap is too small for the job, the program ends in the panic handler
/// instead, like any failed allocation of `alloc`'s collections.
pub fn run(job: &Job, rounds: u32, stats: impl Fn() -> Stats) -> Result<Summary, Failure> {
    if !regions::work() {
        return Err(Failure::Regions);
    }
    let before = stats().used;
    let mut records = 0;
    let mut worst_fragmentation = 0;
    #[cfg(feature = "defmt")]
    defmt::info!("{=u32} rounds of {=usize} bytes of JSON, {}", rounds, job.document.len(), stats());

    for round in 1..=rounds {
        records = one_round(job, || {
            worst_fragmentation = worst_fragmentation.max(stats().fragmentation());
        })?;
        let after = stats().used;
        if after != before {
            return Err(Failure::Leak { round, before, after });
        }
        #[cfg(feature = "defmt")]
        if round == 1 || round % 25 == 0 {
            defmt::info!(
                "round {=u32}: {=usize} records, high-water mark {=usize} B",
                round,
                records,
                stats().peak
            );
        }
    }

    let end = stats();
    if end.peak <= before {
        return Err(Failure::HeapNotUsed);
    }
    let summary = Summary {
        rounds,
        records,
        peak: end.peak,
        largest_free: end.largest_free,
        free: end.free,
        worst_fragmentation,
    };
    #[cfg(feature = "defmt")]
    defmt::info!(
        "summary rounds={=u32} records={=usize} peak={=usize} largest_free={=usize} free={=usize} \
        worst_fragmentation={=u32}",
        rounds,
        records,
        end.peak,
        end.largest_free,
        end.free,
        worst_fragmentation
    );
    Ok(summary)
}

/// Parses, indexes, sorts, reports and checks; calls `half_dropped` when every other record has been dropped.
/// Returns the number of records.
fn one_round(job: &Job, half_dropped: impl FnOnce()) -> Result<usize, Failure> {
    let Inventory { schema, site, devices } = phase("parse", || inventory::parse(job.document))?;
    let records = devices.len();

    let mut index: BTreeMap<String, Device> = BTreeMap::new();
    for device in devices {
        if phase("index", || index.insert(device.id.clone(), device)).is_some() {
            return Err(Failure::Duplicate);
        }
    }

    let mut sorted: Vec<&Device> = index.values().collect();
    sorted.sort_by(|a, b| {
        let by_value = || b.calibrated_mean().total_cmp(&a.calibrated_mean());
        a.kind.cmp(&b.kind).then_with(by_value).then_with(|| a.id.cmp(&b.id))
    });
    let report = phase("report", || report::write(schema, &site, &sorted));
    if let Some(line) = report::first_difference(&report, job.report) {
        return Err(Failure::Report { line });
    }

    let mut keep = false;
    index.retain(|_, _| {
        keep = !keep;
        keep
    });
    half_dropped();
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_documents_give_the_expected_report() {
        assert_eq!(one_round(&INVENTORY, || ()), Ok(26));
        assert_eq!(one_round(&SMALL_INVENTORY, || ()), Ok(4));
    }

    #[test]
    fn the_large_document_is_large_enough() {
        assert!(INVENTORY.document.len() >= 8 * 1024);
    }

    #[test]
    fn a_wrong_report_is_noticed() {
        let crossed = Job { document: INVENTORY.document, report: SMALL_INVENTORY.report };
        assert_eq!(one_round(&crossed, || ()), Err(Failure::Report { line: 1 }));
    }

    #[test]
    fn a_broken_document_is_noticed() {
        let cut = Job { document: INVENTORY.document.split_at(700).0, report: "" };
        assert!(matches!(one_round(&cut, || ()), Err(Failure::Parse { .. })));
    }
}
