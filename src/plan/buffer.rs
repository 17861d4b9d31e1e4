//! What a plan is made for: buffers with a size, a lifetime and constraints.

use core::ops::Range;

/// Steps from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Interval {
    /// First step.
    pub start: u64,
    /// Step after the last one.
    pub end: u64,
}

impl Interval {
    /// The interval of a half-open range.
    pub const fn new(steps: Range<u64>) -> Self {
        Self { start: steps.start, end: steps.end }
    }

    /// Whether the two have a step in common; an empty one has none. O(1).
    pub const fn overlaps(&self, other: &Self) -> bool {
        let start = if self.start > other.start { self.start } else { other.start };
        start < self.end && start < other.end
    }
}

/// A buffer to be placed: its size, when it is needed, and what else must hold.
///
/// Sizes, alignments and offsets are in bytes. Time is counted in steps (operators of a network, positions
/// in a trace); a lifetime is half-open, `start..end`. Other buffers are named by their index in the slice
/// that is planned. Everything is `const`:
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
#[non_exhaustive]
pub struct Buffer<'a> {
    /// What messages call it; empty: its index.
    pub name: &'a str,
    /// Bytes; may be zero.
    pub size: u64,
    /// Its offset is a multiple of this, a power of two.
    pub align: u64,
    /// First step at which it is live.
    pub start: u64,
    /// Step after the last one at which it is live; above `start`.
    pub end: u64,
    /// Steps of the lifetime at which its contents are not needed: in order, apart from each other, none
    /// empty, inside the lifetime.
    pub gaps: &'a [Interval],
    /// The offset that it must have.
    pub fixed: Option<u64>,
    /// The offset that it should have if nothing is lost by it.
    pub hint: Option<u64>,
    /// The buffer whose place it may take: an operator's input, of which this is the output.
    ///
    /// The two may have the same offset although both are live at this one's first step, provided that it is
    /// the other's last step. Otherwise the permission has no effect.
    pub alias: Option<usize>,
    /// Buffers that it must not share memory with, even if their lifetimes are apart. It is enough that one
    /// of two buffers names the other.
    pub apart: &'a [usize],
    /// The tier that it must lie in; none: any. Has no effect on plans of one arena.
    pub tier: Option<usize>,
    /// How often each of its bytes is read or written: what a slow tier costs.
    pub accesses: u64,
}

impl<'a> Buffer<'a> {
    /// A buffer of `size` bytes, live during `steps`, of alignment 1 and without constraints.
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

    /// Names it, for messages.
    pub const fn name(mut self, name: &'a str) -> Self {
        self.name = name;
        self
    }

    /// Its offset is a multiple of `align`, a power of two.
    pub const fn align(mut self, align: u64) -> Self {
        self.align = align;
        self
    }

    /// Its contents are not needed during `gaps`.
    pub const fn gaps(mut self, gaps: &'a [Interval]) -> Self {
        self.gaps = gaps;
        self
    }

    /// Its offset is `offset`.
    pub const fn fixed(mut self, offset: u64) -> Self {
        self.fixed = Some(offset);
        self
    }

    /// Its offset is `offset` if nothing is lost by it.
    pub const fn hint(mut self, offset: u64) -> Self {
        self.hint = Some(offset);
        self
    }

    /// It may take the place of buffer `input`, whose last step is its first.
    pub const fn in_place_of(mut self, input: usize) -> Self {
        self.alias = Some(input);
        self
    }

    /// It shares memory with none of `others` at any time.
    pub const fn apart_from(mut self, others: &'a [usize]) -> Self {
        self.apart = others;
        self
    }

    /// It lies in tier `tier`.
    pub const fn tier(mut self, tier: usize) -> Self {
        self.tier = Some(tier);
        self
    }

    /// Each of its bytes is read or written `accesses` times.
    pub const fn accesses(mut self, accesses: u64) -> Self {
        self.accesses = accesses;
        self
    }

    /// Whether its contents are needed at `step`. O(gaps).
    pub const fn is_live(&self, step: u64) -> bool {
        let mut live = self.start <= step && step < self.end;
        let mut i = 0;
        while live && i < self.gaps.len() {
            live = step < self.gaps[i].start || self.gaps[i].end <= step;
            i += 1;
        }
        live
    }

    /// The `i`-th stretch of steps at which it is live; there are `gaps.len() + 1`, and those beside a
    /// border may be empty. O(1).
    pub const fn stretch(&self, i: usize) -> Interval {
        let start = if i == 0 { self.start } else { self.gaps[i - 1].end };
        let end = if i == self.gaps.len() { self.end } else { self.gaps[i].start };
        Interval { start, end }
    }

    /// Whether there is a step at which both are live. O(gaps of both), O(1) without.
    pub const fn meets(&self, other: &Self) -> bool {
        if self.start >= other.end || other.start >= self.end {
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
            // The stretch that ends first meets nothing that comes later.
            if a.end <= b.end {
                i += 1;
            } else {
                j += 1;
            }
        }
        false
    }

    /// Whether it may lie at the offset of `input`, the buffer that its `alias` names: the first step of
    /// this one is the last of the other. O(1).
    pub const fn may_replace(&self, input: &Self) -> bool {
        input.start <= self.start && input.end == self.start + 1
    }
}

/// How two buffers of an instance stand to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They may overlap in any way.
    Free,
    /// They may have the same offset, and must not overlap otherwise.
    InPlace,
    /// They must not overlap.
    Conflict,
}

/// How buffers `i` and `j` of an instance stand to each other. O(gaps and `apart` of both).
///
/// # Panics
///
/// If an index is out of range.
pub const fn relation(buffers: &[Buffer<'_>], i: usize, j: usize) -> Relation {
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
    let mut i = 0;
    while i < list.len() {
        if list[i] == wanted {
            return true;
        }
        i += 1;
    }
    false
}
