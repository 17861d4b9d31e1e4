//! Several threads with one stream each, and one thread with several streams.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use allotment_benches::gpu::STREAMS;
use anyhow::{Result, anyhow, ensure};

use super::{all_of, nanoseconds};
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Need, Use};

/// The measure.
pub struct Streams<'a>(pub &'a Setup);

/// How many blocks each thread keeps.
const KEPT: usize = 64;

impl Use for Streams<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let setup = self.0;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut cases = Vec::new();
        for threads in [1, 2, 4, 8] {
            if threads <= cores {
                let plural = if threads == 1 { "" } else { "s" };
                cases.push((threads, 1, format!("{threads} thread{plural}")));
            }
        }
        cases.push((1, 4, "1 thread, 4 streams".to_owned()));
        let mut samples = Vec::new();
        for (threads, streams, case) in cases {
            if setup.is_late() {
                break;
            }
            // The kept blocks, and as much again for the gaps between them.
            let need = (2 * KEPT * threads.max(streams)) << 20;
            if need > setup.budget {
                setup.note(format!("{case}: needs --memory {}", need >> 20));
                continue;
            }
            let allocator = make(all_of(setup))?;
            let pairs = setup.pick(2_000_000, 5_000);
            let patience = setup.patience();
            let barrier = Barrier::new(threads);
            let outcomes: Vec<_> = thread::scope(|scope| {
                let work = |seed| {
                    let (allocator, barrier) = (&allocator, &barrier);
                    scope.spawn(move || work(allocator, seed, streams, pairs, patience, barrier))
                };
                let workers: Vec<_> = (0..threads as u64).map(work).collect();
                workers.into_iter().map(|worker| worker.join()).collect()
            });
            let mut whole: Option<Work> = None;
            for outcome in outcomes {
                let one = outcome.map_err(|_| anyhow!("a thread has panicked"))??;
                whole = Some(whole.map_or(one, |whole| whole.beside(one)));
            }
            if let Some(Work { start, end, pairs }) = whole {
                samples.push(Sample::new(case, STREAMS, nanoseconds(end - start, pairs)));
            }
        }
        Ok(samples)
    }
}

/// What threads have done. They read the clock themselves: a further thread, which would wait for a core, might read it when
/// they have finished.
#[derive(Clone, Copy)]
struct Work {
    start: Instant,
    end: Instant,
    pairs: usize,
}

impl Work {
    /// The work of this thread and of another one.
    fn beside(self, other: Self) -> Self {
        Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            pairs: self.pairs + other.pairs,
        }
    }
}

/// The work of one thread.
fn work<A: Allocator>(
    allocator: &A,
    seed: u64,
    streams: usize,
    pairs: usize,
    patience: Duration,
    barrier: &Barrier,
) -> Result<Work> {
    let mut random = fastrand::Rng::with_seed(seed);
    let opened: Result<Vec<_>> = (0..streams).map(|_| allocator.stream()).collect();
    barrier.wait();
    let start = Instant::now();
    opened.and_then(|streams| {
        let deadline = start + patience;
        let mut kept: Vec<Option<(A::Block, usize)>> = (0..KEPT).map(|_| None).collect();
        let mut done = 0;
        while done < pairs && (done % 256 != 0 || Instant::now() < deadline) {
            let place = random.usize(..KEPT);
            if let Some((block, stream)) = kept[place].take() {
                allocator.free(block, &streams[stream])?;
            }
            let stream = random.usize(..streams.len());
            // Small blocks are as frequent as large ones.
            let bytes = random.usize(1..=256) << random.u32(0..13);
            let block = allocator.allocate(bytes, &streams[stream])?;
            ensure!(block.is_some(), "there is no room");
            kept[place] = block.map(|block| (block, stream));
            done += 1;
        }
        for (block, stream) in kept.into_iter().flatten() {
            allocator.free(block, &streams[stream])?;
        }
        for stream in &streams {
            allocator.synchronize(stream)?;
        }
        Ok(Work { start, end: Instant::now(), pairs: done })
    })
}
