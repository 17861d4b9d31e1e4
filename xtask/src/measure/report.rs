//! The figures as comma-separated values, and the tables that are drawn from them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use allotment_common::table;
use anyhow::{Context, Result, ensure};

use super::footprint::Footprint;
use super::subject::{FAST, MACHINES, SMALL, SUBJECTS, Subject, ZERO};
use super::{Case, Outcome};

/// Columns of the sizes, in the order of the file.
const SIZES: &str = "text added_text constants added_constants static_ram";

/// Columns of the values that a workload prints, in the order of the file.
const FIGURES: &str = "alloc_mean alloc_p99 alloc_worst free_mean free_p99 free_worst \
    aligned_alloc_mean aligned_alloc_p99 aligned_alloc_worst aligned_free_mean aligned_free_p99 aligned_free_worst \
    resize_mean resize_p99 resize_worst failed_worst live_permille blocks_8 blocks_24 largest \
    few_alloc_mean few_alloc_p99 few_alloc_worst few_free_mean few_free_p99 few_free_worst";

/// The figures that `check` compares: smaller is better for all of them.
const CHECKED: &str = "added_text alloc_mean alloc_worst free_mean free_worst \
    aligned_alloc_mean aligned_alloc_worst aligned_free_mean aligned_free_worst few_alloc_mean few_free_mean";

/// Worse by more than this is a regression.
const SLACK: f64 = 1.05;

/// Arena of `blocks_8`, `blocks_24` and `largest`.
const SMALL_ARENA: f64 = 4096.0;

/// All values of one program by the name of their column.
fn values(outcome: &Outcome, all: &[Outcome]) -> BTreeMap<&'static str, f64> {
    let Outcome { case, footprint, figures, .. } = outcome;
    let mut values = BTreeMap::new();
    values.insert("text", footprint.code as f64);
    values.insert("constants", footprint.constants as f64);
    if let Some(ram) = footprint.ram {
        values.insert("static_ram", ram as f64);
    }
    let zero = all.iter().find(|other| {
        other.case.subject.name == ZERO
            && (other.case.machine, other.case.level) == (case.machine, case.level)
    });
    if let Some(zero) = zero {
        values.insert("added_text", footprint.code as f64 - zero.footprint.code as f64);
        values.insert("added_constants", footprint.constants as f64 - zero.footprint.constants as f64);
    }
    for name in FIGURES.split(' ') {
        if let Some(&value) = figures.get(name) {
            values.insert(name, value);
        }
    }
    values
}

fn key(case: &Case) -> String {
    let Case { subject, machine, level, in_place } = case;
    let realloc = if *in_place { "in-place" } else { "moves" };
    format!("{},{},{},{realloc}", subject.name, machine.target, level.level)
}

fn csv(outcomes: &[Outcome]) -> String {
    let columns = || SIZES.split(' ').chain(FIGURES.split(' '));
    let header =
        ["subject,target,opt_level,realloc"].into_iter().chain(columns()).collect::<Vec<_>>().join(",");
    let line = |outcome: &Outcome| {
        let values = values(outcome, outcomes);
        let cells = columns().map(|name| values.get(name).map_or(String::new(), f64::to_string));
        [key(&outcome.case)].into_iter().chain(cells).collect::<Vec<_>>().join(",") + "\n"
    };
    header + "\n" + &outcomes.iter().map(line).collect::<String>()
}

/// Which of our subjects have become worse than they are in the file.
pub fn worse(outcomes: &[Outcome], file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("{} is missing; `cargo xtask measure` writes it", file.display()))?;
    compare(outcomes, &text).with_context(|| format!("{}", file.display()))
}

/// Reads the outcomes of a file. Subjects that no longer exist are left out.
fn read(text: &str) -> Result<Vec<Outcome>> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<&str> = lines.next().context("the file is empty")?.split(',').collect();
    let mut outcomes = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        ensure!(fields.len() == header.len(), "`{line}` does not have the header's columns");
        let subject = SUBJECTS.iter().find(|subject| subject.name == fields[0]);
        let machine = MACHINES.iter().find(|machine| machine.target == fields[1]);
        let level = [SMALL, FAST].into_iter().find(|level| level.level == fields[2]);
        let (Some(subject), Some(machine), Some(level)) = (subject, machine, level) else { continue };
        let mut figures = BTreeMap::new();
        for (name, field) in header.iter().zip(&fields).skip(4).filter(|(_, field)| !field.is_empty()) {
            let value: f64 = field.parse().with_context(|| format!("`{field}` is no number"))?;
            figures.insert((*name).to_owned(), value);
        }
        let size = |name: &str| figures.get(name).map(|&value| value as u64);
        let footprint = Footprint {
            code: size("text").context("the size of the code is missing")?,
            constants: size("constants").context("the size of the constants is missing")?,
            ram: size("static_ram"),
        };
        let case = Case { subject, machine, level, in_place: fields[3] == "in-place" };
        outcomes.push(Outcome { case, footprint, figures, failure: None });
    }
    Ok(outcomes)
}

/// Draws the tables of a file.
pub fn draw(file: &Path) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    let outcomes = read(&text).with_context(|| format!("{}", file.display()))?;
    let origin: String =
        text.lines().filter_map(|line| line.strip_prefix("# ")).flat_map(|line| [line, "\n"]).collect();
    Ok(format!("{TITLE}\n\n{origin}\n{}{}\n", about(), tables(&outcomes).trim_end()))
}

fn compare(outcomes: &[Outcome], text: &str) -> Result<Vec<String>> {
    let header = text.lines().find(|line| !line.starts_with('#')).unwrap_or_default();
    for name in CHECKED.split(' ') {
        ensure!(header.split(',').any(|column| column == name), "there is no column `{name}`");
    }
    let mut worse = Vec::new();
    let mut compared = 0;
    for before in read(text)?.iter().filter(|before| before.case.subject.package.is_none()) {
        let Some(outcome) = outcomes.iter().find(|outcome| outcome.case == before.case) else { continue };
        let values = values(outcome, outcomes);
        for name in CHECKED.split(' ') {
            // Nothing was measured there.
            let (Some(&was), Some(&now)) = (before.figures.get(name), values.get(name)) else { continue };
            compared += 1;
            if now > was * SLACK {
                let place = key(&before.case).replace(',', " ");
                worse.push(format!("{place}: {name} is {now}, was {was}"));
            }
        }
    }
    ensure!(compared > 0, "nothing in it was measured this time");
    Ok(worse)
}

/// The heading of the tables.
const TITLE: &str = "## Firmware: code, memory and exact instruction counts";

/// Says what the figures were measured with, one line for each.
pub fn origin(compiler: &str, emulator: &str, versions: &BTreeMap<String, String>) -> String {
    let packages = SUBJECTS.iter().filter_map(|subject| subject.package).chain(["allotment"]);
    let mut packages: Vec<_> =
        packages.filter_map(|package| Some(format!("{package} {}", versions.get(package)?))).collect();
    packages.sort_unstable();
    format!(
        "* compiler: {compiler}, fat LTO, one codegen unit, panic = abort\n\
         * emulator: {emulator}, `-icount`: Cortex-M in mps2-an385 by SysTick, RISC-V in virt by minstret; repeatable \
         to the instruction\n\
         * versions: {}\n\
         * command: cargo xtask measure\n",
        packages.join(", ")
    )
}

/// Explains the columns and the subjects.
fn about() -> String {
    let mut text = String::from(
        "One firmware, the allocator by feature; no lock does anything. *Added text* is machine code beyond that of the \
         same program with a bump allocator: giving the heap its memory, allocating, freeing and `realloc`, once \
         with the trait's own `realloc`, which always moves, and once with the allocator's, where it has \
         one. *Constants* are read-only data and the initial values of variables, both in flash. *Static RAM* is all \
         variables without the arena. Instructions are those of one call in a 64 KiB arena with three quarters live, \
         passing of arguments and return included; *aligned* are those where a fifth \
         of the blocks each is aligned to 4, 8, 16, 32 and 64 bytes; *few sizes* are 16, 32, 64 and 128 bytes; *resize* counts those that stay in place. *Live* is what share of \
         a 32 KiB arena is live when the first request fails: sizes of 8 to 512 B with a tail to 4 KiB, 50 % \
         allocations, 10 % frees, 40 % resizes, 64 seeds. A block's cost and the largest block are those of a 4 KiB arena. \
         boards/measure/src/bin/workload.rs describes the workloads to the last detail. Values are those with the \
         allocator's own `realloc`.\n\n| subject | what it is |\n| --- | --- |\n",
    );
    for subject in &SUBJECTS {
        let what = match subject.package {
            Some(package) => format!("{package}: {}", subject.what),
            None => subject.what.into(),
        };
        writeln!(text, "| {} | {what} |", subject.name).expect("a string takes everything");
    }
    text.push('\n');
    text
}

/// Numbers with as many decimals as they deserve; a dash for what was not measured.
fn show(value: Option<f64>, decimals: usize) -> String {
    value.map_or("–".into(), |value| format!("{value:.decimals$}"))
}

/// A table per target and level.
pub fn tables(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for group in outcomes.chunk_by(|a, b| (a.case.machine, a.case.level) == (b.case.machine, b.case.level)) {
        let Case { machine, level, .. } = group[0].case;
        let speed = if level == FAST { ", for speed" } else { "" };
        writeln!(text, "### {}, opt-level {}{speed} ({})\n", machine.target, level.level, machine.core)
            .expect("a string takes everything");
        text.push_str(&if machine.emulator.is_some() { full_table(group) } else { size_table(group) });
        text.push_str("\n\n");
        if group.iter().any(|outcome| outcome.case.subject.package.is_some()) {
            writeln!(text, "{}\n", losses(group)).expect("a string takes everything");
        }
    }
    text
}

fn full_table(group: &[Outcome]) -> String {
    let rows = pairs(group).map(|pair| {
        let get = |name: &str| pair.value(Of::Own, name);
        let three = |name: &str| {
            let [mean, p99, worst] = ["mean", "p99", "worst"].map(|part| get(&format!("{name}_{part}")));
            if mean.is_none() {
                "–".into()
            } else {
                format!("{} / {} / {}", show(mean, 1), show(p99, 0), show(worst, 0))
            }
        };
        let per_block =
            |name: &str| get(name).filter(|&blocks| blocks > 0.0).map(|blocks| SMALL_ARENA / blocks);
        [
            pair.subject.name.into(),
            show(pair.value(Of::Moves, "added_text"), 0),
            show(pair.value(Of::InPlace, "added_text"), 0),
            show(get("added_constants"), 0),
            show(get("static_ram"), 0),
            three("alloc"),
            three("free"),
            three("aligned_alloc"),
            three("aligned_free"),
            three("few_alloc"),
            three("few_free"),
            three("resize"),
            show(get("failed_worst"), 0),
            show(get("live_permille").map(|permille| permille / 10.0), 1),
            format!("{} / {}", show(per_block("blocks_8"), 1), show(per_block("blocks_24"), 1)),
            show(get("largest"), 0),
        ]
    });
    let header = [
        "subject",
        "added text B, realloc moves",
        "in place",
        "constants B",
        "static RAM B",
        "alloc mean / p99 / worst",
        "free mean / p99 / worst",
        "aligned alloc mean / p99 / worst",
        "aligned free mean / p99 / worst",
        "few sizes, alloc",
        "few sizes, free",
        "resize mean / p99 / worst",
        "failing request, worst",
        "live %",
        "8 / 24 B block takes B",
        "largest of 4 KiB",
    ];
    table::render(header, rows, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15])
}

/// A measure in which heaps are ranked: what it is called, its column, its decimals, and whether larger values are better.
type Rank = (&'static str, Of, &'static str, usize, bool);

/// Which of a subject's values count.
#[derive(Clone, Copy)]
enum Of {
    /// Those where `realloc` moves.
    Moves,
    /// Those with its own `realloc`, or without if it has none.
    Own,
    /// Those with its own `realloc`.
    InPlace,
}

/// The values of one subject: where `realloc` moves, and with its own `realloc` if it has one.
struct Pair {
    subject: &'static Subject,
    moves: BTreeMap<&'static str, f64>,
    own: BTreeMap<&'static str, f64>,
    resizes: bool,
}

impl Pair {
    fn value(&self, of: Of, column: &str) -> Option<f64> {
        match of {
            Of::Moves => self.moves.get(column).copied(),
            Of::Own => self.own.get(column).copied(),
            Of::InPlace => self.own.get(column).copied().filter(|_| self.resizes),
        }
    }
}

const RANKS: [Rank; 9] = [
    ("added text", Of::Moves, "added_text", 0, false),
    ("added text with resizing in place", Of::InPlace, "added_text", 0, false),
    ("static RAM", Of::Own, "static_ram", 0, false),
    ("alloc, mean", Of::Own, "alloc_mean", 1, false),
    ("alloc, worst", Of::Own, "alloc_worst", 0, false),
    ("free, mean", Of::Own, "free_mean", 1, false),
    ("free, worst", Of::Own, "free_worst", 0, false),
    ("live, in thousandths", Of::Own, "live_permille", 0, true),
    ("largest of 4 KiB", Of::Own, "largest", 0, true),
];

/// The pairs of a group.
fn pairs(group: &[Outcome]) -> impl Iterator<Item = Pair> {
    let chunks = group.chunk_by(|a, b| a.case.subject == b.case.subject);
    chunks.filter_map(|chunk| Some((chunk.first()?, chunk.last()?))).map(|(moves, own)| Pair {
        subject: own.case.subject,
        moves: values(moves, group),
        own: values(own, group),
        resizes: own.case.in_place,
    })
}

/// In what each allocator of ours is behind the best of its own peers, a line for each.
fn losses(group: &[Outcome]) -> String {
    let pairs: Vec<Pair> = pairs(group).collect();
    let mut text = String::from("**Where we lose**, each against the best of its own peers:\n");
    for pair in pairs.iter().filter(|pair| !pair.subject.peers.is_empty()) {
        let peers = || pairs.iter().filter(|other| pair.subject.peers.contains(&other.subject.name));
        let mut losses = Vec::new();
        for (name, of, column, decimals, more) in RANKS {
            let valued = peers().filter_map(|peer| Some((peer.value(of, column)?, peer.subject.name)));
            let best = valued.min_by(|a, b| if more { b.0.total_cmp(&a.0) } else { a.0.total_cmp(&b.0) });
            let (Some((peer, peer_name)), Some(own)) = (best, pair.value(of, column)) else { continue };
            if if more { peer > own } else { peer < own } {
                losses.push(format!(
                    "{name} {} ({peer_name} {})",
                    show(Some(own), decimals),
                    show(Some(peer), decimals)
                ));
            }
        }
        if peers().next().is_some() {
            let losses = if losses.is_empty() { "nowhere".into() } else { losses.join("; ") };
            write!(text, "\n* **{}**: {losses}", pair.subject.name).expect("a string takes everything");
        }
    }
    text
}

fn size_table(group: &[Outcome]) -> String {
    let rows = pairs(group).map(|pair| {
        [
            pair.subject.name.into(),
            show(pair.value(Of::Moves, "added_text"), 0),
            show(pair.value(Of::InPlace, "added_text"), 0),
            show(pair.value(Of::Own, "added_constants"), 0),
        ]
    });
    let header = ["subject", "added code B, realloc moves", "in place", "data B"];
    table::render(header, rows, &[1, 2, 3])
}

/// Writes the file.
pub fn write(outcomes: &[Outcome], origin: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
    let file = folder.join("mcu.csv");
    let origin: String = origin.lines().flat_map(|line| ["# ", line, "\n"]).collect();
    fs::write(&file, origin + &csv(outcomes)).with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::super::footprint::Footprint;
    use super::super::subject::{MACHINES, SMALL};
    use super::*;

    fn outcome(subject: &str, in_place: bool, code: u64, figures: &[(&str, f64)]) -> Outcome {
        let subject = SUBJECTS.iter().find(|known| known.name == subject).unwrap();
        let case = Case { subject, machine: &MACHINES[0], level: SMALL, in_place };
        let figures = figures.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let footprint = Footprint { code, constants: 0, ram: Some(8) };
        Outcome { case, footprint, figures, failure: None }
    }

    fn outcomes() -> [Outcome; 3] {
        let counts = [("alloc_mean", 80.0), ("alloc_worst", 120.0), ("blocks_8", 500.0)];
        [
            outcome(ZERO, false, 1000, &[]),
            outcome("tlsf16", false, 1600, &counts),
            outcome("tlsf16", true, 1900, &counts),
        ]
    }

    #[test]
    fn sizes_are_differences_to_the_zero() {
        let text = tables(&outcomes());
        let row = text.lines().find(|line| line.contains("tlsf16")).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[2..4], ["600", "900"]);
        assert_eq!(cells[5], "8");
        assert_eq!(cells[15], "8.2 / –");
    }

    #[test]
    fn losses_are_named() {
        let peer = |code, live| outcome("linked-list", false, code, &[("live_permille", live)]);
        let ours = outcome("first-fit", false, 1600, &[("live_permille", 850.0)]);
        // Better, but the peer of another placement; and one of ours that is no excuse for the first.
        let others = [
            outcome("talc", false, 1100, &[("live_permille", 900.0)]),
            outcome("tiny", false, 1100, &[("live_permille", 900.0)]),
        ];
        let [talc, tiny] = others;
        let zero = outcome(ZERO, false, 1000, &[]);
        let text = losses(&[zero.clone(), ours.clone(), peer(1600, 850.0), talc.clone(), tiny.clone()]);
        assert!(text.ends_with("\n* **first-fit**: nowhere\n* **tiny**: nowhere"), "{text}");
        let text = losses(&[zero, tiny, ours, peer(1500, 860.0), talc]);
        assert!(
            text.ends_with("* **first-fit**: added text 600 (linked-list 500); live, in thousandths 850 (linked-list 860)"),
            "{text}"
        );
    }

    #[test]
    fn tables_are_drawn_from_the_file_as_from_the_outcomes() {
        let folder = tempfile::tempdir().unwrap();
        write(&outcomes(), "* compiler: x\n", folder.path()).unwrap();
        let text = draw(&folder.path().join("mcu.csv")).unwrap();
        assert!(text.starts_with(&format!("{TITLE}\n\n* compiler: x\n\n")), "{text}");
        assert!(text.ends_with(&format!("{}\n", tables(&outcomes()).trim_end())), "{text}");
    }

    #[test]
    fn what_becomes_worse_is_named() {
        let before = csv(&outcomes());
        assert!(compare(&outcomes(), &before).unwrap().is_empty());

        let mut now = outcomes();
        now[2].figures.insert("alloc_mean".into(), 80.0 * SLACK - 0.1);
        assert!(compare(&now, &before).unwrap().is_empty());
        now[2].figures.insert("alloc_mean".into(), 80.0 * SLACK + 0.1);
        let worse = compare(&now, &before).unwrap();
        assert_eq!(worse.len(), 1);
        assert!(
            worse[0].starts_with("tlsf16 thumbv7m-none-eabi s in-place: alloc_mean is 84.1"),
            "{worse:?}"
        );
    }

    #[test]
    fn a_comparison_with_nothing_is_an_error() {
        let header = csv(&[]);
        assert!(compare(&outcomes(), &header).is_err());
        assert!(compare(&outcomes(), "").is_err());
        assert!(compare(&outcomes(), &format!("{header}a,b\n")).is_err());
    }
}
