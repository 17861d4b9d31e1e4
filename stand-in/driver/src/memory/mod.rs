//! Memory: an address space of allocations, and the calls that make them.

mod device;
mod host;
mod ipc;
mod managed;
mod pointer;
mod pool;
mod virtual_memory;
