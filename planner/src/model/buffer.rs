//! Buffers: sizes, lifetimes, and fixed places.

/// A part of a buffer's lifetime in which it does not need all of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// First time step of the gap.
    pub start: i64,
    /// The time step after the gap's last.
    pub end: i64,
    /// The bytes `from..to` of the buffer that stay in use during the gap; `None` if none do.
    pub window: Option<(u64, u64)>,
}

/// A rectangle of time and bytes: `(start, end, from, to)`.
pub type Piece = (i64, i64, u64, u64);

/// Returns the pairs of pieces that overlap in time. Walks both lists, which ascend in time, side by side.
pub(crate) fn meetings<'p>(
    ours: &'p [Piece],
    theirs: &'p [Piece],
) -> impl Iterator<Item = (&'p Piece, &'p Piece)> {
    let (mut i, mut j) = (0, 0);
    std::iter::from_fn(move || {
        loop {
            let (p, q) = (ours.get(i)?, theirs.get(j)?);
            if p.1 <= q.1 {
                i += 1;
            } else {
                j += 1;
            }
            if p.0 < q.1 && q.0 < p.1 {
                return Some((p, q));
            }
        }
    })
}

/// A buffer to place.
///
/// It is live in `start..end`, except for its gaps. An empty buffer, or a buffer that is never live, conflicts with no other and may
/// overlap any of them, fixed ones included. Like every buffer, it must still lie entirely within the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Name in the input, unique in its instance.
    pub id: String,
    /// Size in bytes.
    pub size: u64,
    /// Alignment of the offset in bytes; at least 1.
    pub align: u64,
    /// First time step at which the buffer is live.
    pub start: i64,
    /// The time step after the last at which the buffer is live.
    pub end: i64,
    /// Disjoint, ascending parts of the lifetime in which it does not need all of its bytes.
    pub gaps: Vec<Gap>,
    /// The offset that it must have.
    pub fixed: Option<u64>,
    /// The offset to prefer if that costs nothing.
    pub hint: Option<u64>,
    /// Index of a buffer with which it may share its place: both at one offset, or apart as usual.
    pub alias: Option<usize>,
    /// The memory it belongs to; buffers of different tiers never meet.
    pub tier: u32,
}

impl Buffer {
    /// Creates a buffer with a size in bytes and a lifetime `start..end`, and nothing else.
    pub fn new(id: impl Into<String>, size: u64, start: i64, end: i64) -> Self {
        let (gaps, fixed, hint, alias, tier) = (Vec::new(), None, None, None, 0);
        Self { id: id.into(), size, align: 1, start, end, gaps, fixed, hint, alias, tier }
    }

    /// Returns the number of time steps in its lifetime, gaps included.
    pub fn steps(&self) -> u64 {
        self.end.abs_diff(self.start)
    }

    /// Returns whether any of its bytes are in use at any moment; if not, it meets no other.
    pub fn is_ever_live(&self) -> bool {
        self.size > 0 && self.start < self.end && (self.gaps.is_empty() || !self.pieces().is_empty())
    }

    /// Returns whether its lifetime and that of `other`, gaps included, have a moment in common.
    pub fn meets(&self, other: &Self) -> bool {
        self.is_ever_live() && other.is_ever_live() && self.start < other.end && other.start < self.end
    }

    /// Returns whether it is a plain rectangle: no gaps, no fixed offset, nothing to share with.
    pub fn is_plain(&self) -> bool {
        self.gaps.is_empty() && self.fixed.is_none() && self.alias.is_none()
    }

    /// Returns the rectangles that it occupies, ascending in time.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(2 * self.gaps.len() + 1);
        let mut now = self.start;
        for gap in &self.gaps {
            pieces.push((now, gap.start, 0, self.size));
            if let Some((from, to)) = gap.window {
                pieces.push((gap.start, gap.end, from, to));
            }
            now = gap.end;
        }
        pieces.push((now, self.end, 0, self.size));
        pieces.retain(|&(start, end, from, to)| start < end && from < to);
        pieces
    }
}

/// Returns whether buffers `a` and `b` may share one place, whatever their lifetimes.
pub(super) fn may_share(buffers: &[Buffer], a: usize, b: usize) -> bool {
    buffers[a].alias == Some(b) || buffers[b].alias == Some(a)
}
