//! Replaying a trace on a subject.

use std::ptr;

use crate::subjects::{Subject, call};
use crate::trace::{Kind, Op, Trace};

/// The blocks of a replay, by slot. Null: not live, or not served.
pub fn table(trace: &Trace) -> Vec<*mut u8> {
    vec![ptr::null_mut(); trace.slots]
}

/// One operation: does it, and says whether it was served. Frees and reallocations of blocks that were not
/// served are left out, and so is a block that could not be enlarged (it is freed).
///
/// # Safety
///
/// `op.slot` is below the length of `blocks`, which holds this subject's live blocks.
#[inline(always)]
pub unsafe fn step<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], op: &Op) -> bool {
    // SAFETY: the slot is in the table; a block in it is live and has the operation's layout, as the trace
    // was compiled from ids that are in the right state.
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
                let new = call::realloc(subject, *block, op.layout(), op.new as usize);
                if new.is_null() {
                    call::dealloc(subject, *block, op.layout());
                }
                *block = new;
                !new.is_null()
            }
        }
    }
}

/// All operations; how many were not served. This is the loop that is measured, and by whose name callgrind
/// finds it.
///
/// # Safety
///
/// `blocks` is the trace's table, and holds the subject's live blocks.
#[inline(never)]
pub unsafe fn measured_loop<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], ops: &[Op]) -> usize {
    let mut failed = 0;
    for op in ops {
        // SAFETY: passed on.
        failed += usize::from(!unsafe { step(subject, blocks, op) });
    }
    failed
}

/// As [`measured_loop`], but ends at the first operation that is not served. Whether there was none.
///
/// # Safety
///
/// As there.
pub unsafe fn fits<S: Subject>(subject: &mut S, blocks: &mut [*mut u8], ops: &[Op]) -> bool {
    // SAFETY: passed on.
    ops.iter().all(|op| unsafe { step(subject, blocks, op) })
}

/// Replays with every byte of every block written, and read back before it is freed or after it was moved.
///
/// # Errors
///
/// The first operation whose block was not as it was left.
///
/// # Safety
///
/// As for [`measured_loop`].
pub unsafe fn check<S: Subject>(subject: &mut S, trace: &Trace) -> Result<(), String> {
    let mut blocks = table(trace);
    let mut patterns = vec![0_u8; trace.slots];
    for (number, op) in trace.ops.iter().enumerate() {
        let slot = op.slot as usize;
        let old = blocks[slot];
        let (size, new) = (op.size as usize, op.new as usize);
        let holds = |block: *mut u8, size: usize, pattern: u8| {
            // SAFETY: the block is live and has at least `size` bytes, all of them written.
            unsafe { std::slice::from_raw_parts(block, size) }.iter().all(|&byte| byte == pattern)
        };
        if op.kind != Kind::Allocate && !old.is_null() && !holds(old, size, patterns[slot]) {
            return Err(format!("operation {number}: the block's contents were changed"));
        }
        // SAFETY: passed on.
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
