//! As the program with caches, with the heap that grows: each thread has lists of free blocks, and gives them back when it ends.

use allotment::os::Growing;

#[global_allocator]
static HEAP: Growing = Growing::new();

fn main() {
    let used = musl::rounds(|| HEAP.stats().used);
    println!("lists given back: {used:?} bytes in use after each round");
}
