//! Instructions per operation, counted by callgrind, without those of the harness.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Measure, Options, is_slow_twin, parallel, serves, subjects};
use crate::arena::Arena;
use crate::replay;
use crate::results::{Results, Row};
use crate::statistics::mean;
use crate::subjects::{LOADING, NULL, Subject, Visitor, isolated};
use crate::table::{Better, Table};
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

/// The metric of [`count_with_branches`].
pub const MISPREDICTED: &str = "mispredicted branches per pair, simulated";

/// The instructions of the harness itself, according to [`NULL`] and [`LOADING`].
const HARNESS: &str = "harness, instructions per operation";

fn run(options: &Options) -> Result<Vec<Row>> {
    count(options, &countable(), options.traces()?)
}

/// Returns the subjects that callgrind can run. snmalloc reserves more address space at once than valgrind has.
pub fn countable() -> Vec<&'static str> {
    subjects(|entry| entry.id != "snmalloc" && !is_slow_twin(entry)).iter().map(|entry| entry.id).collect()
}

fn tables(results: &Results) -> Vec<Table> {
    let text = format!(
        "Callgrind counts the instructions of a whole replay; the harness' own are subtracted; the rest is divided by the \
         number of operations (allocations, frees and reallocations, copying included). Arena 1.5 x the peak of live \
         bytes. Repeatable to the instruction for a given binary. {}",
        harness(results)
    );
    let table = Table {
        title: "Instructions per operation",
        text,
        metric: METRIC,
        better: Better::Lower,
        digits: 1,
        plot: Some("instructions"),
        level: true,
        by_form: true,
        ..Table::default()
    };
    table.by_set()
}

/// Describes the cost of the harness in words.
pub fn harness(results: &Results) -> String {
    let of = |subject| {
        let counts = results.rows.iter().filter(|row| row.metric == HARNESS && row.subject == subject);
        mean(&counts.map(|row| row.value).collect::<Vec<_>>())
    };
    let (null, loading) = (of(NULL), of(LOADING));
    format!(
        "Of the harness, {null:.1} instructions per operation are the loop and its calls, measured with a subject that does \
         nothing, and {:.1} load the arguments, measured with one that does nothing with them; both are subtracted.",
        loading - null
    )
}

/// Counts instructions for every matching subject and trace, and those of the harness on each trace.
pub fn count(options: &Options, ids: &[&str], traces: &[Trace]) -> Result<Vec<Row>> {
    count_events(options, ids, traces, false)
}

/// The same, and the branches that callgrind's simulated predictor gets wrong, per pair of operations.
pub fn count_with_branches(options: &Options, ids: &[&str], traces: &[Trace]) -> Result<Vec<Row>> {
    count_events(options, ids, traces, true)
}

fn count_events(options: &Options, ids: &[&str], traces: &[Trace], branches: bool) -> Result<Vec<Row>> {
    let mut jobs = Vec::new();
    for trace in traces {
        trace.save(&file(options, trace))?;
        for &id in [NULL, LOADING].iter().chain(ids) {
            if crate::subjects::entry(id).is_none_or(|entry| serves(entry, trace.arena())) {
                jobs.push((id, trace));
            }
        }
    }
    let numbered: Vec<_> = jobs.iter().enumerate().collect();
    let counts =
        parallel(&numbered, |&(number, &(id, trace))| callgrind(options, number, id, trace, branches));
    let mut by_job = BTreeMap::new();
    for (&(id, trace), count) in jobs.iter().zip(counts) {
        by_job.insert((id, trace.name.as_str()), count.with_context(|| format!("{id} on {}", trace.name))?);
    }
    let mut rows = Vec::new();
    for &(id, trace) in &jobs {
        let of = |id| &by_job[&(id, trace.name.as_str())];
        let per_operation = |count: f64| count / trace.ops.len() as f64;
        let (own, harness) = (of(id), of(LOADING));
        if matches!(id, NULL | LOADING) {
            rows.push(Row::new(&trace.name, id, HARNESS, per_operation(own.instructions)));
            continue;
        }
        let instructions = per_operation(own.instructions - harness.instructions);
        rows.push(Row::new(&trace.name, id, METRIC, instructions));
        if branches {
            let pairs = 2.0 * per_operation(own.mispredicted - harness.mispredicted);
            rows.push(Row::new(&trace.name, id, MISPREDICTED, pairs));
        }
    }
    Ok(rows)
}

/// What callgrind counts.
struct Events {
    instructions: f64,
    /// Conditional and indirect branches together; none if they are not simulated.
    mispredicted: f64,
}

fn file(options: &Options, trace: &Trace) -> std::path::PathBuf {
    options.scratch.join(&trace.name).with_extension("ops")
}

/// Counts the events of [`replay::measured_loop`] in a separate process.
fn callgrind(options: &Options, number: usize, id: &str, trace: &Trace, branches: bool) -> Result<Events> {
    let counts = options.scratch.join(format!("{number}.callgrind"));
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*replay::measured_loop*"])
        .args(branches.then_some("--branch-sim=yes"))
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(std::env::current_exe()?)
        .args(["replay", id])
        .arg(file(options, trace))
        .stdin(Stdio::null());
    let output = command.output().context("valgrind does not start; it must be installed")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&counts)?;
    fs::remove_file(&counts)?;
    let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let names = line("events: ").context("callgrind's file does not name its events")?;
    let totals = line("totals: ").or(line("summary: ")).context("callgrind's file has no total")?;
    let totals = totals.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let of = |event| {
        let place = names.split_whitespace().position(|name| name == event);
        place.and_then(|place| totals.get(place)).map_or(0.0, |&count| count as f64)
    };
    ensure!(of("Ir") > 0.0, "callgrind did not see the loop");
    Ok(Events { instructions: of("Ir"), mispredicted: of("Bcm") + of("Bim") })
}

/// Runs in the process under callgrind.
pub fn replay_once(id: &str, file: &Path) -> Result<()> {
    struct Once(Trace);
    impl Visitor for Once {
        type Out = Result<()>;
        fn visit<S: Subject>(self) -> Self::Out {
            let Self(trace) = self;
            let arena = Arena::new(trace.arena())?;
            let failed = isolated::<S, _>(|| {
                let mut blocks = replay::table(&trace);
                // SAFETY: the arena is ours and outlives the subject; the table is the trace's.
                unsafe {
                    let mut subject = S::new(arena.whole()).context("the arena is too small")?;
                    anyhow::Ok(replay::measured_loop(&mut *subject, &mut blocks, &trace.ops))
                }
            })?;
            if failed > 0 {
                eprintln!("{failed} of {} operations were not served", trace.ops.len());
            }
            Ok(())
        }
    }
    let trace = Trace::load(file)?;
    // The subjects of the hardening levels are that measure's own.
    match super::misuse::with(id, Once(trace)) {
        Some(outcome) => outcome,
        None => bail!("there is no subject {id:?}"),
    }
}
