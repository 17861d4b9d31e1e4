//! `allotment plan --bench FOLDER`: plans all instances of a folder into one table, beside other planners.

mod page;
mod peers;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use allotment_planner::instances::{Collection, Entry};
use allotment_planner::model::Instance;
use allotment_planner::read::read_instance;
use allotment_planner::solve::{Options, solve};
use allotment_planner::validate::validate;
use serde::Serialize;

use super::{PlanArgs, PlanError, interruptible};
use crate::output::writable;
use crate::table;
use peers::{Peers, Result as PeerResult};

/// An instance of the folder.
struct Task {
    name: String,
    instance: Instance,
    /// The line of the folder's table, and its stored plan.
    known: Option<(Entry, Option<Vec<u64>>)>,
}

/// A line of the printed table, with sizes in bytes.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    buffers: usize,
    /// The best lower bound: the table's, or the search's.
    bound: u64,
    peak: u64,
    /// Distance of the peak above the bound, in percent.
    gap_percent: f64,
    /// The best peak in the folder's table.
    known: Option<u64>,
    /// Who found the plan shown.
    found_by: String,
    /// Seconds until the plan was found, and seconds of the whole search; `None` for a stored plan.
    found: Option<f64>,
    seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minimalloc: Option<PeerResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idealloc: Option<PeerResult>,
}

/// An instance without a line in the table, because its file or its stored plan is invalid.
#[derive(Debug, Serialize)]
struct Failed {
    name: String,
    error: String,
}

/// A line of the output as JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Row(&'a Row),
    Failed(&'a Failed),
}

/// Plans every instance of the folder `args.input`; returns true unless one failed or a search was interrupted.
pub(super) fn bench(args: &PlanArgs) -> Result<bool, PlanError> {
    let page = args.output.as_deref().map(check_page).transpose()?;
    let tasks = tasks(&args.input, args.stored)?;
    let peers = Peers::find(args)?;
    let options = args.options();
    interruptible(&options)?;
    let (mut rows, mut drawings, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let progress = !args.quiet && io::stderr().is_terminal();
    for (n, (name, read)) in tasks.iter().enumerate() {
        if progress {
            say!("{}/{}: {name}", n + 1, tasks.len());
        }
        // An error in one instance does not affect the others.
        let made = read().and_then(|task| {
            let (row, offsets) = match args.stored {
                true => stored(&task)?,
                false => searched(&task, &options, &peers)?,
            };
            Ok((row, page.map(|_| page::Drawing::new(&task.instance, &offsets))))
        });
        match made {
            Ok((row, drawing)) => {
                rows.push(row);
                drawings.extend(drawing);
            }
            Err(error) => {
                say!("allotment: {name}: {error}");
                failed.push(Failed { name: name.clone(), error: error.to_string() });
            }
        }
        if options.interrupt.load(Ordering::Relaxed) {
            say!("allotment: interrupted; {} of {} instances are in the table", rows.len(), tasks.len());
            break;
        }
    }
    let how = how(args);
    if let Some(path) = page {
        let left_out = failed.iter().map(|one| format!(" Not planned: {}: {}.", one.name, one.error));
        let how = how.clone() + &left_out.collect::<String>();
        crate::output::write(path, page::page(&rows, &drawings, &how)?)
            .map_err(|source| PlanError::Write { path: path.into(), source })?;
    }
    let mut out = crate::text::stdout();
    if args.json {
        let lines: Vec<Line> = rows.iter().map(Line::Row).chain(failed.iter().map(Line::Failed)).collect();
        crate::output::json(&mut out, &lines)?;
    } else {
        writeln!(out, "{}\n{how}", render(&rows, &peers))?;
    }
    Ok(failed.is_empty() && !options.interrupt.load(Ordering::Relaxed))
}

/// Returns a sentence about how the plans were made.
fn how(args: &PlanArgs) -> String {
    if args.stored {
        return "The stored plans.".into();
    }
    let options = args.options();
    let (limit, threads, seed) = (humantime::format_duration(options.time_limit), options.threads, args.seed);
    format!(
        "At most {limit} for each, {threads} threads, seed {seed}; others get the same time on one thread."
    )
}

fn check_page(path: &Path) -> Result<&Path, PlanError> {
    if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("html")) {
        return Err(PlanError::Option("--bench writes a page: name a file that ends in .html".into()));
    }
    writable(path).map_err(|source| PlanError::Write { path: path.into(), source })?;
    Ok(path)
}

/// The name of an instance, and the function that reads it.
type Reading = (String, Box<dyn Fn() -> Result<Task, PlanError>>);

/// Lists the instances in the folder's table or, without a table, its CSV files.
fn tasks(folder: &Path, stored: bool) -> Result<Vec<Reading>, PlanError> {
    let io = |source| PlanError::Write { path: folder.into(), source };
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(io)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, _>>()
        .map_err(io)?;
    if let Some(collection) = Collection::open(folder)? {
        let collection = Rc::new(collection);
        let task = |entry: &Entry| -> Reading {
            let (name, entry, collection) = (entry.name.clone(), entry.clone(), collection.clone());
            let read = move || {
                let (instance, plan) = (collection.instance(&entry)?, collection.plan(&entry)?);
                Ok(Task { name: entry.name.clone(), instance, known: Some((entry.clone(), plan)) })
            };
            (name, Box::new(read))
        };
        return Ok(collection.entries.iter().map(task).collect());
    }
    if stored {
        let missing = format!("{}: --stored needs a folder with the table instances.csv", folder.display());
        return Err(PlanError::Option(missing));
    }
    paths.retain(|path| path.is_file() && crate::output::endings(path).0 == "csv");
    paths.sort();
    if paths.is_empty() {
        let missing = format!("{}: it holds neither instances.csv nor any .csv", folder.display());
        return Err(PlanError::Option(missing));
    }
    let task = |path: PathBuf| -> Reading {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let own = name.clone();
        let read = move || Ok(Task { name: own.clone(), instance: read_instance(&path)?, known: None });
        (name, Box::new(read))
    };
    Ok(paths.into_iter().map(task).collect())
}

fn gap(peak: u64, bound: u64) -> f64 {
    (peak as f64 / bound.max(1) as f64 - 1.0) * 100.0
}

/// Returns the row of the stored plan, and its offsets.
fn stored(task: &Task) -> Result<(Row, Vec<u64>), PlanError> {
    let Some((entry, Some(offsets))) = &task.known else {
        return Err(PlanError::Option(format!("{}: no plan is stored", task.name)));
    };
    validate(&task.instance, offsets, None)?;
    let peak = task.instance.peak(offsets);
    let row = Row {
        name: task.name.clone(),
        buffers: task.instance.len(),
        bound: entry.bound,
        peak,
        gap_percent: gap(peak, entry.bound),
        known: Some(entry.peak),
        found_by: entry.found_by.clone(),
        found: None,
        seconds: None,
        minimalloc: None,
        idealloc: None,
    };
    Ok((row, offsets.clone()))
}

/// Plans the instance, and runs the other planners on it.
fn searched(task: &Task, options: &Options, peers: &Peers) -> Result<(Row, Vec<u64>), PlanError> {
    let solution = solve(&task.instance, options, None);
    validate(&task.instance, &solution.offsets, None)?;
    let known = task.known.as_ref().map(|(entry, _)| entry);
    let bound = known.map_or(0, |entry| entry.bound).max(solution.lower_bound);
    let seconds = |time: Duration| time.as_secs_f64();
    let row = Row {
        name: task.name.clone(),
        buffers: task.instance.len(),
        bound,
        peak: solution.peak,
        gap_percent: gap(solution.peak, bound),
        known: known.map(|entry| entry.peak),
        found_by: "allotment".into(),
        found: solution.history.last().map(|&(time, _)| seconds(time)),
        seconds: Some(seconds(solution.elapsed)),
        minimalloc: peers.minimalloc(&task.instance, solution.peak, options.time_limit)?,
        idealloc: peers.idealloc(&task.instance, options.time_limit)?,
    };
    Ok((row, solution.offsets))
}

fn render(rows: &[Row], peers: &Peers) -> String {
    let number = |number: Option<f64>| number.map_or("-".into(), |number| format!("{number:.2}"));
    let peer = |result: &Option<PeerResult>| result.as_ref().map_or("-".into(), ToString::to_string);
    let cells = rows.iter().map(|row| {
        [
            row.name.clone(),
            row.buffers.to_string(),
            row.bound.to_string(),
            row.peak.to_string(),
            if row.peak == row.bound { "optimal".into() } else { format!("{:+.3} %", row.gap_percent) },
            row.known.map_or("-".into(), |known| known.to_string()),
            number(row.found),
            number(row.seconds),
            peer(&row.minimalloc),
            peer(&row.idealloc),
        ]
    });
    let header = [
        "instance",
        "buffers",
        "bound, B",
        "peak, B",
        "gap",
        "best known, B",
        "found, s",
        "search, s",
        "MiniMalloc, to our peak",
        "idealloc",
    ];
    let text = table::render(header, cells, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    match peers.missing() {
        Some(missing) => format!("{text}\n{missing}"),
        None => text,
    }
}
