//! Text for terminals: names from traces and programs must not control them.

use std::borrow::Cow;
use std::io::{self, StdoutLock, Write};

/// Returns whether a terminal could obey a character: a control character, or one that changes the direction of text.
fn is_obeyed(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (c.is_control() && !matches!(c, '\n' | '\t'))
}

/// Escapes the characters that a terminal could obey, except line ends and tabs. JSON keeps its meaning.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) {
            out += &format!("\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// Escapes what is written as [`plain`] does. Expects whole characters in each write, as `write!` makes them.
pub struct Plain<W>(pub W);

impl<W: Write> Write for Plain<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_all(plain(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the standard output for text that may hold names from elsewhere.
pub fn stdout() -> Plain<StdoutLock<'static>> {
    Plain(io::stdout().lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_obey_no_name() {
        assert_eq!(plain("a\tü – 名\n"), "a\tü – 名\n");
        assert_eq!(plain("\x1b[31m\r\x7f\u{9b}\u{202e}"), "\\u001b[31m\\u000d\\u007f\\u009b\\u202e");
        let mut out = Plain(Vec::new());
        serde_json::to_writer(&mut out, "\x1b\u{9b}\"").unwrap();
        assert_eq!(serde_json::from_slice::<String>(&out.0).unwrap(), "\x1b\u{9b}\"");
        assert!(out.0.is_ascii());
    }
}
