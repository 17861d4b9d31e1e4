//! Code that runs when the library is loaded, and before the first request.

use crate::information::malloc_stats;
use crate::line::Line;
use crate::options::Options;
use crate::{HEAP, background};
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use heap::os::Huge;

unsafe extern "C" {
    #[cfg(target_os = "linux")]
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Reads an environment variable, which counts as empty if it is missing or if the program runs with more rights than its caller.
pub fn environment<T>(name: &CStr, read: impl FnOnce(&str) -> T) -> T {
    /// Stands in for the function that Android's C library has only since 2025.
    #[cfg(target_os = "android")]
    unsafe fn secure_getenv(name: *const c_char) -> *const c_char {
        // SAFETY: the caller's contract.
        unsafe { if libc::getauxval(libc::AT_SECURE) == 0 { libc::getenv(name) } else { core::ptr::null() } }
    }

    // SAFETY: the name ends with a zero byte, and so does the value. As with `getenv`, the program must not change the variable during
    // the call.
    unsafe {
        let value = secure_getenv(name.as_ptr());
        read(if value.is_null() { "" } else { CStr::from_ptr(value).to_str().unwrap_or("(not UTF-8)") })
    }
}

/// Whether the options have been read.
static CONFIGURED: AtomicBool = AtomicBool::new(false);

/// Reads the options before the first allocation. The program's first request may come before [`start`]: the loader first starts the
/// libraries that this one and the program need, such as the C++ library.
#[inline(always)]
pub fn before_request() {
    if !CONFIGURED.load(Ordering::Relaxed) {
        configure();
    }
}

/// Reads the options, sets the limit and the kind of pages, and prints unknown words once.
#[cold]
#[inline(never)]
fn configure() -> Options {
    let is_first = !CONFIGURED.swap(true, Ordering::Relaxed);
    let say = |word: &str| {
        if is_first {
            let mut line = Line::new();
            let _ = writeln!(
                line,
                "allotment: ALLOTMENT_OPTIONS: `{word:.60}` is ignored: it is none of `stats`, `background`, `thp`, `nothp`, `limit=BYTES`, `sample=BLOCKS`, with BYTES like \
                 4096, 64M, 64MiB, or 1.5G"
            );
            line.print();
        }
    };
    let options = environment(c"ALLOTMENT_OPTIONS", |text| Options::read(text, say));
    if let Some(bytes) = options.limit {
        HEAP.limit(bytes);
    }
    #[cfg(target_os = "linux")]
    // The hard library checks every block itself.
    #[cfg(not(feature = "hard"))]
    if let Some(period) = options.sample.filter(|_| is_first) {
        // Ignore an error: without addresses that a free can distinguish from the heap's, the program goes on without samples.
        let _ = HEAP.sample(period);
    }
    if let Some(huge) = options.huge.filter(|_| is_first) {
        // Ignore an error: this is only a hint, and a kernel may lack such pages.
        let _ = HEAP.huge(if huge { Huge::Advise } else { Huge::Never });
    }
    options
}

extern "C" fn start() {
    let options = configure();
    if options.background {
        background::start();
    }
    if options.stats {
        // SAFETY: the function has the type that the C library requires.
        unsafe { libc::atexit(malloc_stats) };
    }
}

/// The loader calls this before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Ends the program because of an invalid free.
#[cold]
#[inline(never)]
pub fn invalid_free(block: NonNull<u8>) -> ! {
    let mut line = Line::new();
    let _ = writeln!(line, "allotment: free of {block:p}, which is no live block of the heap");
    line.print();
    // SAFETY: it has no preconditions.
    unsafe { libc::abort() }
}
