//! The measures: one module each.

mod copies;
mod holes;
mod kv;
mod pairs;
mod replay;
pub mod rmm;
mod streams;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Form, Kv, Need, Subject};

/// The names of the measures, in the order in which they run.
const PAIRS: &str = "pairs";
pub const RMM: &str = "rmm";
const HOLES: &str = "holes";
const STREAMS: &str = "streams";
const REPLAY: &str = "replay";
const COPIES: &str = "copies";
const KV: &str = "kv";

/// Only by name: it takes valgrind.
pub const COUNT: &str = "instructions";

const ALL: [&str; 7] = [PAIRS, RMM, HOLES, STREAMS, REPLAY, COPIES, KV];

const USUAL: &[Subject] = &[
    Subject::Pool(Form::Standard),
    Subject::Virtual(Form::Standard),
    Subject::Malloc,
    Subject::Ordered { keep: false },
    Subject::Ordered { keep: true },
    Subject::Cudarc,
    Subject::Vma,
    Subject::VmaVirtual,
    Subject::GpuAllocator,
    Subject::Harness,
];

const REPLAYED: &[Subject] = &[
    Subject::Pool(Form::Standard),
    Subject::Pool(Form::Lean),
    Subject::Virtual(Form::Standard),
    Subject::Virtual(Form::Lean),
    Subject::Malloc,
    Subject::Ordered { keep: false },
    Subject::Ordered { keep: true },
    Subject::Cudarc,
    Subject::Vma,
    Subject::VmaVirtual,
    Subject::GpuAllocator,
    Subject::Harness,
];

/// Returns the requested measures; all if none is named.
pub fn names(asked: &[String]) -> Result<Vec<&'static str>> {
    if asked.is_empty() {
        return Ok(ALL.to_vec());
    }
    let mut names = Vec::new();
    for name in asked {
        match ALL.iter().chain([&COUNT]).find(|known| *known == name) {
            Some(known) => names.push(*known),
            None => bail!("there is no measure {name:?}; there are {} and {COUNT}", ALL.join(", ")),
        }
    }
    Ok(names)
}

/// Returns the subjects of a measure: of threads, only those that several may use at once.
pub fn subjects(name: &str) -> impl Iterator<Item = &'static Subject> {
    let subjects = match name {
        REPLAY | RMM => REPLAYED,
        COUNT => &[Subject::Virtual(Form::Standard), Subject::VmaVirtual, Subject::Harness],
        COPIES => &[Subject::Copies],
        KV => &[Subject::Kv(Kv::Sequences), Subject::Kv(Kv::Paged), Subject::Kv(Kv::Longest)],
        _ => USUAL,
    };
    subjects.iter().filter(move |&&subject| name != STREAMS || subject != Subject::VmaVirtual)
}

/// Returns the number of parts of a measure. All subjects are measured in one part before the next, so that what else the machine
/// does meets all of them.
pub fn parts(name: &str, setup: &Setup) -> usize {
    if name == RMM { rmm::pairs(setup).len() } else { 1 }
}

/// Measures one round of a part with one subject.
pub fn measure(name: &str, part: usize, subject: &Subject, setup: &Setup) -> Result<Vec<Sample>> {
    match name {
        PAIRS => subject.with(setup, &pairs::Pairs(setup)),
        COUNT => rmm::count(*subject, setup),
        RMM => subject.with(setup, &rmm::Rmm { setup, subject: *subject, pair: rmm::pairs(setup)[part] }),
        HOLES => subject.with(setup, &holes::Holes { setup, subject: *subject }),
        STREAMS => subject.with(setup, &streams::Streams(setup)),
        REPLAY => subject.with(setup, &replay::Replay(setup)),
        KV => kv::measure(*subject, setup),
        _ => copies::measure(setup),
    }
}

/// The whole budget, reserved as needed.
fn all_of(setup: &Setup) -> Need {
    Need { bytes: setup.budget, at_once: false }
}

/// Nanoseconds per call, for `count` calls.
fn nanoseconds(time: Duration, count: usize) -> f64 {
    time.as_nanos() as f64 / count.max(1) as f64
}

/// Calls `pair` once, and then for at least `time` in rounds that double. Returns the nanoseconds per call in the
/// last round.
fn repeat(time: Duration, mut pair: impl FnMut() -> Result<()>) -> Result<f64> {
    pair()?;
    let mut count = 1;
    loop {
        let start = Instant::now();
        for _ in 0..count {
            pair()?;
        }
        let elapsed = start.elapsed();
        if elapsed >= time || count >= 1 << 30 {
            return Ok(nanoseconds(elapsed, count));
        }
        count *= 2;
    }
}

/// Allocates and frees one block; returns `false` if there is no room.
#[inline]
fn pair<A: Allocator>(allocator: &A, bytes: usize, stream: &A::Stream) -> Result<bool> {
    match allocator.allocate(std::hint::black_box(bytes), stream)? {
        Some(block) => {
            allocator.free(std::hint::black_box(block), stream)?;
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Formats a size with its unit.
fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_found_by_name() {
        assert_eq!(names(&[]).unwrap(), ALL);
        assert_eq!(names(&["rmm".into(), "pairs".into()]).unwrap(), ["rmm", "pairs"]);
        assert!(names(&["none".into()]).unwrap_err().to_string().contains("copies"));
    }

    #[test]
    fn sizes_are_written_in_units() {
        assert_eq!([256, 65_536, 100 << 20].map(size), ["256 B", "64 KiB", "100 MiB"]);
    }

    #[test]
    fn what_is_repeated_counts_calls() {
        let mut calls = 0u64;
        repeat(Duration::from_millis(1), || {
            calls += 1;
            Ok(())
        })
        .unwrap();
        assert!(calls.is_power_of_two(), "1 + 1 + 2 + 4 ...: {calls}");
    }
}
