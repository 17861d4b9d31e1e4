//! Memory that start-up leaves as it is, on Arm's MPS2 board with image AN385 (Cortex-M3).
//!
//! The program fills the heap's memory and resets the chip. The second boot still finds its record and the old bytes, an empty heap over
//! them, and zeros in blocks that are asked for as zeros.
#![no_std]
#![no_main]

use allotment::{Heap, heap};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::MaybeUninit;

/// In `.uninit`, where the linker script of cortex-m-rt has the memory that start-up leaves alone.
#[global_allocator]
static HEAP: Heap = heap!(16 * 1024, section = ".uninit.heap", align = 32);

/// What survives a reset: a number of boots, and a check that it is one.
#[repr(C)]
struct Record(UnsafeCell<MaybeUninit<[u32; 2]>>);

// SAFETY: only `main` uses it, once for each boot.
unsafe impl Sync for Record {}

#[unsafe(link_section = ".uninit.record")]
static RECORD: Record = Record(UnsafeCell::new(MaybeUninit::uninit()));

const CHECK: u32 = 0x5eed_b007;
const BLOCK: Layout = Layout::new::<[u32; 1024]>();
const OLD: u8 = 0xa5;

enum Failure {
    Full,
    NotEmpty(usize),
    Cleared,
    NotZero,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => write!(f, "the heap is full"),
            Self::NotEmpty(bytes) => write!(f, "{bytes} bytes are in use after the reset"),
            Self::Cleared => write!(f, "start-up cleared the memory"),
            Self::NotZero => write!(f, "a block of zeros has other bytes"),
        }
    }
}

/// Returns the number of earlier boots, and notes this one.
fn boots() -> u32 {
    let record = RECORD.0.get().cast::<[u32; 2]>();
    // SAFETY: nothing else uses the record, and any bytes are numbers. Reads and writes are volatile because other boots do them too.
    let [boots, check] = unsafe { record.read_volatile() };
    let boots = if boots ^ check == CHECK { boots } else { 0 };
    // SAFETY: as above.
    unsafe { record.write_volatile([boots + 1, (boots + 1) ^ CHECK]) };
    boots
}

/// Returns whether all bytes of a block from `first` on are `value`.
fn holds(block: *const u8, first: usize, value: u8) -> bool {
    // SAFETY: the callers pass live blocks of this length, in memory that any bytes are valid for.
    (first..BLOCK.size()).all(|at| unsafe { block.add(at).read_volatile() } == value)
}

/// The first boot: fills blocks and keeps them.
fn fill() -> Result<(), Failure> {
    for _ in 0..3 {
        // SAFETY: the layout is not empty.
        let block = unsafe { HEAP.alloc(BLOCK) };
        if block.is_null() {
            return Err(Failure::Full);
        }
        // SAFETY: the block is live and this long.
        unsafe { block.write_bytes(OLD, BLOCK.size()) };
    }
    Ok(())
}

/// The second boot: looks at what the first one left.
fn look() -> Result<(), Failure> {
    if HEAP.used() > 0 {
        return Err(Failure::NotEmpty(HEAP.used()));
    }
    // SAFETY: the layout is not empty.
    let (old, zeros) = unsafe { (HEAP.alloc(BLOCK), HEAP.alloc_zeroed(BLOCK)) };
    if old.is_null() || zeros.is_null() {
        return Err(Failure::Full);
    }
    // The first block lies where the first one of the first boot lay. Free blocks begin with links.
    if !holds(old, 16, OLD) {
        return Err(Failure::Cleared);
    }
    if !holds(zeros, 0, 0) {
        return Err(Failure::NotZero);
    }
    let peak = HEAP.peak();
    // SAFETY: both are live and have this layout.
    unsafe {
        HEAP.dealloc(old, BLOCK);
        HEAP.dealloc(zeros, BLOCK);
    }
    defmt::info!("summary boots=2 peak={=usize} largest_free={=usize}", peak, HEAP.largest_free());
    Ok(())
}

#[cortex_m_rt::entry]
fn main() -> ! {
    if boots() > 0 {
        boards::finish(look());
    }
    match fill() {
        Ok(()) => cortex_m::peripheral::SCB::sys_reset(),
        failed => boards::finish(failed),
    }
}
