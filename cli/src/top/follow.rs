//! Follows a recording and counts the memory that the program holds now.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use allotment_trace::{Action, Record, Slots, Stacks};
use serde::Serialize;

use crate::failure::Failure;
use crate::profile::{Costs, Counting, Label, Measure, holders};
use crate::record::{Control, Follower, Item};
use crate::symbols::Resolver;

/// A recording, read so far.
pub struct Follow {
    path: PathBuf,
    others: usize,
    follower: Follower,
    counting: Counting,
    slots: Slots<()>,
    stacks: Stacks,
    names: Resolver,
    /// The stack of the next event.
    stack: u32,
    begun: Instant,
    /// The costs of each line at the last moment, the total costs, and the time.
    before: HashMap<Label, Costs>,
    total_before: Costs,
    shown: Instant,
}

/// A line of the program and the memory that it holds.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub function: String,
    pub file: Option<String>,
    pub line: u32,
    #[serde(flatten)]
    pub costs: Costs,
    /// Growth of live bytes since the last moment, per second.
    pub grows: i64,
}

/// The memory of a program at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Moment {
    pub program: String,
    /// Seconds since the tool found the recording.
    pub seconds: f64,
    pub events: u64,
    pub peak: u64,
    /// Whether every figure except the events is an estimate.
    pub sampled: bool,
    /// Number of other processes and program images in the recording.
    pub others: usize,
    pub live: u64,
    pub blocks: u64,
    /// Growth of live bytes, and requests, since the last moment, per second.
    pub grows: i64,
    pub calls: u64,
    pub lines: Vec<Line>,
}

impl Moment {
    /// Returns a copy with the first lines only.
    pub fn first(&self, lines: usize) -> Self {
        Self { lines: self.lines.iter().take(lines).cloned().collect(), ..self.clone() }
    }
}

impl Follow {
    fn new(path: &Path) -> Result<Self, Failure> {
        let header = Control::header(&path.with_file_name("raw.control"));
        let now = Instant::now();
        Ok(Self {
            path: path.into(),
            others: 0,
            follower: Follower::new(path, false, true)?,
            counting: Counting::new(&header),
            slots: Slots::default(),
            stacks: Stacks::default(),
            names: Resolver::default(),
            stack: 0,
            begun: now,
            before: HashMap::new(),
            total_before: Costs::default(),
            shown: now,
        })
    }

    /// Reads the new part of `path`, which may differ from the previous file: a program may replace itself by another.
    pub fn go_on(follow: &mut Option<Self>, path: &Path, others: usize) -> Result<(), Failure> {
        if follow.as_ref().is_none_or(|follow| follow.path != path) {
            // The program may have ended just now.
            let Ok(new) = Self::new(path) else { return Ok(()) };
            *follow = Some(new);
        }
        let Some(follow) = follow else { return Ok(()) };
        follow.others = others;
        follow.read()
    }

    fn read(&mut self) -> Result<(), Failure> {
        let Self { follower, counting, slots, stacks, stack, .. } = self;
        follower.step(|item| {
            match item {
                Item::Stack(node) => *stack = node,
                Item::Record(Record::Stack(line)) => stacks.read(&line),
                Item::Record(Record::Event(event)) => {
                    let live = (event.action != Action::Free).then_some(());
                    counting.event(&event, slots.set(event.id, live), std::mem::take(stack));
                }
                Item::Record(_) => {}
            }
            Ok(())
        })
    }

    /// Returns the present moment.
    pub fn moment(&mut self, by: Measure) -> Result<Moment, Failure> {
        // The file is still open when the recording has ended.
        self.read()?;
        self.names.resolve(&mut self.stacks);
        let name = self.follower.image().and_then(Path::file_name).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let profile = self.counting.clone().finish(name, self.stacks.clone(), true);
        let seconds = self.shown.elapsed().as_secs_f64().max(1e-3);
        let per_second = |now: u64, before: u64| ((now as f64 - before as f64) / seconds) as i64;
        let mut held = HashMap::new();
        let mut lines = Vec::new();
        for holder in holders(&profile, by) {
            let before = self.before.get(&holder.label).map_or(0, |costs| costs.live);
            lines.push(Line {
                function: holder.label.function.to_string(),
                file: holder.label.file.as_deref().map(str::to_owned),
                line: holder.label.line,
                costs: holder.costs,
                grows: per_second(holder.costs.live, before),
            });
            held.insert(holder.label, holder.costs);
        }
        let total = profile.total;
        let moment = Moment {
            program: profile.name,
            seconds: self.begun.elapsed().as_secs_f64(),
            events: profile.events,
            peak: profile.peak,
            sampled: profile.sampling.is_some(),
            others: self.others,
            live: total.live,
            blocks: total.blocks,
            grows: per_second(total.live, self.total_before.live),
            calls: per_second(total.calls, self.total_before.calls).unsigned_abs(),
            lines,
        };
        (self.before, self.total_before, self.shown) = (held, total, Instant::now());
        Ok(moment)
    }
}
