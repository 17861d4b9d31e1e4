//! Exact search for instances whose buffers are not plain rectangles: gaps in lifetimes, fixed offsets, shared places.
//!
//! Buffers that share a place are placed together, as a group; any buffers that may share, pair by pair where they meet, can form a
//! group, and a single buffer is a group too. In some best plan every group lies at offset 0 or on the end of another, and in order of
//! offsets each lies at the lowest place left by those before it. So it is enough to try all orders of all groups in which offsets do not
//! fall, each group at the lowest free place no lower than the last group's. Meant for tens of buffers. Windows (parts of a buffer that
//! stay in use in a gap) can interlock so that no such order exists; with windows, a failure proves nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;

use super::{Answer, Limits};
use crate::bounds::gcd;
use crate::deadline::Watch;
use crate::greedy::Conflicts;
use crate::model::{Instance, Piece};
use crate::sections::Sections;

/// Buffers that lie at one offset, ascending.
struct Group {
    members: Vec<usize>,
    /// The least common multiple of their alignments; 2^63, more than any offset, if it is larger.
    align: u128,
}

/// Largest number of groups of several buffers; with more, a failure proves nothing.
const GROUPS: usize = 4000;

/// The bytes that are still to be placed in each section of time.
struct Load {
    /// The sections, first byte and length of each buffer's pieces, by buffer. Buffers that may share a place have none.
    pieces: Vec<Vec<(Range<usize>, u64, u64)>>,
    /// The bytes of unplaced pieces, by section.
    left: Vec<u64>,
    /// The lowest offset of an unplaced piece, by section, for one node.
    lowest: Vec<u64>,
}

impl Load {
    fn new(instance: &Instance) -> Self {
        let buffers = instance.buffers();
        let mut shares = vec![false; buffers.len()];
        for (n, partner) in buffers.iter().enumerate().filter_map(|(n, buffer)| Some((n, buffer.alias?))) {
            (shares[n], shares[partner]) = (true, true);
        }
        let single = buffers.iter().all(|buffer| buffer.tier == buffers[0].tier);
        let all: Vec<Vec<Piece>> = buffers
            .iter()
            .zip(&shares)
            .map(|(buffer, shares)| if *shares || !single { Vec::new() } else { buffer.pieces() })
            .collect();
        let sections = Sections::new(all.iter().flatten().map(|&(start, end, ..)| (start, end)));
        let mut k = 0;
        let pieces: Vec<Vec<_>> = all
            .iter()
            .map(|pieces| {
                let own = pieces.iter().map(|&(_, _, from, to)| {
                    k += 1;
                    (sections.first[k - 1] as usize..sections.last[k - 1] as usize, from, to - from)
                });
                own.collect()
            })
            .collect();
        let mut load = Self { pieces, left: vec![0; sections.count], lowest: vec![u64::MAX; sections.count] };
        (0..buffers.len()).for_each(|n| load.add(n));
        load
    }

    /// Counts a buffer that is not placed.
    fn add(&mut self, n: usize) {
        for (sections, _, bytes) in &self.pieces[n] {
            self.left[sections.clone()].iter_mut().for_each(|left| *left += bytes);
        }
    }

    /// Ceases to count a buffer, which is placed.
    fn remove(&mut self, n: usize) {
        for (sections, _, bytes) in &self.pieces[n] {
            self.left[sections.clone()].iter_mut().for_each(|left| *left -= bytes);
        }
    }

    /// Notes that a buffer lies at `offset` or above.
    fn at_least(&mut self, n: usize, offset: u64) {
        for (sections, from, _) in &self.pieces[n] {
            self.lowest[sections.clone()]
                .iter_mut()
                .for_each(|lowest| *lowest = (*lowest).min(offset.saturating_add(*from)));
        }
    }

    /// Returns whether the unplaced pieces of each section fit above the lowest of them, and forgets the lowest offsets.
    fn fits(&mut self, capacity: u64) -> bool {
        let mut fits = true;
        for (lowest, left) in self.lowest.iter_mut().zip(&self.left) {
            fits &= *left == 0 || lowest.saturating_add(*left) <= capacity;
            *lowest = u64::MAX;
        }
        fits
    }
}

struct State<'a> {
    instance: &'a Instance,
    conflicts: &'a Conflicts,
    capacity: u64,
    offsets: Vec<u64>,
    placed: Vec<bool>,
    /// Single buffers by number, then groups that can share a place.
    groups: Vec<Group>,
    load: Load,
    nodes: u64,
    limits: &'a Limits<'a>,
    watch: RefCell<Watch<'a>>,
    proves: bool,
}

/// Returns the work of a node with `left` buffers left, in elementary steps.
fn buffers_in(left: usize) -> usize {
    64 * left + 64
}

/// Looks for a plan within `capacity` bytes.
pub fn search(instance: &Instance, conflicts: &Conflicts, capacity: u64, limits: &Limits) -> Answer<u64> {
    let n = instance.len();
    if n > 2000 {
        return Answer::Unknown;
    }
    let buffers = instance.buffers();
    let windows = buffers.iter().any(|buffer| buffer.gaps.iter().any(|gap| gap.window.is_some()));
    let groups = groups(instance, conflicts);
    let mut state = State {
        instance,
        conflicts,
        // No plan needs more.
        capacity: capacity.min(i64::MAX as u64),
        offsets: vec![0; n],
        placed: vec![false; n],
        proves: !windows && groups.len() < n + GROUPS,
        groups,
        load: Load::new(instance),
        nodes: 0,
        limits,
        watch: RefCell::new(Watch::new(limits.deadline)),
    };
    for (n, buffer) in buffers.iter().enumerate() {
        if let Some(fixed) = buffer.fixed {
            state.offsets[n] = fixed;
            state.placed[n] = true;
            state.load.remove(n);
        }
    }
    let left = state.placed.iter().filter(|&&placed| !placed).count();
    match state.node(left, 0, 0) {
        Some(true) => match crate::validate::validate(instance, &state.offsets, Some(capacity)) {
            Ok(()) => Answer::Found(state.offsets),
            // Fixed buffers end above the capacity.
            Err(_) => Answer::Unknown,
        },
        Some(false) if state.proves => Answer::None,
        _ => Answer::Unknown,
    }
}

/// Lists the single buffers, and up to [`GROUPS`] groups of several.
fn groups(instance: &Instance, conflicts: &Conflicts) -> Vec<Group> {
    let buffers = instance.buffers();
    let meet = |a: usize, b: usize| {
        let mut intervals = Vec::new();
        if buffers[a].tier == buffers[b].tier && buffers[a].meets(&buffers[b]) {
            conflicts.forbidden(instance, a, b, 0, &mut intervals);
        }
        !intervals.is_empty()
    };
    let mut partners: Vec<Vec<usize>> = vec![Vec::new(); buffers.len()];
    for (a, b) in buffers.iter().enumerate().filter_map(|(n, buffer)| Some((n, buffer.alias?))) {
        if buffers[a].fixed.is_none() && buffers[b].fixed.is_none() && meet(a, b) {
            partners[a].push(b);
            partners[b].push(a);
        }
    }
    let mut lists: Vec<Vec<usize>> = (0..buffers.len()).map(|n| vec![n]).collect();
    let mut known = BTreeSet::new();
    let mut next = 0;
    while next < lists.len() && known.len() < GROUPS {
        let list = lists[next].clone();
        next += 1;
        // Visit only buffers that may share, so that plain buffers cost nothing.
        for &partner in list.iter().flat_map(|&n| &partners[n]) {
            let fits = |&n: &usize| n != partner && (instance.may_share(n, partner) || !meet(n, partner));
            if list.iter().all(fits) {
                let mut more = list.clone();
                more.push(partner);
                more.sort_unstable();
                if known.insert(more.clone()) {
                    lists.push(more);
                }
            }
        }
    }
    let align = |list: &[usize]| {
        list.iter().fold(1, |multiple: u128, &n| {
            let (multiple, own) = (multiple as u64, buffers[n].align);
            (u128::from(multiple) * u128::from(own / gcd(multiple, own))).min(1 << 63)
        })
    };
    lists.into_iter().map(|members| Group { align: align(&members), members }).collect()
}

impl State<'_> {
    /// Searches on from a node. Returns whether it found a plan, or `None` if it reached the limits.
    fn node(&mut self, left: usize, last: u64, rank: usize) -> Option<bool> {
        self.nodes += 1;
        if self.nodes > self.limits.nodes || self.watch.borrow_mut().passed(buffers_in(left)) {
            return None;
        }
        if left == 0 {
            return Some(true);
        }
        // The lowest place of each group; the node fails if a single buffer has none.
        let buffers = self.instance.buffers();
        let mut choices = Vec::with_capacity(left);
        let mut first_top = u64::MAX;
        for k in 0..self.groups.len() {
            let group = &self.groups[k];
            if group.members.iter().any(|&n| self.placed[n]) {
                continue;
            }
            let offset = self.lowest(group, last)?;
            let size = group.members.iter().map(|&n| buffers[n].size).max().unwrap_or(0);
            let fits = offset.checked_add(size).is_some_and(|end| end <= self.capacity);
            match (fits, group.members.len()) {
                (false, 1) => {
                    self.load.fits(0);
                    return Some(false);
                }
                (false, _) => continue,
                // A single buffer need not share, so it could be placed first.
                (true, 1) => {
                    first_top = first_top.min(offset + size.max(1));
                    self.load.at_least(group.members[0], offset);
                }
                (true, _) => {}
            }
            choices.push((offset, k));
        }
        if !self.load.fits(self.capacity) {
            return Some(false);
        }
        choices.sort_unstable();
        for (offset, k) in choices {
            // A group above the lowest possible top can wait for the buffer with that top.
            if offset >= first_top {
                break;
            }
            let Group { members, .. } = &self.groups[k];
            let (first, count) = (members[0], members.len());
            if offset == last && first < rank && self.proves {
                continue;
            }
            for &n in members {
                self.placed[n] = true;
                self.offsets[n] = offset;
                self.load.remove(n);
            }
            if self.node(left - count, offset, first)? {
                return Some(true);
            }
            for &n in &self.groups[k].members {
                self.placed[n] = false;
                self.load.add(n);
            }
        }
        Some(false)
    }

    /// Returns the lowest free offset of a group at or above `from`; `None` if no time is left.
    fn lowest(&self, group: &Group, from: u64) -> Option<u64> {
        let members = &group.members;
        let work: usize = members.iter().map(|&n| self.conflicts.work(self.instance, n) + 1).sum();
        if self.watch.borrow_mut().passed(work) {
            return None;
        }
        let mut forbidden = Vec::new();
        // The places of fixed buffers that a member may share, and the part of `forbidden` that sharing lifts.
        let mut shares = Vec::new();
        for &n in members {
            self.conflicts.each(n, |other| {
                if self.placed[other] {
                    let before = forbidden.len();
                    self.conflicts.forbidden(self.instance, n, other, self.offsets[other], &mut forbidden);
                    if self.instance.may_share(n, other) && self.instance.buffers()[other].fixed.is_some() {
                        shares.push((i128::from(self.offsets[other]), before..forbidden.len()));
                    }
                }
            });
        }
        let up = |offset: i128| (offset as u128).next_multiple_of(group.align) as i128;
        let first = up(i128::from(from));
        let shared = shares.iter().map(|&(place, _)| place).filter(|&place| {
            let lifted = |k: usize| shares.iter().any(|(at, lifts)| *at == place && lifts.contains(&k));
            place >= first
                && up(place) == place
                && forbidden
                    .iter()
                    .enumerate()
                    .all(|(k, &(lo, hi))| place <= i128::from(lo) || place >= i128::from(hi) || lifted(k))
        });
        let shared = shared.min();
        forbidden.sort_unstable();
        let mut offset = first;
        for &(lo, hi) in &forbidden {
            if offset > i128::from(lo) && offset < i128::from(hi) {
                offset = up(hi.into());
            }
        }
        u64::try_from(shared.map_or(offset, |shared| shared.min(offset))).ok()
    }
}
