//! Explains why an instance needs its memory, and which changes would save the most.

use std::cmp::Reverse;
use std::fmt;

use crate::bounds::{live_at, load_bound, load_changes};
use crate::deadline::Deadline;
use crate::model::{Buffer, Instance};
use crate::solve::Solution;

/// A remedy and the bytes by which it lowers the load bound.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Relief {
    /// The change.
    pub remedy: Remedy,
    /// The buffer's name.
    pub buffer: String,
    /// Bytes by which the bound falls.
    pub saved: u64,
}

/// Changes that can be made to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remedy {
    /// Start it after the tight moment, or end it before.
    Shorten,
    /// Halve it (a narrower type, chunks).
    Shrink,
    /// Move it to another memory for its whole life.
    Spill,
    /// Let it share the place of a buffer that ends when it starts.
    Alias,
    /// Run the operator that makes it, or its last reader, at another time.
    Reorder,
}

/// Explains why an instance needs as many bytes as it does.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Explanation {
    /// The steps with the most live bytes, as half-open ranges.
    pub steps: Vec<(i64, i64)>,
    /// Bytes live at these steps.
    pub load: u64,
    /// The name and the end of the buffer that ends above that load wherever the others lie: it has a fixed offset or is never live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone: Option<(String, u64)>,
    /// Names and bytes of the buffers live at the first such step, largest first.
    pub live: Vec<(String, u64)>,
    /// The changes that would save the most, best first.
    pub reliefs: Vec<Relief>,
    /// The requested capacity.
    pub capacity: Option<u64>,
    /// Bytes lost to packing: the plan's peak minus the bound.
    pub packing: u64,
}

/// Explains an instance and its plan, with the reliefs found before `deadline` passes. O(live · n log n).
pub fn explain(
    instance: &Instance,
    solution: &Solution,
    capacity: Option<u64>,
    deadline: &Deadline,
) -> Explanation {
    let bound = load_bound(instance, &Deadline::never()).unwrap_or_default();
    let buffers = instance.buffers();
    // The moments at which the load changes, and the load from then on.
    let loads = load_changes(instance).into_iter().scan(0, |load, (time, change)| {
        *load += change;
        Some((time, *load))
    });
    let loads: Vec<(i64, i128)> = loads.collect();
    let highest = loads.iter().map(|&(_, load)| load).max().unwrap_or(0);
    let mut steps: Vec<(i64, i64)> = Vec::new();
    for pair in loads.windows(2).filter(|pair| pair[0].1 == highest) {
        match steps.last_mut() {
            Some(last) if last.1 == pair[0].0 => last.1 = pair[1].0,
            _ => steps.push((pair[0].0, pair[1].0)),
        }
    }
    let moment = steps.first().map_or(0, |step| step.0);
    let mut live: Vec<usize> = live_at(instance, moment);
    live.sort_by_key(|&n| Reverse(buffers[n].size));
    let end = |buffer: &Buffer| buffer.fixed.unwrap_or(0) + buffer.size;
    let alone = buffers.iter().max_by_key(|&buffer| end(buffer)).filter(|&buffer| end(buffer) > bound.bytes);
    let mut reliefs = Vec::new();
    // If one buffer alone decides, no other change helps.
    for &n in live.iter().take(if alone.is_some() { 0 } else { 24 }) {
        let mut with = |remedy: Remedy, replacement: Option<Buffer>| {
            if deadline.passed() {
                return;
            }
            let mut changed = buffers.to_vec();
            for buffer in &mut changed {
                buffer.alias = None;
            }
            match replacement {
                Some(buffer) => changed[n] = buffer,
                None => {
                    changed.swap_remove(n);
                }
            }
            let lower = Instance::new(changed).ok().and_then(|changed| load_bound(&changed, deadline));
            let lower = lower.map_or(bound.bytes, |lower| lower.bytes);
            if lower < bound.bytes {
                let buffer = buffers[n].id.clone();
                reliefs.push(Relief { remedy, buffer, saved: bound.bytes - lower });
            }
        };
        let buffer = &buffers[n];
        let (first, last) = (steps.first().map_or(0, |s| s.0), steps.last().map_or(0, |s| s.1));
        if buffer.gaps.is_empty() {
            // Shorten it out of all tight steps, on the side that costs less of its life.
            if last.saturating_sub(buffer.start) <= buffer.end.saturating_sub(first) && last < buffer.end {
                with(Remedy::Shorten, Some(Buffer { start: last, ..buffer.clone() }));
            } else if buffer.start < first {
                with(Remedy::Shorten, Some(Buffer { end: first, ..buffer.clone() }));
            }
            with(Remedy::Shrink, Some(Buffer { size: buffer.size / 2, ..buffer.clone() }));
        }
        with(Remedy::Spill, None);
        // A large enough buffer that ends at most a step after this buffer starts.
        let fits = |other: &&usize| {
            let other = &buffers[**other];
            other.end > buffer.start
                && other.end <= buffer.start + 1
                && other.size >= buffer.size
                && other.id != buffer.id
        };
        if live.iter().any(|other| fits(&other)) {
            with(Remedy::Alias, None);
        }
        if buffer.start == first || buffer.end == last {
            let later = if buffer.start == first { (last, buffer.end) } else { (buffer.start, first) };
            if later.0 < later.1 && buffer.gaps.is_empty() {
                with(Remedy::Reorder, Some(Buffer { start: later.0, end: later.1, ..buffer.clone() }));
            }
        }
    }
    reliefs.sort_by_key(|relief| Reverse(relief.saved));
    let needed = alone.map_or(bound.bytes, end);
    Explanation {
        steps,
        load: bound.bytes,
        alone: alone.map(|buffer| (buffer.id.clone(), end(buffer))),
        live: live.iter().map(|&n| (buffers[n].id.clone(), buffers[n].size)).collect(),
        reliefs,
        capacity,
        packing: solution.peak.saturating_sub(needed),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.steps.iter().take(8).map(|(a, b)| format!("{a}..{b}")).collect();
        let more =
            if self.steps.len() > 8 { format!(" and {} more", self.steps.len() - 8) } else { String::new() };
        if self.load == 0 {
            writeln!(f, "No step needs memory.")?;
        } else {
            writeln!(f, "{} B are needed at steps {}{more}.", self.load, ranges.join(", "))?;
        }
        if let Some((id, end)) = &self.alone {
            writeln!(f, "{end} B are needed for {id} alone, wherever the other buffers lie.")?;
        }
        let needed = self.alone.as_ref().map_or(self.load, |&(_, end)| end);
        if let Some(over) =
            self.capacity.and_then(|capacity| needed.checked_sub(capacity)).filter(|&over| over > 0)
        {
            writeln!(f, "That is {over} B above the capacity: no placement can help.")?;
        }
        if self.packing > 0 {
            writeln!(f, "{} B of the plan are lost between buffers.", self.packing)?;
        }
        if self.load == 0 {
            return Ok(());
        }
        writeln!(f, "Live then ({} buffers):", self.live.len())?;
        for (id, size) in self.live.iter().take(12) {
            writeln!(f, "  {size:>12} B  {id}")?;
        }
        if self.alone.is_some() {
            return Ok(());
        }
        if self.reliefs.is_empty() {
            writeln!(f, "No change to one buffer alone lowers this: several steps are equally tight.")?;
        } else {
            writeln!(f, "What one change would save:")?;
        }
        for relief in self.reliefs.iter().take(10) {
            let what = match relief.remedy {
                Remedy::Shorten => "shorten the life of",
                Remedy::Shrink => "halve",
                Remedy::Spill => "spill",
                Remedy::Alias => "let share with the buffer it replaces",
                Remedy::Reorder => "move the operator at the end of",
            };
            writeln!(f, "  {:>12} B  {what} {}", relief.saved, relief.buffer)?;
        }
        Ok(())
    }
}
