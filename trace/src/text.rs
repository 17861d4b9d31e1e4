//! Parses and writes lines of the text format.

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use crate::error::Problem;
use crate::event::{Action, Event, Failure, Record};
use crate::tags::Tags;

/// The ASCII characters that are escaped in a tag; all characters outside ASCII are escaped too.
const ESCAPED: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Reads one line without its end; `None` if it is empty.
pub(crate) fn parse(bytes: &[u8], tags: &mut Tags) -> Result<Option<Record>, Problem> {
    let line = std::str::from_utf8(bytes).map_err(|error| Problem::Text(error.valid_up_to()))?;
    let line = line.strip_suffix('\r').unwrap_or(line);
    if let Some(note) = line.strip_prefix("# |") {
        return Ok(Some(Record::Note(note.strip_prefix(' ').unwrap_or(note).into())));
    }
    let line = line.trim();
    if let Some(stack) = line.strip_prefix("#^") {
        return Ok(Some(Record::Stack(stack.into())));
    }
    if let Some(comment) = line.strip_prefix('#') {
        return parse_comment(comment.trim(), tags).map(Some);
    }
    let mut words = line.split_ascii_whitespace();
    let Some(kind) = words.next() else { return Ok(None) };
    let mut number = |name| read_number(name, words.next());
    let (id, action) = match kind {
        "a" => (number("id")?, Action::Allocate { size: number("size")?, align: number("align")? }),
        "r" => (number("id")?, Action::Reallocate { size: number("size")? }),
        "f" => (number("id")?, Action::Free),
        other => return Err(Problem::Unknown(shown(other))),
    };
    let Extras { time, tag, address } = Extras::parse(words, tags)?;
    Ok(Some(Record::Event(Event { id, action, time, tag, address })))
}

/// Parses a comment, which may be a record that is not an event.
fn parse_comment(comment: &str, tags: &mut Tags) -> Result<Record, Problem> {
    let mut words = comment.split_ascii_whitespace();
    let first = words.next();
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok());
    match first {
        Some("failed") => {
            if let (Some(size), Some(align)) = (number(words.next()), number(words.next())) {
                let Extras { time, tag, .. } = Extras::parse(words, tags)?;
                return Ok(Record::Failure(Failure { size, align, time, tag }));
            }
        }
        Some("lost") => {
            if let (Some(events), None) = (number(words.next()), words.next()) {
                return Ok(Record::Lost(events));
            }
        }
        _ => {}
    }
    Ok(Record::Comment(comment.into()))
}

/// The optional fields after an event, in any order.
#[derive(Default)]
struct Extras {
    time: Option<u64>,
    tag: Option<Arc<str>>,
    address: Option<u64>,
}

impl Extras {
    fn parse<'a>(words: impl Iterator<Item = &'a str>, tags: &mut Tags) -> Result<Self, Problem> {
        let mut extras = Self::default();
        for word in words {
            if let (Some(time), None) = (word.strip_prefix('@'), extras.time) {
                extras.time = Some(read_number("time", Some(time))?);
            } else if let (Some(tag), None) =
                (word.strip_prefix('#').filter(|tag| !tag.is_empty()), &extras.tag)
            {
                let tag: Cow<'_, str> =
                    percent_decode_str(tag).decode_utf8().map_err(|_| Problem::Extra(shown(word)))?;
                extras.tag = Some(tags.intern(&tag)?);
            } else if let (Some(address), None) = (word.strip_prefix('&'), extras.address) {
                let address = u64::from_str_radix(address, 16);
                extras.address = Some(address.map_err(|why| Problem::Number {
                    name: "address",
                    word: shown(word),
                    why,
                })?);
            } else {
                return Err(Problem::Extra(shown(word)));
            }
        }
        Ok(extras)
    }

    fn write(&self, output: &mut impl Write) -> io::Result<()> {
        if let Some(time) = self.time {
            write!(output, " @{time}")?;
        }
        if let Some(tag) = &self.tag {
            if tag.is_empty() {
                let why = "an empty tag cannot stand in a line";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            write!(output, " #{}", utf8_percent_encode(tag, ESCAPED))?;
        }
        if let Some(address) = self.address {
            write!(output, " &{address:x}")?;
        }
        writeln!(output)
    }
}

fn read_number(name: &'static str, word: Option<&str>) -> Result<u64, Problem> {
    let word = word.filter(|word| !word.starts_with(['@', '#', '&'])).ok_or(Problem::Missing(name))?;
    word.parse().map_err(|why| Problem::Number { name, word: shown(word), why })
}

/// Shortens a word for a message.
fn shown(word: &str) -> String {
    match word.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", word[..end].escape_debug()),
        None => word.escape_debug().to_string(),
    }
}

/// Writes one line.
pub(crate) fn write(record: &Record, output: &mut impl Write) -> io::Result<()> {
    // Replace line breaks, because the rest would be read as another line or another kind of comment.
    let line = |text: &str| text.replace(['\n', '\r'], " ");
    match record {
        Record::Event(Event { id, action, time, tag, address }) => {
            match action {
                Action::Allocate { size, align } => write!(output, "a {id} {size} {align}")?,
                Action::Reallocate { size } => write!(output, "r {id} {size}")?,
                Action::Free => write!(output, "f {id}")?,
            }
            Extras { time: *time, tag: tag.clone(), address: *address }.write(output)
        }
        Record::Failure(Failure { size, align, time, tag }) => {
            write!(output, "# failed {size} {align}")?;
            Extras { time: *time, tag: tag.clone(), address: None }.write(output)
        }
        Record::Lost(events) => writeln!(output, "# lost {events}"),
        Record::Note(text) => writeln!(output, "# | {}", line(text)),
        Record::Stack(text) => writeln!(output, "#^{}", line(text)),
        Record::Comment(text) => writeln!(output, "# {}", line(text)),
    }
}
