//! Runs the program: signals, times, and the processes that it leaves.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use allotment_trace::Header;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::signals;

/// Offset of the sample's mean in that page; the library does not read it.
const SAMPLE: u64 = 16;

/// Offset of the number of this tool's process.
const TOOL: u64 = 24;

/// The page shared with the preload library: whether it pauses, the wanted number of events, and the tool that a running process records for.
pub struct Control(File);

impl Control {
    /// Creates the file.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create_new(true).open(path)?;
        file.set_len(4096)?;
        Ok(Self(file))
    }

    /// Pauses the recording, or lets it go on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn pause(&self, paused: bool) -> io::Result<()> {
        self.0.write_all_at(&u64::from(paused).to_ne_bytes(), 0)
    }

    /// Notes the mean of the sample for commands that read the running recording.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn sample(&self, mean: u64) -> io::Result<()> {
        self.0.write_all_at(&mean.to_ne_bytes(), SAMPLE)
    }

    /// Has a running process end its recording if this tool is killed, where both number processes alike.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn serve(&self, process: u32) -> io::Result<()> {
        let namespace = |process| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
        let own = std::process::id();
        let is_near = namespace(own).is_some() && namespace(own) == namespace(process);
        self.0.write_all_at(&u64::from(if is_near { own } else { 0 }).to_ne_bytes(), TOOL)
    }

    /// Returns the header of the trace of the recording with this control file.
    pub fn header(path: &Path) -> Header {
        let mut mean = [0; 8];
        let read = File::open(path).and_then(|file| file.read_exact_at(&mut mean, SAMPLE));
        let mean = u64::from_ne_bytes(mean);
        let sample = if read.is_ok() && mean > 0 { format!(" sample={mean}") } else { String::new() };
        Header::new(&format!("clock=ns{sample}"))
    }

    /// Ends the recording of each program image after `events`; 0 is no limit.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn limit(&self, events: u64) -> io::Result<()> {
        self.0.write_all_at(&events.to_ne_bytes(), 8)
    }
}

/// When to record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Not before this much time has passed.
    pub after: Option<Duration>,
    /// For no longer than this.
    pub length: Option<Duration>,
    /// Not before a signal says so.
    pub paused: bool,
    /// Until all processes that the program has started have ended.
    pub children: bool,
}

/// The outcome of a run.
pub struct Ended {
    /// The number of the program's process.
    pub process: u32,
    /// The program's exit status, 128 and the signal if one ended it.
    pub status: u8,
    /// True if a signal to this tool asked it to end.
    pub interrupted: bool,
    /// The processes that it left running: number and name.
    pub left: Vec<(u32, String)>,
}

enum Message {
    Ended(io::Result<ExitStatus>),
    Signal(i32),
}

/// The time for a program to end after ^C before it is asked again, and then before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two looks at a program that runs.
const TICK: Duration = Duration::from_millis(20);

/// The time for a program to react to the ^C that a terminal sends to it as well.
const SAME_SIGNAL: Duration = Duration::from_millis(300);

/// Runs the program to its end. ^C, SIGTERM and SIGHUP end it with all that it has started; SIGUSR1 starts the recording, SIGUSR2
/// stops it. Calls `meanwhile` with the process every few milliseconds.
///
/// # Errors
/// If the program cannot be started or waited for.
pub fn run(
    mut command: Command,
    name: &str,
    control: &Control,
    times: Times,
    meanwhile: &mut dyn FnMut(u32),
) -> Result<Ended, Failure> {
    let (tell, messages) = channel();
    let signals =
        Signals::new(signals::ending().chain([SIGUSR1, SIGUSR2].into_iter().filter(signals::heeded)))?;
    let handle = signals.handle();
    // Processes that the program leaves behind become ours, so that they can be ended with it.
    let own = set_child_subreaper(Some(getpid())).is_ok();
    let mut recording = !times.paused && times.after.is_none();
    control.pause(!recording)?;
    let mut child = command.spawn().map_err(|error| not_started(Path::new(command.get_program()), error))?;
    let process = child.id();
    let watch = forward(signals, tell.clone());
    let waiter = thread::spawn(move || {
        // The receiver is gone if the run was given up.
        let _ = tell.send(Message::Ended(child.wait()));
    });
    let begun = Instant::now();
    let mut run = Run {
        name,
        control,
        messages,
        process: Pid::from_raw(process as i32),
        start: times.after.map(|after| begun + after),
        stop: recording.then_some(times.length).flatten().map(|length| begun + length),
        length: times.length,
        ask: Vec::new(),
        interrupted: false,
    };
    let status = loop {
        if let Some(status) = run.step(&mut recording, TICK)? {
            break status;
        }
        meanwhile(process);
    };
    if times.children && own {
        run.wait_for_children(&mut recording)?;
    }
    handle.close();
    // The threads end by themselves now.
    let _ = (watch.join(), waiter.join());
    if run.interrupted && own {
        end_descendants();
    }
    let left = left();
    let status = match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => signals::status(signal.unwrap_or(0)),
    };
    Ok(Ended { process, status, interrupted: run.interrupted, left })
}

/// Forwards signals as messages.
fn forward(mut signals: Signals, tell: Sender<Message>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for signal in signals.forever() {
            if tell.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

struct Run<'a> {
    name: &'a str,
    control: &'a Control,
    messages: Receiver<Message>,
    process: Option<Pid>,
    /// When recording starts and stops.
    start: Option<Instant>,
    stop: Option<Instant>,
    length: Option<Duration>,
    /// Signals to send if the program still runs at their time, the latest first.
    ask: Vec<(Instant, Signal)>,
    interrupted: bool,
}

impl Run<'_> {
    /// Waits for processes that the program has left, such as a daemon.
    fn wait_for_children(&mut self, recording: &mut bool) -> Result<(), Failure> {
        self.process = None;
        let mut told = false;
        loop {
            let left = left();
            if left.is_empty() || (self.interrupted && self.ask.is_empty()) {
                return Ok(());
            }
            if !std::mem::replace(&mut told, true) {
                let (name, left) = (self.name, list(&left));
                say!("allotment: {name} has ended; what it has left is still recorded: {left}; ^C ends it");
            }
            self.step(recording, Duration::from_millis(50))?;
        }
    }

    /// Waits for the next message or time, at most `longest`, and returns the program's status if it has ended.
    fn step(&mut self, recording: &mut bool, longest: Duration) -> Result<Option<ExitStatus>, Failure> {
        let next = self.start.into_iter().chain(self.stop).chain(self.ask.last().map(|ask| ask.0)).min();
        let wait = next.map_or(longest, |next| next.saturating_duration_since(Instant::now()).min(longest));
        match self.messages.recv_timeout(wait) {
            Ok(Message::Ended(status)) => return Ok(Some(status?)),
            Ok(Message::Signal(SIGUSR1)) => self.record(recording, true)?,
            Ok(Message::Signal(SIGUSR2)) => self.record(recording, false)?,
            Ok(Message::Signal(signal)) => self.end(signal),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Other("the program cannot be waited for".into()));
            }
        }
        let now = Instant::now();
        if self.start.is_some_and(|start| start <= now) {
            self.record(recording, true)?;
        }
        if self.stop.is_some_and(|stop| stop <= now) {
            self.record(recording, false)?;
        }
        if let Some((_, signal)) = self.ask.pop_if(|ask| ask.0 <= now) {
            self.send(signal);
        }
        Ok(None)
    }

    fn record(&mut self, recording: &mut bool, on: bool) -> Result<(), Failure> {
        self.control.pause(!on)?;
        if on {
            self.start = None;
            self.stop =
                self.length.filter(|_| !*recording).map(|length| Instant::now() + length).or(self.stop);
        } else {
            self.stop = None;
        }
        if *recording != on {
            let what = if on { "recording" } else { "not recording any more" };
            let how = if on { "" } else { "; the trace is written when the program ends" };
            say!("allotment: {what} {}{how}", self.name);
        }
        *recording = on;
        Ok(())
    }

    /// Asks the program to end, at first kindly.
    fn end(&mut self, signal: i32) {
        if self.interrupted {
            self.ask.clear();
            return self.send(Signal::KILL);
        }
        self.interrupted = true;
        let now = Instant::now();
        let mut first = SAME_SIGNAL;
        if signal != SIGINT {
            self.send(if signal == SIGHUP { Signal::HUP } else { Signal::TERM });
            first = Duration::ZERO;
        }
        self.ask = vec![(now + first + 2 * PATIENCE, Signal::KILL), (now + first + PATIENCE, Signal::TERM)];
        if signal == SIGINT {
            self.ask.push((now + first, Signal::INT));
        }
    }

    /// Sends a signal to the program and to what it has started, as a terminal does.
    fn send(&self, signal: Signal) {
        let others = descendants().into_iter().filter(|&other| Some(other) != self.process);
        for process in self.process.into_iter().chain(others) {
            // It may have ended at this moment.
            let _ = kill_process(process, signal);
        }
    }
}

/// Ends all processes that the program has left: kindly, and after a second by force.
fn end_descendants() {
    let begun = Instant::now();
    loop {
        reap();
        let left = descendants();
        if left.is_empty() || begun.elapsed() > PATIENCE {
            return;
        }
        let signal = if begun.elapsed() > Duration::from_secs(1) { Signal::KILL } else { Signal::TERM };
        for process in left {
            let _ = kill_process(process, signal);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Reaps children that have ended, and returns whether there are others.
fn reap() -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Returns all processes below this one, by number and name.
fn left() -> Vec<(u32, String)> {
    // Only the system knows for sure: a process whose parent ends while the list is made is not in it.
    for _ in 0..100 {
        if !reap() {
            break;
        }
        let found = descendants();
        if !found.is_empty() {
            return found.into_iter().map(named).collect();
        }
        thread::sleep(Duration::from_millis(1));
    }
    Vec::new()
}

/// Returns the number and the name of a process.
pub fn named(process: Pid) -> (u32, String) {
    let number = process.as_raw_nonzero().get();
    let name = fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
    (number.unsigned_abs(), name.trim().into())
}

/// Names at most five processes in a line.
pub fn list(processes: &[(u32, String)]) -> String {
    let first: Vec<String> =
        processes.iter().take(5).map(|(number, name)| format!("{name} ({number})")).collect();
    let more = match processes.len() {
        count @ 6.. => format!(" and {} more", count - 5),
        _ => String::new(),
    };
    first.join(", ") + &more
}

/// Returns all processes below this one that have not ended.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<(i32, bool)>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name, which may hold anything: the state and the parent.
        let mut rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let ended = rest.next() == Some("Z");
        if let Some(parent) = rest.next().and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push((process, ended));
        }
    }
    let mut found = Vec::new();
    let mut queue = vec![getpid().as_raw_nonzero().get()];
    while let Some(process) = queue.pop() {
        for (child, ended) in children.remove(&process).unwrap_or_default() {
            found.extend(Pid::from_raw(child).filter(|_| !ended));
            queue.push(child);
        }
    }
    found
}

/// Says why a program that is there did not start.
fn not_started(program: &Path, error: io::Error) -> Failure {
    let shown = program.display();
    Failure::Other(match Errno::from_io_error(&error) {
        Some(Errno::NOEXEC) => {
            format!(
                "{shown}: is no program: a script names its interpreter behind `#!`, or is recorded as `sh {shown}`"
            )
        }
        Some(Errno::NOENT) => format!("{shown}: the interpreter or loader that it names is not there"),
        Some(Errno::ACCESS) => format!("{shown}: may not be run: `chmod +x` allows it"),
        _ => return Failure::file(program)(error),
    })
}
