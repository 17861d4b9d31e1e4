//! Reads allocation traces (see the crate `allotment-trace`) as instances.

use std::collections::HashMap;

use allotment_trace::{Action, Place, Reader, TraceError};

use super::ReadError;
use crate::model::{Buffer, Instance};

impl From<TraceError> for ReadError {
    fn from(error: TraceError) -> Self {
        match error {
            TraceError::Open { path, source } => Self::Io { path, source },
            TraceError::At { place: Place::Line(line), problem } => {
                Self::Line { line, what: problem.to_string() }
            }
            other => Self::Trace(other),
        }
    }
}

/// Reads a trace: time is the number of the event. A resized block is a new buffer, live together with the old one at the moment of the
/// copy. Blocks that are never freed live to the end.
///
/// Times and tags are ignored. An alignment of 0 means 1.
///
/// # Errors
/// See [`ReadError`]; lines are counted from 1.
pub fn read_trace(bytes: &[u8]) -> Result<Instance, ReadError> {
    read_events(&mut Reader::new(bytes)?)
}

/// Reads the events of a trace like [`read_trace`].
///
/// # Errors
/// See [`ReadError`]; lines are counted from 1.
pub fn read_events(trace: &mut Reader<'_>) -> Result<Instance, ReadError> {
    let mut buffers: Vec<Buffer> = Vec::new();
    // By the trace's id: the buffer, and the number of uses of the id.
    let mut live: HashMap<u64, usize> = HashMap::new();
    let mut uses: HashMap<u64, u32> = HashMap::new();
    let mut now = 0_i64;
    for checked in trace {
        let event = checked?.event;
        let id = event.id;
        let old = match event.action {
            Action::Free => live.remove(&id),
            _ => live.insert(id, buffers.len()),
        };
        let align = old.map(|old| buffers[old].align);
        if let Some(old) = old {
            // Both blocks are live at the moment of a copy.
            buffers[old].end = now + i64::from(event.action != Action::Free);
        }
        if let Action::Allocate { size, .. } | Action::Reallocate { size } = event.action {
            let align = match event.action {
                Action::Allocate { align, .. } => align.max(1),
                _ => align.unwrap_or(1),
            };
            let uses = uses.entry(id).or_default();
            *uses += 1;
            let name = if *uses == 1 { id.to_string() } else { format!("{id}.{}", *uses - 1) };
            buffers.push(Buffer { align, ..Buffer::new(name, size, now, i64::MAX) });
        }
        now += 1;
    }
    for buffer in &mut buffers {
        buffer.end = buffer.end.min(now.max(buffer.start + 1));
    }
    Ok(Instance::new(buffers)?)
}
