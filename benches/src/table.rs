//! Tables of figures: what they show, and in which order.

use crate::results::Results;
use crate::statistics::geometric_mean;
use crate::subjects;
use crate::trace::Set;

/// The name of the row without an allocator.
pub const HARNESS: &str = "harness";

/// Which direction is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// The figure is not a competition.
    Neither,
}

/// A table with a row per subject and a column per case.
#[derive(Clone)]
pub struct Table {
    /// The heading.
    pub title: &'static str,
    /// How it was measured.
    pub text: String,
    /// The metric that it shows.
    pub metric: &'static str,
    /// Which direction is better.
    pub better: Better,
    /// Whether the last column is the geometric mean over the cases.
    pub mean: bool,
    /// Digits after the point.
    pub digits: usize,
    /// What stands for the figures 0, 1, 2 and so on; nothing if the figures themselves do.
    pub words: &'static [&'static str],
    /// The name of the table's bar chart, if it has one.
    pub plot: Option<&'static str>,
    /// The name of the line chart over numeric cases, if it has one.
    pub curve: Option<&'static str>,
    /// Whether all subjects compete, including those without an arena limit or without memory.
    pub level: bool,
    /// Whether subjects are columns and cases are rows.
    pub transposed: bool,
    /// Whether subjects compete only with those of the same form.
    pub by_form: bool,
    /// The cases that it shows; all if empty.
    pub set: Option<Set>,
    /// Whether its columns are the geometric means over the sets of traces, instead of the cases.
    pub sets: bool,
}

impl Table {
    /// Makes a table of the means over the sets of traces, with this table's text and plot, and one table for each
    /// set with several traces.
    pub fn by_set(self) -> Vec<Self> {
        let part = |title, set| Self {
            title,
            set: Some(set),
            text: String::new(),
            mean: true,
            plot: None,
            ..self.clone()
        };
        let parts = [part("Each given trace", Set::Given), part("Each further trace", Set::Further)];
        [Self { sets: true, ..self }].into_iter().chain(parts).collect()
    }

    /// Returns the columns: their heads, and the cases whose geometric mean each shows.
    pub fn columns(&self, results: &Results) -> Vec<(String, Vec<String>)> {
        let mut cases = results.cases(self.metric);
        cases.retain(|case| self.set.is_none_or(|set| Set::of(case) == set));
        let single = |cases: &[String]| cases.iter().map(|case| (case.clone(), vec![case.clone()])).collect();
        if self.sets {
            let sets =
                [(Set::Given, "given"), (Set::Further, "further"), (Set::Aligned, "64-byte alignments")];
            let columns = sets.map(|(set, name)| {
                let cases: Vec<_> = cases.iter().filter(|case| Set::of(case) == set).cloned().collect();
                (format!("{name} ({})", cases.len()), cases)
            });
            return columns.into_iter().filter(|(_, cases)| !cases.is_empty()).collect();
        }
        let mut columns: Vec<_> = single(&cases);
        if self.mean && !cases.is_empty() {
            columns.push(("geo. mean".into(), cases));
        }
        columns
    }

    /// Returns the figure of a subject in a column. A mean over fewer cases than the column has is not comparable.
    pub fn value(&self, results: &Results, column: &[String], subject: &str) -> Option<f64> {
        let values: Vec<f64> =
            column.iter().filter_map(|case| results.get(self.metric, case, subject)).collect();
        match values[..] {
            _ if values.len() < column.len() => None,
            // This holds even for zero, of which there is no geometric mean.
            [value] => Some(value),
            _ => Some(geometric_mean(&values)),
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            title: "",
            text: String::new(),
            metric: "",
            better: Better::Lower,
            mean: false,
            digits: 1,
            words: &[],
            plot: None,
            curve: None,
            level: false,
            transposed: false,
            by_form: false,
            set: None,
            sets: false,
        }
    }
}

/// Sorts in the order of the registry; unknown subjects come first.
pub fn ordered(mut subjects: Vec<String>) -> Vec<String> {
    let place = |id: &String| subjects::ENTRIES.iter().position(|entry| entry.id == id);
    subjects.sort_by_key(place);
    subjects
}

/// Escapes text for Markdown, in which `<` would begin a tag.
pub fn escape(text: &str) -> String {
    text.replace('<', "&lt;")
}
