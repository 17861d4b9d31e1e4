//! Instances that are made, by name.

use super::generate::random;
use allotment_planner::model::{Buffer, Gap, Instance};
use anyhow::{Context, Result};

/// Blocks of the programs whose blocks are aligned to 64 and 1,024 bytes.
pub const BLOCKS: i64 = 14_000;

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
