//! Offset allocation in a pool of device memory, with the random-allocation workload of RMM's benchmarks.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::{NonNull, without_provenance_mut};
use std::time::Instant;

use allotment::Region;
use allotment::placement::{Block, GoodFit, SegmentPlacement};
use allotment::pool::{Allocation, DevicePool, PoolOptions};
use allotment::sim::{DeviceMemory, Stream};
use allotment_benches::rmm::{self, COUNTS, Nothing, SIZES, Target, workload};
use anyhow::{Context, Result, ensure};

use super::{Measure, Options};
use crate::results::{Results, Row};
use crate::statistics::median;
use crate::table::{Better, HARNESS, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "offsets",
    about: "offsets in a pool: RMM's random workload on side tables",
    run,
    tables,
};

const TIME: &str = "ns per operation, 40 GiB pool";
const FAILED: &str = "failed requests, 20 GiB pool";

const GRANULE: u64 = 256;

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
    let subjects: &[(&str, Run)] = &[
        ("allotment-pool-simulated", timed::<Device>),
        ("allotment-good-fit-side-table", timed::<Side<GoodFit<u32, { GRANULE as usize }>>>),
        #[cfg(feature = "peers")]
        ("offset-allocator", timed::<Peer>),
        ("best-fit map (reference)", timed::<BestFit>),
        (HARNESS, timed::<Nothing>),
    ];
    ensure!(rmm::is_sound(), "the workload is not RMM's");
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

/// An allocator of offsets.
trait Offsets: Target + Sized {
    /// Makes a pool of `size` bytes.
    fn new(size: u64) -> Result<Self>;
}

/// Rounds up to granules, as all subjects do.
fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}

/// Runs the workload in a pool of `size` bytes. Returns nanoseconds per operation and the number of failed
/// requests.
type Run = fn(size: u64, count: usize, max: u64) -> Result<(f64, usize)>;

fn timed<O: Offsets>(size: u64, count: usize, max: u64) -> Result<(f64, usize)> {
    let mut pool = O::new(size)?;
    let start = Instant::now();
    let outcome = workload(&mut pool, count, max);
    let time = start.elapsed().as_nanos() as f64 / (2 * count) as f64;
    Ok((time, std::hint::black_box(outcome.failed)))
}

impl Offsets for Nothing {
    fn new(_: u64) -> Result<Self> {
        Ok(Self)
    }
}

/// One of allotment's placements over a side table.
struct Side<P>(Box<P>);

impl<P: SegmentPlacement> Offsets for Side<P> {
    fn new(size: u64) -> Result<Self> {
        let mut placement = Box::new(P::EMPTY);
        let start = NonNull::new(without_provenance_mut(1 << (usize::BITS - 24))).context("not null")?;
        // SAFETY: a side table never touches the memory that it describes.
        unsafe { placement.claim(Region::new(start, size as usize)) }
            .map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Self(placement))
    }
}

impl<P: SegmentPlacement> Target for Side<P> {
    type Block = Block<P::Token>;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        self.0.allocate(granules(bytes) as usize, 1)
    }

    #[inline]
    fn free(&mut self, block: Self::Block, bytes: u64) {
        // SAFETY: the block is live.
        let freed = unsafe { self.0.deallocate(block, granules(bytes) as usize, 1) };
        debug_assert!(freed.is_ok());
    }
}

/// allotment's pool over a simulated device, with lock, streams and statistics. It has one segment that cannot
/// grow.
struct Device {
    pool: DevicePool<DeviceMemory>,
    stream: Stream,
}

impl Offsets for Device {
    fn new(size: u64) -> Result<Self> {
        let device = DeviceMemory::new(size as usize);
        let stream = device.stream();
        let pool = DevicePool::new(device, PoolOptions::new().small(0, 0))?;
        pool.preallocate(size as usize, &stream)?;
        Ok(Self { pool, stream })
    }
}

impl Target for Device {
    type Block = Allocation;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        self.pool.allocate_raw((granules(bytes) * GRANULE) as usize, 1, &self.stream).ok()
    }

    #[inline]
    fn free(&mut self, block: Allocation, _: u64) {
        let freed = self.pool.deallocate(block);
        debug_assert!(freed.is_ok());
    }
}

/// offset-allocator in units of granules.
#[cfg(feature = "peers")]
struct Peer(offset_allocator::Allocator<u32>);

#[cfg(feature = "peers")]
impl Offsets for Peer {
    fn new(size: u64) -> Result<Self> {
        let granules = u32::try_from(size / GRANULE)?;
        // This is enough nodes for every workload here: live blocks and the gaps between them.
        Ok(Self(offset_allocator::Allocator::with_max_allocs(granules, 1 << 18)))
    }
}

#[cfg(feature = "peers")]
impl Target for Peer {
    type Block = offset_allocator::Allocation<u32>;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<Self::Block> {
        self.0.allocate(granules(bytes) as u32)
    }

    #[inline]
    fn free(&mut self, block: Self::Block, _: u64) {
        self.0.free(block);
    }
}

/// Best fit with the lowest offset first, over ordered trees: the reference for density.
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
    fn new(size: u64) -> Result<Self> {
        let mut pool = Self { by_offset: BTreeMap::new(), by_size: BTreeSet::new() };
        pool.put(0, size / GRANULE);
        Ok(pool)
    }
}

impl Target for BestFit {
    type Block = u64;

    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let granules = granules(bytes);
        let &(len, offset) = self.by_size.range((granules, 0)..).next()?;
        self.take(offset, len);
        if len > granules {
            self.put(offset + granules, len - granules);
        }
        Some(offset)
    }

    fn free(&mut self, block: u64, bytes: u64) {
        let (mut offset, mut len) = (block, granules(bytes));
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
