//! Failure injection, and code that survives every single failure.

use super::layout;
use crate::shadow::Backing;
use allotment::inject::{Fail, Failing, FailureRule, every_failure};
use allotment::lock::Unsync;
use allotment::{Heap, Memory, Tiered, heap};
use std::alloc::{GlobalAlloc, Layout};

type Plain = Heap<Tiered, Unsync>;

/// Which of the first requests for these sizes fail.
fn refused<R: FailureRule>(rule: R, sizes: &[usize]) -> Vec<usize> {
    let mut backing = Backing::new(64 * 1024, 0);
    let failing = Failing::new(super::heap::<Tiered>(&mut backing), rule);
    let fails = |&at: &usize| failing.try_allocate(layout(sizes[at])).is_err();
    let numbers: Vec<usize> = (0..sizes.len()).filter(fails).collect();
    assert_eq!((failing.requests(), failing.refusals()), (sizes.len(), numbers.len()));
    // A refused request leaves no trace.
    assert_eq!(failing.memory().stats().live_blocks, sizes.len() - numbers.len());
    numbers
}

#[test]
fn rules_choose_requests() {
    let sizes = [10, 200, 30, 400, 50];
    assert_eq!(refused(Fail::After(3), &sizes), [3, 4]);
    assert_eq!(refused(Fail::Only(1), &sizes), [1]);
    assert_eq!(refused(Fail::LargerThan(100), &sizes), [1, 3]);
    assert_eq!(refused(|_: usize, layout: Layout, _: Option<&'static str>| layout.size() == 30, &sizes), [2]);
    assert_eq!(refused(Fail::Randomly { one_in: 0, seed: 1 }, &sizes), []);
    assert_eq!(refused(Fail::Randomly { one_in: 1, seed: 1 }, &sizes), [0, 1, 2, 3, 4]);
    let often = refused(Fail::Randomly { one_in: 4, seed: 9 }, &[8; 1000]);
    assert!((180..320).contains(&often.len()), "{}", often.len());
    assert_eq!(often, refused(Fail::Randomly { one_in: 4, seed: 9 }, &[8; 1000]));
    assert_ne!(often, refused(Fail::Randomly { one_in: 4, seed: 10 }, &[8; 1000]));
}

#[test]
#[cfg(any(feature = "std", feature = "critical-section", feature = "spin"))]
fn rules_see_tags() {
    let inner: Plain = heap!(64 * 1024);
    let failing = Failing::new(inner, Fail::Tagged("net"));
    assert!(failing.try_allocate(layout(8)).is_ok());
    allotment::observe::with_tag("net", || assert!(failing.try_allocate(layout(8)).is_err()));
    allotment::observe::with_tag("tls", || assert!(failing.try_allocate(layout(8)).is_ok()));
    failing.switch(false);
    allotment::observe::with_tag("net", || assert!(failing.try_allocate(layout(8)).is_ok()));
}

/// Every way to ask for memory counts as one request, and a refused one changes nothing.
#[test]
fn all_requests_of_a_front_can_fail() {
    let inner: Plain = heap!(64 * 1024);
    let failing = Failing::new(inner, Fail::After(1));
    // SAFETY: the block is live until the end and has this layout.
    unsafe {
        let block = failing.alloc(layout(40));
        block.write_bytes(7, 40);
        let before = failing.memory().stats();
        assert!(failing.alloc(layout(40)).is_null());
        assert!(failing.alloc_zeroed(layout(40)).is_null());
        assert!(failing.realloc(block, layout(40), 4000).is_null());
        assert!(failing.try_allocate_zeroed(layout(1)).is_err());
        let start = std::ptr::NonNull::new(block).unwrap();
        assert!(!failing.try_resize(start, layout(40), 8));
        assert!(failing.change(start, layout(40), layout(80), &mut |_| ()).is_none());
        assert_eq!((failing.requests(), failing.refusals()), (7, 6));
        assert_eq!(failing.memory().stats(), before);
        assert!((0..40).all(|at| block.add(at).read() == 7));
        failing.restart();
        let moved = failing.realloc(block, layout(40), 400);
        assert!((0..40).all(|at| moved.add(at).read() == 7));
        failing.dealloc(moved, layout(400));
    }
    assert_eq!(failing.memory().used(), 0);
}

/// A growing list of rows, written to stop at a failure and to free everything: no failure point leaks or crashes.
#[test]
#[cfg(feature = "allocator-api2")]
fn collections_survive_every_failure() {
    use allocator_api2::vec::Vec as Row;
    let inner: Plain = heap!(64 * 1024);
    let mut completed = 0;
    let points = every_failure(&inner, |memory| {
        let mut rows: Row<Row<u64, _>, _> = Row::new_in(memory);
        for count in 1..=20 {
            let mut row = Row::new_in(memory);
            for value in 0..count {
                if row.try_reserve(1).is_err() {
                    return;
                }
                row.push(value);
            }
            if rows.try_reserve(1).is_err() {
                return;
            }
            rows.push(row);
        }
        completed += 1;
        assert_eq!(rows.iter().map(|row| row.len()).sum::<usize>(), 210);
    });
    assert!(points > 40 && completed == 1, "{points} points, {completed} complete runs");
    assert_eq!(inner.used(), 0);
}

/// The tests' own program, without collections.
#[test]
fn every_failure_point_is_tried_once() {
    let inner: Plain = heap!(64 * 1024);
    let mut runs = 0;
    let points = every_failure(&inner, |memory| {
        runs += 1;
        let blocks: Vec<_> = (0..10).map_while(|at| memory.try_allocate(layout(at * 100)).ok()).collect();
        assert_eq!(blocks.len(), (runs - 1).min(10));
        for (at, block) in blocks.into_iter().enumerate() {
            // SAFETY: the block is live and has this layout.
            unsafe { memory.deallocate(block, layout(at * 100)) }
        }
    });
    assert_eq!((points, runs, inner.used()), (10, 11, 0));
}
