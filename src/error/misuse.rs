//! Misuse of a heap: an invalid free, or a write to memory after it was freed.
//!
//! The fallible methods, such as [`Heap::try_deallocate`](crate::Heap::try_deallocate), return a [`FreeError`] for an invalid free. A
//! global allocator cannot return an error, so it calls the [hook](set_hook); so does every heap that finds its own bookkeeping damaged.
//! Without a hook the program ends with one line that names the misuse:
//!
//! ```text
//! allotment: invalid free: the block is free already, address 0x7f32a4c01040
//! ```
//!
//! The hardening level decides what a heap detects; see [`harden`](crate::harden).

use crate::error::FreeError;
use core::fmt;
use core::mem;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The kind of a misuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Kind {
    /// The heap refused a free. The heap is unchanged, and the block, if there is one, stays allocated.
    InvalidFree(FreeError),
    /// A list of free blocks is damaged: the program wrote to a freed block or past the end of a live block. The heap cannot go on.
    BrokenList,
    /// The program wrote to a freed block before the heap merged it back into free memory. Only [`Full`](crate::harden::Full) and
    /// `os::Hardened` detect this.
    WrittenAfterFree,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidFree(error) => write!(f, "invalid free: {error}"),
            Self::BrokenList => f.write_str("a list of free blocks is damaged"),
            Self::WrittenAfterFree => f.write_str("a block was written to after it was freed"),
        }
    }
}

/// A misuse that a heap found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Misuse {
    /// The kind of the misuse.
    pub kind: Kind,
    /// The address of the freed or damaged block; 0 if the heap knows only the block's number.
    pub address: usize,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            0 => write!(f, "{}", self.kind),
            address => write!(f, "{}, address {address:#x}", self.kind),
        }
    }
}

impl core::error::Error for Misuse {}

/// A function for [`set_hook`].
pub type Hook = fn(&Misuse);

/// The hook as a pointer; null if none is set.
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Sets the function that every heap calls when it finds a misuse that it cannot return as an error.
///
/// There is one hook for the whole program; setting a new one replaces it. It may log, reset the chip or end the program. If it returns
/// after a [`Kind::InvalidFree`], the heap ignores the free and the program goes on; after any other misuse the program ends. For an
/// invalid free the hook runs outside the heap's lock and may use the heap; for other misuse it runs inside the lock and must not
/// allocate. A panic in the hook ends the program.
///
/// ```
/// use allotment::misuse::{Misuse, set_hook};
///
/// fn log_and_go_on(misuse: &Misuse) {
///     eprintln!("ignored: {misuse}");
/// }
/// set_hook(log_and_go_on);
/// ```
pub fn set_hook(hook: Hook) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// Ends the program if a closure unwinds out of an allocator. Otherwise a collection would go on with a block that was moved or freed.
pub(crate) struct NoUnwind;

impl Drop for NoUnwind {
    #[cold]
    fn drop(&mut self) {
        // A panic during unwinding ends the program.
        panic!("a hook panicked inside an allocator, which must not unwind");
    }
}

/// Runs `f`, and ends the program if it panics.
#[inline(always)]
pub(crate) fn without_unwinding<T>(f: impl FnOnce() -> T) -> T {
    let guard = NoUnwind;
    let result = f();
    mem::forget(guard);
    result
}

/// Calls the hook. Returns whether there is one.
fn call_hook(misuse: &Misuse) -> bool {
    let hook = HOOK.load(Ordering::Acquire);
    if hook.is_null() {
        return false;
    }
    // SAFETY: only `set_hook` stores here, and it stores a `Hook`.
    let hook: Hook = unsafe { mem::transmute(hook) };
    without_unwinding(|| hook(misuse));
    true
}

/// Returns whether the kind of an invalid free is reported, to a hook or in the final message. Small firmware without a hook can omit the
/// code that determines it.
#[inline(always)]
pub(crate) fn names_kinds() -> bool {
    cfg!(any(debug_assertions, feature = "std", all(feature = "host", any(unix, windows))))
        || !HOOK.load(Ordering::Relaxed).is_null()
}

/// Ends the program with a line that says why, without unwinding, because the caller may be an allocator.
#[cold]
#[inline(never)]
fn end(misuse: &Misuse) -> ! {
    #[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
    {
        crate::error::report::print(format_args!("allotment: {misuse}"));
        std::process::abort();
    }
    #[cfg(not(any(feature = "std", all(feature = "host", any(unix, windows)))))]
    without_unwinding(|| {
        // The full text would pull in formatting code that small firmware may not have otherwise.
        if cfg!(debug_assertions) { panic!("allotment: {misuse}") } else { panic!("allotment: heap misused") }
    })
}

/// Reports an invalid free that a global allocator has refused. Returns only if the hook returns.
#[cold]
#[inline(never)]
pub(crate) fn invalid_free(error: FreeError, address: usize) {
    let misuse = Misuse { kind: Kind::InvalidFree(error), address };
    if !call_hook(&misuse) {
        end(&misuse);
    }
}

/// Reports a refused free. Returns whether the free succeeded.
#[inline(always)]
pub(crate) fn report_refused(freed: Result<(), FreeError>, block: NonNull<u8>) -> bool {
    freed.inspect_err(|&error| invalid_free(error, block.addr().get())).is_ok()
}

/// Reports damaged free memory or bookkeeping, and ends the program.
#[cold]
#[inline(never)]
pub(crate) fn corrupted(kind: Kind, address: usize) -> ! {
    let misuse = Misuse { kind, address };
    call_hook(&misuse);
    end(&misuse)
}
