//! Allocation traces: `a <id> <size> <align>`, `r <id> <new_size>`, `f <id>`, one event a line.

use std::collections::HashMap;

use super::ReadError;
use crate::model::{Buffer, Instance};

/// Reads a trace: time is the number of the event. A resized block is a new buffer, live together with the old one
/// at the moment of the copy. What is never freed lives to the end.
///
/// Lines that start with `#` are comments; ` @<timestamp>` and ` #<tag>` after an event are ignored. An alignment of
/// 0 means 1.
///
/// # Errors
/// See [`ReadError`]; lines are counted from 1.
pub fn read_trace(bytes: &[u8]) -> Result<Instance, ReadError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ReadError::Text(error.valid_up_to()))?;
    let mut buffers: Vec<Buffer> = Vec::new();
    // By the trace's id: the buffer, and how often the id was used.
    let mut live: HashMap<u64, usize> = HashMap::new();
    let mut uses: HashMap<u64, u32> = HashMap::new();
    let mut now = 0_i64;
    for (line, text) in (1..).zip(text.lines()) {
        let wrong = |what: String| ReadError::Line { line, what };
        let mut words = text.split_whitespace().take_while(|word| !word.starts_with(['@', '#']));
        let Some(event) = words.next() else {
            continue;
        };
        let mut number = |name: &str| -> Result<u64, ReadError> {
            let word = words.next().ok_or_else(|| wrong(format!("`{name}` is missing")))?;
            word.parse().map_err(|error| wrong(format!("`{name}` is `{word}`: {error}")))
        };
        let id = number("id")?;
        let mut name = |id: u64| {
            let uses = uses.entry(id).or_default();
            *uses += 1;
            if *uses == 1 { id.to_string() } else { format!("{id}.{}", *uses - 1) }
        };
        match event {
            "a" => {
                let (size, align) = (number("size")?, number("align")?.max(1));
                if live.insert(id, buffers.len()).is_some() {
                    return Err(wrong(format!("block {id} is allocated, but still live")));
                }
                buffers.push(Buffer { align, ..Buffer::new(name(id), size, now, i64::MAX) });
            }
            "r" => {
                let size = number("size")?;
                let old =
                    *live.get(&id).ok_or_else(|| wrong(format!("block {id} is resized, but not live")))?;
                buffers[old].end = now + 1;
                live.insert(id, buffers.len());
                let align = buffers[old].align;
                buffers.push(Buffer { align, ..Buffer::new(name(id), size, now, i64::MAX) });
            }
            "f" => {
                let old =
                    live.remove(&id).ok_or_else(|| wrong(format!("block {id} is freed, but not live")))?;
                buffers[old].end = now;
            }
            other => return Err(wrong(format!("`{other}` is no event: a, r or f"))),
        }
        now += 1;
    }
    for buffer in &mut buffers {
        buffer.end = buffer.end.min(now.max(buffer.start + 1));
    }
    Ok(Instance::new(buffers)?)
}
