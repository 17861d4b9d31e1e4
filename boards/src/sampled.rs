//! Faults that are planted, and how many of them the guard of a [`Sampled`] heap stops.
//!
//! First a write behind a block and a read of a freed one, whose reports must name the block and where it was allocated and freed. Then 100
//! runs with seeds of their own, in each of which a write goes one byte too far 1,000 times, among requests of other parts of the program; in
//! at least 99 runs it must be stopped.

use allotment::sampled::{Caught, Protection};
use allotment::{Heap, Sampled, observe};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};
use core::{hint, ptr};
use critical_section::Mutex;

/// Why the program failed.
pub enum Failure {
    /// The peripherals of the chip are in use.
    Taken,
    /// The guard stopped nothing where it had to.
    NotStopped(&'static str),
    /// A report is wrong.
    Report(&'static str, Caught),
    /// So many runs of 100 were stopped.
    Runs(u32),
    /// The heap had no room.
    Full,
    /// So many bytes were not freed.
    Lost(usize),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => write!(f, "the peripherals are taken"),
            Self::NotStopped(what) => write!(f, "{what} was not stopped"),
            Self::Report(what, caught) => write!(f, "{what}: {caught}"),
            Self::Runs(runs) => write!(f, "the overflow was stopped in {runs} runs of 100"),
            Self::Full => write!(f, "the heap is full"),
            Self::Lost(bytes) => write!(f, "{bytes} bytes were not freed"),
        }
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);
static LAST: Mutex<Cell<Option<Caught>>> = Mutex::new(Cell::new(None));

/// Keeps the report, and lets the access happen. The board's handler calls it; if it returns `false` the fault has another cause.
pub fn stopped<G: Protection>(heap: &Sampled<Heap, G>) -> bool {
    let Some(caught) = heap.fault() else { return false };
    // The write may also meet a freed neighbour that is watched, and then the report names that one.
    let names_it = caught.freed.is_none() && caught.size == SIZE && caught.address == caught.block + SIZE;
    COUNT.store(COUNT.load(Ordering::Relaxed) + u32::from(names_it), Ordering::Relaxed);
    critical_section::with(|section| LAST.borrow(section).set(Some(caught)));
    true
}

fn last() -> Option<Caught> {
    critical_section::with(|section| LAST.borrow(section).take())
}

const SIZE: usize = 40;
const LAYOUT: Layout = Layout::new::<[u32; SIZE / 4]>();

/// Allocates the block that is misused.
#[inline(never)]
fn open<G: Protection>(heap: &Sampled<Heap, G>) -> *mut u8 {
    // SAFETY: the layout is not empty.
    let block = unsafe { heap.alloc(LAYOUT) };
    hint::black_box(block)
}

/// Frees it. Something is left to do then, or the free would be a jump and not a call, which leaves no address.
#[inline(never)]
fn close<G: Protection>(heap: &Sampled<Heap, G>, block: *mut u8) {
    // SAFETY: the block is live and has this layout.
    unsafe { heap.dealloc(block, LAYOUT) };
    hint::black_box(block);
}

/// Returns whether one of the addresses is in the function that starts here, which is shorter than 112 bytes.
fn names(addresses: [usize; 4], function: usize) -> bool {
    addresses.iter().any(|address| (address & !1).wrapping_sub(function & !1) < 112)
}

/// A write behind a block, and a read of a freed one.
fn reports<G: Protection>(heap: &Sampled<Heap, G>) -> Result<(), Failure> {
    heap.start(1);
    let block = observe::with_tag("radio", || open(heap));
    if block.is_null() {
        return Err(Failure::Full);
    }
    let allocates = open::<G> as fn(&Sampled<Heap, G>) -> *mut u8 as usize;
    let frees = close::<G> as fn(&Sampled<Heap, G>, *mut u8) as usize;
    // SAFETY: this is the fault to find. The memory behind a sampled block is the guard, which nothing else uses.
    unsafe { block.add(SIZE).write_volatile(1) };
    let caught = last().ok_or(Failure::NotStopped("a write behind a block"))?;
    defmt::info!("{}", defmt::Display2Format(&caught));
    let expected = (block.addr() + SIZE, block.addr(), SIZE, Some("radio"));
    if (caught.address, caught.block, caught.size, caught.tag) != expected
        || caught.freed.is_some()
        || !names(caught.allocated, allocates)
    {
        return Err(Failure::Report("a write behind a block", caught));
    }
    close(heap, block);
    // SAFETY: this is the fault to find. The block is not allocated again before the guard moves on.
    unsafe { block.add(8).read_volatile() };
    let caught = last().ok_or(Failure::NotStopped("a read of a freed block"))?;
    defmt::info!("{}", defmt::Display2Format(&caught));
    // The write behind the block has changed a byte of where it was allocated.
    if (caught.address, caught.block, caught.size) != (block.addr() + 8, block.addr(), SIZE)
        || !caught.freed.is_some_and(|freed| names(freed, frees))
    {
        return Err(Failure::Report("a read of a freed block", caught));
    }
    Ok(())
}

/// Blocks of the other parts of the program.
const OTHERS: usize = 32;

/// Misuses a block 1,000 times, and returns whether that was stopped.
fn overflows<G: Protection>(heap: &Sampled<Heap, G>, seed: u32) -> Result<bool, Failure> {
    let before = COUNT.load(Ordering::Relaxed);
    heap.start(seed);
    let mut others = [(ptr::null_mut::<u8>(), LAYOUT); OTHERS];
    let mut random = seed;
    for _ in 0..1000 {
        for _ in 0..3 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (block, layout) = &mut others[(random >> 27) as usize];
            if !block.is_null() {
                // SAFETY: the block is live and has this layout.
                unsafe { heap.dealloc(*block, *layout) };
            }
            // SAFETY: 4 is a power of two, and the size is small.
            *layout = unsafe { Layout::from_size_align_unchecked(4 + (random >> 10) as usize % 64 * 4, 4) };
            // SAFETY: the layout is not empty.
            *block = unsafe { heap.alloc(*layout) };
            if block.is_null() {
                return Err(Failure::Full);
            }
        }
        let block = open(heap);
        if block.is_null() {
            return Err(Failure::Full);
        }
        // SAFETY: this is the fault to find. What is written is what was there, so that the program can go on if nothing stops it.
        unsafe {
            let behind = block.add(SIZE);
            behind.write_volatile(behind.read_volatile());
        }
        close(heap, block);
    }
    for (block, layout) in others {
        if !block.is_null() {
            // SAFETY: the block is live and has this layout.
            unsafe { heap.dealloc(block, layout) };
        }
    }
    Ok(COUNT.load(Ordering::Relaxed) > before)
}

/// Handles a fault of the memory protection unit of a Cortex-M, so that the program goes on.
///
/// # Panics
///
/// If the fault has another cause.
#[cfg(target_arch = "arm")]
pub fn memory_management<G: Protection>(heap: &Sampled<Heap, G>) {
    assert!(stopped(heap), "a fault of another cause");
    // SAFETY: it clears the flags of the fault.
    unsafe { (*cortex_m::peripheral::SCB::PTR).cfsr.write(0xff) };
}

/// Lets faults of the memory protection unit of a Cortex-M reach their own handler, and runs all of it. Without that handler a fault would
/// be a HardFault, which cannot return.
///
/// # Errors
///
/// [`Failure::Taken`] if the peripherals are in use, or a failure of [`run`].
#[cfg(target_arch = "arm")]
pub fn run_on_cortex_m<G: Protection>(heap: &Sampled<Heap, G>) -> Result<(), Failure> {
    let mut peripherals = cortex_m::Peripherals::take().ok_or(Failure::Taken)?;
    peripherals.SCB.enable(cortex_m::peripheral::scb::Exception::MemoryManagement);
    run(heap)
}

/// Runs all of it.
///
/// # Errors
///
/// What was not stopped, or not reported as it should be.
pub fn run<G: Protection>(heap: &Sampled<Heap, G>) -> Result<(), Failure> {
    reports(heap)?;
    let mut runs = 0;
    for seed in 1..=100 {
        runs += u32::from(overflows(heap, seed * 0x9e37_79b1)?);
    }
    let faults = COUNT.load(Ordering::Relaxed);
    defmt::info!(
        "summary stopped={=u32} runs=100 faults={=u32} peak={=usize}",
        runs,
        faults,
        heap.memory().peak()
    );
    if runs < 99 {
        return Err(Failure::Runs(runs));
    }
    // One freed block is still behind the guard.
    match heap.memory().used() {
        bytes if bytes > 512 => Err(Failure::Lost(bytes)),
        _ => Ok(()),
    }
}
