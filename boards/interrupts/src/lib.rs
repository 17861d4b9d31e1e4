//! A pool of blocks that the main loop and an interrupt handler share: each checks that its blocks are its own.
#![no_std]

use allotment::fixed::{Fixed, FixedPool};
use core::cell::UnsafeCell;
use core::fmt;
use core::hint;
use core::sync::atomic::{AtomicU32, Ordering};
use cortex_m::peripheral::{SYST, syst::SystClkSource};
use cortex_m_rt::exception;

/// A block knows its owner, in all of its words.
type Block = [u32; 4];

const BLOCKS: usize = 40;
type Owned = Fixed<'static, Block, BLOCKS, 2>;

static POOL: FixedPool<Block, BLOCKS, 2> = FixedPool::new();

const MAIN: u32 = 0x1111_1111;
const HANDLER: u32 = 0x2222_2222;

/// Interrupts so far.
static INTERRUPTS: AtomicU32 = AtomicU32::new(0);
/// Blocks that did not hold what their owner wrote, or could not be given back.
static WRONG: AtomicU32 = AtomicU32::new(0);
/// Blocks that the handler has taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The handler's blocks.
struct Kept(UnsafeCell<[Option<Owned>; 16]>);
// SAFETY: only the handler accesses them while interrupts come, and the main loop when they have ended.
unsafe impl Sync for Kept {}
static KEPT: Kept = Kept(UnsafeCell::new([const { None }; 16]));

/// Counts, on processors that cannot add atomically too: each counter has one writer.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Checks a block before it is given back.
fn give(block: Owned, owner: u32, wrong: &AtomicU32) {
    if block.iter().any(|&word| word != owner) {
        count(wrong);
    }
}

#[exception]
fn SysTick() {
    // SAFETY: see `Kept`.
    let kept = unsafe { &mut *KEPT.0.get() };
    let turn = INTERRUPTS.load(Ordering::Relaxed) as usize;
    let place = &mut kept[turn * 7 % 16];
    match place.take() {
        Some(block) => give(block, HANDLER, &WRONG),
        None => {
            if let Ok(block) = POOL.put([HANDLER; 4]) {
                *place = Some(block);
                count(&TAKEN);
            }
        }
    }
    count(&INTERRUPTS);
}

/// Why a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// So many blocks held what another owner wrote.
    Shared(u32),
    /// So many of the blocks came back.
    Lost(usize),
    /// The handler got no block.
    Idle,
    /// The lock let an interrupt in that it should mask, or masked one that it should not.
    Mask(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(blocks) => write!(f, "{blocks} blocks had two owners"),
            Self::Lost(blocks) => write!(f, "{blocks} of {BLOCKS} blocks came back"),
            Self::Idle => write!(f, "the handler got no block"),
            Self::Mask(what) => write!(f, "the lock: {what}"),
        }
    }
}

/// Takes and gives blocks back until `interrupts` interrupts have come in between. A handler runs every `cycles` cycles.
///
/// # Errors
///
/// [`Failure`] if a block had two owners, or was lost.
pub fn run(mut timer: SYST, cycles: u32, interrupts: u32) -> Result<(), Failure> {
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(cycles);
    timer.clear_current();
    timer.enable_interrupt();
    timer.enable_counter();

    let wrong = AtomicU32::new(0);
    let mut own: [Option<Owned>; 24] = [const { None }; 24];
    let mut turn = 0_usize;
    while INTERRUPTS.load(Ordering::Relaxed) < interrupts {
        turn = turn.wrapping_add(1);
        let place = &mut own[turn.wrapping_mul(5) % 24];
        *place = match place.take() {
            Some(block) => {
                give(block, MAIN, &wrong);
                None
            }
            None => POOL.put([MAIN; 4]).ok(),
        };
        hint::spin_loop();
    }
    timer.disable_interrupt();
    timer.disable_counter();
    for block in own.into_iter().flatten() {
        give(block, MAIN, &wrong);
    }
    // SAFETY: no more interrupts come.
    for place in unsafe { &mut *KEPT.0.get() } {
        if let Some(block) = place.take() {
            give(block, HANDLER, &WRONG);
        }
    }
    let shared = wrong.into_inner() + WRONG.load(Ordering::Relaxed);
    if shared > 0 {
        return Err(Failure::Shared(shared));
    }
    if POOL.available() != BLOCKS {
        return Err(Failure::Lost(POOL.available()));
    }
    if TAKEN.load(Ordering::Relaxed) < interrupts / 8 {
        return Err(Failure::Idle);
    }
    let bytes = BLOCKS * size_of::<Block>();
    defmt::info!("summary interrupts={=u32} rounds={=usize} peak={=usize}", interrupts, turn, bytes);
    Ok(())
}
