//! `cargo xtask mutants`: how many small changes of the library's code its tests notice, as cargo-mutants tries them one after the other.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{child, firmware};

/// The code that is changed if no file is named.
const FILES: [&str; 8] = [
    "src/units/mod.rs",
    "src/region/**",
    "src/placement/**",
    "src/harden/**",
    "src/heap/**",
    "src/os/**",
    "src/pool/**",
    "src/gpu/**",
];

/// Features of the tests: all but those that need another compiler, tool or linker script.
const FEATURES: &str = "gpu,lock_api,allocator-api2,linked-list,buddy-system,backtrace,serde";

/// The share of the changes that have to be noticed, in percent.
const LEAST: usize = 95;

/// What to change.
#[derive(clap::Args)]
pub struct Options {
    /// Only code in these files, as globs [default: regions, placements, levels, heaps, caches, pools and GPUs]
    #[arg(long = "file", value_name = "GLOB")]
    files: Vec<String>,
    /// Only every Nth change, from the Kth on, such as 0/8
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
}

/// A change that cargo-mutants proposes.
#[derive(Deserialize)]
struct Change {
    /// The file, line and column, and what is changed.
    name: String,
    file: String,
    span: Span,
}

#[derive(Deserialize)]
struct Span {
    start: Start,
}

#[derive(Deserialize)]
struct Start {
    /// From 1.
    line: usize,
}

/// What came of the changes.
#[derive(Deserialize)]
struct Counts {
    caught: usize,
    missed: usize,
    timeout: usize,
    /// Those that do not compile.
    unviable: usize,
}

/// Runs the tests with each change, names the changes that no test notices, and fails if they are too many.
///
/// # Errors
/// If cargo-mutants is missing, or the tests fail without any change.
pub fn run(options: &Options) -> Result<ExitCode> {
    let folder = firmware::root().join("target/mutants");
    let listed = child::stdout_of(mutants(options).args(["--list", "--json"]));
    let changes: Vec<Change> = serde_json::from_str(&listed.context("is cargo-mutants installed?")?)?;
    let equivalent = equivalent(&changes)?;
    let mut command = mutants(options);
    command
        .args(["--sharding", "round-robin"])
        .args(options.shard.iter().flat_map(|shard| ["--shard", shard]));
    for name in &equivalent {
        command.args(["--exclude-re", &format!("^{}$", escaped(name))]);
    }
    // Programs end in time or hang; lints are not what is tried.
    command.args(["--minimum-test-timeout", "60", "--cap-lints=true", "--features", FEATURES]);
    command.args(["--cargo-arg=--tests", "--output"]).arg(&folder);
    fs::create_dir_all(&folder)?;
    // It fails if one change is missed.
    command.status().context("cargo-mutants does not start")?;
    let outcomes = fs::read(folder.join("mutants.out/outcomes.json")).context("no change was tried")?;
    let Counts { caught, missed, timeout, unviable } = serde_json::from_slice(&outcomes)?;
    let (noticed, all) = (caught + timeout, caught + timeout + missed);
    println!(
        "{noticed} of {all} changes noticed; not counted: {unviable} that do not compile, {} that alter no result",
        equivalent.len()
    );
    let suffices = all > 0 && noticed * 100 >= all * LEAST;
    Ok(if suffices { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// cargo-mutants on the chosen files.
fn mutants(options: &Options) -> Command {
    let mut command = child::cargo(firmware::root(), "mutants --package allotment");
    let named = options.files.iter().map(String::as_str);
    let all = FILES.into_iter().filter(|_| options.files.is_empty());
    command.args(named.chain(all).flat_map(|file| ["--file", file]));
    command
}

/// Returns the names of the changes that `tests/equivalent-mutants.txt` names, since they alter no result.
fn equivalent(changes: &[Change]) -> Result<Vec<&str>> {
    let read = |name: &str| {
        let path = firmware::root().join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let list = read("tests/equivalent-mutants.txt")?;
    let entries = entries(&list)?;
    let mut texts: HashMap<&Path, String> = HashMap::new();
    let mut found = Vec::new();
    for change in changes {
        let file = Path::new(&change.file);
        if !texts.contains_key(file) {
            texts.insert(file, read(&change.file)?);
        }
        if entries.contains(&change.place(&texts[file])) {
            found.push(&*change.name);
        }
    }
    Ok(found)
}

/// Reads a list of changes: the name of each without line and column, the line that is changed, and the reason, with a blank line
/// before the next. If a line has several such changes, all are meant.
fn entries(list: &str) -> Result<Vec<(String, &str)>> {
    let entries =
        list.split("\n\n").map(str::trim).filter(|entry| !entry.is_empty() && !entry.starts_with('#'));
    entries
        .map(|entry| {
            let lines: Vec<&str> = entry.lines().map(str::trim).collect();
            ensure!(lines.len() >= 3, "a name, a line and a reason are wanted: {entry}");
            Ok((lines[0].to_owned(), lines[1]))
        })
        .collect()
}

impl Change {
    /// Returns the name without line and column, and the line of the file's `text` that is changed.
    fn place<'a>(&self, text: &'a str) -> (String, &'a str) {
        let line = text.lines().nth(self.span.start.line - 1).unwrap_or_default();
        let what = self.name.split_once(": ").map_or("", |(_, what)| what);
        (format!("{}: {what}", self.file), line.trim())
    }
}

/// A regular expression for a text.
fn escaped(text: &str) -> String {
    let escape = |letter| r"\.+*?()|[]{}^$".contains(letter).then_some('\\').into_iter().chain([letter]);
    text.chars().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_changes_are_named_by_their_text() {
        let name = "a.rs:1:7: a change".into();
        let change = Change { name, file: "a.rs".into(), span: Span { start: Start { line: 1 } } };
        let list = "# why\n\na.rs: a change\n    one + two\n    It only costs time.\n";
        let entries = entries(list).unwrap();
        assert!(entries.contains(&change.place("  one + two\n")));
        assert!(!entries.contains(&change.place("one + three\n")));
        assert!(super::entries("a.rs: a change\n    one + two").is_err(), "no reason");
        assert_eq!(escaped("a.rs:1: replace + in <A as B>"), r"a\.rs:1: replace \+ in <A as B>");
    }
}
