//! An observer that writes every event to a `Write` as it happens.

#![forbid(unsafe_code)]

use super::event::{Action, Event, Record};
use super::{Observation, Observer, Operation, number_of, output::Output};
use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::time::Instant;

/// An observer that writes every event, in the [binary form](super::event), to a file or any other [`Write`].
///
/// The observer does nothing until [`TraceWriter::start`], so it can be part of a `static`. Times are in nanoseconds since then, and ids
/// are addresses. Blocks older than the trace are not in it: their frees are omitted, and their reallocations are written as allocations.
/// A write error ends the trace; [`TraceWriter::finish`] returns that error. O(1) expected per event; a word of memory per live block,
/// plus the writer's buffer.
///
/// With the feature `backtrace`, on Unix, one in `BACKTRACES` allocations of each thread has a note with its
/// backtrace:
///
/// ```text
/// backtrace 5581f0a1 5581f0b2 5581f0c3                          return addresses in hexadecimal, innermost first
/// frame 5581f0a1 program::connect::h0123456789abcdef net.rs:41  one for each address, after the last event
/// ```
///
/// An allocation only collects the addresses, which needs neither memory nor a lock. [`TraceWriter::finish`] looks up their names. An
/// inlined function has its own line with the address of its caller.
///
/// ```
/// use allotment::{Heap, Observed, heap, observe::TraceWriter};
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
#[derive(Default)]
pub struct TraceWriter<const BACKTRACES: u32 = 0> {
    running: Option<Running>,
}

/// The state while a trace is written.
struct Running {
    output: Output,
    labels: Vec<&'static str>,
    live: HashSet<usize>,
    /// All return addresses so far.
    frames: BTreeSet<usize>,
    start: Instant,
}

impl<const BACKTRACES: u32> TraceWriter<BACKTRACES> {
    /// Creates an observer that has not been started.
    pub const fn new() -> Self {
        Self { running: None }
    }

    /// Starts a trace. A trace that is already running is finished first.
    ///
    /// # Errors
    ///
    /// The error of finishing the previous trace or of writing the header of the new one.
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

    /// Ends the trace, if one is running: writes the names of the frames in its backtraces, and all buffered data.
    ///
    /// # Errors
    ///
    /// The first error of the writer, now or earlier in the trace.
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
        let index = number_of(label, &self.labels).unwrap_or_else(|| {
            self.labels.push(label);
            self.output.name(self.labels.len() as u32, label);
            self.labels.len() - 1
        });
        index as u32 + 1
    }

    /// Converts an operation to an action, considering whether its block is in the trace.
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
        // A return address points past the call instruction.
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
