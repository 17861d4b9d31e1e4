//! Results: one CSV file per measure, whose first lines say where it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured: the name of a trace or a size of the arena.
    pub case: String,
    /// The subject's id.
    pub subject: String,
    /// Which of the measure's figures this is.
    pub metric: String,
    /// The figure.
    pub value: f64,
}

impl Row {
    /// Makes a row.
    pub fn new(
        case: impl Into<String>,
        subject: impl Into<String>,
        metric: impl Into<String>,
        value: f64,
    ) -> Self {
        Self { case: case.into(), subject: subject.into(), metric: metric.into(), value }
    }
}

/// What the lines begin with that say from which commits figures are that a run has not measured.
const EARLIER: &str = "from an earlier run of the same command, at ";

/// The figures of one measure, and where they come from.
pub struct Results {
    /// Machine, versions and command, one line each.
    pub origin: Vec<String>,
    /// The figures in the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Results {
    /// Returns the figure for a case and a subject.
    pub fn get(&self, metric: &str, case: &str, subject: &str) -> Option<f64> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.metric == metric && row.case == case && row.subject == subject)
            .map(|row| row.value)
    }

    /// Takes the figures of subjects that this run did not measure from an earlier one.
    pub fn complete(&mut self, last: Self) {
        let measured: BTreeSet<&String> = self.rows.iter().map(|row| &row.subject).collect();
        let missing: Vec<Row> =
            last.rows.into_iter().filter(|row| !measured.contains(&row.subject)).collect();
        let versions = last.origin.iter().find_map(|line| line.rsplit_once("; allotment at "));
        let revision = versions.map_or("an unknown commit", |(_, revision)| revision);
        // That run may have taken some of them from one before it.
        let mut revisions = BTreeMap::new();
        for (revision, names) in
            last.origin.iter().filter_map(|line| line.strip_prefix(EARLIER)?.split_once(": "))
        {
            revisions.extend(names.split("; ").map(|name| (name, revision)));
        }
        let subjects: BTreeSet<&str> = missing.iter().map(|row| row.subject.as_str()).collect();
        let mut by_revision = BTreeMap::<&str, Vec<&str>>::new();
        for subject in subjects {
            by_revision.entry(revisions.get(subject).unwrap_or(&revision)).or_default().push(subject);
        }
        for (revision, names) in by_revision {
            self.origin.push(format!("{EARLIER}{revision}: {}", names.join("; ")));
        }
        self.rows.extend(missing);
    }

    /// Returns the cases of a metric in the order in which they appear.
    pub fn cases(&self, metric: &str) -> Vec<String> {
        self.distinct(metric, |row| &row.case)
    }

    /// Returns the subjects of a metric in the order in which they appear.
    pub fn subjects(&self, metric: &str) -> Vec<String> {
        self.distinct(metric, |row| &row.subject)
    }

    fn distinct(&self, metric: &str, field: impl Fn(&Row) -> &String) -> Vec<String> {
        let mut seen = BTreeMap::new();
        for (place, row) in self.rows.iter().enumerate().filter(|(_, row)| row.metric == metric) {
            seen.entry(field(row).clone()).or_insert(place);
        }
        let mut seen: Vec<_> = seen.into_iter().collect();
        seen.sort_by_key(|&(_, place)| place);
        seen.into_iter().map(|(name, _)| name).collect()
    }
}

/// Returns the path of a measure's file.
pub fn path(folder: &Path, measure: &str) -> PathBuf {
    folder.join(measure).with_extension("csv")
}

/// Writes a measure's file.
pub fn write(folder: &Path, measure: &str, results: &Results) -> Result<()> {
    fs::create_dir_all(folder)?;
    let path = path(folder, measure);
    let mut file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    for line in &results.origin {
        writeln!(file, "# {line}")?;
    }
    let mut writer = csv::Writer::from_writer(file);
    for row in &results.rows {
        // Four significant digits are more than any measure reproduces.
        let value = format!("{:.4}", row.value).parse()?;
        writer.serialize(Row { value, ..row.clone() })?;
    }
    Ok(writer.flush()?)
}

/// Reads a measure's file; `None` if there is none.
pub fn read(folder: &Path, measure: &str) -> Result<Option<Results>> {
    let path = path(folder, measure);
    if !path.exists() {
        return Ok(None);
    }
    let context = || format!("in {}", path.display());
    let lines = BufReader::new(File::open(&path).with_context(context)?).lines();
    let mut origin = Vec::new();
    for line in lines {
        match line.with_context(context)?.strip_prefix("# ") {
            Some(line) => origin.push(line.to_owned()),
            None => break,
        }
    }
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(&path).with_context(context)?;
    let rows = reader.deserialize().collect::<Result<_, _>>().with_context(context)?;
    Ok(Some(Results { origin, rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_again_is_kept() {
        let results = |revision: &str, rows: &[(&str, f64)]| Results {
            origin: vec![format!("versions: x 1; allotment at {revision}")],
            rows: rows.iter().map(|&(subject, value)| Row::new("c", subject, "m", value)).collect(),
        };
        let mut new = results("b", &[("ours", 2.0)]);
        new.complete(results("a", &[("ours", 1.0), ("theirs", 3.0)]));
        assert_eq!((new.get("m", "c", "ours"), new.get("m", "c", "theirs")), (Some(2.0), Some(3.0)));
        assert_eq!(new.rows.len(), 2);
        assert!(new.origin[1].contains("at a: theirs"), "{:?}", new.origin);
        // A third run keeps where each figure comes from.
        let mut third = results("c", &[("another", 4.0)]);
        third.complete(new);
        assert_eq!(third.origin[1..], [format!("{EARLIER}a: theirs"), format!("{EARLIER}b: ours")]);
    }
}
