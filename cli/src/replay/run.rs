//! Replays of a compiled trace.

use std::ptr;
use std::time::{Duration, Instant};

use allotment_planner::deadline::{Deadline, Watch};
use allotment_trace::{Kind, Op, Program};

use super::arena::{Arena, Range};
use super::subject::{Make, Subject};

/// The blocks of a replay, by slot. Null: not live, or not served.
fn table(program: &Program) -> Vec<*mut u8> {
    vec![ptr::null_mut(); program.slots]
}

/// One operation: does it, and says whether it was served. Frees and reallocations of blocks that were not served are
/// left out, and so is a block that could not be enlarged (it is freed).
///
/// # Safety
///
/// `blocks` is the program's table, and holds this subject's live blocks as the operations before left them.
#[inline(always)]
unsafe fn step<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], op: &Op) -> bool {
    let block = &mut blocks[op.slot as usize];
    // SAFETY: a block in the table is live and has the operation's layout: the trace was checked when it was compiled.
    unsafe {
        match op.kind {
            Kind::Allocate => {
                *block = subject.alloc(op.layout());
                !block.is_null()
            }
            Kind::Free => {
                if !block.is_null() {
                    subject.dealloc(*block, op.layout());
                    *block = ptr::null_mut();
                }
                true
            }
            Kind::Reallocate => {
                if block.is_null() {
                    return true;
                }
                let new = subject.realloc(*block, op.layout(), op.new as usize);
                if new.is_null() {
                    subject.dealloc(*block, op.layout());
                }
                *block = new;
                !new.is_null()
            }
        }
    }
}

/// The work of an operation, in the steps of a [`Watch`]: moving a block may copy it, and writing it does.
fn work(op: &Op) -> usize {
    1000 + (op.size as usize + op.new as usize) / 16
}

/// Replays up to the first operation that is not served; its number. `Err` if the arena is of no use at all, or `deadline` passes first.
///
/// # Safety
///
/// Nothing else uses the range.
unsafe fn first_failure(
    make: &impl Make,
    program: &Program,
    range: Range,
    deadline: &Deadline,
) -> Result<Option<usize>, ()> {
    let mut watch = Watch::new(deadline);
    if watch.passed(0) {
        return Err(());
    }
    // SAFETY: as the caller promises.
    let mut subject = unsafe { make.make(range) }.ok_or(())?;
    let mut blocks = table(program);
    for (number, op) in program.ops.iter().enumerate() {
        if watch.passed(work(op)) {
            return Err(());
        }
        // SAFETY: the table is the program's, and the subject is new.
        if !unsafe { step(&mut *subject, &mut blocks, op) } {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Whether everything is served in `size` bytes that start `skew` bytes behind an aligned address; also false if the arena's deadline
/// passes first.
pub fn fits(make: &impl Make, program: &Program, arena: &mut Arena, size: usize, skew: usize) -> bool {
    let range = arena.range(size, skew);
    // SAFETY: the arena is borrowed for the replay, and ends with it.
    unsafe { first_failure(make, program, range, arena.deadline()) == Ok(None) }
}

/// Sizes are searched to this many bytes.
pub const STEP: usize = 16;

/// The largest arena that is tried for a program, in bytes.
pub fn most(program: &Program, limit: usize) -> usize {
    (program.peak.saturating_mul(4).saturating_add(64 << 10)).min(limit) / STEP * STEP
}

/// The smallest arena that succeeds, in bytes, by binary search; `None` if not even [`most`] does. `arena` must have as
/// many bytes. If its deadline passes first, the smallest one that has succeeded until then.
pub fn smallest(
    make: &impl Make,
    program: &Program,
    arena: &mut Arena,
    limit: usize,
    skew: usize,
) -> Option<usize> {
    let limit = most(program, limit) / STEP;
    let mut fits = |steps: usize| fits(make, program, arena, steps * STEP, skew);
    // The range doubles until something fits, so that the first replays are not far too large.
    let mut below = (program.peak / STEP).saturating_sub(1);
    let mut step = (program.peak / 64 / STEP).max(1);
    let mut above = below + step;
    loop {
        if above >= limit {
            if below >= limit || !fits(limit) {
                return None;
            }
            above = limit;
            break;
        }
        if fits(above) {
            break;
        }
        below = above;
        step *= 2;
        above = below + step;
    }
    while above - below > 1 {
        let middle = below.midpoint(above);
        if fits(middle) {
            above = middle;
        } else {
            below = middle;
        }
    }
    Some(above * STEP)
}

/// What a checked replay found out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The first operation that was not served; with `None` all were. Numbers start at 0.
    pub failed: Option<usize>,
    /// How many were not.
    pub failures: usize,
    /// The most bytes that were in use, requests rounded up to what they take; of those who keep count.
    pub used: Option<usize>,
    /// External fragmentation, `1 - largest free / free`: the mean over the operations.
    pub external: Option<f64>,
    /// Internal fragmentation at the peak of the requested bytes: the share of the used bytes that were not requested.
    pub internal: Option<f64>,
    /// Whether the deadline passed first; then the figures are those up to there.
    pub unfinished: bool,
}

/// Replays with every byte of every block written, and read back before it is freed or after it was moved.
///
/// # Errors
///
/// The first operation whose block was not as it was left.
pub fn check(
    make: &impl Make,
    program: &Program,
    arena: &mut Arena,
    size: usize,
    skew: usize,
) -> Result<Outcome, String> {
    let range = arena.range(size, skew);
    // SAFETY: the arena is borrowed for the replay, and ends with it.
    let Some(mut subject) = (unsafe { make.make(range) }) else {
        let failures = program.ops.iter().filter(|op| op.kind == Kind::Allocate).count();
        return Ok(Outcome { failed: Some(0), failures, ..Outcome::default() });
    };
    let mut blocks = table(program);
    let mut patterns = vec![0_u8; program.slots];
    let mut outcome = Outcome::default();
    let (mut live, mut peak, mut fragmentation, mut samples) = (0_usize, 0, 0.0, 0_usize);
    let mut watch = Watch::new(arena.deadline());
    for (number, op) in program.ops.iter().enumerate() {
        if watch.passed(3 * work(op)) {
            outcome.unfinished = true;
            break;
        }
        let slot = op.slot as usize;
        let old = blocks[slot];
        let (size, new) = (op.size as usize, op.new as usize);
        let holds = |block: *mut u8, size: usize, pattern: u8| {
            // SAFETY: the block is live and has at least `size` bytes, all of them written.
            unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|&byte| byte == pattern)
        };
        if op.kind != Kind::Allocate && !old.is_null() {
            if !holds(old, size, patterns[slot]) {
                return Err(format!("event {number}: the block's contents were changed"));
            }
            live -= size;
        }
        // SAFETY: the table is the program's and is kept as `step` leaves it.
        let served = unsafe { step(&mut *subject, &mut blocks, op) };
        if !served {
            outcome.failed.get_or_insert(number);
            outcome.failures += 1;
        }
        let block = blocks[slot];
        if !block.is_null() {
            if op.kind == Kind::Reallocate && !holds(block, size.min(new), patterns[slot]) {
                return Err(format!("event {number}: contents were lost while moving"));
            }
            if !block.addr().is_multiple_of(op.layout().align()) {
                return Err(format!("event {number}: the block is not aligned to {}", op.layout().align()));
            }
            let after = op.after() as usize;
            let inside = block
                .addr()
                .checked_sub(range.start.addr())
                .is_some_and(|at| at.checked_add(after).is_some_and(|end| end <= range.size));
            if !inside {
                return Err(format!("event {number}: the block is not in the arena"));
            }
            patterns[slot] = (number % 251) as u8 + 1;
            // SAFETY: the block is live and has `after` bytes.
            unsafe { block.write_bytes(patterns[slot], after) };
            live += after;
        }
        if let Some(stats) = subject.stats() {
            samples += 1;
            fragmentation += f64::from(stats.fragmentation()) / 1000.0;
            outcome.used = outcome.used.max(Some(stats.used));
            if live > peak && stats.used > 0 {
                outcome.internal = Some(stats.used.saturating_sub(live) as f64 / stats.used as f64);
            }
        }
        peak = peak.max(live);
    }
    if samples > 0 {
        outcome.external = Some(fragmentation / samples as f64);
    }
    Ok(outcome)
}

/// Operations between two looks at the clock while times are taken: a look costs little more than one of them.
const BETWEEN_LOOKS: usize = 512;

/// The time of `repeat` replays, each on a fresh subject; blocks are not touched. `None` if the arena is of no use, or its deadline
/// passes first.
pub fn time(
    make: &impl Make,
    program: &Program,
    arena: &mut Arena,
    size: usize,
    repeat: usize,
) -> Option<Duration> {
    let range = arena.range(size, 0);
    let mut total = Duration::ZERO;
    for _ in 0..repeat {
        let mut blocks = table(program);
        // SAFETY: the arena is borrowed for the replays, and no block is used after its subject.
        let mut subject = unsafe { make.make(range) }?;
        let start = Instant::now();
        for part in program.ops.chunks(BETWEEN_LOOKS) {
            if arena.deadline().passed() {
                return None;
            }
            for op in part {
                // SAFETY: the table is the program's and is kept as `step` leaves it.
                std::hint::black_box(unsafe { step(&mut *subject, &mut blocks, op) });
            }
        }
        total += start.elapsed();
    }
    Some(total)
}
