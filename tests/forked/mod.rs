//! Children of this process by `fork`, which share its memory as it is.

use std::thread;
use std::time::{Duration, Instant};

unsafe extern "C" {
    pub fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn kill(process: i32, signal: i32) -> i32;
    pub fn _exit(status: i32) -> !;
}

const WITHOUT_WAITING: i32 = 1;
const SIGKILL: i32 = 9;

/// Waits for a child. Returns whether it ends by itself, and with success.
pub fn succeeds(child: i32) -> bool {
    let (begin, mut status) = (Instant::now(), -1);
    // SAFETY: the status is a valid place, and the process a child of this one that has not been waited for.
    unsafe {
        while waitpid(child, &mut status, WITHOUT_WAITING) == 0 {
            if begin.elapsed() > Duration::from_secs(20) {
                kill(child, SIGKILL);
                waitpid(child, &mut status, 0);
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
    status == 0
}
