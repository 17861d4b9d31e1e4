//! The state of a simulated device: its memory, queues and clock, and the misuses that it has detected.

use crate::pool::{SourceError, SourceErrorKind};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// The lowest simulated address.
pub(super) const BASE: usize = 1 << (usize::BITS - 4);

/// The names of all calls, as in [`SourceError::call`]: first the calls that change segments, then the others.
pub const CALLS: [&str; 11] = [
    "simReserve",
    "simRelease",
    "simGrow",
    "simUnmap",
    "simMap",
    "simCapacity",
    "simCopy",
    "simRecord",
    "simWait",
    "simQuery",
    "simSynchronize",
];

/// The duration of calls on the device's clock.
#[derive(Default)]
pub(super) struct Latency {
    pub(super) memory: Duration,
    pub(super) other: Duration,
}

/// A misuse that the device has detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hazard {
    /// Work ran before earlier work of another owner on the same bytes was done.
    Race {
        /// The owner of the earlier work; `u64::MAX` for a copy within the memory.
        earlier: u64,
        /// The owner whose work ran too soon.
        later: u64,
        /// The address of the first byte that both use.
        address: usize,
    },
    /// Work was submitted on bytes outside all segments.
    Unmapped {
        /// The owner of the work.
        owner: u64,
        /// The address of the work's first byte.
        address: usize,
    },
    /// A segment was released while work on it was still in a queue for which the release did not wait.
    Released {
        /// The owner of the work.
        owner: u64,
        /// The address of the segment's first byte.
        address: usize,
    },
    /// A queue or the caller waited for an event that was already done.
    NeedlessWait,
}

/// The bytes that work uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) address: usize,
    pub(super) bytes: usize,
}

impl Span {
    fn common(self, other: Self) -> Option<usize> {
        let start = self.address.max(other.address);
        let end = (self.address + self.bytes).min(other.address + other.bytes);
        (start < end).then_some(start)
    }
}

/// The owner of copies within the memory.
const COPY: u64 = u64::MAX;

/// An entry of a queue.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// Work with this number.
    Work {
        number: u64,
        owner: u64,
        span: Span,
    },
    Copy {
        number: u64,
        from: Span,
        to: Span,
    },
    /// The point that an event marks.
    Mark(u64),
    /// A wait: nothing after this entry runs before the event is done.
    Wait(u64),
}

struct Injection {
    /// The call that fails; `None` for any call.
    call: Option<&'static str>,
    /// Calls of that kind until the failure, the failing one included.
    left: u64,
    /// Number of calls that fail.
    times: u64,
    kind: SourceErrorKind,
}

/// The device's state.
#[derive(Default)]
pub(super) struct State {
    pub(super) capacity: usize,
    pub(super) used: usize,
    pub(super) segments: BTreeMap<usize, usize>,
    /// Ranges of segments without memory, by start, with their lengths.
    holes: BTreeMap<usize, usize>,
    pub(super) time: Duration,
    pub(super) latency: Latency,
    counts: BTreeMap<&'static str, u64>,
    injections: Vec<Injection>,
    queues: Vec<VecDeque<Entry>>,
    /// The number of work items and events so far; each gets the next number when it is submitted.
    submitted: u64,
    done: Vec<bool>,
    pub(super) hazards: Vec<Hazard>,
    /// Whether the memory is real, so that copies move bytes.
    visible: bool,
}

impl State {
    pub(super) fn new(capacity: usize, visible: bool) -> Self {
        let latency = Latency { memory: Duration::from_micros(100), other: Duration::from_micros(1) };
        Self { capacity, visible, latency, ..Self::default() }
    }

    /// Counts a call, and fails it if an injected failure is due.
    pub(super) fn enter(&mut self, call: &'static str) -> Result<(), SourceError> {
        *self.counts.entry(call).or_default() += 1;
        self.time += if CALLS[..5].contains(&call) { self.latency.memory } else { self.latency.other };
        let mut failure = None;
        for injection in &mut self.injections {
            if injection.call.is_none_or(|wanted| wanted == call) {
                injection.left = injection.left.saturating_sub(1);
                if injection.left == 0 && injection.times > 0 {
                    injection.times -= 1;
                    failure = Some(injection.kind);
                }
            }
        }
        self.injections.retain(|injection| injection.times > 0);
        match failure {
            Some(kind) => Err(Self::error(call, kind)),
            None => Ok(()),
        }
    }

    pub(super) fn error(call: &'static str, kind: SourceErrorKind) -> SourceError {
        let code = match kind {
            SourceErrorKind::OutOfMemory => 2,
            SourceErrorKind::Invalid => 1,
            _ => 999,
        };
        SourceError { kind, call, code }
    }

    pub(super) fn inject(&mut self, call: Option<&'static str>, nth: u64, times: u64, kind: SourceErrorKind) {
        debug_assert!(call.is_none_or(|call| CALLS.contains(&call)), "no call has this name");
        self.injections.push(Injection { call, left: nth.max(1), times, kind });
    }

    pub(super) fn count(&self, call: &str) -> u64 {
        self.counts.get(call).copied().unwrap_or(0)
    }

    pub(super) fn all_calls(&self) -> u64 {
        self.counts.values().sum()
    }

    pub(super) fn open_queue(&mut self) -> usize {
        self.queues.push(VecDeque::new());
        self.queues.len() - 1
    }

    fn number(&mut self) -> u64 {
        self.submitted += 1;
        self.done.push(false);
        self.submitted - 1
    }

    fn check_mapped(&mut self, owner: u64, span: Span) {
        if span.address < BASE {
            // This is real host memory.
            return;
        }
        let holds = |(&start, &bytes): (&usize, &usize)| span.address + span.bytes <= start + bytes;
        let hole = |(&start, &bytes): (&usize, &usize)| span.common(Span { address: start, bytes }).is_some();
        let mapped = self.segments.range(..=span.address).next_back().is_some_and(holds);
        if !mapped || self.holes.iter().any(hole) {
            self.hazards.push(Hazard::Unmapped { owner, address: span.address });
        }
    }

    /// Releases the memory of a range; returns `false` if part of it has no memory.
    pub(super) fn unmap(&mut self, span: Span) -> bool {
        let hole = |(&start, &bytes): (&usize, &usize)| span.common(Span { address: start, bytes }).is_some();
        if self.holes.iter().any(hole) {
            return false;
        }
        self.holes.insert(span.address, span.bytes);
        self.used -= span.bytes;
        true
    }

    /// Maps memory to a range within a hole; returns `false` if the range is not within a hole.
    pub(super) fn map(&mut self, span: Span) -> bool {
        let end = span.address + span.bytes;
        let hole =
            self.holes.range(..=span.address).next_back().map(|(&start, &bytes)| (start, start + bytes));
        let Some((start, last)) = hole.filter(|hole| end <= hole.1) else { return false };
        self.holes.remove(&start);
        if start < span.address {
            self.holes.insert(start, span.address - start);
        }
        if end < last {
            self.holes.insert(end, last - end);
        }
        self.used += span.bytes;
        true
    }

    /// Forgets the holes of a segment and returns their total size in bytes.
    pub(super) fn forget_holes(&mut self, segment: Span) -> usize {
        let mut bytes = 0;
        self.holes.retain(|&start, &mut hole| {
            let own = start >= segment.address && start < segment.address + segment.bytes;
            bytes += if own { hole } else { 0 };
            !own
        });
        bytes
    }

    pub(super) fn launch(&mut self, queue: usize, owner: u64, span: Span) -> u64 {
        self.check_mapped(owner, span);
        let number = self.number();
        self.queues[queue].push_back(Entry::Work { number, owner, span });
        number
    }

    pub(super) fn copy(&mut self, queue: usize, from: Span, to: Span) {
        let number = self.number();
        self.queues[queue].push_back(Entry::Copy { number, from, to });
    }

    /// Marks a point in a queue. The event of an empty queue is done at once.
    pub(super) fn mark(&mut self, queue: usize) -> u64 {
        let number = self.number();
        self.queues[queue].push_back(Entry::Mark(number));
        self.settle(queue);
        number
    }

    pub(super) fn wait(&mut self, queue: usize, event: u64) {
        if self.is_done(event) {
            self.hazards.push(Hazard::NeedlessWait);
            return;
        }
        self.queues[queue].push_back(Entry::Wait(event));
    }

    pub(super) fn is_done(&self, number: u64) -> bool {
        self.done[number as usize]
    }

    pub(super) fn len(&self, queue: usize) -> usize {
        self.queues[queue].len()
    }

    /// Removes marks and finished waits from the front of the queue.
    fn settle(&mut self, queue: usize) {
        while let Some(&entry) = self.queues[queue].front() {
            match entry {
                Entry::Mark(event) => {
                    self.queues[queue].pop_front();
                    self.done[event as usize] = true;
                    for other in 0..self.queues.len() {
                        let waits = |entry: &Entry| matches!(entry, Entry::Wait(on) if *on == event);
                        if other != queue && self.queues[other].front().is_some_and(waits) {
                            self.settle(other);
                        }
                    }
                }
                Entry::Wait(event) if self.is_done(event) => {
                    self.queues[queue].pop_front();
                }
                _ => return,
            }
        }
    }

    /// Runs the next work of the queue unless it must wait. Returns whether it ran.
    pub(super) fn step(&mut self, queue: usize) -> bool {
        self.settle(queue);
        match self.queues[queue].front().copied() {
            Some(Entry::Work { number, owner, span }) => {
                self.run(number, owner, span);
            }
            Some(Entry::Copy { number, from, to }) => {
                self.run(number, COPY, from);
                self.run(number, COPY, to);
                if self.visible {
                    let source = core::ptr::with_exposed_provenance::<u8>(from.address);
                    let target = core::ptr::with_exposed_provenance_mut::<u8>(to.address);
                    // SAFETY: the caller of `copy` guaranteed both ranges at this point of the queue.
                    unsafe { core::ptr::copy_nonoverlapping(source, target, from.bytes) };
                }
            }
            _ => return false,
        }
        self.queues[queue].pop_front();
        self.settle(queue);
        true
    }

    fn run(&mut self, number: u64, owner: u64, span: Span) {
        for queue in &self.queues {
            for entry in queue {
                let (other, earlier, used) = match *entry {
                    Entry::Work { number, owner, span } => (number, owner, [span; 2]),
                    Entry::Copy { number, from, to } => (number, COPY, [from, to]),
                    Entry::Mark(_) | Entry::Wait(_) => continue,
                };
                let common = used.iter().find_map(|used| span.common(*used));
                if let Some(address) = common.filter(|_| other < number && earlier != owner) {
                    self.hazards.push(Hazard::Race { earlier, later: owner, address });
                }
            }
        }
        self.done[number as usize] = true;
    }

    /// Runs work of any queue until `event` is done. Returns whether that was possible.
    pub(super) fn run_until(&mut self, event: u64) -> bool {
        while !self.is_done(event) {
            if !self.step_any() {
                return false;
            }
        }
        true
    }

    /// Runs work, of other queues too if necessary, until the queue is empty. Returns whether that was possible.
    pub(super) fn drain(&mut self, queue: usize) -> bool {
        while self.len(queue) > 0 {
            if !self.step(queue) && !self.step_any() {
                return false;
            }
        }
        true
    }

    fn step_any(&mut self) -> bool {
        (0..self.queues.len()).any(|queue| self.step(queue))
    }

    /// Reports work on a released segment, except work in `queue`, for which the release waits.
    pub(super) fn check_released(&mut self, queue: usize, span: Span) {
        for (number, other) in self.queues.iter().enumerate() {
            for entry in other {
                if let Entry::Work { owner, span: used, .. } = *entry {
                    if number != queue && span.common(used).is_some() {
                        self.hazards.push(Hazard::Released { owner, address: span.address });
                    }
                }
            }
        }
    }
}
