//! Instances that were open for long: coarse alignments, gaps with in-place pairs, and ten million buffers.

use allotment_planner::generate::random;
use allotment_planner::model::{Buffer, Gap, Instance};
use anyhow::{Context, Result};

use super::large::spawn;
use super::run::{above, head, percent};
use super::{Args, Findings};

/// Blocks of the programs whose blocks are aligned to 64 and 1,024 bytes.
const BLOCKS: i64 = 14_000;

/// Buffers with gaps and in-place pairs.
const SHARED: usize = 100_000;

/// Buffers of the largest instance.
const MANY: usize = 10_000_000;

/// Makes the instance called `name`: `heap-N` and `short-N` for [`aligned`] blocks, `shared-N` for N buffers with gaps and
/// pairs, or a number of random buffers; `None` if it is no such name.
pub fn instance(name: &str) -> Option<Result<Instance>> {
    let made = match name.split_once('-') {
        None => return Some(Ok(random(name.parse().ok()?, 64, 1))),
        Some(("heap", coarse)) => aligned(true, coarse.parse().ok()?),
        Some(("short", coarse)) => aligned(false, coarse.parse().ok()?),
        Some(("shared", count)) => shared(count.parse().ok()?),
        Some(_) => return None,
    };
    Some(made)
}

/// One block after the other is allocated, of 16 bytes to 16 KiB, `coarse` of 16 aligned to 1,024 and the others to 64. If
/// `stay`, three quarters live to the end; all others live 200 steps on average.
fn aligned(stay: bool, coarse: u8) -> Result<Instance> {
    let mut random = fastrand::Rng::with_seed(1);
    let end = BLOCKS + 1;
    let blocks = (0..BLOCKS).map(|start| {
        let size = (16.0 * 1024_f64.powf(random.f64())) as u64;
        let length = 1 + (-(1.0 - random.f64()).ln() * 200.0) as i64;
        let until = if stay && random.f64() < 0.75 { end } else { end.min(start + length) };
        let align = if random.u8(..16) < coarse { 1024 } else { 64 };
        Buffer { align, ..Buffer::new(start.to_string(), size, start, until) }
    });
    Instance::new(blocks.collect()).context("the blocks contradict themselves")
}

/// Random buffers, of which a quarter of the longer ones have a gap, and an eighth begin where the one before ends, in its place.
fn shared(count: usize) -> Result<Instance> {
    let mut buffers = random(count, 64, 1).buffers().to_vec();
    let mut random = fastrand::Rng::with_seed(1);
    buffers.sort_by_key(|buffer| buffer.start);
    for n in 1..count {
        let (start, end) = (buffers[n].start, buffers[n].end);
        match random.u8(..8) {
            0 | 1 if end - start >= 4 => {
                buffers[n].gaps = vec![Gap { start: start + 1, end: end - 1, window: None }];
            }
            2 if buffers[n - 1].end > start => {
                (buffers[n].size, buffers[n].alias) = (buffers[n - 1].size, Some(n - 1));
                buffers[n - 1].end = start + 1;
                buffers[n - 1].gaps.clear();
            }
            _ => {}
        }
    }
    Instance::new(buffers).context("the buffers contradict themselves")
}

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
                "other work on the machine: PLANNING.md",
            );
        }
    }
    found.target(
        "14,000 blocks of a program aligned to 64 and 1,024: within 0.5 % in 10 s",
        format!("{worst:+.3} % at most"),
        worst <= 0.5,
        "PLANNING.md",
    );
    Ok(found)
}
