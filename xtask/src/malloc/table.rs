//! Ratios to the system's heap.

use super::Heap;
use super::program::Run;

/// A table with a row for each program.
pub struct Table {
    title: &'static str,
    names: Vec<&'static str>,
    lines: Vec<String>,
    /// Ratios of time and memory, by heap.
    ratios: Vec<(Vec<f64>, Vec<f64>)>,
}

/// A row of a table.
pub fn row(name: &str, cells: impl IntoIterator<Item = String>) -> String {
    format!("| {name} | {} |\n", cells.into_iter().collect::<Vec<_>>().join(" | "))
}

/// The header of a table with a column for each heap.
pub fn header(heaps: impl ExactSizeIterator<Item = &'static str>) -> String {
    let columns = heaps.len();
    row("", heaps.map(str::to_owned)) + "| --- |" + &" --- |".repeat(columns) + "\n"
}

/// The middle of some figures.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn mean(figures: &[f64]) -> f64 {
    (figures.iter().map(|figure| figure.ln()).sum::<f64>() / figures.len() as f64).exp()
}

impl Table {
    /// Makes an empty table.
    pub fn new(title: &'static str, heaps: &[&Heap]) -> Self {
        let names = heaps.iter().map(|heap| heap.name).collect();
        Self { title, names, lines: Vec::new(), ratios: heaps.iter().map(|_| Default::default()).collect() }
    }

    /// Adds a program: its runs by heap, the system's first.
    pub fn row(&mut self, name: &str, runs: &[Vec<Run>]) {
        let system = &runs[0];
        let seconds = median(system.iter().map(|run| run.seconds));
        let kibibytes = median(system.iter().map(|run| run.kibibytes as f64));
        let mut cells = vec![format!("{seconds:.2} s, {:.0} MB", kibibytes / 1024.0)];
        for (at, runs) in runs.iter().enumerate().skip(1) {
            if runs.is_empty() {
                cells.push("–".into());
                continue;
            }
            // Runs of one round are compared with each other, since the machine's speed changes from round to round.
            let time = median(runs.iter().zip(system).map(|(run, system)| run.seconds / system.seconds));
            let memory = median(runs.iter().map(|run| run.kibibytes as f64)) / kibibytes;
            self.ratios[at].0.push(time);
            self.ratios[at].1.push(memory);
            cells.push(format!("{time:.3} / {memory:.3}"));
        }
        self.lines.push(row(name, cells));
    }

    /// The row that was added last.
    pub fn last(&self) -> &str {
        self.lines.last().map_or("", |line| line.trim_end())
    }

    /// The table as Markdown, with the geometric means and the worst ratio of time.
    pub fn finish(&self) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let ratios = || self.ratios[1..].iter();
        let means = ratios().map(|(time, memory)| format!("{:.3} / {:.3}", mean(time), mean(memory)));
        let worst = ratios().map(|(time, _)| format!("{:.3}", time.iter().copied().fold(0.0, f64::max)));
        format!("\n### {}: time / peak memory\n\n", self.title)
            + &header(self.names.iter().copied())
            + &self.lines.concat()
            + &row("geometric mean", ["1 / 1".into()].into_iter().chain(means))
            + &row("highest time", ["1".into()].into_iter().chain(worst))
    }
}
