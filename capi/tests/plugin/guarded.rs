//! A library with a heap whose blocks are sampled as its global allocator, which a program loads and closes.

#[global_allocator]
static HEAP: heap::os::Guarded<heap::Heap> = heap::os::Guarded::new(heap::heap!(256 * 1024), 1);

include!("work.rs");
