//! Pools over a simulated device: the memory reserved for recorded runs of PyTorch, and the cost of many holes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use allotment::placement::{Apart, FirstFitMap, SegmentPlacement};
use allotment::pool::{DefaultPlacement, DevicePool, PoolOptions, RawPool};
use allotment::sim::DeviceMemory;
use anyhow::{Context, Result};

use super::{Measure, Options};
use crate::results::{Results, Row};
use crate::statistics::median;
use crate::table::{Better, Table};
use crate::trace::{Kind, Trace};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "pools",
    about: "pools of a device: what they reserve for PyTorch's runs, and many holes",
    run,
    tables,
};

const RESERVED: &str = "reserved / peak live";
const CALLS: &str = "calls of the source for memory";
const HOLES: &str = "ns for 1 KiB and its free among 65,536 holes";

const TRACES: [&str; 3] = ["resnet18_train", "gpt_train", "bert_infer"];
const MIB: usize = 1 << 20;

/// The name of our model of PyTorch's policy.
const PYTORCH: &str = "PyTorch's policy (our model)";

fn tables(_: &Results) -> Vec<Table> {
    vec![
        Table {
            title: "What is reserved for runs of PyTorch",
            text: "The most that is reserved, over the most that is requested at once. Pools over a simulated device: as they \
                   are (segments of 2 and 20 MiB, beyond 10 MiB of their own); lean, with segments of 2 MiB and larger ones \
                   of just their size, or of 2 MiB and up to 20 MiB that are fitted to their first request; and lean in segments that grow in place and whose free pages go back, one for small requests and \
                   one for the others. The model of PyTorch's caching allocator \
                   is ours, after its documentation: best fit, 512 bytes, the same segments, remainders of large blocks of no \
                   more than 1 MiB kept."
                .into(),
            metric: RESERVED,
            better: Better::Lower,
            digits: 3,
            transposed: true,
            ..Table::default()
        },
        Table {
            title: "What that takes in calls",
            text: "Segments reserved and lengthened and pages mapped again in the same runs. On a device with `Virtual` each of them is three calls of the driver for every piece of memory, of 2 MiB in the column of segments that grow (`with_pieces`), of 32 MiB by default, and one for access.".into(),
            metric: CALLS,
            better: Better::Neither,
            digits: 0,
            transposed: true,
            ..Table::default()
        },
        Table {
            title: "Many holes",
            text: "1 KiB allocated and freed while 65,536 holes of the size at the head of the column are free: nanoseconds for \
                   both, median of rounds. (RMM's pool takes 154 µs, cudaMallocAsync 2.2 µs.)"
                .into(),
            metric: HOLES,
            better: Better::Lower,
            digits: 0,
            ..Table::default()
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let lean = || PoolOptions::new().lean(true).segments(2 * MIB);
    let fitted = || PoolOptions::new().lean(true).fitted_segments(20 * MIB);
    let growing = || lean().exact_above(usize::MAX, 2 * MIB);
    for name in TRACES {
        let file = format!("../tests/data/tensors/{name}.trace.zst");
        let trace = Trace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file))?;
        let mut add = |subject: &str, (reserved, calls): (u64, u64)| {
            rows.push(Row::new(name, subject, RESERVED, reserved as f64 / trace.peak as f64));
            rows.push(Row::new(name, subject, CALLS, calls as f64));
        };
        add("allotment-pool", reserved::<DefaultPlacement>(&trace, PoolOptions::new(), 0)?);
        add("allotment-pool, lean", reserved::<DefaultPlacement>(&trace, lean(), 0)?);
        add("allotment-pool, lean, first fit", reserved::<Apart<FirstFitMap, 256>>(&trace, lean(), 0)?);
        add("allotment-pool, lean, fitted", reserved::<DefaultPlacement>(&trace, fitted(), 0)?);
        add("allotment-pool, lean, growing", reserved::<DefaultPlacement>(&trace, growing(), 4 << 30)?);
        add(PYTORCH, PyTorch::replay(&trace)?);
    }
    for hole in [1024, 2048] {
        let times: Result<Vec<f64>> = (0..options.pick(5, 2)).map(|_| holes(hole)).collect();
        rows.push(Row::new(format!("{hole} bytes"), "allotment-pool", HOLES, median(&times?)));
    }
    Ok(rows)
}

/// Replays a trace on one stream of a device of 4 GiB. Returns the most bytes reserved and the calls for them.
fn reserved<P: SegmentPlacement>(trace: &Trace, options: PoolOptions, room: usize) -> Result<(u64, u64)> {
    let device: DeviceMemory = DeviceMemory::new(4 << 30).with_granularity(2 * MIB).with_room(room);
    let stream = device.stream();
    let pool = RawPool::<P, _>::new(device, options)?;
    let mut live: Vec<_> = (0..trace.slots).map(|_| None).collect();
    for op in &trace.ops {
        let slot = &mut live[op.slot as usize];
        match op.kind {
            Kind::Allocate => *slot = Some(pool.allocate_raw(op.size(), 1, &stream)?),
            Kind::Free => pool.deallocate(slot.take().context("the block is live")?)?,
            Kind::Reallocate => anyhow::bail!("tensors are not resized"),
        }
    }
    let stats = pool.stats();
    Ok((stats.reserved.peak, stats.calls.reserve + stats.calls.grow + stats.calls.map))
}

/// Returns the nanoseconds for 1 KiB allocated and freed while 65,536 blocks of `hole` bytes are free, each between
/// two live ones.
fn holes(hole: usize) -> Result<f64> {
    const PAIRS: usize = 1_000_000;
    let device: DeviceMemory = DeviceMemory::new(8 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device, PoolOptions::new().small(0, 0).first_segment(1 << 30))?;
    let mut blocks = Vec::new();
    for _ in 0..2 * 65_536 {
        blocks.push(pool.allocate(hole, &stream)?);
    }
    let mut number = 0;
    blocks.retain(|_| (number % 2 == 0, number += 1).0);
    let start = Instant::now();
    for _ in 0..PAIRS {
        pool.deallocate(std::hint::black_box(pool.allocate_raw(1024, 1, &stream)?))?;
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

/// The sizes and rules of PyTorch's caching allocator (one stream, no expandable segments), to model what it
/// reserves. The real one was not run.
#[derive(Default)]
struct PyTorch {
    /// Free blocks of the small and of the large pool by size and address.
    free: [BTreeSet<(usize, usize)>; 2],
    /// All blocks by address.
    blocks: BTreeMap<usize, PyTorchBlock>,
    reserved: usize,
    segments: u64,
}

#[derive(Clone, Copy)]
struct PyTorchBlock {
    size: usize,
    live: bool,
    segment: u64,
    /// The index of its pool.
    large: usize,
}

impl PyTorch {
    fn replay(trace: &Trace) -> Result<(u64, u64)> {
        let mut model = Self::default();
        let mut live = vec![None; trace.slots];
        for op in &trace.ops {
            let slot = &mut live[op.slot as usize];
            match op.kind {
                Kind::Allocate => *slot = Some(model.allocate(op.size())),
                Kind::Free => model.free(slot.take().context("the block is live")?),
                Kind::Reallocate => anyhow::bail!("tensors are not resized"),
            }
        }
        Ok((model.reserved as u64, model.segments))
    }

    fn allocate(&mut self, bytes: usize) -> usize {
        let size = bytes.max(1).next_multiple_of(512);
        let large = usize::from(size > MIB);
        let found = self.free[large].range((size, 0)..).next().copied();
        let (found, at) = found.unwrap_or_else(|| self.reserve(size, large));
        self.free[large].remove(&(found, at));
        let rest = found - size;
        let split = rest >= if large == 1 { MIB + 1 } else { 512 };
        if let Some(block) = self.blocks.get_mut(&at) {
            block.live = true;
            let mut other = *block;
            if split {
                block.size = size;
                (other.size, other.live) = (rest, false);
                self.blocks.insert(at + size, other);
                self.free[large].insert((rest, at + size));
            }
        }
        at
    }

    fn reserve(&mut self, size: usize, large: usize) -> (usize, usize) {
        let bytes = match size {
            ..=MIB => 2 * MIB,
            _ if size < 10 * MIB => 20 * MIB,
            _ => size.next_multiple_of(2 * MIB),
        };
        self.reserved += bytes;
        self.segments += 1;
        let at = (self.segments as usize) << (usize::BITS - 24);
        self.blocks.insert(at, PyTorchBlock { size: bytes, live: false, segment: self.segments, large });
        (bytes, at)
    }

    fn free(&mut self, mut at: usize) {
        let Some(mut block) = self.blocks.remove(&at) else { return };
        let joins = |other: &PyTorchBlock| !other.live && other.segment == block.segment;
        let before = self.blocks.range(..at).next_back().map(|(&at, &other)| (at, other));
        let after = self.blocks.get(&(at + block.size)).copied().filter(joins);
        if let Some(other) = after {
            self.blocks.remove(&(at + block.size));
            self.free[block.large].remove(&(other.size, at + block.size));
        }
        if let Some((start, other)) = before.filter(|(start, other)| joins(other) && start + other.size == at)
        {
            self.blocks.remove(&start);
            self.free[block.large].remove(&(other.size, start));
            at = start;
            block.size += other.size;
        }
        block.size += after.map_or(0, |other| other.size);
        block.live = false;
        self.free[block.large].insert((block.size, at));
        self.blocks.insert(at, block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments that grow in place, and segments of 2 and up to 20 MiB.
    #[test]
    fn lean_pools_reserve_little_more_than_is_live() {
        for name in ["resnet18_train", "gpt_train"] {
            let file = format!("../tests/data/tensors/{name}.trace.zst");
            let trace = Trace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
            let lean = || PoolOptions::new().lean(true);
            let growing = lean().segments(2 * MIB).exact_above(usize::MAX, 2 * MIB);
            for (options, room) in [(growing, 4 << 30), (lean().fitted_segments(20 * MIB), 0)] {
                let (reserved, _) = reserved::<DefaultPlacement>(&trace, options, room).unwrap();
                assert!(reserved as f64 <= 1.05 * trace.peak as f64, "{name}: {reserved} of {}", trace.peak);
            }
        }
    }

    #[test]
    fn pools_as_they_are_reserve_no_more_than_the_model_of_pytorch() {
        for name in TRACES {
            let file = format!("../tests/data/tensors/{name}.trace.zst");
            let trace = Trace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
            let ours = reserved::<DefaultPlacement>(&trace, PoolOptions::new(), 0).unwrap();
            let theirs = PyTorch::replay(&trace).unwrap();
            assert!(ours.0 <= theirs.0, "{name}: {ours:?} {theirs:?}");
        }
    }
}
