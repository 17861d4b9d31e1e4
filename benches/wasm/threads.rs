//! What `threads.mjs` calls from several workers, which share the module's memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use allotment::os::{Cached, Depot};
use allotment::{Memory, WasmHeap};

static HEAP: WasmHeap = WasmHeap::new();
static DEPOT: Depot<WasmHeap> = Depot::new(&HEAP, 256 * 1024);
#[global_allocator]
static CACHED: Cached<WasmHeap> = Cached::new(&DEPOT);

/// Blocks that a worker holds at a time.
const HELD: usize = 512;

/// Places through which workers pass blocks, so that another one than the owner frees them.
static PASSED: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

/// Allocates memory that lives as long as the module: the stack or thread-local storage of a worker.
#[unsafe(no_mangle)]
pub extern "C" fn reserve(size: usize, align: usize) -> *mut u8 {
    Layout::from_size_align(size.max(1), align.max(16)).map_or(ptr::null_mut(), |layout| {
        // SAFETY: the size is not 0.
        unsafe { HEAP.alloc(layout) }
    })
}

/// The first four bytes of a block are its length, the last byte is derived from it and from the address.
fn tag(block: *mut u8, size: usize) -> u8 {
    (size ^ (block as usize >> 3) ^ 0x5a) as u8
}

struct Worker<'a> {
    memory: &'a dyn GlobalAlloc,
    state: u32,
    wrong: u32,
}

impl Worker<'_> {
    fn next(&mut self, limit: u32) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(self.state >> 4) * u64::from(limit)) >> 28) as u32
    }

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).expect("sizes are small")
    }

    fn take(&mut self) -> *mut u8 {
        let octave = 4 + self.next(9);
        let size = 8 + self.next(1 << octave) as usize;
        // SAFETY: the size is not 0, and the writes are within the block.
        unsafe {
            let block = self.memory.alloc(Self::layout(size));
            if block.is_null() {
                self.wrong += 1;
            } else {
                block.cast::<u32>().write(size as u32);
                block.add(size - 1).write(tag(block, size));
            }
            block
        }
    }

    fn give(&mut self, block: *mut u8) {
        if block.is_null() {
            return;
        }
        // SAFETY: the block comes from `take`, of this worker or of another one that has passed it on.
        unsafe {
            let size = block.cast::<u32>().read() as usize;
            if size > 5000 || block.add(size - 1).read() != tag(block, size) {
                // Its length cannot be trusted, so it is not freed.
                self.wrong += 1;
                return;
            }
            self.memory.dealloc(block, Self::layout(size));
        }
    }
}

/// Allocates, frees and passes on blocks, `rounds` times, with `heap`: 0 for the caches, 1 for the heap behind them, 2 for the
/// standard library's. Returns how many requests failed and how many blocks had changed.
#[unsafe(no_mangle)]
pub extern "C" fn work(heap: u32, seed: u32, rounds: u32) -> u32 {
    let memory: &dyn GlobalAlloc = match heap {
        0 => &CACHED,
        1 => &HEAP,
        _ => &System,
    };
    let mut worker = Worker { memory, state: seed, wrong: 0 };
    let mut held = [ptr::null_mut::<u8>(); HELD];
    for _ in 0..rounds {
        let place = worker.next(HELD as u32) as usize;
        if held[place].is_null() {
            held[place] = worker.take();
        } else if worker.next(8) == 0 {
            let other = worker.next(PASSED.len() as u32) as usize;
            let received = PASSED[other].swap(held[place], Ordering::AcqRel);
            worker.give(received);
            held[place] = ptr::null_mut();
        } else {
            worker.give(held[place]);
            held[place] = ptr::null_mut();
        }
    }
    for block in held {
        worker.give(block);
    }
    worker.wrong
}

/// Frees the blocks that no worker has received. Returns how many blocks had changed.
#[unsafe(no_mangle)]
pub extern "C" fn settle(heap: u32) -> u32 {
    let memory: &dyn GlobalAlloc = match heap {
        0 => &CACHED,
        1 => &HEAP,
        _ => &System,
    };
    let mut worker = Worker { memory, state: 0, wrong: 0 };
    for place in &PASSED {
        let block = place.swap(ptr::null_mut(), Ordering::AcqRel);
        worker.give(block);
    }
    worker.wrong
}

/// Uses collections of the standard library. Returns whether they held what was put into them.
#[unsafe(no_mangle)]
pub extern "C" fn collections(seed: u32) -> bool {
    let words: Vec<String> = (0..2000).map(|number| (number ^ seed).to_string()).collect();
    let map: std::collections::BTreeMap<u32, &str> =
        words.iter().map(|word| (word.parse().unwrap_or(u32::MAX), word.as_str())).collect();
    map.len() == 2000 && map.iter().all(|(number, word)| number.to_string() == **word)
}

/// Frees what the calling worker and the depot keep. WebAssembly has no signal for the end of a worker.
#[unsafe(no_mangle)]
pub extern "C" fn flush() {
    CACHED.flush();
}

/// Bytes in use, caches included.
#[unsafe(no_mangle)]
pub extern "C" fn used() -> usize {
    HEAP.statistics().map_or(0, |stats| stats.used)
}
