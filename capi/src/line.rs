//! Lines on standard error.

use core::fmt::{self, Write};

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
        // SAFETY: the bytes are initialised. There is no way to report a failed write.
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
