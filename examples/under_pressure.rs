//! A heap of a proven size that is under pressure, asks a cache for memory, and still has some for the error
//! path; and two heaps as zones.
//!
//! `cargo run --example under_pressure`

use allotment::pressure::{Pressure, PressureHeap, Shortage, Transition, Watermarks};
use allotment::region::Capabilities as Can;
use allotment::zones::{Zone, Zones};
use allotment::{FirstFit, Heap, Memory, heap};
use std::alloc::Layout;
use std::error::Error;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// 4 KiB live at most, in blocks of 64 to 1024 bytes: no order of requests can break it. What reports need on
/// top is set aside.
const SIZE: usize = <FirstFit>::worst_case_arena(4096, 64, 1024) + 1024;

static HEAP: PressureHeap<FirstFit> = PressureHeap::new(heap!(SIZE))
    .watermarks(Watermarks::percent(40, 15))
    .headroom(512)
    .on_transition(&changed)
    .on_out_of_memory(&|error| println!("{error}"));

fn changed(transition: Transition) {
    println!("{:?} -> {:?}, {} bytes free", transition.from, transition.to, transition.free);
}

/// A block that can be had again.
static CACHE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
const PAGE: Layout = Layout::new::<[u64; 128]>();

fn drop_page(_: &Shortage) -> usize {
    let Some(page) = std::ptr::NonNull::new(CACHE.swap(std::ptr::null_mut(), Relaxed)) else { return 0 };
    // SAFETY: the cache owned the block, which has this layout.
    match unsafe { HEAP.try_deallocate(page, PAGE) } {
        Ok(()) => PAGE.size(),
        Err(_) => 0,
    }
}

static FAST: Heap = heap!(8 * 1024);
static BULK: Heap = heap!(256 * 1024);
static ZONES: Zones<2> = Zones::new([
    Zone::new("fast", &FAST, Can::INTERNAL.union(Can::FAST)).up_to(256),
    Zone::new("bulk", &BULK, Can::EXTERNAL.union(Can::DMA)).above(256).cache_line(64),
])
.fallback(&[1]);

fn main() -> Result<(), Box<dyn Error>> {
    HEAP.register(0, &drop_page).ok_or("too many hooks")?;
    CACHE.store(HEAP.try_allocate(PAGE)?.as_ptr(), Relaxed);
    let mut pages = Vec::new();
    while let Ok(page) = HEAP.try_allocate(PAGE) {
        pages.push(page);
    }
    assert!(CACHE.load(Relaxed).is_null() && HEAP.pressure() == Pressure::Critical);
    let line = Layout::new::<[u8; 100]>();
    let report = HEAP.with_headroom(|| HEAP.try_allocate(line))?;
    // SAFETY: the blocks are live and have these layouts.
    unsafe {
        HEAP.try_deallocate(report, line)?;
        for page in pages {
            HEAP.try_deallocate(page, PAGE)?;
        }
    }

    let frame = Layout::new::<[u8; 100]>();
    let block = ZONES.allocate(frame, Can::DMA)?;
    println!(
        "a frame of {} bytes takes {} more, for its cache lines",
        frame.size(),
        block.len() - frame.size()
    );
    // SAFETY: the block is live and has this layout.
    unsafe {
        let block = ZONES.migrate(block.cast(), frame, 0)?;
        assert_eq!(ZONES.zone_of(block.cast()), Some(0));
        ZONES.deallocate(block.cast(), frame)?;
    }
    Ok(())
}
