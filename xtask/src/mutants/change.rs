//! The changes that cargo-mutants proposes.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{child, firmware, tools};

/// A change of one place.
#[derive(Deserialize)]
pub struct Change {
    /// The file, line and column, and what is changed.
    pub name: String,
    pub file: String,
    pub genre: Genre,
    pub span: Span,
    pub replacement: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Genre {
    /// A function returns a value and does nothing.
    FnValue,
    BinaryOperator,
    /// The operator is left out.
    UnaryOperator,
    /// An arm is left out, so that the last one serves its values.
    MatchArm,
    MatchArmGuard,
    /// A field is left out, so that it has the value of the base.
    StructField,
}

#[derive(Deserialize)]
pub struct Span {
    pub start: Position,
    pub end: Position,
}

#[derive(Deserialize)]
pub struct Position {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl Position {
    /// Returns the position in bytes.
    pub fn offset(&self, text: &str) -> Option<usize> {
        let line = text.split_inclusive('\n').nth(self.line - 1)?;
        let start = line.as_ptr().addr() - text.as_ptr().addr();
        let column =
            line.char_indices().map(|(offset, _)| offset).chain([line.len()]).nth(self.column - 1)?;
        Some(start + column)
    }
}

/// Returns the changes in the files that the globs `files` name, or each Nth of them from the Kth on if `shard` is `K/N`.
///
/// # Errors
/// If cargo-mutants is missing, or fails.
pub fn list(files: &[&str], shard: Option<&str>) -> Result<Vec<Change>> {
    let mut cargo = child::command(tools::find("cargo").context("there is no `cargo`")?);
    cargo.current_dir(firmware::root()).args(["mutants", "--list", "--json", "--package", "allotment"]);
    for file in files {
        cargo.args(["--file", file]);
    }
    if let Some(shard) = shard {
        cargo.args(["--sharding", "round-robin", "--shard", shard]);
    }
    let text = child::stdout_of(&mut cargo).context("is cargo-mutants installed?")?;
    let changes: Vec<Change> = serde_json::from_str(&text).context("cargo-mutants lists something else")?;
    ensure!(!changes.is_empty(), "there is nothing to change");
    Ok(changes)
}

/// Returns a number that differs when the changes do, or the code that they are of.
pub fn fingerprint(changes: &[Change], code: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    changes.iter().for_each(|change| change.name.hash(&mut hasher));
    hasher.finish()
}

/// Takes out the changes that `tests/equivalent-mutants.txt` names, since they alter no result, and returns how many they were.
///
/// # Errors
/// If a file cannot be read, or the list has another form.
pub fn without_equivalent(changes: Vec<Change>) -> Result<(Vec<Change>, usize)> {
    let list = fs::read_to_string(firmware::root().join("tests/equivalent-mutants.txt"))?;
    let entries = equivalent(&list)?;
    let mut texts = HashMap::new();
    for change in &changes {
        if !texts.contains_key(&change.file) {
            texts.insert(change.file.clone(), fs::read_to_string(firmware::root().join(&change.file))?);
        }
    }
    let all = changes.len();
    let left: Vec<_> =
        changes.into_iter().filter(|change| !entries.contains(&change.place(&texts[&change.file]))).collect();
    let equivalent = all - left.len();
    Ok((left, equivalent))
}

/// Reads a list of changes: the name of each without line and column, the line that is changed, and the reason, with a blank line
/// before the next. If a line has several such changes, all are meant.
fn equivalent(list: &str) -> Result<Vec<(String, &str)>> {
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

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A change of `len` bytes at a byte of one line.
    pub fn change(genre: Genre, at: usize, len: usize, replacement: &str) -> Change {
        let position = |offset| Position { line: 1, column: offset + 1 };
        Change {
            name: format!("a.rs:1:{}: a change", at + 1),
            file: "a.rs".into(),
            genre,
            span: Span { start: position(at), end: position(at + len) },
            replacement: replacement.into(),
        }
    }

    #[test]
    fn positions_are_in_characters() {
        let text = "one\näb\n";
        let offset = |line, column| Position { line, column }.offset(text);
        assert_eq!(offset(1, 1), Some(0));
        assert_eq!(offset(2, 2), Some(6));
        assert_eq!(offset(2, 4), Some(8), "the end of the line");
        assert_eq!(offset(4, 1), None);
    }

    #[test]
    fn equivalent_changes_are_named_by_their_text() {
        let change = change(Genre::BinaryOperator, 6, 1, "-");
        let list = "# why\n\na.rs: a change\n    one + two\n    It only costs time.\n";
        let entries = equivalent(list).unwrap();
        assert!(entries.contains(&change.place("  one + two\n")));
        assert!(!entries.contains(&change.place("one + three\n")));
        assert!(equivalent("a.rs: a change\n    one + two").is_err(), "no reason");
    }
}
