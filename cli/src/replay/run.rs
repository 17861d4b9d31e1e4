//! Replays of a compiled trace.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use allotment_planner::deadline::{Deadline, Watch};
use allotment_trace::{Kind, Op, Program};

use super::arena::{self, Arena};
use super::subject::{HUGE, Make, Subject};

/// Creates the table of a replay's blocks by slot, in which null means not live or not satisfied.
fn table(program: &Program) -> Vec<*mut u8> {
    vec![ptr::null_mut(); program.slots]
}

/// Executes one operation and returns whether it was satisfied. Frees and reallocations of blocks that were not satisfied are
/// skipped; a block that could not be enlarged is freed.
///
/// # Safety
///
/// `blocks` must be the program's table, with this subject's live blocks as the previous operations left them.
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
                let new = subject.realloc(*block, op.layout(), op.resized());
                if new.is_null() {
                    subject.dealloc(*block, op.layout());
                }
                *block = new;
                !new.is_null()
            }
        }
    }
}

/// Returns the work of an operation in steps of a [`Watch`]: moving a block may copy it, and a check writes it.
fn work(op: &Op) -> usize {
    1000 + (op.size().min(LONG) + op.resized().min(LONG)) / 16
}

/// Replays up to the first operation that is not satisfied and returns its number. Returns `Err` if the subject cannot use the arena or
/// `deadline` passes first.
///
/// # Safety
///
/// The range must be valid, and nothing else may use it during the call.
unsafe fn first_failure(
    make: &impl Make,
    program: &Program,
    range: arena::Range,
    deadline: &Deadline,
) -> Result<Option<usize>, ()> {
    let mut watch = Watch::new(deadline);
    if watch.passed(0) {
        return Err(());
    }
    // SAFETY: the caller guarantees that the range is valid and unused.
    let mut subject = unsafe { make.make(range) }.ok_or(())?;
    let mut blocks = table(program);
    for (number, op) in program.ops.iter().enumerate() {
        if watch.passed(work(op)) {
            return Err(());
        }
        // SAFETY: the table was created for this program, and the subject is new.
        if !unsafe { step(&mut *subject, &mut blocks, op) } {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Returns whether every request is satisfied in `size` bytes that start `skew` bytes after an aligned address. Also false if the arena's
/// deadline passes first.
pub fn fits(make: &impl Make, program: &Program, arena: &mut Arena, size: usize, skew: usize) -> bool {
    let range = arena.range(size, skew);
    // SAFETY: the arena is borrowed exclusively, and the subject ends before that borrow.
    unsafe { first_failure(make, program, range, arena.deadline()) == Ok(None) }
}

/// The resolution of size searches in bytes.
pub const STEP: usize = 16;

/// Returns the peak of the live bytes with every block in whole units of [`STEP`] bytes, as in placements.
pub fn rounded_peak(program: &Program) -> usize {
    peak_in(program, |_| STEP)
}

/// Returns the peak of the live bytes with every block in whole units of `unit` bytes, which may depend on its alignment.
fn peak_in(program: &Program, unit: impl Fn(usize) -> usize) -> usize {
    // Three blocks may together exceed the range of a word.
    let (mut live, mut peak) = (0_u128, 0);
    for op in &program.ops {
        let unit = unit(op.layout().align());
        let whole = |size: usize| size.div_ceil(unit) as u128 * unit as u128;
        if op.kind != Kind::Allocate {
            live -= whole(op.size());
        }
        live += whole(op.after());
        peak = peak.max(live);
    }
    usize::try_from(peak).unwrap_or(usize::MAX)
}

/// Returns the bytes that hold the live blocks at their peak if no block lies in another's alignment padding.
fn spread_peak(program: &Program) -> usize {
    peak_in(program, |align| align.max(STEP))
}

/// Returns the bytes of the largest arena tried for a program.
pub fn most(program: &Program, limit: usize) -> usize {
    (spread_peak(program).saturating_mul(4).saturating_add(64 << 10)).min(limit).min(HUGE) / STEP * STEP
}

/// Returns the default arena of a program in bytes: one and a half times its peak or, if most blocks are tiny, a little more than its
/// blocks with their alignments.
pub fn usual(program: &Program) -> usize {
    let spread = spread_peak(program).min(HUGE);
    (program.peak.saturating_add(program.peak / 2))
        .min(HUGE)
        .max(spread + spread / 8)
        .next_multiple_of(4096)
        .min(HUGE)
}

/// Longest block in bytes of a program that is checked in full. In other programs only the ends of blocks are checked, [`ENDS`] bytes
/// each, and the addresses.
const LONG: usize = 1 << 30;
const ENDS: usize = 64 << 10;

/// Returns whether a check writes only the ends of a program's blocks.
pub fn is_sparse(program: &Program) -> bool {
    program.ops.iter().any(|op| op.after() > LONG)
}

/// Returns the parts of a block of `size` bytes that a check writes.
fn parts(size: usize, sparse: bool) -> [Range<usize>; 2] {
    let end = if sparse { ENDS.min(size) } else { size };
    [0..end, size.saturating_sub(end).max(end)..size]
}

/// Returns the approximate bytes of memory that replays of a program use, since they write every byte of every block, or its ends.
pub fn written(program: &Program) -> usize {
    let whole = program.peak / 2 * 3;
    // Moving a block copies its whole contents.
    let is_copied = |op: &Op| op.kind == Kind::Reallocate && op.size() > LONG;
    if !is_sparse(program) || program.ops.iter().any(is_copied) {
        return whole;
    }
    program.ops.iter().map(|op| op.after().min(2 * ENDS)).fold(0, usize::saturating_add).min(whole)
}

/// Finds the smallest arena in bytes that satisfies every request, by binary search; `None` if even [`most`] does not. `arena` must have
/// [`most`] bytes. If its deadline passes first, returns the smallest size that has succeeded so far.
pub fn smallest(
    make: &impl Make,
    program: &Program,
    arena: &mut Arena,
    limit: usize,
    skew: usize,
) -> Option<usize> {
    let limit = most(program, limit) / STEP;
    let mut fits = |steps: usize| fits(make, program, arena, steps * STEP, skew);
    // The range doubles until the program fits, which avoids replays in far too large arenas.
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

/// The result of a checked replay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Number of the first operation that was not satisfied, from 0; `None` if all were satisfied.
    pub failed: Option<usize>,
    /// Number of operations that were not satisfied.
    pub failures: usize,
    /// The peak of bytes in use, with requests rounded up to block sizes; `None` if the subject has no statistics.
    pub used: Option<usize>,
    /// The mean external fragmentation over the operations: `1 - largest free / free`.
    pub external: Option<f64>,
    /// Internal fragmentation at the peak of the requested bytes: the share of the used bytes that were not requested.
    pub internal: Option<f64>,
    /// Whether the deadline ended the replay; the figures then cover the part before.
    pub unfinished: bool,
}

/// Replays a program, writes every byte of every block, and reads it back before the block is freed and after it moved.
///
/// # Errors
///
/// The first operation with a block whose contents changed or that lies in the wrong place.
pub fn check(
    make: &impl Make,
    program: &Program,
    arena: &mut Arena,
    size: usize,
    skew: usize,
) -> Result<Outcome, String> {
    let range = arena.range(size, skew);
    // SAFETY: the arena is borrowed exclusively, and the subject ends before that borrow.
    let Some(mut subject) = (unsafe { make.make(range) }) else {
        let failures = program.ops.iter().filter(|op| op.kind == Kind::Allocate).count();
        return Ok(Outcome { failed: Some(0), failures, ..Outcome::default() });
    };
    let mut blocks = table(program);
    let mut patterns = vec![0_u8; program.slots];
    let sparse = is_sparse(program);
    // The ends of live blocks by their starts, used if contents alone do not reveal overlaps.
    let mut places = BTreeMap::new();
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
        let (size, new) = (op.size(), op.resized());
        // Returns whether the first `kept` bytes of a block with `size` written bytes still hold the pattern.
        let holds = |block: *mut u8, size: usize, kept: usize, pattern: u8| {
            parts(size, sparse).into_iter().all(|Range { start, end }| {
                let len = end.min(kept).saturating_sub(start);
                // SAFETY: the block is live and has at least `kept` bytes, and these were written.
                unsafe { std::slice::from_raw_parts(block.wrapping_add(start), len) }
                    .iter()
                    .all(|&byte| byte == pattern)
            })
        };
        if op.kind != Kind::Allocate && !old.is_null() {
            if !holds(old, size, size, patterns[slot]) {
                return Err(format!("event {number}: the block's contents were changed"));
            }
            live -= size;
            places.remove(&old.addr());
        }
        // SAFETY: the table was created for this program, and only `step` changes it.
        let served = unsafe { step(&mut *subject, &mut blocks, op) };
        if !served {
            outcome.failed.get_or_insert(number);
            outcome.failures += 1;
        }
        let block = blocks[slot];
        if !block.is_null() {
            if op.kind == Kind::Reallocate && !holds(block, size, size.min(new), patterns[slot]) {
                return Err(format!("event {number}: contents were lost while moving"));
            }
            if !block.addr().is_multiple_of(op.layout().align()) {
                return Err(format!("event {number}: the block is not aligned to {}", op.layout().align()));
            }
            let after = op.after();
            let inside = block
                .addr()
                .checked_sub(range.start.addr())
                .is_some_and(|at| at.checked_add(after).is_some_and(|end| end <= range.size));
            if !inside {
                return Err(format!("event {number}: the block is not in the arena"));
            }
            if sparse {
                let end = block.addr() + after;
                let before = places.range(..end).next_back().is_some_and(|(_, &end)| end > block.addr());
                if before || places.insert(block.addr(), end).is_some() {
                    return Err(format!("event {number}: the block overlaps another one"));
                }
            }
            patterns[slot] = (number % 251) as u8 + 1;
            for Range { start, end } in parts(after, sparse) {
                // SAFETY: the block is live and has `after` bytes.
                unsafe { block.add(start).write_bytes(patterns[slot], end - start) };
            }
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

/// Number of operations between readings of the clock while measuring times. A reading costs little more than an operation.
const BETWEEN_LOOKS: usize = 512;

/// Measures the time of `repeat` replays, each on a fresh subject, without writing blocks. Returns `None` if the subject cannot use the
/// arena, or if the arena's deadline passes first.
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
        // SAFETY: the arena is borrowed exclusively for the replays, and no block is used after its subject.
        let mut subject = unsafe { make.make(range) }?;
        let start = Instant::now();
        for part in program.ops.chunks(BETWEEN_LOOKS) {
            if arena.deadline().passed() {
                return None;
            }
            for op in part {
                // SAFETY: the table was created for this program, and only `step` changes it.
                std::hint::black_box(unsafe { step(&mut *subject, &mut blocks, op) });
            }
        }
        total += start.elapsed();
    }
    Some(total)
}
