//! Exact search for instances whose buffers are not plain rectangles: gaps in lifetimes, fixed offsets, shared places.
//!
//! In some best plan every movable buffer lies on the ground or on another's end, and in order of their offsets each
//! one lies at the lowest place left to it by those before. So it is enough to try all orders in which offsets do
//! not fall, each buffer at the lowest free place that is no lower than the last one's. Meant for tens of buffers.
//! Windows (parts of a buffer that stay in use in a gap) can interlock so that no such order exists; with them, and
//! with shared places, a failure proves nothing.

use std::cell::RefCell;

use super::Limits;
use crate::deadline::Watch;
use crate::greedy::Conflicts;
use crate::model::Instance;

/// The answer of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Offsets in bytes.
    Found(Vec<u64>),
    /// It was proved that there is none.
    None,
    /// The limits were reached, or no proof is possible.
    Unknown,
}

struct State<'a> {
    instance: &'a Instance,
    conflicts: &'a Conflicts,
    capacity: u64,
    offsets: Vec<u64>,
    placed: Vec<bool>,
    nodes: u64,
    limits: &'a Limits<'a>,
    watch: RefCell<Watch<'a>>,
    proves: bool,
}

/// Returns the work of a node with this many buffers left, in elementary steps.
fn buffers_in(left: usize) -> usize {
    64 * left + 64
}

/// Looks for a plan within `capacity` bytes.
pub fn search(instance: &Instance, conflicts: &Conflicts, capacity: u64, limits: &Limits) -> Answer {
    let n = instance.len();
    if n > 2000 {
        return Answer::Unknown;
    }
    let proves = instance
        .buffers()
        .iter()
        .all(|buffer| buffer.alias.is_none() && buffer.gaps.iter().all(|gap| gap.window.is_none()));
    let mut state = State {
        instance,
        conflicts,
        capacity,
        offsets: vec![0; n],
        placed: vec![false; n],
        nodes: 0,
        limits,
        watch: RefCell::new(Watch::new(limits.deadline)),
        proves,
    };
    for (n, buffer) in instance.buffers().iter().enumerate() {
        if let Some(fixed) = buffer.fixed {
            state.offsets[n] = fixed;
            state.placed[n] = true;
        }
    }
    let left = state.placed.iter().filter(|&&placed| !placed).count();
    match state.node(left, 0, 0) {
        Some(true) => match crate::validate::validate(instance, &state.offsets, Some(capacity)) {
            Ok(()) => Answer::Found(state.offsets),
            // Fixed buffers in each other's way.
            Err(_) => Answer::Unknown,
        },
        Some(false) if state.proves => Answer::None,
        _ => Answer::Unknown,
    }
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
        // The lowest place of each; a buffer without one makes the node fail.
        let buffers = self.instance.buffers();
        let mut choices = Vec::with_capacity(left);
        let mut first_top = u64::MAX;
        for (n, buffer) in buffers.iter().enumerate() {
            if self.placed[n] {
                continue;
            }
            let offset = self.lowest(n, last)?;
            if offset.checked_add(buffer.size).is_none_or(|end| end > self.capacity) {
                return Some(false);
            }
            first_top = first_top.min(offset + buffer.size.max(1));
            choices.push((offset, n));
        }
        choices.sort_unstable();
        for (offset, n) in choices {
            // Whatever starts above the lowest possible top could wait for that buffer.
            if offset >= first_top {
                break;
            }
            if offset == last && n < rank && self.proves {
                continue;
            }
            self.placed[n] = true;
            self.offsets[n] = offset;
            if self.node(left - 1, offset, n)? {
                return Some(true);
            }
            self.placed[n] = false;
        }
        Some(false)
    }

    /// Returns the lowest free offset of `n` that is at least `from`; `None` if there is none, or no time is left.
    fn lowest(&self, n: usize, from: u64) -> Option<u64> {
        let work = self.conflicts.work(self.instance, n) + 1;
        if self.watch.borrow_mut().passed(work) {
            return None;
        }
        let buffer = &self.instance.buffers()[n];
        let mut forbidden = Vec::new();
        let mut shares = Vec::new();
        for &other in self.conflicts.of(n) {
            let other = other as usize;
            if self.placed[other] {
                if self.instance.may_share(n, other) {
                    shares.push(self.offsets[other]);
                }
                self.conflicts.forbidden(self.instance, n, other, self.offsets[other], &mut forbidden);
            }
        }
        forbidden.sort_unstable();
        let align = u128::from(buffer.align);
        let mut offset = u128::from(from).next_multiple_of(align) as i128;
        for &(lo, hi) in &forbidden {
            if offset > lo && offset < hi {
                if shares.iter().any(|&place| i128::from(place) == offset) && lo < offset {
                    // In the place of one that it may share with.
                    if self.watch.borrow_mut().passed(work) {
                        return None;
                    }
                    let at = offset as u64;
                    let others = self.conflicts.of(n).iter().map(|&other| other as usize);
                    let mut blocked = others.filter(|&other| self.placed[other]).any(|other| {
                        let mut intervals = Vec::new();
                        self.conflicts.forbidden(
                            self.instance,
                            n,
                            other,
                            self.offsets[other],
                            &mut intervals,
                        );
                        let shared = self.instance.may_share(n, other) && self.offsets[other] == at;
                        !shared && intervals.iter().any(|&(lo, hi)| offset > lo && offset < hi)
                    });
                    blocked |= offset % align as i128 != 0;
                    if !blocked {
                        return Some(at);
                    }
                }
                offset = (hi as u128).next_multiple_of(align) as i128;
            }
        }
        u64::try_from(offset).ok()
    }
}
