//! Queues whose work runs when the test says so.

use super::device::{Call, Span};
use super::memory::Shared;
use crate::pool::{self, SourceError, SourceErrorKind, StreamId};
use std::sync::Arc;

/// A queue of a simulated device. Its work runs in [`Stream::step`] and [`Stream::run`], and when a caller blocks
/// until it is done.
#[derive(Clone)]
pub struct Stream {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: usize,
}

impl Stream {
    /// Submits work on `bytes` bytes from `address` on behalf of `owner`, and returns its number for
    /// [`DeviceMemory::is_done`](super::DeviceMemory::is_done). Work of different owners on the same bytes that
    /// runs in another order than it was submitted is a [`Hazard`](super::Hazard).
    pub fn launch(&self, owner: u64, address: usize, bytes: usize) -> u64 {
        self.shared.lock().launch(self.queue, owner, Span { address, bytes })
    }

    /// Runs the next work in the queue. Returns `false` if there is none or it waits for an event.
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

    /// Begins or ends the capture of a graph; see [`pool::Stream::is_capturing`].
    pub fn set_capturing(&self, on: bool) {
        self.shared.lock().set_capturing(self.queue, on);
    }
}

impl pool::Stream for Stream {
    type Event = Event;

    fn id(&self) -> StreamId {
        StreamId(self.queue as u64)
    }

    fn record(&self) -> Result<Event, SourceError> {
        let mut state = self.shared.lock();
        state.enter(Call::Record)?;
        let number = state.mark(self.queue);
        drop(state);
        Ok(Event { shared: self.shared.clone(), number })
    }

    fn wait(&self, event: &Event) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter(Call::Wait)?;
        state.wait(self.queue, event.number);
        Ok(())
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter(Call::Synchronize)?;
        let done = state.drain(self.queue);
        finished(done)
    }

    fn is_capturing(&self) -> Result<bool, SourceError> {
        Ok(self.shared.lock().is_capturing(self.queue))
    }
}

/// A point in the queue of a simulated device.
#[derive(Clone)]
pub struct Event {
    shared: Arc<Shared>,
    number: u64,
}

impl pool::Event for Event {
    fn is_done(&self) -> Result<bool, SourceError> {
        let mut state = self.shared.lock();
        state.enter(Call::Query)?;
        Ok(state.is_done(self.number))
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter(Call::Synchronize)?;
        if state.is_done(self.number) {
            state.hazards.push(super::Hazard::NeedlessWait);
        }
        let done = state.run_until(self.number);
        finished(done)
    }
}

/// Fails if the queues wait for each other, so that the work can never finish.
fn finished(done: bool) -> Result<(), SourceError> {
    if done { Ok(()) } else { Err(super::device::State::error(Call::Synchronize, SourceErrorKind::Other)) }
}
