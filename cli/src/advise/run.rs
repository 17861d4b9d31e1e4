//! A recorded run with the lives of its blocks.

use std::sync::Arc;

use allotment_trace::{Action, Checked, Kind, Op, Program, ProgramBuilder, Reader, TraceError};

use crate::failure::Failure;
use crate::input::Input;

/// A block from its allocation to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The number of the event that allocated the block.
    pub from: usize,
    /// The number of the event that freed the block; `None` if the program did not free it.
    pub to: Option<usize>,
    /// The requested bytes: first, largest and last.
    pub sizes: [usize; 3],
    /// The alignment in bytes.
    pub align: usize,
    /// Number of resizes.
    pub resized: usize,
    /// The tag set by the program.
    pub tag: Option<Arc<str>>,
}

/// A trace with the lives of its blocks.
pub struct Run {
    /// The events.
    pub program: Program,
    /// All blocks, in the order of their allocations.
    pub lives: Vec<Life>,
    /// For each event, the index of its block in `lives`.
    pub life_of: Vec<u32>,
    /// Number of events that the program itself caused. In later events, the recorder freed the remaining blocks.
    pub end: usize,
    /// The live requested bytes after each event.
    pub live: Vec<u64>,
    /// Number of events that the recorder lost.
    pub lost: u64,
}

/// Gathers a run event by event.
#[derive(Default)]
pub struct Gathering {
    builder: ProgramBuilder,
    lives: Vec<Life>,
    /// The numbers of the live blocks' lives, by slot.
    known: Vec<u32>,
    life_of: Vec<u32>,
    live: Vec<u64>,
}

impl Gathering {
    /// Adds an event.
    ///
    /// # Errors
    /// If its figures are too large.
    pub fn push(&mut self, checked: &Checked) -> Result<(), TraceError> {
        // Refuses events that are too large, so the numbers below cannot overflow.
        self.builder.push(checked)?;
        let number = self.life_of.len();
        let event = &checked.event;
        let life = match event.action {
            Action::Allocate { size, align } => {
                let size = (size as usize).max(1);
                let align = if align == 0 { 8 } else { align as usize };
                let life = self.lives.len() as u32;
                let tag = event.tag.clone();
                self.lives.push(Life { from: number, to: None, sizes: [size; 3], align, resized: 0, tag });
                if self.known.len() <= checked.slot {
                    self.known.resize(checked.slot + 1, 0);
                }
                self.known[checked.slot] = life;
                life
            }
            Action::Reallocate { size } => {
                let life = self.known.get(checked.slot).copied().unwrap_or_default();
                if let Some(Life { sizes: [_, most, last], resized, .. }) = self.lives.get_mut(life as usize)
                {
                    *last = (size as usize).max(1);
                    *most = (*most).max(*last);
                    *resized += 1;
                }
                life
            }
            Action::Free => {
                let life = self.known.get(checked.slot).copied().unwrap_or_default();
                if let Some(life) = self.lives.get_mut(life as usize) {
                    life.to = Some(number);
                }
                life
            }
        };
        self.life_of.push(life);
        self.live.push(checked.live_bytes);
        Ok(())
    }

    /// Returns the run that `trace` was, which has been read to its end.
    pub fn finish(mut self, trace: &Reader<'_>) -> Run {
        let events = self.life_of.len();
        let tail = trace.header().tail().and_then(|tail| usize::try_from(tail).ok());
        let end = tail.unwrap_or(events).min(events);
        for &life in &self.life_of[end..] {
            // The program itself did not free it.
            self.lives[life as usize].to.take_if(|to| *to >= end);
        }
        let Self { builder, lives, life_of, live, .. } = self;
        Run { program: builder.finish(), lives, life_of, end, live, lost: trace.lost() }
    }
}

impl Run {
    /// Reads a trace.
    ///
    /// # Errors
    /// A [`Failure`] with the message for the user.
    pub fn read(input: &Input) -> Result<Self, Failure> {
        let wrong = Failure::trace(input.shown());
        let mut trace = input.whole_trace()?;
        let mut run = Gathering::default();
        for checked in trace.by_ref() {
            run.push(&checked.map_err(&wrong)?).map_err(&wrong)?;
        }
        input.warn(trace.cut(), "the events before that are used");
        if run.life_of.is_empty() {
            return Err(input.empty());
        }
        Ok(run.finish(&trace))
    }

    /// Returns the number of the first event after which the most bytes are live.
    pub fn peak_event(&self) -> usize {
        let most = self.live.iter().enumerate().max_by_key(|&(number, &bytes)| (bytes, usize::MAX - number));
        most.map_or(0, |(number, _)| number)
    }

    /// Returns whether a block is live after an event. Blocks that the recorder freed count as live to the end.
    pub fn is_live(life: &Life, event: usize) -> bool {
        life.from <= event && life.to.is_none_or(|to| to > event)
    }

    /// Returns the run with every event replaced by the result of `change`; `None` drops the event. The changes to the
    /// events of one block must be consistent.
    pub fn changed(&self, mut change: impl FnMut(usize, &Life, Op) -> Option<Op>) -> Program {
        let (mut bytes, mut peak) = (0_usize, 0);
        let mut ops = Vec::with_capacity(self.program.ops.len());
        for (number, (&op, &life)) in self.program.ops.iter().zip(&self.life_of).enumerate() {
            let Some(op) = change(number, &self.lives[life as usize], op) else { continue };
            bytes = bytes + op.after() - if op.kind == Kind::Allocate { 0 } else { op.size() };
            peak = peak.max(bytes);
            ops.push(op);
        }
        Program { ops, slots: self.program.slots, peak }
    }
}
