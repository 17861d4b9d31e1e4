//! Lines on standard error, written without allocating.

#![forbid(unsafe_code)]

use core::fmt;
use std::io::Write;

/// A line of text on the stack; text that does not fit is cut off.
struct Line {
    text: [u8; 320],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.text[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}

/// Passes a line to `write` in one piece, without allocating.
pub(crate) fn line(text: fmt::Arguments<'_>, write: impl FnOnce(&[u8])) {
    let mut line = Line { text: [0; 320], len: 0 };
    // Ignore errors: there is nowhere else to report them.
    let _ = fmt::write(&mut line, format_args!("{text}\n"));
    write(&line.text[..line.len]);
}

/// Writes one line to standard error in one piece, without allocating.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    line(text, |line| _ = std::io::stderr().write_all(line));
}
