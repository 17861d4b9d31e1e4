//! Two harts of QEMU's RISC-V machine `virt` that share a heap which keeps free blocks for each.
//!
//! Two loads: each hart replaces blocks of its own at random, as larson does, and one hart allocates what the other one frees. Every block is
//! checked for what its owner wrote. The emulator runs the harts in threads of their own. The same is done with talc in a spin lock, and the
//! times of both are shown.
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
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
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

/// Where the machine takes software interrupts for its second hart.
const WAKE: *mut u32 = ptr::without_provenance_mut(0x0200_0004);

/// The two harts.
struct Harts;

// SAFETY: interrupts of the hart are masked from `enter` to `leave`, and each hart has its own number.
unsafe impl Cores for Harts {
    type Token = usize;

    #[inline(always)]
    fn enter() -> (usize, usize) {
        let (hart, old): (usize, usize);
        // SAFETY: it masks interrupts and reads a number.
        unsafe {
            asm!("csrrci {old}, mstatus, 8", "csrr {hart}, mhartid", old = out(reg) old, hart = out(reg) hart);
        }
        (hart, old & 8)
    }

    #[inline(always)]
    unsafe fn leave(old: usize) {
        // SAFETY: it restores what was there before.
        unsafe { asm!("csrs mstatus, {}", in(reg) old) }
    }
}

const MEMORY: usize = 96 * 1024;

#[global_allocator]
static HEAP: PerCore<Heap<placement::Default, Spin>, Harts, Spin> = PerCore::new(heap!(MEMORY));

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
static FULL: AtomicBool = AtomicBool::new(false);

/// Counts up when a hart has come to the same place.
static MET: AtomicU32 = AtomicU32::new(0);

/// Waits until the other hart has come here as well.
fn meet() {
    let both = MET.fetch_add(1, Ordering::AcqRel) / 2 * 2 + 2;
    while MET.load(Ordering::Acquire) < both {
        hint::spin_loop();
    }
}

/// Where the machine counts up ten million times per second.
const TIME: *const u32 = ptr::without_provenance(0x0200_bff8);

/// Returns how long a load takes on both harts, in units of 100 ns.
fn timed(load: impl FnOnce()) -> u32 {
    // SAFETY: the register is there.
    let now = || unsafe { TIME.read_volatile() };
    meet();
    let start = now();
    load();
    meet();
    now().wrapping_sub(start)
}

const ROUNDS: u32 = 20_000;
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
        FULL.store(true, Ordering::Relaxed);
    } else {
        // SAFETY: the block has eight bytes at least.
        unsafe { block.cast::<[u32; 2]>().write([layout.size() as u32, owner]) };
    }
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
fn replace(heap: &impl GlobalAlloc, hart: u32) {
    let mut blocks = [ptr::null_mut(); OWN];
    let mut random = hart + 1;
    for _ in 0..ROUNDS {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let place = &mut blocks[(random >> 24) as usize % OWN];
        free(heap, *place, hart);
        *place = allocate(heap, layout(random), hart);
    }
    for block in blocks {
        free(heap, block, hart);
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
        if hart == 0 {
            while !place.load(Ordering::Acquire).is_null() && !FULL.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
            place.store(allocate(heap, layout(random), 2), Ordering::Release);
        } else {
            let mut block = place.load(Ordering::Acquire);
            while block.is_null() && !FULL.load(Ordering::Relaxed) {
                hint::spin_loop();
                block = place.load(Ordering::Acquire);
            }
            free(heap, block, 2);
            place.store(ptr::null_mut(), Ordering::Release);
        }
    }
}

/// Runs both loads on one hart, with both heaps.
fn run(hart: u32) -> Result<(), Failure> {
    let kept = [timed(|| replace(&HEAP, hart)), timed(|| send(&HEAP, hart))];
    HEAP.flush();
    if hart == 0 {
        // SAFETY: nothing else knows the memory, which is claimed once.
        let claimed = unsafe { TALC.lock().claim((&raw mut OTHER).cast(), MEMORY) };
        FULL.fetch_or(claimed.is_none(), Ordering::Relaxed);
    }
    let locked = [timed(|| replace(&TALC, hart)), timed(|| send(&TALC, hart))];
    if FULL.load(Ordering::Relaxed) {
        return Err(Failure::Full);
    }
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
    if hart == 0 {
        // SAFETY: the register is there.
        unsafe { WAKE.write_volatile(1) };
        boards::finish(run(0));
    }
    let _ = run(1);
    loop {
        hint::spin_loop();
    }
}
