//! Static planning: the planner's targets, and its tables next to its peers.
//!
//! `cargo xtask plan` runs this. Each part writes one page `results/plan/PART.csv` and its lines of
//! `results/plan/targets.csv`; parts that are not run keep their last results. Peers are not part of the project:
//! the caller passes paths to their programs, and for missing ones the tables show reference figures from another
//! machine, or nothing.

mod alone;
mod compile;
#[path = "../../../planner/tests/common/generate.rs"]
mod generate;
mod large;
mod made;
mod models;
mod open;
mod packings;
mod recorded;
mod rectangles;
mod run;
mod torch;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use allotment_common::page;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::origin;

/// What to measure, and where to find the peers and the instances.
#[derive(clap::Args)]
pub struct Args {
    /// Folder with the subfolders `minimalloc`, `idealloc`, `tflm` and `torch` of CSV instances; not needed for
    /// instances in the planner's test data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Folder with `.tflite` files
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// MiniMalloc's program
    #[arg(long, value_name = "BIN")]
    minimalloc: Option<PathBuf>,
    /// idealloc's program
    #[arg(long, value_name = "BIN")]
    idealloc: Option<PathBuf>,
    /// One large instance by itself, so that its memory can be told from the others'
    #[arg(long, hide = true, value_name = "NAME")]
    alone: Option<String>,
    /// Parts to run; all if none is named
    #[arg(value_name = "PART")]
    parts: Vec<String>,
}

/// A target and its outcome.
#[derive(Clone, Serialize, Deserialize)]
struct Target {
    part: String,
    target: String,
    measured: String,
    met: String,
    /// The reason for a miss.
    reason: String,
}

/// The findings of a part.
#[derive(Default)]
struct Findings {
    text: String,
    targets: Vec<Target>,
}

impl Findings {
    fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    /// Adds a target; `reason` is kept if the target is missed.
    fn target(&mut self, target: &str, measured: impl Into<String>, met: bool, reason: &str) {
        let (met, reason) = if met { ("met", "") } else { ("**missed**", reason) };
        let (target, measured) = (target.into(), measured.into());
        self.targets.push(Target {
            part: String::new(),
            target,
            measured,
            met: met.into(),
            reason: reason.into(),
        });
    }
}

/// A page of the tables.
struct Part {
    name: &'static str,
    title: &'static str,
    run: fn(&Args) -> Result<Findings>,
}

const PARTS: [Part; 10] = [
    Part {
        name: "fit",
        title: "MiniMalloc's challenging instances: time to a fit of 1 MiB",
        run: rectangles::fit,
    },
    Part {
        name: "minimum",
        title: "MiniMalloc's challenging instances, minimised",
        run: rectangles::minimum,
    },
    Part { name: "packings", title: "Perfect packings", run: packings::packings },
    Part { name: "large", title: "Large instances, and growth", run: large::large },
    Part { name: "open", title: "Alignments, gaps and pairs, ten million buffers", run: open::open },
    Part { name: "tflm", title: "TensorFlow Lite Micro's models", run: models::tflm },
    Part { name: "onnx", title: "ONNX models", run: models::onnx },
    Part { name: "torch", title: "PyTorch's training and generation", run: torch::torch },
    Part { name: "recorded", title: "Recorded plans", run: recorded::recorded },
    Part { name: "compile", title: "Compile time of plans in a `const`", run: compile::compile },
];

/// Runs the requested parts. Writes their pages, and their section of the report, below `home`.
pub fn run(args: &Args, home: &Path) -> Result<()> {
    let folder = &home.join("results/plan");
    if let Some(name) = &args.alone {
        return alone::alone(args, name);
    }
    if let Some(unknown) = args.parts.iter().find(|name| PARTS.iter().all(|part| part.name != **name)) {
        let names: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        bail!("there is no part {unknown:?}; there are {}", names.join(", "));
    }
    fs::create_dir_all(folder)?;
    for part in PARTS {
        if !args.parts.is_empty() && !args.parts.iter().any(|name| name == part.name) {
            continue;
        }
        let start = Instant::now();
        eprint!("{}: {} ... ", part.name, part.title);
        let mut found = (part.run)(args).with_context(|| format!("part {}", part.name))?;
        found.targets.iter_mut().for_each(|target| target.part = part.name.into());
        let mut page = format!("### {}\n\n", part.title);
        for line in origin::describe_plan(part.name) {
            writeln!(page, "* {line}")?;
        }
        write!(page, "\n{}", found.text)?;
        fs::write(folder.join(part.name).with_extension("csv"), page::from_markdown(&page))?;
        remember(folder, part.name, found.targets)?;
        update(folder, &home.join("RESULTS.md"))?;
        eprintln!("{:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn targets(folder: &Path) -> Result<Vec<Target>> {
    let path = folder.join("targets.csv");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let mut reader = csv::Reader::from_path(&path)?;
    reader.deserialize().collect::<Result<_, _>>().with_context(|| format!("in {}", path.display()))
}

/// Replaces the lines of one part.
fn remember(folder: &Path, part: &str, new: Vec<Target>) -> Result<()> {
    let mut lines = targets(folder)?;
    lines.retain(|line| line.part != part);
    lines.extend(new);
    let place = |line: &Target| PARTS.iter().position(|part| part.name == line.part);
    lines.sort_by_key(place);
    let mut writer = csv::Writer::from_path(folder.join("targets.csv"))?;
    lines.iter().try_for_each(|line| writer.serialize(line))?;
    Ok(writer.flush()?)
}

/// Replaces the section in a report and leaves the rest unchanged, since the program may have been built without
/// some peers.
fn update(folder: &Path, report: &Path) -> Result<()> {
    let text = fs::read_to_string(report).with_context(|| report.display().to_string())?;
    fs::write(report, splice(&text, &section(folder)?)).with_context(|| report.display().to_string())
}

/// Replaces the old section, or inserts the new one before the final sections.
fn splice(text: &str, section: &str) -> String {
    const HEAD: &str = "\n## Static planning\n";
    let next = |from: usize| text[from..].find("\n## ").map_or(text.len(), |at| from + at);
    let (start, end) = match text.find(HEAD) {
        Some(start) => (start, next(start + HEAD.len())),
        None => {
            let start = text.find("\n## Targets on hosts").unwrap_or(text.len());
            (start, start)
        }
    };
    [&text[..start], section, &text[end..]].concat()
}

/// All targets with their reasons.
pub fn table(folder: &Path) -> Result<String> {
    let mut text = String::from(
        "## Targets of static planning\n\n| part | target | measured | | why missed |\n| --- | --- | --- | --- | --- |\n",
    );
    for Target { part, target, measured, met, reason } in &targets(folder)? {
        writeln!(text, "| `{part}` | {target} | {measured} | {met} | {reason} |")?;
    }
    Ok(text)
}

/// The section of `RESULTS.md`; empty if nothing was measured.
pub fn section(folder: &Path) -> Result<String> {
    let lines = targets(folder)?;
    if lines.is_empty() {
        return Ok(String::new());
    }
    let met = lines.iter().filter(|line| line.met == "met").count();
    let mut text = format!(
        "\n## Static planning\n\n`cargo xtask plan`, beside MiniMalloc, idealloc and the planners of TFLite, TFLite Micro and TVM: \
         {met} of {} targets are met. Tables: `planning` for all of them, one for each part, and `collection` and `small-graphs`.\n\n\
         | part | target | measured | |\n|---|---|---|---|\n",
        lines.len()
    );
    for part in &PARTS {
        let of_part = || lines.iter().filter(|line| line.part == part.name);
        // The first target of each part, and whatever is missed.
        let shown = of_part().enumerate().filter(|(at, line)| *at == 0 || line.met != "met");
        for (_, Target { part, target, measured, met, .. }) in shown {
            writeln!(text, "| `{part}` | {target} | {measured} | {met} |")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::splice;

    #[test]
    fn the_section_is_put_in_and_replaced() {
        let report = "# Results\n\n## One\n\n1\n\n## Targets on hosts\n\nall\n";
        let section = "\n## Static planning\n\n### Targets\n";
        let once = splice(report, section);
        assert_eq!(
            once,
            "# Results\n\n## One\n\n1\n\n## Static planning\n\n### Targets\n\n## Targets on hosts\n\nall\n"
        );
        assert_eq!(splice(&once, section), once);
        assert_eq!(splice(&once, ""), report);
        assert_eq!(splice("# Results\n", section), "# Results\n\n## Static planning\n\n### Targets\n");
    }
}
