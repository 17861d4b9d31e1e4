//! Offsets in a pool of device memory: the random-allocation workload of RMM's benchmarks.
//!
//! One thread and one stream. The generator is C++'s `minstd_rand0` with seed 1 behind the
//! `uniform_int_distribution` of libstdc++, so that every allocator gets the requests that RMM's own get.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::{NonNull, without_provenance_mut};
use std::time::Instant;

use allotment::meta::{BlockOf, SideTable};
use allotment::placement::Space;
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
    type Pool = fn(u64) -> Result<Box<dyn Offsets>>;
    let subjects: [(&str, Pool); 5] = [
        ("allotment-pool-simulated", |size| Ok(Box::new(Device::new(size)?))),
        ("allotment-tlsf-side-table", |size| Ok(Box::new(Side::new(size)?))),
        ("offset-allocator", |size| Ok(Box::new(Peer::new(size)))),
        ("best-fit map (reference)", |size| Ok(Box::new(BestFit::new(size)))),
        (HARNESS, |_| Ok(Box::new(Nothing))),
    ];
    self_check()?;
    let mut rows = Vec::new();
    let rounds = options.pick(5, 2);
    for count in COUNTS {
        for size in SIZES {
            let mut times = vec![vec![]; subjects.len()];
            for _ in 0..rounds {
                for ((_, pool), times) in subjects.iter().zip(&mut times) {
                    let mut pool = pool(40 << 30)?;
                    let start = Instant::now();
                    let outcome = workload(&mut *pool, count, size);
                    let time = start.elapsed().as_nanos() as f64 / (2 * count) as f64;
                    std::hint::black_box(outcome.failed);
                    times.push(time);
                }
            }
            for ((id, _), times) in subjects.iter().zip(&times) {
                rows.push(Row::new(name(count, size), *id, TIME, median(times)));
            }
        }
    }
    for size in [1024, 4096] {
        for (id, pool) in subjects.iter().filter(|subject| subject.0 != HARNESS) {
            let mut pool = pool(20 << 30)?;
            let outcome = workload(&mut *pool, 100_000, size);
            rows.push(Row::new(name(100_000, size), *id, FAILED, outcome.failed as f64));
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

/// An allocator of offsets; a block is known by a token of 64 bits.
trait Offsets {
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)>;
    fn free(&mut self, block: (u64, u64), granules: u64);
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

fn workload<O: Offsets + ?Sized>(pool: &mut O, count: usize, max: u64) -> Outcome {
    let mut random = Minstd(1);
    let mut live: Vec<((u64, u64), u64)> = Vec::new();
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
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)> {
        Some((granules, 0))
    }

    fn free(&mut self, _: (u64, u64), _: u64) {}
}

type Table32 = SideTable<u32, { GRANULE as usize }, 1, false>;
type SideTlsf = Tlsf<Table32>;

/// allotment's TLSF over a side table.
struct Side(Box<SideTlsf>);

impl Side {
    fn new(size: u64) -> Result<Self> {
        let mut tlsf = Box::new(<SideTlsf as Space>::EMPTY);
        let start = NonNull::new(without_provenance_mut(1 << 40)).context("not null")?;
        // SAFETY: a side table never touches the memory that it describes.
        unsafe { Space::claim(&mut *tlsf, Region::new(start, size as usize)) }
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self(tlsf))
    }
}

impl Offsets for Side {
    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)> {
        let block = Space::allocate(&mut *self.0, granules as usize, 1)?;
        Some((block.offset as u64, block.token as u64))
    }

    #[inline]
    fn free(&mut self, block: (u64, u64), granules: u64) {
        let len = granules as usize;
        let block = BlockOf::<Table32> { offset: block.0 as usize, len, token: block.1 as _ };
        // SAFETY: the block is live; without nodes running out its length is what was asked for.
        let freed = unsafe { Space::deallocate(&mut *self.0, block, len, 1) };
        debug_assert!(freed.is_ok());
    }
}

/// allotment's pool over a simulated device: lock, streams, statistics and all.
struct Device {
    pool: DevicePool<DeviceMemory>,
    stream: Stream,
    live: Vec<Option<Allocation>>,
    unused: Vec<u64>,
}

impl Device {
    /// A pool of one segment, which cannot grow.
    fn new(size: u64) -> Result<Self> {
        let device = DeviceMemory::new(size as usize);
        let stream = device.stream();
        let pool = DevicePool::new(device, PoolOptions::new().small(0, 0))?;
        pool.preallocate(size as usize, &stream)?;
        Ok(Self { pool, stream, live: Vec::with_capacity(1 << 17), unused: Vec::with_capacity(1 << 17) })
    }
}

impl Offsets for Device {
    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)> {
        let block = self.pool.allocate_raw((granules * GRANULE) as usize, 1, &self.stream).ok()?;
        let address = block.address() as u64;
        let slot = match self.unused.pop() {
            Some(slot) => slot,
            None => {
                self.live.push(None);
                self.live.len() as u64 - 1
            }
        };
        self.live[slot as usize] = Some(block);
        Some((address, slot))
    }

    #[inline]
    fn free(&mut self, block: (u64, u64), _: u64) {
        if let Some(live) = self.live[block.1 as usize].take() {
            self.unused.push(block.1);
            let freed = self.pool.deallocate(live);
            debug_assert!(freed.is_ok());
        }
    }
}

/// offset-allocator in units of granules.
struct Peer {
    allocator: offset_allocator::Allocator<u32>,
    tokens: Vec<Option<offset_allocator::Allocation<u32>>>,
    unused: Vec<u64>,
}

impl Peer {
    fn new(size: u64) -> Self {
        let granules = u32::try_from(size / GRANULE).expect("40 GiB are 168 million granules");
        // Enough nodes for every workload here: live blocks and the gaps between them.
        let allocator = offset_allocator::Allocator::with_max_allocs(granules, 1 << 18);
        Self { allocator, tokens: Vec::with_capacity(1 << 17), unused: Vec::with_capacity(1 << 17) }
    }
}

impl Offsets for Peer {
    #[inline]
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)> {
        let token = self.allocator.allocate(granules as u32)?;
        let slot = match self.unused.pop() {
            Some(slot) => slot,
            None => {
                self.tokens.push(None);
                self.tokens.len() as u64 - 1
            }
        };
        self.tokens[slot as usize] = Some(token);
        Some((u64::from(token.offset), slot))
    }

    #[inline]
    fn free(&mut self, block: (u64, u64), _: u64) {
        if let Some(token) = self.tokens[block.1 as usize].take() {
            self.allocator.free(token);
            self.unused.push(block.1);
        }
    }
}

/// Best fit, lowest offset first, over ordered trees: what density costs without ideas.
struct BestFit {
    by_offset: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl BestFit {
    fn new(size: u64) -> Self {
        let mut pool = Self { by_offset: BTreeMap::new(), by_size: BTreeSet::new() };
        pool.put(0, size / GRANULE);
        pool
    }

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
    fn allocate(&mut self, granules: u64) -> Option<(u64, u64)> {
        let &(len, offset) = self.by_size.range((granules, 0)..).next()?;
        self.take(offset, len);
        if len > granules {
            self.put(offset + granules, len - granules);
        }
        Some((offset, 0))
    }

    fn free(&mut self, block: (u64, u64), granules: u64) {
        let (mut offset, mut len) = (block.0, granules);
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
    fn best_fit_fails_as_often_as_is_known() {
        assert_eq!(workload(&mut BestFit::new(20 << 30), 100_000, 1024).failed, 427);
    }
}
