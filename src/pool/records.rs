//! What a pool remembers of every block that it has handed out: 32 bytes each.

use crate::meta::Block;
use std::vec::Vec;

/// The state of a record's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The record is unused.
    None,
    /// Allocated.
    Live,
    /// Allocated, and also used on streams other than its own.
    Shared,
    /// Freed, but waiting for events.
    Waiting,
    /// Freed, and kept for requests of its class.
    Cached,
    /// A hole: pages without memory.
    Hole,
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<T> {
    pub offset: u32,
    pub len: u32,
    pub token: T,
    pub segment: u32,
    pub requested: u64,
    /// Distinguishes successive uses of the same record.
    pub serial: u32,
    /// The arena of the stream that the block was allocated for.
    pub arena: u16,
    /// Logarithm of the alignment in granules.
    pub align: u8,
    pub holder: Holder,
}

impl<T: Copy> Record<T> {
    pub(super) fn block(&self) -> Block<T> {
        Block { offset: self.offset as usize, len: self.len as usize, token: self.token }
    }
}

/// Records by number, with a list of the unused ones.
pub(super) struct Records<T> {
    all: Vec<Record<T>>,
    unused: Vec<u32>,
}

impl<T: Copy> Records<T> {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), unused: Vec::new() }
    }

    /// Stores a record and returns its number. Its serial continues that of the record's last use. O(1), amortised.
    #[inline(always)]
    pub(super) fn insert(&mut self, mut record: Record<T>) -> u32 {
        match self.unused.pop() {
            Some(number) => {
                let place = &mut self.all[number as usize];
                record.serial = place.serial.wrapping_add(1);
                *place = record;
                number
            }
            None => {
                self.all.push(record);
                (self.all.len() - 1) as u32
            }
        }
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, number: u32) {
        self.all[number as usize].holder = Holder::None;
        self.unused.push(number);
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Record<T> {
        &self.all[number as usize]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Record<T> {
        &mut self.all[number as usize]
    }

    /// Swaps the memory of two records whose blocks have equal lengths.
    pub(super) fn swap_places(&mut self, a: u32, b: u32) {
        let (first, second) = (self.all[a as usize], self.all[b as usize]);
        let put = |record: &mut Record<T>, place: Record<T>| {
            (record.offset, record.len) = (place.offset, place.len);
            (record.token, record.segment, record.align) = (place.token, place.segment, place.align);
        };
        put(&mut self.all[a as usize], second);
        put(&mut self.all[b as usize], first);
    }

    /// Returns the record, if there is one with this number.
    #[inline(always)]
    pub(super) fn find(&self, number: u32) -> Option<&Record<T>> {
        self.all.get(number as usize)
    }

    /// Iterates over the used records and their numbers. O(records).
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Record<T>)> {
        let numbered = self.all.iter().enumerate().map(|(number, record)| (number as u32, record));
        numbered.filter(|(_, record)| record.holder != Holder::None)
    }
}
