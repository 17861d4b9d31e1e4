//! Writes the lines of a trace that name stacks.

use std::collections::HashMap;
use std::io::{self, Write};

/// Writes nodes and names.
pub struct Lines<'a> {
    pub output: &'a mut dyn Write,
    strings: HashMap<String, usize>,
    nodes: HashMap<(usize, u64), usize>,
}

/// A function, its file and a line; the texts may be empty.
pub type Place = (String, String, u64);

impl<'a> Lines<'a> {
    pub fn new(output: &'a mut dyn Write) -> Self {
        Self { output, strings: HashMap::new(), nodes: HashMap::new() }
    }

    /// Returns the node of an address below the caller's node.
    pub fn node(&mut self, parent: usize, address: u64) -> io::Result<usize> {
        if let Some(&known) = self.nodes.get(&(parent, address)) {
            return Ok(known);
        }
        let node = self.nodes.len() + 1;
        self.nodes.insert((parent, address), node);
        writeln!(self.output, "#^n {parent} 0 {address:x}")?;
        Ok(node)
    }

    fn string(&mut self, text: &str) -> io::Result<usize> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(&known) = self.strings.get(text) {
            return Ok(known);
        }
        let number = self.strings.len() + 1;
        self.strings.insert(text.into(), number);
        let end = (0..=text.len().min(4096)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        writeln!(self.output, "#^s {}", text[..end].replace(['\n', '\r'], " "))?;
        Ok(number)
    }

    /// Names the functions at an address, the innermost first.
    pub fn name(&mut self, address: u64, places: &[Place]) -> io::Result<()> {
        let mut line = format!("#^f 0 {address:x}");
        for (function, file, number) in places {
            let (function, file) = (self.string(function)?, self.string(file)?);
            line += &format!(" {function} {file} {number}");
        }
        writeln!(self.output, "{line}")
    }
}
