//! The lower bound: bytes that every plan needs.

#![forbid(unsafe_code)]

use super::buffer::Buffer;
use crate::units::each;

/// The most memory that buffers need at one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Load {
    /// The first step at which the buffers need the most bytes.
    pub step: u64,
    /// Bytes that the buffers live at that step need.
    pub bytes: u64,
    /// Bytes that every plan needs: `bytes`, or more if a fixed buffer ends higher, or a buffer that is never live is larger.
    pub bound: u64,
}

impl Load {
    /// Chooses `step` if the buffers need more bytes there, or as many at an earlier step.
    const fn weigh(&mut self, buffers: &[Buffer<'_>], step: u64) {
        let bytes = load_at(buffers, step);
        if bytes > self.bytes || (bytes == self.bytes && step < self.step) {
            (self.bytes, self.step) = (bytes, step);
        }
    }

    const fn finish(mut self) -> Self {
        self.step = if self.bytes == 0 { 0 } else { self.step };
        self.bound = if self.bytes > self.bound { self.bytes } else { self.bound };
        self
    }
}

/// Computes the maximum live load with alignment. O(n²) for n buffers, times the number of different alignments.
///
/// At every step the live buffers lie side by side. Buffers of alignment g or more start at multiples of g, so each of them but the
/// uppermost takes a multiple of g; smaller ones may lie in the gaps. An output that may take its input's place counts only for the bytes
/// by which it is larger. If the sizes were not checked, sums saturate at [`u64::MAX`].
pub const fn load(buffers: &[Buffer<'_>]) -> Load {
    let mut worst = Load { step: u64::MAX, bytes: 0, bound: 0 };
    // The load rises only where a stretch of some lifetime begins. An output's saving at its first step is an estimate, so the load at
    // the next step may be higher.
    each!(i, 0..buffers.len(), {
        each!(k, 0..buffers[i].gaps.len() + 1, {
            let stretch = buffers[i].stretch(k);
            if stretch.start < stretch.end {
                worst.weigh(buffers, stretch.start);
            }
            if k == 0 && buffers[i].alias.is_some() {
                worst.weigh(buffers, buffers[i].start.saturating_add(1));
            }
        });
        let end = match buffers[i].fixed {
            Some(offset) => offset.saturating_add(buffers[i].size),
            None => buffers[i].size,
        };
        worst.bound = if end > worst.bound { end } else { worst.bound };
    });
    worst.finish()
}

/// Computes the result of [`load`] for a checked instance, given the order of its buffers by start and by end. O(n log n), plus O(n) for
/// each step that seems heavier than all before it; O(n²) with gaps or buffers that are never live.
pub(super) const fn load_sorted(buffers: &[Buffer<'_>], by_start: &[usize], by_end: &[usize]) -> Load {
    let mut align = 1;
    each!(i, 0..buffers.len(), {
        if !buffers[i].gaps.is_empty() || buffers[i].is_never_live() {
            return load(buffers);
        }
        align = if buffers[i].align > align { buffers[i].align } else { align };
    });
    let mut worst = Load { step: u64::MAX, bytes: 0, bound: 0 };
    // An estimate that is never below the load, since it pads every size to the largest alignment, which may be huge.
    let mut estimate: u128 = 0;
    let (mut s, mut e) = (0, 0);
    while s < buffers.len() {
        let step = buffers[by_start[s]].start;
        while buffers[by_end[e]].end <= step {
            estimate -= padded(buffers[by_end[e]].size, align);
            e += 1;
        }
        let mut pairs = false;
        while s < buffers.len() && buffers[by_start[s]].start == step {
            pairs |= buffers[by_start[s]].alias.is_some();
            estimate += padded(buffers[by_start[s]].size, align);
            if let Some(offset) = buffers[by_start[s]].fixed {
                let end = offset + buffers[by_start[s]].size;
                worst.bound = if end > worst.bound { end } else { worst.bound };
            }
            s += 1;
        }
        if estimate > worst.bytes as u128 {
            worst.weigh(buffers, step);
            if pairs {
                worst.weigh(buffers, step + 1);
            }
        }
    }
    worst.finish()
}

const fn padded(size: u64, align: u64) -> u128 {
    size as u128 + ((align - size % align) % align) as u128
}

/// Computes a lower bound of the bytes that the buffers live at `step` need. O(n) per different alignment.
pub const fn load_at(buffers: &[Buffer<'_>], step: u64) -> u64 {
    let mut needed = 0;
    let mut align = 1;
    // Try each alignment of the live buffers, ascending from 1.
    loop {
        let mut sum: u64 = 0;
        let mut slack = 0;
        let mut next = 0;
        each!(i, 0..buffers.len(), {
            let b = &buffers[i];
            if b.start > step || step >= b.end || (!b.gaps.is_empty() && !b.is_live(step)) {
                continue;
            }
            if b.align > align && (next == 0 || b.align < next) {
                next = b.align;
            }
            if b.align < align {
                continue;
            }
            let padding = (align - b.size % align) % align;
            slack = if padding > slack { padding } else { slack };
            sum = sum.saturating_add(b.size).saturating_add(padding);
            if let Some(input) = b.alias {
                sum -= shared(buffers, b, input, step, align, sum);
            }
        });
        let total = sum - if slack > sum { sum } else { slack };
        needed = if total > needed { total } else { needed };
        if next == 0 {
            return needed;
        }
        align = next;
    }
}

/// Returns the bytes of `sum` that `output` may save at `step` by taking the place of `input`: at most the size of the smaller one.
const fn shared(
    buffers: &[Buffer<'_>],
    output: &Buffer<'_>,
    input: usize,
    step: u64,
    align: u64,
    sum: u64,
) -> u64 {
    if input >= buffers.len() {
        return 0;
    }
    let other = &buffers[input];
    if step != output.start || other.align < align || !other.is_live(step) || !output.may_replace(other) {
        return 0;
    }
    let less = if other.size < output.size { other.size } else { output.size };
    // Pad the size as the sum does.
    let padded = less.saturating_add((align - less % align) % align);
    if padded > sum { sum } else { padded }
}
