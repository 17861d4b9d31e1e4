//! Tests of checks on blocks to which other threads write, for Miri, which detects races.

use super::{Cached, Depot, Growing};
use crate::front::pressure::PressureHeap;
use crate::harden::Full;
use crate::placement::MicroTlsf;
use crate::{BestFit, Buddy, Bump, FirstFit, Heap, Memory, Slab, Tiered, TinyHeap, Tlsf, heap};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::thread;

/// Lets another thread write to blocks of a memory while this thread checks them, and a free block between them.
fn ask_beside_writes(memory: &(impl Memory + Sync), ask: impl Fn(NonNull<u8>, Layout)) {
    for size in [1, 8, 16, 24, 100, 1000] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let blocks = [(); 3].map(|()| memory.allocate(layout).unwrap());
        // SAFETY: the block is live, and freed once.
        unsafe { memory.try_deallocate(blocks[1], layout) }.unwrap();
        let live = [blocks[0], blocks[2]];
        thread::scope(|scope| {
            let addresses = live.map(|block| block.as_ptr().expose_provenance());
            scope.spawn(move || {
                for fill in 0..5 {
                    for address in addresses {
                        // SAFETY: the block is live, and has that many bytes.
                        unsafe {
                            core::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(fill, size)
                        };
                    }
                }
            });
            for block in blocks {
                ask(block, layout);
                // Try other layouts, and addresses inside the block.
                for other in [1, 9, 33, 700] {
                    ask(block, Layout::from_size_align(other, 8).unwrap());
                }
                // SAFETY: the address is in the block.
                ask(unsafe { block.add(size / 2) }, layout);
            }
        });
        // SAFETY: the blocks are live, and freed once.
        live.iter().for_each(|&block| unsafe { memory.try_deallocate(block, layout) }.unwrap());
    }
}

/// Defines a test for each memory.
macro_rules! memories {
    ($($name:ident: $type:ty = $memory:expr;)+) => {$(
        #[test]
        fn $name() {
            static MEMORY: $type = $memory;
            let memory = &MEMORY;
            ask_beside_writes(&memory, |block, layout| {
                let _ = memory.check(block, layout);
            });
        }
    )+};
}

static BEHIND: Heap<Tlsf> = heap!(64 * 1024);
static DEPOT: Depot<Heap<Tlsf>> = Depot::new(&BEHIND, 4096);

memories! {
    cached: Cached<Heap<Tlsf>> = Cached::new(&DEPOT);
    full: Heap<Full<Tlsf>> = heap!(64 * 1024);
    micro_tlsf: Heap<MicroTlsf> = heap!(64 * 1024);
    tlsf: Heap<Tlsf> = heap!(64 * 1024);
    tiered: Heap<Tiered> = heap!(64 * 1024);
    first_fit: Heap<FirstFit> = heap!(64 * 1024);
    best_fit: Heap<BestFit> = heap!(64 * 1024);
    buddy: Heap<Buddy> = heap!(64 * 1024);
    slab: Heap<Slab> = heap!(64 * 1024);
    bump: Heap<Bump> = heap!(64 * 1024);
    tiny: TinyHeap<{ 64 * 1024 }> = TinyHeap::new();
    pressure: PressureHeap = PressureHeap::new(heap!(64 * 1024));
}

#[test]
fn growing() {
    let heap = Growing::new();
    ask_beside_writes(&heap, |block, layout| {
        let _ = heap.check(block, layout);
        assert!(heap.usable_size(block).is_none_or(|size| size > 0));
    });
    // Allocate and free large blocks while another thread checks one.
    let layout = Layout::from_size_align(40_000, 8).unwrap();
    let block = heap.allocate(layout).unwrap();
    thread::scope(|scope| {
        let address = block.as_ptr().expose_provenance();
        scope.spawn(move || {
            for _ in 0..5 {
                let block = NonNull::new(core::ptr::with_exposed_provenance_mut(address)).unwrap();
                assert_eq!(heap.usable_size(block), Some(40_960));
            }
        });
        for _ in 0..3 {
            let other = heap.allocate(layout).unwrap();
            // SAFETY: the block is live, and freed once.
            unsafe { heap.deallocate(other, layout) };
        }
    });
    // SAFETY: as above.
    unsafe { heap.deallocate(block, layout) };
}
