//! What happens when the library is loaded, when the process forks, and when it ends.

use crate::information::malloc_stats;
use crate::options::Options;
use crate::{HEAP, background};
use core::ffi::CStr;
use core::fmt::{self, Write};
use core::ptr::NonNull;

extern "C" fn start() {
    // SAFETY: the functions have the types that the C library asks for; the environment is not changed while it is read,
    // because no other code of the program runs yet.
    unsafe {
        let options = libc::getenv(c"ALLOTMENT_OPTIONS".as_ptr());
        if options.is_null() {
            return;
        }
        let text = CStr::from_ptr(options).to_str().unwrap_or("(not UTF-8)");
        let options = Options::read(text).unwrap_or_else(|(options, word)| {
            let mut line = Line::new();
            let _ = writeln!(
                line,
                "allotment: ALLOTMENT_OPTIONS: `{word}` is none of `stats`, `background`, `limit=BYTES`; it and what follows is ignored"
            );
            line.print();
            options
        });
        if let Some(bytes) = options.limit {
            HEAP.limit(bytes);
        }
        if options.background {
            background::start();
        }
        if options.stats {
            libc::atexit(malloc_stats);
        }
    }
}

/// The loader calls this before the program starts.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Ends the program because it frees what is no live block.
#[cold]
#[inline(never)]
pub fn wrong_free(block: NonNull<u8>) -> ! {
    let mut line = Line::new();
    let _ = writeln!(line, "allotment: free of {block:p}, which is no live block of the heap");
    line.print();
    // SAFETY: it has no preconditions.
    unsafe { libc::abort() }
}

/// A line of text that needs no allocation.
pub struct Line {
    text: [u8; 240],
    len: usize,
}

impl Line {
    /// Makes an empty line.
    pub fn new() -> Self {
        Self { text: [0; 240], len: 0 }
    }

    /// Prints the line to standard error.
    pub fn print(&self) {
        // SAFETY: the bytes are initialised. A failure to write them cannot be reported.
        unsafe { libc::write(2, self.text.as_ptr().cast(), self.len) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.text[self.len..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.len += count;
        Ok(())
    }
}
