//! A full heap as the global allocator: what the program reports, and that it terminates. Each test runs this program
//! again as a child process with a time limit, because the case under test aborts the process or uses up its memory.
#![cfg(all(any(feature = "host", feature = "std"), any(unix, windows), panic = "unwind"))]

mod again;
mod child;

use allotment::inject::{Fail, Failing};
use allotment::out_of_memory::{Cause, report_to_stderr, set_hook};
use allotment::{Heap, OutOfMemory, Region, heap};
use child::{child, role};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

#[global_allocator]
static HEAP: Heap = heap!(1 << 20);

/// Enlarges the heap from 1 MiB to 8 MiB.
fn enlarge() {
    let size = 7 << 20;
    // SAFETY: the memory is never freed.
    unsafe {
        let start = System.alloc(Layout::from_size_align(size, 4096).unwrap());
        HEAP.claim(Region::new(start, size)).unwrap();
    }
}

/// Allocates until at most `rest` bytes are free.
fn fill(rest: usize) {
    let mut size = HEAP.largest_free();
    while size >= 8 && HEAP.free() > rest {
        let layout = Layout::from_size_align(size.min(HEAP.free() - rest).max(8), 8).unwrap();
        if HEAP.try_allocate(layout).is_err() {
            size /= 2;
        }
    }
}

/// A panic prints its message and the complete backtrace, and the program then ends normally instead of aborting.
#[test]
fn a_panic_on_a_full_heap_ends() {
    let Some(role) = role() else {
        for size in ["1", "8"] {
            for rest in ["2000", "20000", "200000", "900000"] {
                let (succeeded, text) = child("a_panic_on_a_full_heap_ends", &format!("{size} {rest}"), "1");
                assert!(!succeeded, "{text}");
                assert!(text.contains("index out of bounds"), "{text}");
                assert!(text.contains("stack backtrace:"), "{text}");
                assert!(text.contains("note: Some details are omitted"), "cut off: {text}");
                assert!(!text.contains("memory allocation of"), "{text}");
            }
        }
        return;
    };
    let (size, rest) = role.split_once(' ').unwrap();
    let rest = rest.parse().unwrap();
    if size == "8" {
        enlarge();
    }
    fill(rest);
    let none: [u8; 0] = [];
    println!("{}", none[black_box(3)]);
}

/// If the heap cannot take the reserve, here because its region table is full, the program prints a line saying so
/// and ends.
#[test]
fn without_a_reserve_the_program_ends_in_words() {
    if role().is_none() {
        let (succeeded, text) = child("without_a_reserve_the_program_ends_in_words", "no regions", "1");
        assert!(!succeeded, "{text}");
        assert!(text.contains("this heap cannot take the reserve"), "{text}");
        assert!(text.contains("out of memory: "), "{text}");
        return;
    }
    let layout = Layout::from_size_align(4096, 4096).unwrap();
    // SAFETY: the memory is never freed.
    while unsafe { HEAP.claim(Region::new(System.alloc(layout), 4096)) }.is_ok() {}
    fill(20_000);
    let none: [u8; 0] = [];
    println!("{}", none[black_box(3)]);
}

/// Each failed request prints one line with all figures and the cause; a successful one prints nothing.
#[test]
fn the_hook_reports_to_standard_error() {
    if role().is_none() {
        let (succeeded, text) = child("the_hook_reports_to_standard_error", "stderr", "0");
        assert!(succeeded, "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("out of memory: ")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("out of memory: 2097152 bytes aligned to 1 requested, "), "{text}");
        assert!(lines[0].ends_with(": the heap is too small"), "{text}");
        assert!(lines[1].contains("64 bytes aligned to 1099511627776 requested, "), "{text}");
        assert!(
            lines[1].ends_with(": the alignment is the obstacle, the largest free block is long enough"),
            "{text}"
        );
        return;
    }
    set_hook(report_to_stderr);
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(1000).unwrap();
    assert!(bytes.try_reserve_exact(2 << 20).is_err());
    // The fallible methods return the error instead of calling the hook.
    assert!(HEAP.try_allocate(Layout::from_size_align(2 << 20, 8).unwrap()).is_err());
    // It is practically certain that no address in a heap of 1 MiB is a multiple of 1 TiB.
    let layout = Layout::from_size_align(64, 1 << 40).unwrap();
    // SAFETY: the size is not zero.
    assert!(black_box(unsafe { std::alloc::alloc(layout) }).is_null());
}

/// The hook receives the error, may allocate, is not called for requests that fail while it runs, and can be replaced.
#[test]
fn a_hook_may_allocate() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static OTHERS: AtomicUsize = AtomicUsize::new(0);
    fn hook(error: &OutOfMemory) {
        CALLS.fetch_add(1, Ordering::Relaxed);
        assert_eq!((error.requested, error.align, error.cause()), (3 << 20, 1, Cause::TooSmall));
        assert!(error.largest_free <= error.free && error.free < 1 << 20);
        black_box(Vec::<u8>::with_capacity(100));
        assert!(Vec::<u8>::new().try_reserve_exact(4 << 20).is_err());
    }
    if role().is_none() {
        let (succeeded, text) = child("a_hook_may_allocate", "own", "0");
        assert!(succeeded, "{text}");
        return;
    }
    set_hook(hook);
    let mut bytes: Vec<u8> = Vec::new();
    for call in 1..3 {
        assert!(bytes.try_reserve_exact(3 << 20).is_err());
        assert_eq!(CALLS.load(Ordering::Relaxed), call);
    }
    // Zeroed and reallocated blocks take other paths.
    // SAFETY: the sizes are not zero; the block is live and has this layout.
    unsafe {
        let layout = Layout::from_size_align(3 << 20, 1).unwrap();
        assert!(black_box(std::alloc::alloc_zeroed(layout)).is_null());
        let block = black_box(std::alloc::alloc(Layout::new::<u8>()));
        assert!(black_box(std::alloc::realloc(block, Layout::new::<u8>(), 3 << 20)).is_null());
        std::alloc::dealloc(block, Layout::new::<u8>());
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 4);
    set_hook(|_| _ = OTHERS.fetch_add(1, Ordering::Relaxed));
    assert!(bytes.try_reserve_exact(3 << 20).is_err());
    assert_eq!((CALLS.load(Ordering::Relaxed), OTHERS.load(Ordering::Relaxed)), (4, 1));
}

/// A request that fails on purpose gives null and is not reported; one for which there is no room is.
#[test]
fn injected_failures_are_not_reported() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    if role().is_none() {
        let (succeeded, text) = child("injected_failures_are_not_reported", "inject", "0");
        assert!(succeeded, "{text}");
        return;
    }
    set_hook(|_| _ = CALLS.fetch_add(1, Ordering::Relaxed));
    let failing = Failing::new(&HEAP, Fail::LargerThan(4 << 20));
    let (small, refused) = (Layout::new::<u64>(), Layout::from_size_align(5 << 20, 8).unwrap());
    // SAFETY: the sizes are not zero; the block is live and has this layout.
    unsafe {
        let block = failing.alloc(small);
        for size in [5 << 20, 3 << 20] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            assert!(failing.alloc(layout).is_null());
            assert!(failing.alloc_zeroed(layout).is_null());
            assert!(failing.realloc(block, small, size).is_null());
            let calls = if layout == refused { 0 } else { 3 };
            assert_eq!(CALLS.load(Ordering::Relaxed), calls);
        }
        failing.dealloc(block, small);
    }
    assert_eq!((failing.requests(), failing.refusals()), (7, 3));
}

/// A backtrace that a program takes itself needs memory while the standard library holds the lock of its own report
/// of the failure. A hook that ends the program is the documented cure.
#[test]
fn a_hook_that_ends_the_program_keeps_a_backtrace_from_hanging() {
    fn end(error: &OutOfMemory) {
        report_to_stderr(error);
        std::process::abort()
    }
    if role().is_none() {
        let name = "a_hook_that_ends_the_program_keeps_a_backtrace_from_hanging";
        let (succeeded, text) = child(name, "backtrace", "1");
        assert!(!succeeded, "{text}");
        assert!(text.contains("out of memory: ") && !text.contains("not reached"), "{text}");
        return;
    }
    set_hook(end);
    fill(2000);
    let text = std::backtrace::Backtrace::force_capture().to_string();
    eprintln!("not reached: {text}");
}
