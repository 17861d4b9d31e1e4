//! Several threads on one heap: larson, producer and consumer, and a mix.

use std::alloc::Layout;
use std::ops::Range;
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;
use std::time::Instant;

use allotment::os::Cached;
use allotment::{Heap, Tlsf};
use anyhow::{Context, Result};

use super::{Measure, Options};
use crate::arena::Arena;
use crate::results::{Results, Row};
use crate::statistics::{median, quantile};
#[cfg(feature = "peers")]
use crate::subjects::peers;
use crate::subjects::registered::Registered;
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "threads",
    about: "threads on one heap, as a ratio to talc 5 behind a spin lock",
    run,
    tables,
};

/// The metric.
pub const METRIC: &str = "throughput / talc 5";
const SPREAD: &str = "quartile spread";
const ARENA: usize = 256 << 20;

fn tables(_: &Results) -> Vec<Table> {
    vec![
        Table {
            title: "Throughput of threads",
            text: "Median time of talc 5 / median time, over interleaved rounds. Everything as programs \
                   register it, with its own lock and its statistics. *larson*: every thread replaces random \
                   ones of its 1,000 blocks of 10 to 500 bytes, and hands all of them to the next thread now \
                   and then. *producer-consumer*: blocks of 16 to 256 bytes are allocated by one half of the threads \
                   and freed by the other. *mixed*: 16 to 4,096 bytes; one block in eight is freed by another thread. *large*: the same with 1 to 64 KiB. \
                   A round whose threads did not have a core each (by processor time) is repeated, and does not count if \
                   they have none in 20 tries. *Cached* keeps up to 512 KiB per thread."
                .into(),
            metric: METRIC,
            better: Better::Higher,
            mean: true,
            digits: 2,
            plot: Some("threads"),
        level: true,
            ..Table::default()
        },
        Table {
            title: "Throughput of threads, spread",
            text: "Upper minus lower quartile over the rounds.".into(),
            metric: SPREAD,
            better: Better::Neither,
            digits: 2,
            ..Table::default()
        },
    ]
}

/// A program for threads, which returns the seconds that it takes for `work` operations per thread.
type Program<S> = fn(&S, usize, usize) -> f64;

/// Measures one round of a subject; the arguments are the program, the threads, and the operations per thread.
type Round = fn(&Arena, usize, usize, usize) -> Option<f64>;

fn round<S: Registered + Sync>(arena: &Arena, program: usize, threads: usize, work: usize) -> Option<f64> {
    let programs: [Program<S>; 4] = [larson, producer_consumer, mixed, large];
    // SAFETY: the arena is ours and used by one subject at a time.
    let subject = unsafe { S::over(arena.whole()) }?;
    Some(programs[program](&subject, threads, work))
}

const PROGRAMS: [&str; 4] = ["larson", "producer-consumer", "mixed", "large"];

/// The subjects; adding one takes one line.
const SUBJECTS: &[(&str, Round)] = &[
    #[cfg(feature = "peers")]
    ("talc-5", round::<peers::Talc>),
    ("Heap", round::<Heap>),
    ("Heap<Tlsf>", round::<Heap<Tlsf>>),
    ("Cached", round::<Cached>),
    ("Cached<Tlsf>", round::<Cached<Heap<Tlsf>>>),
    #[cfg(feature = "peers")]
    ("rlsf", round::<peers::GlobalRlsf>),
    #[cfg(feature = "peers")]
    ("dlmalloc", round::<dlmalloc::GlobalDlmalloc>),
    #[cfg(feature = "peers")]
    ("buddy-system", round::<peers::BuddySystem>),
    #[cfg(feature = "peers")]
    ("rusty_alloc", round::<rusty_alloc_api::RustyAlloc>),
    #[cfg(feature = "peers")]
    ("sefer-alloc", round::<sefer_alloc::SeferAlloc>),
    #[cfg(feature = "peers")]
    ("system", round::<std::alloc::System>),
    #[cfg(feature = "mimalloc")]
    ("mimalloc", round::<mimalloc::MiMalloc>),
    #[cfg(feature = "snmalloc")]
    ("snmalloc", round::<snmalloc_rs::SnMalloc>),
    #[cfg(feature = "jemalloc")]
    ("jemalloc", round::<tikv_jemallocator::Jemalloc>),
];

fn run(options: &Options) -> Result<Vec<Row>> {
    let arena = Arena::new(ARENA)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    let rounds = options.pick(21, 3);
    let work = options.pick(50_000, 20_000);
    for (program, name) in PROGRAMS.iter().enumerate() {
        for threads in [1, 2, 4].into_iter().filter(|&threads| threads <= cores.max(2)) {
            let case = format!("{name}, {threads} thread{}", if threads == 1 { "" } else { "s" });
            let mut times = vec![vec![]; SUBJECTS.len()];
            for number in 0..=rounds {
                for place in 0..SUBJECTS.len() {
                    let subject = (place + number) % SUBJECTS.len();
                    let timed = || SUBJECTS[subject].1(&arena, program, threads, work).context("too small");
                    let seconds = in_parallel(threads, timed)?;
                    // The first round warms up.
                    if number > 0 {
                        times[subject].push(seconds);
                    }
                }
            }
            // Spinning threads are slow in some rounds and fast in others, so that a ratio within a round says little.
            let base: Vec<f64> = times[0].iter().flatten().copied().collect();
            for ((id, _), own) in SUBJECTS.iter().zip(&times) {
                let ratios: Vec<f64> = own.iter().flatten().map(|own| median(&base) / own).collect();
                if base.is_empty() || ratios.is_empty() {
                    eprintln!("{case}: the threads of {id} never had a core each; it is left out");
                    continue;
                }
                rows.push(Row::new(&case, *id, METRIC, median(&ratios)));
                rows.push(Row::new(&case, *id, SPREAD, quantile(&ratios, 0.75) - quantile(&ratios, 0.25)));
            }
        }
    }
    Ok(rows)
}

/// Returns the time of `round`, repeating it if its threads did not have a core each; `None` if they never had.
fn in_parallel(threads: usize, round: impl Fn() -> Result<f64>) -> Result<Option<f64>> {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let before = processor_time();
        let seconds = round()?;
        // Without a core each, a thread that waits for a lock waits for the scheduler. Barriers sleep as well.
        if processor_time() - before > 0.85 * seconds * threads as f64 {
            return Ok(Some(seconds));
        }
    }
    Ok(None)
}

/// Returns the processor time of all threads of this process in seconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock is written to a local variable.
    let status = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(status, 0, "every Linux has this clock");
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// A block that can move between threads.
#[derive(Clone, Copy)]
struct Block(*mut u8, u32);

// SAFETY: a block belongs to the owner of this value.
unsafe impl Send for Block {}

impl Block {
    const NONE: Self = Self(ptr::null_mut(), 0);

    fn new<S: Registered + Sync>(subject: &S, size: u32) -> Self {
        // SAFETY: sizes are not zero; a byte of a live block may be written.
        unsafe {
            let block = subject.alloc(layout(size));
            assert!(!block.is_null(), "the arena is large enough for every program");
            block.write(size as u8);
            Self(block, size)
        }
    }

    fn free<S: Registered + Sync>(self, subject: &S) {
        if !self.0.is_null() {
            // SAFETY: the block is live and its size is known.
            unsafe { subject.dealloc(self.0, layout(self.1)) };
        }
    }
}

fn layout(size: u32) -> Layout {
    // SAFETY: 8 is a power of two, and sizes are small.
    unsafe { Layout::from_size_align_unchecked(size as usize, 8) }
}

/// Runs `body` on every thread. Returns the seconds from the start of the first thread to the end of the last one.
///
/// The threads read the clock themselves: a further thread, which would wait for a core, might read it when they have finished.
fn together(threads: usize, body: impl Fn(usize, &Barrier) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, body) = (&barrier, &body);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    body(thread, barrier);
                    (start, Instant::now())
                })
            })
            .collect();
        let times = handles.into_iter().map(|handle| handle.join().expect("no thread panics"));
        let (start, end) = times
            .reduce(|(start, end), (other, later)| (start.min(other), end.max(later)))
            .expect("there is a thread");
        (end - start).as_secs_f64()
    })
}

/// After Larson and Krishnan, "Memory allocation for long-running server applications" (ISMM 1998).
fn larson<S: Registered + Sync>(subject: &S, threads: usize, work: usize) -> f64 {
    const BLOCKS: usize = 1000;
    const TURNS: usize = 10;
    let tables: Vec<_> = (0..threads).map(|_| std::sync::Mutex::new(vec![Block::NONE; BLOCKS])).collect();
    let turns = Barrier::new(threads);
    together(threads, |thread, _| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        for turn in 0..TURNS {
            let mut table = tables[(thread + turn) % threads].lock().expect("no thread panics");
            for _ in 0..work / TURNS {
                let place = random.usize(..BLOCKS);
                table[place].free(subject);
                table[place] = Block::new(subject, random.u32(10..=500));
            }
            drop(table);
            turns.wait();
        }
        let mut table = tables[thread].lock().expect("no thread panics");
        table.drain(..).for_each(|block| block.free(subject));
    })
}

/// A ring of blocks between two threads. The size is stored in the block's first bytes.
struct Ring {
    slots: Vec<AtomicPtr<u8>>,
}

impl Ring {
    fn new() -> Self {
        Self { slots: (0..1024).map(|_| AtomicPtr::default()).collect() }
    }

    /// Puts a block of at least 16 bytes into slot `place`; returns `false` if the slot is occupied.
    fn put(&self, place: usize, block: Block) -> bool {
        let slot = &self.slots[place % self.slots.len()];
        if !slot.load(Ordering::Acquire).is_null() {
            return false;
        }
        // SAFETY: the block is ours, and has at least 16 bytes aligned to 8.
        unsafe { block.0.cast::<u32>().write(block.1) };
        slot.store(block.0, Ordering::Release);
        true
    }

    fn take(&self, place: usize) -> Option<Block> {
        let slot = &self.slots[place % self.slots.len()];
        let block = slot.load(Ordering::Acquire);
        if block.is_null() {
            return None;
        }
        slot.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: `put` wrote the size, and the block is ours now.
        Some(Block(block, unsafe { block.cast::<u32>().read() }))
    }
}

/// Spins for a while, then yields, since the machine may have fewer cores than threads.
fn pause(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(64) { thread::yield_now() } else { std::hint::spin_loop() }
}

fn producer_consumer<S: Registered + Sync>(subject: &S, threads: usize, work: usize) -> f64 {
    const BATCH: usize = 64;
    let rings: Vec<_> = (0..threads.div_ceil(2)).map(|_| Ring::new()).collect();
    together(threads, |thread, _| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut make = || Block::new(subject, random.u32(16..=256));
        if threads == 1 {
            for _ in 0..work / BATCH {
                let blocks: [Block; BATCH] = std::array::from_fn(|_| make());
                blocks.into_iter().for_each(|block| block.free(subject));
            }
            return;
        }
        let ring = &rings[thread / 2];
        let mut tries = 0;
        for place in 0..work {
            if thread % 2 == 0 {
                let block = make();
                while !ring.put(place, block) {
                    pause(&mut tries);
                }
            } else {
                loop {
                    if let Some(block) = ring.take(place) {
                        break block.free(subject);
                    }
                    pause(&mut tries);
                }
            }
        }
    })
}

fn mixed<S: Registered + Sync>(subject: &S, threads: usize, work: usize) -> f64 {
    exchange(subject, threads, work, 4..12)
}

fn large<S: Registered + Sync>(subject: &S, threads: usize, work: usize) -> f64 {
    exchange(subject, threads, work, 10..16)
}

/// Blocks come and go, and some of them to the next thread; sizes are of so many bits, each as likely.
fn exchange<S: Registered + Sync>(subject: &S, threads: usize, work: usize, bits: Range<u32>) -> f64 {
    const BLOCKS: usize = 500;
    let rings: Vec<_> = (0..threads).map(|_| Ring::new()).collect();
    let end = Barrier::new(threads);
    together(threads, |thread, _| {
        let mut random = fastrand::Rng::with_seed(thread as u64);
        let mut table = vec![Block::NONE; BLOCKS];
        let (mut given, mut taken) = (0, 0);
        for number in 0..work {
            let block = &mut table[random.usize(..BLOCKS)];
            if block.0.is_null() {
                let bits = random.u32(bits.clone());
                *block = Block::new(subject, random.u32(1 << bits..=2 << bits));
            } else {
                // With one thread, the other thread is the same one.
                if number % 8 == 0 && rings[(thread + 1) % threads].put(given, *block) {
                    given += 1;
                } else {
                    block.free(subject);
                }
                *block = Block::NONE;
            }
            if number % 16 == 0 {
                while let Some(block) = rings[thread].take(taken) {
                    block.free(subject);
                    taken += 1;
                }
            }
        }
        end.wait();
        while let Some(block) = rings[thread].take(taken) {
            block.free(subject);
            taken += 1;
        }
        table.drain(..).for_each(|block| block.free(subject));
    })
}
