//! The demo on two memories of Arm's MPS2 board with image AN386 (Cortex-M4F), joined as zones: small blocks
//! live in 12 KiB of the fast RAM, everything else in the 16 MiB of PSRAM. A static plan has an arena in each as well.
#![no_std]
#![no_main]

extern crate alloc;

mod planned;

use allocator_api2::{boxed::Box, vec::Vec};
use allotment::region::Capabilities as Can;
use allotment::zones::{Zone, ZoneError, Zones};
use allotment::{Heap, Stats, Tlsf, heap};
use core::alloc::Layout;
use core::ops::Range;
use core::ptr::NonNull;

unsafe extern "C" {
    // Set by memory.x.
    static mut __psram_start: u8;
    static mut __psram_end: u8;
}

static FAST: Heap = heap!(12 * 1024);
// For 16 MiB, more than the default heap of a microcontroller can index.
// SAFETY: between the symbols the program has nothing else.
static BULK: Heap<Tlsf> = unsafe { Heap::from_symbols(&raw mut __psram_start, &raw mut __psram_end) };

/// Buffers that DMA reaches, in a part of the PSRAM that the linker script names.
static SAMPLES: Heap = heap!(8 * 1024, section = ".psram.samples", align = 32);

/// The cache line size that the PSRAM would have on a larger core.
const LINE: usize = 32;

#[global_allocator]
static ZONES: Zones<2> = Zones::new([
    Zone::new("ssram", &FAST, Can::INTERNAL.union(Can::FAST)).up_to(64),
    Zone::new("psram", &BULK, Can::EXTERNAL.union(Can::DMA)).above(64).cache_line(LINE),
])
.fallback(&[1]);

const SSRAM: Range<usize> = 0x2000_0000..0x2040_0000;
const PSRAM: Range<usize> = 0x2100_0000..0x2200_0000;

fn address<T: ?Sized>(value: &T) -> usize {
    core::ptr::from_ref(value).addr()
}

/// Uses collections in each memory by name, buffers that share no cache line, and blocks that move.
fn work() -> Result<(), ZoneError> {
    let [fast, bulk] = ZONES.zones();
    let node: Box<[u32; 4], &Zone> = Box::new_in([7; 4], fast);
    let mut samples: Vec<u16, &Zone> = Vec::new_in(bulk);
    samples.extend(0..1000);
    assert!(SSRAM.contains(&address(&*node)) && PSRAM.contains(&address(&samples[0])));
    assert!(samples.iter().copied().eq(0..1000) && *node == [7; 4]);

    let frame = Layout::new::<[u8; 100]>();
    let (first, second) = (ZONES.allocate(frame, Can::DMA)?, ZONES.allocate(frame, Can::DMA)?);
    assert_eq!(first.len(), 128);
    for buffer in [first.cast::<u8>(), second.cast()] {
        assert!(PSRAM.contains(&buffer.addr().get()) && buffer.addr().get() % LINE == 0);
        // SAFETY: the block is live and has that many bytes.
        unsafe { buffer.as_ptr().write_bytes(0x5a, 100) };
    }
    // SAFETY: the blocks are live, with this layout.
    unsafe {
        let moved = ZONES.migrate(first.cast(), frame, 0)?.cast::<u8>();
        assert!(SSRAM.contains(&moved.addr().get()));
        assert!(core::slice::from_raw_parts(moved.as_ptr(), 100).iter().all(|&byte| byte == 0x5a));
        free(moved, frame)?;
        free(second.cast(), frame)?;
    }
    // A heap whose memory the macro places.
    let Ok(sample) = SAMPLES.try_allocate_zeroed(frame) else { panic!("no room for samples") };
    assert!(PSRAM.contains(&sample.addr().get()));
    // SAFETY: the block is live and has this layout.
    unsafe {
        assert!(core::slice::from_raw_parts(sample.as_ptr(), 100).iter().all(|&byte| byte == 0));
        SAMPLES.try_deallocate(sample, frame).map_err(ZoneError::Free)?;
    }
    // The global allocator chooses the zone by size.
    let (small, large) = (alloc::boxed::Box::new(1u64), alloc::boxed::Box::new([1u8; 500]));
    assert!(SSRAM.contains(&address(&*small)) && PSRAM.contains(&address(&*large)));
    Ok(())
}

unsafe fn free(block: NonNull<u8>, layout: Layout) -> Result<(), ZoneError> {
    // SAFETY: the caller passes a live block and its layout.
    unsafe { ZONES.deallocate(block, layout) }.map_err(ZoneError::Free)
}

/// Returns the combined statistics of both heaps.
fn stats() -> Stats {
    let (mut all, bulk) = (FAST.stats(), BULK.stats());
    all.capacity += bulk.capacity;
    all.used += bulk.used;
    all.peak += bulk.peak;
    all.free += bulk.free;
    all.largest_free = all.largest_free.max(bulk.largest_free);
    all.live_blocks += bulk.live_blocks;
    all.failed += bulk.failed;
    all.largest_failed = all.largest_failed.max(bulk.largest_failed);
    all
}

#[cortex_m_rt::entry]
fn main() -> ! {
    if let Err(error) = work() {
        panic!("{}", error);
    }
    if let Some(core) = cortex_m::Peripherals::take() {
        match planned::run(core.SYST, [SSRAM, PSRAM]) {
            Ok(steps) => {
                for (n, step) in steps.iter().enumerate() {
                    let [fast, bulk] = step.bytes;
                    defmt::info!(
                        "step {=usize}: {=usize} B fast, {=usize} B bulk, {=u32} ticks",
                        n,
                        fast,
                        bulk,
                        step.ticks
                    );
                }
                for (reach, ticks, slow) in planned::by_tier(&steps) {
                    assert!(ticks > 0 && slow > 0, "every kind of step was measured");
                    defmt::info!(
                        "{}: {=u32} instructions as planned, {=u32} with all in bulk",
                        reach,
                        planned::instructions(ticks),
                        planned::instructions(slow)
                    );
                }
            }
            Err(failure) => panic!("{}", failure),
        }
    }
    let outcome = demo::run(&demo::INVENTORY, 100, stats);
    assert!(FAST.peak() > 4096 && BULK.peak() > 4096, "both memories are used");
    boards::finish(outcome)
}
