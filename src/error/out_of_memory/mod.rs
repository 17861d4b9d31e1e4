//! An exhausted heap: the error, its cause, and a hook that reports it.
//!
//! The fallible methods, such as [`Heap::try_allocate`](crate::Heap::try_allocate), return [`OutOfMemory`]. A global
//! allocator can only return a null pointer, which Rust turns into "memory allocation of 5000 bytes failed" and an
//! abort. To learn more, set a hook before memory runs out:
//!
//! ```
//! # #[cfg(not(all(unix, feature = "host")))] fn main() {}
//! # #[cfg(all(unix, feature = "host"))]
//! use allotment::out_of_memory::{report_to_stderr, set_hook};
//! use allotment::{Heap, heap};
//!
//! #[global_allocator]
//! static HEAP: Heap = heap!(1024 * 1024);
//!
//! # #[cfg(all(unix, feature = "host"))]
//! fn main() {
//!     set_hook(report_to_stderr); // in firmware: `report_to_defmt`, or a function of your own
//!     let mut numbers: Vec<u8> = Vec::new();
//!     // out of memory: 2097152 bytes aligned to 1 requested, 1048000 free, largest free block 1048000: the heap
//!     // is too small
//!     assert!(numbers.try_reserve(2 << 20).is_err());
//! }
//! ```
//!
//! # Panics while the heap is full
//!
//! Reporting a panic itself needs memory: with `RUST_BACKTRACE=1`, several megabytes for the program's debug information. If one of these
//! requests fails, Rust's standard library deadlocks and the program hangs. So on systems with the standard library (feature `host`, on
//! by default, or `std`), a global allocator that runs out *on a panicking thread* claims a reserve of at least 16 MiB from the system as
//! another region, and satisfies the request from it. The heap keeps that region, and its statistics count it. A heap that cannot add a
//! region of that size (16-bit links, an adapter, [`TinyHeap`]) ends the program with one line that says so.
//!
//! A program that captures a backtrace itself (`std::backtrace::Backtrace::capture`) while the heap is full is not panicking, so it can
//! still hang in the standard library after "memory allocation of .. bytes failed". A hook that calls [`report_to_stderr`] and then
//! `std::process::abort` prevents that, and so does `RUST_LIB_BACKTRACE=0`.
//!
//! [`TinyHeap`]: https://docs.rs/allotment/latest/allotment/struct.TinyHeap.html

#[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
mod host;

#[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
pub use host::report_to_stderr;

use core::alloc::Layout;
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The error of a request that found no memory or that a rule refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The requested size in bytes.
    pub requested: usize,
    /// The requested alignment in bytes.
    pub align: usize,
    /// Bytes that are not in live blocks. A heap without statistics reports [`OutOfMemory::largest_free`] instead.
    pub free: usize,
    /// The largest request in bytes, with natural alignment, that would have succeeded.
    pub largest_free: usize,
    /// The rule that refused the request; `None` if there was no room.
    pub rule: Option<Cause>,
}

/// Why a request failed; see [`OutOfMemory::cause`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Fewer bytes are free than were requested: make the heap larger, or use less.
    TooSmall,
    /// Enough bytes are free, but not in one piece: free blocks in another order, choose a placement that packs
    /// more densely, or separate short-lived blocks from long-lived ones.
    Fragmentation,
    /// The largest free block is long enough, but no free block has that many bytes after an aligned address: request a smaller
    /// alignment, or allocate such blocks first.
    Alignment,
    /// The client of a [`Bounded`](crate::Bounded) memory has used up its quota.
    Quota,
    /// The memory that would have satisfied the request is kept for others; see [`Kept`](crate::Kept).
    Kept,
    /// The program allocates from a [`Sealable`](crate::Sealable) memory after sealing it at the end of start-up.
    Sealed,
    /// An interrupt handler allocates from a [`Sealable`](crate::Sealable) memory that forbids it. The request never reached the memory,
    /// so the error's sizes say nothing about it.
    Interrupt,
}

impl Cause {
    /// Returns the cause's text in messages.
    const fn text(self) -> &'static str {
        match self {
            Self::TooSmall => "the heap is too small",
            Self::Fragmentation => "fragmentation is the obstacle, enough is free but not in one piece",
            Self::Alignment => "the alignment is the obstacle, the largest free block is long enough",
            Self::Quota => "the client has used up its quota",
            Self::Kept => "memory is kept for other requests",
            Self::Sealed => "the heap is sealed, nothing is allocated after start-up",
            Self::Interrupt => "an interrupt handler may not allocate",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Cause {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        match self {
            Self::TooSmall => defmt::write!(fmt, "the heap is too small"),
            Self::Fragmentation => {
                defmt::write!(fmt, "fragmentation is the obstacle, enough is free but not in one piece");
            }
            Self::Alignment => {
                defmt::write!(fmt, "the alignment is the obstacle, the largest free block is long enough");
            }
            Self::Quota => defmt::write!(fmt, "the client has used up its quota"),
            Self::Kept => defmt::write!(fmt, "memory is kept for other requests"),
            Self::Sealed => defmt::write!(fmt, "the heap is sealed, nothing is allocated after start-up"),
            Self::Interrupt => defmt::write!(fmt, "an interrupt handler may not allocate"),
        }
    }
}

/// The alignment in bytes that every block has, with any placement.
const NATURAL: usize = size_of::<usize>();

impl OutOfMemory {
    /// Creates the error for a request for `layout` that finds no room.
    pub(crate) const fn new(layout: Layout, free: usize, largest_free: usize) -> Self {
        Self { requested: layout.size(), align: layout.align(), free, largest_free, rule: None }
    }

    /// Returns the cause: [the rule](OutOfMemory::rule) that refused the request, or else too little memory, fragmentation or the
    /// alignment.
    ///
    /// A heap without statistics does not know its total free memory, so it reports fragmentation as
    /// [`Cause::TooSmall`].
    pub const fn cause(&self) -> Cause {
        if let Some(rule) = self.rule {
            rule
        } else if self.free < self.requested {
            Cause::TooSmall
        } else if self.largest_free < self.requested || self.align <= NATURAL {
            Cause::Fragmentation
        } else {
            Cause::Alignment
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested, align, free, largest_free, rule: _ } = self;
        write!(
            f,
            "out of memory: {requested} bytes aligned to {align} requested, {free} free, \
             largest free block {largest_free}: {}",
            self.cause().text()
        )
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for OutOfMemory {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(
            fmt,
            "out of memory: {=usize} bytes aligned to {=usize} requested, {=usize} free, \
             largest free block {=usize}: {}",
            self.requested,
            self.align,
            self.free,
            self.largest_free,
            self.cause()
        );
    }
}

impl core::error::Error for OutOfMemory {}

/// A function for [`set_hook`].
type Hook = fn(&OutOfMemory);

/// The hook as a pointer; null if none is set.
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Whether the hook is running.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// Sets the function that every heap calls when it is the global allocator and about to refuse a request.
///
/// There is one hook for the whole program; setting a new one replaces it. The hook runs outside the heap's lock, on the thread that made
/// the request, and may allocate and free. A request that fails while the hook runs does not call it again. Fallible methods do not call
/// the hook, because they return the same information. If a program never sets a hook, `lto = "fat"` removes all code for it; otherwise a
/// few instructions remain where requests fail.
///
/// A hook may also end the program, or reset the chip.
pub fn set_hook(hook: Hook) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// Logs the error through `defmt`, as one line of level `error`. Pass it to [`set_hook`].
///
/// It panics if memory runs out inside an implementation of `defmt::Format`, because the logger is already in use.
#[cfg(feature = "defmt")]
pub fn report_to_defmt(error: &OutOfMemory) {
    defmt::error!("{}", error);
}

/// Calls the hook, if there is one and it is not running.
pub(crate) fn report(reason: impl Fn() -> OutOfMemory) {
    let hook = HOOK.load(Ordering::Acquire);
    // Not every target has atomic swaps. If two threads get here at once, both report, which does no harm.
    if !hook.is_null() && !RUNNING.load(Ordering::Relaxed) {
        run(hook, &reason);
    }
}

#[inline(never)]
fn run(hook: *mut (), reason: &dyn Fn() -> OutOfMemory) {
    RUNNING.store(true, Ordering::Relaxed);
    // SAFETY: only `set_hook` stores here, and it stores a `Hook`.
    let hook: Hook = unsafe { core::mem::transmute(hook) };
    crate::error::misuse::without_unwinding(|| hook(&reason()));
    RUNNING.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_cause_is_named() {
        let ends = |error: &OutOfMemory, cause: &str| error.to_string().ends_with(cause);
        let layout = Layout::from_size_align(5000, 8).unwrap();
        let error = OutOfMemory::new(layout, 4999, 4000);
        assert_eq!(error.cause(), Cause::TooSmall);
        assert_eq!(
            error.to_string(),
            "out of memory: 5000 bytes aligned to 8 requested, 4999 free, largest free block 4000: the heap is \
             too small"
        );
        let error = OutOfMemory { free: 5000, ..error };
        assert_eq!(error.cause(), Cause::Fragmentation);
        assert!(ends(&error, ": fragmentation is the obstacle, enough is free but not in one piece"));
        // The adapters' largest free block is an upper bound; an alignment that every block has is no obstacle.
        let error = OutOfMemory { largest_free: 5000, align: NATURAL, ..error };
        assert_eq!(error.cause(), Cause::Fragmentation);
        let error = OutOfMemory { align: 64, ..error };
        assert_eq!(error.cause(), Cause::Alignment);
        assert!(ends(&error, ": the alignment is the obstacle, the largest free block is long enough"));
        // A rule comes before all others.
        let error = OutOfMemory { free: 0, rule: Some(Cause::Sealed), ..error };
        assert_eq!(error.cause(), Cause::Sealed);
        assert!(ends(&error, ": the heap is sealed, nothing is allocated after start-up"));
    }
}
