//! Maps whose keys are numbers that the pool or the driver chooses.

#![forbid(unsafe_code)]

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet};

/// A map by number. Its hash takes four instructions; the standard library's takes over a hundred, to resist keys chosen by an attacker,
/// which these never are.
pub(super) type ByNumber<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// A set of numbers; see [`ByNumber`].
pub(super) type Numbers<K> = HashSet<K, BuildHasherDefault<Mix>>;

/// Multiplies a number by the golden ratio, and mixes the upper bits, which depend on all bits of the number, into the lower ones, which
/// a table uses first.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Mix {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(Self::GOLDEN);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::BuildHasher;
    use std::collections::BTreeSet;

    /// Numbers of records, handles and addresses, in steps of a power of two: the bits that a table uses differ about as often as those
    /// of random numbers, which would give 647 of 1,024.
    #[test]
    fn neighbours_are_far_apart() {
        let hash = BuildHasherDefault::<Mix>::default();
        for shift in [0, 3, 5, 8, 12, 16, 21, 32] {
            let all = || (0..1024_u64).map(|number| hash.hash_one(number << shift));
            let (low, high): (BTreeSet<u64>, BTreeSet<u64>) =
                (all().map(|hash| hash % 1024).collect(), all().map(|hash| hash >> 57).collect());
            assert!(low.len() > 550 && high.len() == 128, "{shift}: {} {}", low.len(), high.len());
        }
        assert_eq!(hash.hash_one(7_u32), hash.hash_one(7_u64));
        assert_ne!(hash.hash_one([1_u8, 2]), hash.hash_one([2_u8, 1]));
    }

    #[test]
    fn maps_and_sets_find_what_they_have() {
        let mut map: ByNumber<u32, usize> = ByNumber::default();
        let mut set: Numbers<usize> = Numbers::default();
        for number in (0..3000).step_by(3) {
            assert!(map.insert(number, number as usize).is_none() && set.insert(number as usize));
        }
        for number in 0..3000 {
            let there = number % 3 == 0;
            assert_eq!((map.contains_key(&number), set.contains(&(number as usize))), (there, there));
        }
    }
}
