//! Writes plans as data, source code and drawings.

mod code;
mod data;
mod drawing;
mod program;

pub use code::{Sections, c_header, rust_source};
pub use data::{csv, json, steps_csv};
pub use drawing::{html, svg};
pub use program::{MOST_OPERANDS, TooMany, rust_program};

use askama::Template;

use crate::schedule::Schedule;

/// The input of the writers.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// A name for titles and constants.
    pub name: &'a str,
    /// Lines for the head of a file about the plan's origin, such as the command and the model's hash.
    pub origin: &'a [String],
    /// The steps, and a place for every buffer and tensor.
    pub schedule: &'a Schedule,
}

impl<'a> Planned<'a> {
    /// Wraps a schedule, without lines about its origin.
    pub fn new(name: &'a str, schedule: &'a Schedule) -> Self {
        Self { name, origin: &[], schedule }
    }

    /// Returns the head of a source file: the plan's origin, each line prefixed with `mark`.
    fn head(self, mark: &str) -> String {
        let (name, peak) = (code::comment(self.name), self.schedule.solution.peak);
        let (version, proved) = (env!("CARGO_PKG_VERSION"), self.schedule.proved());
        let made = format!("{mark}Made by `allotment plan` {version} from {name}: {peak} B, {proved}.\n");
        let origin = self.origin.iter().map(|line| format!("{mark}{}\n", code::comment(line)));
        made + &origin.collect::<String>()
    }
}

/// Renders a template and ends its last line, which templates leave open.
fn rendered(template: &impl Template) -> String {
    // Writing to memory does not fail.
    template.render().unwrap_or_default() + "\n"
}

/// Returns a name with its control characters replaced by spaces, and those that turn the text's direction by question marks.
fn plain(text: &str) -> String {
    // Such text could hide code behind a comment.
    let turns = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.replace(char::is_control, " ").replace(turns, "?")
}
