//! Greedy packing from below for instances of any size.
//!
//! The skyline's lowest valley is filled with buffers whose lifetimes it contains, or levelled with its lower neighbour
//! where none is left. Time grows with n log n whatever the number of conflicts, and memory with n.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::exact::Limits;
use crate::model::Instance;
use crate::sections::Sections;

/// What is placed first in a valley.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// At the valley's left end, the longest lifetime.
    Leftmost,
    /// The longest lifetime anywhere in the valley.
    Longest,
}

/// A run of sections of one height.
#[derive(Clone, Copy)]
struct Run {
    end: u32,
    height: u64,
    before: u32,
}

/// For each section the unplaced buffers that start there, and over the sections a tree of what is asked for.
struct Unplaced {
    /// By first section: (last section, tie, buffer).
    starts: Vec<BTreeSet<(u32, u64, u32)>>,
    /// A segment tree of the smallest `last` of each section.
    earliest: Vec<u32>,
    /// The same of the longest lifetime.
    longest: Vec<u32>,
    leaves: usize,
}

impl Unplaced {
    fn update(&mut self, section: usize) {
        let set = &self.starts[section];
        let mut n = section + self.leaves;
        self.earliest[n] = set.first().map_or(u32::MAX, |&(last, ..)| last);
        self.longest[n] = set.last().map_or(0, |&(last, ..)| last - section as u32);
        while n > 1 {
            n /= 2;
            self.earliest[n] = self.earliest[2 * n].min(self.earliest[2 * n + 1]);
            self.longest[n] = self.longest[2 * n].max(self.longest[2 * n + 1]);
        }
    }

    /// The first section of `lo..hi` at which something starts that ends by `hi`.
    fn first(&self, lo: u32, hi: u32) -> Option<u32> {
        self.descend(1, 0, self.leaves, lo as usize, hi as usize)
    }

    fn descend(&self, n: usize, start: usize, end: usize, lo: usize, hi: usize) -> Option<u32> {
        if end <= lo || hi <= start || self.earliest[n] as usize > hi {
            return None;
        }
        if end - start == 1 {
            return Some(start as u32);
        }
        let middle = (start + end) / 2;
        self.descend(2 * n, start, middle, lo, hi).or_else(|| self.descend(2 * n + 1, middle, end, lo, hi))
    }

    /// The longest lifetime within `lo..hi`: its first section and its entry. Gives up (with what it has) after a
    /// number of steps.
    fn longest(&self, lo: u32, hi: u32) -> Option<(u32, (u32, u64, u32))> {
        let mut heap = BinaryHeap::new();
        let mut best: Option<(u32, (u32, u64, u32))> = None;
        let length =
            |best: &Option<(u32, (u32, u64, u32))>| best.map_or(0, |(first, (last, ..))| last - first);
        heap.push((self.longest[1], 1_usize, 0_usize, self.leaves));
        let mut steps = 0;
        while let Some((bound, n, start, end)) = heap.pop() {
            if bound <= length(&best) || steps > 200 {
                break;
            }
            steps += 1;
            let outside = end <= lo as usize || hi as usize <= start;
            if outside || self.earliest[n] > hi {
                continue;
            }
            if end - start == 1 {
                if let Some(&entry) = self.starts[start].range(..(hi + 1, 0, 0)).next_back() {
                    if entry.0 - start as u32 > length(&best) {
                        best = Some((start as u32, entry));
                    }
                }
                continue;
            }
            let middle = (start + end) / 2;
            heap.push((self.longest[2 * n], 2 * n, start, middle));
            heap.push((self.longest[2 * n + 1], 2 * n + 1, middle, end));
        }
        best.or_else(|| {
            let first = self.first(lo, hi)?;
            Some((first, *self.starts[first as usize].range(..(hi + 1, 0, 0)).next_back()?))
        })
    }
}

/// How a packing is made.
#[derive(Clone, Copy, Debug)]
pub struct Descent {
    /// What goes first.
    pub prefer: Prefer,
    /// Time runs backwards.
    pub mirror: bool,
    /// Of this many choices in 256 one is the second best; with the seed of the chance.
    pub noise: Option<(u8, u64)>,
}

/// Packs a plain instance; `None` if `limits` came first (nodes are not counted). O(n log n) expected.
pub fn descend(instance: &Instance, descent: Descent, limits: &Limits) -> Option<Vec<u64>> {
    let Descent { prefer, mirror, noise } = descent;
    let mut random = noise.map(|(noise, seed)| (noise, fastrand::Rng::with_seed(seed)));
    let mut steps = 0_u32;
    let buffers = instance.buffers();
    let lifetimes = buffers.iter().map(|b| if mirror { (-b.end, -b.start) } else { (b.start, b.end) });
    let sections = Sections::new(lifetimes);
    let count = sections.count;
    let mut offsets = vec![0; buffers.len()];
    if count == 0 {
        return Some(offsets);
    }
    let leaves = count.next_power_of_two();
    let mut unplaced = Unplaced {
        starts: vec![BTreeSet::new(); count],
        earliest: vec![u32::MAX; 2 * leaves],
        longest: vec![0; 2 * leaves],
        leaves,
    };
    for (n, buffer) in buffers.iter().enumerate() {
        unplaced.starts[sections.first[n] as usize].insert((sections.last[n], buffer.size, n as u32));
    }
    (0..count).for_each(|section| unplaced.update(section));
    // Runs by their first section; `end == 0` marks what is none. A heap finds the lowest.
    let none = Run { end: 0, height: 0, before: 0 };
    let mut runs = vec![none; count + 1];
    runs[0] = Run { end: count as u32, height: 0, before: u32::MAX };
    let mut heap = BinaryHeap::from([Reverse((0_u64, 0_u32))]);
    while let Some(Reverse((height, start))) = heap.pop() {
        steps += 1;
        if steps.is_multiple_of(4096) && limits.over() {
            return None;
        }
        let run = runs[start as usize];
        if run.end == 0 || run.height != height {
            continue;
        }
        let found = match prefer {
            Prefer::Leftmost => unplaced.first(start, run.end).and_then(|first| {
                Some((first, *unplaced.starts[first as usize].range(..(run.end + 1, 0, 0)).next_back()?))
            }),
            Prefer::Longest => unplaced.longest(start, run.end),
        };
        let Some((first, entry)) = found else {
            // Level it with its lower neighbour.
            let left = (run.before != u32::MAX).then(|| runs[run.before as usize].height);
            let right = ((run.end as usize) < count).then(|| runs[run.end as usize].height);
            let level = match (left, right) {
                (None, None) => break,
                (Some(level), None) | (None, Some(level)) => level,
                (Some(left), Some(right)) => left.min(right),
            };
            let (mut start, mut merged) = (start, Run { height: level, ..run });
            if right == Some(level) {
                let next = std::mem::replace(&mut runs[run.end as usize], none);
                merged.end = next.end;
            }
            if left == Some(level) {
                runs[start as usize] = none;
                start = run.before;
                merged.before = runs[start as usize].before;
            }
            runs[start as usize] = merged;
            if (merged.end as usize) < count {
                runs[merged.end as usize].before = start;
            }
            heap.push(Reverse((level, start)));
            continue;
        };
        let mut entry = entry;
        if let Some((noise, random)) = &mut random {
            if random.u8(..) < *noise {
                entry = unplaced.starts[first as usize].range(..entry).next_back().copied().unwrap_or(entry);
            }
        }
        let (last, _, n) = entry;
        unplaced.starts[first as usize].remove(&entry);
        unplaced.update(first as usize);
        let buffer = &buffers[n as usize];
        let offset = height.next_multiple_of(buffer.align);
        offsets[n as usize] = offset;
        // Cut the run in up to three. Equal neighbours are not merged here: levelling does it.
        let mut before = run.before;
        let mut put = |from: u32, to: u32, height: u64| {
            if from < to {
                runs[from as usize] = Run { end: to, height, before };
                heap.push(Reverse((height, from)));
                before = from;
            }
        };
        put(start, first, height);
        put(first, last, offset + buffer.size);
        put(last, run.end, height);
        if (run.end as usize) < count {
            runs[run.end as usize].before = before;
        }
    }
    Some(offsets)
}
