//! A CUDA driver over host memory, for tests on machines without a GPU.
//!
//! A test loads it by its path before any other code loads `libcuda.so`. Since that is also its soname, every later
//! request for the driver finds it. The crate `allotment-stand-in` does so, and calls the functions that `control`
//! exports.
//!
//! ```text
//!  abi       types and numbers of the C interface
//!  call      the steps of every call: count it, fail it if a test asked, do it, run ready work, wait
//!  driver    all state, behind one lock; handles that reveal use after destruction
//!  device  context  module  kernel  graph     as their names say
//!  memory/   address space, and the kinds of memory: device, pools, host, managed, virtual, between processes
//!  stream    queues of work, and the order in which it may run;  event  marks in them;  work  what a piece does
//!  copy      copies and fills, which are pieces of work
//!  control   functions for tests: hold and step streams, inject errors, read reports of leaks and misuse
//! ```
//!
//! Device memory has addresses that no process can have, so a program that dereferences one by mistake crashes.
//! Physical memory only counts against a device's capacity: as on a real device, there is no fragmentation below
//! the page.
//!
//! Differences from a real driver: the per-thread default
//! stream is the legacy default stream; a memory pool keeps bytes, not blocks; and only the kernels of `kernel`
//! exist.

mod abi;
mod call;
mod context;
mod control;
mod copy;
mod device;
mod driver;
mod event;
mod graph;
mod kernel;
mod late;
mod memory;
mod misuse;
mod module;
mod stream;
mod work;
