//! Writes Python's `pickle`, protocol 4, with the operations that PyTorch's viewer of snapshots reads.

use std::collections::HashMap;
use std::io::{self, Write};

/// Largest number of parts added to a list at once, as in Python.
const BATCH: usize = 1000;

/// Writes values one after the other.
pub struct Pickler<W: Write> {
    output: W,
    texts: HashMap<String, u32>,
    kept: u32,
}

impl<W: Write> Pickler<W> {
    /// Writes the beginning of the file.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(b"\x80\x04")?;
        Ok(Self { output, texts: HashMap::new(), kept: 0 })
    }

    /// Writes the end of the file.
    pub fn finish(mut self) -> io::Result<()> {
        self.output.write_all(b".")
    }

    /// Writes a whole number.
    pub fn number(&mut self, number: u64) -> io::Result<()> {
        match number {
            0..=0xff => self.output.write_all(&[b'K', number as u8]),
            0x100..=0xffff => {
                self.output.write_all(b"M")?;
                self.output.write_all(&(number as u16).to_le_bytes())
            }
            0x1_0000..=0x7fff_ffff => {
                self.output.write_all(b"J")?;
                self.output.write_all(&(number as u32).to_le_bytes())
            }
            _ => {
                // Add a byte if the highest bit would be taken for a sign.
                let bytes = u128::from(number).to_le_bytes();
                let length = (64 - number.leading_zeros()) as usize / 8 + 1;
                self.output.write_all(&[0x8a, length as u8])?;
                self.output.write_all(&bytes[..length])
            }
        }
    }

    /// Writes a text, or a reference if it was written before.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if let Some(&known) = self.texts.get(text) {
            return self.recall(known);
        }
        self.output.write_all(b"X")?;
        self.output.write_all(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        self.output.write_all(text.as_bytes())?;
        let number = self.keep()?;
        self.texts.insert(text.to_owned(), number);
        Ok(())
    }

    /// Stores the last value and returns its number.
    pub fn keep(&mut self) -> io::Result<u32> {
        self.output.write_all(b"\x94")?;
        self.kept += 1;
        Ok(self.kept - 1)
    }

    /// Writes a reference to a stored value.
    pub fn recall(&mut self, number: u32) -> io::Result<()> {
        match u8::try_from(number) {
            Ok(number) => self.output.write_all(&[b'h', number]),
            Err(_) => {
                self.output.write_all(b"j")?;
                self.output.write_all(&number.to_le_bytes())
            }
        }
    }

    /// Writes a list; `write` writes each part.
    pub fn list<T>(
        &mut self,
        parts: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.output.write_all(b"]")?;
        let mut parts = parts.into_iter().peekable();
        while parts.peek().is_some() {
            self.output.write_all(b"(")?;
            for part in parts.by_ref().take(BATCH) {
                write(self, part)?;
            }
            self.output.write_all(b"e")?;
        }
        Ok(())
    }

    /// Writes a dictionary; `write` writes its keys and values.
    pub fn dictionary(&mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.output.write_all(b"}(")?;
        write(self)?;
        self.output.write_all(b"u")
    }

    /// Writes keys with numbers as values.
    pub fn numbers(&mut self, pairs: &[(&str, u64)]) -> io::Result<()> {
        for &(key, value) in pairs {
            self.text(key)?;
            self.number(value)?;
        }
        Ok(())
    }

    /// Writes keys with texts as values.
    pub fn words(&mut self, pairs: &[(&str, &str)]) -> io::Result<()> {
        for &(key, value) in pairs {
            self.text(key)?;
            self.text(value)?;
        }
        Ok(())
    }
}
