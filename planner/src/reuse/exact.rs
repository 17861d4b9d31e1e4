//! Finds the cheapest plan of a few buffers and proves it.
//!
//! In a cheapest plan with the least sum of offsets, no buffer can be lowered by its alignment: each lies at offset 0, at the end of
//! another (whether or not the two are ever live together), or at the start of a bank. The search places buffers at such places only, in
//! the order of their offsets. Placing a buffer never lowers the cost, which prunes the tree.

use std::cell::RefCell;

use super::Priced;
use crate::deadline::Watch;
use crate::exact::Limits;

struct State<'a> {
    priced: &'a Priced<'a>,
    capacity: u64,
    offsets: Vec<Option<u64>>,
    left: Vec<bool>,
    /// The cost to beat.
    goal: Option<u64>,
    best: Option<Vec<Option<u64>>>,
    nodes: u64,
    limits: &'a Limits<'a>,
    watch: RefCell<Watch<'a>>,
}

/// Looks for a plan cheaper than `known`. Returns it, if found, and whether the better of the two is proved to be the cheapest.
pub(super) fn search(
    priced: &Priced,
    capacity: u64,
    known: Option<u64>,
    limits: &Limits,
) -> (Option<Vec<Option<u64>>>, bool) {
    let n = priced.instance.len();
    let mut state = State {
        priced,
        capacity,
        offsets: vec![None; n],
        left: vec![true; n],
        goal: known,
        best: None,
        nodes: 0,
        limits,
        watch: RefCell::new(Watch::new(limits.deadline)),
    };
    let proved = state.choose_moved(0);
    (state.best, proved)
}

impl State<'_> {
    /// Decides which of the buffers from `n` on to move, then places the others. Returns false if a limit was reached.
    fn choose_moved(&mut self, n: usize) -> bool {
        let Some(moved) = self.priced.moves.get(n) else {
            return self.place(0, 0);
        };
        let kept = self.choose_moved(n + 1);
        if !kept || moved.is_none() {
            return kept;
        }
        self.left[n] = false;
        let done = self.choose_moved(n + 1);
        self.left[n] = true;
        done
    }

    /// Returns the cost of the decisions so far.
    fn cost(&self) -> u64 {
        let moved = |n: usize| if self.left[n] { 0 } else { self.priced.moves[n].unwrap_or(0) };
        let mut cost = self.priced.cost(&self.offsets);
        let away = (0..self.left.len()).filter(|&n| self.offsets[n].is_none()).map(moved);
        cost.moved = away.fold(0, u64::saturating_add);
        self.priced.summed(cost).total
    }

    /// Places another buffer at or above `last`; at `last` itself, only buffers numbered `rank` or higher.
    fn place(&mut self, last: u64, rank: usize) -> bool {
        self.nodes += 1;
        let n = self.offsets.len();
        if self.nodes > self.limits.nodes || self.watch.borrow_mut().passed(8 * n * n + 50) {
            return false;
        }
        let cost = self.cost();
        if self.goal.is_some_and(|goal| cost >= goal) {
            return true;
        }
        let buffers = self.priced.instance.buffers();
        let unplaced: Vec<usize> = (0..n).filter(|&k| self.left[k] && self.offsets[k].is_none()).collect();
        if unplaced.is_empty() {
            self.goal = Some(cost);
            self.best = Some(self.offsets.clone());
            return true;
        }
        let mut places = vec![0, last];
        places.extend((0..n).filter_map(|k| Some(self.offsets[k]? + buffers[k].size)));
        if let (Some(banks), true) = (self.priced.prices.banks, self.priced.prices.clash > 0) {
            let starts = (last / banks.bytes..=self.capacity / banks.bytes).map(|bank| bank * banks.bytes);
            places.extend(starts.take(4096));
        }
        let mut choices: Vec<(u64, usize)> = Vec::new();
        for &k in &unplaced {
            let at = places.iter().map(|place| place.next_multiple_of(buffers[k].align));
            choices.extend(
                at.filter(|&at| at >= last && at + buffers[k].size <= self.capacity).map(|at| (at, k)),
            );
        }
        choices.sort_unstable();
        choices.dedup();
        for (at, k) in choices {
            if (at == last && k < rank) || !self.free(k, at) {
                continue;
            }
            self.offsets[k] = Some(at);
            let done = self.place(at, k + 1);
            self.offsets[k] = None;
            if !done {
                return false;
            }
        }
        true
    }

    fn free(&self, k: usize, at: u64) -> bool {
        let buffers = self.priced.instance.buffers();
        let own = &buffers[k];
        buffers.iter().zip(&self.offsets).all(|(other, &there)| {
            let apart = !own.meets(other);
            there.is_none_or(|there| apart || at + own.size <= there || there + other.size <= at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::search;
    use crate::deadline::Deadline;
    use crate::exact::Limits;
    use crate::model::{Buffer, Instance};
    use crate::reuse::{Banks, Priced, Prices, Uses};

    /// Returns the least cost of two buffers within 8 B, by the exact search alone.
    fn least(second: (i64, i64), prices: Prices) -> Option<u64> {
        let buffers = vec![Buffer::new("a", 2, 0, 1), Buffer::new("b", 1, second.0, second.1)];
        let instance = Instance::new(buffers).unwrap();
        let uses = Uses { streams: vec![0, 1], together: vec![(0, 1)], ..Uses::default() };
        let priced = Priced::new(&instance, &uses, prices).unwrap();
        let never = Deadline::never();
        let (found, proved) = search(&priced, 8, None, &Limits { nodes: 10_000, deadline: &never });
        assert!(proved);
        Some(priced.cost(&found?).total)
    }

    #[test]
    fn ends_of_buffers_that_are_gone_and_starts_of_banks_are_places() {
        // At the end of a buffer that is no longer live, so that nothing waits.
        assert_eq!(least((1, 2), Prices { event: 5, ..Prices::default() }), Some(0));
        // At the start of the other bank.
        let banks = Some(Banks { count: 2, bytes: 4 });
        assert_eq!(least((0, 1), Prices { clash: 3, banks, ..Prices::default() }), Some(0));
        let banks = Some(Banks { count: 1, bytes: 4 });
        assert_eq!(least((0, 1), Prices { clash: 3, banks, ..Prices::default() }), Some(3));
    }
}
