//! A checked set of buffers to place.

use std::collections::HashMap;

use super::buffer::{Buffer, may_share};
use super::check::{Violation, check};
use crate::deadline::Deadline;

/// Why a list of buffers was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// Two buffers have the same name.
    #[error("buffer `{0}` is listed twice: names must be unique")]
    Duplicate(String),
    /// A lifetime ends before it starts.
    #[error("buffer `{id}` ends at {end}, before it starts at {start}")]
    Lifetime {
        /// Its name.
        id: String,
        /// Its start.
        start: i64,
        /// Its end.
        end: i64,
    },
    /// An alignment is 0.
    #[error("buffer `{0}` has an alignment of 0: write 1 for none")]
    Alignment(String),
    /// A gap lies outside the lifetime or overlaps another gap, or its window lies outside the buffer.
    #[error(
        "buffer `{id}`: the gap {start}..{end} must lie in its lifetime, after the gap before it, its window in its size"
    )]
    Gap {
        /// The buffer's name.
        id: String,
        /// The gap's start.
        start: i64,
        /// The gap's end.
        end: i64,
    },
    /// A fixed offset is not aligned.
    #[error("buffer `{id}` is fixed at {offset}, which is no multiple of its alignment {align}")]
    Misaligned {
        /// The buffer's name.
        id: String,
        /// The fixed offset.
        offset: u64,
        /// Its alignment.
        align: u64,
    },
    /// Two fixed buffers overlap.
    #[error(
        "`{first}` and `{second}` are fixed where they overlap, and at time {time} both are live: move one of them"
    )]
    FixedOverlap {
        /// One of the buffers.
        first: String,
        /// The other buffer.
        second: String,
        /// A time step at which both are live.
        time: i64,
    },
    /// A buffer may share with itself, or with a buffer that does not exist.
    #[error("buffer `{0}` shares with a buffer that does not exist, or with itself")]
    Alias(String),
    /// All buffers end to end, aligned, do not fit in 63 bits.
    #[error("the buffers together exceed 2^63 bytes")]
    TooLarge,
}

/// The buffers to place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    buffers: Vec<Buffer>,
    /// Whether any buffer has a gap.
    gaps: bool,
}

impl Instance {
    /// Checks `buffers` and creates an instance from them. O(n log n), plus O(f²) for f fixed buffers that may share a place.
    ///
    /// # Errors
    /// [`InstanceError`] names the first invalid buffer.
    pub fn new(buffers: Vec<Buffer>) -> Result<Self, InstanceError> {
        let mut names = HashMap::with_capacity(buffers.len());
        let mut total = 0_u64;
        for (n, buffer) in buffers.iter().enumerate() {
            let id = || buffer.id.clone();
            if names.insert(buffer.id.as_str(), n).is_some() {
                return Err(InstanceError::Duplicate(id()));
            }
            let (start, end) = (buffer.start, buffer.end);
            if end < start {
                return Err(InstanceError::Lifetime { id: id(), start, end });
            }
            if buffer.align == 0 {
                return Err(InstanceError::Alignment(id()));
            }
            let mut now = start;
            for gap in &buffer.gaps {
                let window_fits = gap.window.is_none_or(|(from, to)| from <= to && to <= buffer.size);
                if gap.start < now || gap.end < gap.start || gap.end > end || !window_fits {
                    return Err(InstanceError::Gap { id: id(), start: gap.start, end: gap.end });
                }
                now = gap.end;
            }
            if let Some(offset) = buffer.fixed.filter(|offset| offset % buffer.align != 0) {
                return Err(InstanceError::Misaligned { id: id(), offset, align: buffer.align });
            }
            if buffer.alias.is_some_and(|other| other == n || other >= buffers.len()) {
                return Err(InstanceError::Alias(id()));
            }
            let most = buffer
                .size
                .checked_add(buffer.align)
                .and_then(|most| most.checked_add(buffer.fixed.unwrap_or(0)));
            total = most
                .and_then(|most| total.checked_add(most))
                .filter(|&total| total <= i64::MAX as u64)
                .ok_or(InstanceError::TooLarge)?;
        }
        let instance = Self::unchecked(buffers);
        let is_fixed = |&n: &usize| instance.buffers[n].fixed.is_some();
        let fixed = instance.part(&(0..instance.len()).filter(is_fixed).collect::<Vec<_>>());
        let offsets: Vec<u64> = fixed.buffers.iter().filter_map(|buffer| buffer.fixed).collect();
        match check(&fixed.buffers, &offsets, None, &Deadline::never()) {
            Err(Violation::Overlap { first, second, time }) => {
                Err(InstanceError::FixedOverlap { first, second, time })
            }
            _ => Ok(instance),
        }
    }

    /// Creates an instance of buffers derived from a checked instance.
    pub(crate) fn unchecked(buffers: Vec<Buffer>) -> Self {
        let gaps = buffers.iter().any(|buffer| !buffer.gaps.is_empty());
        Self { buffers, gaps }
    }

    /// Returns the buffers in the order of the input.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Returns the number of buffers.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Returns whether there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Returns whether any buffer has a gap in its lifetime. O(1).
    pub(crate) fn any_gaps(&self) -> bool {
        self.gaps
    }

    /// Returns whether every buffer is a plain rectangle of one tier.
    pub fn is_plain(&self) -> bool {
        self.buffers.iter().all(|buffer| buffer.is_plain() && buffer.tier == self.buffers[0].tier)
    }

    /// Returns an instance of the buffers `members` alone. Drops each alias of a buffer outside of `members`.
    pub fn part(&self, members: &[usize]) -> Self {
        let place: HashMap<usize, usize> = members.iter().enumerate().map(|(new, &old)| (old, new)).collect();
        let take = |&n: &usize| {
            let buffer = self.buffers[n].clone();
            Buffer { alias: buffer.alias.and_then(|other| place.get(&other).copied()), ..buffer }
        };
        Self::unchecked(members.iter().map(take).collect())
    }

    /// Returns whether `a` and `b` may share one place, whatever their lifetimes.
    pub fn may_share(&self, a: usize, b: usize) -> bool {
        may_share(&self.buffers, a, b)
    }

    /// Returns the peak of a plan: the highest end of any buffer, in bytes.
    pub fn peak(&self, offsets: &[u64]) -> u64 {
        self.buffers.iter().zip(offsets).map(|(buffer, &offset)| offset + buffer.size).max().unwrap_or(0)
    }
}
