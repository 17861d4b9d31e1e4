//! Reads snapshots of PyTorch's memory (`torch.cuda.memory._dump_snapshot`): the events of each device's allocator, with their stacks.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use super::damaged;
use super::lines::{Lines, Place};
use super::pickle::{Pickle, Value};

/// Largest number of bytes read from a file.
const MOST: u64 = 4 << 30;

/// Writes the trace of a snapshot, for all devices; blocks of devices other than 0 have tags.
///
/// # Errors
/// If it is not a snapshot, or cannot be read or written.
pub fn convert(input: &mut dyn BufRead, output: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    input.take(MOST).read_to_end(&mut bytes)?;
    let pickle = Pickle::read(&bytes).map_err(damaged)?;
    drop(bytes);
    let top = pickle.top();
    if pickle.get(top, "segments").is_none() {
        return Err(damaged("no snapshot of PyTorch's memory: it has no `segments`"));
    }
    writeln!(output, "# name=pytorch clock=us")?;
    let mut file = File {
        pickle: &pickle,
        lines: Lines::new(output),
        live: HashMap::new(),
        frames: HashMap::new(),
        blocks: 0,
        time: 0,
    };
    let devices: Vec<(usize, &Value)> = (0..).zip(pickle.list(top, "device_traces")).collect();
    // A block that is live at the end but missing from its device's trace was live at the beginning.
    for segment in pickle.list(top, "segments") {
        let device = pickle.number(segment, "device").unwrap_or(0) as usize;
        let mut at = pickle.number(segment, "address").unwrap_or(0);
        for block in pickle.list(segment, "blocks") {
            let size = pickle.number(block, "size").unwrap_or(0);
            let address = pickle.number(block, "address").unwrap_or(at);
            at = address.saturating_add(size);
            let trace = devices.get(device).map(|&(_, trace)| trace);
            if pickle.text(block, "state") == Some("active_allocated")
                && !file.is_allocated_in(trace, address)
            {
                let size = pickle.number(block, "requested_size").unwrap_or(size);
                file.begin(device, address, size, block)?;
            }
        }
    }
    let mut entries: Vec<(u64, usize, &Value)> = Vec::new();
    for &(device, trace) in &devices {
        let Value::List(list) = trace else { return Err(damaged("a device's trace is no list")) };
        let all = list.iter().map(|&entry| pickle.value(entry));
        entries.extend(all.map(|entry| (pickle.number(entry, "time_us").unwrap_or(0), device, entry)));
    }
    // Merge the devices by time; the sort is stable, so each keeps its order.
    entries.sort_by_key(|&(time, ..)| time);
    let first = entries.first().map_or(0, |&(time, ..)| time);
    for (time, device, entry) in entries {
        file.time = file.time.max(time - first);
        let address = pickle.number(entry, "addr").unwrap_or(0);
        match pickle.text(entry, "action") {
            Some("alloc") => file.begin(device, address, pickle.number(entry, "size").unwrap_or(0), entry)?,
            Some("free_completed") => file.end(device, address)?,
            _ => {}
        }
    }
    Ok(())
}

struct File<'a> {
    pickle: &'a Pickle,
    lines: Lines<'a>,
    /// Blocks by device and address.
    live: HashMap<(usize, u64), u64>,
    /// The numbers that represent frames as addresses.
    frames: HashMap<Place, u64>,
    blocks: u64,
    time: u64,
}

impl File<'_> {
    /// Returns whether a block that is live at the end was allocated in a trace.
    fn is_allocated_in(&self, trace: Option<&Value>, address: u64) -> bool {
        let Some(Value::List(entries)) = trace else { return false };
        let is_last = |&&entry: &&u32| {
            let entry = self.pickle.value(entry);
            self.pickle.number(entry, "addr") == Some(address)
                && self.pickle.text(entry, "action") == Some("alloc")
        };
        entries.iter().rev().find(is_last).is_some()
    }

    /// Returns the node of an entry's stack.
    fn stack(&mut self, entry: &Value) -> io::Result<usize> {
        let pickle = self.pickle;
        let frames: Vec<&Value> = pickle.list(entry, "frames").collect();
        let mut node = 0;
        for frame in frames.into_iter().rev() {
            let text = |key| pickle.text(frame, key).unwrap_or_default().to_owned();
            let place = (text("name"), text("filename"), pickle.number(frame, "line").unwrap_or(0));
            let next = self.frames.len() as u64 + 1;
            let address = *self.frames.entry(place.clone()).or_insert(next);
            if address == next {
                self.lines.name(address, &[place])?;
            }
            node = self.lines.node(node, address)?;
        }
        Ok(node)
    }

    fn begin(&mut self, device: usize, address: u64, size: u64, entry: &Value) -> io::Result<()> {
        // If entries were dropped, the free of the previous block may be missing.
        self.end(device, address)?;
        let node = self.stack(entry)?;
        let tag = if device > 0 { format!(" #device{device}") } else { String::new() };
        let (block, time) = (self.blocks, self.time);
        writeln!(self.lines.output, "#^{node}\na {block} {size} 512 @{time}{tag}")?;
        self.live.insert((device, address), block);
        self.blocks += 1;
        Ok(())
    }

    fn end(&mut self, device: usize, address: u64) -> io::Result<()> {
        if let Some(block) = self.live.remove(&(device, address)) {
            writeln!(self.lines.output, "f {block} @{}", self.time)?;
        }
        Ok(())
    }
}
