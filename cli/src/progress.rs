//! Progress bars.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressStyle};

/// Creates a progress bar of `steps` steps on the standard error; hidden unless that is a terminal.
pub fn bar(steps: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Creates a spinner with a message on the standard error; hidden unless that is a terminal.
pub fn spinner() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
    ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}
