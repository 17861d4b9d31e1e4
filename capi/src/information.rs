//! What the C library tells of its heap, and the functions that change it.

use crate::HEAP;
use crate::start::Line;
use core::ffi::c_int;
use core::fmt::Write;

// Android's two forms are the same, and have sizes; the crate `libc` names only one.
#[cfg(target_os = "android")]
use libc::mallinfo as Info;
#[cfg(target_os = "linux")]
use libc::mallinfo2 as Info;

/// Gives free memory back to the system. Returns 1 if there was any.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    (HEAP.trim() > 0).into()
}

/// Accepts every parameter of the C library's heap, none of which this heap has.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_: c_int, _: c_int) -> c_int {
    1
}

/// Returns the heap's figures: `arena` is what is committed, `uordblks` what is in use (caches of threads included),
/// `fordblks` the rest, and `keepcost` what [`malloc_trim`] could give back at least.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Info {
    let figures = HEAP.figures();
    // SAFETY: a structure of integers.
    let mut info: Info = unsafe { core::mem::zeroed() };
    info.arena = figures.committed;
    info.uordblks = figures.used;
    info.fordblks = figures.committed.saturating_sub(figures.used);
    info.keepcost = figures.dirty;
    info
}

/// Returns the figures of [`mallinfo2`] in its older form, each at most the largest value of its type there.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let figures = mallinfo2();
    let int = |bytes: usize| bytes.try_into().unwrap_or(c_int::MAX as _);
    // SAFETY: a structure of integers.
    let mut info: libc::mallinfo = unsafe { core::mem::zeroed() };
    info.arena = int(figures.arena);
    info.uordblks = int(figures.uordblks);
    info.fordblks = int(figures.fordblks);
    info.keepcost = int(figures.keepcost);
    info
}

/// Prints the heap's figures to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let figures = HEAP.figures();
    let mut line = Line::new();
    let _ = writeln!(
        line,
        "allotment: {} bytes in use, {} at most, {} committed, {} free and not given back, {} given back so far, {} reserved",
        figures.used, figures.peak, figures.committed, figures.dirty, figures.purged, figures.reserved,
    );
    line.print();
}
