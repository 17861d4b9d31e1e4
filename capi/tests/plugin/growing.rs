//! A library with the heap that grows as its global allocator, which a program loads and closes.

#[global_allocator]
static HEAP: heap::os::Growing = heap::os::Growing::new();

include!("work.rs");
