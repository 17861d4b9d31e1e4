//! The reference for the planners: memory painted byte by byte and step by step, and the optimum of small instances
//! by trying every offset.

use allotment::plan::Buffer;
use std::collections::BTreeMap;

/// Whether two buffers that are live at `step` may share a place: one is the output, which begins in this step, and
/// the other its input, which ends in it.
fn hands_over(buffers: &[Buffer], input: usize, output: usize, step: u64) -> bool {
    buffers[output].alias == Some(input) && buffers[output].start == step && buffers[input].end == step + 1
}

fn live(buffer: &Buffer, step: u64) -> bool {
    (buffer.start..buffer.end).contains(&step)
        && !buffer.gaps.iter().any(|gap| (gap.start..gap.end).contains(&step))
}

fn named_apart(buffers: &[Buffer], i: usize, j: usize) -> bool {
    buffers[i].apart.contains(&j) || buffers[j].apart.contains(&i)
}

/// Returns the bytes used, or what is wrong. Checks every byte of every buffer at every step at which a lifetime
/// begins or ends, so it is only for small buffers.
pub fn paint(buffers: &[Buffer], offsets: &[u64]) -> Result<u64, String> {
    assert_eq!(buffers.len(), offsets.len());
    for (i, (b, offset)) in buffers.iter().zip(offsets).enumerate() {
        if offset % b.align != 0 {
            return Err(format!("{i} is not aligned"));
        }
        if b.fixed.is_some_and(|fixed| fixed != *offset) {
            return Err(format!("{i} is not where it must be"));
        }
    }
    let range = |i: usize| offsets[i]..offsets[i] + buffers[i].size;
    for (i, a) in buffers.iter().enumerate() {
        for &j in a.apart {
            if range(i).any(|byte| range(j).contains(&byte)) {
                return Err(format!("{i} and {j} are not apart"));
            }
        }
    }
    let mut steps: Vec<u64> = buffers.iter().flat_map(|b| [b.start, b.end]).collect();
    steps.extend(buffers.iter().flat_map(|b| b.gaps.iter().flat_map(|gap| [gap.start, gap.end])));
    for step in steps {
        let mut memory = BTreeMap::<u64, Vec<usize>>::new();
        for i in (0..buffers.len()).filter(|&i| live(&buffers[i], step)) {
            for byte in range(i) {
                let owners = memory.entry(byte).or_default();
                for &other in &*owners {
                    let pair = hands_over(buffers, i, other, step) || hands_over(buffers, other, i, step);
                    if !pair || named_apart(buffers, i, other) || offsets[i] != offsets[other] {
                        return Err(format!("{i} and {other} overlap at step {step}"));
                    }
                }
                owners.push(i);
            }
        }
    }
    Ok((0..buffers.len()).map(|i| range(i).end).max().unwrap_or(0))
}

/// Returns the smallest possible peak, by trying all offsets.
pub fn optimum(buffers: &[Buffer]) -> u64 {
    let most: u64 = buffers.iter().map(|b| b.size + b.align - 1).sum::<u64>()
        + buffers.iter().filter_map(|b| b.fixed).max().unwrap_or(0);
    let mut offsets = vec![0; buffers.len()];
    (0..=most).find(|&peak| fits(buffers, &mut offsets, 0, peak)).expect("side by side they fit")
}

fn fits(buffers: &[Buffer], offsets: &mut [u64], n: usize, peak: u64) -> bool {
    let Some(b) = buffers.get(n) else {
        return paint(buffers, offsets).is_ok();
    };
    if b.size > peak {
        return false;
    }
    let candidates = match b.fixed {
        Some(offset) => offset..=offset,
        None => 0..=peak - b.size,
    };
    candidates.step_by(b.align as usize).any(|offset| {
        offsets[n] = offset;
        offset + b.size <= peak && alone(buffers, offsets, n) && fits(buffers, offsets, n + 1, peak)
    })
}

/// Whether buffer `n` may have its offset, given the buffers before it. Only what is certainly wrong is excluded;
/// [`paint`] decides.
fn alone(buffers: &[Buffer], offsets: &[u64], n: usize) -> bool {
    (0..n).all(|i| {
        let end = |k: usize| offsets[k] + buffers[k].size;
        let overlap = offsets[i].max(offsets[n]) < end(i).min(end(n));
        let plain = [i, n].iter().all(|&k| buffers[k].gaps.is_empty() && buffers[k].alias.is_none());
        let (start, end) = (buffers[i].start.max(buffers[n].start), buffers[i].end.min(buffers[n].end));
        !(overlap && plain && start < end)
    })
}
