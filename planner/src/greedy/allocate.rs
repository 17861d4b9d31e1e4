//! Plans as an allocator at run time would: in one sweep over time, each buffer goes to the smallest free block that holds it.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::Instance;

/// The free blocks above the base, by offset and by length.
struct Free {
    /// Length by first byte.
    blocks: BTreeMap<u64, u64>,
    lengths: BTreeSet<(u64, u64)>,
    /// Everything from here on is free.
    top: u64,
}

impl Free {
    fn insert(&mut self, at: u64, length: u64) {
        if length > 0 {
            self.blocks.insert(at, length);
            self.lengths.insert((length, at));
        }
    }

    fn remove(&mut self, at: u64, length: u64) {
        self.blocks.remove(&at);
        self.lengths.remove(&(length, at));
    }

    /// Allocates from the smallest block that holds `size` bytes at any alignment of its start, or from the top; returns the offset.
    fn allocate(&mut self, size: u64, align: u64) -> u64 {
        let (start, length) = match self.lengths.range((size + align - 1, 0)..).next() {
            Some(&(length, at)) => {
                self.remove(at, length);
                (at, length)
            }
            None => {
                // The last block may reach up to the top.
                let last = self.blocks.last_key_value().map(|(&at, &length)| (at, length));
                let (at, length) =
                    last.filter(|&(at, length)| at + length == self.top).unwrap_or((self.top, 0));
                self.remove(at, length);
                let end = (at.next_multiple_of(align) + size).max(self.top);
                self.top = end;
                (at, end - at)
            }
        };
        let offset = start.next_multiple_of(align);
        self.insert(start, offset - start);
        self.insert(offset + size, start + length - offset - size);
        offset
    }

    fn free(&mut self, mut at: u64, mut length: u64) {
        if let Some((&below, &size)) = self.blocks.range(..at).next_back()
            && below + size == at
        {
            self.remove(below, size);
            (at, length) = (below, length + size);
        }
        if let Some(&size) = self.blocks.get(&(at + length)) {
            self.remove(at + length, size);
            length += size;
        }
        self.insert(at, length);
    }
}

/// Plans like a best-fit allocator, from `base` upwards, for instances too large to search in time. Uses no gaps and shares nothing. Also
/// returns the largest number of bytes live at once. O(n log n).
pub(crate) fn allocated(base: u64, instance: &Instance) -> (Vec<u64>, u64) {
    let buffers = instance.buffers();
    let mut events: Vec<(i64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
    for (n, buffer) in buffers.iter().enumerate().filter(|(_, buffer)| buffer.fixed.is_none()) {
        // A buffer that is never live needs no place.
        if buffer.is_ever_live() {
            events.extend([(buffer.start, true, n), (buffer.end, false, n)]);
        }
    }
    events.sort_unstable();
    let mut free = Free { blocks: BTreeMap::new(), lengths: BTreeSet::new(), top: base };
    let mut offsets = vec![0; buffers.len()];
    let (mut load, mut most) = (0, 0);
    for (_, begins, n) in events {
        let buffer = &buffers[n];
        if begins {
            load += buffer.size;
            most = most.max(load);
            offsets[n] = free.allocate(buffer.size, buffer.align);
        } else {
            load -= buffer.size;
            free.free(offsets[n], buffer.size);
        }
    }
    (offsets, most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::random;
    use crate::model::Buffer;
    use crate::validate::validate;

    #[test]
    fn it_is_a_plan_and_not_a_stack() {
        for seed in 0..20 {
            let instance = random(3000, 500, seed);
            let (offsets, most) = allocated(64, &instance);
            validate(&instance, &offsets, None).unwrap();
            let peak = instance.peak(&offsets);
            let load = crate::bounds::lower_bound(&instance).bytes;
            assert!(peak < 2 * load && most == load, "{peak} {load} {most}");
            // With any alignments.
            let aligned = instance.buffers().iter().enumerate();
            let aligned = aligned.map(|(n, b)| Buffer { align: [1, 3, 16, 24, 64][n % 5], ..b.clone() });
            let instance = Instance::new(aligned.collect()).unwrap();
            validate(&instance, &allocated(7, &instance).0, None).unwrap();
        }
    }
}
