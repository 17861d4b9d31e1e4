//! The GPU figures as Markdown: the output of `gpu-bench`, its tables, and a section of RESULTS.md.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};

use crate::results::{self, Results, Row};
use crate::statistics::{median, quantile};

/// The row without an allocator: the cost of measuring itself.
pub const HARNESS: &str = "harness";

/// An allocation and its free in memory that was not used before.
pub const COLD: &str = "ns per pair, cold";
/// The same pair repeatedly.
pub const WARM: &str = "ns per pair, warm";
/// The same pair, after each of which the host waits for the stream.
pub const WAITED: &str = "ns per pair, the stream waited for";
/// RMM's workload.
pub const RMM: &str = "ns per operation of RMM's workload";
/// Its failures in a tight pool.
pub const FAILED: &str = "failed requests in 20 GiB";
/// The instructions of that workload.
pub const COUNTED: &str = "instructions per operation of RMM's workload";
/// What the driver is asked for in that workload, where the pools grow.
pub const TAKEN: &str = "reserved / peak live, RMM's workload";
/// Pairs of 1 KiB among many holes.
pub const HOLES: &str = "ns per pair of 1 KiB among 65,536 holes";
/// Several threads and streams.
pub const STREAMS: &str = "ns per pair of all threads together";
/// A recorded run, for the first time.
pub const FIRST: &str = "ns per operation, first iteration";
/// The same run again.
pub const AGAIN: &str = "ns per operation, second iteration";
/// The memory that it takes from the device.
pub const RESERVED: &str = "reserved / peak live";
/// Copies to the device.
pub const BANDWIDTH: &str = "GB/s";
/// What key-value caches cost the driver.
pub const KV_CALLS: &str = "driver calls per 1,000 tokens";
/// What they cost in memory.
pub const KV_MEMORY: &str = "most reserved / most in use";

struct Table {
    title: &'static str,
    text: &'static str,
    metric: &'static str,
    digits: usize,
}

const TABLES: [Table; 15] = [
    Table {
        title: "Allocation and free, warm",
        text: "The same size again and again on one stream, by size: nanoseconds for both on the host.",
        metric: WARM,
        digits: 0,
    },
    Table {
        title: "Allocation and free, cold",
        text: "The first pair of an allocator that holds no memory yet.",
        metric: COLD,
        digits: 0,
    },
    Table {
        title: "Allocation, free, and the host waits for the stream",
        text: "Where the host waits, the driver's pool gives back what is above its release threshold.",
        metric: WAITED,
        digits: 0,
    },
    Table {
        title: "RMM's random workload",
        text: "2 N operations (minstd_rand0, seed 1): 73 % allocations up to N of them and 16,000 MiB live, else a random \
               free; N and the largest size in MiB head the columns. The harness is included. Our pools have reserved all of their \
               memory before in one segment, as RMM's does. On lavapipe what needs no driver is the least of five runs.",
        metric: RMM,
        digits: 0,
    },
    Table {
        title: "Instructions of the same",
        text: "Counted by callgrind over simulated memory, the harness included.",
        metric: COUNTED,
        digits: 1,
    },
    Table {
        title: "Failed requests of the same in a tight pool",
        text: "The same requests where only 20 GiB may be reserved.",
        metric: FAILED,
        digits: 0,
    },
    Table {
        title: "What is reserved for the same",
        text: "Where all allocators take memory from the driver as they need it: the most that they have, over the most that is \
               requested at once.",
        metric: TAKEN,
        digits: 3,
    },
    Table {
        title: "Many holes",
        text: "1 KiB allocated and freed while 65,536 holes of the size at the head of the column are free.",
        metric: HOLES,
        digits: 0,
    },
    Table {
        title: "Threads and streams",
        text: "Each thread keeps 64 blocks of 256 bytes to 1 MiB on a stream of its own and replaces random ones; in the \
               last column one thread does so on four streams. Time that passes, divided by the pairs of all threads.",
        metric: STREAMS,
        digits: 0,
    },
    Table {
        title: "Runs of PyTorch, first iteration",
        text: "Recorded tensors of training and inference, from an allocator that holds nothing yet.",
        metric: FIRST,
        digits: 0,
    },
    Table { title: "Runs of PyTorch, second iteration", text: "The same again.", metric: AGAIN, digits: 0 },
    Table {
        title: "What is reserved for runs of PyTorch",
        text: "The most that is reserved in the first iteration, over the most that is requested at once.",
        metric: RESERVED,
        digits: 3,
    },
    Table {
        title: "Pinned copies",
        text: "Bandwidth to the device: one large pinned copy, and the same bytes through `Staging`, from a source that \
               leaves the pinned chunks as they are (the copies alone) and from memory that is not pinned (the host copies \
               each chunk first).",
        metric: BANDWIDTH,
        digits: 2,
    },
    Table {
        title: "Key-value caches: driver calls",
        text: "8 answers at a time of up to 1,024 tokens, half of them behind one of 4 common prompts: calls that place, copy or wait, \
               per 1,000 tokens. Counted by the stand-in driver. `KvCache` has one array per sequence; kernels of a paged cache look \
               every block up in its table, which is not counted here.",
        metric: KV_CALLS,
        digits: 1,
    },
    Table {
        title: "Key-value caches: memory",
        text: "The same: the most memory of the device, over that of the tokens at the fullest moment, common ones counted once.",
        metric: KV_MEMORY,
        digits: 3,
    },
];

/// The metric that holds the spread of another one: the difference of the quartiles over the rounds.
pub fn spread_of(metric: &str) -> String {
    format!("{metric}, spread")
}

/// The rows of a figure that was measured in several rounds: median and spread.
pub fn rows(case: &str, subject: &str, metric: &str, values: &[f64]) -> Vec<Row> {
    let spread = quantile(values, 0.75) - quantile(values, 0.25);
    vec![Row::new(case, subject, metric, median(values)), Row::new(case, subject, spread_of(metric), spread)]
}

fn cell(results: &Results, table: &Table, case: &str, subject: &str) -> String {
    let digits = table.digits;
    let value = |metric: &str| results.get(metric, case, subject).filter(|value| value.is_finite());
    match (value(table.metric), value(&spread_of(table.metric))) {
        (None, _) => "–".into(),
        (Some(value), Some(spread)) if spread > 0.0 => format!("{value:.digits$} ± {spread:.digits$}"),
        (Some(value), _) => format!("{value:.digits$}"),
    }
}

/// Formats the tables of one run, with a row per subject and a column per case.
pub fn tables(results: &Results) -> String {
    let mut text = String::new();
    for line in &results.origin {
        let _ = writeln!(text, "* {line}");
    }
    for table in &TABLES {
        let cases = results.cases(table.metric);
        if cases.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n#### {}\n\n{}\n", table.title, table.text);
        let _ = writeln!(text, "|  | {} |", cases.join(" | "));
        let _ = writeln!(text, "| --- |{}", " ---: |".repeat(cases.len()));
        for subject in results.subjects(table.metric) {
            let cells: Vec<_> = cases.iter().map(|case| cell(results, table, case, &subject)).collect();
            let _ = writeln!(text, "| {subject} | {} |", cells.join(" | "));
        }
    }
    text
}

/// Returns whether a subject is ours; the harness is no allocator.
fn is_own(subject: &str) -> bool {
    subject.starts_with("allotment") || subject.starts_with("`KvCache`")
}

/// Makes the section of RESULTS.md: for every figure of every device, our best against the best peer.
pub fn section(folder: &Path) -> Result<String> {
    let mut text = String::from(
        "\n## Pools on a GPU\n\n`cargo xtask gpu-bundle`, run on each device: our best pool against the best of `cuMemAlloc`, \
         `cuMemAllocAsync`, cudarc, PyTorch and CuPy, and on lavapipe (`cargo xtask vulkan --race`, time of the CPU) of VMA, its \
         virtual block and gpu-allocator; in how many columns ours is ahead, and the column where it stands worst. \
         Nanoseconds but for the last rows. Table: `gpu`.\n\n\
         | device | figure | ahead in | worst column | ours | best peer |\n|---|---|---|---|---:|---:|\n",
    );
    for name in runs(folder)?.0 {
        let results = results::read(folder, &name)?.context("it was listed")?;
        for table in TABLES.iter().filter(|table| ![FIRST, STREAMS, BANDWIDTH].contains(&table.metric)) {
            text += &summary(&name, table, &results);
        }
    }
    Ok(text)
}

/// The line of one figure; empty if it has no peer.
fn summary(device: &str, table: &Table, results: &Results) -> String {
    let (mut compared, mut ahead) = (0, 0);
    let mut worst: Option<(f64, String)> = None;
    for case in results.cases(table.metric) {
        let best = |own: bool| {
            let subjects = results.subjects(table.metric).into_iter();
            let subjects = subjects.filter(|subject| is_own(subject) == own && !subject.starts_with(HARNESS));
            let values = subjects.filter_map(|subject| results.get(table.metric, &case, &subject));
            values.filter(|value| value.is_finite()).min_by(f64::total_cmp)
        };
        let (Some(ours), Some(theirs)) = (best(true), best(false)) else { continue };
        compared += 1;
        ahead += usize::from(ours <= theirs);
        let digits = table.digits;
        if worst.as_ref().is_none_or(|(ratio, _)| ours / theirs > *ratio) {
            worst = Some((ours / theirs, format!("{case} | {ours:.digits$} | {theirs:.digits$}")));
        }
    }
    worst.map_or(String::new(), |(_, cells)| {
        format!("| {device} | {} | {ahead} of {compared} | {cells} |\n", table.title)
    })
}

/// The names of the runs on devices, and of the simulated ones.
fn runs(folder: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let files = match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
    };
    let mut names: Vec<String> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "csv"))
        .filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names.into_iter().partition(|name| !name.starts_with("simulated")))
}

/// Draws the tables of all runs in a folder. Runs whose names begin with `simulated` are not from a device.
pub fn all(folder: &Path) -> Result<String> {
    let (devices, simulated) = runs(folder)?;
    let mut text = String::from(
        "## Pools on a GPU\n\nWritten by the bundle that `cargo xtask gpu-bundle` makes, on the machines that each part \
         names. A cell is the median of interleaved rounds ± the distance of their quartiles. Nothing here is from another \
         source.\n\n### On devices\n",
    );
    if devices.is_empty() {
        text.push_str("\nNo device was at hand yet.\n\n| measure | on a device |\n| --- | --- |\n");
        for table in &TABLES {
            let _ = writeln!(text, "| {} | not measured |", table.title);
        }
    }
    for name in devices {
        let results = results::read(folder, &name)?.context("it was listed")?;
        let _ = write!(text, "\n#### {name}\n\n{}", tables(&results));
    }
    for (number, name) in simulated.iter().enumerate() {
        if number == 0 {
            text.push_str(
                "\n### Simulated: the CPU's side alone\n\nNo device and no driver: the pool's own work on the host, over \
                 simulated memory whose calls cost next to nothing. What a device adds is not in these figures.\n\n",
            );
        }
        let results = results::read(folder, name)?.context("it was listed")?;
        text.push_str(&tables(&results));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: Vec<Row>) -> Results {
        Results { origin: vec!["device: x".into()], rows }
    }

    #[test]
    fn medians_stand_beside_their_spread() {
        let mut all = rows("1 MiB", "a", WARM, &[1.0, 2.0, 3.0, 4.0, 5.0]);
        all.extend(rows("10 MiB", "b", WARM, &[7.0]));
        let text = tables(&results(all));
        assert!(text.contains("* device: x\n"), "{text}");
        assert!(text.contains("|  | 1 MiB | 10 MiB |\n"), "{text}");
        assert!(text.contains("| a | 3 ± 2 | – |\n| b | – | 7 |\n"), "{text}");
        assert!(!text.contains("Many holes"), "a table without rows is left out: {text}");
    }

    #[test]
    fn the_summary_names_the_worst_column() {
        let mut all = rows("1 MiB", "allotment-pool", WARM, &[2.0]);
        all.extend(rows("1 MiB", "cudarc", WARM, &[9.0]));
        all.extend(rows("2 MiB", "allotment-pool, virtual", WARM, &[3.0]));
        all.extend(rows("2 MiB", "cudarc", WARM, &[1.0]));
        all.extend(rows("2 MiB", HARNESS, WARM, &[0.5]));
        let line = summary("h", &TABLES[0], &results(all));
        assert_eq!(line, "| h | Allocation and free, warm | 1 of 2 | 2 MiB | 3 | 1 |\n");
        assert_eq!(summary("h", &TABLES[1], &results(vec![])), "");
    }

    #[test]
    fn without_a_device_it_says_so_and_simulated_figures_stand_apart() {
        let folder = tempfile::tempdir().unwrap();
        let missing = all(&folder.path().join("missing")).unwrap();
        assert_eq!(missing.matches("| not measured |").count(), TABLES.len());
        assert!(!missing.contains("Simulated"));
        let simulated = results(rows("1 MiB", "a", WARM, &[42.0]));
        results::write(folder.path(), "simulated", &simulated).unwrap();
        let text = all(folder.path()).unwrap();
        let (devices, below) = text.split_once("### Simulated").unwrap();
        assert_eq!(devices.matches("| not measured |").count(), TABLES.len());
        assert!(below.contains("| a | 42 |") && !devices.contains("42"), "{text}");
        results::write(folder.path(), "h", &results(rows("1 MiB", "a", WARM, &[43.0]))).unwrap();
        let text = all(folder.path()).unwrap();
        assert!(!text.contains("not measured") && text.contains("#### h\n"), "{text}");
    }
}
