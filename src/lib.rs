//! Memory allocators for programs of every size: the heap of a microcontroller, of a host program, and the memory of a
//! GPU.
//!
//! A heap combines three choices and any number of memory regions:
//!
//! | choice | question | module |
//! | --- | --- | --- |
//! | placement | which free block satisfies a request? | [`placement`] |
//! | lock | which threads or interrupts may share it? | [`lock`] |
//! | statistics | what does it count? | [`observe`] |
//!
//! [`Heap`] combines the three, and [`zones`] combines several heaps. [`heap!`] creates a heap that is ready without
//! an initialisation call:
//!
//! ```
//! use allotment::{Heap, heap};
//!
//! #[global_allocator]
//! static HEAP: Heap = heap!(1024 * 1024);
//!
//! let text = String::from("on the heap");
//! assert!(HEAP.used() > 0 && HEAP.largest_free() <= HEAP.free());
//! # drop(text);
//! ```
//!
//! A request acquires the lock, and the placement finds a block. [`Bounded`], [`Kept`], [`Observed`] and other fronts wrap a heap, or
//! another front, and add one thing each.
//!
//! If you know beforehand how memory is used, you need no allocator: [`plan`] lays out buffers in a `const`, and [`arena!`] gives typed
//! access to them.
//!
//! # Which crates firmware needs
//!
//! Without an operating system the default lock is a critical section, which a crate for the chip implements. Without
//! that crate the program does not link: `_critical_section_1_0_acquire` is missing.
//!
//! ```sh
//! cargo add allotment
//! cargo add cortex-m --features critical-section-single-core   # Cortex-M; and `use cortex_m as _;` in main.rs
//! cargo add riscv --features critical-section-single-hart      # RISC-V; and `use riscv as _;`
//! # ESP32: `esp-hal` includes it. RP2040: `rp2040-hal` with the feature `critical-section-impl`.
//! # With the standard library there is nothing to add.
//! ```
//!
//! The full list is at [`lock::CriticalSection`](https://docs.rs/allotment/latest/allotment/lock/struct.CriticalSection.html).
//!
//! # Features
//!
//! * `critical-section`, `spin` (both on by default), `lock_api`: locks. The defaults need no more than a
//!   Rust toolchain.
//! * `alloc`: side tables grow on the global allocator. `std`: `alloc`, caches per thread
//!   ([`os::Cached`](https://docs.rs/allotment/latest/allotment/os/struct.Cached.html)), pools of a device's memory and a simulated
//!   device (`pool`, `sim`).
//! * `allocator-api2`, `nightly`: the `Allocator` traits of that crate and of nightly Rust.
//! * `linked-list`, `buddy-system`: adapters for two other crates' allocators.
//! * `backtrace`: backtraces in traces, from the crate `backtrace`.
//! * `sanitize`: [`harden::Full`] tells AddressSanitizer and valgrind which memory the program may use.
//! * `gpu`: memory of CUDA devices ([`gpu`](https://docs.rs/allotment/latest/allotment/gpu/index.html)), through the
//!   crate `cudarc`, which needs Rust 1.88. Builds and runs without CUDA.
//! * `half`: 16-bit floating-point numbers in buffers and tensors, from the crate `half`.
//! * `vulkan`: memory of Vulkan devices ([`vulkan`](https://docs.rs/allotment/latest/allotment/vulkan/index.html)), through the
//!   crate `ash`. Builds and runs without Vulkan.
//! * `serde`: `Serialize` and `Deserialize` for the options and statistics of pools.
//! * `host` (default): on Unix and Windows,
//!   [`out_of_memory::report_to_stderr`](https://docs.rs/allotment/latest/allotment/out_of_memory/fn.report_to_stderr.html) and the
//!   reserve for panics, for which it links the standard library; no effect on other systems. Programs for Unix or Windows that do
//!   without the standard library turn it off with `default-features = false`.
//! * `defmt`: `defmt::Format` for all value types that exist without `std`.

#![cfg_attr(not(any(feature = "std", test)), no_std)]
// Everything `pub` is for users: `cargo xtask lint` counts it.
#![deny(unreachable_pub)]
#![cfg_attr(feature = "nightly", feature(allocator_api))]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(all(feature = "host", any(unix, windows), not(any(feature = "std", test))))]
extern crate std;

mod error;
mod front;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod harden;
pub mod heap;
pub mod lock;
mod memory;
pub mod observe;
#[cfg(feature = "std")]
pub mod os;
pub mod placement;
pub mod plan;
#[cfg(feature = "std")]
pub mod pool;
pub mod region;
mod units;
#[cfg(feature = "vulkan")]
pub mod vulkan;

pub use error::{FreeError, OutOfMemory, misuse, out_of_memory};
#[cfg(all(feature = "backtrace", unix))]
pub use front::HeapProfile;
pub use front::{
    Bounded, Kept, Observed, PerCore, PlannedHeap, Sampled, Sealable, Timed, cores, inject, observed,
    planned, pressure, sampled, seal, zones,
};
#[cfg(any(target_family = "wasm", test))]
pub use heap::WasmHeap;
#[cfg(any(target_has_atomic = "32", feature = "critical-section"))]
pub use heap::fixed;
pub use heap::{Heap, TinyBump, TinyHeap, bounds};
pub use memory::Memory;
pub use observe::Stats;
#[cfg(feature = "buddy-system")]
pub use placement::BuddySystem;
#[cfg(feature = "alloc")]
pub use placement::GoodFit;
#[cfg(feature = "linked-list")]
pub use placement::LinkedList;
pub use placement::{BestFit, Buddy, Bump, FirstFit, Slab, Tiered, Tlsf, Tlsf16};
#[cfg(feature = "std")]
pub use pool::sim;
pub use region::{Region, RegionError};

/// Compiles and runs the snippets of README.md as doc tests. One of them needs the feature `gpu`.
#[cfg(all(doctest, feature = "gpu"))]
#[doc = include_str!("../README.md")]
pub mod readme {}
