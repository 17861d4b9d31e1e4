//! Reads the records of a trace, unchecked.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::Path;

use crate::compress::decompressed;
use crate::decode::Decoded;
use crate::error::{Place, Problem, TraceError};
use crate::event::Record;
use crate::tags::Tags;
use crate::text;

/// Limits on the memory of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest line in bytes.
    pub line: usize,
    /// Largest number of blocks live at once; each needs about 50 bytes.
    pub live: usize,
    /// Largest number of distinct tags.
    pub tags: usize,
}

impl Default for Limits {
    /// Returns limits of 64 KiB per line, 16 Mi live blocks (under 1 GiB) and 16 Ki tags.
    fn default() -> Self {
        Self { line: 64 << 10, live: 16 << 20, tags: 16 << 10 }
    }
}

/// The sampling of a trace's blocks: each requested byte triggered a sample with a probability of 1 in `mean`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Mean number of bytes per sample.
    pub mean: u64,
}

impl Sampling {
    /// Returns the number of blocks that a block of `size` bytes represents: the reciprocal of the probability that it was chosen.
    pub fn weight(self, size: u64) -> f64 {
        -1.0 / (-(size.max(1) as f64) / self.mean as f64).exp_m1()
    }

    /// Returns the error of an estimate of `bytes` that is exceeded in one case of 20: two standard deviations. The variance is at most
    /// `mean` times `bytes`.
    pub fn error(self, bytes: u64) -> f64 {
        2.0 * (self.mean as f64 * bytes as f64).sqrt()
    }
}

/// The `key=value` pairs of the first comment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    text: String,
}

impl Header {
    /// Creates a header from the text of a comment.
    pub fn new(text: &str) -> Self {
        Self { text: text.into() }
    }

    /// Returns the comment without its `#`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the value of a key, up to the next space.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.text.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// Returns a copy of the header with another value for `key`, if it has that key.
    #[must_use]
    pub fn with(&self, key: &str, value: impl std::fmt::Display) -> Self {
        let other = |word: &str| match word.strip_prefix(key) {
            Some(rest) if rest.starts_with('=') => format!("{key}={value}"),
            _ => word.to_owned(),
        };
        Self { text: self.text.split(' ').map(other).collect::<Vec<_>>().join(" ") }
    }

    /// Returns the sampling of the trace, if it does not have all blocks.
    pub fn sampling(&self) -> Option<Sampling> {
        Some(Sampling { mean: self.get("sample")?.parse().ok().filter(|&mean| mean > 0)? })
    }

    /// Returns the number of events stated in the header.
    pub fn events(&self) -> Option<u64> {
        self.get("events")?.parse().ok()
    }

    /// Returns whether the events have the order of the run. Those of a converted profile do not.
    pub fn is_ordered(&self) -> bool {
        self.get("order") != Some("none")
    }

    /// Returns the number, from 0, of the first event in which the recorder freed blocks that the program had left.
    pub fn tail(&self) -> Option<u64> {
        let tail = self.get("tail")?.parse().ok()?;
        match self.get("tail_bytes") {
            None => Some(tail),
            // With `tail_bytes`, `tail` is the number of these events.
            Some(_) => self.events()?.checked_sub(tail),
        }
    }
}

/// Reads a trace, text or binary, compressed or not, without checking that its events are consistent: an iterator of records with their
/// places that ends after the first error.
///
/// Binary traces yield ids and tags as in the text format: if ids are addresses, allocations are numbered.
pub struct Records<'a> {
    form: Form<'a>,
    tags: Tags,
    binary: bool,
    header: Header,
    /// The records read while looking for the header, in order.
    ahead: VecDeque<Result<(Place, Record), TraceError>>,
    ended: bool,
    /// Number of events returned, and the number that the header states.
    events: u64,
    said: u64,
    /// Whether a trace that is cut off ends at the cut without an error, and the error at the cut.
    up_to_a_cut: bool,
    cut: Option<TraceError>,
}

enum Form<'a> {
    Text(Lines<'a>),
    Binary(Box<Decoded<'a>>),
}

impl<'a> Records<'a> {
    /// Reads from `input`.
    ///
    /// # Errors
    /// If `input` cannot be read, or has an invalid binary header.
    pub fn new(input: impl Read + 'a, limits: Limits) -> Result<Self, TraceError> {
        let at = |problem: Problem| problem.at(Place::Line(1));
        let mut input = decompressed(input).map_err(|error| at(error.into()))?;
        // The readers from `decompressed` return four bytes at once, if there are as many.
        let mut start = input.fill_buf().map_err(|error| at(error.into()))?;
        // Skip the byte order mark of UTF-8 that some editors put before a text.
        if start.starts_with(b"\xef\xbb\xbf") {
            input.consume(3);
            start = &[];
        }
        let binary = allotment_event::Header::is_at(start);
        let form = if binary {
            Form::Binary(Box::new(Decoded::new(input, limits.live)?))
        } else {
            Form::Text(Lines::new(input, limits.line))
        };
        let (header, ahead) = (Header::default(), VecDeque::new());
        let tags = Tags::new(limits.tags);
        let (ended, events, said, up_to_a_cut, cut) = (false, 0, 0, false, None);
        let mut records = Self { form, tags, binary, header, ahead, ended, events, said, up_to_a_cut, cut };
        // Read the records before the first event now, to find the header.
        while records.ahead.len() < AHEAD {
            match records.read() {
                None => break,
                Some(Ok((_, Record::Comment(comment)))) if records.header.text.is_empty() => {
                    records.header = Header { text: comment };
                }
                Some(record) => {
                    let last =
                        !matches!(record, Ok((_, Record::Comment(_) | Record::Lost(_) | Record::Note(_))));
                    records.ahead.push_back(record);
                    if last {
                        break;
                    }
                }
            }
        }
        records.said = records.header.events().unwrap_or(0);
        Ok(records)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// [`TraceError::Open`], and the errors of [`Records::new`].
    pub fn open(path: &Path, limits: Limits) -> Result<Records<'static>, TraceError> {
        let wrong = |source| TraceError::Open { path: path.into(), source };
        let file = File::open(path).map_err(wrong)?;
        if file.metadata().map_err(wrong)?.is_dir() {
            return Err(wrong(std::io::ErrorKind::IsADirectory.into()));
        }
        Records::new(file, limits)
    }

    /// Returns the first comment, if it comes before the first event. The records do not include it.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Lets a trace that is cut off end at the cut without an error, which [`Records::cut`] then returns.
    #[must_use]
    pub fn up_to_a_cut(mut self) -> Self {
        self.up_to_a_cut = true;
        self
    }

    /// Returns the error at which the trace is cut off, once the reader has reached it.
    pub fn cut(&self) -> Option<&TraceError> {
        self.cut.as_ref()
    }

    /// Takes the error that [`Records::cut`] returns.
    pub fn take_cut(&mut self) -> Option<TraceError> {
        self.cut.take()
    }

    /// Returns whether the trace is in binary format.
    pub fn is_binary(&self) -> bool {
        self.binary
    }

    /// Returns whether the last line read has no end.
    pub(crate) fn is_unfinished(&self) -> bool {
        matches!(&self.form, Form::Text(lines) if lines.unfinished) && self.ahead.is_empty()
    }

    /// Records a cut at `place`, if one is possible: the last line has no end, and is wrong because of `problem`. Otherwise returns the
    /// error.
    pub(crate) fn cut_by(&mut self, place: Place, problem: Problem) -> Result<(), TraceError> {
        if !self.up_to_a_cut || !self.is_unfinished() || self.events <= 1 {
            return Err(problem.at(place));
        }
        self.cut = Some(Problem::Unfinished(problem.into()).at(place));
        Ok(())
    }

    fn read(&mut self) -> Option<Result<(Place, Record), TraceError>> {
        match &mut self.form {
            Form::Text(lines) => lines.next(&mut self.tags),
            Form::Binary(decoded) => decoded.next(&mut self.tags),
        }
    }
}

/// Largest number of records read to find the header.
const AHEAD: usize = 16;

impl Iterator for Records<'_> {
    type Item = Result<(Place, Record), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let mut next = self.ahead.pop_front().or_else(|| self.read());
        let event = matches!(next, Some(Ok((_, Record::Event(_)))));
        self.events += u64::from(event);
        let said = self.said;
        // A last line without an end may be part of a longer line, even if it is a valid record.
        let part = event && self.is_unfinished();
        if self.events < said && (next.is_none() || part) {
            let found = self.events - u64::from(part);
            next = Some(Err(Problem::Count { said, found }.at(Place::End(found))));
        }
        self.ended = !matches!(next, Some(Ok(_)));
        if self.up_to_a_cut {
            if let Some(Err(error)) = next.take_if(|next| next.as_ref().is_err_and(TraceError::is_cut)) {
                self.cut = Some(error);
            }
        }
        next
    }
}

/// Reads the lines of a text.
struct Lines<'a> {
    input: Box<dyn BufRead + 'a>,
    limit: usize,
    line: Vec<u8>,
    lines: u64,
    /// Whether an event has been read.
    begun: bool,
    /// Whether the last line had no end.
    unfinished: bool,
}

impl<'a> Lines<'a> {
    fn new(input: Box<dyn BufRead + 'a>, limit: usize) -> Self {
        Self { input, limit, line: Vec::new(), lines: 0, begun: false, unfinished: false }
    }

    fn next(&mut self, tags: &mut Tags) -> Option<Result<(Place, Record), TraceError>> {
        loop {
            self.lines += 1;
            let place = Place::Line(self.lines);
            let record = match self.read_line() {
                Ok(false) => return None,
                Ok(true) => text::parse(&self.line, tags),
                Err(problem) => Err(problem),
            };
            match record {
                Ok(None) => {}
                Ok(Some(record)) => {
                    self.begun |= matches!(record, Record::Event(_));
                    return Some(Ok((place, record)));
                }
                Err(problem) if self.unfinished && self.begun => {
                    return Some(Err(Problem::Unfinished(problem.into()).at(place)));
                }
                Err(problem) => return Some(Err(problem.at(place))),
            }
        }
    }

    /// Reads a line into `self.line`, without its end; returns false at the end of the input.
    fn read_line(&mut self) -> Result<bool, Problem> {
        self.line.clear();
        let most = self.limit as u64 + 1;
        if (&mut self.input).take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() as u64 == most {
            return Err(Problem::Long(self.limit));
        } else {
            self.unfinished = true;
        }
        Ok(true)
    }
}
