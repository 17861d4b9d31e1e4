//! `allotment record`: loads a library into a program, which records its allocations.

#[cfg(target_arch = "x86_64")]
mod attached;
mod library;
mod program;
mod raw;
mod run;
mod running;
#[cfg(target_arch = "x86_64")]
mod tracee;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use allotment_trace::{
    BinaryWriter, Header, Limits, Record, Records, Stacks, Writer, binary_header, write_binary,
};
use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Output, endings, writable};
use crate::symbols;
use crate::units::{at_least_one, parse_bytes};
pub use library::LIBRARY;
use library::Library;
use raw::{Counts, Raw, main_of, raws};
pub(crate) use raw::{Follower, Item};
pub(crate) use run::Control;
use run::{Ended, Times};
pub use running::{Running, write_so_far};

/// Arguments of `allotment record`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("who").args(["stacks", "sample"]).multiple(true))]
pub struct RecordArgs {
    /// Write the trace to this file: .trace or .txt (text), .bin (binary), each also .gz or .zst [default: PROGRAM.trace.zst, PROGRAM.bin.zst with stacks]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Stop recording after this time, such as 10s; the program goes on
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Which part of the run")]
    length: Option<Duration>,
    /// Start recording after this time, such as 5s
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help_heading = "Which part of the run")]
    after: Option<Duration>,
    /// Start recording when this tool gets SIGUSR1 (SIGUSR2 stops it, also without this option)
    #[arg(long, conflicts_with = "after", help_heading = "Which part of the run")]
    paused: bool,
    /// Stop recording after this many events of a program image; the program goes on
    #[arg(long, value_name = "EVENTS", value_parser = at_least_one, help_heading = "Which part of the run")]
    max_events: Option<usize>,
    /// Use this preload library instead of the tool's own; the variable ALLOTMENT_PRELOAD names one too
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Do not record times
    #[arg(long, help_heading = "What each event has")]
    no_times: bool,
    /// Record the time of every event in nanoseconds, instead of every few milliseconds
    #[arg(long, conflicts_with = "no_times", help_heading = "What each event has")]
    exact_times: bool,
    /// Record addresses as well
    #[arg(long, help_heading = "What each event has")]
    addresses: bool,
    /// Record the stack of calls behind each request (x86-64)
    #[arg(long, help_heading = "What each event has")]
    stacks: bool,
    /// Record one block in this many bytes on average, such as 512KiB, with its stack: costs next to nothing; `who`, `diff`, `budget`, `view` and profiles give unbiased estimates
    #[arg(long, value_name = "BYTES", value_parser = parse_sample, help_heading = "What each event has")]
    sample: Option<u64>,
    /// Do not resolve the names of functions; commands that read the trace do so where they find the same programs and libraries
    #[arg(long, requires = "who", help_heading = "What each event has")]
    no_symbols: bool,
    /// Keep the traces of all child processes and program images, named by process and image, and wait until all have ended
    #[arg(long, help_heading = "Which processes")]
    children: bool,
    /// Print a summary as JSON; the program's standard output goes to the standard error
    #[arg(long)]
    json: bool,
    /// Record a running process until ^C; the trace has no blocks from before (x86-64)
    #[arg(long, value_name = "PROCESS", conflicts_with_all = ["program", "after", "paused", "children"], help_heading = "Which processes")]
    pid: Option<u32>,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Reads the mean of a sample.
fn parse_sample(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("it must be at least 1".into()),
        bytes => Ok(bytes),
    }
}

impl RecordArgs {
    fn has_stacks(&self) -> bool {
        self.stacks || self.sample.is_some()
    }
}

/// The summary of a recording as it is printed.
#[derive(Debug, Serialize)]
struct Report {
    program: String,
    /// The file of the program image that was recorded.
    image: Option<PathBuf>,
    /// The program's own exit status, 128 and the signal if that ended it.
    status: u8,
    /// True if a signal to the tool ended the recording.
    interrupted: bool,
    /// True if the user asked for a part of the run.
    partial: bool,
    traces: Vec<Recorded>,
    /// Processes and images whose traces were not kept.
    others: usize,
    /// Recorded processes that still run: their traces end here.
    running: Vec<u32>,
    /// Programs that were started without the environment that loads the recorder; at least the first one of each image.
    unrecorded: Vec<PathBuf>,
}

/// A trace that was written.
#[derive(Debug, Serialize)]
struct Recorded {
    path: PathBuf,
    process: u32,
    #[serde(flatten)]
    counts: Counts,
}

/// Runs `allotment record` and returns the program's exit status.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn record(args: &RecordArgs) -> Result<u8, Failure> {
    if args.has_stacks() && !cfg!(target_arch = "x86_64") {
        return Err(Failure::Other("--stacks and --sample work on x86-64 only: record without".into()));
    }
    let program = match args.pid {
        Some(process) => running::image_of(process)?,
        None => PathBuf::from(&args.program[0]),
    };
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let output = args.output.clone().unwrap_or_else(|| {
        // The binary form of a trace with stacks is a few times smaller.
        let form = if args.has_stacks() { "bin" } else { "trace" };
        format!("{name}.{form}.zst").into()
    });
    check_form(&output)?;
    writable(&output).map_err(Failure::file(&output))?;
    let file = program::find(&program).ok_or_else(|| {
        let shown = program.display();
        let is_path = program.components().count() > 1 || program.is_absolute();
        Failure::Other(if program.as_os_str().is_empty() {
            "the name of the program is empty: write it behind `--`".into()
        } else if is_path && program.is_dir() {
            format!("{shown}: is a directory, not a program")
        } else {
            format!("{shown}: there is no such program: check its name, or give its path")
        })
    })?;
    let library = Library::find(args.preload.as_deref())?;
    let known = program::look(&file, &name, &library.path);
    if let Some(why) = known.refused {
        return Err(Failure::Other(why));
    }
    // Hooks are installed where a program starts, and reached through its file, not an interpreter's.
    let hooks = known.hooks.as_deref().filter(|_| args.pid.is_none());
    match (&known.warning, hooks) {
        (_, Some(_)) => say!("allotment: {name} brings jemalloc, whose hooks tell what is requested of it"),
        (Some(warning), None) => say!("allotment: warning: {warning}"),
        (None, None) => {}
    }
    let folder = running::folder_of(&output);
    let folder = tempfile::Builder::new()
        .prefix(&running::prefix(&output))
        .tempdir_in(folder)
        .map_err(Failure::file(folder))?;
    let folder_path = folder.path().canonicalize().map_err(Failure::file(folder.path()))?;

    let control = Control::create(&folder_path.join("raw.control")).map_err(Failure::file(&folder_path))?;
    control.limit(args.max_events.map_or(0, |events| events as u64))?;
    control.sample(args.sample.unwrap_or(0))?;
    if let Some(process) = args.pid {
        control.serve(process)?;
    }
    let partial = args.after.is_some() || args.length.is_some() || args.paused || args.pid.is_some();
    let files = folder_path.join("raw");
    let mut early = Early::new(&files, &output);
    let ended = match args.pid {
        Some(process) => attached(process, &library.path, &files, args),
        None => run(&program, &name, &library, hooks, &control, args, &mut early),
    };
    // Processes that go on record nothing more, since the folder of the recording goes.
    control.pause(true)?;
    let Ended { process, status, interrupted, left } = ended?;
    if interrupted {
        say!("allotment: interrupted; what was recorded is kept");
    }

    let mut raws = raws(&folder_path)?;
    let main = main_of(&raws, process, args.children || args.pid.is_some())
        .ok_or_else(|| Failure::Other(why_nothing(&name, status, raws.len(), &left)))?;
    let mut unrecorded: Vec<PathBuf> =
        raws.iter().filter_map(|raw| raw.head.as_ref()?.unrecorded.clone()).collect();
    let without_file: u64 = raws.iter().filter_map(|raw| Some(raw.head.as_ref()?.without_file)).sum();
    unrecorded.sort();
    unrecorded.dedup();
    let main = raws.remove(main);
    if main.process != process {
        let (output, other) = (output.display(), main.process);
        say!("allotment: {name} itself wrote no trace; {output} is that of the process {other}");
    }
    let image = main.head.as_ref().and_then(|head| head.image.clone());
    let other = image.as_ref().filter(|image| file.canonicalize().is_ok_and(|file| file != **image));
    if let Some(image) = other {
        say!("allotment: {name} started {} in its place, which is what was recorded", image.display());
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let more = program::look(image, &name, &library.path).warning.filter(|_| known.warning.is_none());
        if let Some(warning) = more {
            say!("allotment: warning: {warning}");
        }
    }
    for path in unrecorded.iter().take(3) {
        say!(
            "allotment: warning: {} was started without LD_PRELOAD and ALLOTMENT_RECORD in its environment, so it is not recorded: have \
             them passed on, or record that program",
            path.display()
        );
    }
    if without_file > 0 {
        say!(
            "allotment: warning: {without_file} children are not recorded: they may create no file in the recording's folder, since their user, \
             their root folder or their limit on open files (`ulimit -n`) is another one"
        );
    }
    if !left.is_empty() && args.pid.is_none() {
        let how = if args.children { "" } else { "; --children waits for them" };
        say!("allotment: still running, and not recorded any more: {}{how}", run::list(&left));
    }
    let running = left.into_iter().map(|(process, _)| process).collect();
    let (traces, others) = (Vec::new(), 0);
    let mut report = Report {
        program: name.clone(),
        image,
        status,
        interrupted,
        partial,
        traces,
        others,
        running,
        unrecorded,
    };
    let early = early.of(&main.path);
    report.traces.push(convert(&main, early, &output, &name, args)?);
    for raw in &raws {
        if !args.children {
            report.others += 1;
        } else if raw.head.is_none() {
            report.others += 1;
            say!("allotment: warning: {}", raw.why_not());
        } else {
            report.traces.push(convert(raw, None, &raw.beside(&output), &name, args)?);
        }
    }
    if args.json {
        let mut out = crate::text::stdout();
        crate::output::json(&mut out, &report)?;
    } else {
        summary(&report, args.children);
    }
    Ok(status)
}

/// Runs the program with the preload library to its end.
fn run(
    program: &Path,
    name: &str,
    library: &Library,
    hooks: Option<&OsStr>,
    control: &Control,
    args: &RecordArgs,
    early: &mut Early<'_>,
) -> Result<Ended, Failure> {
    let mut command = Command::new(program);
    command.args(&args.program[1..]);
    command.env("ALLOTMENT_RECORD", early.files);
    if !args.no_times {
        command.env("ALLOTMENT_RECORD_TIMES", if args.exact_times { "exact" } else { "coarse" });
    }
    if args.has_stacks() {
        command.env("ALLOTMENT_RECORD_STACKS", "1");
    }
    if let Some(mean) = args.sample {
        command.env("ALLOTMENT_RECORD_SAMPLE", mean.to_string());
    }
    if let Some(hooks) = hooks {
        command.env("ALLOTMENT_RECORD_JEMALLOC", hooks);
    }
    let mut preload = library.path.clone().into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(" ");
        preload.push(others);
    }
    command.env("LD_PRELOAD", preload);
    if args.json {
        command.stdout(Stdio::from(io::stderr()));
    }
    let times =
        Times { after: args.after, length: args.length, paused: args.paused, children: args.children };
    run::run(command, name, control, times, &mut |process| early.go_on(process, args))
}

/// Records a process that runs already.
#[cfg(target_arch = "x86_64")]
fn attached(process: u32, library: &Path, files: &Path, args: &RecordArgs) -> Result<Ended, Failure> {
    let library = attached::readable(process, library, files)?;
    let times = match (args.no_times, args.exact_times) {
        (true, _) => 0,
        (false, true) => b'e',
        (false, false) => b'c',
    };
    let (stacks, mean, length) = (args.has_stacks(), args.sample.unwrap_or(0), args.length);
    attached::record(process, &library, &attached::Wanted { files, times, stacks, mean, length })
}

#[cfg(not(target_arch = "x86_64"))]
fn attached(process: u32, _: &Path, _: &Path, _: &RecordArgs) -> Result<Ended, Failure> {
    Err(Failure::Other(format!(
        "--pid works on x86-64 only: start the program of process {process} with `allotment record`"
    )))
}

/// Returns why there is no trace of the program, though perhaps `others` of its children, and what to do.
fn why_nothing(name: &str, status: u8, others: usize, left: &[(u32, String)]) -> String {
    if others == 0 && left.is_empty() {
        return format!(
            "{name} wrote no trace (exit status {status}): it ended before it allocated anything, or it cannot be recorded; only programs \
             that are linked dynamically and run without special rights can be"
        );
    }
    let did = (others > 0).then(|| format!("processes or program images that it started did: {others}"));
    let running = (!left.is_empty()).then(|| format!("still running: {}", run::list(left)));
    let told: Vec<String> = did.into_iter().chain(running).collect();
    format!(
        "{name} itself wrote no trace (exit status {status}), but {}: --children waits for them and keeps their traces",
        told.join("; ")
    )
}

fn summary(report: &Report, keeps_children: bool) {
    for Recorded { path, counts, .. } in &report.traces {
        let Counts { events, unknown, missed, failures, live_blocks, live_bytes } = counts;
        let nothing = if *events == 0 && !report.partial {
            format!(
                ": nothing was asked of the C library; {} may use an allocator of its own",
                report.program
            )
        } else {
            String::new()
        };
        let left_out = if unknown + missed + failures > 0 {
            format!(" ({unknown} of unknown blocks left out, {missed} frees missed, {failures} failures)")
        } else {
            String::new()
        };
        say!(
            "allotment: {}: {events} events, {live_blocks} blocks of {live_bytes} B live at the end{nothing}{left_out}",
            path.display()
        );
    }
    if report.others > 0 {
        let others = report.others;
        let how = if keeps_children { " without a trace" } else { "; --children keeps their traces" };
        say!("allotment: {others} more processes or program images{how}");
    }
    if report.status != 0 {
        say!("allotment: {} ended with status {}", report.program, report.status);
    }
}

fn check_form(path: &Path) -> Result<(), Failure> {
    match endings(path).0.as_str() {
        "trace" | "txt" | "bin" => Ok(()),
        _ => Err(Failure::Other(format!("{}: write .trace, .txt or .bin, also .gz or .zst", path.display()))),
    }
}

/// Records in a temporary file without a name.
enum Kept {
    Text(Writer<io::BufWriter<File>>),
    Binary(BinaryWriter<io::BufWriter<File>>),
}

impl Kept {
    /// Begins a file in the recording's folder, which the recording has already written to.
    fn new(folder: &Path, binary: bool) -> io::Result<Self> {
        let file = io::BufWriter::with_capacity(1 << 18, tempfile::tempfile_in(folder)?);
        Ok(if binary { Self::Binary(BinaryWriter::of_numbers(file)) } else { Self::Text(Writer::new(file)) })
    }

    /// Writes a record of the trace that will be `output`.
    fn record(&mut self, record: &Record, output: &Path) -> Result<(), Failure> {
        match self {
            Self::Text(writer) => writer.record(record).map_err(Failure::file(output)),
            Self::Binary(writer) => {
                writer.write(record).map_err(|source| Failure::Binary { path: output.into(), source })
            }
        }
    }

    /// Writes the stack of the next event.
    fn stack(&mut self, node: u32, output: &Path) -> Result<(), Failure> {
        match self {
            Self::Text(_) => self.record(&Record::Stack(node.to_string()), output),
            Self::Binary(writer) => {
                writer.stack(node).map_err(|source| Failure::Binary { path: output.into(), source })
            }
        }
    }

    fn finish(self) -> io::Result<File> {
        let file = match self {
            Self::Text(writer) => writer.finish()?,
            Self::Binary(writer) => writer.finish().map_err(io::Error::other)?,
        };
        Ok(file.into_inner()?)
    }
}

/// The records of a trace, as far as its recording was read.
struct Conversion {
    follower: Follower,
    writer: Kept,
    stacks: Stacks,
    /// Whether functions are to be named in the end.
    named: bool,
}

impl Conversion {
    fn new(raw: &Path, output: &Path, args: &RecordArgs) -> Result<Self, Failure> {
        Ok(Self {
            follower: Follower::new(raw, args.addresses, args.has_stacks())?,
            writer: Kept::new(raw.parent().unwrap_or(raw), endings(output).0 == "bin" && !args.addresses)?,
            stacks: Stacks::default(),
            named: !args.no_symbols,
        })
    }

    /// Reads what is new.
    fn step(&mut self, output: &Path) -> Result<(), Failure> {
        let Self { follower, writer, stacks, named } = self;
        follower.step(|item| match item {
            Item::Stack(node) => writer.stack(node, output),
            Item::Record(record) => {
                if let (Record::Stack(line), true) = (&record, *named) {
                    stacks.read(line);
                }
                writer.record(&record, output)
            }
        })
    }
}

/// Reads the recording of a program that runs, so that little is left to do when it ends.
struct Early<'a> {
    /// The beginning of the recording's files.
    files: &'a Path,
    output: &'a Path,
    /// `None` if there is no file yet.
    conversion: Option<Conversion>,
    /// The number of the program image.
    image: u32,
    /// True if something is wrong with the file, which is said at the end.
    failed: bool,
}

impl<'a> Early<'a> {
    fn new(files: &'a Path, output: &'a Path) -> Self {
        Self { files, output, conversion: None, image: 0, failed: false }
    }

    fn go_on(&mut self, process: u32, args: &RecordArgs) {
        let files = self.files;
        let path = |image: u32| files.with_extension(format!("{process}.{image}"));
        if path(self.image + 1).exists() {
            *self = Self { image: self.image + 1, ..Self::new(files, self.output) };
        }
        if self.conversion.is_none() && !self.failed {
            self.conversion = Conversion::new(&path(self.image), self.output, args).ok();
        }
        if self.conversion.as_mut().is_some_and(|conversion| conversion.step(self.output).is_err()) {
            (self.conversion, self.failed) = (None, true);
        }
    }

    /// Returns what was read of a file.
    fn of(self, raw: &Path) -> Option<Conversion> {
        self.conversion.filter(|conversion| conversion.follower.path() == raw)
    }
}

/// Writes the trace of a recording, of which a part may have been read.
fn convert(
    raw: &Raw,
    early: Option<Conversion>,
    output: &Path,
    name: &str,
    args: &RecordArgs,
) -> Result<Recorded, Failure> {
    // The header, which comes first, has counts that are known last: the events are kept in a file without name.
    let wrong = Failure::file(output);
    let binary = endings(output).0 == "bin";
    let Some(head) = &raw.head else { return Err(Failure::Other(raw.why_not())) };
    head.warn();
    let mut conversion = match early {
        Some(early) => early,
        None => Conversion::new(&raw.path, output, args)?,
    };
    conversion.step(output)?;
    let Conversion { follower, mut writer, mut stacks, .. } = conversion;
    let counts = follower.counts();
    for line in symbols::resolve(&mut stacks) {
        writer.record(&Record::Stack(line), output)?;
    }
    let is_written = matches!(writer, Kept::Binary(_));
    let mut events = writer.finish().map_err(&wrong)?;
    events.rewind().map_err(&wrong)?;
    let name: String = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
    let sample = args.sample.map_or(String::new(), |mean| format!(" sample={mean}"));
    let header = format!(
        "name={name} events={} clock=ns unknown_frees={} missed_frees={}{sample}",
        counts.events, counts.unknown, counts.missed
    );
    let mut file = Output::create(output)?;
    if is_written {
        file.write_all(&binary_header(&Header::new(&header))).map_err(&wrong)?;
        io::copy(&mut events, &mut file).map_err(&wrong)?;
        file.finish()?;
        return Ok(Recorded { path: output.into(), process: raw.process, counts });
    }
    let mut text = io::Cursor::new(format!("# {header}\n")).chain(events);
    if binary {
        let wrong = |source| Failure::Binary { path: output.into(), source };
        let mut records = Records::new(text, Limits::default()).map_err(|error| wrong(error.into()))?;
        write_binary(&mut records, &mut file).map_err(wrong)?;
    } else {
        io::copy(&mut text, &mut file).map_err(&wrong)?;
    }
    file.finish()?;
    Ok(Recorded { path: output.into(), process: raw.process, counts })
}

/// Returns whether a program of this name can be found; for tests and scripts.
pub fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program.as_ref()).is_file())
}
