//! The demo on Arm's MPS2 board with image AN505 (Cortex-M33, 4 MiB of RAM), with a recording of the heap that goes out by RTT, on a channel of
//! its own.
//!
//! On a real board a debug probe reads the channel, and its tool writes it to a file: channel 1 in probe-rs, or SEGGER's RTT Logger. QEMU has no
//! probe, so the program does what one does with the control block in memory: it takes out the bytes, and moves the channel's place for reading.
//! `cargo xtask run mps2-an505 --trace FILE` puts them into a file for `allotment view`, which `--elf` tells the functions that allocated.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use allotment::observe::event::Header;
use allotment::observe::{Trace, with_tag};
use allotment::{Heap, Observed, heap};
use core::cell::RefCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::{ptr, slice};
use cortex_m::peripheral::SCB;
use critical_section::Mutex;
use rtt_target::{UpChannel, rtt_init};

#[global_allocator]
static HEAP: Observed<Heap, Trace<512, 8, 8>> = Observed::new(heap!(48 * 1024), Trace::new().sink(to_rtt));

static CHANNEL: Mutex<RefCell<Option<UpChannel>>> = Mutex::new(RefCell::new(None));

/// What the handler has received.
static MESSAGE: Mutex<RefCell<Option<Box<[u8; 32]>>>> = Mutex::new(RefCell::new(None));

/// Receives a message, as the handler of a radio does. Its blocks have a tag, and the handler's calls.
#[cortex_m_rt::exception]
fn PendSV() {
    let message = with_tag("radio", received);
    critical_section::with(|section| MESSAGE.replace(section, Some(message)));
}

#[inline(never)]
fn received() -> Box<[u8; 32]> {
    Box::new([1; 32])
}

/// Writes a part of the recording to the channel.
fn to_rtt(part: &[u8]) {
    critical_section::with(|section| {
        let mut channel = CHANNEL.borrow_ref_mut(section);
        let written = channel.as_mut().map_or(0, |channel| channel.write(part));
        assert!(written == part.len(), "the channel has room");
    });
    // Here and not beside it, as a probe is.
    probe();
}

#[cortex_m_rt::entry]
fn main() -> ! {
    let channels = rtt_init! {
        up: {
            0: { size: 64, name: "Terminal" }
            1: { size: 1024, name: "allotment" }
        }
    };
    critical_section::with(|section| CHANNEL.replace(section, Some(channels.up.1)));
    SCB::set_pendsv();
    let outcome = demo::run(&demo::INVENTORY, 100, || HEAP.memory().stats());
    let message = critical_section::with(|section| MESSAGE.take(section));
    assert!(message.is_some_and(|message| message[31] == 1), "the handler has a message");
    HEAP.observers(|trace| trace.flush());
    let bytes = RECEIVED.load(Ordering::Relaxed);
    defmt::info!("by RTT: {=usize} bytes", bytes);
    assert!(bytes > Header::SIZE, "RTT has the recording");
    boards::finish(outcome)
}

/// A channel from the target, in the layout that every probe expects.
#[derive(Clone, Copy)]
#[repr(C)]
struct Channel {
    name: *const u8,
    buffer: *const u8,
    size: usize,
    write: usize,
    read: usize,
    flags: usize,
}

/// The part of RTT's control block that a probe needs.
#[repr(C)]
struct ControlBlock {
    id: [u8; 16],
    up_channels: usize,
    down_channels: usize,
    up: [Channel; 2],
}

/// Bytes that have been read.
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

/// Reads what the second channel holds, as a probe does.
fn probe() {
    unsafe extern "C" {
        #[link_name = "_SEGGER_RTT"]
        static mut BLOCK: ControlBlock;
    }
    // SAFETY: rtt-target has the block under this name, and both channels are set up. It does not write to the channel meanwhile.
    unsafe {
        let block = ptr::read_volatile(&raw const BLOCK);
        let Channel { buffer, size, write, read, .. } = block.up[1];
        assert!(block.id.starts_with(b"SEGGER RTT") && block.up_channels == 2 && read < size && write < size);
        // The rest of the ring first, if what was written goes on at its start.
        let parts = if read <= write { [(read, write), (0, 0)] } else { [(read, size), (0, write)] };
        for (from, to) in parts {
            take(slice::from_raw_parts(buffer.add(from), to - from));
        }
        (&raw mut BLOCK.up[1].read).write_volatile(write);
    }
}

/// Takes bytes that have been read.
fn take(part: &[u8]) {
    let before = RECEIVED.fetch_add(part.len(), Ordering::Relaxed);
    assert!(
        before > 0 || part.is_empty() || part.starts_with(&Header::HERE.encode()),
        "a header comes first"
    );
    #[cfg(feature = "trace")]
    allotment::observe::to_defmt(part);
}
