//! Instructions per operation, counted by callgrind, with those of the harness subtracted.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Measure, Options, parallel, serves, subjects};
use crate::arena::Arena;
use crate::replay;
use crate::report::{Better, Table};
use crate::results::{Results, Row};
use crate::subjects::{NULL, Subject, Visitor, with};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "instructions",
    about: "instructions per operation over the traces, arena 1.5 x peak",
    run,
    tables,
};

/// The metric.
pub const METRIC: &str = "instructions per operation";

fn run(options: &Options) -> Result<Vec<Row>> {
    count(options, &countable(), options.traces()?)
}

/// The subjects that callgrind can run: snmalloc reserves more address space at once than valgrind has.
pub fn countable() -> Vec<&'static str> {
    subjects(|entry| entry.id != "snmalloc").iter().map(|entry| entry.id).collect()
}

fn tables(_: &Results) -> Vec<Table> {
    vec![Table {
        title: "Instructions per operation",
        text: "Callgrind counts the instructions of a whole replay; those of a replay on a subject that does \
               nothing are subtracted; the rest is divided by the number of operations (allocations, frees and \
               reallocations, copying included). Arena 1.5 x the peak of live bytes. Repeatable to the \
               instruction for a given binary."
            .into(),
        metric: METRIC,
        better: Better::Lower,
        mean: true,
        digits: 1,
        plot: Some("instructions"),
        level: true,
        ..Table::default()
    }]
}

/// Counts for every subject and trace that go together.
pub fn count(options: &Options, ids: &[&str], traces: &[Trace]) -> Result<Vec<Row>> {
    let mut jobs = Vec::new();
    for trace in traces {
        trace.save(&file(options, trace))?;
        for &id in [NULL].iter().chain(ids) {
            if crate::subjects::entry(id).is_none_or(|entry| serves(entry, trace.arena())) {
                jobs.push((id, trace));
            }
        }
    }
    let counts = parallel(&jobs, |&(id, trace)| callgrind(options, id, trace));
    let mut by_job = BTreeMap::new();
    for (&(id, trace), count) in jobs.iter().zip(counts) {
        by_job.insert((id, trace.name.as_str()), count.with_context(|| format!("{id} on {}", trace.name))?);
    }
    let mut rows = Vec::new();
    for &(id, trace) in jobs.iter().filter(|job| job.0 != NULL) {
        let [own, null] = [id, NULL].map(|id| by_job[&(id, trace.name.as_str())]);
        let value = (own as f64 - null as f64) / trace.ops.len() as f64;
        rows.push(Row::new(&trace.name, id, METRIC, value));
    }
    Ok(rows)
}

fn file(options: &Options, trace: &Trace) -> std::path::PathBuf {
    options.scratch.join(&trace.name).with_extension("ops")
}

/// The instructions of [`replay::measured_loop`] in a process of its own.
fn callgrind(options: &Options, id: &str, trace: &Trace) -> Result<u64> {
    let counts = options.scratch.join(format!("{id}.{}.callgrind", trace.name));
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*replay::measured_loop*"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(std::env::current_exe()?)
        .args(["replay", id])
        .arg(file(options, trace))
        .stdin(Stdio::null());
    let output = command.output().context("valgrind does not start; it must be installed")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&counts)?;
    fs::remove_file(&counts)?;
    let total =
        text.lines().find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    let total: u64 = total.context("callgrind's file has no total")?.trim().parse()?;
    ensure!(total > 0, "callgrind did not see the loop");
    Ok(total)
}

/// What the process under callgrind does.
pub fn replay_once(id: &str, file: &Path) -> Result<()> {
    struct Once(Trace);
    impl Visitor for Once {
        type Out = Result<()>;
        fn visit<S: Subject>(self) -> Self::Out {
            let Self(trace) = self;
            let arena = Arena::new(trace.arena())?;
            let mut blocks = replay::table(&trace);
            // SAFETY: the arena is ours and outlives the subject; the table is the trace's.
            let failed = unsafe {
                let mut subject = S::new(arena.whole()).context("the arena is too small")?;
                replay::measured_loop(&mut *subject, &mut blocks, &trace.ops)
            };
            if failed > 0 {
                eprintln!("{failed} of {} operations were not served", trace.ops.len());
            }
            Ok(())
        }
    }
    let trace = Trace::load(file)?;
    match with(id, Once(trace)) {
        Some(outcome) => outcome,
        None => bail!("there is no subject {id:?}"),
    }
}
