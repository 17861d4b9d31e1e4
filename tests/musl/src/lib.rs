//! Threads that have thread-local values with destructors, for programs with a global allocator that has something of each thread.
//!
//! With musl the standard library keeps a list of those destructors on the heap. In a new thread that list's own memory is the first
//! request to the allocator.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

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

/// Starts threads in five rounds, and returns how many bytes `used` says are in use after each.
///
/// # Panics
///
/// If a thread has computed something wrong, or has not freed what the allocator kept for it when it ended.
pub fn rounds(used: impl Fn() -> usize) -> [usize; 5] {
    let used = [(); 5].map(|()| {
        let threads: Vec<_> = (0..4).map(|number| thread::spawn(move || work(number))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 10 + 90 * 2 + 900 * 3 + 2000 * 4);
        }
        used()
    });
    assert!(used[4] <= used[1] + 4096, "{used:?}");
    used
}

/// Passes `count` packets through two threads that encrypt and two that write, as the tunnel of a private network does, each packet in a
/// buffer of its own. Returns a sum of the bytes.
///
/// # Panics
///
/// If a thread panics.
pub fn packets(count: usize) -> u64 {
    let pairs: Vec<_> = (0..2)
        .map(|seed: usize| {
            let (send, receive) = mpsc::sync_channel::<Vec<u8>>(64);
            let reads = thread::spawn(move || {
                for number in 0..count / 2 {
                    let len = 64 + (number * 7919 + seed) % 1400;
                    let plain = vec![number as u8; len];
                    let coded = plain.iter().map(|byte| byte ^ 0x5a).collect();
                    send.send(coded).expect("the writer is there");
                }
            });
            (
                reads,
                thread::spawn(move || {
                    receive.iter().map(|packet| u64::from(packet[0]) + packet.len() as u64).sum()
                }),
            )
        })
        .collect();
    let sums = pairs.into_iter().map(|(reads, writes): (_, thread::JoinHandle<u64>)| {
        reads.join().expect("the reader ends");
        writes.join().expect("the writer ends")
    });
    sums.sum()
}
