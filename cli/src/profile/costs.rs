//! What is counted for each stack, tag or size.

use clap::ValueEnum;
use serde::Serialize;

/// The costs of one stack, tag or size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Requests that were served: allocations and resizes.
    pub calls: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// Blocks that were freed before the next request.
    pub temporary: u64,
    /// Blocks that are live at the end.
    pub blocks: u64,
    /// Their bytes.
    pub live: u64,
    /// Bytes that were live when the most were, in the whole run; and blocks.
    pub peak: u64,
    /// Blocks that were live then.
    pub peak_blocks: u64,
    /// The most bytes of this one that were live at once.
    pub most: u64,
    /// The most blocks of this one that were live at once.
    pub most_blocks: u64,
    /// The sum of the lifetimes of its blocks in events.
    pub lifetimes: u64,
}

impl Costs {
    /// Adds the costs of another one; the most of both is not more than the sum.
    pub fn add(&mut self, other: &Self) {
        let Self { calls, bytes, temporary, blocks, live, peak, peak_blocks, most, most_blocks, lifetimes } =
            self;
        *calls += other.calls;
        *bytes = bytes.saturating_add(other.bytes);
        *temporary += other.temporary;
        *blocks += other.blocks;
        *live += other.live;
        *peak += other.peak;
        *peak_blocks += other.peak_blocks;
        *most = most.saturating_add(other.most);
        *most_blocks += other.most_blocks;
        *lifetimes = lifetimes.saturating_add(other.lifetimes);
    }
}

/// One of the costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Bytes that are live at the end
    #[default]
    Live,
    /// Bytes that were live when the most were
    Peak,
    /// All bytes that were asked for
    Bytes,
    /// Requests
    Calls,
    /// Blocks that were freed before the next request
    Temporary,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Live, Self::Peak, Self::Bytes, Self::Calls, Self::Temporary];

    /// Returns this one of the costs.
    pub fn of(self, costs: &Costs) -> u64 {
        match self {
            Self::Live => costs.live,
            Self::Peak => costs.peak,
            Self::Bytes => costs.bytes,
            Self::Calls => costs.calls,
            Self::Temporary => costs.temporary,
        }
    }

    /// Returns what a number of it is: bytes, or blocks.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Live | Self::Peak | Self::Bytes => "B",
            Self::Calls => "calls",
            Self::Temporary => "blocks",
        }
    }

    /// Returns what it is, behind a number.
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

/// Costs by dense numbers, with those at the peak of the whole.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) costs: Vec<Costs>,
    /// Those that have changed since the peak.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

impl Ledger {
    /// Returns the costs of a number, to be changed.
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

    /// A block of so many bytes is live from now on.
    pub(super) fn begin(&mut self, key: u32, size: u64) {
        let costs = self.of(key);
        costs.calls += 1;
        costs.bytes = costs.bytes.saturating_add(size);
        costs.blocks += 1;
        costs.live += size;
        costs.most = costs.most.max(costs.live);
        costs.most_blocks = costs.most_blocks.max(costs.blocks);
    }

    /// A block of so many bytes is not live any more.
    pub(super) fn end(&mut self, key: u32, size: u64, lifetime: u64, temporary: bool) {
        let costs = self.of(key);
        costs.blocks -= 1;
        costs.live -= size;
        costs.lifetimes = costs.lifetimes.saturating_add(lifetime);
        costs.temporary += u64::from(temporary);
    }

    /// More bytes are live now than ever before.
    pub(super) fn peak(&mut self) {
        for key in self.changed.drain(..) {
            let costs = &mut self.costs[key as usize];
            (costs.peak, costs.peak_blocks) = (costs.live, costs.blocks);
            self.is_changed[key as usize] = false;
        }
    }
}
