//! Takes the place of `sample` on processors without stacks: all blocks are recorded.

use core::ffi::c_void;

pub fn passes(_: usize) -> bool {
    false
}

pub fn chooses(_: usize) -> bool {
    true
}

pub fn is_unknown(_: *mut c_void) -> bool {
    false
}

pub fn count(_: usize, _: bool) {}

pub fn forget() {}

pub fn is_on() -> bool {
    false
}

pub fn start(_: u64, _: u64) {}
