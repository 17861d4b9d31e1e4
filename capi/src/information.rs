//! The C library's functions that report on its heap or change its parameters.

use crate::HEAP;
use crate::line::Line;
use core::ffi::c_int;
use core::fmt::{self, Write};

// Android's two forms are identical and hold sizes; the crate `libc` declares only one.
#[cfg(target_os = "android")]
use libc::mallinfo as Info;
#[cfg(target_os = "linux")]
use libc::mallinfo2 as Info;

/// Returns free memory to the system. Returns 1 if there was any.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    (HEAP.trim() > 0).into()
}

/// Accepts and ignores every parameter of the C library's heap.
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(_: c_int, _: c_int) -> c_int {
    1
}

/// Returns the heap's statistics: `arena` counts committed bytes, `uordblks` used bytes (including thread caches), `fordblks` the rest,
/// and `keepcost` the least number of bytes that [`malloc_trim`] releases.
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> Info {
    let figures = HEAP.stats();
    // SAFETY: a structure of integers.
    let mut info: Info = unsafe { core::mem::zeroed() };
    info.arena = figures.committed;
    info.uordblks = figures.used;
    info.fordblks = figures.committed.saturating_sub(figures.used);
    info.keepcost = figures.dirty;
    info
}

/// Returns the statistics of [`mallinfo2`] in the older form, each limited to the largest value of its type.
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

/// A stream of the C library, to which text can be written.
struct Stream(*mut libc::FILE);

impl fmt::Write for Stream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // SAFETY: the caller of `malloc_info` guarantees the stream.
        let written = unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.0) };
        if written == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// Writes the heap's statistics to a stream, in the XML format of the GNU C library: one heap, with all unused memory as one free part
/// (`rest`); `system` and `aspace` are the committed bytes. Returns 0, `EINVAL` for options other than 0, or -1 if the stream fails.
///
/// # Safety
///
/// The stream must be open for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let Info { arena, fordblks: free, .. } = mallinfo2();
    let parts = usize::from(free > 0);
    let written = write!(
        Stream(stream),
        "<malloc version=\"1\">\n\
         <heap nr=\"0\">\n\
         <sizes>\n\
         </sizes>\n\
         <total type=\"fast\" count=\"0\" size=\"0\"/>\n\
         <total type=\"rest\" count=\"{parts}\" size=\"{free}\"/>\n\
         <system type=\"current\" size=\"{arena}\"/>\n\
         <system type=\"max\" size=\"{arena}\"/>\n\
         <aspace type=\"total\" size=\"{arena}\"/>\n\
         <aspace type=\"mprotect\" size=\"{arena}\"/>\n\
         </heap>\n\
         <total type=\"fast\" count=\"0\" size=\"0\"/>\n\
         <total type=\"rest\" count=\"{parts}\" size=\"{free}\"/>\n\
         <total type=\"mmap\" count=\"0\" size=\"0\"/>\n\
         <system type=\"current\" size=\"{arena}\"/>\n\
         <system type=\"max\" size=\"{arena}\"/>\n\
         <aspace type=\"total\" size=\"{arena}\"/>\n\
         <aspace type=\"mprotect\" size=\"{arena}\"/>\n\
         </malloc>\n"
    );
    if written.is_ok() { 0 } else { -1 }
}

/// Prints the heap's statistics to standard error.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let figures = HEAP.stats();
    let mut line = Line::new();
    let _ = writeln!(
        line,
        "allotment: {} bytes in use, {} at most, {} committed, {} free and not given back, {} given back so far, {} reserved",
        figures.used, figures.peak, figures.committed, figures.dirty, figures.purged, figures.reserved,
    );
    line.print();
}
