//! The costs of each stack, tag or size.

use allotment_trace::{Header, Sampling};
use clap::ValueEnum;
use foldhash::HashMap;
use serde::Serialize;

/// The costs of one stack, tag or size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Requests that were satisfied: allocations and resizes.
    pub calls: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Blocks that were freed before the next request.
    pub temporary: u64,
    /// Blocks that are live at the end.
    pub blocks: u64,
    /// Their bytes.
    pub live: u64,
    /// Bytes that were live at the peak of the whole run.
    pub peak: u64,
    /// Blocks that were live then.
    pub peak_blocks: u64,
    /// The peak of its own live bytes.
    pub most: u64,
    /// The peak of its own live blocks.
    pub most_blocks: u64,
    /// The sum of the lifetimes of its blocks in events.
    pub lifetimes: u64,
}

impl Costs {
    /// Adds other costs. The sum of the peaks is an upper bound of the common peak.
    pub fn add(&mut self, other: &Self) {
        let Self { calls, bytes, temporary, blocks, live, peak, peak_blocks, most, most_blocks, lifetimes } =
            self;
        *calls = calls.saturating_add(other.calls);
        *bytes = bytes.saturating_add(other.bytes);
        *temporary = temporary.saturating_add(other.temporary);
        *blocks = blocks.saturating_add(other.blocks);
        *live = live.saturating_add(other.live);
        *peak = peak.saturating_add(other.peak);
        *peak_blocks = peak_blocks.saturating_add(other.peak_blocks);
        *most = most.saturating_add(other.most);
        *most_blocks = most_blocks.saturating_add(other.most_blocks);
        *lifetimes = lifetimes.saturating_add(other.lifetimes);
    }
}

/// One of the costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Bytes that are live at the end
    #[default]
    Live,
    /// Bytes that were live at the peak of the run
    Peak,
    /// All requested bytes
    Bytes,
    /// Requests
    Calls,
    /// Blocks that were freed before the next request
    Temporary,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Live, Self::Peak, Self::Bytes, Self::Calls, Self::Temporary];

    /// Returns the cost that it names.
    pub fn of(self, costs: &Costs) -> u64 {
        match self {
            Self::Live => costs.live,
            Self::Peak => costs.peak,
            Self::Bytes => costs.bytes,
            Self::Calls => costs.calls,
            Self::Temporary => costs.temporary,
        }
    }

    /// Returns its unit: bytes or blocks.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Live | Self::Peak | Self::Bytes => "B",
            Self::Calls => "calls",
            Self::Temporary => "blocks",
        }
    }

    /// Returns the words that follow its number.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Live => "live at the end",
            Self::Peak => "live at the peak",
            Self::Bytes => "asked for in all",
            Self::Calls => "requests",
            Self::Temporary => "freed before the next request",
        }
    }
}

/// The weight of a block: a block of a sample stands for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    pub blocks: u64,
    pub bytes: u64,
}

/// Weighs the blocks of a trace in their order.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    sampling: Option<Sampling>,
    /// The next number to add before rounding down: multiples of the golden ratio, which spread evenly.
    spread: f64,
}

impl Weights {
    pub fn new(header: &Header) -> Self {
        Self { sampling: header.sampling(), spread: 0.5 }
    }

    /// Returns the weight of the next block. Sums of weights have no bias.
    pub fn of(&mut self, size: u64) -> Weight {
        let Some(sampling) = self.sampling else { return Weight { blocks: 1, bytes: size } };
        let weight = sampling.weight(size);
        self.spread = (self.spread + 0.618_033_988_749_895).fract();
        Weight { blocks: (weight + self.spread) as u64, bytes: (weight * size as f64).round() as u64 }
    }
}

/// Numbers values in the order in which they come.
#[derive(Clone)]
pub(super) struct Numbers<T>(pub(super) HashMap<T, u32>);

impl<T: std::hash::Hash + Eq> Numbers<T> {
    pub(super) fn of(&mut self, value: T) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(value).or_insert(next)
    }

    pub(super) fn values(self) -> Vec<T> {
        let mut values: Vec<(T, u32)> = self.0.into_iter().collect();
        values.sort_unstable_by_key(|&(_, number)| number);
        values.into_iter().map(|(value, _)| value).collect()
    }
}

/// The costs of stacks, sizes or tags, numbered from 0, with those at the peak of the whole program.
#[derive(Clone, Default)]
pub(super) struct Ledger {
    pub(super) costs: Vec<Costs>,
    /// The numbers whose costs have changed since the peak.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

impl Ledger {
    /// Returns the costs of a number.
    pub(super) fn of(&mut self, key: u32) -> &mut Costs {
        let index = key as usize;
        if index >= self.costs.len() {
            self.costs.resize(index + 1, Costs::default());
            self.is_changed.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_changed[index], true) {
            self.changed.push(key);
        }
        &mut self.costs[index]
    }

    /// Counts a block that was allocated.
    pub(super) fn begin(&mut self, key: u32, Weight { blocks, bytes }: Weight) {
        let costs = self.of(key);
        costs.calls = costs.calls.saturating_add(blocks);
        costs.bytes = costs.bytes.saturating_add(bytes);
        costs.blocks = costs.blocks.saturating_add(blocks);
        costs.live = costs.live.saturating_add(bytes);
        costs.most = costs.most.max(costs.live);
        costs.most_blocks = costs.most_blocks.max(costs.blocks);
    }

    /// Counts a block that was freed.
    pub(super) fn end(&mut self, key: u32, Weight { blocks, bytes }: Weight, lifetime: u64, temporary: bool) {
        let costs = self.of(key);
        costs.blocks = costs.blocks.saturating_sub(blocks);
        costs.live = costs.live.saturating_sub(bytes);
        costs.lifetimes = costs.lifetimes.saturating_add(lifetime.saturating_mul(blocks));
        costs.temporary += u64::from(temporary);
    }

    /// Notes that more bytes are live now than ever before.
    pub(super) fn peak(&mut self) {
        for key in self.changed.drain(..) {
            let costs = &mut self.costs[key as usize];
            (costs.peak, costs.peak_blocks) = (costs.live, costs.blocks);
            self.is_changed[key as usize] = false;
        }
    }
}
