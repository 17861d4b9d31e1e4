//! Chooses the blocks of a sample.
//!
//! Most calls pass the recorder by: a request takes its bytes off the thread's distance to the next sample, and a free reads
//! a byte that counts the recorded blocks near its address.

use core::arch::{asm, global_asm};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use allotment_event::Sampler;

use crate::early;

/// The mean distance in bytes; 0 if all blocks are recorded.
static MEAN: AtomicU64 = AtomicU64::new(0);

/// A number that differs from run to run.
static SEED: AtomicU64 = AtomicU64::new(0);

/// A thread's state.
#[repr(C)]
struct Thread {
    /// Bytes up to the next sample; 0 of a thread without requests, and always if all blocks are recorded.
    left: u64,
    random: u64,
}

// A variable of each thread at a fixed distance from its pointer, which other C libraries than the compiler's have as well.
global_asm!(
    ".section .tbss.allotment_thread,\"awT\",@nobits",
    ".hidden allotment_thread",
    ".globl allotment_thread",
    ".type allotment_thread,@object",
    ".size allotment_thread, 16",
    ".p2align 4",
    "allotment_thread:",
    ".zero 16",
    ".previous",
);

#[inline(always)]
fn thread() -> *mut Thread {
    let place: *mut Thread;
    // SAFETY: reads the thread pointer, and the variable's distance from it.
    unsafe {
        asm!(
            "mov {place}, qword ptr [rip + allotment_thread@GOTTPOFF]",
            "add {place}, qword ptr fs:[0]",
            place = out(reg) place,
            options(pure, readonly, nostack),
        );
    }
    place
}

/// Takes a request off the distance to the next sample, if it is not one. The real functions are known then.
#[inline(always)]
pub fn passes(size: usize) -> bool {
    // SAFETY: the state is this thread's own.
    let left = unsafe { &mut (*thread()).left };
    match left.checked_sub(size as u64) {
        Some(rest @ 1..) => {
            *left = rest;
            true
        }
        _ => false,
    }
}

/// Returns whether a request that did not pass is recorded.
pub fn chooses(size: usize) -> bool {
    let mean = MEAN.load(Ordering::Relaxed);
    if mean == 0 {
        return true;
    }
    // SAFETY: the state is this thread's own.
    let thread = unsafe { &mut *thread() };
    if thread.left == 0 {
        thread.random ^= (&raw mut *thread).addr() as u64 ^ SEED.load(Ordering::Relaxed);
        thread.left = Sampler::distance(mean, &mut thread.random);
        if passes(size) {
            return false;
        }
    }
    thread.left = Sampler::distance(mean, &mut thread.random);
    true
}

/// For each address modulo [`NEAR`] granules: [`NONE`] less the recorded blocks there. 0 stays 0, and stands for any number.
static BLOCKS: [AtomicU8; NEAR] = [const { AtomicU8::new(0) }; NEAR];
const NEAR: usize = 1 << 16;
const NONE: u8 = u8::MAX;

fn near(address: usize) -> &'static AtomicU8 {
    &BLOCKS[address / 16 % NEAR]
}

/// Returns whether a block, which may be null, is certainly not recorded. The real functions are known then.
#[inline(always)]
pub fn is_unknown(block: *mut c_void) -> bool {
    near(block.addr()).load(Ordering::Relaxed) == NONE
}

/// Notes that a block is recorded, or not any more. Call it only under the recorder's lock.
pub fn count(address: usize, recorded: bool) {
    let near = near(address);
    match (near.load(Ordering::Relaxed), recorded) {
        (0, _) => {}
        (blocks, true) => near.store(blocks - 1, Ordering::Relaxed),
        (blocks, false) => near.store(blocks + 1, Ordering::Relaxed),
    }
}

/// Forgets which blocks are recorded.
pub fn forget() {
    if is_on() {
        for blocks in &BLOCKS {
            blocks.store(NONE, Ordering::Relaxed);
        }
        for address in early::used().step_by(16) {
            near(address).store(0, Ordering::Relaxed);
        }
    }
}

/// Returns whether only a sample is recorded.
pub fn is_on() -> bool {
    MEAN.load(Ordering::Relaxed) != 0
}

/// Starts to record a sample, if the mean in bytes is not 0.
pub fn start(mean: u64, seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    MEAN.store(mean, Ordering::Relaxed);
    forget();
}
