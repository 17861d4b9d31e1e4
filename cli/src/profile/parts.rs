//! The costs of each stack, tag and class of sizes together, and their live bytes at moments of the run.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;

use super::costs::{Costs, Ledger, Numbers, Weight};

/// The most moments that are kept.
const MOST: usize = 256;

/// The most changes between moments that are kept while a trace is read.
const CHANGES: usize = 4 << 20;

/// What a part of the costs belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub stack: u32,
    /// An index of [`Parts::tags`].
    pub tag: u32,
    /// The class of its size: 0 for 0, else one more than the logarithm.
    pub class: u32,
}

/// The costs of a run in parts.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    pub parts: Vec<(Part, Costs)>,
    pub tags: Vec<Arc<str>>,
    pub moments: Moments,
}

/// What changed from each moment to the next, about evenly spaced; the last one is the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// The number of events before each.
    pub at: Vec<u64>,
    /// The parts that changed since the moment before, in order, and their live bytes.
    pub changes: Vec<Vec<(u32, u64)>>,
}

impl Moments {
    /// Returns the number of changes.
    pub fn len(&self) -> usize {
        self.changes.iter().map(Vec::len).sum()
    }

    /// Leaves out every second moment, but not the last.
    pub fn halve(&mut self) {
        let count = self.at.len();
        let stays = |n: usize| n % 2 == 1 || n + 1 == count;
        let mut waiting = BTreeMap::new();
        let mut kept = Vec::with_capacity(count / 2 + 1);
        for (n, changes) in std::mem::take(&mut self.changes).into_iter().enumerate() {
            if waiting.is_empty() && stays(n) {
                kept.push(changes);
                continue;
            }
            waiting.extend(changes);
            if stays(n) {
                kept.push(std::mem::take(&mut waiting).into_iter().collect());
            }
        }
        self.changes = kept;
        let mut n = 0;
        self.at.retain(|_| {
            n += 1;
            stays(n - 1)
        });
    }
}

/// Counts parts while events come.
#[derive(Clone)]
pub(super) struct Counter {
    numbers: Numbers<Part>,
    pub(super) ledger: Ledger,
    moments: Moments,
    /// Events from one moment to the next.
    every: u64,
    /// The parts that have changed since the last moment.
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

impl Counter {
    pub(super) fn new() -> Self {
        Self {
            numbers: Numbers(HashMap::default()),
            ledger: Ledger::default(),
            moments: Moments::default(),
            every: 1,
            changed: Vec::new(),
            is_changed: Vec::new(),
        }
    }

    /// Counts a block that was allocated, and returns its part.
    pub(super) fn begin(&mut self, part: Part, weight: Weight) -> u32 {
        let number = self.numbers.of(part);
        self.ledger.begin(number, weight);
        self.change(number);
        number
    }

    /// Counts a block that was freed.
    pub(super) fn end(&mut self, number: u32, weight: Weight, lifetime: u64, temporary: bool) {
        self.ledger.end(number, weight, lifetime, temporary);
        self.change(number);
    }

    fn change(&mut self, number: u32) {
        let index = number as usize;
        if index >= self.is_changed.len() {
            self.is_changed.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.is_changed[index], true) {
            self.changed.push(number);
        }
    }

    /// Notes the moment after `events` events if it is time for one.
    pub(super) fn after(&mut self, events: u64) {
        if !events.is_multiple_of(self.every) {
            return;
        }
        self.note(events);
        while self.moments.at.len() >= MOST || (self.moments.len() > CHANGES && self.moments.at.len() > 16) {
            self.every *= 2;
            self.moments.halve();
        }
    }

    fn note(&mut self, events: u64) {
        let mut changed = std::mem::take(&mut self.changed);
        changed.sort_unstable();
        let live = |number: u32| (number, self.ledger.costs[number as usize].live);
        self.moments.changes.push(changed.iter().map(|&number| live(number)).collect());
        self.moments.at.push(events);
        for number in changed {
            self.is_changed[number as usize] = false;
        }
    }

    pub(super) fn finish(mut self, events: u64, tags: Vec<Arc<str>>) -> Parts {
        if self.moments.at.last() != Some(&events) {
            self.note(events);
        }
        let parts = self.numbers.values().into_iter().zip(self.ledger.costs).collect();
        Parts { parts, tags, moments: self.moments }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The live bytes of a part after an event, from the changes up to the last moment before.
    fn live_at(moments: &Moments, part: u32, events: u64) -> u64 {
        let known = moments.at.iter().zip(&moments.changes).take_while(|&(&at, _)| at <= events);
        known
            .flat_map(|(_, changes)| changes)
            .filter(|change| change.0 == part)
            .last()
            .map_or(0, |change| change.1)
    }

    #[test]
    fn moments_are_few_and_exact() {
        for count in [1, 255, 256, 257, 5000, 100_001] {
            let mut counter = Counter::new();
            let part = |class| Part { stack: 0, tag: 0, class };
            let mut live = vec![[0; 2]];
            for event in 1..=count {
                let class = u32::from(event % 3 == 0);
                counter.begin(part(class), Weight { blocks: 1, bytes: event });
                let mut now = live[live.len() - 1];
                now[class as usize] += event;
                live.push(now);
                counter.after(event);
            }
            let parts = counter.finish(count, vec![]);
            let number = |class| parts.parts.iter().position(|each| each.0.class == class);
            let moments = &parts.moments;
            assert!(
                moments.at.len() <= MOST && moments.at.len() as u64 >= count.min(MOST as u64 / 2),
                "{count}"
            );
            assert_eq!((moments.at.len(), moments.at.last()), (moments.changes.len(), Some(&count)));
            let mut halved = moments.clone();
            halved.halve();
            assert_eq!(halved.at.len(), moments.at.len().div_ceil(2), "{count}");
            for moments in [moments, &halved] {
                for &at in &moments.at {
                    for class in 0..2 {
                        let found = number(class).map_or(0, |part| live_at(moments, part as u32, at));
                        assert_eq!(found, live[at as usize][class as usize], "{count} events, after {at}");
                    }
                }
            }
        }
    }
}
