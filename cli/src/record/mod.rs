//! `allotment record`: a program's allocations, by a library that is loaded into it.

mod library;
mod program;
mod run;

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use allotment_trace::{
    Action, Event, Failure as Refused, Limits, Record, Records, TraceError, Writer, write_binary,
};
use clap::Args;
use serde::Serialize;
use signal_hook::consts::SIGXFSZ;

use crate::failure::Failure;
use crate::output::{Output, endings, writable};
use crate::units::at_least_one;
pub use library::LIBRARY;
use library::Library;
use run::{Control, Ended, Times};

/// Arguments of `allotment record`.
#[derive(Args, Debug)]
pub struct RecordArgs {
    /// Write the trace to this file: .trace or .txt (text), .bin (binary), each also .gz or .zst [default: PROGRAM.trace.zst]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Stop recording after this time, such as 10s; the program goes on
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// Start recording after this time, such as 5s
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    after: Option<Duration>,
    /// Start recording when this tool gets SIGUSR1 (SIGUSR2 stops it, also without this option)
    #[arg(long, conflicts_with = "after")]
    paused: bool,
    /// Stop recording after this many events of a program image; the program goes on
    #[arg(long, value_name = "EVENTS", value_parser = at_least_one)]
    max_events: Option<usize>,
    /// Use this preload library instead of the tool's own; the variable ALLOTMENT_PRELOAD does the same
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    /// Do not record times
    #[arg(long)]
    no_times: bool,
    /// Record the time of every event in nanoseconds, not only when a clock of some milliseconds has moved on
    #[arg(long, conflicts_with = "no_times")]
    exact_times: bool,
    /// Record addresses as well
    #[arg(long)]
    addresses: bool,
    /// Keep the traces of all processes and program images, with process and image in their names, and wait for those that go on
    #[arg(long)]
    children: bool,
    /// Print what was recorded as JSON on the standard output; the program's goes to the standard error
    #[arg(long)]
    json: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
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
    /// True if only a part of the run was wanted.
    partial: bool,
    traces: Vec<Recorded>,
    /// Processes and images of which no trace was kept.
    others: usize,
    /// Recorded processes that still run: their traces end here.
    running: Vec<u32>,
    /// Programs that were started without the environment that has them recorded, at least the first of each image.
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

/// The contents of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    events: u64,
    /// Frees and reallocations of blocks whose allocation is not there; left out.
    unknown: u64,
    /// Blocks that were still live at an address that was handed out again; freed before.
    missed: u64,
    failures: u64,
    /// Blocks and bytes that are live at the end.
    live_blocks: u64,
    live_bytes: u64,
}

/// Runs `allotment record`; the exit status, which is the program's.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn record(args: &RecordArgs) -> Result<u8, Failure> {
    let program = Path::new(&args.program[0]);
    let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let output = args.output.clone().unwrap_or_else(|| format!("{name}.trace.zst").into());
    check_form(&output)?;
    writable(&output).map_err(Failure::file(&output))?;
    let file = program::find(program).ok_or_else(|| {
        Failure::Other(format!(
            "{}: there is no such program: check its name, or give its path",
            program.display()
        ))
    })?;
    let library = Library::find(args.preload.as_deref())?;
    let known = program::look(&file, &name, &library.path);
    if let Some(why) = known.refused {
        return Err(Failure::Other(why));
    }
    if let Some(warning) = &known.warning {
        eprintln!("allotment: warning: {warning}");
    }
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = tempfile::Builder::new()
        .prefix(".allotment-record-")
        .tempdir_in(folder)
        .map_err(Failure::file(folder))?;
    let folder_path = folder.path().canonicalize().map_err(Failure::file(folder.path()))?;

    let mut command = Command::new(program);
    command.args(&args.program[1..]);
    command.env("ALLOTMENT_RECORD", folder_path.join("raw"));
    if !args.no_times {
        command.env("ALLOTMENT_RECORD_TIMES", if args.exact_times { "exact" } else { "coarse" });
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
    let control = Control::create(&folder_path.join("raw.control")).map_err(Failure::file(&folder_path))?;
    control.limit(args.max_events.map_or(0, |events| events as u64))?;
    let partial = args.after.is_some() || args.length.is_some() || args.paused;
    let times =
        Times { after: args.after, length: args.length, paused: args.paused, children: args.children };
    let Ended { process, status, interrupted, left } = run::run(command, &name, &control, times)?;
    // A limit on the size of files ends this tool with an error and not by a signal. The program keeps what it had.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    if interrupted {
        eprintln!("allotment: interrupted; what was recorded is kept");
    }

    let mut raws = raws(&folder_path)?;
    let main = main_of(&raws, process, args.children)
        .ok_or_else(|| Failure::Other(why_nothing(&name, status, raws.len(), &left)))?;
    let mut unrecorded: Vec<PathBuf> =
        raws.iter().filter_map(|raw| Some(raw.head.as_ref()?.unrecorded.clone()?)).collect();
    unrecorded.sort();
    unrecorded.dedup();
    let main = raws.remove(main);
    if main.process != process {
        let (output, other) = (output.display(), main.process);
        eprintln!("allotment: {name} itself wrote no trace; {output} is that of the process {other}");
    }
    let image = main.head.as_ref().and_then(|head| head.image.clone());
    let other = image.as_ref().filter(|image| file.canonicalize().is_ok_and(|file| file != **image));
    if let Some(image) = other {
        eprintln!("allotment: {name} started {} in its place, which is what was recorded", image.display());
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let more = program::look(image, &name, &library.path).warning.filter(|_| known.warning.is_none());
        if let Some(warning) = more {
            eprintln!("allotment: warning: {warning}");
        }
    }
    for path in unrecorded.iter().take(3) {
        eprintln!(
            "allotment: warning: {} was started without LD_PRELOAD and ALLOTMENT_RECORD in its environment, so it is not recorded: have \
             them passed on, or record that program",
            path.display()
        );
    }
    if !left.is_empty() {
        let how = if args.children { "" } else { "; --children waits for them" };
        eprintln!("allotment: still running, and not recorded any more: {}{how}", run::list(&left));
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
    report.traces.push(convert(&main, &output, &name, args.addresses)?);
    for raw in &raws {
        if args.children {
            report.traces.push(convert(raw, &raw.beside(&output), &name, args.addresses)?);
        } else {
            report.others += 1;
        }
    }
    if args.json {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        summary(&report);
    }
    Ok(status)
}

/// The reason why there is no trace of the program, though perhaps `others` of its children, and what to do.
fn why_nothing(name: &str, status: u8, others: usize, left: &[(u32, String)]) -> String {
    if others == 0 && left.is_empty() {
        return format!(
            "{name} wrote no trace (exit status {status}): it ended before it allocated anything, or it cannot be recorded; only programs \
             that are linked dynamically and run without special rights can be"
        );
    }
    let running = if left.is_empty() { "" } else { &format!(", and {} still run", run::list(left)) };
    format!(
        "{name} itself wrote no trace (exit status {status}), but {others} processes or program images that it started \
         did{running}: --children waits for them and keeps their traces"
    )
}

fn summary(report: &Report) {
    for Recorded { path, counts, .. } in &report.traces {
        let Counts { events, unknown, missed, failures, live_blocks, live_bytes } = counts;
        eprint!(
            "allotment: {}: {events} events, {live_blocks} blocks of {live_bytes} B live at the end",
            path.display()
        );
        if *events == 0 && !report.partial {
            eprint!(
                ": nothing was asked of the C library; {} may use an allocator of its own",
                report.program
            );
        }
        if unknown + missed + failures > 0 {
            eprint!(" ({unknown} of unknown blocks left out, {missed} frees missed, {failures} failures)");
        }
        eprintln!();
    }
    if report.others > 0 {
        let others = report.others;
        eprintln!("allotment: {others} more processes or program images; --children keeps their traces");
    }
    if report.status != 0 {
        eprintln!("allotment: {} ended with status {}", report.program, report.status);
    }
}

fn check_form(path: &Path) -> Result<(), Failure> {
    match endings(path).0.as_str() {
        "trace" | "txt" | "bin" => Ok(()),
        _ => Err(Failure::Other(format!("{}: write .trace, .txt or .bin, also .gz or .zst", path.display()))),
    }
}

/// A file of the preload library.
struct Raw {
    path: PathBuf,
    process: u32,
    image: u32,
    /// `None` if recording could not begin.
    head: Option<RawHead>,
}

/// The first page of such a file (`recorder::Head` of the library).
struct RawHead {
    /// Bytes of the trace.
    length: u64,
    /// The system's error that ended the recording, or 0.
    stopped: u64,
    /// The program image that wrote it.
    image: Option<PathBuf>,
    /// The first program that was started without being recorded.
    unrecorded: Option<PathBuf>,
    /// The link `/proc/self/ns/pid`.
    namespace: Vec<u8>,
}

impl RawHead {
    /// Bytes before the trace.
    const SIZE: usize = 4096;

    fn read(path: &Path) -> Option<Self> {
        let mut head = [0; Self::SIZE];
        File::open(path).ok()?.read_exact(&mut head).ok()?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |&bytes| u64::from_ne_bytes(bytes));
        let text =
            |at: usize, most: usize| head[at..at + most].split(|&byte| byte == 0).next().unwrap_or_default();
        let path = |text: &[u8]| (!text.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(text)));
        head.starts_with(b"ALLOTREC").then(|| Self {
            length: word(8),
            stopped: word(16),
            image: path(text(40, usize::try_from(word(32)).unwrap_or(0).min(1024))),
            unrecorded: path(text(1072, 1024)).filter(|_| word(1064) > 0),
            namespace: text(2096, 64).to_vec(),
        })
    }
}

/// The trace of the program: `exec` starts several images of it, and the last one is the requested one. If it has none and those of
/// its children are wanted, the longest.
fn main_of(raws: &[Raw], process: u32, children: bool) -> Option<usize> {
    // A process in a namespace of its own may have the same number.
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let is_near =
        |raw: &Raw| raw.head.as_ref().is_none_or(|head| head.namespace == namespace.as_os_str().as_bytes());
    let own = raws.iter().rposition(|raw| raw.process == process && is_near(raw));
    let length = |(_, raw): &(usize, &Raw)| raw.head.as_ref().map_or(0, |head| head.length);
    own.or_else(|| raws.iter().enumerate().max_by_key(length).filter(|_| children).map(|(number, _)| number))
}

impl Raw {
    /// The output's name with this process and image in it.
    fn beside(&self, output: &Path) -> PathBuf {
        let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (stem, rest) = name.split_once('.').unwrap_or((&name, "trace"));
        output.with_file_name(format!("{stem}.{}.{}.{rest}", self.process, self.image))
    }
}

/// All files of the preload library, by process and image.
fn raws(folder: &Path) -> Result<Vec<Raw>, Failure> {
    let mut raws = Vec::new();
    for entry in fs::read_dir(folder).map_err(Failure::file(folder))? {
        let path = entry.map_err(Failure::file(folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut parts = name.split('.').skip(1).map(|part| part.parse().ok());
        if let (Some(Some(process)), Some(Some(image))) = (parts.next(), parts.next()) {
            let head = RawHead::read(&path);
            raws.push(Raw { path, process, image, head });
        }
    }
    raws.sort_by_key(|raw| (raw.process, raw.image));
    Ok(raws)
}

/// The trace in a file of the preload library.
fn open(raw: &Raw) -> Result<io::Take<File>, Failure> {
    let Some(head) = &raw.head else {
        return Err(Failure::Other(format!(
            "recording could not begin in {}: the disk is full, or a limit on the size of files (`ulimit -f`) is below 256 KiB",
            raw.path.display()
        )));
    };
    let wrong = Failure::file(&raw.path);
    let mut file = File::open(&raw.path).map_err(&wrong)?;
    file.seek(SeekFrom::Start(RawHead::SIZE as u64)).map_err(&wrong)?;
    Ok(file.take(head.length))
}

/// Puts right what a recording of a real program may have wrong, and counts.
struct Repair {
    counts: Counts,
    /// The live block at each address, and the address and size of each.
    at: HashMap<u64, u64>,
    live: HashMap<u64, (u64, u64)>,
    /// The first time, which becomes 0.
    begin: Option<u64>,
    /// The time of the next event that has none.
    time: Option<u64>,
    addresses: bool,
}

impl Repair {
    fn new(addresses: bool) -> Self {
        Self {
            counts: Counts::default(),
            at: HashMap::new(),
            live: HashMap::new(),
            begin: None,
            time: None,
            addresses,
        }
    }

    /// The records that stand for this one, in order.
    fn record(
        &mut self,
        mut record: Record,
        mut give: impl FnMut(Record) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        // A time stays if the event that has it does not.
        if let Record::Event(Event { time, .. }) | Record::Failure(Refused { time, .. }) = &mut record {
            if let Some(time) = *time {
                self.time = Some(time.saturating_sub(*self.begin.get_or_insert(time)));
            }
            *time = self.time;
        }
        let Record::Event(mut event) = record else {
            if let Record::Failure(_) = record {
                self.time = None;
                self.counts.failures += 1;
            }
            return give(record);
        };
        let Event { id, action, address, .. } = event;
        if !self.addresses {
            event.address = None;
        }
        let old = self.live.get(&id).copied();
        match action {
            Action::Allocate { size, .. } => {
                let address = address.unwrap_or(id);
                if let Some(missed) = self.at.insert(address, id) {
                    self.counts.missed += 1;
                    self.counts.events += 1;
                    self.live.remove(&missed);
                    give(Record::Event(Event { time: event.time, ..Event::new(missed, Action::Free) }))?;
                }
                self.live.insert(id, (address, size));
            }
            Action::Reallocate { size } => {
                let Some((before, _)) = old else {
                    self.counts.unknown += 1;
                    return Ok(());
                };
                let after = address.unwrap_or(before);
                self.at.remove(&before);
                self.at.insert(after, id);
                self.live.insert(id, (after, size));
            }
            Action::Free => {
                let Some((before, _)) = old else {
                    self.counts.unknown += 1;
                    return Ok(());
                };
                self.at.remove(&before);
                self.live.remove(&id);
            }
        }
        self.counts.events += 1;
        self.time = None;
        give(Record::Event(event))
    }
}

/// Reads a recording once; what it holds.
fn pass(
    raw: &Raw,
    addresses: bool,
    mut give: impl FnMut(Record) -> Result<(), Failure>,
) -> Result<Counts, Failure> {
    let wrong = |source: TraceError| Failure::Trace { path: raw.path.clone(), source };
    let mut repair = Repair::new(addresses);
    for record in Records::new(open(raw)?, Limits::default()).map_err(wrong)? {
        let (_, record) = record.map_err(wrong)?;
        repair.record(record, &mut give)?;
    }
    let (blocks, bytes) = repair.live.values().fold((0, 0), |(n, sum), &(_, size)| (n + 1, sum + size));
    Ok(Counts { live_blocks: blocks, live_bytes: bytes, ..repair.counts })
}

/// Writes the trace of a recording.
fn convert(raw: &Raw, output: &Path, name: &str, addresses: bool) -> Result<Recorded, Failure> {
    if let Some(RawHead { stopped: 1.., .. }) = raw.head {
        let stopped = raw.head.as_ref().map_or(0, |head| head.stopped);
        let why = io::Error::from_raw_os_error(i32::try_from(stopped).unwrap_or_default());
        eprintln!("allotment: warning: recording ended before the program did: {why}");
    }
    let counts = pass(raw, addresses, |_| Ok(()))?;
    let name: String = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).collect();
    let header = format!(
        "name={name} events={} clock=ns unknown_frees={} missed_frees={}",
        counts.events, counts.unknown, counts.missed
    );
    let file = Output::create(output)?;
    let binary = endings(output).0 == "bin";
    let file = if binary {
        // The binary form is written from the text's records, which are kept in a file without name.
        let text = tempfile::tempfile()?;
        let mut text = write_text(io::BufWriter::new(text), raw, &header, addresses, output)?
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        text.rewind()?;
        let wrong = |source| Failure::Binary { path: output.into(), source };
        let mut file = file;
        let mut records = Records::new(text, Limits::default()).map_err(|error| wrong(error.into()))?;
        write_binary(&mut records, &mut file).map_err(wrong)?;
        file
    } else {
        write_text(file, raw, &header, addresses, output)?
    };
    file.finish()?;
    Ok(Recorded { path: output.into(), process: raw.process, counts })
}

fn write_text<W: Write>(
    output: W,
    raw: &Raw,
    header: &str,
    addresses: bool,
    path: &Path,
) -> Result<W, Failure> {
    let mut writer = Writer::new(output);
    writer.comment(header).map_err(Failure::file(path))?;
    pass(raw, addresses, |record| writer.record(&record).map_err(Failure::file(path)))?;
    writer.finish().map_err(Failure::file(path))
}

/// Returns whether a program of this name can be found; for tests and scripts.
pub fn is_installed(program: impl AsRef<OsStr>) -> bool {
    let paths = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&paths).any(|folder| folder.join(program.as_ref()).is_file())
}
