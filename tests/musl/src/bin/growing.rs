//! As the program with caches, with the heap that grows: each thread has lists of free blocks, and gives them back when it ends.

use std::cell::RefCell;
use std::thread;

use allotment::os::Growing;
#[global_allocator]
static HEAP: Growing = Growing::new();

struct Lines(Vec<String>);

impl Drop for Lines {
    fn drop(&mut self) {
        // Destructors may allocate as well.
        self.0.push("the end".repeat(20));
    }
}

thread_local! {
    static LINES: RefCell<Lines> = const { RefCell::new(Lines(Vec::new())) };
}

fn work(number: usize) -> usize {
    LINES.with(|lines| lines.borrow_mut().0.push("x".repeat(number + 40)));
    (0..3000).map(|number: usize| number.to_string()).map(|text| text.len()).sum()
}

fn main() {
    let mut used = Vec::new();
    for _ in 0..5 {
        let threads: Vec<_> = (0..4).map(|number| thread::spawn(move || work(number))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 10 + 90 * 2 + 900 * 3 + 2000 * 4);
        }
        used.push(HEAP.figures().used);
    }
    // What threads had cached came back when they ended.
    assert!(used[4] <= used[1] + 4096, "{used:?}");
    println!("lists given back: {used:?} bytes in use after each round");
}
