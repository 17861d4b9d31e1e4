//! Greedy packing from below for instances of any size.
//!
//! The skyline's lowest valley is filled with buffers whose lifetimes it contains, or levelled with its lower neighbour if
//! none is left. Time: O(n log n) for any number of conflicts. Memory: O(n).

use std::collections::BinaryHeap;

use crate::deadline::{Deadline, Watch};
use crate::model::Instance;
use crate::sections::Sections;

/// The rule for the first buffer in a valley.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// The longest lifetime at the valley's left end.
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

/// For each section, the unplaced buffers that start there, and trees over the sections that answer queries.
///
/// The buffers lie in one array, by section and then by end, size and number. Links in both directions skip buffers that
/// are already placed; they are shortened as they are followed (Tarjan, *Efficiency of a good but not linear set union
/// algorithm*, 1975).
struct Unplaced {
    /// The first slot of each section, then the number of slots.
    begin: Vec<u32>,
    /// The buffer of each slot, and the section after its last.
    buffer: Vec<u32>,
    end: Vec<u32>,
    /// For slot `k`, at `k + 1`: one more than the nearest unplaced slot at or below it, or 0 if there is none.
    below: Vec<u32>,
    /// For slot `k`, at `k`: the nearest unplaced slot at or above it, or the number of slots if there is none.
    above: Vec<u32>,
    /// A segment tree of the earliest end of the buffers that start in each section.
    earliest: Vec<u32>,
    /// A segment tree of the longest lifetime of the buffers that start in each section.
    longest: Vec<u32>,
    leaves: usize,
}

fn follow(links: &mut [u32], mut at: u32) -> u32 {
    while links[at as usize] != at {
        let next = links[links[at as usize] as usize];
        links[at as usize] = next;
        at = next;
    }
    at
}

impl Unplaced {
    /// Adds the buffers `members`.
    fn new(
        sections: &Sections,
        members: impl Iterator<Item = u32> + Clone,
        size: impl Fn(u32) -> u64,
    ) -> Self {
        let slots = members.clone().count() as u32;
        let mut begin = vec![0_u32; sections.count + 1];
        for n in members.clone() {
            begin[sections.first[n as usize] as usize + 1] += 1;
        }
        for s in 0..sections.count {
            begin[s + 1] += begin[s];
        }
        let mut free = begin.clone();
        let mut buffer = vec![0; slots as usize];
        for n in members {
            let first = sections.first[n as usize] as usize;
            buffer[free[first] as usize] = n;
            free[first] += 1;
        }
        for s in 0..sections.count {
            let own = &mut buffer[begin[s] as usize..begin[s + 1] as usize];
            own.sort_unstable_by_key(|&n| (sections.last[n as usize], size(n), n));
        }
        let end = buffer.iter().map(|&n| sections.last[n as usize]).collect();
        let leaves = sections.count.next_power_of_two();
        let mut unplaced = Self {
            begin,
            buffer,
            end,
            below: (0..=slots).collect(),
            above: (0..=slots).collect(),
            earliest: vec![u32::MAX; 2 * leaves],
            longest: vec![0; 2 * leaves],
            leaves,
        };
        for s in 0..sections.count {
            unplaced.leaf(s);
        }
        for n in (1..leaves).rev() {
            unplaced.join(n);
        }
        unplaced
    }

    fn leaf(&mut self, section: usize) {
        let (begin, end) = (self.begin[section], self.begin[section + 1]);
        let first = follow(&mut self.above, begin);
        let (mut earliest, mut longest) = (u32::MAX, 0);
        if first < end {
            earliest = self.end[first as usize];
            let last = follow(&mut self.below, end) - 1;
            longest = self.end[last as usize] - section as u32;
        }
        self.earliest[section + self.leaves] = earliest;
        self.longest[section + self.leaves] = longest;
    }

    fn join(&mut self, n: usize) {
        self.earliest[n] = self.earliest[2 * n].min(self.earliest[2 * n + 1]);
        self.longest[n] = self.longest[2 * n].max(self.longest[2 * n + 1]);
    }

    /// Removes the placed buffer of `slot`, which starts at `section`. O(log n).
    fn remove(&mut self, section: u32, slot: u32) {
        self.below[slot as usize + 1] = slot;
        self.above[slot as usize] = slot + 1;
        self.leaf(section as usize);
        let mut n = section as usize + self.leaves;
        while n > 1 {
            n /= 2;
            self.join(n);
        }
    }

    /// Returns the last unplaced slot below `slot` that starts at `section`.
    fn before(&mut self, section: u32, slot: u32) -> Option<u32> {
        let found = follow(&mut self.below, slot);
        (found > self.begin[section as usize]).then(|| found - 1)
    }

    /// Returns the last unplaced slot that starts at `section` and ends by `hi`.
    fn latest(&mut self, section: u32, hi: u32) -> Option<u32> {
        let range = self.begin[section as usize]..self.begin[section as usize + 1];
        let own = &self.end[range.start as usize..range.end as usize];
        let slot = range.start + own.partition_point(|&end| end <= hi) as u32;
        self.before(section, slot)
    }

    /// Returns the first section of `lo..hi` with a buffer that starts there and ends by `hi`.
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

    /// Returns the first section and the slot of the longest lifetime within `lo..hi`. After a number of steps it stops and returns the
    /// longest lifetime so far.
    fn longest(&mut self, lo: u32, hi: u32) -> Option<(u32, u32)> {
        let mut heap = BinaryHeap::new();
        let mut best: Option<(u32, u32)> = None;
        let mut length = 0;
        heap.push((self.longest[1], 1_usize, 0_usize, self.leaves));
        let mut steps = 0;
        while let Some((bound, n, start, end)) = heap.pop() {
            if bound <= length || steps > 200 {
                break;
            }
            steps += 1;
            let outside = end <= lo as usize || hi as usize <= start;
            if outside || self.earliest[n] > hi {
                continue;
            }
            if end - start == 1 {
                if let Some(slot) = self.latest(start as u32, hi) {
                    let own = self.end[slot as usize] - start as u32;
                    if own > length {
                        (best, length) = (Some((start as u32, slot)), own);
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
            Some((first, self.latest(first, hi)?))
        })
    }
}

impl Unplaced {
    /// Returns the section and slot of the buffer that `prefer` chooses in the valley `lo..hi`.
    fn preferred(&mut self, prefer: Prefer, lo: u32, hi: u32) -> Option<(u32, u32)> {
        match prefer {
            Prefer::Leftmost => {
                let first = self.first(lo, hi)?;
                Some((first, self.latest(first, hi)?))
            }
            Prefer::Longest => self.longest(lo, hi),
        }
    }
}

/// The unplaced buffers, by their effect on the alignment of buffers above them.
struct Classes {
    /// The buffers of the coarsest alignment; then the others, by their sizes' remainders in units.
    sets: Vec<Unplaced>,
    /// The coarsest alignment, and the unit of remainders.
    align: u64,
    unit: u64,
}

/// The number of units in the coarsest alignment.
const UNITS: u64 = 16;

/// Largest instance in which buffers of different alignments are distinguished.
const TOLD_APART: usize = 500_000;

impl Classes {
    fn new(sections: &Sections, instance: &Instance, aligned: bool) -> Self {
        let buffers = instance.buffers();
        let all = (0..buffers.len() as u32).filter(|&n| buffers[n as usize].is_ever_live());
        let size = |n: u32| buffers[n as usize].size;
        let align = buffers.iter().map(|buffer| buffer.align).max().unwrap_or(1);
        let mixed = buffers.iter().any(|buffer| buffer.align != align);
        if !aligned || !mixed || buffers.len() > TOLD_APART {
            return Self { sets: vec![Unplaced::new(sections, all.clone(), size)], align: 1, unit: 1 };
        }
        let unit = align.div_ceil(UNITS);
        let class = |n: u32| {
            let buffer = &buffers[n as usize];
            if buffer.align == align {
                return 0;
            }
            let remainder = buffer.size.next_multiple_of(buffer.align) % align;
            remainder.div_ceil(unit) as usize + 1
        };
        let set = |wanted: usize| Unplaced::new(sections, all.clone().filter(|&n| class(n) == wanted), size);
        Self { sets: (0..UNITS as usize + 2).map(set).collect(), align, unit }
    }

    /// Returns the set, section and slot of the next buffer in the valley `lo..hi` at `height`.
    ///
    /// Coarsely aligned buffers go first where they need no padding. Elsewhere, buffers that raise the valley towards the next aligned
    /// height go first, the closest fit before others.
    fn choose(&mut self, prefer: Prefer, height: u64, lo: u32, hi: u32) -> Option<(usize, u32, u32)> {
        let found = |set: usize, found: Option<(u32, u32)>| found.map(|(first, slot)| (set, first, slot));
        if self.sets.len() == 1 || self.sets[0].first(lo, hi).is_some() {
            let room = height.next_multiple_of(self.align) - height;
            let fillers = (1..=(room / self.unit) as usize).rev();
            for set in fillers.map(|units| units + 1) {
                if let Some((first, slot)) = self.sets[set].preferred(prefer, lo, hi) {
                    return Some((set, first, slot));
                }
            }
            return found(0, self.sets[0].preferred(prefer, lo, hi));
        }
        let mut best: Option<(usize, u32, u32)> = None;
        for set in 1..self.sets.len() {
            let Some((first, slot)) = self.sets[set].preferred(prefer, lo, hi) else { continue };
            let length = |set: usize, first: u32, slot: u32| self.sets[set].end[slot as usize] - first;
            let better = best.is_none_or(|(other, at, known)| match prefer {
                Prefer::Leftmost => first < at,
                Prefer::Longest => length(set, first, slot) > length(other, at, known),
            });
            if better {
                best = Some((set, first, slot));
            }
        }
        best
    }
}

/// The options of a packing.
#[derive(Clone, Copy, Debug)]
pub struct Descent {
    /// The rule for the first buffer.
    pub prefer: Prefer,
    /// Whether time runs backwards.
    pub mirror: bool,
    /// Whether padding between buffers of different alignments is filled where possible.
    pub aligned: bool,
    /// The number of choices in 256 that take the second best, and the seed of these random choices.
    pub noise: Option<(u8, u64)>,
}

/// Packs a plain instance; `None` if `deadline` passes first. O(n log n) expected.
pub fn descend(instance: &Instance, descent: Descent, deadline: &Deadline) -> Option<Vec<u64>> {
    descend_from(0, instance, descent, deadline)
}

/// Packs like [`descend`], with no buffer below `base` bytes. Treats every buffer as a plain rectangle.
pub(crate) fn descend_from(
    base: u64,
    instance: &Instance,
    descent: Descent,
    deadline: &Deadline,
) -> Option<Vec<u64>> {
    let Descent { prefer, mirror, aligned, noise } = descent;
    let mut watch = Watch::new(deadline);
    // Sorting comes first, and cannot be interrupted.
    if watch.passed(0) {
        return None;
    }
    let mut random = noise.map(|(noise, seed)| (noise, fastrand::Rng::with_seed(seed)));
    let buffers = instance.buffers();
    // `!` turns time around without overflow.
    let lifetimes = buffers.iter().map(|b| if mirror { (!b.end, !b.start) } else { (b.start, b.end) });
    let sections = Sections::new(lifetimes);
    let count = sections.count;
    let mut offsets = vec![0; buffers.len()];
    if count == 0 {
        return Some(offsets);
    }
    let mut classes = Classes::new(&sections, instance, aligned);
    // Runs by their first section. Valleys do not affect each other, so they need not be visited in the order of their heights: going
    // down to the nearest valley uses the cache better.
    let mut runs = vec![Run { end: 0, height: 0, before: 0 }; count];
    runs[0] = Run { end: count as u32, height: base, before: u32::MAX };
    let mut start = 0_u32;
    loop {
        if watch.passed(8) {
            return None;
        }
        let run = runs[start as usize];
        let left = (run.before != u32::MAX).then(|| runs[run.before as usize].height);
        let right = ((run.end as usize) < count).then(|| runs[run.end as usize].height);
        if left.is_some_and(|height| height <= run.height) {
            start = run.before;
            continue;
        }
        if right.is_some_and(|height| height < run.height) {
            start = run.end;
            continue;
        }
        // A few walks through the tree; the search for the longest lifetime looks at up to 200 of its nodes.
        let work = if prefer == Prefer::Longest { 1000 } else { 200 };
        if watch.passed(work * classes.sets.len()) {
            return None;
        }
        let height = run.height;
        let Some((set, first, mut slot)) = classes.choose(prefer, height, start, run.end) else {
            // Level it with its lower neighbour.
            let level = match (left, right) {
                (None, None) => break,
                (Some(level), None) | (None, Some(level)) => level,
                (Some(left), Some(right)) => left.min(right),
            };
            let mut merged = Run { height: level, ..run };
            if right == Some(level) {
                merged.end = runs[run.end as usize].end;
            }
            if left == Some(level) {
                start = run.before;
                merged.before = runs[start as usize].before;
            }
            runs[start as usize] = merged;
            if (merged.end as usize) < count {
                runs[merged.end as usize].before = start;
            }
            continue;
        };
        let unplaced = &mut classes.sets[set];
        if let Some((noise, random)) = &mut random {
            if random.u8(..) < *noise {
                slot = unplaced.before(first, slot).unwrap_or(slot);
            }
        }
        let (last, n) = (unplaced.end[slot as usize], unplaced.buffer[slot as usize]);
        unplaced.remove(first, slot);
        let buffer = &buffers[n as usize];
        let offset = height.next_multiple_of(buffer.align);
        offsets[n as usize] = offset;
        // Cut the run in up to three. Equal neighbours are not merged here: levelling does it.
        let mut before = run.before;
        let mut put = |from: u32, to: u32, height: u64| {
            if from < to {
                runs[from as usize] = Run { end: to, height, before };
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
