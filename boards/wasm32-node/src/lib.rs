//! The demo as a WebAssembly module. The host, `run.mjs`, provides a function to print with.
#![no_std]

extern crate alloc;

mod page;

use alloc::string::ToString;
use core::fmt::Write;

use allotment::{Memory, WasmHeap};

#[global_allocator]
static HEAP: WasmHeap = WasmHeap::new();

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Prints `length` bytes of UTF-8 at `text` as a line.
    fn print(text: *const u8, length: usize);
}

fn say(text: &str) {
    // SAFETY: the host reads exactly the bytes of `text`, before it returns.
    unsafe { print(text.as_ptr(), text.len()) }
}

/// Runs the demo. Returns the exit status.
#[unsafe(no_mangle)]
pub extern "C" fn run() -> u32 {
    let outcome = demo::run(&demo::INVENTORY, 100, || HEAP.statistics().expect("it counts"));
    match outcome {
        Ok(summary) => say(&summary.to_string()),
        Err(failure) => say(&failure.to_string()),
    }
    u32::from(outcome.is_err())
}

/// A critical section that does nothing: a module has one thread and no interrupts.
struct OneThread;

critical_section::set_impl!(OneThread);

// SAFETY: this module is compiled without threads, and the host calls it from only one.
unsafe impl critical_section::Impl for OneThread {
    unsafe fn acquire() {}
    unsafe fn release(_state: ()) {}
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    /// A buffer for a message without the heap, which may be what has failed.
    struct Fixed {
        text: [u8; 256],
        length: usize,
    }
    impl Write for Fixed {
        fn write_str(&mut self, part: &str) -> core::fmt::Result {
            let room = self.text.get_mut(self.length..).unwrap_or_default();
            let count = part.len().min(room.len());
            room[..count].copy_from_slice(&part.as_bytes()[..count]);
            self.length += count;
            Ok(())
        }
    }
    let mut message = Fixed { text: [0; 256], length: 0 };
    // A truncated message is better than none.
    let _ = write!(message, "{info}");
    // SAFETY: the first `length` bytes of the buffer are set; the host replaces a character that is cut in two.
    unsafe { print(message.text.as_ptr(), message.length) };
    core::arch::wasm32::unreachable()
}
