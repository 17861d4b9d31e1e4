//! `allotment top`: shows who holds the memory of a program while it runs.
//!
//! `allotment record` runs in another process; `follow` reads the recording so far, and `screen` draws it.

mod follow;
mod screen;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT};
use tempfile::TempDir;

use crate::failure::Failure;
use crate::profile::Measure;
use crate::record::Running;
use crate::signals::{self, Asked};
use crate::units::{at_least_one, parse_bytes};
use follow::{Follow, Moment};
use screen::Screen;

/// Arguments of `allotment top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// The recording to watch: the file that `allotment record` will write
    #[arg(required_unless_present_any = ["program", "pid"], conflicts_with_all = ["program", "pid"])]
    recording: Option<PathBuf>,
    /// The process to watch; it is recorded from now on if it is not yet
    #[arg(long, value_name = "PROCESS", conflicts_with = "program")]
    pid: Option<u32>,
    /// Keep the trace in this file, as `record` does
    #[arg(short, long, value_name = "OUT", requires = "program")]
    output: Option<PathBuf>,
    /// Record only one block per so many bytes on average, such as 512KiB; 1 records all
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, requires = "program")]
    sample: Option<u64>,
    /// Time between two pictures
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = humantime::parse_duration)]
    interval: Duration,
    /// Sort the lines by this
    #[arg(long, value_enum, default_value_t, value_name = "MEASURE")]
    by: Measure,
    /// Number of lines to show
    #[arg(long, value_name = "LINES", default_value = "15", value_parser = at_least_one)]
    top: usize,
    /// Print a line of JSON for each moment
    #[arg(long)]
    json: bool,
    /// Write the program's output to this file instead of discarding it
    #[arg(long, value_name = "FILE", requires = "program")]
    log: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true)]
    program: Vec<OsString>,
}

/// A recording in a separate process.
struct Recorder {
    child: Child,
    /// The file to which it writes the trace.
    output: PathBuf,
    /// The file that receives its messages.
    said: PathBuf,
    _folder: TempDir,
}

impl Recorder {
    fn start(args: &TopArgs) -> Result<Self, Failure> {
        let folder = TempDir::new()?;
        let output = args.output.clone().unwrap_or_else(|| folder.path().join("top.bin"));
        let said = folder.path().join("said");
        let mut command = Command::new(env::current_exe()?);
        command.args(["record", "--stacks", "-o"]).arg(&output);
        if let Some(sample) = args.sample.filter(|&sample| sample > 1) {
            command.arg("--sample").arg(sample.to_string());
        }
        let log = args.log.as_deref();
        let log = log.map(|path| File::create(path).map_err(Failure::file(path))).transpose()?;
        command.stdout(log.map_or_else(Stdio::null, Stdio::from)).stderr(File::create(&said)?);
        match args.pid {
            Some(process) => command.arg("--pid").arg(process.to_string()),
            None => command.arg("--").args(&args.program),
        };
        let child = command.spawn()?;
        Ok(Self { child, output, said, _folder: folder })
    }

    /// Prints the recording's messages and returns the program's status.
    fn finish(&self, status: ExitStatus, kept: bool) -> io::Result<u8> {
        let said = std::fs::read_to_string(&self.said)?;
        // Without -o the user keeps no trace, so omit messages about it.
        let trace = format!("allotment: {}: ", self.output.display());
        for line in said.lines().filter(|line| kept || !line.starts_with(&trace)) {
            say!("{line}");
        }
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => code as u8,
            (None, signal) => signals::status(signal.unwrap_or(0)),
        })
    }

    /// Ends the recording, and with it the program.
    fn end(&mut self, signal: Signal) {
        if let (Ok(None), Some(process)) =
            (self.child.try_wait(), Pid::from_raw(self.child.id().cast_signed()))
        {
            // It may have ended at this moment.
            let _ = kill_process(process, signal);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end(Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The time for ^C, which a terminal sends to the recording as well, to end the program in all its steps.
const PATIENCE: Duration = Duration::from_secs(8);

/// Runs `allotment top` and returns the program's exit status.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn top(args: &TopArgs) -> Result<u8, Failure> {
    let asked = Asked::register()?;
    let started = args.pid.map(Running::of_process).transpose()?.flatten();
    let is_there = args.recording.is_some() || started.is_some();
    let mut recorder = if is_there { None } else { Some(Recorder::start(args)?) };
    let find = || match (&recorder, &args.recording) {
        (Some(recorder), _) => Ok(Running::of(&recorder.output)),
        (None, Some(recording)) => match Running::of(recording) {
            None => Err(Failure::Other(format!(
                "{}: there is no recording that goes on: start one with allotment record --stacks -o {0} -- PROGRAM",
                recording.display()
            ))),
            found => Ok(found),
        },
        (None, None) => Ok(started),
    };
    let mut running = find()?;
    let mut follow: Option<Follow> = None;
    let mut screen = Screen::new(io::stdout().is_terminal() && !args.json, args.top, args.by);
    let mut next = Instant::now() + args.interval;
    let mut pass_on: Option<(Instant, Signal)> = None;
    let mut passed_on = false;
    loop {
        let signal = asked.signal();
        match signal {
            Some(SIGINT) => {
                pass_on.get_or_insert((Instant::now() + PATIENCE, Signal::TERM));
            }
            Some(SIGHUP) => pass_on = Some((Instant::now(), Signal::HUP)),
            Some(_) => pass_on = Some((Instant::now(), Signal::TERM)),
            None => {}
        }
        if let (Some(recorder), Some((_, signal))) =
            (&mut recorder, pass_on.filter(|(when, _)| !passed_on && *when <= Instant::now()))
        {
            recorder.end(signal);
            passed_on = true;
        }
        let ended = match &mut recorder {
            Some(recorder) => recorder.child.try_wait()?,
            None => None,
        };
        if running.is_none() {
            running = recorder.as_ref().and_then(|recorder| Running::of(&recorder.output));
        }
        let file = running.as_ref().and_then(Running::file);
        if let Some((path, others)) = &file {
            Follow::go_on(&mut follow, path, others.saturating_sub(1))?;
        }
        let gone = file.is_none() && recorder.is_none();
        let over = ended.is_some() || gone || (recorder.is_none() && signal.is_some());
        if Instant::now() >= next || over {
            if let Some(follow) = &mut follow {
                let moment = follow.moment(args.by)?;
                show(&mut screen, &moment, args)?;
            }
            next = Instant::now() + args.interval;
        }
        if over {
            screen.close()?;
            return match (&mut recorder, ended) {
                (Some(recorder), Some(status)) => Ok(recorder.finish(status, args.output.is_some())?),
                // ^C is the way to end a look at a recording.
                _ => Ok(signal.filter(|&signal| signal != SIGINT).map_or(0, signals::status)),
            };
        }
        thread::sleep(args.interval.min(Duration::from_millis(20)));
    }
}

fn show(screen: &mut Screen, moment: &Moment, args: &TopArgs) -> Result<(), Failure> {
    if args.json {
        let mut out = crate::text::stdout();
        serde_json::to_writer(&mut out, &moment.first(args.top)).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    Ok(screen.draw(moment)?)
}
