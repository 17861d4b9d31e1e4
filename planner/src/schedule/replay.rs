//! The interpreter of schedules: fills each tensor with a pattern when it is made, and checks the pattern at each use.
//!
//! It depends only on the written schedule ([`Written`]), not on the planner. A tensor's pattern is the number of each byte under a
//! unique mark, stored by ranges: the check detects every byte that anything else has written since, and memory of any size is replayed
//! in O(log n) per operand.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use rangemap::RangeMap;

use super::Act;
use super::written::{Written, WrittenPlace, WrittenStep};
use crate::graph::Kind;

/// Why a schedule cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// A tensor's bytes were overwritten before it was read.
    #[error("step {step}, {what}: byte {byte} of `{place}` holds {found}")]
    Overwritten {
        /// The number of the step.
        step: usize,
        /// The kind of the step.
        what: String,
        /// The place that is read.
        place: String,
        /// The first wrong byte in the place.
        byte: u64,
        /// The mark found there instead.
        found: String,
    },
    /// A tensor is read before anything wrote it.
    #[error("step {step}, {what}: `{place}` was never written")]
    Unwritten {
        /// The number of the step.
        step: usize,
        /// The kind of the step.
        what: String,
        /// The place that is read.
        place: String,
    },
    /// A place is read or written outside its lifetime.
    #[error("step {step}, {what}: `{place}` is not live at time {time}")]
    NotLive {
        /// The number of the step.
        step: usize,
        /// The kind of the step.
        what: String,
        /// The place.
        place: String,
        /// The time.
        time: i64,
    },
    /// A place's offset is not aligned.
    #[error("`{0}` is not aligned")]
    Misaligned(String),
}

/// Counts of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Steps of all runs together.
    pub steps: usize,
    /// Number of times a place was filled.
    pub filled: usize,
    /// Number of times a place was checked, once at each use.
    pub checked: usize,
}

/// All memories by tier: the writer of each byte, as a tensor's mark and the address of its byte 0.
type Memory = BTreeMap<u32, RangeMap<u64, (usize, u64)>>;

/// The state of a replay.
struct Machine<'w, 'a> {
    places: HashMap<&'w str, &'w WrittenPlace<'a>>,
    memory: Memory,
    /// The mark of each place: an index into `marks`.
    holds: HashMap<&'w str, usize>,
    /// For each mark, the name of its place, in the order of filling.
    marks: Vec<&'w str>,
    done: Replayed,
    any_alias: bool,
}

/// Executes a schedule `runs` times in a row, in memory that is never cleared. Buffers that belong to no model are filled when their life
/// begins and checked when it ends.
///
/// # Errors
/// The first [`Corruption`].
pub fn replay(written: &Written, runs: usize) -> Result<Replayed, Corruption> {
    let places = written.buffers.iter().map(|place| (&*place.id, place)).collect();
    let (memory, done) = (Memory::default(), Replayed::default());
    if let Some(place) = written.buffers.iter().find(|p| p.inside.is_none() && p.offset % p.align.max(1) != 0)
    {
        return Err(Corruption::Misaligned(place.id.to_string()));
    }
    let any_alias = written.buffers.iter().any(|place| place.alias.is_some());
    let (holds, marks) = (HashMap::new(), Vec::new());
    let mut machine = Machine { places, memory, holds, marks, done, any_alias };
    for run in 0..runs {
        if written.steps.is_empty() {
            machine.lifetimes(written)?;
        }
        for (number, step) in written.steps.iter().enumerate() {
            machine.step(number, step, run)?;
            machine.done.steps += 1;
        }
    }
    Ok(machine.done)
}

/// Returns the `n`-th of `chunks` parts of `size` bytes.
fn part(size: u64, n: u64, chunks: u64) -> (u64, u64) {
    let cut = |n: u64| (u128::from(size) * u128::from(n) / u128::from(chunks.max(1))) as u64;
    (cut(n), cut(n + 1))
}

impl<'w, 'a> Machine<'w, 'a> {
    fn fill(&mut self, name: &'w str, part: (u64, u64), fresh: bool) {
        let place = self.places[name];
        if fresh || !self.holds.contains_key(name) {
            self.holds.insert(name, self.marks.len());
            self.marks.push(name);
        }
        let (from, to) = (place.offset + part.0, place.offset + part.1);
        if from < to {
            self.memory.entry(place.tier).or_default().insert(from..to, (self.holds[name], place.offset));
        }
        self.done.filled += 1;
    }

    /// Returns the first address of a range that does not hold a tensor's pattern, and the mark found there.
    fn wrong(&self, tier: u32, range: Range<u64>, own: (usize, u64)) -> Option<(u64, Option<usize>)> {
        let mut at = range.start;
        let runs = self.memory.get(&tier).filter(|_| !range.is_empty());
        for (run, &holds) in runs.into_iter().flat_map(|runs| runs.overlapping(&range)) {
            if run.start > at {
                break;
            }
            if holds != own {
                return Some((at, Some(holds.0)));
            }
            at = run.end;
        }
        (at < range.end).then_some((at, None))
    }

    fn check(
        &mut self,
        (number, what): (usize, &str),
        name: &'w str,
        (from, to): (u64, u64),
    ) -> Result<(), Corruption> {
        let (step, what, place) = (number, what.to_owned(), name.to_owned());
        let Some(&mark) = self.holds.get(name) else {
            return Err(Corruption::Unwritten { step, what, place });
        };
        let at = self.places[name];
        self.done.checked += 1;
        match self.wrong(at.tier, at.offset + from..at.offset + to, (mark, at.offset)) {
            None => Ok(()),
            Some((byte, other)) => {
                let byte = byte - at.offset;
                let found = match other.map(|mark| self.marks[mark]) {
                    Some(other) if other == name => format!("an older `{other}`"),
                    Some(other) => format!("`{other}`"),
                    None => "nothing".to_owned(),
                };
                Err(Corruption::Overwritten { step, what, place, byte, found })
            }
        }
    }

    fn step(&mut self, number: usize, step: &'w WrittenStep<'a>, run: usize) -> Result<(), Corruption> {
        let what = match step.act {
            Act::Run => format!("operator `{}`", step.operator),
            act => format!("{act:?}").to_lowercase(),
        };
        let known = |name: &&std::borrow::Cow<'a, str>| self.places.contains_key(&***name);
        let names = |list: &'w [std::borrow::Cow<'a, str>]| -> Vec<&'w str> {
            list.iter().filter(known).map(|name| &**name).collect()
        };
        let (reads, writes) = (names(&step.reads), names(&step.writes));
        for &name in reads.iter().chain(&writes) {
            let place = self.places[name];
            let gone = place.gaps.iter().any(|gap| (gap.0..gap.1).contains(&step.time) && gap.2 >= gap.3);
            if gone || !(place.start..place.end).contains(&step.time) {
                let (place, time) = (name.to_owned(), step.time);
                return Err(Corruption::NotLive { step: number, what, place, time });
            }
        }
        let (chunk, chunks) = step.chunk.unwrap_or((0, 1));
        let streamed = |name: &str| step.streamed.iter().any(|own| *own == name);
        // Of each input as large as its output, an elementwise operator needs only this chunk's part.
        let whole = writes.iter().filter(|name| !streamed(name)).map(|name| self.places[name].size).max();
        let bytes = |machine: &Self, name: &str| {
            let size = machine.places[name].size;
            let by_parts = chunks > 1 && !streamed(name) && whole.is_none_or(|whole| whole == size);
            if by_parts { part(size, chunk, chunks) } else { (0, size) }
        };
        for &name in &reads {
            let part = bytes(self, name);
            self.check((number, &what), name, part)?;
        }
        match step.act {
            Act::Given => {
                for &name in &writes {
                    let own = self.places[name];
                    if run > 0 && matches!(own.kind, Some(Kind::Constant | Kind::State)) {
                        self.check((number, &what), name, (0, own.size))?;
                    } else {
                        self.fill(name, (0, own.size), true);
                    }
                }
            }
            Act::Copy => {
                if let (&[_], &[to]) = (&reads[..], &writes[..]) {
                    self.fill(to, (0, self.places[to].size), true);
                }
            }
            _ => {
                if let (Some(original), Some(&first)) = (&step.view_of, writes.first()) {
                    self.view(original, first);
                }
                for &name in writes.iter().skip(usize::from(step.view_of.is_some())) {
                    let part = bytes(self, name);
                    self.fill(name, part, chunk == 0 || streamed(name));
                }
                // A tensor that is not overwritten on purpose must stay intact while the operator runs.
                for &name in &reads {
                    let over = step.overwrites.iter().any(|own| *own == name) || writes.contains(&name);
                    if !over {
                        let part = bytes(self, name);
                        self.check((number, &what), name, part)?;
                    }
                }
                // Two outputs must not overlap either.
                for &name in writes.iter().filter(|_| writes.len() > 1) {
                    let part = bytes(self, name);
                    self.check((number, &what), name, part)?;
                }
            }
        }
        Ok(())
    }

    /// Gives the view its original's mark, if both begin at one offset. The bytes do not change.
    fn view(&mut self, original: &str, name: &'w str) {
        let same = self.places.get(original).is_some_and(|place| place.offset == self.places[name].offset);
        match self.holds.get(original).copied().filter(|_| same) {
            Some(mark) => self.holds.insert(name, mark),
            None => self.holds.remove(name),
        };
    }

    /// Replays buffers alone: fills each when its life begins, and checks it when its life ends or pauses.
    fn lifetimes(&mut self, written: &'w Written<'a>) -> Result<(), Corruption> {
        // The time, whether bytes are filled (or checked), which bytes, and the buffer's name.
        let mut events: Vec<(i64, bool, (u64, u64), &'w str)> = Vec::new();
        for place in written.buffers.iter().filter(|place| place.size > 0) {
            // Buffers that share a place on purpose overwrite each other.
            let partner = |name: &std::borrow::Cow<'a, str>| {
                self.places.get(&**name).is_some_and(|partner| partner.offset == place.offset)
            };
            if place.alias.as_ref().is_some_and(partner) || self.shared(place, written) {
                continue;
            }
            let mut start = place.start;
            for &(pause, end, from, to) in place.gaps.iter().chain([&(place.end, place.end, 0, 0)]) {
                let whole = (0, place.size);
                if start < pause {
                    events.push((start, true, whole, &place.id));
                    events.push((pause, false, whole, &place.id));
                }
                if pause < end && from < to {
                    events.push((pause, true, (from, to), &place.id));
                    events.push((end, false, (from, to), &place.id));
                }
                start = end;
            }
        }
        // Check a buffer that ends at a time before filling one that begins then.
        events.sort_by_key(|&(time, begins, ..)| (time, begins));
        for (number, (time, begins, bytes, name)) in events.into_iter().enumerate() {
            if begins {
                self.fill(name, bytes, true);
            } else {
                self.check((number, &format!("time {time}")), name, bytes)?;
            }
            self.done.steps += 1;
        }
        Ok(())
    }

    /// Returns whether another buffer lies at the offset of `place` because the two may share it.
    fn shared(&self, place: &WrittenPlace, written: &Written) -> bool {
        self.any_alias
            && written.buffers.iter().any(|other| {
                other.alias.as_ref().is_some_and(|name| *name == place.id) && other.offset == place.offset
            })
    }
}
