//! A CUDA driver over host memory, for tests on machines without a GPU.
//!
//! A test loads it by its path before any other code loads `libcuda.so`. Since that is also its soname, every later
//! request for the driver finds it. The crate `allotment-stand-in` does so, and calls the functions that `control`
//! exports.
//!
//! ```text
//!  abi       types and numbers of the C interface
//!  table     handles that reveal use after destruction;  misuse  reports of it
//!  state/    all state, behind one lock: contexts, streams and their work, the address space, and so on
//!  work      what a piece of work does when it runs;  late  work that runs while the program does not call
//!  call      the steps of every call: count it, fail it if a test asked, do it, run ready work, wait
//!  device  context  module  graph  stream  event  copy     the calls that their names say
//!  memory/   the calls for the kinds of memory: device, pools, host, managed, virtual, between processes
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
mod event;
mod graph;
mod late;
mod memory;
mod misuse;
mod module;
mod state;
mod stream;
mod table;
mod work;
