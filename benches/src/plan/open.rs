//! Instances that were open for long: coarse alignments, gaps with in-place pairs, and ten million buffers.

use anyhow::Result;

use super::alone::spawn;
use super::made::BLOCKS;
use super::run::{above, head, percent};
use super::{Args, Findings};

/// Buffers with gaps and in-place pairs.
const SHARED: usize = 100_000;

/// Buffers of the largest instance.
const MANY: usize = 10_000_000;

/// Measures all of them.
pub fn open(_: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line(format!(
        "Each in a process of its own, two threads. `heap-N`: {BLOCKS} blocks of 16 B to 16 KiB, N of 16 aligned to 1,024 and the others to 64, three \
         quarters live to the end; `short-N`: all of them live 200 steps on average. `shared-N`: N random buffers, a quarter of the longer ones \
         with a gap, an eighth in the place of the one before.\n"
    ));
    found.line(head(&[
        "instance",
        "limit, s",
        "peak, B",
        "above the bound",
        "best plan, s",
        "all, s",
        "resident, MiB",
    ]));
    let heaps = [1, 4, 8, 12].map(|coarse| (format!("heap-{coarse}"), 10.0));
    let shorts = [1, 4, 8].map(|coarse| (format!("short-{coarse}"), 10.0));
    let others = [(format!("shared-{SHARED}"), 30.0), (MANY.to_string(), 60.0)];
    let mut worst: f64 = 0.0;
    for (name, limit) in heaps.into_iter().chain(shorts).chain(others) {
        let run = spawn(&name, limit)?;
        let gap = percent(run.peak, run.bound);
        found.line(format!(
            "| {name} | {limit} | {} | {gap} | {:.2} | {:.2} | {} |",
            run.peak, run.best, run.all, run.most
        ));
        if name.starts_with("heap") {
            worst = worst.max(above(run.peak, run.bound));
        }
        if name == MANY.to_string() {
            found.target(
                "10^7 random buffers in 2 minutes and 8 GiB",
                format!("{gap} in {:.0} s; {} MiB", run.all, run.most),
                run.all < 120.0 && run.most < 8192,
                "other work on the machine: docs/lab/planner.md",
            );
        }
    }
    found.target(
        "14,000 blocks of a program aligned to 64 and 1,024: within 0.5 % in 10 s",
        format!("{worst:+.3} % at most"),
        worst <= 0.5,
        "docs/lab/planner.md",
    );
    Ok(found)
}
