//! The demo on QEMU's RISC-V machine `virt`, after a test of a heap that refuses interrupt handlers.
#![no_std]
#![no_main]

use allotment::out_of_memory::Cause;
use allotment::seal::Interrupts;
use allotment::{Heap, Memory, Sealable, heap};
use core::alloc::Layout;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

#[global_allocator]
static HEAP: demo::Watched = demo::watch(heap!(48 * 1024));

/// The heap of the main loop.
static SEALED: Sealable<Heap, Handling> = Sealable::new(heap!(1024));
const LAYOUT: Layout = Layout::new::<[u64; 4]>();

/// Whether the handler runs.
static RUNS: AtomicBool = AtomicBool::new(false);
/// Whether the handler's request was refused because it is one.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Knows by a flag that the handler runs.
struct Handling;

impl Interrupts for Handling {
    fn running() -> bool {
        RUNS.load(Ordering::Relaxed)
    }
}

/// Where the machine takes software interrupts for its first hart.
const SOFTWARE_INTERRUPT: *mut u32 = ptr::without_provenance_mut(0x0200_0000);

#[riscv_rt::core_interrupt(riscv::interrupt::Interrupt::MachineSoft)]
fn handler() {
    // SAFETY: the register is there, and takes back what brought the hart here.
    unsafe { SOFTWARE_INTERRUPT.write_volatile(0) };
    RUNS.store(true, Ordering::Relaxed);
    let refused = SEALED.try_allocate(LAYOUT).is_err_and(|error| error.cause() == Cause::Interrupt);
    REFUSED.store(refused, Ordering::Relaxed);
    RUNS.store(false, Ordering::Relaxed);
}

/// Checks that the heap refuses the handler, and the main loop as soon as it is sealed.
fn check_seal() -> Result<(), &'static str> {
    let block = SEALED.try_allocate(LAYOUT).map_err(|_| "the main loop is refused")?;
    // SAFETY: the handler is written for this, and the register is there.
    unsafe {
        riscv::register::mie::set_msoft();
        riscv::interrupt::enable();
        SOFTWARE_INTERRUPT.write_volatile(1);
    }
    let comes = |_| REFUSED.load(Ordering::Relaxed);
    if !(0..1_000_000).any(comes) {
        return Err("the handler is served, or does not run");
    }
    SEALED.seal();
    if !SEALED.try_allocate(LAYOUT).is_err_and(|error| error.cause() == Cause::Sealed) {
        return Err("a sealed heap serves a request");
    }
    // SAFETY: the block is live.
    unsafe { SEALED.deallocate(block, LAYOUT) };
    if SEALED.memory().used() == 0 { Ok(()) } else { Err("a sealed heap does not free") }
}

/// Checks the seal, then runs the demo.
#[riscv_rt::entry]
fn main() -> ! {
    if let Err(failure) = check_seal() {
        boards::finish(Err::<(), _>(failure));
    }
    boards::finish(demo::run_watched(&demo::INVENTORY, 100, &HEAP))
}
