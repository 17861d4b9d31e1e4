//! Keeps the largest of many values that change one at a time.

#![forbid(unsafe_code)]

use std::vec;
use std::vec::Vec;

/// A tournament tree: every inner node holds the larger of its two children.
///
/// ```text
///            7            1
///        7       2        2   3      node n has the children 2 n and 2 n + 1
///      3   7   2   0      4 5 6 7    the values
/// ```
#[derive(Default)]
pub(super) struct Tournament {
    /// Node 0 is unused.
    nodes: Vec<usize>,
}

impl Tournament {
    /// Makes a tree without values.
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new() }
    }

    /// Sets a value, or adds one. O(log values), less if the nodes above do not change; amortised when the number
    /// of values grows.
    pub(super) fn set(&mut self, number: usize, value: usize) {
        let mut leaves = self.nodes.len() / 2;
        if number >= leaves {
            let values = self.nodes.split_off(leaves);
            leaves = (number + 1).next_power_of_two();
            self.nodes = vec![0; 2 * leaves];
            values.into_iter().enumerate().for_each(|(number, value)| self.set(number, value));
        }
        let mut node = leaves + number;
        let mut larger = value;
        while self.nodes[node] != larger {
            self.nodes[node] = larger;
            if node == 1 {
                break;
            }
            larger = larger.max(self.nodes[node ^ 1]);
            node /= 2;
        }
    }

    /// Returns the largest value, 0 if there is none. O(1).
    pub(super) fn largest(&self) -> usize {
        self.nodes.get(1).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_the_largest() {
        let mut tournament = Tournament::new();
        assert_eq!(tournament.largest(), 0);
        let mut values: Vec<usize> = Vec::new();
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let number = random.usize(..=values.len().min(40));
            let value = random.usize(..50);
            if number == values.len() {
                values.push(value);
            } else {
                values[number] = value;
            }
            tournament.set(number, value);
            assert_eq!(Some(tournament.largest()), values.iter().copied().max());
        }
    }
}
