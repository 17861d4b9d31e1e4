//! Misuses mimalloc's secure build. A program of its own, because the other one has the usual build.

use std::alloc::{GlobalAlloc, Layout};

use allotment_benches::misuse::{self, Allocator, Lab};
use anyhow::Context;
use mimalloc::MiMalloc;

struct Secure;

impl Allocator for Secure {
    fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no request has size zero.
        unsafe { MiMalloc.alloc(layout) }
    }

    fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: none, if it is a misuse: that is what is tested, in a process that ends after it.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`.
        unsafe { MiMalloc.realloc(block, layout, size) }
    }
}

fn main() -> anyhow::Result<()> {
    let case = std::env::args().nth(1).context("which misuse?")?;
    misuse::commit(&case, || Ok(Lab::new(Box::new(Secure), None, None, true)))
}
