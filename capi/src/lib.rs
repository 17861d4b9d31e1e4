//! `malloc` and related functions over the process's heap, [`heap::os::Growing`].
//!
//! Preload `liballotment.so` (`LD_PRELOAD`) or link it before the C library, or link `liballotment.a` into a program. The functions have
//! the C library's names and contracts, and report this heap's statistics. They differ in two ways: every block is aligned to 16 bytes,
//! and a free of an address without a live block ends the program with a message.
//!
//! `include/allotment.h` declares this heap's own functions. `ALLOTMENT_OPTIONS` holds options separated by commas:
//!
//! * `stats`: prints the heap's statistics to standard error when the program ends;
//! * `limit=BYTES`: reserves this many bytes of addresses, such as `4096K`, `64MiB` or `1.5G`; the heap never has more;
//! * `background`: starts a thread that returns free memory to the system when the program has not used the heap for four seconds. Off by
//!   default, since some system functions (`unshare`, `setns`) refuse programs with threads;
//! * `thp`: requests transparent huge pages for the heap, for programs that access much memory at random; `nothp` avoids them;
//! * `sample=BLOCKS`: puts about one small block in this many between guard pages ([`heap::os::Growing::sample`]; Linux), where an access
//!   outside the block or after its free ends the program with a report. Build with feature `backtrace` for stack traces. Blocks outside
//!   the sample cost nothing extra. The hard library ignores this option.
//!
//! The library reads the options at the first request, which may come before its constructor. It ignores other words and names them on
//! standard error. A program that runs with more rights than its caller (set-user-ID) ignores all options.
//!
//! With feature `hard`, the blocks come from [`heap::os::Hardened`], one in 5,000 of them between inaccessible pages
//! ([`heap::os::Guarded`]): every invalid free ends the program, and so do writes to freed blocks and past a block's end.

#![cfg(any(target_os = "linux", target_os = "android"))]

mod background;
mod figures;
#[cfg(feature = "hard")]
mod hard;
mod information;
mod line;
#[cfg(feature = "gpu")]
mod live;
mod options;
mod start;
#[cfg(feature = "gpu")]
mod torch;

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use heap::os::Growing;

/// The process's heap.
static HEAP: Growing = Growing::new();

/// The heap that allocates the blocks.
#[cfg(not(feature = "hard"))]
use self::HEAP as BLOCKS;
#[cfg(feature = "hard")]
use hard::BLOCKS;

/// The alignment of `malloc` in bytes.
const ALIGN: usize = 16;

/// Returns the size of a system page in bytes.
fn page() -> usize {
    // SAFETY: it has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(64 * 1024)
}

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(target_os = "linux")]
use libc::__errno_location as errno_location;

fn set_errno(error: c_int) {
    // SAFETY: the C library's own variable of this thread.
    unsafe { *errno_location() = error }
}

/// Converts a block for the C program; sets `ENOMEM` if it is null.
#[inline(always)]
fn or_no_memory(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

/// Allocates `size` bytes.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    // Split in two, so that the common case saves no registers.
    match BLOCKS.allocate_fast(size, ALIGN) {
        Some(block) => block.as_ptr().cast(),
        None => malloc_slow(size),
    }
}

#[inline(never)]
extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    or_no_memory(allocate(size, ALIGN))
}

/// Allocates `size` bytes aligned to `align`, after reading the options if necessary.
#[inline(always)]
fn allocate(size: usize, align: usize) -> *mut u8 {
    start::before_request();
    BLOCKS.allocate_raw(size, align)
}

/// Allocates `count` times `size` bytes, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(size) = count.checked_mul(size) else { return or_no_memory(ptr::null_mut()) };
    match BLOCKS.allocate_fast(size, ALIGN) {
        Some(block) => {
            // SAFETY: the block has the requested size.
            unsafe { block.write_bytes(0, size) };
            block.as_ptr().cast()
        }
        None => calloc_slow(size),
    }
}

#[inline(never)]
extern "C" fn calloc_slow(size: usize) -> *mut c_void {
    start::before_request();
    or_no_memory(BLOCKS.allocate_raw_zeroed(size, ALIGN))
}

/// Frees a block; ignores null.
///
/// # Safety
///
/// The block must be live and must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let Some(block) = NonNull::new(block.cast::<u8>()) else { return };
    // Split in two, like `malloc`.
    // SAFETY: the caller's contract.
    unsafe {
        if !BLOCKS.free_fast(block) {
            free_slow(block);
        }
    }
}

#[inline(never)]
unsafe extern "C" fn free_slow(block: NonNull<u8>) {
    // SAFETY: the caller of `free` guarantees the block.
    if unsafe { BLOCKS.free(block) }.is_err() {
        start::invalid_free(block);
    }
}

/// Frees a block, like [`free`].
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(block: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { free(block) }
}

/// Frees a block whose size the caller knows, as in C23.
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(block: *mut c_void, _: usize) {
    // SAFETY: the caller's contract.
    unsafe { free(block) }
}

/// Frees an aligned block whose size the caller knows, as in C23.
///
/// # Safety
///
/// As for [`free`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _: usize, _: usize) {
    // SAFETY: the caller's contract.
    unsafe { free(block) }
}

/// Changes the size of a block, in place or by moving it.
///
/// # Safety
///
/// The block must be live or null. If it moves, its old address must not be used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(old) = NonNull::new(block.cast::<u8>()) else { return malloc(size) };
    // SAFETY: the caller's contract.
    unsafe {
        if size == 0 {
            free(block);
            return ptr::null_mut();
        }
        let new = BLOCKS.change(old, size, ALIGN);
        if new.is_null() && BLOCKS.size_of_own(old).is_none() {
            start::invalid_free(old);
        }
        or_no_memory(new)
    }
}

/// Changes the size of a block to `count` times `size` bytes, like [`realloc`].
///
/// # Safety
///
/// As for [`realloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(size) => unsafe { realloc(block, size) },
        None => or_no_memory(ptr::null_mut()),
    }
}

/// Allocates `size` bytes aligned to `align`, which is rounded up to a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.max(ALIGN).checked_next_power_of_two() {
        Some(align) => or_no_memory(allocate(size, align)),
        None => or_no_memory(ptr::null_mut()),
    }
}

/// Allocates `size` bytes aligned to `align`, a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    memalign(align, size)
}

/// Allocates `size` bytes aligned to `align`, a power of two and a multiple of a pointer's size.
///
/// # Safety
///
/// `out` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let block = allocate(size, align.max(ALIGN));
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's contract.
    unsafe { *out = block.cast() };
    0
}

/// Allocates `size` bytes that start at a system page.
#[unsafe(no_mangle)]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    or_no_memory(allocate(size, page()))
}

/// Allocates whole system pages.
#[unsafe(no_mangle)]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.max(1).checked_next_multiple_of(page()) {
        Some(size) => or_no_memory(allocate(size, page())),
        None => or_no_memory(ptr::null_mut()),
    }
}

/// Returns the usable size of a live block in bytes; 0 for null.
///
/// # Safety
///
/// The block must be live or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(block: *mut c_void) -> usize {
    NonNull::new(block.cast::<u8>()).and_then(|block| BLOCKS.usable_size(block)).unwrap_or(0)
}
