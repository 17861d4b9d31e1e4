//! Checks a plan by sweeping over time. Shares no code with the planners.

use std::collections::{BTreeMap, HashSet};

use super::buffer::{Buffer, may_share};
use crate::deadline::{Deadline, Watch};

/// An error in a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The number of offsets differs from the number of buffers.
    #[error("the plan has {found} offsets for {expected} buffers")]
    Count {
        /// Number of offsets.
        found: usize,
        /// Number of buffers.
        expected: usize,
    },
    /// An offset is not a multiple of the buffer's alignment.
    #[error("`{id}` at {offset} is not aligned to {align}")]
    Misaligned {
        /// The buffer.
        id: String,
        /// Its offset.
        offset: u64,
        /// Its alignment.
        align: u64,
    },
    /// A buffer is not at its fixed offset.
    #[error("`{id}` is at {offset}, but fixed at {fixed}")]
    Moved {
        /// The buffer.
        id: String,
        /// Its offset.
        offset: u64,
        /// The offset that it must have.
        fixed: u64,
    },
    /// A buffer ends above the capacity (or above 2^64).
    #[error("`{id}` at {offset} does not fit the capacity of {capacity} bytes")]
    Capacity {
        /// The buffer.
        id: String,
        /// Its offset.
        offset: u64,
        /// The capacity.
        capacity: u64,
    },
    /// Two buffers overlap while both are live.
    #[error("`{first}` and `{second}` overlap at time {time}")]
    Overlap {
        /// One of the buffers.
        first: String,
        /// The other buffer.
        second: String,
        /// A time step at which both are live.
        time: i64,
    },
}

/// Checks the `offsets` of `buffers` and, if given, a capacity in bytes; returns false if `deadline` passes first.
pub(crate) fn check(
    buffers: &[Buffer],
    offsets: &[u64],
    capacity: Option<u64>,
    deadline: &Deadline,
) -> Result<bool, Violation> {
    let mut watch = Watch::new(deadline);
    if offsets.len() != buffers.len() {
        return Err(Violation::Count { found: offsets.len(), expected: buffers.len() });
    }
    // Sort the events by time, ends before starts, since lifetimes are half-open.
    let mut events = Vec::with_capacity(2 * buffers.len());
    for (n, (buffer, &offset)) in buffers.iter().zip(offsets).enumerate() {
        let id = || buffer.id.clone();
        if offset % buffer.align != 0 {
            return Err(Violation::Misaligned { id: id(), offset, align: buffer.align });
        }
        if let Some(fixed) = buffer.fixed.filter(|&fixed| fixed != offset) {
            return Err(Violation::Moved { id: id(), offset, fixed });
        }
        let capacity = capacity.unwrap_or(u64::MAX);
        if offset.checked_add(buffer.size).is_none_or(|end| end > capacity) {
            return Err(Violation::Capacity { id: id(), offset, capacity });
        }
        for (start, end, from, to) in buffer.pieces() {
            events.push((start, true, n, offset + from, offset + to));
            events.push((end, false, n, offset + from, offset + to));
        }
    }
    events.sort_unstable_by_key(|&(time, starts, n, from, _)| (time, starts, n, from));
    // The live buffers by tier and first byte, which are disjoint; buffers that may share a place are in `sharing`.
    let mut live: BTreeMap<(u32, u64), (u64, usize)> = BTreeMap::new();
    let mut sharing: Vec<(u64, u64, usize)> = Vec::new();
    let shared: HashSet<usize> =
        buffers.iter().enumerate().filter_map(|(n, buffer)| Some([n, buffer.alias?])).flatten().collect();
    for (time, starts, n, from, to) in events {
        if watch.passed(100 + 8 * sharing.len()) {
            return Ok(false);
        }
        let tier = buffers[n].tier;
        if !starts {
            if shared.contains(&n) {
                sharing.retain(|&entry| entry != (from, to, n));
            } else {
                live.remove(&(tier, from));
            }
            continue;
        }
        let below = live.range((tier, 0)..=(tier, from)).next_back();
        let above = live.range((tier, from)..(tier, to)).next();
        let apart = below.filter(|&(_, &(upper, _))| upper > from).or(above).map(|(_, &(_, other))| other);
        let near = sharing.iter().find(|&&(lower, upper, other)| {
            let together = may_share(buffers, n, other) && offsets[n] == offsets[other];
            lower < to && from < upper && buffers[other].tier == tier && !together
        });
        if let Some(other) = apart.or(near.map(|&(_, _, other)| other)) {
            let (first, second) = (buffers[other].id.clone(), buffers[n].id.clone());
            return Err(Violation::Overlap { first, second, time });
        }
        if shared.contains(&n) {
            sharing.push((from, to, n));
        } else {
            live.insert((tier, from), (to, n));
        }
    }
    Ok(true)
}
