//! The checked reader.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use crate::compress::decompressed;
use crate::error::{Place, Problem, TraceError};
use crate::event::{Action, Block, Event};
use crate::text::{self, Line};

/// How much memory a reader may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a line.
    pub line: usize,
    /// Blocks that are live at once; each takes about 50 bytes.
    pub live: usize,
    /// Different tags.
    pub tags: usize,
}

impl Default for Limits {
    /// Lines of 64 KiB, 16 Mi live blocks (under 1 GiB), 16 Ki tags.
    fn default() -> Self {
        Self { line: 64 << 10, live: 16 << 20, tags: 16 << 10 }
    }
}

/// What the first comment says: `key=value` pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    text: String,
}

impl Header {
    /// The comment without its `#`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value of a key, up to the next space.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The number of events.
    pub fn events(&self) -> Option<u64> {
        self.get("events")?.parse().ok()
    }

    /// The number of the event, from 0, from which on the recorder freed what the program had left.
    pub fn tail(&self) -> Option<u64> {
        self.get("tail")?.parse().ok()
    }
}

/// An event that goes with those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The event.
    pub event: Event,
    /// Where it stands.
    pub place: Place,
    /// The block before it; `None` for an allocation.
    pub before: Option<Block>,
    /// Requested bytes that are live after it.
    pub live_bytes: u64,
    /// Blocks that are live after it.
    pub live_blocks: usize,
}

/// Reads a trace and checks it: an iterator of [`Checked`] events that ends after the first error.
///
/// O(1) expected per event. What it keeps is one line, the live blocks and the different tags, within [`Limits`].
pub struct Reader<'a> {
    input: Box<dyn BufRead + 'a>,
    limits: Limits,
    line: Vec<u8>,
    lines: u64,
    header: Option<Header>,
    /// An event that was read while looking for the header.
    first: Option<Result<Event, TraceError>>,
    tags: HashSet<Arc<str>>,
    live: HashMap<u64, Block>,
    bytes: u64,
    events: u64,
    time: u64,
    ended: bool,
}

/// Opens a trace file, compressed or not.
///
/// # Errors
/// [`TraceError::Open`], or what is wrong up to the first event.
pub fn open(path: &Path) -> Result<Reader<'static>, TraceError> {
    let wrong = |source| TraceError::Open { path: path.into(), source };
    let file = File::open(path).map_err(wrong)?;
    if file.metadata().map_err(wrong)?.is_dir() {
        return Err(wrong(std::io::ErrorKind::IsADirectory.into()));
    }
    Reader::new(file)
}

impl<'a> Reader<'a> {
    /// Reads from `input`, compressed or not.
    ///
    /// # Errors
    /// If `input` cannot be read.
    pub fn new(input: impl Read + 'a) -> Result<Self, TraceError> {
        Self::with_limits(input, Limits::default())
    }

    /// As [`Reader::new`], with other limits.
    ///
    /// # Errors
    /// If `input` cannot be read.
    pub fn with_limits(input: impl Read + 'a, limits: Limits) -> Result<Self, TraceError> {
        let input = decompressed(input).map_err(|error| Problem::Io(error).at(Place::Line(1)))?;
        let mut reader = Self {
            input,
            limits,
            line: Vec::new(),
            lines: 0,
            header: None,
            first: None,
            tags: HashSet::new(),
            live: HashMap::new(),
            bytes: 0,
            events: 0,
            time: 0,
            ended: false,
        };
        // What precedes the first event is read now, for the header.
        reader.first = reader.read_event();
        reader.header.get_or_insert_default();
        Ok(reader)
    }

    /// What the first comment says, if one stands before the first event.
    pub fn header(&self) -> &Header {
        const NONE: &Header = &Header { text: String::new() };
        self.header.as_ref().unwrap_or(NONE)
    }

    /// Blocks that are live, with their ids, in no order.
    pub fn live(&self) -> impl Iterator<Item = (u64, Block)> {
        self.live.iter().map(|(&id, &block)| (id, block))
    }

    /// The next event as it stands there; `None` at the end.
    fn read_event(&mut self) -> Option<Result<Event, TraceError>> {
        loop {
            let place = Place::Line(self.lines + 1);
            match self.read_line() {
                Ok(false) => return None,
                Ok(true) => self.lines += 1,
                Err(problem) => return Some(Err(problem.at(place))),
            }
            match text::parse(&self.line) {
                Ok(Line::Empty) => {}
                Ok(Line::Comment(comment)) => {
                    self.header.get_or_insert_with(|| Header { text: comment.into() });
                }
                Ok(Line::Event(mut event, tag)) => {
                    if let Some(tag) = tag {
                        match self.tags.get(tag) {
                            Some(known) => event.tag = Some(known.clone()),
                            None if self.tags.len() == self.limits.tags => {
                                return Some(Err(Problem::Tags(self.limits.tags).at(place)));
                            }
                            None => {
                                let tag: Arc<str> = tag.into();
                                self.tags.insert(tag.clone());
                                event.tag = Some(tag);
                            }
                        }
                    }
                    return Some(Ok(event));
                }
                Err(problem) => return Some(Err(problem.at(place))),
            }
        }
    }

    /// Reads a line into `self.line`, without its end; false at the end of the input.
    fn read_line(&mut self) -> Result<bool, Problem> {
        self.line.clear();
        let most = self.limits.line as u64 + 1;
        if (&mut self.input).take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() as u64 == most {
            return Err(Problem::Long(self.limits.line));
        }
        Ok(true)
    }

    fn check(&mut self, event: Event) -> Result<Checked, Problem> {
        if let Some(time) = event.time {
            if time < self.time {
                return Err(Problem::Time { before: self.time, after: time });
            }
            self.time = time;
        }
        let id = event.id;
        let known = self.live.get(&id).copied();
        let (before, after) = match event.action {
            Action::Allocate { size, align } => {
                if known.is_some() {
                    return Err(Problem::Live(id));
                }
                if align != 0 && !align.is_power_of_two() {
                    return Err(Problem::Alignment(align));
                }
                if self.live.len() == self.limits.live {
                    return Err(Problem::Crowded(self.limits.live));
                }
                (None, Some(Block { size, align }))
            }
            Action::Reallocate { size } => {
                let block = known.ok_or(Problem::NotLive { id, what: "resized" })?;
                (known, Some(Block { size, ..block }))
            }
            Action::Free => {
                known.ok_or(Problem::NotLive { id, what: "freed" })?;
                (known, None)
            }
        };
        let mut bytes = self.bytes - before.map_or(0, |block| block.size);
        if let Some(Block { size, align }) = after {
            let most = i64::MAX as u64;
            if align > most || size > most - align.saturating_sub(1) {
                return Err(Problem::Size { size, align });
            }
            bytes = bytes.checked_add(size).filter(|&bytes| bytes <= most).ok_or(Problem::Total)?;
        }
        match after {
            Some(block) => self.live.insert(id, block),
            None => self.live.remove(&id),
        };
        self.bytes = bytes;
        self.events += 1;
        let (place, live_blocks) = (Place::Line(self.lines), self.live.len());
        Ok(Checked { event, place, before, live_bytes: bytes, live_blocks })
    }

    fn advance(&mut self) -> Option<Result<Checked, TraceError>> {
        let event = match self.first.take() {
            Some(event) => Some(event),
            None => self.read_event(),
        };
        let place = Place::Line(self.lines);
        match event {
            Some(event) => {
                Some(event.and_then(|event| self.check(event).map_err(|problem| problem.at(place))))
            }
            None => {
                let found = self.events;
                let said = self.header().events().filter(|&said| said != found)?;
                Some(Err(Problem::Count { said, found }.at(Place::End(found))))
            }
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Checked, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.advance();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}
