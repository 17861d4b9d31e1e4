//! The record of every event, written as it comes.

use super::event::{Action, Event, Record};
use super::observer::{Observation, Observer, Operation};
use super::output::Output;
use std::collections::{BTreeSet, HashSet};
use std::format;
use std::io::{self, Write};
use std::string::String;
use std::time::Instant;
use std::vec::Vec;

/// An observer that writes every event, in the [binary form](super::event), to a file or any other [`Write`].
///
/// Until [`TraceWriter::start`] it does nothing, so that it can stand in a `static`. Times are in nanoseconds since then;
/// ids are addresses. Blocks that are older than the trace are not in it: what is freed of them is left out, and what
/// is reallocated is allocated for the trace. An error of the writer ends the trace; [`TraceWriter::finish`] returns
/// it. O(1) expected per event; a word of memory per live block, and what the writer takes.
///
/// With the feature `backtrace`, on Unix, one of `BACKTRACES` allocations of each thread has a note with its backtrace:
///
/// ```text
/// backtrace 5581f0a1 5581f0b2 5581f0c3                          return addresses, hexadecimal, the innermost first
/// frame 5581f0a1 program::connect::h0123456789abcdef net.rs:41  one for each address, after the last event
/// ```
///
/// Only the addresses are taken when a block is allocated, which needs neither memory nor a lock; their names are
/// looked up by [`TraceWriter::finish`]. A frame that was inlined into another has a line of its own with the same address.
///
/// ```
/// use allotment::{Heap, heap, observe::{Observed, TraceWriter}};
///
/// #[global_allocator]
/// static HEAP: Observed<Heap, TraceWriter> = Observed::new(heap!(1024 * 1024), TraceWriter::new());
///
/// # fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("allotment-doc-{}", std::process::id()));
/// let file = std::fs::File::create(&path)?;
/// HEAP.observers(|trace| trace.start(file))?;
/// drop(String::from("on the heap"));
/// HEAP.observers(|trace| trace.finish())?;
/// # assert!(std::fs::read(&path)?.len() > 16);
/// # std::fs::remove_file(path)
/// # }
/// ```
pub struct TraceWriter<const BACKTRACES: u32 = 0> {
    running: Option<Running>,
}

/// What there is while a trace is written.
struct Running {
    output: Output,
    labels: Vec<&'static str>,
    live: HashSet<usize>,
    /// All return addresses.
    frames: BTreeSet<usize>,
    start: Instant,
}

impl<const BACKTRACES: u32> Default for TraceWriter<BACKTRACES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BACKTRACES: u32> TraceWriter<BACKTRACES> {
    /// One that has not been started.
    pub const fn new() -> Self {
        Self { running: None }
    }

    /// Starts a trace; one that is being written is finished first.
    ///
    /// # Errors
    ///
    /// What the writers return.
    pub fn start(&mut self, out: impl Write + Send + 'static) -> io::Result<()> {
        self.finish()?;
        self.running = Some(Running {
            output: Output::new(out)?,
            labels: Vec::new(),
            live: HashSet::new(),
            frames: BTreeSet::new(),
            start: Instant::now(),
        });
        Ok(())
    }

    /// Ends the trace, if there is one: names the frames of its backtraces and writes what is left.
    ///
    /// # Errors
    ///
    /// What the writer returned, now or before.
    pub fn finish(&mut self) -> io::Result<()> {
        let Some(mut running) = self.running.take() else { return Ok(()) };
        for address in core::mem::take(&mut running.frames) {
            running.name_frame(address);
        }
        running.output.finish()
    }
}

impl Running {
    fn tag(&mut self, tag: Option<&'static str>) -> u32 {
        let Some(label) = tag else { return 0 };
        let known = self.labels.iter().position(|known| core::ptr::eq(*known, label) || *known == label);
        let index = known.unwrap_or_else(|| {
            self.labels.push(label);
            self.output.name(self.labels.len() as u32, label);
            self.labels.len() - 1
        });
        index as u32 + 1
    }

    /// What happened, as far as the trace knows of the block.
    fn known(&mut self, operation: Operation) -> Option<Action> {
        match operation {
            Operation::Allocate { block, .. } => {
                self.live.insert(block);
            }
            Operation::Reallocate { block, layout, to, size } => {
                let known = self.live.remove(&block);
                self.live.insert(to);
                if !known {
                    let (id, size, align) = (to as u64, size as u64, layout.align() as u64);
                    return Some(Action::Allocate { id, size, align });
                }
            }
            Operation::Free { block, .. } if !self.live.remove(&block) => return None,
            Operation::Free { .. } | Operation::Fail { .. } => {}
        }
        Some(operation.into())
    }

    #[cfg(all(feature = "backtrace", unix))]
    fn name_frame(&mut self, address: usize) {
        let mut lines = Vec::new();
        // The address is that of the instruction behind the call.
        backtrace::resolve(address.wrapping_sub(1) as *mut _, |symbol| {
            let name = symbol.name().map_or_else(|| String::from("?"), |name| format!("{name}"));
            let mut line = format!("frame {address:x} {name}");
            if let (Some(file), Some(number)) = (symbol.filename(), symbol.lineno()) {
                line += &format!(" {}:{number}", file.display());
            }
            lines.push(line);
        });
        lines.iter().for_each(|line| self.output.note(line));
    }

    #[cfg(not(all(feature = "backtrace", unix)))]
    fn name_frame(&mut self, _: usize) {}
}

impl<const BACKTRACES: u32> Observer for TraceWriter<BACKTRACES> {
    const BACKTRACES: u32 = BACKTRACES;

    fn observe(&mut self, observation: &Observation<'_>) {
        let Some(running) = &mut self.running else { return };
        let Some(action) = running.known(observation.operation) else { return };
        let time = Some(running.start.elapsed().as_nanos() as u64);
        let tag = running.tag(observation.tag);
        running.output.write(&Record::Event(Event { action, time, tag }));
        if !observation.backtrace.is_empty() {
            let mut text = String::from("backtrace");
            for address in observation.backtrace {
                text += &format!(" {address:x}");
            }
            running.frames.extend(observation.backtrace);
            running.output.note(&text);
        }
    }
}
