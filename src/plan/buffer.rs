//! The input of a plan: buffers with a size, a lifetime and constraints.

#![forbid(unsafe_code)]

use crate::units::each;
use core::ops::Range;

/// The steps from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Interval {
    /// The first step.
    pub start: u64,
    /// The step after the last one.
    pub end: u64,
}

impl Interval {
    /// Creates the interval of a half-open range.
    pub const fn new(steps: Range<u64>) -> Self {
        Self { start: steps.start, end: steps.end }
    }

    /// Returns whether both intervals have a step in common; an empty one never has. O(1).
    pub const fn overlaps(&self, other: &Self) -> bool {
        let start = if self.start > other.start { self.start } else { other.start };
        start < self.end && start < other.end
    }
}

/// A buffer to be placed: its size, its lifetime, and its constraints.
///
/// Sizes, alignments and offsets are in bytes. Time is counted in steps, such as operators of a network or positions in a trace; a
/// lifetime is half-open, `start..end`. Constraints name other buffers by their index in the planned slice. All methods are `const`:
///
/// ```
/// use allotment::plan::Buffer;
///
/// const BUFFERS: [Buffer; 3] = [
///     Buffer::new(1024, 0..2).align(16).name("input"),
///     Buffer::new(4096, 1..3).align(16),
///     Buffer::new(4096, 2..4).align(16).in_place_of(1),
/// ];
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Buffer<'a> {
    /// The name in messages, which use the index if it is empty.
    pub name: &'a str,
    /// Size in bytes; may be zero.
    pub size: u64,
    /// Alignment of the offset in bytes, a power of two.
    pub align: u64,
    /// The first step at which the buffer is live.
    pub start: u64,
    /// The step after the last one at which the buffer is live. If that is `start`, the buffer is never live: it may share its place with
    /// any other, and need only lie in the arena.
    pub end: u64,
    /// Steps of the lifetime at which the contents are not needed. The gaps must be in order, not empty, not touch
    /// each other, and lie inside the lifetime.
    pub gaps: &'a [Interval],
    /// The offset that the buffer must have.
    pub fixed: Option<u64>,
    /// The offset that the buffer should have if that costs no memory.
    pub hint: Option<u64>,
    /// The buffer whose place this one may take: the input of an operator whose output this is.
    ///
    /// The two may have the same offset although both are live at this buffer's first step, provided that this step
    /// is the other's last. Otherwise the field has no effect.
    pub alias: Option<usize>,
    /// Buffers with which this one must never share memory, even if their lifetimes do not overlap. It is enough if one of the two names
    /// the other.
    pub apart: &'a [usize],
    /// The tier in which the buffer must lie, or `None` for any. Has no effect on plans of a single arena.
    pub tier: Option<usize>,
    /// Number of accesses to each byte, which determines the cost of a slow tier.
    pub accesses: u64,
}

impl<'a> Buffer<'a> {
    /// Creates a buffer of `size` bytes that is live during `steps`, with alignment 1 and without constraints.
    pub const fn new(size: u64, steps: Range<u64>) -> Self {
        Self {
            name: "",
            size,
            align: 1,
            start: steps.start,
            end: steps.end,
            gaps: &[],
            fixed: None,
            hint: None,
            alias: None,
            apart: &[],
            tier: None,
            accesses: 1,
        }
    }

    /// Sets the name for messages.
    pub const fn name(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Aligns the offset to a multiple of `align` bytes, a power of two.
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// Sets the steps during which the contents are not needed.
    pub const fn gaps(mut self, gaps: &'a [Interval]) -> Self {
        self.gaps = gaps;
        self
    }

    /// Fixes the offset.
    pub const fn fixed(mut self, offset: u64) -> Self {
        self.fixed = Some(offset);
        self
    }

    /// Asks for an offset, which the plan uses if that costs no memory.
    pub const fn hint(mut self, offset: u64) -> Self {
        self.hint = Some(offset);
        self
    }

    /// Allows the buffer to take the place of buffer `input`, whose last step must be this one's first.
    pub const fn in_place_of(mut self, input: usize) -> Self {
        self.alias = Some(input);
        self
    }

    /// Forbids sharing memory with any of `others`, at any time.
    pub const fn apart_from(mut self, others: &'a [usize]) -> Self {
        self.apart = others;
        self
    }

    /// Fixes the tier.
    pub const fn tier(mut self, tier: usize) -> Self {
        self.tier = Some(tier);
        self
    }

    /// Sets how often each byte is read or written.
    pub const fn accesses(mut self, accesses: u64) -> Self {
        self.accesses = accesses;
        self
    }

    /// Returns whether the contents are needed at `step`. O(gaps).
    pub const fn is_live(&self, step: u64) -> bool {
        let mut live = self.start <= step && step < self.end;
        let mut i = 0;
        while live && i < self.gaps.len() {
            live = step < self.gaps[i].start || self.gaps[i].end <= step;
            i += 1;
        }
        live
    }

    /// Returns the `i`-th stretch of steps at which the buffer is live. There are `gaps.len() + 1` stretches; the
    /// first and the last may be empty. O(1).
    pub const fn stretch(&self, i: usize) -> Interval {
        let start = if i == 0 { self.start } else { self.gaps[i - 1].end };
        let end = if i == self.gaps.len() { self.end } else { self.gaps[i].start };
        Interval { start, end }
    }

    /// Returns whether the lifetime has no step.
    pub(super) const fn is_never_live(&self) -> bool {
        self.start == self.end
    }

    /// Returns whether both buffers are live at a common step. O(gaps of both), O(1) without gaps.
    pub const fn meets(&self, other: &Self) -> bool {
        let (own, its) = (Interval::new(self.start..self.end), Interval::new(other.start..other.end));
        if !own.overlaps(&its) {
            return false;
        }
        if self.gaps.is_empty() && other.gaps.is_empty() {
            return true;
        }
        let (mut i, mut j) = (0, 0);
        while i <= self.gaps.len() && j <= other.gaps.len() {
            let (a, b) = (self.stretch(i), other.stretch(j));
            if a.overlaps(&b) {
                return true;
            }
            // The stretch that ends first meets none of the later ones.
            if a.end <= b.end {
                i += 1;
            } else {
                j += 1;
            }
        }
        false
    }

    /// Returns whether the buffer may lie at the offset of `input`, the buffer that its `alias` names: its first
    /// step must be the last step of `input`. O(1).
    pub(super) const fn may_replace(&self, input: &Self) -> bool {
        input.start <= self.start && input.end == self.start + 1
    }
}

/// The way in which two buffers of an instance may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// They may overlap in any way.
    Free,
    /// They may have the same offset, and must not overlap otherwise.
    InPlace,
    /// They must not overlap.
    Conflict,
}

/// Returns how buffers `i` and `j` may share memory. O(gaps and `apart` of both).
///
/// # Panics
///
/// If an index is out of range.
pub(super) const fn relation(buffers: &[Buffer<'_>], i: usize, j: usize) -> Relation {
    let (a, b) = (&buffers[i], &buffers[j]);
    if contains(a.apart, j) || contains(b.apart, i) {
        return Relation::Conflict;
    }
    if !a.meets(b) {
        return Relation::Free;
    }
    match (a.alias, b.alias) {
        (Some(input), _) if input == j && a.may_replace(b) => Relation::InPlace,
        (_, Some(input)) if input == i && b.may_replace(a) => Relation::InPlace,
        _ => Relation::Conflict,
    }
}

const fn contains(list: &[usize], wanted: usize) -> bool {
    each!(i, 0..list.len(), {
        if list[i] == wanted {
            return true;
        }
    });
    false
}

/// The kinds of pairs of an instance's buffers for which time alone does not decide a conflict, but [`relation`] does.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// Whether pairs with a common step may be compatible, because of gaps, shared places, or buffers that are never live.
    pub(super) relaxed: bool,
    /// Whether pairs without a common step may conflict, because some buffers must be kept apart.
    pub(super) apart: bool,
}

impl Kind {
    pub(super) const fn of(buffers: &[Buffer<'_>]) -> Self {
        let mut kind = Self { relaxed: false, apart: false };
        each!(i, 0..buffers.len(), {
            let b = &buffers[i];
            kind.relaxed |= !b.gaps.is_empty() || b.alias.is_some() || b.is_never_live();
            kind.apart |= !b.apart.is_empty();
        });
        kind
    }
}

/// Rounds up to a multiple of `align`, a power of two. Does not overflow, since the instance was checked.
pub(super) const fn align_up(value: u64, align: u64) -> u64 {
    (value + (align - 1)) & !(align - 1)
}
