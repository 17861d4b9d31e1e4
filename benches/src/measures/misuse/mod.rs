//! What allocators do when a program misuses them: every misuse against every allocator, in processes of their own.

mod cases;
mod lab;
mod subjects;

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Measure, Options, parallel};
use crate::report::{Better, Table};
use crate::results::{Results, Row};
use crate::subjects::{Subject, Visitor};

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

/// The outcomes, as they are written in the table. The first one stands for cases that do not apply.
const WORDS: &[&str] = &["·", "found", "no harm", "crash", "hang", "**silent**"];

/// How a child process tells its parent that a live block was changed or handed out twice.
const SILENT: i32 = 10;
/// How a child process tells that nothing happened.
const HARMLESS: i32 = 11;
/// How a child process tells that the case does not apply.
const INAPPLICABLE: i32 = 12;

/// Seconds of processor time that a child process may take.
const LIMIT: u64 = 2;

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
                 changed, and no report came. `Off`, `Basic` and `Full` are allotment's levels; `Basic` is the default.",
                cases::ALL.len()
            ),
            metric: COUNT,
            ..common.clone()
        },
        Table {
            title: "Each misuse",
            text: "*·*: does not apply, for instance a free of memory beside the arena of an allocator that has none.".into(),
            metric: OUTCOME,
            transposed: true,
            words: WORDS,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let jobs: Vec<(&str, &str)> = subjects::NAMES
        .iter()
        .flat_map(|&subject| cases::ALL.iter().map(move |case| (subject, case.name)))
        .collect();
    let jobs = &jobs[..options.pick(jobs.len(), cases::ALL.len())];
    let outcomes = parallel(jobs, |&(subject, case)| attempt(subject, case));
    let mut rows = Vec::new();
    for (&(subject, case), outcome) in jobs.iter().zip(outcomes) {
        let outcome = outcome.with_context(|| format!("{case} with {subject}"))?;
        rows.push(Row::new(case, subject, OUTCOME, outcome as f64));
    }
    for subject in subjects::NAMES {
        for (number, word) in WORDS.iter().enumerate().skip(1) {
            let count = |row: &&Row| row.subject == *subject && row.value == number as f64;
            let count = rows.iter().filter(|row| row.metric == OUTCOME).filter(count).count();
            rows.push(Row::new(word.trim_matches('*'), *subject, COUNT, count as f64));
        }
    }
    Ok(rows)
}

/// Lets a child process misuse an allocator. Returns the outcome, a place in [`WORDS`].
fn attempt(subject: &str, case: &str) -> Result<usize> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["misuse", subject, case])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
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
    for (resource, most) in [(libc::RLIMIT_CPU, LIMIT), (libc::RLIMIT_CORE, 0)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most + 1 };
        // SAFETY: a valid limit of this process.
        unsafe { libc::setrlimit(resource, &limit) };
    }
    let case = cases::ALL.iter().find(|known| known.name == case).context("there is no such misuse")?;
    let outcome = subjects::with(subject, Misused { case }).context("there is no such subject")??;
    // No destructors: the heap may be damaged.
    // SAFETY: nothing is left to do.
    unsafe { libc::_exit(outcome) }
}

/// Runs one case.
struct Misused {
    case: &'static cases::Case,
}

impl Visitor for Misused {
    type Out = Result<i32>;

    fn visit<S: Subject>(self) -> Result<i32> {
        let mut lab = lab::Lab::<dyn lab::Allocator>::new::<S>()?;
        if !(self.case.run)(&mut lab) {
            return Ok(INAPPLICABLE);
        }
        Ok(if lab.aftermath() { HARMLESS } else { SILENT })
    }
}
