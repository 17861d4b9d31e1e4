//! Fusing: joins small buffers with the same lifetime, so alignment costs memory only once.

use std::collections::BTreeMap;

use super::Inside;
use crate::model::{Buffer, Instance, InstanceError};

/// An instance with fused buffers.
#[derive(Clone, Debug)]
pub struct Fused {
    /// The instance.
    pub instance: Instance,
    /// For each old buffer the new one and its offset therein.
    pub place: Vec<(usize, u64)>,
}

impl Fused {
    /// What lies in a buffer of another name now: the old buffers that were joined, and what lay `inside` old ones.
    pub fn inside(&self, old: &Instance, inside: &[Inside]) -> Vec<Inside> {
        let joined = old.buffers().iter().zip(&self.place);
        let joined = joined.filter(|&(buffer, &(now, _))| self.instance.buffers()[now].id != buffer.id);
        let joined = joined.map(|(old, &(buffer, at))| {
            let Buffer { id, size, start, end, .. } = old;
            Inside { name: id.clone(), buffer, at, size: *size, start: *start, end: *end }
        });
        let moved = inside.iter().map(|tensor| {
            let (buffer, within) = self.place[tensor.buffer];
            Inside { buffer, at: within + tensor.at, ..tensor.clone() }
        });
        joined.chain(moved).collect()
    }

    /// The old buffers' offsets in a plan of the fused instance.
    pub fn offsets(&self, plan: &[u64]) -> Vec<u64> {
        self.place.iter().map(|&(buffer, within)| plan[buffer] + within).collect()
    }
}

/// Joins plain buffers of at most `most` bytes that share lifetime, tier and alignment class; within a fused
/// buffer each lies at a multiple of `inner` bytes (its own alignment if that is less). O(n log n).
///
/// # Errors
/// If the fused instance cannot be counted.
pub fn fuse(instance: &Instance, most: u64, inner: u64) -> Result<Fused, InstanceError> {
    let mut groups: BTreeMap<(i64, i64, u32), Vec<usize>> = BTreeMap::new();
    let mut place = vec![(0, 0); instance.len()];
    let mut buffers: Vec<Buffer> = Vec::new();
    for (n, buffer) in instance.buffers().iter().enumerate() {
        if buffer.is_plain() && buffer.hint.is_none() && buffer.size <= most && buffer.is_ever_live() {
            groups.entry((buffer.start, buffer.end, buffer.tier)).or_default().push(n);
        } else {
            place[n] = (buffers.len(), 0);
            buffers.push(buffer.clone());
        }
    }
    // Indices of shared places move with their buffers.
    let moved: Vec<usize> = place.iter().map(|&(buffer, _)| buffer).collect();
    for buffer in &mut buffers {
        if let Some(other) = buffer.alias {
            buffer.alias = (!instance.buffers()[other].is_plain()).then(|| moved[other]);
        }
    }
    for (_, members) in groups {
        let first = &instance.buffers()[members[0]];
        let mut fused = Buffer { size: 0, ..first.clone() };
        for n in members {
            let buffer = &instance.buffers()[n];
            let align = buffer.align.min(inner.max(1));
            let within = fused.size.next_multiple_of(align);
            place[n] = (buffers.len(), within);
            fused.size = within.checked_add(buffer.size).ok_or(InstanceError::TooLarge)?;
            fused.align = fused.align.max(buffer.align);
        }
        buffers.push(fused);
    }
    Ok(Fused { instance: Instance::new(buffers)?, place })
}
