//! This program once more, for cases that end the process.

use std::process::Command;

/// Returns a command for this program: by itself, or in the emulator that runs it, which `ALLOTMENT_RUNNER` names with its arguments.
pub fn again() -> Command {
    let program = std::env::current_exe().unwrap();
    let Ok(runner) = std::env::var("ALLOTMENT_RUNNER") else { return Command::new(program) };
    let mut words = runner.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).arg(program);
    command
}
