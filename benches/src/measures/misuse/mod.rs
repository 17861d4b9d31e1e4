//! What allocators do when a program misuses them: every misuse against every allocator, in processes of their own.

mod subjects;

pub use subjects::with;

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use allotment_benches::misuse::{self as lab, Allocator, HARMLESS, INAPPLICABLE, LIMIT, Lab, Place, SILENT};
use anyhow::{Context, Result, bail};

use super::{Measure, Options, parallel};
use crate::arena::Arena;
use crate::results::{Results, Row};
use crate::subjects::{Subject, Visitor};
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "misuse",
    about: "what allocators do when they are misused: double frees, wrong layouts, writes beyond and after",
    run,
    tables,
};

/// The number of misuses with each outcome.
const COUNT: &str = "misuses";
/// The outcome of one misuse, as a place in [`WORDS`].
const OUTCOME: &str = "outcome";

/// Nanoseconds of an allocation with its free, beside the counts.
const TIME: &str = "ns";

/// Names the libraries that are preloaded beside the allocators that are built in: `name=path`, separated by colons.
const LIBRARIES: &str = "ALLOTMENT_LIBRARIES";

/// The subject that calls `malloc`.
const SYSTEM: &str = "system";

/// Bytes of the arena: as many as the placement with the shortest regions takes.
const ARENA: usize = 500 << 10;

/// The outcomes, as they are written in the table. The first one stands for cases that do not apply.
const WORDS: &[&str] = &["·", "found", "no harm", "crash", "hang", "**silent**"];

fn tables(_: &Results) -> Vec<Table> {
    let common = Table { better: Better::Neither, digits: 0, ..Table::default() };
    vec![
        Table {
            title: "Outcomes",
            text: format!(
                "{} misuses, each in a process of its own. After the misuse the process goes on for 1,500 operations with blocks \
                 of many sizes, checking that no two live blocks overlap and that each keeps its contents. *found*: the \
                 allocator ended the process with a message. *no harm*: it went on and every block was intact. *crash*: a \
                 fault of the processor. *hang*: no end after {LIMIT} s of processor time. *silent*: live blocks overlapped or \
                 changed, and no report came. *ns*: what an allocation with its free takes while 400 blocks of 1 to 512 bytes are \
                 replaced at random, without a misuse. `lib` names are preloaded libraries. `Off`, `Basic` and `Full` are allotment's levels; `Basic` is the default.",
                lab::ALL.len()
            ),
            metric: COUNT,
            ..common.clone()
        },
        Table {
            title: "Each misuse",
            text: "*·*: does not apply, for instance a free of memory beside the arena of an allocator that has none. Of frees, `Cached` \
                   finds only second ones over a heap of level `Basic`, and it keeps nothing in front of one of level `Full`. A byte that is \
                   written in front of or behind a block changes nothing, and is not found, if it is the canary's: one in 256."
                .into(),
            metric: OUTCOME,
            transposed: true,
            words: WORDS,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let libraries = std::env::var(LIBRARIES).unwrap_or_default();
    let libraries: Vec<(&str, &str)> = libraries.split(':').filter_map(|pair| pair.split_once('=')).collect();
    let names = subjects::NAMES.iter().map(|&name| (name, None));
    let all: Vec<(&str, Option<&str>)> =
        names.chain(libraries.into_iter().map(|(name, path)| (name, Some(path)))).collect();
    let jobs: Vec<_> =
        all.iter().flat_map(|&subject| lab::ALL.iter().map(move |case| (subject, case.name))).collect();
    let jobs = &jobs[..options.pick(jobs.len(), lab::ALL.len())];
    let outcomes = parallel(jobs, |&(subject, case)| attempt(subject, case));
    let mut rows = Vec::new();
    for (&((subject, _), case), outcome) in jobs.iter().zip(outcomes) {
        let outcome = outcome.with_context(|| format!("{case} with {subject}"))?;
        rows.push(Row::new(case, subject, OUTCOME, outcome as f64));
    }
    for (subject, library) in all {
        for (number, word) in WORDS.iter().enumerate().skip(1) {
            let count = |row: &&Row| row.subject == subject && row.value == number as f64;
            let count = rows.iter().filter(|row| row.metric == OUTCOME).filter(count).count();
            rows.push(Row::new(word.trim_matches('*'), subject, COUNT, count as f64));
        }
        // One after the other: they are timed.
        let output = command((subject, library), lab::PRICE)?.stderr(Stdio::null()).output()?;
        let time = String::from_utf8(output.stdout)?;
        // Some take longer than a process may.
        if let Ok(time) = time.trim().parse() {
            rows.push(Row::new(TIME, subject, COUNT, time));
        }
    }
    Ok(rows)
}

/// Returns the command that lets a child process misuse an allocator. A preloaded one takes the place of the system's.
fn command((subject, library): (&str, Option<&str>), case: &str) -> Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = match subject == subjects::SECURE {
        true => Command::new(program.with_file_name("secure")),
        false => Command::new(program),
    };
    if subject != subjects::SECURE {
        command.args(["misuse", if library.is_some() { SYSTEM } else { subject }]);
    }
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command.arg(case).stdin(Stdio::null());
    Ok(command)
}

/// Lets a child process misuse an allocator. Returns the outcome, a place in [`WORDS`].
fn attempt(subject: (&str, Option<&str>), case: &str) -> Result<usize> {
    let mut child = command(subject, case)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return outcome(status);
        }
        // Threads that wait for a lock take no processor time.
        if begin.elapsed() > Duration::from_secs(20 * LIMIT) {
            child.kill()?;
            child.wait()?;
            return Ok(4);
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn outcome(status: ExitStatus) -> Result<usize> {
    const PANIC: i32 = 101;
    Ok(match (status.code(), status.signal()) {
        (Some(INAPPLICABLE), _) => 0,
        (Some(PANIC), _) | (_, Some(libc::SIGABRT)) => 1,
        (Some(HARMLESS), _) => 2,
        (_, Some(libc::SIGXCPU | libc::SIGKILL)) => 4,
        (Some(SILENT), _) => 5,
        (None, Some(_)) => 3,
        (Some(code), _) => bail!("the process ended with status {code}"),
        (None, None) => bail!("the process ended without a status"),
    })
}

/// Misuses an allocator in this process, and ends it.
pub fn misuse_once(subject: &str, case: &str) -> Result<()> {
    lab::commit(case, || subjects::with(subject, Misused { subject }).context("there is no such subject")?)
}

/// Makes the program that misuses an allocator.
struct Misused<'a> {
    subject: &'a str,
}

impl Visitor for Misused<'_> {
    type Out = Result<Lab>;

    fn visit<S: Subject>(self) -> Result<Lab> {
        // The process ends without giving anything back.
        let memory = Box::leak(Box::new([Arena::new(ARENA)?, Arena::new(ARENA)?]));
        let make = |at: usize| -> Option<Box<dyn Allocator>> {
            // SAFETY: nothing else uses the arenas.
            Some(Box::new(Shared(UnsafeCell::new(unsafe { S::new(memory[at].whole()) }?))))
        };
        let allocator = make(0).context("the arena is too small")?;
        let other = if S::CONFINED { make(1) } else { None };
        let whole = memory[0].whole();
        let arena = S::CONFINED.then_some(Place { start: whole.start, size: whole.size });
        Ok(Lab::new(allocator, other, arena, subjects::is_shared(self.subject)))
    }
}

/// A subject that is called through a shared reference.
struct Shared<S>(UnsafeCell<Box<S>>);

impl<S: Subject> Allocator for Shared<S> {
    fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no request has size zero; where threads call at the same time, the subject has a lock.
        unsafe { Subject::alloc(&mut **self.0.get(), layout) }
    }

    fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as for `alloc`; none, if it is a misuse: that is what is tested, in a process that ends after it.
        unsafe { Subject::dealloc(&mut **self.0.get(), block, layout) }
    }

    fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`.
        unsafe { Subject::realloc(&mut **self.0.get(), block, layout, size) }
    }
}
