//! Finds the smallest arena of each placement that `advise` may recommend.

use std::alloc::GlobalAlloc;

use allotment_planner::deadline::Deadline;
use allotment_trace::{Kind, Program};
use serde::Serialize;

use super::classes::{self, Classes, GRANULE, LONGEST};
use super::code::Choice;
use super::fitted::MakeFitted;
use super::run::Run;
use crate::replay::arena::Arena;
use crate::replay::run::{self, Outcome, STEP};
use crate::replay::share;
use crate::replay::subject::{ENTRIES, Entry, Make, Visitor, entry, tiny, with};

/// A placement that `advise` tried.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Its name.
    pub placement: &'static str,
    /// The placement itself.
    #[serde(skip)]
    pub choice: Choice,
    /// The smallest arena at the first address in bytes; `None` if none was found.
    pub smallest: Option<usize>,
    /// The smallest arena that suffices at any address; `None` if it was not measured, as it does not decide the choice.
    pub anywhere: Option<usize>,
    /// Bytes of the heap's state, outside the arena.
    pub state: usize,
    /// Approximate instructions per operation, by which heaps are ranked.
    pub instructions: u16,
    /// Time relative to `tlsf`; `None` if it was not measured.
    pub time: Option<f64>,
}

impl Candidate {
    /// Returns the least arena that it is known to need.
    pub fn least(&self) -> Option<usize> {
        self.anywhere.or(self.smallest)
    }

    /// Returns the bytes of RAM for that arena and the state together.
    pub fn total(&self) -> Option<usize> {
        self.least()?.checked_add(self.state)
    }
}

struct Smallest<'a> {
    program: &'a Program,
    memory: &'a mut Arena,
    limit: usize,
}

impl Visitor for Smallest<'_> {
    type Out = (Option<usize>, usize);

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        (run::smallest(make, self.program, self.memory, self.limit, 0), make.state())
    }
}

/// Finds the smallest arena of a placement in bytes; `None` if there is none. The memory must have [`run::most`] bytes.
pub fn smallest(id: &str, limit: usize, program: &Program, memory: &mut Arena) -> Option<usize> {
    with(id, Smallest { program, memory, limit })?.0
}

/// The heaps for microcontrollers: the default and the smallest.
pub const CHIP: &[&str] = &["micro-tlsf", "tiny-heap"];

/// The heap for memory too large for those in [`CHIP`], such as PSRAM.
pub const LARGE_CHIP: &[&str] = &["tlsf"];

/// Tries the advisable placements of allotment, or only those in `which`.
///
/// Each gets an even share of the time left, minus some for the later phases. `unfinished` receives the names of those that needed more.
pub fn named(
    program: &Program,
    which: Option<&[&str]>,
    memory: &mut Arena,
    deadline: &Deadline,
    mut each: impl FnMut(&'static str),
    mut unfinished: impl FnMut(&'static str),
) -> Vec<Candidate> {
    let is_advised = |entry: &&Entry| entry.advised && which.is_none_or(|which| which.contains(&entry.id));
    let advised: Vec<&Entry> = ENTRIES.iter().filter(is_advised).collect();
    let shares = (0..advised.len()).rev().map(|after| share(deadline, after as u32 + 5));
    let tried =
        advised.iter().zip(shares).filter_map(|(&&Entry { id, code, limit, instructions, .. }, share)| {
            each(id);
            memory.until(deadline.within(share()));
            let (smallest, state) = with(id, Smallest { program, memory, limit })?;
            if memory.deadline().passed() {
                unfinished(id);
            }
            let choice = code.map_or(Choice::Tiny, |code| Choice::Named(id, code));
            Some(Candidate {
                placement: id,
                choice,
                smallest,
                anywhere: None,
                state,
                instructions,
                time: None,
            })
        });
    tried.collect()
}

/// Replays the run on a separate growing heap and measures the memory that it requests from the system. Returns `None` if the deadline
/// has passed.
#[cfg(any(unix, windows))]
pub fn growing(program: &Program, deadline: &Deadline) -> Option<Candidate> {
    use allotment::os::Growing;
    let heap = Growing::new();
    let (mut blocks, mut most) = (vec![std::ptr::null_mut(); program.slots], 0);
    let mut served = !deadline.passed();
    for op in &program.ops {
        let block = &mut blocks[op.slot as usize];
        // SAFETY: a block in the table is live and has the operation's layout: the trace was checked when it was compiled.
        unsafe {
            *block = match op.kind {
                Kind::Allocate => heap.alloc(op.layout()),
                Kind::Reallocate => heap.realloc(*block, op.layout(), op.resized()),
                Kind::Free => {
                    heap.dealloc(*block, op.layout());
                    continue;
                }
            };
        }
        served &= !block.is_null();
        if !served {
            break;
        }
        most = most.max(heap.stats().committed);
    }
    let state = 0;
    served.then_some(Candidate {
        placement: Choice::Growing.name(),
        choice: Choice::Growing,
        smallest: Some(most),
        anywhere: Some(most),
        state,
        instructions: 30,
        time: None,
    })
}

/// Tries slabs with classes fitted to the blocks live at the peak, for largest classes of 64 to 512 bytes. Returns the best.
pub fn fitted(run: &Run, memory: &mut Arena) -> Option<Candidate> {
    let program = &run.program;
    let mut best: Option<(usize, Classes)> = None;
    for longest in [8, 16, 32, LONGEST] {
        let (blocks, used) = histogram(run, longest);
        let Some(classes) = classes::fit(&blocks, &used) else { continue };
        let make = MakeFitted(&classes);
        // Drop a candidate that does not fit an arena smaller than the best so far.
        let promising =
            |best: &(usize, Classes), memory: &mut Arena| run::fits(&make, program, memory, best.0 - STEP, 0);
        if best.as_ref().is_none_or(|best| promising(best, memory))
            && let Some(size) = run::smallest(&make, program, memory, usize::MAX, 0)
            && best.as_ref().is_none_or(|best| size < best.0)
        {
            best = Some((size, classes));
        }
    }
    let (size, classes) = best?;
    let state = MakeFitted(&classes).state();
    let choice = Choice::Slab(classes);
    let instructions = entry("slab").map_or(u16::MAX, |slab| slab.instructions);
    Some(Candidate {
        placement: choice.name(),
        choice,
        smallest: Some(size),
        anywhere: None,
        state,
        instructions,
        time: None,
    })
}

/// Returns, for each length in granules up to `longest`, the number of blocks live at the peak, and whether the length occurs at all.
fn histogram(run: &Run, longest: usize) -> ([u64; LONGEST + 1], [bool; LONGEST + 1]) {
    let (mut blocks, mut used) = ([0; LONGEST + 1], [false; LONGEST + 1]);
    let peak = run.peak_event();
    for life in run.lives.iter().filter(|life| life.align <= GRANULE) {
        for size in life.sizes {
            let len = size.div_ceil(GRANULE);
            if len <= longest {
                used[len] = true;
            }
        }
        let len = life.sizes[1].div_ceil(GRANULE);
        if len <= longest && Run::is_live(life, peak) {
            blocks[len] += 1;
        }
    }
    (blocks, used)
}

/// Number of start addresses tried at least. A static arena of alignment 16 may start at any of them.
const SKEWS: usize = 16;

/// Number of start addresses tried at most: every one in a page.
const MOST_SKEWS: usize = 256;

fn skew(n: usize) -> usize {
    // As the factor of 16 is odd, `n` below a power of two yields every multiple of 16 in as many bytes, from 16 to 4096.
    n * 0x1_1110
}

/// The start addresses at which an arena is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Addresses {
    /// Their number.
    pub tried: usize,
    /// Whether the run goes the same way at every other address.
    pub all: bool,
}

impl Addresses {
    /// Returns the addresses for a program. Where blocks lie depends on the address only up to the largest alignment, except with buddies,
    /// which lie at multiples of their length.
    pub fn of(choice: &Choice, program: &Program) -> Self {
        let largest = program.ops.iter().map(|op| op.layout().align()).max().unwrap_or(1);
        let needed = largest / STEP;
        let buddies = matches!(choice, Choice::Slab(_) | Choice::Named("buddy" | "slab", _));
        let grows = *choice == Choice::Growing;
        let tried = if grows { 1 } else { needed.clamp(SKEWS, MOST_SKEWS) };
        Self { tried, all: grows || !buddies && needed <= MOST_SKEWS }
    }
}

struct Anywhere<'a> {
    program: &'a Program,
    memory: &'a mut Arena,
    limit: usize,
    size: usize,
    skews: usize,
}

impl Anywhere<'_> {
    fn find(self, make: &impl Make) -> Option<usize> {
        let Self { program, memory, limit, mut size, skews } = self;
        let mut agreed = 0;
        let mut n = 0;
        while agreed < skews {
            if run::fits(make, program, memory, size, skew(n)) {
                agreed += 1;
            } else {
                let here = run::smallest(make, program, memory, limit, skew(n));
                // The size found so far suffices at the addresses tried.
                if memory.deadline().passed() {
                    return Some(size);
                }
                size = here?.max(size + STEP);
                if size > limit {
                    return None;
                }
                agreed = 0;
            }
            n = (n + 1) % skews;
        }
        Some(size)
    }
}

impl Visitor for Anywhere<'_> {
    type Out = Option<usize>;

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        self.find(make)
    }
}

/// Returns the size of an arena that is large enough at all [`Addresses`]: `size` or a little more. If the memory's deadline passes first,
/// the result is large enough at the addresses tried.
pub fn anywhere(choice: &Choice, program: &Program, memory: &mut Arena, size: usize) -> Option<usize> {
    let skews = Addresses::of(choice, program).tried;
    match choice {
        Choice::Slab(classes) => {
            Anywhere { program, memory, limit: usize::MAX, size, skews }.find(&MakeFitted(classes))
        }
        Choice::Tiny | Choice::Named(..) => {
            let id = choice.name();
            let limit = entry(id)?.limit;
            let size = with(id, Anywhere { program, memory, limit, size, skews })??;
            // A `TinyHeap` has the largest of the tried sizes that fits in `size` bytes.
            if *choice == Choice::Tiny { tiny(size) } else { Some(size) }
        }
        // A growing heap has no arena.
        Choice::Growing => Some(size),
    }
}

struct Check<'a> {
    program: &'a Program,
    memory: &'a mut Arena,
    size: usize,
    skews: usize,
}

impl Check<'_> {
    fn run(self, make: &impl Make) -> Result<Outcome, String> {
        let Self { program, memory, size, skews } = self;
        let mut worst = Outcome::default();
        for n in 0..skews {
            // Contents are checked at the first addresses, as writing them takes long.
            if n >= SKEWS && run::fits(make, program, memory, size, skew(n)) {
                continue;
            }
            let outcome = run::check(make, program, memory, size, skew(n))?;
            worst.unfinished |= outcome.unfinished;
            if n == 0 || outcome.failures > worst.failures {
                worst = Outcome { unfinished: worst.unfinished, ..outcome };
            }
            if worst.unfinished {
                break;
            }
        }
        Ok(worst)
    }
}

impl Visitor for Check<'_> {
    type Out = Result<Outcome, String>;

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        self.run(make)
    }
}

/// Replays in an arena of `size` bytes at all [`Addresses`], with contents checked at the first [`SKEWS`]. Returns the worst outcome.
///
/// # Errors
/// The first block whose contents changed.
pub fn check(choice: &Choice, program: &Program, memory: &mut Arena, size: usize) -> Result<Outcome, String> {
    let skews = Addresses::of(choice, program).tried;
    match choice {
        Choice::Slab(classes) => Check { program, memory, size, skews }.run(&MakeFitted(classes)),
        Choice::Tiny | Choice::Named(..) => with(choice.name(), Check { program, memory, size, skews })
            .unwrap_or_else(|| Err(format!("there is no placement {}", choice.name()))),
        // The measurement already satisfied every request.
        Choice::Growing => Ok(Outcome { used: Some(size), ..Outcome::default() }),
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    struct Failing<'a>(&'a Program, &'a mut Arena, usize);

    impl Visitor for Failing<'_> {
        type Out = usize;

        fn visit<M: Make>(self, make: &M) -> usize {
            let Self(program, memory, size) = self;
            (0..1024).filter(|n| !run::fits(make, program, memory, size, n * STEP)).count()
        }
    }

    /// Blocks of a large alignment leave other gaps at each address in a page.
    #[test]
    fn an_arena_for_any_address_fails_at_none() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut lines = String::new();
        for id in 0..60 {
            let align = [4, 128, 1024, 4096][random.usize(..4)];
            lines += &format!("a {id} {} {align}\n", random.usize(1..900));
            if id % 3 == 2 {
                lines += &format!("f {}\n", id - random.usize(..3));
            }
        }
        let reader = allotment_trace::Reader::new(lines.as_bytes()).unwrap();
        let program = Program::compile(reader).unwrap();
        let mut memory = crate::replay::memory(run::most(&program, usize::MAX)).unwrap();
        let mut tried = 0;
        for entry in ENTRIES.iter().filter(|entry| entry.advised) {
            let choice = entry.code.map_or(Choice::Tiny, |code| Choice::Named(entry.id, code));
            let Addresses { all: true, .. } = Addresses::of(&choice, &program) else { continue };
            let first = smallest(entry.id, entry.limit, &program, &mut memory).unwrap();
            let size = anywhere(&choice, &program, &mut memory, first).unwrap();
            assert_eq!(with(entry.id, Failing(&program, &mut memory, size)), Some(0), "{}", entry.id);
            tried += 1;
        }
        assert!(tried > 5);
    }
}
