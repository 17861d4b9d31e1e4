//! The driver through its C interface, as cudarc loads it.

mod device;
mod memory;
mod rules;
mod streams;
mod support;
mod virtual_memory;
mod work;
