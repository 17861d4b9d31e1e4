//! Two harts of QEMU's RISC-V machine `virt` that share a heap which keeps free blocks for each.
//!
//! Two loads: each hart replaces blocks of its own at random, as larson does, and one hart allocates what the other one frees. Every block is
//! checked for what its owner wrote. The same is done with talc in a spin lock, and the times of both are shown.
//!
//! The emulator runs the harts in threads of their own, so that the times are as good as the machine is idle. With `-icount shift=0` it runs
//! them in turns, and the times are instructions of both harts, divided by 100: exact, but without any wait for a lock.
#![no_std]
#![no_main]

use allotment::cores::Cores;
use allotment::lock::Spin;
use allotment::{Heap, PerCore, heap, placement};
use core::alloc::{GlobalAlloc, Layout};
use core::arch::{asm, global_asm};
use core::fmt;
use core::hint;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use spinning_top::RawSpinlock;
use talc::TalcLock;
use talc::source::Manual;

// Lets the second hart wait for a software interrupt, and tells which hart prepares the memory.
global_asm!(
    ".section .init.mp_hook, \"ax\"",
    ".global _mp_hook",
    "_mp_hook:",
    "    beqz a0, 2f",
    "    csrwi mie, 8",
    "1:  wfi",
    "    csrr t0, mip",
    "    andi t0, t0, 8",
    "    beqz t0, 1b",
    "    csrwi mie, 0",
    "    li a0, 0",
    "    ret",
    "2:  li a0, 1",
    "    ret",
);

/// Where the machine takes software interrupts, a word for each hart.
const INTERRUPTS: *mut u32 = ptr::without_provenance_mut(0x0200_0000);

/// The two harts, whose numbers are in `tp`, as in kernels.
struct Harts;

// SAFETY: each hart has its own number, and no handler allocates.
unsafe impl Cores for Harts {
    type Token = ();

    #[inline(always)]
    fn enter() -> (usize, ()) {
        let hart: usize;
        // SAFETY: it reads a register, which does not change any more.
        unsafe { asm!("mv {}, tp", out(reg) hart, options(pure, nomem, nostack)) };
        (hart, ())
    }

    #[inline(always)]
    unsafe fn leave((): ()) {}
}

/// What each heap has.
const MEMORY: usize = 448 * 1024;

#[global_allocator]
static HEAP: PerCore<Heap<placement::Default, Spin>, Harts, Spin, 2, 4096> = PerCore::new(heap!(MEMORY));

static TALC: TalcLock<RawSpinlock, Manual> = TalcLock::new(Manual);
/// Its memory.
static mut OTHER: [u64; MEMORY / 8] = [0; MEMORY / 8];

/// Why a run failed.
enum Failure {
    /// So many blocks did not hold what their owner wrote.
    Shared(u32),
    /// The heap had no room.
    Full,
    /// So many bytes were not freed.
    Lost(usize),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(blocks) => write!(f, "{blocks} blocks had two owners"),
            Self::Full => write!(f, "the heap is full"),
            Self::Lost(bytes) => write!(f, "{bytes} bytes were not freed"),
        }
    }
}

static WRONG: AtomicU32 = AtomicU32::new(0);

/// Counts up when a hart has come to the same place.
static MET: AtomicU32 = AtomicU32::new(0);

/// Wakes a hart that waits in [`until`].
fn wake(hart: u32) {
    // SAFETY: the register is there.
    unsafe { INTERRUPTS.add(hart as usize).write_volatile(1) };
}

/// Waits until something has happened that the other hart does before it wakes this one. If that takes long, the other hart does not run,
/// because the machine under the emulator is busy, and this one makes room for it.
fn until(hart: u32, done: impl Fn() -> bool) {
    for _ in 0..1000 {
        if done() {
            return;
        }
        hint::spin_loop();
    }
    loop {
        // SAFETY: the register is there.
        unsafe { INTERRUPTS.add(hart as usize).write_volatile(0) };
        if done() {
            return;
        }
        // SAFETY: it waits for an interrupt, which is enabled but for the trap.
        unsafe { asm!("csrsi mie, 8", "wfi") };
    }
}

/// Waits until the other hart has come here as well.
fn meet(hart: u32) {
    let both = MET.fetch_add(1, Ordering::AcqRel) / 2 * 2 + 2;
    wake(1 - hart);
    until(hart, || MET.load(Ordering::Acquire) >= both);
}

/// Where the machine counts up ten million times per second.
const TIME: *const u32 = ptr::without_provenance(0x0200_bff8);

/// When a hart has begun and ended its part of a load.
static TIMES: [[AtomicU32; 2]; 2] = [const { [const { AtomicU32::new(0) }; 2] }; 2];

/// Returns how long a load takes on both harts, in units of 100 ns.
fn timed(hart: u32, load: impl FnOnce()) -> u32 {
    // SAFETY: the register is there.
    let now = || unsafe { TIME.read_volatile() };
    meet(hart);
    meet(hart);
    TIMES[hart as usize][0].store(now(), Ordering::Relaxed);
    load();
    TIMES[hart as usize][1].store(now(), Ordering::Relaxed);
    meet(hart);
    let [first, second] =
        TIMES.each_ref().map(|times| times.each_ref().map(|time| time.load(Ordering::Relaxed)));
    // The clock's lower half may have wrapped.
    let since = |time: u32| time.wrapping_sub(first[0]) as i32;
    (since(first[1]).max(since(second[1])) - since(second[0]).min(0)) as u32
}

/// Times that each load is run with each heap: of each, the shortest time counts, in which the machine under the emulator was the least busy.
const TURNS: u32 = 200;
/// Blocks that each hart allocates in a turn.
const ROUNDS: u32 = 500;
/// Blocks of each hart.
const OWN: usize = 64;

fn layout(random: u32) -> Layout {
    let size = 8 + (random >> 8) as usize % 393;
    // SAFETY: 8 is a power of two, and the size is small.
    unsafe { Layout::from_size_align_unchecked(size, 8) }
}

/// A block with its size and owner in front.
fn allocate(heap: &impl GlobalAlloc, layout: Layout, owner: u32) -> *mut u8 {
    // SAFETY: the layout is not empty.
    let block = unsafe { heap.alloc(layout) };
    if block.is_null() {
        boards::finish::<(), _>(Err(Failure::Full));
    }
    // SAFETY: the block has eight bytes at least.
    unsafe { block.cast::<[u32; 2]>().write([layout.size() as u32, owner]) };
    block
}

fn free(heap: &impl GlobalAlloc, block: *mut u8, owner: u32) {
    if block.is_null() {
        return;
    }
    // SAFETY: the block is live, and begins with its size and owner.
    let [size, found] = unsafe { block.cast::<[u32; 2]>().read() };
    if found != owner {
        WRONG.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: as when it was allocated.
    let layout = unsafe { Layout::from_size_align_unchecked(size as usize, 8) };
    // SAFETY: the block is live and has this layout.
    unsafe { heap.dealloc(block, layout) };
}

/// Replaces blocks at random.
fn replace(heap: &impl GlobalAlloc, hart: u32, blocks: &mut [*mut u8; OWN]) {
    let mut random = hart + 1;
    for _ in 0..ROUNDS {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let place = &mut blocks[(random >> 24) as usize % OWN];
        free(heap, *place, hart);
        *place = allocate(heap, layout(random), hart);
    }
}

/// Blocks on their way from the first hart to the second one.
static RING: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

/// Sends blocks from one hart to the other.
fn send(heap: &impl GlobalAlloc, hart: u32) {
    let mut random = 7_u32;
    for round in 0..ROUNDS as usize {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let place = &RING[round % RING.len()];
        let is_full = || !place.load(Ordering::Acquire).is_null();
        if hart == 0 {
            until(0, || !is_full());
            place.store(allocate(heap, layout(random), 2), Ordering::Release);
        } else {
            until(1, is_full);
            free(heap, place.swap(ptr::null_mut(), Ordering::AcqRel), 2);
        }
        // What the other one may wait for is half of the ring away.
        if round % (RING.len() / 2) == 0 || round + 1 == ROUNDS as usize {
            wake(1 - hart);
        }
    }
}

/// Runs both loads on one hart with a heap, and shortens the times.
fn turn(heap: &impl GlobalAlloc, hart: u32, times: &mut [u32; 2]) {
    let mut blocks = [ptr::null_mut(); OWN];
    replace(heap, hart, &mut blocks);
    times[0] = times[0].min(timed(hart, || replace(heap, hart, &mut blocks)));
    blocks.into_iter().for_each(|block| free(heap, block, hart));
    times[1] = times[1].min(timed(hart, || send(heap, hart)));
}

/// Runs both loads on one hart, with both heaps in turns.
fn run(hart: u32) -> Result<(), Failure> {
    if hart == 0 {
        // SAFETY: nothing else knows the memory, which is claimed once.
        let claimed = unsafe { TALC.lock().claim((&raw mut OTHER).cast(), MEMORY) };
        if claimed.is_none() {
            return Err(Failure::Full);
        }
    }
    let [mut kept, mut locked] = [[u32::MAX; 2]; 2];
    meet(hart);
    for _ in 0..TURNS {
        turn(&HEAP, hart, &mut kept);
        turn(&TALC, hart, &mut locked);
    }
    HEAP.flush();
    meet(hart);
    match (WRONG.load(Ordering::Relaxed), HEAP.memory().used()) {
        (0, 0) => {
            if hart == 0 {
                defmt::info!("summary rounds={=u32} peak={=usize}", ROUNDS, HEAP.memory().peak());
                defmt::info!("replaced, kept={=u32} talc={=u32} x100 ns", kept[0], locked[0]);
                defmt::info!("sent, kept={=u32} talc={=u32} x100 ns", kept[1], locked[1]);
            }
            Ok(())
        }
        (0, bytes) => Err(Failure::Lost(bytes)),
        (blocks, _) => Err(Failure::Shared(blocks)),
    }
}

/// Starts on each hart; the first one wakes the other.
#[riscv_rt::entry]
fn main(hart: usize) -> ! {
    // SAFETY: nothing else uses the register.
    unsafe { asm!("mv tp, {}", in(reg) hart) };
    if hart == 0 {
        wake(1);
        boards::finish(run(0));
    }
    let _ = run(1);
    loop {
        hint::spin_loop();
    }
}
