//! The order in which buffers are placed, and the working memory of planners.

#![forbid(unsafe_code)]

use super::buffer::Buffer;
use crate::units::each;

/// A criterion for sorting buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Order {
    /// By size, larger ones first.
    Size,
    /// By size times lifetime, larger ones first.
    Area,
    /// By lifetime, longer ones first.
    Duration,
    /// By first step, earlier ones first.
    Start,
    /// By last step, later ones first.
    End,
    /// By the bytes of other buffers that are live at the same time, larger sums first.
    Degree,
    /// By accesses per byte, larger numbers first; for [tiers](super::Tier).
    Accesses,
}

/// Working memory of a planner. Each slice has the length of the instance.
pub(super) struct Scratch<'s> {
    /// Buffers in the order in which they are placed.
    pub(super) order: &'s mut [usize],
    /// Sort keys, of which those of fixed buffers are the largest.
    pub(super) keys: &'s mut [(u64, u64)],
    /// Placed buffers by offset, or buffers not yet placed.
    pub(super) list: &'s mut [usize],
    /// Temporary memory for sorting, and ranks.
    pub(super) temp: &'s mut [usize],
    /// Bytes live at the same time as each buffer, including its own.
    pub(super) degree: &'s mut [u64],
    /// Offsets of the plan being tried.
    pub(super) trial: &'s mut [u64],
}

/// Working memory for up to `N` buffers, on the stack.
pub(super) struct Arrays<const N: usize> {
    lists: [[usize; N]; 3],
    keys: [(u64, u64); N],
    sums: [[u64; N]; 2],
}

impl<const N: usize> Arrays<N> {
    pub(super) const fn new() -> Self {
        Self { lists: [[0; N]; 3], keys: [(0, 0); N], sums: [[0; N]; 2] }
    }

    /// Returns the part for `n` buffers.
    pub(super) const fn scratch(&mut self, n: usize) -> Scratch<'_> {
        let Self { lists: [order, list, temp], keys, sums: [degree, trial] } = self;
        Scratch {
            order: order.split_at_mut(n).0,
            keys: keys.split_at_mut(n).0,
            list: list.split_at_mut(n).0,
            temp: temp.split_at_mut(n).0,
            degree: degree.split_at_mut(n).0,
            trial: trial.split_at_mut(n).0,
        }
    }
}

/// The sort key of a fixed buffer, which comes before all others.
const FIRST: u64 = u64::MAX;

/// Returns the sort key of a buffer. Larger keys come first. O(1).
const fn key(buffers: &[Buffer<'_>], i: usize, order: Order, degree: &[u64]) -> u64 {
    let b = &buffers[i];
    let key = match order {
        Order::Size => b.size,
        Order::Area => b.size.saturating_mul(b.end - b.start),
        Order::Duration => b.end - b.start,
        Order::Start => u64::MAX - b.start,
        Order::End => b.end,
        Order::Degree => degree[i],
        Order::Accesses => b.accesses,
    };
    if key == FIRST { FIRST - 1 } else { key }
}

/// Fills `scratch.order` with all buffers, fixed ones first, then sorted by the two orders and by index. O(n log n).
pub(super) const fn sort(buffers: &[Buffer<'_>], by: Order, then: Order, scratch: &mut Scratch<'_>) {
    each!(i, 0..buffers.len(), {
        scratch.order[i] = i;
        scratch.keys[i] = match buffers[i].fixed {
            Some(_) => (FIRST, FIRST),
            None => (key(buffers, i, by, scratch.degree), key(buffers, i, then, scratch.degree)),
        };
    });
    merge_sort(scratch.order, scratch.keys, scratch.temp);
}

/// Sorts `order` by descending keys, stably. O(n log n).
const fn merge_sort(order: &mut [usize], keys: &[(u64, u64)], temp: &mut [usize]) {
    let n = order.len();
    let mut width = 1;
    while width < n {
        let mut low = 0;
        while low + width < n {
            let middle = low + width;
            let high = if n - middle < width { n } else { middle + width };
            merge(order, keys, temp, low, middle, high);
            low = high;
        }
        width *= 2;
    }
}

/// Merges the sorted ranges `low..middle` and `middle..high`.
const fn merge(
    order: &mut [usize],
    keys: &[(u64, u64)],
    temp: &mut [usize],
    low: usize,
    middle: usize,
    high: usize,
) {
    each!(k, low..middle, {
        temp[k] = order[k];
    });
    let (mut left, mut right, mut k) = (low, middle, low);
    // The rest of the right half is already in place.
    while left < middle {
        let take_right = right < high && {
            let (a, b) = (keys[temp[left]], keys[order[right]]);
            a.0 < b.0 || (a.0 == b.0 && a.1 < b.1)
        };
        if take_right {
            order[k] = order[right];
            right += 1;
        } else {
            order[k] = temp[left];
            left += 1;
        }
        k += 1;
    }
}

/// Fills `scratch.order` with all buffers by ascending start, and `scratch.list` with all by ascending end. O(n log n).
pub(super) const fn sort_by_time(buffers: &[Buffer<'_>], scratch: &mut Scratch<'_>) {
    each!(i, 0..buffers.len(), {
        scratch.list[i] = i;
        scratch.keys[i] = (u64::MAX - buffers[i].end, 0);
    });
    merge_sort(scratch.list, scratch.keys, scratch.temp);
    each!(i, 0..buffers.len(), {
        scratch.order[i] = i;
        scratch.keys[i] = (u64::MAX - buffers[i].start, 0);
    });
    merge_sort(scratch.order, scratch.keys, scratch.temp);
}

/// Fills `scratch.degree`, counting gaps as live. The buffers must be [sorted by time](sort_by_time). O(n).
pub(super) const fn degrees(buffers: &[Buffer<'_>], scratch: &mut Scratch<'_>) {
    let n = buffers.len();
    // `ended` counts the bytes of buffers that end before each buffer starts; the second pass subtracts them from those of buffers that
    // start before it ends.
    let (mut e, mut ended) = (0, 0);
    // A buffer that is never live does not count for others, nor others for it.
    each!(k, 0..n, {
        let i = scratch.order[k];
        while e < n && buffers[scratch.list[e]].end <= buffers[i].start {
            ended += live_size(&buffers[scratch.list[e]]);
            e += 1;
        }
        scratch.degree[i] = ended;
    });
    let (mut s, mut started) = (0, 0);
    each!(k, 0..n, {
        let i = scratch.list[k];
        while s < n && buffers[scratch.order[s]].start < buffers[i].end {
            started += live_size(&buffers[scratch.order[s]]);
            s += 1;
        }
        scratch.degree[i] = started - scratch.degree[i];
    });
}

/// Returns the size of a buffer, or 0 if it is never live.
const fn live_size(b: &Buffer<'_>) -> u64 {
    if b.is_never_live() { 0 } else { b.size }
}
