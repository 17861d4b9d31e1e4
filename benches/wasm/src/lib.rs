//! A module whose allocator the host calls: `run.mjs` replays requests on it.
#![no_std]

extern crate alloc;

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;

#[cfg(any(feature = "allotment", feature = "micro", feature = "tiny"))]
mod subject {
    use allotment::lock::Lock;
    use allotment::observe::NoStatistics;

    #[cfg(feature = "allotment")]
    type Subject = allotment::WasmHeap<allotment::Tlsf<u32, 1>, Alone, NoStatistics>;
    #[cfg(feature = "micro")]
    type Subject = allotment::WasmHeap<allotment::placement::MicroTlsf<4, false>, Alone, NoStatistics>;
    #[cfg(feature = "tiny")]
    type Subject = allotment::TinyHeap<{ 512 * 1024 }, Alone, NoStatistics, false>;

    /// No lock: the module has one thread.
    struct Alone;

    // SAFETY: a module without threads runs one closure at a time.
    unsafe impl Lock for Alone {
        const INIT: Self = Self;

        type Token = ();

        fn acquire(&self) {}

        unsafe fn release(&self, (): ()) {}
    }

    #[global_allocator]
    static HEAP: Subject = Subject::new();
}

#[cfg(feature = "dlmalloc")]
#[global_allocator]
static HEAP: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[cfg(feature = "talc")]
#[global_allocator]
static HEAP: talc::wasm::WasmDynamicTalc = talc::wasm::new_wasm_dynamic_allocator();

#[cfg(feature = "lol_alloc")]
#[global_allocator]
// SAFETY: the module has one thread.
static HEAP: lol_alloc::AssumeSingleThreaded<lol_alloc::FreeListAllocator> =
    unsafe { lol_alloc::AssumeSingleThreaded::new(lol_alloc::FreeListAllocator::new()) };

#[cfg(not(any(
    feature = "allotment",
    feature = "micro",
    feature = "tiny",
    feature = "dlmalloc",
    feature = "talc",
    feature = "lol_alloc"
)))]
mod nothing {
    use core::alloc::{GlobalAlloc, Layout};

    /// The module without an allocator: what the others add their size to.
    struct Nothing;

    // SAFETY: it allocates nothing.
    unsafe impl GlobalAlloc for Nothing {
        unsafe fn alloc(&self, _: Layout) -> *mut u8 {
            core::ptr::null_mut()
        }
        unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
    }

    #[global_allocator]
    static HEAP: Nothing = Nothing;
}

/// Blocks at a time.
const SLOTS: usize = 1024;

/// Takes and frees blocks at random, `rounds` times: small ones mostly, up to `1 << most` bytes. Writes to each block and looks at what it
/// wrote before it frees it. Returns the number of requests that were satisfied, or 0 if a block had changed.
#[unsafe(no_mangle)]
pub extern "C" fn run(rounds: u32, seed: u32, most: u32) -> u32 {
    let mut live = [(core::ptr::null_mut::<u8>(), 0_u32); SLOTS];
    let mut state = seed;
    let mut next = move |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((u64::from(state >> 4) * u64::from(limit)) >> 28) as u32
    };
    let layout = |size: u32| Layout::from_size_align(size as usize, 8).expect("sizes are small");
    let mut served = 0;
    for _ in 0..rounds {
        let slot = next(SLOTS as u32) as usize;
        let (block, size) = live[slot];
        if block.is_null() {
            let octave = 2 + next(most - 2);
            let size = 4 + next(1 << octave);
            // SAFETY: the size is not zero.
            let block = unsafe { alloc(layout(size)) };
            if block.is_null() {
                continue;
            }
            served += 1;
            // SAFETY: the block is live and has at least four bytes.
            unsafe { block.cast::<u32>().write(size ^ 0x5a5a) };
            live[slot] = (block, size);
        } else {
            // SAFETY: the block is live and has this layout.
            unsafe {
                if block.cast::<u32>().read() != size ^ 0x5a5a {
                    return 0;
                }
                dealloc(block, layout(size));
            }
            live[slot].0 = core::ptr::null_mut();
        }
    }
    for (block, size) in live {
        if !block.is_null() {
            // SAFETY: the block is live and has this layout.
            unsafe { dealloc(block, layout(size)) };
        }
    }
    served
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
