//! Contexts, and which is current.

use crate::abi::{Code, Handle};
use std::cell::RefCell;
use std::collections::BTreeSet;

pub struct Context {
    pub device: usize,
    pub primary: bool,
    /// The legacy default stream.
    pub default_stream: Handle,
    /// The error of failed work, which every later call returns.
    pub fault: Option<Code>,
    /// Contexts whose memory this one can access.
    pub peers: BTreeSet<Handle>,
}

thread_local! {
    /// The thread's stack of contexts; the last one is current.
    pub static STACK: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
}

/// Returns the thread's current context.
pub fn current() -> Option<Handle> {
    STACK.with_borrow(|stack| stack.last().copied())
}
