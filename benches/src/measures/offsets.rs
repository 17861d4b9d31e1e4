//! Offsets in a pool of device memory: the random-allocation workload of RMM's benchmarks.
//!
//! One thread and one stream. The generator is C++'s `minstd_rand0` with seed 1 behind the
//! `uniform_int_distribution` of libstdc++, so that every allocator gets the requests that RMM's own get.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::{NonNull, without_provenance_mut};
use std::time::Instant;

use allotment::meta::{BlockOf, SideTable};
use allotment::placement::{GoodFit, Space};
use allotment::pool::{Allocation, DevicePool, PoolOptions};
use allotment::sim::{DeviceMemory, Stream};
use allotment::{Region, Tlsf};
use anyhow::{Context, Result, ensure};

use super::{Measure, Options};
use crate::report::{Better, HARNESS, Table};
use crate::results::{Results, Row};
use crate::statistics::median;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "offsets",
    about: "offsets in a pool: RMM's random workload on side tables",
    run,
    tables,
};

const TIME: &str = "ns per operation, 40 GiB pool";
const FAILED: &str = "failed requests, 20 GiB pool";

const COUNTS: [usize; 3] = [1000, 10_000, 100_000];
const SIZES: [u64; 6] = [1, 4, 64, 256, 1024, 4096];
const MIB: u64 = 1 << 20;
const GRANULE: u64 = 256;

/// No more bytes than this are live.
const CAP: u64 = 16_000 * MIB;

fn tables(_: &Results) -> Vec<Table> {
    vec![
        Table {
            title: "Time per operation",
            text: "2 N operations of RMM's random workload (minstd_rand0, seed 1): a size from 1 to the largest, 73 % \
                   allocations up to N of them and up to 16,000 MiB live, else the free of a random block; N and the \
                   largest size in MiB head the columns. Nanoseconds, median of rounds, the harness included; the \
                   row \"harness\" is the same without an allocator. All round to 256 bytes."
                .into(),
            metric: TIME,
            better: Better::Lower,
            mean: true,
            digits: 0,
            transposed: true,
            ..Table::default()
        },
        Table {
            title: "Failed requests in a tight pool",
            text: "The same requests in 20 GiB, with sizes up to 1 and 4 GiB.".into(),
            metric: FAILED,
            better: Better::Lower,
            digits: 0,
            transposed: true,
            ..Table::default()
        },
    ]
}

fn name(count: usize, size: u64) -> String {
    format!("{count}, {size}")
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let subjects: [(&str, Run); 6] = [
        ("allotment-pool-simulated", timed::<Device>),
        ("allotment-good-fit-side-table", timed::<Side<GoodFit<Table32>>>),
        ("allotment-tlsf-side-table", timed::<Side<Tlsf<Table32>>>),
        ("offset-allocator", timed::<Peer>),
        ("best-fit map (reference)", timed::<BestFit>),
        (HARNESS, timed::<Nothing>),
    ];
    self_check()?;
    let mut rows = Vec::new();
    let rounds = options.pick(5, 2);
    for count in COUNTS {
        for size in SIZES {
            let mut times = vec![vec![]; subjects.len()];
            for _ in 0..rounds {
                for ((_, run), times) in subjects.iter().zip(&mut times) {
                    times.push(run(40 << 30, count, size)?.0);
                }
            }
            for ((id, _), times) in subjects.iter().zip(&times) {
                rows.push(Row::new(name(count, size), *id, TIME, median(times)));
            }
        }
    }
    for size in [1024, 4096] {
        for (id, run) in subjects.iter().filter(|subject| subject.0 != HARNESS) {
            let (_, failed) = run(20 << 30, 100_000, size)?;
            rows.push(Row::new(name(100_000, size), *id, FAILED, failed as f64));
        }
    }
    Ok(rows)
}

/// The workload's own figures, which are known.
fn self_check() -> Result<()> {
    let outcome = workload(&mut Nothing, 1000, 1);
    ensure!(
        outcome.blocks == 638 && (outcome.peak as f64 / MIB as f64 - 308.8).abs() < 0.06,
        "the workload is not RMM's: {} blocks, {} bytes",
        outcome.blocks,
        outcome.peak
    );
    Ok(())
}

/// An allocator of offsets.
trait Offsets: Sized {
    /// What a block is freed by.
    type Block;
    fn new(size: u64) -> Result<Self>;
    fn allocate(&mut self, granules: u64) -> Option<Self::Block>;
    fn free(&mut self, block: Self::Block, granules: u64);
}

/// Runs the workload in a pool of `size` bytes: nanoseconds per operation, and failed requests.
type Run = fn(size: u64, count: usize, max: u64) -> Result<(f64, usize)>;

fn timed<O: Offsets>(size: u64, count: usize, max: u64) -> Result<(f64, usize)> {
    let mut pool = O::new(size)?;
    let start = Instant::now();
    let outcome = workload(&mut pool, count, max);
    let time = start.elapsed().as_nanos() as f64 / (2 * count) as f64;
    Ok((time, std::hint::black_box(outcome.failed)))
}

/// C++'s `minstd_rand0`.
struct Minstd(u64);

impl Minstd {
    const MODULUS: u64 = 2_147_483_647;

    fn next(&mut self) -> u64 {
        self.0 = self.0 * 16_807 % Self::MODULUS;
        self.0
    }

    /// A number from `low` to `high`. The generator yields 1 to 2^31 - 2; where the range is smaller, it is
    /// scaled down and what is left over is rejected, and where it is larger, two numbers are combined.
    fn uniform(&mut self, low: u64, high: u64) -> u64 {
        let (range, given) = (high - low, Self::MODULUS - 2);
        if range < given {
            let wanted = range + 1;
            let scaling = given / wanted;
            loop {
                let number = self.next() - 1;
                if number < wanted * scaling {
                    return low + number / scaling;
                }
            }
        }
        if range == given {
            return low + self.next() - 1;
        }
        loop {
            let upper = (given + 1) * self.uniform(0, range / (given + 1));
            let number = upper + (self.next() - 1);
            if number >= upper && number <= range {
                return low + number;
            }
        }
    }
}

struct Outcome {
    failed: usize,
    /// The most bytes live at once, as requested.
    peak: u64,
    /// The most blocks live at once.
    blocks: usize,
}

fn workload<O: Offsets>(pool: &mut O, count: usize, max: u64) -> Outcome {
    let mut random = Minstd(1);
    let mut live: Vec<(O::Block, u64)> = Vec::new();
    let (mut made, mut bytes) = (0, 0);
    let mut outcome = Outcome { failed: 0, peak: 0, blocks: 0 };
    for _ in 0..2 * count {
        let size = random.uniform(1, max * MIB);
        let allocate = if live.is_empty() {
            true
        } else {
            random.uniform(0, 99) < 73 && made < count && bytes + size < CAP
        };
        let mut block = None;
        if allocate {
            block = pool.allocate(size.div_ceil(GRANULE));
            outcome.failed += usize::from(block.is_none());
        }
        if let Some(block) = block {
            live.push((block, size));
            made += 1;
            bytes += size;
            outcome.peak = outcome.peak.max(bytes);
            outcome.blocks = outcome.blocks.max(live.len());
        } else if !live.is_empty() {
            let place = random.uniform(0, count as u64 - 1) as usize % live.len();
            let (block, size) = live.swap_remove(place);
            pool.free(block, size.div_ceil(GRANULE));
            bytes -= size;
        }
    }
    outcome
}

/// Only the harness.
struct Nothing;

impl Offsets for Nothing {
    type Block = u64;

    fn new(_: u64) -> Result<Self> {
        Ok(Self)
    }

    fn allocate(&mut self, granules: u64) -> Option<u64> {
        Some(granules)
    }

    fn free(&mut self, _: u64, _: u64) {}
}

type Table32 = SideTable<u32, { GRANULE as usize }, 1, false>;

/// One of allotment's placements over a side table.
struct Side<P>(Box<P>);

impl<P: Space<Meta = Table32>> Offsets for Side<P> {
    type Block = BlockOf<Table32>;

    fn new(size: u64) -> Result<Self> {
        let mut placement = Box::new(P::EMPTY);
        let start = NonNull::new(without_provenance_mut(1 << 40)).context("not null")?;
        // SAFETY: a side table never touches the memory that it describes.
        unsafe { placement.claim(Region::new(start, size as usize)) }
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self(placement))
    }

    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<Self::Block> {
        let len = granules as usize;
        match self.0.allocate_quick(len, 1) {
            None => self.0.allocate(len, 1),
            block => block,
        }
    }

    #[inline]
    fn free(&mut self, block: Self::Block, granules: u64) {
        // SAFETY: the block is live.
        let freed = unsafe { self.0.deallocate(block, granules as usize, 1) };
        debug_assert!(freed.is_ok());
    }
}

/// allotment's pool over a simulated device: lock, streams, statistics and all. One segment, which cannot grow.
struct Device {
    pool: DevicePool<DeviceMemory>,
    stream: Stream,
}

impl Offsets for Device {
    type Block = Allocation;

    fn new(size: u64) -> Result<Self> {
        let device = DeviceMemory::new(size as usize);
        let stream = device.stream();
        let pool = DevicePool::new(device, PoolOptions::new().small(0, 0))?;
        pool.preallocate(size as usize, &stream)?;
        Ok(Self { pool, stream })
    }

    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<Allocation> {
        self.pool.allocate_raw((granules * GRANULE) as usize, 1, &self.stream).ok()
    }

    #[inline]
    fn free(&mut self, block: Allocation, _: u64) {
        let freed = self.pool.deallocate(block);
        debug_assert!(freed.is_ok());
    }
}

/// offset-allocator in units of granules.
struct Peer(offset_allocator::Allocator<u32>);

impl Offsets for Peer {
    type Block = offset_allocator::Allocation<u32>;

    fn new(size: u64) -> Result<Self> {
        let granules = u32::try_from(size / GRANULE)?;
        // Enough nodes for every workload here: live blocks and the gaps between them.
        Ok(Self(offset_allocator::Allocator::with_max_allocs(granules, 1 << 18)))
    }

    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<Self::Block> {
        self.0.allocate(granules as u32)
    }

    #[inline]
    fn free(&mut self, block: Self::Block, _: u64) {
        self.0.free(block);
    }
}

/// Best fit, lowest offset first, over ordered trees: what density costs without ideas.
struct BestFit {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl BestFit {
    fn put(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_size.insert((len, offset));
    }

    fn take(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_size.remove(&(len, offset));
    }
}

impl Offsets for BestFit {
    type Block = u64;

    fn new(size: u64) -> Result<Self> {
        let mut pool = Self { by_offset: BTreeMap::new(), by_size: BTreeSet::new() };
        pool.put(0, size / GRANULE);
        Ok(pool)
    }

    fn allocate(&mut self, granules: u64) -> Option<u64> {
        let &(len, offset) = self.by_size.range((granules, 0)..).next()?;
        self.take(offset, len);
        if len > granules {
            self.put(offset + granules, len - granules);
        }
        Some(offset)
    }

    fn free(&mut self, block: u64, granules: u64) {
        let (mut offset, mut len) = (block, granules);
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before + size == offset
        {
            self.take(before, size);
            (offset, len) = (before, len + size);
        }
        if let Some(&size) = self.by_offset.get(&(offset + len)) {
            self.take(offset + len, size);
            len += size;
        }
        self.put(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_is_rmms() {
        self_check().unwrap();
        let outcome = workload(&mut Nothing, 100_000, 1);
        assert_eq!(outcome.blocks, 36_071);
        assert_eq!((outcome.peak as f64 / MIB as f64).round() as u64, 16_000);
    }

    #[test]
    fn the_pool_fails_no_more_often_than_best_fit() {
        for (max, most) in [(1024, 427), (4096, 2341)] {
            assert!(timed::<Device>(20 << 30, 100_000, max).unwrap().1 <= most);
        }
    }

    #[test]
    fn best_fit_fails_as_often_as_is_known() {
        assert_eq!(timed::<BestFit>(20 << 30, 100_000, 1024).unwrap().1, 427);
    }
}
