//! The live blocks of a device, by the addresses that free them.

#![forbid(unsafe_code)]

use core::hash::Hash;
use std::collections::HashMap;

/// Blocks by their addresses. Every operation is O(1).
pub struct Live<Address, Block>(HashMap<Address, Block>);

impl<Address: Eq + Hash, Block> Live<Address, Block> {
    pub fn new() -> Self {
        Self(HashMap::new())
    }

    pub fn insert(&mut self, address: Address, block: Block) {
        self.0.insert(address, block);
    }

    /// Returns the block at an address, if one starts there.
    pub fn get(&self, address: &Address) -> Option<&Block> {
        self.0.get(address)
    }

    /// Removes the block at an address, if one starts there.
    pub fn remove(&mut self, address: &Address) -> Option<Block> {
        self.0.remove(address)
    }
}
