//! Prices the reuse of memory: events between streams, clashes of banks, moves to a slower memory.
//!
//! The smallest peak is not always the cheapest plan. A buffer that reuses the bytes of another stream must wait for that stream's event;
//! buffers that one operator uses together are slower if they start in one bank; and a buffer can be kept in a slower memory, at the
//! price of moving its bytes there and back. [`cheapest`] finds the cheapest plan within a capacity, and [`curve`] the costs at several
//! capacities.

mod exact;
mod search;

use std::time::Duration;

use crate::deadline::Deadline;
use crate::exact::Limits;
use crate::model::Instance;
use crate::solve::{Options, solve_within};

/// The prices, all in one unit of your choice, such as nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// The price of one event: a buffer waits once for each other stream that used any of its bytes before.
    pub event: u64,
    /// The price of one clash: two buffers that are used together and start in one bank.
    pub clash: u64,
    /// The price of each byte moved to the slower memory or back.
    pub byte: u64,
    /// The memory's banks; `None` if it has none.
    pub banks: Option<Banks>,
}

/// Memory in banks: address `a` lies in bank `a / bytes % count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Banks {
    /// Number of banks, at least 1.
    pub count: u64,
    /// Bytes in a row that lie in one bank, at least 1.
    pub bytes: u64,
}

/// The uses of the buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The stream or core of each buffer; no entry stands for 0.
    pub streams: Vec<u32>,
    /// Pairs of buffers (indices) that are used together.
    pub together: Vec<(usize, usize)>,
    /// For each buffer, the bytes moved if it is kept in the slower memory; `None` or no entry if it cannot be.
    pub moves: Vec<Option<u64>>,
}

/// An instance with prices.
#[derive(Clone, Debug)]
pub struct Priced<'a> {
    instance: &'a Instance,
    prices: Prices,
    /// For each buffer, the number of its stream, counted without gaps.
    stream: Vec<usize>,
    streams: usize,
    moves: Vec<Option<u64>>,
    /// For each buffer, the buffers used together with it.
    together: Vec<Vec<usize>>,
}

/// Why an instance cannot be priced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// A buffer has gaps, a fixed offset or a shared place, or is not in tier 0.
    #[error(
        "buffer `{0}` is more than a rectangle of tier 0: prices are for buffers without gaps, fixed offsets and shared places"
    )]
    Shape(String),
    /// A pair names a buffer that does not exist.
    #[error("a pair that is used together names buffer {0}, which is not there")]
    Pair(usize),
    /// The number or the size of the banks is zero.
    #[error("there must be at least one bank of at least one byte")]
    Banks,
}

/// The costs of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Cost {
    /// Number of events.
    pub events: u64,
    /// Number of clashes.
    pub clashes: u64,
    /// Bytes moved.
    pub moved: u64,
    /// The sum of all three at their prices.
    pub total: u64,
}

/// The cheapest plan found within a capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cheapest {
    /// The offset of each buffer; `None` if it is in the slower memory.
    pub offsets: Vec<Option<u64>>,
    /// The highest end of a buffer in the fast memory, in bytes.
    pub peak: u64,
    /// The plan's costs.
    pub cost: Cost,
    /// Whether the plan is proved to be the cheapest within the capacity.
    pub optimal: bool,
}

impl<'a> Priced<'a> {
    /// Puts prices on the uses of an instance's buffers. O(n log n).
    ///
    /// # Errors
    /// [`PriceError`] if a buffer is more than a rectangle, or a pair or the banks are invalid.
    pub fn new(instance: &'a Instance, uses: &Uses, prices: Prices) -> Result<Self, PriceError> {
        let buffers = instance.buffers();
        if let Some(buffer) = buffers.iter().find(|buffer| !buffer.is_plain() || buffer.tier != 0) {
            return Err(PriceError::Shape(buffer.id.clone()));
        }
        if prices.banks.is_some_and(|banks| banks.count == 0 || banks.bytes == 0) {
            return Err(PriceError::Banks);
        }
        let stream: Vec<u32> =
            (0..buffers.len()).map(|n| uses.streams.get(n).copied().unwrap_or(0)).collect();
        let mut names = stream.clone();
        names.sort_unstable();
        names.dedup();
        let number = |stream: &u32| names.binary_search(stream).unwrap_or(0);
        let mut together = vec![Vec::new(); buffers.len()];
        for &(a, b) in &uses.together {
            if let Some(&wrong) = [a, b].iter().find(|&&n| n >= buffers.len()) {
                return Err(PriceError::Pair(wrong));
            }
            if a != b && !together[a].contains(&b) {
                together[a].push(b);
                together[b].push(a);
            }
        }
        Ok(Self {
            instance,
            prices,
            stream: stream.iter().map(number).collect(),
            streams: names.len(),
            moves: (0..buffers.len()).map(|n| uses.moves.get(n).copied().flatten()).collect(),
            together,
        })
    }

    /// Returns whether `b`, at these offsets, reuses bytes that `a` used before on another stream.
    fn waits(&self, (b, at): (usize, u64), (a, before): (usize, u64)) -> bool {
        let (later, earlier) = (&self.instance.buffers()[b], &self.instance.buffers()[a]);
        self.stream[a] != self.stream[b]
            && earlier.is_ever_live()
            && later.is_ever_live()
            && earlier.end <= later.start
            && earlier.start < later.end
            && at < before + earlier.size
            && before < at + later.size
    }

    fn bank(&self, offset: u64) -> u64 {
        self.prices.banks.map_or(offset, |banks| offset / banks.bytes % banks.count)
    }

    fn clashes(&self, a: u64, b: u64) -> bool {
        self.prices.banks.is_some() && self.bank(a) == self.bank(b)
    }

    /// Returns the cost of a plan. O(n²).
    pub fn cost(&self, offsets: &[Option<u64>]) -> Cost {
        let mut cost = Cost::default();
        let mut waits = vec![false; self.streams];
        for (b, &place) in offsets.iter().enumerate() {
            let Some(at) = place else {
                cost.moved = cost.moved.saturating_add(self.moves[b].unwrap_or(0));
                continue;
            };
            waits.fill(false);
            for (a, &before) in offsets.iter().enumerate() {
                if before.is_some_and(|before| self.waits((b, at), (a, before))) {
                    waits[self.stream[a]] = true;
                }
            }
            cost.events += waits.iter().filter(|&&waits| waits).count() as u64;
            let others = self.together[b].iter().filter(|&&other| other < b);
            cost.clashes += others
                .filter(|&&other| offsets[other].is_some_and(|there| self.clashes(at, there)))
                .count() as u64;
        }
        self.summed(cost)
    }

    fn summed(&self, cost: Cost) -> Cost {
        let Prices { event, clash, byte, .. } = self.prices;
        let each = [(cost.events, event), (cost.clashes, clash), (cost.moved, byte)];
        Cost {
            total: each
                .iter()
                .map(|&(count, price)| count.saturating_mul(price))
                .fold(0, u64::saturating_add),
            ..cost
        }
    }

    fn found(&self, offsets: Vec<Option<u64>>, optimal: bool) -> Cheapest {
        let ends = self
            .instance
            .buffers()
            .iter()
            .zip(&offsets)
            .filter_map(|(buffer, offset)| Some((*offset)? + buffer.size));
        Cheapest { peak: ends.max().unwrap_or(0), cost: self.cost(&offsets), offsets, optimal }
    }
}

/// Largest number of buffers for which the search is exact.
const EXACT: usize = 12;

/// Node limit of the exact search.
const NODES: u64 = 2_000_000;

/// Finds the cheapest plan within `capacity` bytes: exactly for up to 12 buffers, otherwise by a local search from a plan with a low
/// peak. Returns `None` if it finds no plan within the capacity.
///
/// `options` gives the seed and threads of the search for a plan; its capacity and time limit are not used.
pub fn cheapest(priced: &Priced, capacity: u64, options: &Options, deadline: &Deadline) -> Option<Cheapest> {
    cheapest_from(priced, capacity, options, deadline, None)
}

fn cheapest_from(
    priced: &Priced,
    capacity: u64,
    options: &Options,
    deadline: &Deadline,
    known: Option<&Cheapest>,
) -> Option<Cheapest> {
    // No plan needs more.
    let capacity = capacity.min(i64::MAX as u64);
    let start = match known {
        Some(known) => Some(known.offsets.clone()),
        None => start(priced, capacity, options, &share(deadline, 4)),
    };
    let mut best = start.map(|offsets| search::improve(priced, capacity, offsets, options.seed, deadline));
    if priced.instance.len() <= EXACT {
        let limits = Limits { nodes: NODES, deadline };
        let (better, proved) =
            exact::search(priced, capacity, best.as_ref().map(|best| best.cost.total), &limits);
        if let Some(offsets) = better {
            best = Some(priced.found(offsets, proved));
        } else if let Some(best) = &mut best {
            best.optimal = proved;
        }
    }
    best
}

/// Returns a deadline after one `parts`-th of the time left, or after a second if there is no limit.
fn share(deadline: &Deadline, parts: u32) -> Deadline {
    if deadline.is_never() { deadline.within(Duration::from_secs(1)) } else { deadline.part(parts) }
}

/// Returns a plan within the capacity by simple rules that move few bytes to the slower memory.
fn start(priced: &Priced, capacity: u64, options: &Options, deadline: &Deadline) -> Option<Vec<Option<u64>>> {
    let instance = priced.instance;
    let mut inside: Vec<usize> = (0..instance.len()).collect();
    loop {
        let part = instance.part(&inside);
        let options = Options { capacity: Some(capacity), ..options.clone() };
        let plan = solve_within(&part, &options, share(deadline, 2), None);
        if plan.peak <= capacity {
            let mut offsets = vec![None; instance.len()];
            inside.iter().zip(plan.offsets).for_each(|(&n, offset)| offsets[n] = Some(offset));
            return Some(offsets);
        }
        // Move out the buffer that relieves the tightest moment most for its price.
        let live = plan.bound.buffers.iter().map(|&k| inside[k]).filter(|&n| instance.buffers()[n].size > 0);
        let price = |n: usize| {
            Some(
                priced.moves[n]?.saturating_mul(priced.prices.byte) as f64
                    / instance.buffers()[n].size as f64,
            )
        };
        let leaves = live.filter_map(|n| Some((price(n)?, n))).min_by(|a, b| a.0.total_cmp(&b.0))?;
        inside.retain(|&n| n != leaves.1);
    }
}

/// Finds the cheapest plans at up to `points` capacities, from the least peak found to the sum of all buffers. The cost never rises with
/// the capacity.
pub fn curve(priced: &Priced, points: u64, options: &Options, deadline: &Deadline) -> Vec<(u64, Cheapest)> {
    let instance = priced.instance;
    let options = Options { capacity: None, ..options.clone() };
    let least = solve_within(instance, &options, share(deadline, 4), None);
    let most: u64 = instance.buffers().iter().map(|buffer| buffer.size.next_multiple_of(buffer.align)).sum();
    let points = points.max(2);
    let mut found: Vec<(u64, Cheapest)> = Vec::new();
    let mut known = priced.found(least.offsets.iter().copied().map(Some).collect(), false);
    for point in 0..points {
        // Space the capacities more closely where memory is short.
        let way = (point as f64 / (points - 1) as f64).powi(2);
        let times = (most.max(1) as f64 / least.peak.max(1) as f64).powf(way);
        let capacity = if point + 1 == points { most } else { (least.peak as f64 * times) as u64 };
        let capacity = capacity.max(least.peak);
        let deadline = share(deadline, (points - point) as u32);
        match cheapest_from(priced, capacity, &options, &deadline, Some(&known)) {
            Some(plan) if plan.cost.total <= known.cost.total => known = plan,
            _ => {}
        }
        let free = known.cost.total == 0;
        match found.last_mut() {
            // Extend the last point if more memory buys nothing.
            Some((last, plan)) if plan.cost == known.cost => {
                *last = capacity;
                plan.optimal = known.optimal;
            }
            _ => found.push((capacity, known.clone())),
        }
        if free {
            break;
        }
    }
    found
}
