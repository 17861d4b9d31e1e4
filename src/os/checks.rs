//! Checks of blocks to which other threads write, for the interpreter Miri: it sees races.

use super::{Cached, Depot, Growing};
use crate::harden::Full;
use crate::{Heap, Memory, Tlsf, heap};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::thread;

/// Lets another thread write to the blocks of a memory while this one asks about them, then frees them.
fn ask_beside_writes(memory: &(impl Memory + Sync), ask: impl Fn(NonNull<u8>, Layout)) {
    for size in [1, 8, 16, 24, 100, 1000] {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let blocks = [(); 3].map(|()| memory.allocate(layout).unwrap());
        thread::scope(|scope| {
            let addresses = blocks.map(|block| block.as_ptr().expose_provenance());
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
                // Of other layouts, and inside.
                for other in [1, 9, 33, 700] {
                    ask(block, Layout::from_size_align(other, 8).unwrap());
                }
                // SAFETY: the address is in the block.
                ask(unsafe { block.add(size / 2) }, layout);
            }
        });
        // SAFETY: the blocks are live, and freed once.
        blocks.iter().for_each(|&block| unsafe { memory.try_deallocate(block, layout) }.unwrap());
    }
}

#[test]
fn cached_blocks_are_not_read() {
    static HEAP: Heap<Tlsf> = heap!(64 * 1024);
    static DEPOT: Depot<Heap<Tlsf>> = Depot::new(&HEAP, 4096);
    let cached = Cached::new(&DEPOT);
    ask_beside_writes(&cached, |block, layout| {
        let _ = cached.check(block, layout);
    });
}

#[test]
fn blocks_of_level_full_are_not_read() {
    static HEAP: Heap<Full<Tlsf>> = heap!(64 * 1024);
    ask_beside_writes(&HEAP, |block, layout| {
        let _ = HEAP.check(block, layout);
    });
}

#[test]
fn blocks_of_the_growing_heap_are_not_read() {
    let heap = Growing::new();
    ask_beside_writes(&heap, |block, layout| {
        let _ = heap.check(block, layout);
        assert!(heap.usable_size(block).is_none_or(|size| size > 0));
    });
    // Large blocks come and go while another thread asks.
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
