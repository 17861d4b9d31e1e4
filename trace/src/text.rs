//! Lines of the text form.

use crate::error::Problem;
use crate::event::{Action, Event};

/// A line that is no event, or an event with its tag still as text.
pub(crate) enum Line<'a> {
    Empty,
    Comment(&'a str),
    Event(Event, Option<&'a str>),
}

/// Reads one line without its end.
pub(crate) fn parse(bytes: &[u8]) -> Result<Line<'_>, Problem> {
    let text = std::str::from_utf8(bytes).map_err(|error| Problem::Text(error.valid_up_to()))?.trim();
    if text.is_empty() {
        return Ok(Line::Empty);
    }
    if let Some(comment) = text.strip_prefix('#') {
        return Ok(Line::Comment(comment.trim()));
    }
    // A tag reaches to the end of the line, and no word before it starts with `#`.
    let (text, tag) = match text.split_once(" #") {
        Some((text, tag)) => (text, Some(tag.trim()).filter(|tag| !tag.is_empty())),
        None => (text, None),
    };
    let mut words = text.split_ascii_whitespace();
    let kind = words.next().unwrap_or_default();
    let mut number = |name| {
        let word = words.next().filter(|word| !word.starts_with('@')).ok_or(Problem::Missing(name))?;
        read_number(name, word)
    };
    let (id, action) = match kind {
        "a" => (number("id")?, Action::Allocate { size: number("size")?, align: number("align")? }),
        "r" => (number("id")?, Action::Reallocate { size: number("size")? }),
        "f" => (number("id")?, Action::Free),
        other => return Err(Problem::Unknown(shown(other))),
    };
    let time = match words.next() {
        None => None,
        Some(word) => match word.strip_prefix('@') {
            Some(time) => Some(read_number("time", time)?),
            None => return Err(Problem::Extra(shown(word))),
        },
    };
    if let Some(word) = words.next() {
        return Err(Problem::Extra(shown(word)));
    }
    Ok(Line::Event(Event { id, action, time, tag: None }, tag))
}

fn read_number(name: &'static str, word: &str) -> Result<u64, Problem> {
    word.parse().map_err(|why| Problem::Number { name, word: shown(word), why })
}

/// As much of a word as belongs into a message.
fn shown(word: &str) -> String {
    match word.char_indices().nth(40) {
        Some((end, _)) => format!("{}...", word[..end].escape_debug()),
        None => word.escape_debug().to_string(),
    }
}
