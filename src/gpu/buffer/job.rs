//! Copies and fills as they are submitted: counted, and timed if the context asks for it.

use super::{Backing, Touch};
use crate::gpu::copies::{MOST_UNDER_WAY, Sample};
use crate::gpu::library::call;
use crate::gpu::stream::Stream;
use crate::pool::{CopyCounters, Direction, MemoryKind, SourceError, Stream as _};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// A copy or a fill that is about to be submitted.
pub(in crate::gpu) struct Job<'a> {
    direction: Direction,
    bytes: usize,
    /// The buffers that it uses, and how.
    sides: [Option<(&'a dyn Backing, Touch)>; 2],
}

fn is_host(memory: &dyn Backing) -> bool {
    matches!(memory.kind(), MemoryKind::Pinned | MemoryKind::Host)
}

impl<'a> Job<'a> {
    /// A copy from host memory to a buffer.
    pub(in crate::gpu) fn upload(to: &'a dyn Backing, bytes: usize) -> Self {
        let direction = if is_host(to) { Direction::OnHost } else { Direction::ToDevice };
        Self { direction, bytes, sides: [Some((to, Touch::FromHost)), None] }
    }

    /// A copy from a buffer to host memory.
    pub(in crate::gpu) fn download(from: &'a dyn Backing, bytes: usize) -> Self {
        let direction = if is_host(from) { Direction::OnHost } else { Direction::ToHost };
        Self { direction, bytes, sides: [Some((from, Touch::ToHost)), None] }
    }

    /// A fill.
    pub(in crate::gpu) fn fill(memory: &'a dyn Backing, bytes: usize) -> Self {
        Self { direction: Direction::Fill, bytes, sides: [Some((memory, Touch::OnDevice)), None] }
    }

    /// A copy from one buffer to another.
    pub(in crate::gpu) fn between(from: &'a dyn Backing, to: &'a dyn Backing, bytes: usize) -> Self {
        let (direction, touches) = match (is_host(from), is_host(to)) {
            (true, true) => (Direction::OnHost, (Touch::ToHost, Touch::FromHost)),
            // The device's copy engine reads or writes the buffer on the host.
            (true, false) => (Direction::ToDevice, (Touch::OnDevice, Touch::FromHost)),
            (false, true) => (Direction::ToHost, (Touch::ToHost, Touch::OnDevice)),
            (false, false) => {
                let is_peer = matches!((from.device(), to.device()), (Some(a), Some(b)) if a != b);
                let direction = if is_peer { Direction::Peer } else { Direction::OnDevice };
                (direction, (Touch::OnDevice, Touch::OnDevice))
            }
        };
        Self { direction, bytes, sides: [Some((from, touches.0)), Some((to, touches.1))] }
    }

    /// Submits the copy in the stream's context, and counts it if that succeeds.
    pub(in crate::gpu) fn submit(
        self,
        stream: &Stream,
        submit: impl FnOnce() -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let _bound = stream.context().enter()?;
        let copies = stream.context().copies();
        if !copies.is_timed.load(Ordering::Relaxed) || stream.is_capturing().unwrap_or(true) {
            submit()?;
            self.count(&copies.counters);
            return Ok(());
        }
        // Both events are made before the copy, so that nothing must be undone after it.
        let events = {
            let mut timed = copies.lock();
            timed.collect(&copies.counters, || stream.context().enter_relaxed());
            let is_room = timed.under_way.len() < MOST_UNDER_WAY;
            let start = is_room.then(|| timed.take_event()).flatten();
            let end = start.and_then(|_| timed.take_event());
            if end.is_none() {
                timed.events.extend(start);
            }
            start.zip(end)
        };
        let record = |event| {
            // SAFETY: both handles are alive, and of one context.
            unsafe { call!(cuEventRecord(event, stream.raw())) }
        };
        let is_marked = events.is_some_and(|(start, _)| record(start).is_ok());
        let submitted = submit();
        if submitted.is_ok() {
            self.count(&copies.counters);
        }
        if let Some((start, end)) = events {
            let is_marked = is_marked && submitted.is_ok() && record(end).is_ok();
            let mut timed = copies.lock();
            if is_marked {
                let (direction, bytes) = (self.direction, self.bytes);
                timed.under_way.push(Sample { direction, bytes, start, end, pools: self.pools() });
            } else {
                timed.events.extend([start, end]);
            }
        }
        submitted
    }

    /// The counters of the pools that the buffers belong to, each once.
    fn pools(&self) -> [Option<Arc<CopyCounters>>; 2] {
        let [first, second] = self.sides.map(|side| side.and_then(|(memory, _)| memory.copies()));
        let is_same = first.zip(second).is_some_and(|(first, second)| Arc::ptr_eq(first, second));
        [first.cloned(), second.filter(|_| !is_same).cloned()]
    }

    /// Counts a copy that the CPU has already done.
    pub(in crate::gpu) fn done(&self, stream: &Stream) {
        self.count(&stream.context().copies().counters);
    }

    /// Counts the copy in the context and in the pools.
    fn count(&self, counters: &CopyCounters) {
        let Self { direction, bytes, sides } = self;
        counters.count(*direction, *bytes);
        let mut first: Option<&Arc<CopyCounters>> = None;
        for (memory, touch) in sides.iter().flatten() {
            memory.touched(*touch, *bytes);
            if let Some(pool) = memory.copies() {
                if !first.is_some_and(|first| Arc::ptr_eq(first, pool)) {
                    pool.count(*direction, *bytes);
                }
                first = Some(pool);
            }
        }
    }
}
