//! Takes the place of `stacks` on processors whose frames it cannot walk.

use crate::modules::Module;

/// A stack without frames.
pub struct Stack {
    pub hash: u64,
}

impl Stack {
    pub const fn new() -> Self {
        Self { hash: 0 }
    }

    pub fn frames(&self) -> &[usize] {
        &[]
    }

    pub fn capture(&mut self) {}
}

pub fn forget() {}

pub fn start(_: fn(&Module)) {}
