//! Pushes numbers to a vector, on the heap that a feature chooses, registered as the documents of its crate say.
//!
//! The text of porting.md quotes how much flash the whole program takes with each heap (`cargo xtask measure --ports`).
#![no_std]
#![no_main]

extern crate alloc;

use cortex_m as _;
use panic_halt as _;

/// Memory for the heaps that do not bring their own.
#[cfg(not(any(feature = "heap", feature = "tiny")))]
mod memory {
    /// Its size.
    pub const SIZE: usize = 16 * 1024;
    /// The bytes.
    pub static mut BYTES: [u64; SIZE / 8] = [0; SIZE / 8];
}

#[cfg(feature = "llff")]
#[global_allocator]
static HEAP: embedded_alloc::LlffHeap = embedded_alloc::LlffHeap::empty();

#[cfg(feature = "embedded-alloc")]
#[global_allocator]
static HEAP: embedded_alloc::TlsfHeap = embedded_alloc::TlsfHeap::empty();

#[cfg(feature = "linked-list")]
#[global_allocator]
static HEAP: linked_list_allocator::LockedHeap = linked_list_allocator::LockedHeap::empty();

#[cfg(feature = "buddy-system")]
#[global_allocator]
static HEAP: buddy_system_allocator::LockedHeap<32> = buddy_system_allocator::LockedHeap::empty();

#[cfg(feature = "talc")]
#[global_allocator]
static HEAP: talc::TalcLock<spinning_top::RawSpinlock, talc::source::Claim> =
    // SAFETY: nothing else uses the bytes.
    talc::TalcLock::new(unsafe { talc::source::Claim::array(&raw mut memory::BYTES) });

#[cfg(feature = "heap")]
#[global_allocator]
static HEAP: allotment::Heap = allotment::heap!(16 * 1024);

#[cfg(feature = "tiny")]
#[global_allocator]
static HEAP: allotment::TinyHeap<{ 16 * 1024 }> = allotment::TinyHeap::new();

/// Gives the heap its memory.
fn begin() {
    // SAFETY: each heap gets the bytes once, and nothing else uses them.
    #[cfg(any(feature = "llff", feature = "embedded-alloc"))]
    unsafe {
        HEAP.init((&raw mut memory::BYTES).addr(), memory::SIZE);
    }
    // SAFETY: as above.
    #[cfg(feature = "linked-list")]
    unsafe {
        HEAP.lock().init((&raw mut memory::BYTES).cast(), memory::SIZE);
    }
    // SAFETY: as above.
    #[cfg(feature = "buddy-system")]
    unsafe {
        HEAP.lock().init((&raw mut memory::BYTES).addr(), memory::SIZE);
    }
}

#[cortex_m_rt::entry]
fn main() -> ! {
    begin();
    let mut readings = alloc::vec![20, 21];
    loop {
        readings.push(readings.len());
        readings.truncate(2);
    }
}
