//! Pathological programs: what is slow or wasteful in the worst case.

use std::alloc::Layout;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::smallest::Smallest;
use super::synthetic::{Writer, vectors};
use super::throughput::Timed;
use super::{Measure, Options, dense, is_slow_twin, parallel, serves, subjects};
use crate::arena::Arena;
use crate::results::{Results, Row};
use crate::statistics::median;
use crate::subjects::{Entry, Form, Subject, Visitor, base, with};
use crate::table::{Better, Table};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure { name: "pathological", about: "programs that hurt", run, tables };

/// The metric of requests that fail.
pub const FAILING: &str = "ns of a failing request";
const REUSE: &str = "sizes that cannot be reused, %";
const GAPS: &str = "24 B blocks in the gaps";
const DENSITY: &str = "smallest arena / peak live";
const SPEED: &str = "throughput / talc 5";

fn tables(_: &Results) -> Vec<Table> {
    let common = Table::default();
    vec![
        Table {
            title: "A request that fails among 30,000 gaps",
            text: "60,000 blocks of 1,000 bytes, the rest of the arena taken, every other block freed; then requests for 24 \
                   to 3,096 bytes more, which none of the gaps can serve. Nanoseconds: the median of each of eleven \
                   sizes, and the worst of these."
                .into(),
            metric: FAILING,
            digits: 0,
            by_form: true,
            ..common.clone()
        },
        Table {
            title: "Same-size reuse",
            text: "For every size from 1 to 4,096: 256 KiB are filled with blocks of that size, one in the middle is \
                   freed, and the same size is requested again. Percent of the sizes for which that fails."
                .into(),
            metric: REUSE,
            digits: 1,
            ..common.clone()
        },
        Table {
            title: "Filling the gaps of aligned blocks",
            text: "1 MiB is filled with blocks of 512 bytes aligned to 4,096, then with blocks of 24 bytes: how many of \
                   these fit."
                .into(),
            metric: GAPS,
            better: Better::Higher,
            digits: 0,
            ..common.clone()
        },
        Table {
            title: "Smallest arena for synthetic programs",
            text: "As for the traces. *sawtooth*: 20 times 2,000 blocks of 16 to 256 bytes, freed in order, in reverse, \
                   or at random. *vectors*: 64 vectors that grow by doubling from 16 bytes to 16 KiB side by side. \
                   *lifetimes*: long-lived and short-lived blocks alternate; all short-lived ones are freed; then \
                   blocks of twice the size come."
                .into(),
            metric: DENSITY,
            digits: 3,
            ..common.clone()
        },
        Table {
            title: "Throughput of synthetic programs",
            text: "Median over interleaved rounds of (time of talc 5 / time), arena 1.5 x peak (for the third 2 x).".into(),
            metric: SPEED,
            better: Better::Higher,
            digits: 2,
            by_form: true,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    // Cases that do not measure time run on all cores.
    let entries: Vec<_> = dense().into_iter().filter(|entry| !is_small(entry)).collect();
    let counted = parallel(&entries, |entry| -> Result<_> {
        let reuse = with(entry.id, Reuse { stride: options.pick(1, 16) }).context("no such subject")??;
        // Alignment does not apply to allocators of mere offsets.
        let gaps =
            if entry.memory { with(entry.id, Gaps).context("no such subject")?.map(Some)? } else { None };
        Ok((reuse, gaps))
    });
    for (entry, counted) in entries.iter().zip(counted) {
        let (reuse, gaps) = counted?;
        rows.push(Row::new("1..=4096 B", entry.id, REUSE, reuse));
        if let Some(gaps) = gaps {
            rows.push(Row::new("1 MiB", entry.id, GAPS, gaps));
        }
    }
    let timed = subjects(|entry| {
        entry.confined && !entry.own_thread && !is_small(entry) && !entry.id.starts_with("embedded")
    });
    for entry in &timed {
        let nanoseconds = with(entry.id, Failing).context("no such subject")??;
        rows.push(Row::new("30,000 gaps", entry.id, FAILING, nanoseconds));
    }
    for trace in [sawtooth(), vectors(10), lifetimes()] {
        let jobs: Vec<&Entry> = entries.clone();
        let found = parallel(&jobs, |entry| {
            with(entry.id, Smallest { trace: &trace, entry }).context("no such subject").flatten()
        });
        for (entry, found) in jobs.iter().zip(found) {
            if let Some(smallest) = found? {
                rows.push(Row::new(&trace.name, entry.id, DENSITY, smallest as f64 / trace.peak as f64));
            }
        }
        rows.extend(speed(options, &trace)?);
    }
    Ok(rows)
}

/// Returns whether the subject works in small arenas only.
fn is_small(entry: &Entry) -> bool {
    !serves(entry, 1 << 30)
}

fn speed(options: &Options, trace: &Trace) -> Result<Vec<Row>> {
    let arena = Arena::new(trace.peak * 2)?;
    let admitted = subjects(|entry| !is_small(entry) && !is_slow_twin(entry));
    let mut times = vec![vec![]; admitted.len()];
    let place_of =
        |form| admitted.iter().position(|entry| entry.id == base(form)).context("talc 5 is a subject");
    let fastest = place_of(Form::Bare)?;
    for round in 0..options.pick(9, 3) {
        for place in 0..admitted.len() {
            let subject = (place + round) % admitted.len();
            // Three rounds are enough for very slow subjects.
            if round >= 3 && times[subject][0] > 20.0 * times[fastest][0] {
                continue;
            }
            let timed = Timed { trace, arena: &arena, repeat: 1 };
            let time = with(admitted[subject].id, timed).context("no such subject")??;
            times[subject].push(time.as_secs_f64());
        }
    }
    let mut rows = Vec::new();
    for (entry, own) in admitted.iter().zip(&times) {
        let pairs = times[place_of(entry.form)?].iter().zip(own);
        let ratio = median(&pairs.map(|(base, own)| base / own).collect::<Vec<_>>());
        rows.push(Row::new(&trace.name, entry.id, SPEED, ratio));
    }
    Ok(rows)
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("sizes are small")
}

/// The worst time of a request that fails.
struct Failing;

impl Visitor for Failing {
    type Out = Result<f64>;

    fn visit<S: Subject>(self) -> Self::Out {
        const BLOCKS: usize = 60_000;
        const SIZE: usize = 1000;
        let arena = Arena::new(2 * BLOCKS * SIZE)?;
        // SAFETY: the arena is ours; blocks are freed once.
        let mut subject = unsafe { S::new(arena.whole()) }.context("the arena is too small")?;
        let subject = &mut *subject;
        // SAFETY: as above.
        unsafe {
            let blocks: Vec<*mut u8> = (0..BLOCKS).map(|_| subject.alloc(layout(SIZE, 8))).collect();
            anyhow::ensure!(blocks.iter().all(|block| !block.is_null()), "the arena is too small");
            // Nothing as large is left.
            let mut size = 1 << 20;
            while size >= SIZE {
                if subject.alloc(layout(size, 8)).is_null() {
                    size = if size > 2 * SIZE { size / 2 } else { size - 8 };
                }
            }
            blocks.into_iter().step_by(2).for_each(|block| subject.dealloc(block, layout(SIZE, 8)));
        }
        let mut worst = 0.0_f64;
        for more in [24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 3096] {
            let layout = layout(SIZE + more, 8);
            let mut times = Vec::new();
            let deadline = Instant::now() + Duration::from_millis(20);
            while times.len() < 500 && (times.len() < 5 || Instant::now() < deadline) {
                // Sixteen requests at once, since reading the clock takes tens of nanoseconds.
                let start = Instant::now();
                let mut served = false;
                for _ in 0..16 {
                    // SAFETY: the size is not zero.
                    served |= !unsafe { crate::subjects::call::alloc(subject, layout) }.is_null();
                }
                times.push(start.elapsed().as_nanos() as f64 / 16.0);
                if served {
                    // A subject that rounds up further than this has longer gaps.
                    times.clear();
                    break;
                }
            }
            if !times.is_empty() {
                worst = worst.max(median(&times));
            }
        }
        Ok(worst)
    }
}

/// The percentage of sizes whose freed block is not allocated for the same size again.
struct Reuse {
    stride: usize,
}

impl Visitor for Reuse {
    type Out = Result<f64>;

    fn visit<S: Subject>(self) -> Self::Out {
        let arena = Arena::new(256 << 10)?;
        let (mut failed, mut tried) = (0, 0);
        let mut blocks = Vec::new();
        for size in (1..=4096).step_by(self.stride) {
            // SAFETY: the arena is ours and used by one subject at a time; the block is freed once.
            unsafe {
                let Some(mut subject) = S::new(arena.whole()) else { return Ok(f64::NAN) };
                blocks.clear();
                loop {
                    let block = subject.alloc(layout(size, 8));
                    if block.is_null() {
                        break;
                    }
                    blocks.push(block);
                }
                subject.dealloc(blocks[blocks.len() / 2], layout(size, 8));
                failed += usize::from(subject.alloc(layout(size, 8)).is_null());
                tried += 1;
            }
        }
        Ok(100.0 * failed as f64 / tried as f64)
    }
}

/// How many small blocks fit between aligned ones.
struct Gaps;

impl Visitor for Gaps {
    type Out = Result<f64>;

    fn visit<S: Subject>(self) -> Self::Out {
        let arena = Arena::new(1 << 20)?;
        // SAFETY: the arena is ours.
        unsafe {
            let mut subject = S::new(arena.whole()).context("the arena is too small")?;
            while !subject.alloc(layout(512, 4096)).is_null() {}
            let mut count = 0;
            while !subject.alloc(layout(24, 8)).is_null() {
                count += 1;
            }
            Ok(f64::from(count))
        }
    }
}

fn sawtooth() -> Trace {
    let mut random = fastrand::Rng::with_seed(2);
    let mut trace = Writer::default();
    for tooth in 0..20 {
        let sizes: Vec<usize> = (0..2000).map(|_| random.usize(16..=256)).collect();
        for (slot, &size) in sizes.iter().enumerate() {
            trace.allocate(slot, size, 8);
        }
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        match tooth % 3 {
            0 => {}
            1 => order.reverse(),
            _ => random.shuffle(&mut order),
        }
        order.into_iter().for_each(|slot| trace.free(slot));
    }
    trace.finish("sawtooth", None)
}

fn lifetimes() -> Trace {
    const BLOCKS: usize = 2000;
    let mut random = fastrand::Rng::with_seed(4);
    let mut trace = Writer::default();
    for _ in 0..5 {
        let short: Vec<usize> = (0..BLOCKS).map(|_| random.usize(16..=128)).collect();
        let long: Vec<usize> = (0..BLOCKS).map(|_| random.usize(16..=128)).collect();
        for slot in 0..BLOCKS {
            trace.allocate(2 * slot, short[slot], 8);
            trace.allocate(2 * slot + 1, long[slot], 8);
        }
        (0..BLOCKS).for_each(|slot| trace.free(2 * slot));
        for (slot, &size) in short.iter().enumerate().take(BLOCKS / 2) {
            trace.allocate(2 * slot, 2 * size, 8);
        }
        (0..BLOCKS).for_each(|slot| trace.free(2 * slot + 1));
        (0..BLOCKS / 2).for_each(|slot| trace.free(2 * slot));
    }
    trace.finish("lifetimes", None)
}
