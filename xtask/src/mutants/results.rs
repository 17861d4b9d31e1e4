//! What came of each change, in a file, so that a run that was interrupted goes on where it was.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// The share of the changes that have to be noticed, in percent.
const LEAST: usize = 95;

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// By this test.
    Noticed(String),
    Missed,
    /// It does not compile.
    Refused,
    /// It is in code for another system.
    Elsewhere,
}

impl Fate {
    fn text(&self) -> String {
        match self {
            Self::Noticed(by) => format!("noticed by {by}"),
            Self::Missed => "missed".into(),
            Self::Refused => "does not compile".into(),
            Self::Elsewhere => "not compiled here".into(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "missed" => Self::Missed,
            "does not compile" => Self::Refused,
            "not compiled here" => Self::Elsewhere,
            _ => Self::Noticed(text.strip_prefix("noticed by ")?.into()),
        })
    }
}

pub struct Results {
    file: File,
    fates: HashMap<String, Fate>,
}

impl Results {
    /// Reads the results that a file has so far.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).unwrap_or_default();
        let file = OpenOptions::new().create(true).append(true).open(path).context("the file of results")?;
        Ok(Self { file, fates: text.lines().filter_map(read).collect() })
    }

    /// Notes what came of a change.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn note(&mut self, name: &str, fate: Fate) -> Result<()> {
        writeln!(self.file, "{name}\t{}", fate.text())?;
        self.fates.insert(name.into(), fate);
        Ok(())
    }

    pub fn of(&self, name: &str) -> Option<&Fate> {
        self.fates.get(name)
    }
}

fn read(line: &str) -> Option<(String, Fate)> {
    let (name, fate) = line.split_once('\t')?;
    Some((name.into(), Fate::parse(fate)?))
}

/// How many changes came to what.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub noticed: usize,
    pub missed: usize,
    pub refused: usize,
    pub elsewhere: usize,
}

impl Counts {
    pub fn of<'a>(fates: impl Iterator<Item = &'a Fate>) -> Self {
        let mut counts = Self::default();
        for fate in fates {
            *match fate {
                Fate::Noticed(_) => &mut counts.noticed,
                Fate::Missed => &mut counts.missed,
                Fate::Refused => &mut counts.refused,
                Fate::Elsewhere => &mut counts.elsewhere,
            } += 1;
        }
        counts
    }

    /// Returns whether there were changes, and enough of them were noticed.
    pub fn suffice(&self) -> bool {
        let all = self.noticed + self.missed;
        all > 0 && self.noticed * 100 >= all * LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.txt");
        let fates = [Fate::Noticed("core a".into()), Fate::Missed, Fate::Refused, Fate::Elsewhere];
        let mut results = Results::open(&path).unwrap();
        for (number, fate) in fates.iter().enumerate() {
            results.note(&number.to_string(), fate.clone()).unwrap();
        }
        let again = Results::open(&path).unwrap();
        for (number, fate) in fates.iter().enumerate() {
            assert_eq!(again.of(&number.to_string()), Some(fate));
        }
        assert_eq!(again.of("another"), None);
    }

    #[test]
    fn changes_are_counted() {
        assert!(!Counts::default().suffice(), "no change was made");
        let mut fates = vec![Fate::Noticed("core a".into()); 19];
        fates.extend([Fate::Missed, Fate::Refused, Fate::Elsewhere]);
        let counts = Counts::of(fates.iter());
        assert_eq!(counts, Counts { noticed: 19, missed: 1, refused: 1, elsewhere: 1 });
        assert!(counts.suffice(), "95 %");
        assert!(!Counts { missed: 2, ..counts }.suffice());
    }
}
