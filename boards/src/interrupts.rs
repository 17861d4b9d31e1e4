//! A pool of blocks that the main loop and an interrupt handler share: each checks that its blocks are its own. Beside it a heap that
//! allocates for the main loop alone, until it is sealed.

use allotment::fixed::{Fixed, FixedPool};
use allotment::out_of_memory::Cause;
use allotment::seal::CortexM;
use allotment::{Heap, Memory, Sealable, heap};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::hint;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
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
/// Blocks that did not hold what their owner wrote, or could not be freed.
static WRONG: AtomicU32 = AtomicU32::new(0);
/// Blocks that the handler has taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The handler's blocks.
struct Kept(UnsafeCell<[Option<Owned>; 16]>);
// SAFETY: only the handler accesses them while interrupts come, and the main loop when they have ended.
unsafe impl Sync for Kept {}
static KEPT: Kept = Kept(UnsafeCell::new([const { None }; 16]));

/// Refuses handlers, and everyone once it is sealed.
static HEAP: Sealable<Heap, CortexM> = Sealable::new(heap!(512));
const LAYOUT: Layout = Layout::new::<[u64; 4]>();

/// A block for the handler to free.
static LEFT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Requests of the handler that were refused because it is one, and those that were not.
static REFUSED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Asks the heap for a block, which must be refused, and frees the block that the main loop left.
fn allocate_in_handler() {
    let refused = HEAP.try_allocate(LAYOUT).is_err_and(|error| error.cause() == Cause::Interrupt);
    count(&REFUSED[usize::from(!refused)]);
    if let Some(block) = NonNull::new(LEFT.load(Ordering::Relaxed)) {
        LEFT.store(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: the main loop allocated it with this layout and does not use it any more.
        unsafe { HEAP.deallocate(block, LAYOUT) };
    }
}

/// Checks that the main loop gets memory until the heap is sealed, and leaves a block to the handler.
fn check_seal() -> Result<(), Failure> {
    let block = HEAP.try_allocate(LAYOUT).map_err(|_| Failure::Seal("the main loop is refused"))?;
    HEAP.seal();
    if !HEAP.try_allocate(LAYOUT).is_err_and(|error| error.cause() == Cause::Sealed) {
        return Err(Failure::Seal("a sealed heap serves a request"));
    }
    HEAP.unseal();
    LEFT.store(block.as_ptr(), Ordering::Relaxed);
    Ok(())
}

/// Counts, on processors that cannot add atomically too: each counter has one writer.
fn count(counter: &AtomicU32) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Checks a block, then frees it.
fn check_and_free(block: Owned, owner: u32, wrong: &AtomicU32) {
    if block.iter().any(|&word| word != owner) {
        count(wrong);
    }
}

#[exception]
fn SysTick() {
    allocate_in_handler();
    // SAFETY: see `Kept`.
    let kept = unsafe { &mut *KEPT.0.get() };
    let turn = INTERRUPTS.load(Ordering::Relaxed) as usize;
    let place = &mut kept[turn * 7 % 16];
    match place.take() {
        Some(block) => check_and_free(block, HANDLER, &WRONG),
        None => {
            if let Ok(block) = POOL.alloc([HANDLER; 4]) {
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
    /// The heap satisfied a request that it had to refuse, or the other way.
    Seal(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(blocks) => write!(f, "{blocks} blocks had two owners"),
            Self::Lost(blocks) => write!(f, "{blocks} of {BLOCKS} blocks came back"),
            Self::Idle => write!(f, "the handler got no block"),
            Self::Seal(what) => write!(f, "the seal: {what}"),
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
    check_seal()?;
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
                check_and_free(block, MAIN, &wrong);
                None
            }
            None => POOL.alloc([MAIN; 4]).ok(),
        };
        hint::spin_loop();
    }
    timer.disable_interrupt();
    timer.disable_counter();
    for block in own.into_iter().flatten() {
        check_and_free(block, MAIN, &wrong);
    }
    // SAFETY: no more interrupts come.
    for place in unsafe { &mut *KEPT.0.get() } {
        if let Some(block) = place.take() {
            check_and_free(block, HANDLER, &WRONG);
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
    if REFUSED[0].load(Ordering::Relaxed) < interrupts || REFUSED[1].load(Ordering::Relaxed) > 0 {
        return Err(Failure::Seal("the handler is served"));
    }
    if HEAP.memory().used() != 0 {
        return Err(Failure::Seal("the handler's free is lost"));
    }
    let bytes = BLOCKS * size_of::<Block>();
    defmt::info!("summary interrupts={=u32} rounds={=usize} peak={=usize}", interrupts, turn, bytes);
    Ok(())
}
