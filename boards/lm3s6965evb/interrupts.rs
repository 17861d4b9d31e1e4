//! The interrupt pool on a Cortex-M3, after a test of the lock that masks interrupts up to a priority.
#![no_std]
#![no_main]

use allotment::lock::{Lock, PriorityMask};
use allotment::{Heap, heap, placement};
use boards::interrupts::Failure;
use core::alloc::Layout;
use core::sync::atomic::{AtomicU32, Ordering};
use cortex_m::Peripherals;
use cortex_m::peripheral::{SCB, scb::SystemHandler};
use cortex_m_rt::exception;

/// Masks handlers of priority number `N` (of 8) and above.
struct UpTo<const N: u8>;

// SAFETY: there is one core, and its only handler uses none of what these locks guard.
unsafe impl<const N: u8> PriorityMask for UpTo<N> {
    const LEVEL: u8 = N << 5;
    const UNLOCKED: Self = Self;
}

/// Handlers of priority number 4 and above share this heap with the main loop; those below must not use it.
static HEAP: Heap<placement::Default, UpTo<4>> = heap!(4 * 1024);

/// How often the handler has run.
static RUNS: AtomicU32 = AtomicU32::new(0);

#[exception]
fn PendSV() {
    RUNS.store(RUNS.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// Asks for the handler, gives it time to run, and returns how often it did.
fn runs() -> u32 {
    let before = RUNS.load(Ordering::Relaxed);
    SCB::set_pendsv();
    cortex_m::asm::isb();
    RUNS.load(Ordering::Relaxed) - before
}

/// The lock masks a handler that is less urgent than its level, until it is left, and lets a more urgent one run.
fn check_mask(scb: &mut SCB) -> Result<(), Failure> {
    let lock = UpTo::<4>::INIT;
    // SAFETY: the handler only counts.
    unsafe { scb.set_priority(SystemHandler::PendSV, 6 << 5) };
    if runs() != 1 {
        return Err(Failure::Mask("outside of it a handler does not run"));
    }
    let before = RUNS.load(Ordering::Relaxed);
    if lock.with(runs) != 0 {
        return Err(Failure::Mask("a less urgent handler runs inside"));
    }
    cortex_m::asm::isb();
    if RUNS.load(Ordering::Relaxed) != before + 1 {
        return Err(Failure::Mask("the masked handler does not run afterwards"));
    }
    // A lock inside must not lift the mask of the one around it.
    let outer = UpTo::<2>::INIT;
    // SAFETY: as above.
    unsafe { scb.set_priority(SystemHandler::PendSV, 3 << 5) };
    if outer.with(|| lock.with(runs)) != 0 {
        return Err(Failure::Mask("an inner lock lifts the outer one's mask"));
    }
    cortex_m::asm::isb();
    if lock.with(runs) != 1 {
        return Err(Failure::Mask("a more urgent handler is masked"));
    }
    let block =
        HEAP.try_allocate(Layout::new::<[u64; 8]>()).map_err(|_| Failure::Mask("the heap is full"))?;
    // SAFETY: the block is live.
    unsafe { HEAP.try_deallocate(block, Layout::new::<[u64; 8]>()) }
        .map_err(|_| Failure::Mask("a free fails"))
}

#[cortex_m_rt::entry]
fn main() -> ! {
    let Some(mut peripherals) = Peripherals::take() else {
        boards::finish(Err::<(), _>("the peripherals are taken"))
    };
    let outcome = check_mask(&mut peripherals.SCB)
        .and_then(|()| boards::interrupts::run(peripherals.SYST, 1500, 20_000));
    boards::finish(outcome)
}
