//! Panics, whose values lie in blocks of the program's heap.

use std::panic::{catch_unwind, resume_unwind};

/// Unwinders count on an alignment of 16, which Rust does not ask for.
#[test]
fn panics_unwind_from_any_block() {
    // Each panic's value has as many bytes as a box, and leaves its block to it.
    let kept: Vec<_> = (0..100)
        .map(|n| {
            assert!(catch_unwind(|| resume_unwind(Box::new(n))).is_err());
            Box::new([n; 7])
        })
        .collect();
    assert!((0..100_u64).eq(kept.iter().map(|numbers| numbers[6])));
}
