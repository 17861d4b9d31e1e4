//! Queues whose work runs on the test's command.

#![forbid(unsafe_code)]

use super::device::{Span, State};
use crate::lock::Mutex;
use crate::pool::{self, SourceError, SourceErrorKind};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A queue of a simulated device. Its work runs in [`Stream::step`] and [`Stream::run`], and while a caller blocks for it.
#[derive(Clone)]
pub struct Stream {
    pub(super) shared: Arc<Mutex<State>>,
    pub(super) queue: usize,
    /// The number of the capture under way; 0 for none.
    capture: Arc<AtomicU64>,
    /// `Some` in the program's handles, `None` in those of pools.
    _user: Option<Arc<()>>,
    users: Weak<()>,
}

impl Stream {
    /// Makes another stream join this stream's capture, as a wait for an event does.
    pub fn join_capture(&self, other: &Self) {
        other.capture.store(self.capture.load(Ordering::Acquire), Ordering::Release);
    }

    pub(super) fn new(shared: Arc<Mutex<State>>, queue: usize) -> Self {
        let user = Arc::new(());
        let users = Arc::downgrade(&user);
        Self { shared, queue, capture: Arc::default(), _user: Some(user), users }
    }

    /// Submits work on `bytes` bytes from `address` on behalf of `owner`, and returns its number for
    /// [`DeviceMemory::is_done`](super::DeviceMemory::is_done). If work of different owners on the same bytes runs out of submission
    /// order, that is a [`Hazard`](super::Hazard).
    pub fn launch(&self, owner: u64, address: usize, bytes: usize) -> u64 {
        self.shared.lock().launch(self.queue, owner, Span { address, bytes })
    }

    /// Runs the next work in the queue. Returns `false` if the queue is empty or waits for an event.
    pub fn step(&self) -> bool {
        self.shared.lock().step(self.queue)
    }

    /// Runs all work that need not wait.
    pub fn run(&self) {
        while self.step() {}
    }

    /// Returns the number of entries in the queue: work, marks and waits.
    pub fn pending(&self) -> usize {
        self.shared.lock().len(self.queue)
    }

    /// Begins or ends the capture of a graph; see [`pool::Stream::capture`]. Work submitted during the capture still runs.
    pub fn set_capturing(&self, on: bool) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = if on { LAST.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        self.capture.store(number, Ordering::Release);
    }
}

impl pool::Stream for Stream {
    type Event = Event;

    fn id(&self) -> u64 {
        self.queue as u64
    }

    fn record(&self) -> Result<Event, SourceError> {
        let mut state = self.shared.lock();
        state.enter("simRecord")?;
        let number = state.mark(self.queue);
        drop(state);
        Ok(Event { shared: self.shared.clone(), number })
    }

    fn wait(&self, event: &Event) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simWait")?;
        state.wait(self.queue, event.number);
        Ok(())
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simSynchronize")?;
        let done = state.drain(self.queue);
        finished(done)
    }

    fn capture(&self) -> Result<Option<u64>, SourceError> {
        match self.capture.load(Ordering::Acquire) {
            0 => Ok(None),
            number => Ok(Some(number)),
        }
    }

    fn retain(&self) -> Self {
        Self { _user: None, ..self.clone() }
    }

    fn is_abandoned(&self) -> bool {
        self.users.strong_count() == 0
    }
}

/// A point in the queue of a simulated device.
#[derive(Clone)]
pub struct Event {
    shared: Arc<Mutex<State>>,
    number: u64,
}

impl pool::Event for Event {
    fn is_done(&self) -> Result<bool, SourceError> {
        let mut state = self.shared.lock();
        state.enter("simQuery")?;
        Ok(state.is_done(self.number))
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simSynchronize")?;
        if state.is_done(self.number) {
            state.hazards.push(super::Hazard::NeedlessWait);
        }
        let done = state.run_until(self.number);
        finished(done)
    }
}

/// Returns an error if the work is not done: the queues wait for each other, so it can never finish.
fn finished(done: bool) -> Result<(), SourceError> {
    if done { Ok(()) } else { Err(State::error("simSynchronize", SourceErrorKind::Other)) }
}
