//! Replay of a trace on a subject.

use std::ptr;

use crate::subjects::{Subject, call};
use crate::trace::{Kind, Op, Trace};

/// The blocks of a replay by slot. Null means that the block is not live or was not satisfied.
pub fn table(trace: &Trace) -> Vec<*mut u8> {
    vec![ptr::null_mut(); trace.slots]
}

/// Performs one operation, and returns whether it was satisfied. Frees and reallocations of blocks that were not
/// satisfied are skipped. A block that could not be enlarged is freed and then also skipped.
///
/// # Safety
///
/// `op.slot` must be below the length of `blocks`, which must hold this subject's live blocks.
#[inline(always)]
pub unsafe fn step<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], op: &Op) -> bool {
    // SAFETY: the slot is in the table, and a block in it is live and has the operation's layout, because the trace
    // was compiled from ids in the right state.
    unsafe {
        let block = blocks.get_unchecked_mut(op.slot as usize);
        match op.kind {
            Kind::Allocate => {
                *block = call::alloc(subject, op.layout());
                !block.is_null()
            }
            Kind::Free => {
                if !block.is_null() {
                    call::dealloc(subject, *block, op.layout());
                    *block = ptr::null_mut();
                }
                true
            }
            Kind::Reallocate => {
                if block.is_null() {
                    return true;
                }
                let new = call::realloc(subject, *block, op.layout(), op.resized());
                if new.is_null() {
                    call::dealloc(subject, *block, op.layout());
                }
                *block = new;
                !new.is_null()
            }
        }
    }
}

/// Performs all operations, and returns how many were not satisfied. This is the measured loop, which callgrind finds
/// by its name.
///
/// # Safety
///
/// `blocks` must be the trace's table, and hold the subject's live blocks.
#[inline(never)]
pub unsafe fn measured_loop<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], ops: &[Op]) -> usize {
    let mut failed = 0;
    for op in ops {
        // SAFETY: the caller's contract.
        failed += usize::from(!unsafe { step(subject, blocks, op) });
    }
    failed
}

/// Performs operations until one is not satisfied, and returns whether all were satisfied.
///
/// # Safety
///
/// Same contract as [`measured_loop`]: `blocks` must be the trace's table, and hold the subject's live blocks.
pub unsafe fn fits<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], ops: &[Op]) -> bool {
    // SAFETY: the caller's contract.
    ops.iter().all(|op| unsafe { step(subject, blocks, op) })
}

/// Replays the trace, writes every byte of every block, and checks the bytes before a free and after a move.
///
/// # Errors
///
/// The first operation whose block did not keep its contents.
///
/// # Safety
///
/// Same contract as [`measured_loop`]: the trace must fit the subject.
pub unsafe fn check<S: Subject>(subject: &mut S, trace: &Trace) -> Result<(), String> {
    let mut blocks = table(trace);
    let mut patterns = vec![0_u8; trace.slots];
    for (number, op) in trace.ops.iter().enumerate() {
        let slot = op.slot as usize;
        let old = blocks[slot];
        let (size, new) = (op.size(), op.resized());
        let holds = |block: *mut u8, size: usize, pattern: u8| {
            // SAFETY: the block is live and has at least `size` bytes, all of them written.
            unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|&byte| byte == pattern)
        };
        if op.kind != Kind::Allocate && !old.is_null() && !holds(old, size, patterns[slot]) {
            return Err(format!("operation {number}: the block's contents were changed"));
        }
        // SAFETY: the caller's contract.
        unsafe { step(subject, &mut blocks, op) };
        let block = blocks[slot];
        if block.is_null() {
            continue;
        }
        if op.kind == Kind::Reallocate && !holds(block, size.min(new), patterns[slot]) {
            return Err(format!("operation {number}: contents were lost while moving"));
        }
        if !block.addr().is_multiple_of(op.layout().align()) {
            return Err(format!("operation {number}: misaligned"));
        }
        patterns[slot] = (number % 251) as u8 + 1;
        let size = if op.kind == Kind::Reallocate { new } else { size };
        // SAFETY: the block is live and has `size` bytes.
        unsafe { block.write_bytes(patterns[slot], size) };
    }
    Ok(())
}
