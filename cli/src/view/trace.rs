//! A trace in memory: events that name blocks by dense numbers.

use std::collections::HashMap;
use std::path::Path;

use allotment_planner::read::{self, ReadError};

/// The alignment of a request that names none, in bytes.
const DEFAULT_ALIGN: u64 = 8;

/// What an event does to its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The block begins.
    Allocate,
    /// It has another size from now on.
    Resize,
    /// It ends.
    Free,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What happens.
    pub action: Action,
    /// To which block: an index of [`Trace::blocks`].
    pub block: u32,
    /// Bytes that it has from now on; 0 when it is freed.
    pub size: u64,
}

/// One block's life.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its name in the trace.
    pub id: u64,
    /// Its last size in bytes.
    pub size: u64,
    /// Its alignment in bytes.
    pub align: u64,
    /// Number of the event that allocated it.
    pub from: u32,
    /// Number of the event that freed it.
    pub to: Option<u32>,
    /// Its tag: an index of [`Trace::tags`].
    pub tag: u32,
}

impl Block {
    /// Events for which it was live, in a trace of `events`.
    pub fn lifetime(&self, events: usize) -> u64 {
        u64::from(self.to.unwrap_or(events as u32).saturating_sub(self.from))
    }
}

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// In the order in which they happened.
    pub events: Vec<Event>,
    /// In the order in which they began.
    pub blocks: Vec<Block>,
    /// The names of the tags; the first one is empty and stands for none.
    pub tags: Vec<String>,
    /// The time of each event, if every event has one.
    pub times: Option<Vec<u64>>,
    /// Events at the end that were left out: there the recorder itself freed what was still live.
    pub closing: usize,
}

impl Trace {
    /// Reads a trace, and no more than `most` events of it.
    ///
    /// A comment in the first line that says `raw=<n>` means that the recorder itself freed what was live after event
    /// `n`; these events are left out.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn read(path: &Path, most: Option<usize>) -> Result<Self, ReadError> {
        let (bytes, _) = read::read_bytes(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::parse(name, &bytes, most)
    }

    /// As [`Trace::read`], from text.
    ///
    /// # Errors
    /// See [`ReadError`]; lines are counted from 1.
    pub fn parse(name: String, bytes: &[u8], most: Option<usize>) -> Result<Self, ReadError> {
        let text = std::str::from_utf8(bytes).map_err(|error| ReadError::Text(error.valid_up_to()))?;
        let mut builder = Builder::new(name);
        let raw = text.lines().next().filter(|line| line.starts_with('#')).and_then(|line| {
            line.split_whitespace().find_map(|word| word.strip_prefix("raw=")?.parse::<usize>().ok())
        });
        let end = most.unwrap_or(usize::MAX).min(raw.unwrap_or(usize::MAX)).min(u32::MAX as usize - 1);
        for (line, text) in (1..).zip(text.lines()) {
            builder.line(text, end).map_err(|what| ReadError::Line { line, what })?;
        }
        Ok(builder.trace)
    }
}

struct Builder {
    trace: Trace,
    live: HashMap<u64, u32>,
    tags: HashMap<String, u32>,
    bytes: u64,
}

impl Builder {
    fn new(name: String) -> Self {
        let trace = Trace {
            name,
            events: vec![],
            blocks: vec![],
            tags: vec![String::new()],
            times: Some(vec![]),
            closing: 0,
        };
        Self { trace, live: HashMap::new(), tags: HashMap::from([(String::new(), 0)]), bytes: 0 }
    }

    fn line(&mut self, text: &str, end: usize) -> Result<(), String> {
        let mut words = text.split_whitespace();
        let Some(event) = words.next().filter(|word| !word.starts_with('#')) else { return Ok(()) };
        if self.trace.events.len() >= end {
            self.trace.closing += 1;
            return Ok(());
        }
        let mut number = |name: &str| -> Result<u64, String> {
            let word = words.next().ok_or_else(|| format!("`{name}` is missing"))?;
            word.parse().map_err(|error| format!("`{name}` is `{word}`: {error}"))
        };
        let id = number("id")?;
        let now = self.trace.events.len() as u32;
        match event {
            "a" => {
                let (size, align) = (number("size")?, number("align")?);
                let align = if align == 0 { DEFAULT_ALIGN } else { align };
                if !align.is_power_of_two() {
                    return Err(format!("{align} is no alignment"));
                }
                let (time, tag) = extras(words)?;
                let block = self.trace.blocks.len() as u32;
                if self.live.insert(id, block).is_some() {
                    return Err(format!("block {id} is allocated, but still live"));
                }
                let tag = self.tag(tag);
                self.grow(0, size)?;
                self.trace.blocks.push(Block { id, size, align, from: now, to: None, tag });
                self.push(Event { action: Action::Allocate, block, size }, time);
            }
            "r" => {
                let size = number("size")?;
                let (time, _) = extras(words)?;
                let &block =
                    self.live.get(&id).ok_or_else(|| format!("block {id} is resized, but not live"))?;
                let old = std::mem::replace(&mut self.trace.blocks[block as usize].size, size);
                self.grow(old, size)?;
                self.push(Event { action: Action::Resize, block, size }, time);
            }
            "f" => {
                let (time, _) = extras(words)?;
                let block =
                    self.live.remove(&id).ok_or_else(|| format!("block {id} is freed, but not live"))?;
                self.trace.blocks[block as usize].to = Some(now);
                self.bytes -= self.trace.blocks[block as usize].size;
                self.push(Event { action: Action::Free, block, size: 0 }, time);
            }
            other => return Err(format!("`{other}` is no event: a, r or f")),
        }
        Ok(())
    }

    fn grow(&mut self, old: u64, new: u64) -> Result<(), String> {
        // What is live is counted in bytes, and a page counts in doubles.
        let bytes = (self.bytes - old).checked_add(new).filter(|&bytes| bytes < 1 << 52);
        self.bytes = bytes.ok_or("more than 4 PiB are live")?;
        Ok(())
    }

    fn tag(&mut self, tag: &str) -> u32 {
        if let Some(&tag) = self.tags.get(tag) {
            return tag;
        }
        let number = self.trace.tags.len() as u32;
        self.trace.tags.push(tag.into());
        self.tags.insert(tag.into(), number);
        number
    }

    fn push(&mut self, event: Event, time: Option<u64>) {
        self.trace.events.push(event);
        match (&mut self.trace.times, time) {
            (Some(times), Some(time)) => times.push(time),
            (times, _) => *times = None,
        }
    }
}

/// The timestamp and the tag behind an event.
fn extras<'a>(words: impl Iterator<Item = &'a str>) -> Result<(Option<u64>, &'a str), String> {
    let (mut time, mut tag) = (None, "");
    for word in words {
        if let Some(number) = word.strip_prefix('@') {
            time = Some(number.parse().map_err(|error| format!("the time is `{number}`: {error}"))?);
        } else if let Some(name) = word.strip_prefix('#') {
            tag = name;
        } else {
            return Err(format!("`{word}` is one word too many"));
        }
    }
    Ok((time, tag))
}
