//! The tree of stacks that were written: each return address below that of its caller.

use crate::stacks::Stack;
use crate::table::Table;

/// The nodes that the recording file has, by what they are.
pub struct Tree {
    /// Whole stacks by their hashes and lengths.
    stacks: Table,
    /// Nodes by address and parent.
    nodes: Table,
    /// Modules by where they start.
    modules: Table,
    /// The number of the last node.
    last: u32,
}

impl Tree {
    pub const fn new() -> Self {
        Self { stacks: Table::new(), nodes: Table::new(), modules: Table::new(), last: 0 }
    }

    /// Returns the node of a stack that was kept.
    pub fn whole(&self, stack: &Stack) -> Option<u32> {
        self.stacks.get(stack.hash as usize, stack.frames().len() as u32)
    }

    /// Keeps the node of a stack.
    pub fn keep(&mut self, stack: &Stack, node: u32) {
        self.stacks.insert(stack.hash as usize, stack.frames().len() as u32, node);
    }

    /// Returns the node of an address below its caller's, and whether it is a new one.
    pub fn node(&mut self, parent: u32, address: usize) -> (u32, bool) {
        if let Some(known) = self.nodes.get(address, parent) {
            return (known, false);
        }
        self.last += 1;
        self.nodes.insert(address, parent, self.last);
        (self.last, true)
    }

    /// Returns whether the module that starts there was named; it is from now on.
    pub fn knows_module(&mut self, start: usize) -> bool {
        let known = self.modules.get(start, 0).is_some();
        if !known {
            self.modules.insert(start, 0, 1);
        }
        known
    }

    /// Forgets all that is known of addresses; the numbers of nodes go on.
    pub fn forget(&mut self) {
        for table in [&mut self.stacks, &mut self.nodes, &mut self.modules] {
            table.clear();
        }
    }
}

/// A line of text without memory of the allocator's.
pub struct Line<const MOST: usize> {
    bytes: [u8; MOST],
    length: usize,
}

impl<const MOST: usize> Line<MOST> {
    pub const fn new() -> Self {
        Self { bytes: [0; MOST], length: 0 }
    }

    /// Adds text as far as it fits.
    pub fn text(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
    }

    /// Adds a number in hexadecimal.
    pub fn number(&mut self, number: usize) {
        let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let digit = (number >> (4 * digit) & 15) as u8;
            let letter = [if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }];
            self.text(core::str::from_utf8(&letter).unwrap_or("?"));
        }
    }

    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("?")
    }
}
