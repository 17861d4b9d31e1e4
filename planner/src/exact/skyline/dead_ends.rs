//! A table of partial packings that are proved to have no completion.

use super::{Level, Problem};

/// A direct-mapped hash table of parts that cannot be completed.
pub struct DeadEnds {
    slots: Vec<(u64, u64)>,
    /// The reason of each slot, `words` long.
    reasons: Vec<u64>,
    words: usize,
    by_section: Vec<(u64, u64)>,
    by_buffer: Vec<(u64, u64)>,
}

impl DeadEnds {
    pub fn new(problem: &Problem, bits: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(0x5eed);
        let mut pairs = |count: usize| (0..count).map(|_| (random.u64(..) | 1, random.u64(..) | 1)).collect();
        Self {
            by_section: pairs(problem.sections),
            by_buffer: pairs(problem.size.len()),
            slots: vec![(0, 0); 1 << bits],
            words: problem.sections.div_ceil(64),
            reasons: vec![0; problem.sections.div_ceil(64) << bits],
        }
    }

    /// Returns a 128-bit hash of a part's floors and unplaced buffers.
    pub fn key(&self, level: &Level, lo: usize, hi: usize) -> (u64, u64) {
        let mut key = (hi as u64, lo as u64);
        for (&floor, &(a, b)) in level.base[lo..hi].iter().zip(&self.by_section[lo..hi]) {
            key.0 = key.0.wrapping_add(a.wrapping_mul(u64::from(floor)));
            key.1 = key.1.wrapping_add(b.wrapping_mul(u64::from(floor)));
        }
        for &n in &level.list {
            let (a, b) = self.by_buffer[n as usize];
            key.0 = key.0.wrapping_add(a.rotate_left(32));
            key.1 = key.1.wrapping_add(b.rotate_left(32));
        }
        let mix = |x: u64| (x ^ (x >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mix(key.0), mix(key.1) | 1)
    }

    fn slot(&self, key: (u64, u64)) -> usize {
        (key.0 >> 20) as usize & (self.slots.len() - 1)
    }

    pub fn reason(&self, key: (u64, u64)) -> Option<&[u64]> {
        let slot = self.slot(key);
        (self.slots[slot] == key).then(|| &self.reasons[slot * self.words..][..self.words])
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.slots.fill((0, 0));
    }

    pub fn insert(&mut self, key: (u64, u64), reason: &[u64]) {
        let slot = self.slot(key);
        self.slots[slot] = key;
        self.reasons[slot * self.words..][..self.words].copy_from_slice(reason);
    }
}
