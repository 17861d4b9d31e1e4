//! A program that allocates, frees and resizes in several places, to measure the code size of the allocator.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::alloc::{alloc, dealloc, realloc};
use core::alloc::Layout;
use core::hint::black_box;
use core::ptr;

const ARENA: usize = 64 * 1024;

#[repr(align(16))]
struct Arena(#[expect(dead_code, reason = "used through a pointer")] [u8; ARENA]);

static mut MEMORY: Arena = Arena([0; ARENA]);

/// A layout that is opaque to the compiler.
fn layout(size: usize, align: usize) -> Layout {
    let layout = Layout::from_size_align(black_box(size), black_box(align));
    // SAFETY: it is called only with valid values.
    unsafe { layout.unwrap_unchecked() }
}

/// Each call occurs several times, as in a real program, so that inlining it does not pay. Without the black boxes
/// the compiler could remove unused blocks.
fn work() -> bool {
    // SAFETY: this is the only use of the memory, and blocks are used with their layouts.
    unsafe {
        measure::add_memory((&raw mut MEMORY).cast(), ARENA);
        let text = black_box(alloc(layout(5, 1)));
        let number = black_box(alloc(layout(8, 8)));
        let record = black_box(alloc(layout(40, 4)));
        let list = black_box(alloc(layout(16, 4)));
        if [text, number, record, list].contains(&ptr::null_mut()) {
            return false;
        }
        let list = black_box(realloc(list, layout(16, 4), black_box(32)));
        dealloc(number, layout(8, 8));
        let text = black_box(realloc(text, layout(5, 1), black_box(10)));
        if list.is_null() || text.is_null() {
            return false;
        }
        let list = black_box(realloc(list, layout(32, 4), black_box(24)));
        dealloc(record, layout(40, 4));
        dealloc(text, layout(10, 1));
        dealloc(list, layout(24, 4));
    }
    true
}

#[cfg(not(target_family = "wasm"))]
/// Uses the allocator once in each way.
#[cfg_attr(target_arch = "arm", cortex_m_rt::entry)]
#[cfg_attr(target_arch = "riscv32", riscv_rt::entry)]
fn main() -> ! {
    measure::exit(i32::from(!work()))
}

/// Returns whether everything worked.
#[cfg(target_family = "wasm")]
#[unsafe(no_mangle)]
pub extern "C" fn run() -> bool {
    work()
}
