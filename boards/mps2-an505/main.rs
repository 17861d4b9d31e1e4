//! The demo on Arm's MPS2 board with image AN505 (Cortex-M33, 4 MiB of RAM). In the end the heap's figures also go out by RTT as plain text,
//! which `probe-rs attach` shows on a real board; QEMU has no probe, so the program reads them as one would, out of the control block.
#![no_std]
#![no_main]

use allotment::{Heap, heap};
use core::{ptr, slice, str};
use rtt_target::{rprintln, rtt_init_print};

#[global_allocator]
static HEAP: Heap = heap!(48 * 1024);

#[cortex_m_rt::entry]
fn main() -> ! {
    rtt_init_print!();
    let outcome = demo::run(&demo::INVENTORY, 100, || HEAP.stats());
    let stats = HEAP.stats();
    rprintln!("heap: {} bytes in use, {} at most, {} failed", stats.used, stats.peak, stats.failed);
    let text = received();
    defmt::info!("by RTT: {=str}", text.trim_end());
    assert!(text.starts_with("heap: ") && text.ends_with(" failed\n"), "RTT has the figures");
    boards::finish(outcome)
}

/// The part of RTT's control block that a probe reads: the header, and the first channel from the target.
#[repr(C)]
struct ControlBlock {
    id: [u8; 16],
    up_channels: usize,
    down_channels: usize,
    name: *const u8,
    buffer: *const u8,
    size: usize,
    write: usize,
    read: usize,
}

/// Reads what the first channel holds, as a probe does.
fn received() -> &'static str {
    unsafe extern "C" {
        #[link_name = "_SEGGER_RTT"]
        static BLOCK: ControlBlock;
    }
    // SAFETY: rtt-target has the block under this name and in this layout, which every probe expects. Nothing writes to the channel any more.
    unsafe {
        let block = ptr::read_volatile(&raw const BLOCK);
        assert!(block.id.starts_with(b"SEGGER RTT") && block.up_channels > 0 && block.down_channels < 16);
        assert!(!block.name.is_null() && block.read <= block.write && block.write < block.size);
        let bytes = slice::from_raw_parts(block.buffer.add(block.read), block.write - block.read);
        str::from_utf8(bytes).expect("the text is UTF-8")
    }
}
