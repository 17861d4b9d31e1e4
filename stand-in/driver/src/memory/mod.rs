//! Memory: an address space of allocations, and the calls that make them.

mod backing;
mod device;
mod host;
mod ipc;
mod managed;
mod pointer;
pub mod pool;
pub mod space;
pub mod virtual_memory;
