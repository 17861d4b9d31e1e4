//! A heap as a plain value, in a program that has no global allocator.
//!
//! On a host this is an ordinary program: `cargo run --example plain_value`. Built for a target
//! without an operating system it links nothing but `core` and this crate.

#![cfg_attr(target_os = "none", no_std, no_main)]

use allotment::lock::Unsync;
use allotment::{Heap, OutOfMemory, Region, Tlsf16};
use core::alloc::Layout;

/// Sums the squares below `count` in a block of the heap; the sum, and the bytes that were in use.
fn sum_of_squares(heap: &Heap<Tlsf16, Unsync>, count: u32) -> Result<(u32, usize), OutOfMemory> {
    let layout = Layout::array::<u32>(count as usize).unwrap_or(Layout::new::<u32>());
    let block = heap.try_allocate(layout)?.cast::<u32>();
    let mut sum = 0;
    // SAFETY: the block has room for `count` numbers and is freed with its layout.
    unsafe {
        for number in 0..count {
            block.add(number as usize).write(number * number);
        }
        for number in 0..count {
            sum += block.add(number as usize).read();
        }
        let used = heap.used();
        let freed = heap.try_deallocate(block.cast(), layout);
        debug_assert!(freed.is_ok());
        Ok((sum, used))
    }
}

/// The work: a heap over an array on the stack.
fn work() -> Result<(u32, usize), OutOfMemory> {
    let mut memory = [0u64; 128];
    let heap = Heap::<Tlsf16, Unsync>::empty();
    // SAFETY: the array outlives the heap, which is the only one to use it.
    let claimed = unsafe { heap.claim(Region::new(memory.as_mut_ptr(), size_of_val(&memory))) };
    debug_assert!(claimed.is_ok());
    sum_of_squares(&heap, 100)
}

#[cfg(not(target_os = "none"))]
fn main() -> Result<(), OutOfMemory> {
    let (sum, used) = work()?;
    println!("the sum is {sum}, from {used} bytes of heap");
    Ok(())
}

/// Where a debugger would look.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
static mut RESULT: Option<(u32, usize)> = None;

#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    // SAFETY: there is one thread, and nothing else uses the variable.
    unsafe { (&raw mut RESULT).write_volatile(work().ok()) };
    loop {
        core::hint::spin_loop();
    }
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
