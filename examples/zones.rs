//! Two memories as zones, as a chip with fast RAM and DMA buffers in slow RAM would have them; here both are arrays.
//!
//! ```sh
//! cargo run --example zones
//! ```

use allotment::region::Capabilities as Can;
use allotment::zones::{Zone, ZoneError, Zones};
use allotment::{Heap, heap};
use core::alloc::Layout;

static FAST: Heap = heap!(8 * 1024);
static BULK: Heap = heap!(256 * 1024);

static ZONES: Zones<2> = Zones::new([
    Zone::new("fast", &FAST, Can::INTERNAL.union(Can::FAST)).up_to(256),
    Zone::new("bulk", &BULK, Can::EXTERNAL.union(Can::DMA)).above(256).cache_line(32),
])
.fallback(&[1]);

fn main() -> Result<(), ZoneError> {
    // Small blocks go to the fast memory until it is full, then to the fallback.
    let node = Layout::new::<[u64; 16]>();
    let mut nodes = Vec::new();
    loop {
        let block = ZONES.allocate(node, Can::empty())?;
        nodes.push(block.cast());
        if ZONES.zone_of(block.cast()) != Some(0) {
            break;
        }
    }
    println!("{} nodes of {} bytes fit into the fast memory", nodes.len() - 1, node.size());

    // A buffer for DMA has cache lines of its own.
    let frame = Layout::new::<[u8; 1500]>();
    let buffer = ZONES.allocate(frame, Can::DMA)?;
    assert_eq!(ZONES.zone_of(buffer.cast()), Some(1));
    println!(
        "{} bytes for DMA take {}, {} of them padding",
        frame.size(),
        buffer.len(),
        buffer.len() - frame.size()
    );

    // What no zone can do is an error that says so.
    println!("wanted but not there: {}", ZONES.allocate(frame, Can::RETAINED).map(drop).unwrap_err());

    // SAFETY: all of them are live, were allocated with these layouts, and are not used afterwards.
    unsafe {
        for block in nodes {
            ZONES.deallocate(block, node).map_err(ZoneError::Free)?;
        }
        ZONES.deallocate(buffer.cast(), frame).map_err(ZoneError::Free)?;
    }
    assert!(FAST.used() == 0 && BULK.used() == 0);
    Ok(())
}
