//! Reads a trace and counts.

use std::sync::Arc;
use std::time::Duration;

use allotment_trace::{Action, Checked, Event, Header, Reader, Sampling, Stacks};
use foldhash::HashMap;

use super::costs::{Costs, Ledger, Measure, Numbers, Weight, Weights};
use super::parts::{Counter, Part, Parts};
use crate::failure::Failure;
use crate::input::Input;

/// A moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// After this many events.
    Events(u64),
    /// This long after the first event.
    Time(Duration),
}

impl std::str::FromStr for Mark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(events) = text.parse() {
            return Ok(Self::Events(events));
        }
        match humantime::parse_duration(text) {
            Ok(time) => Ok(Self::Time(time)),
            Err(_) => Err("write a number of events, such as 5000, or a time, such as 10s".into()),
        }
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Events(events) => write!(f, "event {events}"),
            Self::Time(time) => write!(f, "{}", humantime::format_duration(*time)),
        }
    }
}

/// The costs of a run, by stack, tag and size.
pub struct Profile {
    /// The trace's name.
    pub name: String,
    pub events: u64,
    /// The sample, if the trace has not all blocks: all costs are estimates then.
    pub sampling: Option<Sampling>,
    /// Whether its events have the order of the run. A profile's were made up, so that nothing depends on moments.
    pub ordered: bool,
    /// The time from the first event to the last, if the trace has times in nanoseconds.
    pub time: Option<Duration>,
    /// The peak of the live bytes, and the event after which it was reached.
    pub peak: u64,
    pub peak_event: u64,
    /// The costs of the whole run.
    pub total: Costs,
    pub stacks: Stacks,
    /// Costs by the number of the stack; 0 stands for requests without one.
    pub by_stack: Vec<Costs>,
    /// When the oldest and the newest live block of each stack were allocated: events.
    pub since: HashMap<u32, (u64, u64)>,
    pub by_tag: Vec<(Arc<str>, Costs)>,
    pub by_size: Vec<(u64, Costs)>,
    /// The same in parts, if that was asked for.
    pub parts: Option<Parts>,
    /// The times of the events in `since`, in nanoseconds after the first event.
    times: HashMap<u64, u64>,
}

/// A live block.
#[derive(Clone)]
struct Live {
    weight: Weight,
    stack: u32,
    tag: u32,
    class: u32,
    /// Its part, if parts are counted.
    part: u32,
    event: u64,
    time: Option<u64>,
}

/// Counts the events of a run, one after the other.
#[derive(Clone)]
pub struct Counting {
    /// By slot.
    live: Vec<Option<Live>>,
    stacks: Ledger,
    tags: Ledger,
    sizes: Ledger,
    total: Ledger,
    names: Numbers<Arc<str>>,
    classes: Numbers<u64>,
    peak: (u64, u64),
    events: u64,
    /// The first time and the last.
    times: Option<(u64, u64)>,
    /// The block of the last request.
    last: Option<u64>,
    sampling: Option<Sampling>,
    ordered: bool,
    weights: Weights,
    /// From this event on the recorder itself frees what is still live.
    tail: Option<u64>,
    parts: Option<Counter>,
}

impl Profile {
    /// Reads a trace, up to a mark if there is one, and names its stacks.
    ///
    /// # Errors
    /// If the trace is wrong or empty.
    pub fn read(input: &Input, until: Option<Mark>) -> Result<Self, Failure> {
        let reader = input.trace()?.with_stacks();
        let counting = Counting::new(reader.header());
        Self::counted(input, reader, counting, until)
    }

    /// Reads a trace in parts, like [`Profile::read`].
    ///
    /// # Errors
    /// If the trace is wrong or empty.
    pub fn read_parts(input: &Input) -> Result<Self, Failure> {
        let reader = input.trace()?.with_stacks();
        let counting = Counting::with_parts(reader.header());
        Self::counted(input, reader, counting, None)
    }

    fn counted(
        input: &Input,
        mut reader: Reader<'_>,
        mut counting: Counting,
        until: Option<Mark>,
    ) -> Result<Self, Failure> {
        if until.is_some() && !counting.ordered {
            return Err(Failure::Other(format!(
                "{}: a profile does not say in which order blocks come and go, so it has no moment to stop at",
                input.shown().display()
            )));
        }
        let mut reached = false;
        for checked in &mut reader {
            let checked = checked.map_err(Failure::trace(input.shown()))?;
            reached |= match until {
                Some(Mark::Events(events)) => counting.events >= events,
                Some(Mark::Time(time)) => counting.is_after(&checked, time),
                None => false,
            };
            // The names of functions stand behind the last event.
            if !reached {
                counting.event(&checked.event, checked.slot, checked.stack);
            }
        }
        if counting.events == 0 && until.is_none() {
            return Err(input.empty());
        }
        if matches!(until, Some(Mark::Time(_))) && counting.events > 0 && counting.times.is_none() {
            return Err(Failure::Other(format!(
                "{}: the trace has no times: give a number of events",
                input.shown().display()
            )));
        }
        input.warn(reader.cut(), "the events before that are counted");
        Self::named(input, &mut reader, counting)
    }

    /// Ends the counts of a trace that was read to its end, and names its stacks.
    ///
    /// # Errors
    /// If the firmware that has the names cannot be read.
    pub fn named(input: &Input, reader: &mut Reader<'_>, counting: Counting) -> Result<Self, Failure> {
        let clock = reader.header().get("clock") == Some("ns") || reader.is_binary();
        let mut stacks = reader.take_stacks();
        input.name(&mut stacks)?;
        let name = input.shown().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(counting.finish(name, stacks, clock))
    }

    /// Returns the time of an event in `since`, from the first event on.
    pub fn time_of(&self, event: u64) -> Option<Duration> {
        self.time?;
        self.times.get(&event).map(|&time| Duration::from_nanos(time))
    }

    /// Refuses a measure that the trace does not know.
    ///
    /// # Errors
    /// If the trace is a sample or a profile and lacks it.
    pub fn check(&self, by: Measure, input: &Input) -> Result<(), Failure> {
        let path = input.shown().display();
        match by {
            Measure::Temporary if self.sampling.is_some() => Err(Failure::Other(format!(
                "{path}: a sample does not say what is freed before the next request: record without --sample"
            ))),
            Measure::Peak | Measure::Temporary if !self.ordered => Err(Failure::Other(format!(
                "{path}: a profile does not say in which order blocks come and go, so not what is {}",
                by.meaning()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns whether the trace says who asked for its blocks.
    pub fn has_stacks(&self) -> bool {
        self.by_stack.iter().skip(1).any(|costs| costs.calls > 0)
    }

    /// Returns whether the trace has tags.
    pub fn has_tags(&self) -> bool {
        self.by_tag.iter().any(|(tag, _)| !tag.is_empty())
    }
}

impl Counting {
    /// Begins with a trace's header.
    pub fn new(header: &Header) -> Self {
        let mut counting = Self {
            live: Vec::new(),
            stacks: Ledger::default(),
            tags: Ledger::default(),
            sizes: Ledger::default(),
            total: Ledger::default(),
            names: Numbers(HashMap::default()),
            classes: Numbers(HashMap::default()),
            peak: (0, 0),
            events: 0,
            times: None,
            last: None,
            sampling: header.sampling(),
            ordered: header.is_ordered(),
            weights: Weights::new(header),
            tail: header.tail(),
            parts: None,
        };
        counting.names.of("".into());
        counting
    }

    /// Begins like [`Counting::new`], and counts in parts as well.
    pub fn with_parts(header: &Header) -> Self {
        Self { parts: Some(Counter::new()), ..Self::new(header) }
    }

    /// Returns whether an event comes later than `time` after the first one.
    fn is_after(&self, checked: &Checked, time: Duration) -> bool {
        let (Some((first, _)), Some(now)) = (self.times, checked.event.time) else { return false };
        u128::from(now - first) > time.as_nanos()
    }

    /// Counts an event of the block in a slot ([`Checked::slot`]), and the stack that made it; 0 is no stack.
    pub fn event(&mut self, event: &Event, slot: usize, stack: u32) {
        if self.tail.is_some_and(|tail| self.events >= tail) && event.action == Action::Free {
            return;
        }
        if let Some(time) = event.time {
            self.times = Some((self.times.map_or(time, |(first, _)| first), time));
        }
        if self.live.len() <= slot {
            self.live.resize(slot + 1, None);
        }
        let known = self.live[slot].take();
        if let Some(live) = &known {
            // A sample does not say what was asked for in between.
            let temporary =
                event.action == Action::Free && self.last == Some(event.id) && self.sampling.is_none();
            let lifetime = self.events - live.event;
            self.stacks.end(live.stack, live.weight, lifetime, temporary);
            self.tags.end(live.tag, live.weight, lifetime, temporary);
            self.sizes.end(live.class, live.weight, lifetime, temporary);
            self.total.end(0, live.weight, lifetime, temporary);
            if let Some(parts) = &mut self.parts {
                parts.end(live.part, live.weight, lifetime, temporary);
            }
        }
        if let Action::Allocate { size, .. } | Action::Reallocate { size } = event.action {
            let class = self.classes.of(size);
            // A resize without a stack or a tag leaves the block to whom it belongs.
            let stack = if stack > 0 { stack } else { known.as_ref().map_or(0, |live| live.stack) };
            let tag = match &event.tag {
                Some(tag) => self.names.of(tag.clone()),
                None => known.as_ref().map_or(0, |live| live.tag),
            };
            let weight = self.weights.of(size);
            self.stacks.begin(stack, weight);
            self.tags.begin(tag, weight);
            self.sizes.begin(class, weight);
            self.total.begin(0, weight);
            let part = Part { stack, tag, class: u64::BITS - size.leading_zeros() };
            let live = Live {
                weight,
                stack,
                tag,
                class,
                part: self.parts.as_mut().map_or(0, |parts| parts.begin(part, weight)),
                event: self.events,
                time: self.times.map(|(_, last)| last),
            };
            self.live[slot] = Some(live);
            self.last = Some(event.id);
            let live = self.total.costs[0].live;
            if live > self.peak.0 {
                self.peak = (live, self.events);
                let parts = self.parts.as_mut().map(|parts| &mut parts.ledger);
                let all = [&mut self.stacks, &mut self.tags, &mut self.sizes, &mut self.total];
                all.into_iter().chain(parts).for_each(Ledger::peak);
            }
        }
        self.events += 1;
        if let Some(parts) = &mut self.parts {
            parts.after(self.events);
        }
    }

    /// Returns the counts. `clock` says whether times are nanoseconds.
    pub fn finish(self, name: String, stacks: Stacks, clock: bool) -> Profile {
        let mut since: HashMap<u32, (u64, u64)> = HashMap::default();
        let mut times = HashMap::default();
        let first = self.times.map_or(0, |(first, _)| first);
        for live in self.live.iter().flatten() {
            let span = since.entry(live.stack).or_insert((live.event, live.event));
            *span = (span.0.min(live.event), span.1.max(live.event));
            if let Some(time) = live.time {
                times.insert(live.event, time - first);
            }
        }
        let time = self.times.filter(|_| clock).map(|(first, last)| Duration::from_nanos(last - first));
        let total = self.total.costs.first().copied().unwrap_or_default();
        let (tags, sizes) = (self.names.values(), self.classes.values());
        let parts = self.parts.map(|parts| parts.finish(self.events, tags.clone()));
        let mut by_tag: Vec<_> = tags.into_iter().zip(self.tags.costs).collect();
        by_tag.retain(|(_, costs)| costs.calls > 0);
        Profile {
            name,
            events: self.events,
            sampling: self.sampling,
            ordered: self.ordered,
            time,
            peak: self.peak.0,
            peak_event: self.peak.1,
            total,
            stacks,
            by_stack: self.stacks.costs,
            since,
            by_tag,
            by_size: sizes.into_iter().zip(self.sizes.costs).collect(),
            parts,
            times,
        }
    }
}
