//! Numbers for live blocks.

use std::collections::hash_map::Entry;

use foldhash::HashMap;

/// The live blocks by id, each with a slot: a number below the most blocks live so far, used again once the block is freed.
#[derive(Debug)]
pub struct Slots<V> {
    by_id: HashMap<u64, (V, usize)>,
    unused: Vec<usize>,
}

impl<V> Default for Slots<V> {
    fn default() -> Self {
        Self { by_id: HashMap::default(), unused: Vec::new() }
    }
}

impl<V: Copy> Slots<V> {
    /// Returns a live block. O(1) expected.
    pub fn get(&self, id: u64) -> Option<V> {
        self.by_id.get(&id).map(|&(value, _)| value)
    }

    /// Sets a block, or frees it, and returns its slot. O(1) expected.
    pub fn set(&mut self, id: u64, value: Option<V>) -> usize {
        let live = self.by_id.len();
        match (self.by_id.entry(id), value) {
            (Entry::Occupied(mut known), Some(value)) => {
                known.get_mut().0 = value;
                known.get().1
            }
            (Entry::Occupied(known), None) => {
                let (_, slot) = known.remove();
                self.unused.push(slot);
                slot
            }
            (Entry::Vacant(new), value) => {
                let slot = self.unused.pop().unwrap_or(live);
                match value {
                    Some(value) => drop(new.insert((value, slot))),
                    None => self.unused.push(slot),
                }
                slot
            }
        }
    }

    /// Returns the number of live blocks.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether no block is live.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the live blocks with their ids, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, V)> {
        self.by_id.iter().map(|(&id, &(value, _))| (id, value))
    }
}
