//! Makes plans of many buffers cheaper: removes some buffers, then places each where it costs the least.

use super::{Cheapest, Priced};
use crate::deadline::{Deadline, Watch};

/// The search ends after this many failed attempts per buffer in a row.
const PATIENCE: usize = 40;

/// Largest number of buffers removed at once.
const MOST: usize = 6;

/// Largest number of places tried for a buffer.
const PLACES: usize = 96;

struct State<'a> {
    priced: &'a Priced<'a>,
    capacity: u64,
    offsets: Vec<Option<u64>>,
    /// For each buffer and stream, the number of that stream's buffers that used its bytes before.
    before: Vec<u32>,
    random: fastrand::Rng,
}

/// Makes a plan cheaper, until `deadline` passes or nothing helps. The plan stays valid within the capacity.
pub(super) fn improve(
    priced: &Priced,
    capacity: u64,
    offsets: Vec<Option<u64>>,
    seed: u64,
    deadline: &Deadline,
) -> Cheapest {
    let n = offsets.len();
    let before = vec![0; n * priced.streams];
    let mut state =
        State { priced, capacity, offsets: vec![None; n], before, random: fastrand::Rng::with_seed(seed) };
    for (k, &offset) in offsets.iter().enumerate() {
        state.put(k, offset);
    }
    let mut watch = Watch::new(deadline);
    let mut total = priced.cost(&state.offsets).total;
    let mut idle = 0;
    while n > 0 && total > 0 && idle < PATIENCE * n {
        let count = state.random.usize(1..=MOST.min(n));
        if watch.passed(count * PLACES * 8 * n + 8 * n) {
            break;
        }
        idle += 1;
        let freed = state.choose(count);
        // Buffers are removed and placed one by one, so that their added costs sum to the cost of all of them together.
        let (mut cost, mut placed) = (0_u64, 0_u64);
        let mut old = Vec::with_capacity(count);
        for &k in &freed {
            let offset = state.offsets[k];
            state.put(k, None);
            cost = state.price(k, offset).saturating_add(cost);
            old.push(offset);
        }
        let mut whole = true;
        for (&k, &offset) in freed.iter().zip(&old) {
            let Some((price, place)) = state.cheapest(k, offset) else {
                whole = false;
                break;
            };
            placed = price.saturating_add(placed);
            state.put(k, place);
        }
        if !whole || placed > cost {
            freed.iter().for_each(|&k| state.put(k, None));
            freed.iter().zip(&old).for_each(|(&k, &offset)| state.put(k, offset));
        } else if placed < cost {
            idle = 0;
            total = priced.cost(&state.offsets).total;
        }
    }
    priced.found(state.offsets, total == 0)
}

impl State<'_> {
    /// Places a buffer; `None` removes it. O(n).
    fn put(&mut self, k: usize, offset: Option<u64>) {
        if let Some(at) = self.offsets[k].take() {
            self.count(k, at, false);
        }
        if let Some(at) = offset {
            self.count(k, at, true);
        }
        self.offsets[k] = offset;
    }

    /// Adds or removes the waits that `k` at `at` causes.
    fn count(&mut self, k: usize, at: u64, lies: bool) {
        let (priced, streams) = (self.priced, self.priced.streams);
        let change = |count: &mut u32| if lies { *count += 1 } else { *count -= 1 };
        for (other, &offset) in self.offsets.iter().enumerate() {
            let Some(there) = offset else { continue };
            if priced.waits((other, there), (k, at)) {
                change(&mut self.before[other * streams + priced.stream[k]]);
            } else if priced.waits((k, at), (other, there)) {
                change(&mut self.before[k * streams + priced.stream[other]]);
            }
        }
    }

    /// Returns the cost that the removed buffer `k` adds at a place, or in the slower memory. O(n).
    fn price(&self, k: usize, place: Option<u64>) -> u64 {
        let (priced, streams) = (self.priced, self.priced.streams);
        let prices = priced.prices;
        let Some(at) = place else {
            return priced.moves[k].unwrap_or(0).saturating_mul(prices.byte);
        };
        let mut waits = vec![false; streams];
        let mut events = 0_u64;
        for (other, &offset) in self.offsets.iter().enumerate() {
            let Some(there) = offset else { continue };
            if priced.waits((k, at), (other, there)) {
                events += u64::from(!std::mem::replace(&mut waits[priced.stream[other]], true));
            } else if priced.waits((other, there), (k, at)) {
                events += u64::from(self.before[other * streams + priced.stream[k]] == 0);
            }
        }
        let beside = priced.together[k].iter().filter_map(|&other| self.offsets[other]);
        let clashes = beside.filter(|&there| priced.clashes(at, there)).count() as u64;
        events.saturating_mul(prices.event).saturating_add(clashes.saturating_mul(prices.clash))
    }

    /// Chooses a buffer that causes a cost, if a few tries find one, and some of its neighbours.
    fn choose(&mut self, count: usize) -> Vec<usize> {
        let (n, streams) = (self.offsets.len(), self.priced.streams);
        let costs = |k: usize| {
            self.offsets[k].is_none()
                || self.before[k * streams..(k + 1) * streams].iter().any(|&count| count > 0)
        };
        let mut first = self.random.usize(..n);
        for _ in 0..8 {
            if costs(first) {
                break;
            }
            first = self.random.usize(..n);
        }
        let mut freed = vec![first];
        let buffers = self.priced.instance.buffers();
        let range = |k: usize| self.offsets[k].map(|at| (at, at + buffers[k].size));
        for _ in 0..8 * count {
            if freed.len() >= count {
                break;
            }
            let k = self.random.usize(..n);
            let near = match (range(first), range(k)) {
                (Some(a), Some(b)) => a.0 < b.1 && b.0 < a.1,
                _ => true,
            };
            if !freed.contains(&k) && (near || self.random.u8(..4) == 0) {
                freed.push(k);
            }
        }
        self.random.shuffle(&mut freed);
        freed
    }

    /// Returns the least cost that the removed buffer `k`, formerly at `old`, adds, and its place at that cost; `None` if it fits
    /// nowhere.
    fn cheapest(&mut self, k: usize, old: Option<u64>) -> Option<(u64, Option<u64>)> {
        let buffers = self.priced.instance.buffers();
        let own = &buffers[k];
        let mut live = Vec::new();
        let mut places = vec![0];
        for (other, &offset) in buffers.iter().zip(&self.offsets) {
            let Some(there) = offset else { continue };
            places.push(there + other.size);
            if own.meets(other) {
                live.push((there, there + other.size));
                // Right below the other buffer, too.
                places.push(there.saturating_sub(own.size) / own.align * own.align);
            }
        }
        if let (Some(banks), true) = (self.priced.prices.banks, !self.priced.together[k].is_empty()) {
            let most = self.capacity / banks.bytes;
            places.extend((0..8).map(|_| self.random.u64(..=most) * banks.bytes));
        }
        self.random.shuffle(&mut places);
        places.truncate(PLACES - 1);
        places.extend(old);
        let mut best = self.priced.moves[k].map(|_| (self.price(k, None), None));
        for place in places {
            let at = place.next_multiple_of(own.align);
            let fits = at.checked_add(own.size).is_some_and(|end| {
                end <= self.capacity && live.iter().all(|&(from, to)| to <= at || end <= from)
            });
            if !fits {
                continue;
            }
            let price = self.price(k, Some(at));
            if best.is_none_or(|(least, place)| {
                price < least || (price == least && place.is_none_or(|place| at < place))
            }) {
                best = Some((price, Some(at)));
            }
        }
        best
    }
}
