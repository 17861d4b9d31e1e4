//! How the cost of an operation grows with the size of the arena and the number of live blocks.

use std::alloc::Layout;
use std::ptr::{NonNull, without_provenance_mut};
use std::time::Instant;

use allotment::GoodFit;
use allotment::Region;
use allotment::placement::{Block, SegmentPlacement};
use anyhow::{Context, Result};

use super::{Measure, Options};
use crate::arena::{Arena, Range};
use crate::results::{Results, Row};
use crate::statistics::median;
use crate::steps;
use crate::subjects::{NULL, Subject, Visitor, call, with};
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "scale",
    about: "cost of an operation as the arena and the live blocks grow",
    run,
    tables,
};

const BY_ARENA: &str = "ns per operation, by arena in bytes";
const STEPS_BY_ARENA: &str = "instructions per operation, by arena in bytes";
const BY_BLOCKS: &str = "ns per operation, by live blocks";
const STEPS_BY_BLOCKS: &str = "instructions per operation, by live blocks";

/// The subjects, and the largest arena that each type can index.
const SUBJECTS: [(&str, usize); 12] = [
    ("Heap", 8 << 30),
    ("Heap<Tlsf>", 8 << 30),
    ("allotment-good-fit-side-table", usize::MAX),
    ("Heap<FirstFit>", 8 << 30),
    ("Heap<BestFit>", 8 << 30),
    ("Heap<Buddy>", 8 << 30),
    ("talc-5", usize::MAX),
    ("talc-4, no lock", usize::MAX),
    ("rlsf, no lock", 256 << 20),
    ("dlmalloc, no lock", usize::MAX),
    ("linked-list", usize::MAX),
    ("buddy-system", 1 << 30),
];

/// Nanoseconds per operation above which a subject is not tried with more blocks.
const TOO_SLOW: f64 = 20_000.0;

/// Number of operations that are single-stepped.
const STEPPED: usize = 200;

fn tables(_: &Results) -> Vec<Table> {
    let common = Table { better: Better::Lower, digits: 0, transposed: true, ..Table::default() };
    vec![
        Table {
            title: "Time by size of the arena",
            text: "100 live blocks of 16 to 256 bytes in an arena that is reserved but hardly touched; an operation \
                   frees a random one and allocates another. Nanoseconds for both together, median of rounds. Each \
                   type goes as far as its index width and its table reach: 32-bit indices with 8-byte granules to \
                   16 GiB, with 16-byte granules to 64 GiB (where the boundary bits, 1/64 and 1/128 of the arena, are cleared \
                   at the start: 16 and 8 MiB per GiB); a side table in 256-byte granules takes 24 bytes per block \
                   and nothing per GiB."
                .into(),
            metric: BY_ARENA,
            curve: Some("scale-arena"),
            ..common.clone()
        },
        Table {
            title: "Instructions by size of the arena",
            text: format!("The same, {STEPPED} operations counted by single steps."),
            metric: STEPS_BY_ARENA,
            better: Better::Neither,
            ..common.clone()
        },
        Table {
            title: "Time by number of live blocks",
            text: "Blocks of 16 to 128 bytes, half as many gaps; an operation frees a random block and allocates \
                   another. Caches are left behind at about 10^5 blocks, which every allocator feels; a subject that \
                   needs more than 20 µs gets no more blocks."
                .into(),
            metric: BY_BLOCKS,
            curve: Some("scale-blocks"),
            ..common.clone()
        },
        Table {
            title: "Instructions by number of live blocks",
            text: format!("The same, {STEPPED} operations counted by single steps: flat is O(1)."),
            metric: STEPS_BY_BLOCKS,
            better: Better::Neither,
            curve: Some("scale-blocks-instructions"),
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let shift = options.pick(2, 4);
    for size in (16..=36).step_by(shift).map(|bits| 1_usize << bits) {
        for (id, _) in SUBJECTS.iter().filter(|(_, limit)| size <= *limit) {
            let churn = Churn { arena: size, blocks: 100, sizes: (16, 256), gaps: false, rounds: 20_000 };
            if let Some((time, steps)) = measure(id, churn)? {
                rows.push(Row::new(size.to_string(), *id, BY_ARENA, time));
                rows.extend(steps.map(|steps| Row::new(size.to_string(), *id, STEPS_BY_ARENA, steps)));
            }
        }
    }
    let mut slow = Vec::new();
    for power in 2..=options.pick(7, 5) {
        let blocks = 10_usize.pow(power);
        // At most 256 bytes for each of the blocks and gaps, which buddies need.
        let arena = (blocks * 400).max(64 << 10).next_power_of_two();
        for (id, limit) in SUBJECTS {
            if slow.contains(&id) || arena > limit {
                continue;
            }
            let churn = Churn { arena, blocks, sizes: (16, 128), gaps: true, rounds: 20_000 };
            let Some((time, steps)) = measure(id, churn)? else { continue };
            rows.push(Row::new(blocks.to_string(), id, BY_BLOCKS, time));
            rows.extend(steps.map(|steps| Row::new(blocks.to_string(), id, STEPS_BY_BLOCKS, steps)));
            if time > TOO_SLOW / 10.0 && power < 7 {
                // The next power of ten would be ten times as slow.
                slow.push(id);
            }
        }
    }
    Ok(rows)
}

/// Measures time and instructions. The instructions of the harness are subtracted.
fn measure(id: &str, churn: Churn) -> Result<Option<(f64, Option<f64>)>> {
    let found = match id {
        "allotment-good-fit-side-table" => churn.visit::<Side>()?,
        _ => with(id, churn).context("no such subject")??,
    };
    let small = Churn { arena: 64 << 10, blocks: 10, rounds: 1, ..churn };
    let null = with(NULL, small).context("no such subject")??;
    let nothing = null.and_then(|(_, steps)| steps).unwrap_or(0.0);
    Ok(found.map(|(time, steps)| (time, steps.map(|steps| steps - nothing))))
}

/// Replaces random blocks.
#[derive(Clone, Copy)]
struct Churn {
    arena: usize,
    blocks: usize,
    sizes: (usize, usize),
    gaps: bool,
    rounds: usize,
}

impl Visitor for Churn {
    type Out = Result<Option<(f64, Option<f64>)>>;

    fn visit<S: Subject>(self) -> Self::Out {
        let arena = Arena::new(self.arena)?;
        // SAFETY: the arena is ours and outlives the subject.
        let Some(mut subject) = (unsafe { S::new(arena.whole()) }) else { return Ok(None) };
        let subject = &mut *subject;
        let mut random = fastrand::Rng::with_seed(5);
        let layout = |random: &mut fastrand::Rng| {
            Layout::from_size_align(random.usize(self.sizes.0..=self.sizes.1), 8).expect("sizes are small")
        };
        let mut blocks = Vec::with_capacity(self.blocks);
        for number in 0..self.blocks + if self.gaps { self.blocks / 2 } else { 0 } {
            let layout = layout(&mut random);
            // SAFETY: the size is not zero.
            let block = unsafe { call::alloc(subject, layout) };
            if block.is_null() {
                return Ok(None);
            }
            blocks.push((block, layout));
            if number % 3 == 2 && self.gaps {
                let (block, layout) = blocks.swap_remove(random.usize(..blocks.len()));
                // SAFETY: the block is live.
                unsafe { call::dealloc(subject, block, layout) };
            }
        }
        // Draw in advance, so that the measured time contains little but the subject.
        let draw = |random: &mut fastrand::Rng, count: usize, len: usize| -> Vec<(usize, Layout)> {
            (0..count).map(|_| (random.usize(..len), layout(random))).collect()
        };
        let mut times = Vec::new();
        let begin = Instant::now();
        for _ in 0..7 {
            let plan = draw(&mut random, self.rounds, blocks.len());
            let start = Instant::now();
            let mut done = 0_usize;
            for (place, layout) in plan {
                let entry = &mut blocks[place];
                // SAFETY: the block is live.
                unsafe {
                    call::dealloc(subject, entry.0, entry.1);
                    *entry = (call::alloc(subject, layout), layout);
                }
                anyhow::ensure!(!entry.0.is_null(), "the arena is large enough");
                done += 1;
                if done.is_multiple_of(1024) && start.elapsed().as_secs_f64() > 0.2 {
                    break;
                }
            }
            times.push(start.elapsed().as_nanos() as f64 / done as f64);
            if begin.elapsed().as_secs_f64() > 1.0 {
                break;
            }
        }
        if !steps::AVAILABLE {
            return Ok(Some((median(&times), None)));
        }
        let mut total = 0;
        let mut number = 0;
        for (place, layout) in draw(&mut random, STEPPED, blocks.len()) {
            let entry = &mut blocks[place];
            let (old, old_layout) = *entry;
            // SAFETY: the block is live.
            let (new, steps) = steps::count(|| unsafe {
                call::dealloc(subject, old, old_layout);
                call::alloc(subject, layout)
            });
            *entry = (new, layout);
            total += steps;
            number += 1;
            // A list of a million gaps takes a second per operation.
            if total > 50_000 {
                break;
            }
        }
        Ok(Some((median(&times), Some(total as f64 / f64::from(number)))))
    }
}

type SideFit = GoodFit;

/// Good fit over a side table as a subject. A block's address is derived from the index of its token.
struct Side {
    placement: SideFit,
    tokens: Vec<Block<u32>>,
    unused: Vec<u32>,
}

// SAFETY: `MEMORY` is false.
unsafe impl Subject for Side {
    const MEMORY: bool = false;

    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let mut placement = <SideFit as SegmentPlacement>::EMPTY;
        // SAFETY: a side table never touches the memory that it describes.
        unsafe {
            SegmentPlacement::claim(&mut placement, Region::new(NonNull::new(arena.start)?, arena.size))
        }
        .ok()?;
        Some(Box::new(Self { placement, tokens: Vec::new(), unused: Vec::new() }))
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // What takes 8 bytes elsewhere takes 256 here, since the arena is in units of that.
        let Some(block) = SegmentPlacement::allocate(&mut self.placement, layout.size().div_ceil(256), 1)
        else {
            return std::ptr::null_mut();
        };
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.tokens[slot as usize] = block;
                slot as usize
            }
            None => {
                self.tokens.push(block);
                self.tokens.len() - 1
            }
        };
        without_provenance_mut((slot + 1) * 16)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, _: Layout) {
        let slot = block.addr() / 16 - 1;
        let block = self.tokens[slot];
        // SAFETY: the block is live.
        let freed = unsafe { SegmentPlacement::deallocate(&mut self.placement, block, block.len, 1) };
        debug_assert!(freed.is_ok());
        self.unused.push(slot as u32);
    }
}

#[cfg(all(test, feature = "peers"))]
mod tests {
    #[test]
    fn the_subjects_are_known() {
        for (id, _) in super::SUBJECTS {
            assert!(crate::subjects::entry(id).is_some() || id == "allotment-good-fit-side-table", "{id}");
        }
    }
}
