//! `cargo xtask wcet`: the most instructions that a call of the constant-time placements takes, counted under QEMU
//! over programs that look for the worst (`boards/measure/src/bin/worst.rs`), and held against ceilings.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use allotment_common::table;
use anyhow::{Context, Result};

use crate::emulator::{Counting, Figures, MPS2_AN385, MPS2_AN386, VIRT};
use crate::{Setup, firmware, measure, pages, toolchain};

/// What to do.
#[derive(clap::Args)]
pub struct Options {
    /// Placements to count [default: all]
    #[arg(value_name = "PLACEMENT", value_parser = placement_named)]
    placements: Vec<&'static Placement>,
    /// Fail if a count is more than 5 % above its ceiling in benches/results/wcet.csv, or in pages/masked.csv
    #[arg(long)]
    check: bool,
    /// Make the present counts the ceilings: write benches/results/wcet.csv
    #[arg(long, conflicts_with_all = ["check", "placements"])]
    bless: bool,
    /// Count how long an operation holds the lock, that is masks interrupts, in Cortex-M0's code; write benches/results/pages/masked.csv
    #[arg(long, conflicts_with_all = ["placements", "bless"])]
    masked: bool,
}

/// A constant-time placement: a feature of the firmware in `boards/measure`.
#[derive(Debug, PartialEq, Eq)]
struct Placement {
    name: &'static str,
    what: &'static str,
}

const PLACEMENTS: [Placement; 7] = [
    Placement { name: "tiny", what: "`TinyHeap`" },
    Placement { name: "heap", what: "`Heap` without any choice: `MicroTlsf`, four regions, statistics" },
    Placement {
        name: "tlsf16",
        what: "`Heap<Tlsf16>`: 16-bit words, one region, 8 classes per power of two",
    },
    Placement { name: "tlsf", what: "`Heap<Tlsf>`: 32-bit words, four regions" },
    Placement {
        name: "per-core",
        what: "`PerCore` over `Heap`: a request may fetch a batch of up to 32 blocks, and frees all that is kept before it fails",
    },
    Placement { name: "slab", what: "`Heap<Slab>`, the same, over buddies" },
    Placement { name: "allotment-bump", what: "`Heap<Bump>`, the same" },
];

/// A core: what Rust calls it, what it is, and what counts its instructions.
struct Core {
    target: &'static str,
    core: &'static str,
    emulator: Counting,
}

const CORES: [Core; 2] = [
    Core { target: "thumbv7em-none-eabihf", core: "Cortex-M4F", emulator: MPS2_AN386 },
    Core { target: "riscv32imac-unknown-none-elf", core: "RV32IMAC", emulator: VIRT },
];

/// The cores that the longest masked times are for.
const MASKED: [Core; 2] = [
    Core { target: "thumbv6m-none-eabi", core: "Cortex-M0's code, on a Cortex-M3", emulator: MPS2_AN385 },
    Core { target: "thumbv7m-none-eabi", core: "Cortex-M3", emulator: MPS2_AN385 },
];

/// The kinds of calls that the firmware counts.
const CALLS: [&str; 6] = ["alloc", "aligned", "failing", "free", "resize", "moving"];

/// More than this times the ceiling is a failure: another compiler may take an instruction more.
const SLACK: f64 = 1.05;

const HEADER: &str = "target,placement,call,worst";

fn placement_named(name: &str) -> Result<&'static Placement, String> {
    measure::named(&PLACEMENTS, |placement| placement.name, name)
}

/// The worst counts, by target, placement and kind of call.
type Counts = BTreeMap<(String, String, String), u64>;

/// The heaps of microcontrollers, whose masked times are published.
const MASKING: [&str; 5] = ["tiny", "heap", "per-core", "tlsf16", "tlsf"];

/// Reads the longest masked times from their page.
fn masked_ceilings(page: &str) -> Result<Counts> {
    let (mut counts, mut target) = (Counts::new(), "");
    for line in page.lines() {
        if let Some(core) = line.strip_prefix("# ### ").and_then(|line| line.split_once(" (")) {
            target = core.1.trim_end_matches(')');
        }
        let Some((placement, row)) = line.split_once(',').filter(|(name, _)| MASKING.contains(name)) else {
            continue;
        };
        for (call, worst) in CALLS.iter().zip(row.split(',')) {
            let worst = worst.parse().with_context(|| format!("`{line}` is no row of ceilings"))?;
            counts.insert((target.into(), placement.into(), (*call).into()), worst);
        }
    }
    Ok(counts)
}

/// Counts how long operations hold the lock, and writes the table or compares with it.
fn masked(setup: &Setup, check: bool) -> Result<ExitCode> {
    let (counts, compiler) =
        count(&MASKED, |placement| MASKING.contains(&placement.name), ",_masked", setup)?;
    if check {
        let file = firmware::root().join("benches/results/pages/masked.csv");
        let page = fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        print!("{}", tables(&MASKED, &counts));
        return Ok(report(&above(&counts, &masked_ceilings(&page)?)));
    }
    let text = format!(
        "## The longest time with interrupts masked\n\n\
         * compiler: {compiler}, opt-level s, fat LTO\n* command: cargo xtask wcet --masked\n\n\
         The most instructions between entering and leaving the critical section of a heap's operation, over the programs of the next \
         table; entering and leaving take about 6 more. A resize that moves allocates, copies with interrupts on, and frees: its \
         figure is the longer of the two sections. Cortex-M0 has no instruction that counts zeros, which every class of lengths is computed with.\n\n\
         {}",
        tables(&MASKED, &counts)
    );
    print!("{text}");
    pages::keep("masked", &text)?;
    Ok(ExitCode::SUCCESS)
}

/// Counts, prints the tables, and compares or writes.
pub fn run(setup: &Setup, options: &Options) -> Result<ExitCode> {
    if options.masked {
        return masked(setup, options.check);
    }
    let chosen =
        |placement: &Placement| options.placements.is_empty() || options.placements.contains(&placement);
    let (counts, compiler) = count(&CORES, chosen, "", setup)?;
    print!("{}", tables(&CORES, &counts));
    if options.bless {
        let file = ceilings_file();
        let text = format!("# * compiler: {compiler}, opt-level s, fat LTO\n{}", csv(&counts));
        fs::write(&file, text).with_context(|| format!("{}", file.display()))?;
        eprintln!("xtask: written to {}", file.display());
    }
    let above = if options.check { above(&counts, &ceilings(&ceilings_file())?) } else { Vec::new() };
    Ok(report(&above))
}

/// Prints what is above its ceiling, which is a failure.
fn report(above: &[String]) -> ExitCode {
    for line in above {
        eprintln!("xtask: {line}");
    }
    if above.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts the calls of the chosen placements, built with more features. Returns the compiler's version as well.
fn count(
    cores: &[Core],
    chosen: impl Fn(&Placement) -> bool,
    more: &str,
    setup: &Setup,
) -> Result<(Counts, String)> {
    let targets: Vec<&str> = cores.iter().map(|core| core.target).collect();
    let toolchain = toolchain::find(&targets, setup)?;
    let mut counts = Counts::new();
    for core in cores {
        eprintln!("xtask: looking for the worst on {}", core.target);
        for placement in PLACEMENTS.iter().filter(|placement| chosen(placement)) {
            let features = format!("{},in-place{more}", placement.name);
            let program = measure::program(&toolchain, core.target, "release", "worst", &features)?;
            let figures = core.emulator.figures(&program, setup);
            let figures = figures.with_context(|| format!("{} on {}", placement.name, core.target))?;
            enter(&mut counts, core, placement, &figures)?;
        }
    }
    Ok((counts, toolchain.version()?))
}

/// Takes a program's figures into the counts. A kind of call that was never made says nothing.
fn enter(counts: &mut Counts, core: &Core, placement: &Placement, figures: &Figures) -> Result<()> {
    for call in CALLS {
        let figure = |name: &str| {
            let value = figures.get(&format!("{call}_{name}")).copied();
            value.with_context(|| format!("the program printed no {call}_{name}"))
        };
        anyhow::ensure!(figure("calls")? > 0.0, "{} was never called", call);
        let key = (core.target.into(), placement.name.into(), call.into());
        counts.insert(key, figure("worst")? as u64);
    }
    Ok(())
}

fn csv(counts: &Counts) -> String {
    let mut text = format!("{HEADER}\n");
    for ((target, placement, call), worst) in counts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{target},{placement},{call},{worst}");
    }
    text
}

fn ceilings_file() -> PathBuf {
    firmware::root().join("benches/results/wcet.csv")
}

fn ceilings(file: &Path) -> Result<Counts> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("{} is missing; `cargo xtask wcet --bless` writes it", file.display()))?;
    parse(&text).with_context(|| format!("{}", file.display()))
}

fn parse(text: &str) -> Result<Counts> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    anyhow::ensure!(lines.next() == Some(HEADER), "the first line is not `{HEADER}`");
    let mut counts = Counts::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let [target, placement, call, worst] = fields[..] else { anyhow::bail!("`{line}` is no ceiling") };
        let worst = worst.parse().with_context(|| format!("`{line}` is no ceiling"))?;
        counts.insert((target.into(), placement.into(), call.into()), worst);
    }
    Ok(counts)
}

/// Returns the operations that exceed their ceiling, or have none.
fn above(counts: &Counts, ceilings: &Counts) -> Vec<String> {
    let mut above = Vec::new();
    for (key @ (target, placement, call), &worst) in counts {
        let name = format!("{placement} on {target}: {call}");
        match ceilings.get(key) {
            None => above.push(format!("{name} has no ceiling: `cargo xtask wcet --bless` sets it")),
            Some(&ceiling) if worst as f64 > ceiling as f64 * SLACK => {
                above.push(format!("{name} takes {worst} instructions, its ceiling is {ceiling}"));
            }
            Some(_) => {}
        }
    }
    above
}

/// One table for each core.
fn tables(cores: &[Core], counts: &Counts) -> String {
    let mut text = String::new();
    for core in cores {
        let rows: Vec<[String; 7]> = PLACEMENTS
            .iter()
            .filter_map(|placement| {
                let mut row: [String; 7] = Default::default();
                row[0] = placement.name.into();
                for (cell, call) in row[1..].iter_mut().zip(CALLS) {
                    let key = (core.target.into(), placement.name.into(), call.into());
                    *cell = counts.get(&key)?.to_string();
                }
                Some(row)
            })
            .collect();
        let header =
            ["placement", "allocate", "aligned", "failing", "deallocate", "reallocate in place", "moving"];
        let table = table::render(header, rows, &[1, 2, 3, 4, 5, 6]);
        let _ = write!(text, "### {} ({})\n\n{}\n", core.core, core.target, table.trim_end());
        text.push('\n');
    }
    text
}

/// Draws the tables of the ceilings.
pub fn draw() -> Result<String> {
    let counts = ceilings(&ceilings_file())?;
    let file = fs::read_to_string(ceilings_file())?;
    let mut text = String::from("## Worst-case instructions of the constant-time placements\n\n");
    for line in file.lines().filter_map(|line| line.strip_prefix("# ")) {
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(
        text,
        "* command: cargo xtask wcet --bless\n\n\
         The most instructions that a call took in QEMU (`-icount`: SysTick in mps2-an386, minstret in virt) over some \
         300,000 calls of programs that look for the worst: blocks freed and resized between neighbours of all lengths \
         about class borders, arenas filled and drained, crowded lists, Robson's construction, and random calls. Passing \
         of arguments and return are included, a lock is not. *Aligned*: to more than 8 bytes. *Failing*: requests that \
         find no room. *Moving*: resizes of blocks of up to 64 bytes that move, copying included. These are counts of \
         one compiler's code, not a proof over all paths; `cargo xtask wcet --check` in CI holds them to within 5 %.\n\n"
    );
    for Placement { name, what } in &PLACEMENTS {
        let _ = writeln!(text, "* `{name}`: {what}");
    }
    text.push('\n');
    text.push_str(tables(&CORES, &counts).trim_end());
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(worst: u64) -> Counts {
        Counts::from([(("thumbv7em-none-eabihf".into(), "tlsf".into(), "free".into()), worst)])
    }

    #[test]
    fn counts_above_their_ceilings_are_named() {
        assert!(above(&counts(105), &counts(100)).is_empty());
        let lines = above(&counts(106), &counts(100));
        assert_eq!(lines, ["tlsf on thumbv7em-none-eabihf: free takes 106 instructions, its ceiling is 100"]);
        assert!(above(&counts(1), &Counts::new())[0].contains("has no ceiling"));
    }

    #[test]
    fn ceilings_are_read_as_they_are_written() {
        assert_eq!(parse(&csv(&counts(7))).unwrap(), counts(7));
        for wrong in ["", "a,b,c,d\n", &format!("{HEADER}\na,b,c\n"), &format!("{HEADER}\na,b,c,many\n")] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn masked_ceilings_are_read_from_their_page() {
        let page = "# text\n\n# ### Cortex-M3 (thumbv7m-none-eabi)\n\nplacement,allocate\nheap,1,2,3,4,5,6\n";
        let ceilings = masked_ceilings(page).unwrap();
        let free = ("thumbv7m-none-eabi".to_owned(), "heap".to_owned(), "free".to_owned());
        assert_eq!((ceilings.len(), ceilings[&free]), (6, 4));
        assert!(masked_ceilings("heap,many\n").is_err());
        let kept = fs::read_to_string(firmware::root().join("benches/results/pages/masked.csv")).unwrap();
        assert_eq!(masked_ceilings(&kept).unwrap().len(), MASKED.len() * MASKING.len() * CALLS.len());
    }

    #[test]
    fn a_call_that_was_never_made_is_no_result() {
        let mut figures = Figures::new();
        for call in CALLS {
            figures.insert(format!("{call}_calls"), 10.0);
            figures.insert(format!("{call}_worst"), 5.0);
        }
        let mut counts = Counts::new();
        enter(&mut counts, &CORES[0], &PLACEMENTS[0], &figures).unwrap();
        assert_eq!(counts.len(), CALLS.len());
        figures.insert("free_calls".into(), 0.0);
        assert!(enter(&mut counts, &CORES[0], &PLACEMENTS[0], &figures).is_err());
        figures.remove("free_calls");
        assert!(enter(&mut counts, &CORES[0], &PLACEMENTS[0], &figures).is_err());
    }

    /// Every placement is a feature of the firmware.
    #[test]
    fn placements_are_features() {
        let manifest = fs::read_to_string(firmware::root().join("boards/measure/Cargo.toml")).unwrap();
        for placement in &PLACEMENTS {
            assert!(manifest.contains(&format!("\n{} = [", placement.name)), "{}", placement.name);
        }
    }
}
