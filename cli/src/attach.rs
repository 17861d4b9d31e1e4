//! `allotment attach`: receives a device's trace as it arrives.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use allotment_event::Header;
use allotment_trace::{Action, Limits, Record, Records, Stacks, Writer};
use clap::Args;
use defmt_decoder::{DecodeError, Table};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{Output, apart, is_standard, shown, told, writable};
use crate::signals::{self, Asked};
use crate::symbols::Resolver;
use crate::view;

/// Arguments of `allotment attach`.
#[derive(Args, Debug)]
pub struct AttachArgs {
    /// Where the stream comes from: a file, a pipe or a serial port; - is the standard input
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    source: Option<PathBuf>,
    /// The firmware: it decodes the stream if that is a defmt log, and names the functions in the trace; without a log the stream is a binary trace, or text with the parts of one
    #[arg(long, value_name = "FIRMWARE")]
    elf: Option<PathBuf>,
    /// Write the trace to this file: .trace or .txt, each also .gz or .zst
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Draw the trace at the end, as `allotment view` does
    #[arg(long, value_name = "HTML")]
    view: Option<PathBuf>,
    /// Print the figures at the end as JSON
    #[arg(long)]
    json: bool,
    /// A program whose standard output is the stream, such as an emulator
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// The printed summary of the received trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Number of events received.
    pub events: u64,
    /// Number of events that the device lost.
    pub lost: u64,
    /// Number of requests that the device refused.
    pub failures: u64,
    /// Live requested bytes.
    pub live_bytes: u64,
    /// Largest number of live requested bytes so far.
    pub peak: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
}

/// Follows the events, some of which may be missing.
#[derive(Default)]
struct Follow {
    figures: Figures,
    live: HashMap<u64, u64>,
}

impl Follow {
    fn record(&mut self, record: &Record) {
        let figures = &mut self.figures;
        let event = match record {
            Record::Event(event) => event,
            Record::Lost(events) => {
                figures.lost = figures.lost.saturating_add(*events);
                return;
            }
            Record::Failure(_) => {
                figures.failures += 1;
                return;
            }
            Record::Note(_) | Record::Stack(_) | Record::Comment(_) => return,
        };
        figures.events += 1;
        let (old, new) = match event.action {
            Action::Allocate { size, .. } => (self.live.insert(event.id, size), size),
            Action::Reallocate { size } => match self.live.get_mut(&event.id) {
                Some(live) => (Some(std::mem::replace(live, size)), size),
                None => return,
            },
            Action::Free => (self.live.remove(&event.id), 0),
        };
        figures.live_bytes = figures.live_bytes.saturating_sub(old.unwrap_or(0)).saturating_add(new);
        figures.live_blocks = self.live.len() as u64;
        figures.peak = figures.peak.max(figures.live_bytes);
    }
}

/// Runs `allotment attach` until the stream ends, or ^C or another signal ends it. Returns the exit status.
///
/// # Errors
/// See [`Failure`]. The output contains everything received before.
pub fn attach(args: &AttachArgs) -> Result<u8, Failure> {
    for input in args.source.iter().chain(&args.elf) {
        apart("input", input, &args.output)?;
    }
    writable(&args.output).map_err(Failure::file(&args.output))?;
    if let Some(page) = &args.view {
        if is_standard(&args.output) || is_standard(page) {
            return Err(Failure::Other(
                "--view draws a trace in a file as a page in a file: name both".into(),
            ));
        }
        for input in args.source.iter().chain(&args.elf) {
            apart("input", input, page)?;
        }
        apart("trace", &args.output, page)?;
        writable(page).map_err(Failure::file(page))?;
    }
    let mut names = Resolver::of_firmware(args.elf.as_deref())?;
    let dictionary = args.elf.as_deref().map(dictionary).transpose()?.flatten();
    let (stream, child) = source(args)?;
    // An emulator must not keep running after an error.
    let mut child = Running(child);
    // Until here a signal ends this tool at once: opening a pipe or a serial port may wait.
    let asked = Asked::register()?;
    let mut stream = Stream::new(stream, asked.clone());
    let name = match &args.source {
        Some(source) if source.as_os_str() == "-" => "standard input".into(),
        Some(source) => source.clone(),
        None => args.command.first().map(PathBuf::from).unwrap_or_default(),
    };
    let mut start = Vec::new();
    stream.by_ref().take(Header::SIZE as u64).read_to_end(&mut start).map_err(Failure::file(&name))?;
    if let Some(signal) = asked.signal() {
        say!("allotment: interrupted before a trace came");
        return Ok(signals::status(signal));
    }
    let is_trace = Header::is_at(&start);
    let stream = BufReader::new(Box::new(io::Cursor::new(start).chain(stream)) as Box<dyn Read>);
    let bytes: Box<dyn Read + '_> = match &dictionary {
        // A firmware with a log may still send a bare trace.
        _ if is_trace => Box::new(stream),
        Some(table) => {
            let decoder = table.new_stream_decoder();
            Box::new(Log { messages: Messages::Defmt { stream, decoder }, part: Vec::new(), at: 0 })
        }
        None => Box::new(Log { messages: Messages::Lines { stream }, part: Vec::new(), at: 0 }),
    };
    let records = Records::new(bytes, Limits::default()).map_err(Failure::trace(&name))?;
    let header = records.header().text().to_owned();
    if !records.is_binary() {
        if let Some(signal) = asked.signal() {
            say!("allotment: interrupted before a trace came");
            return Ok(signals::status(signal));
        }
        let what =
            "no trace came: it must be a binary trace, or a log with the parts of one (--elf for defmt)";
        return Err(Failure::Other(format!("{}: {what}", name.display())));
    }
    let mut writer = Writer::new(Output::in_place(&args.output)?);
    let wrong = Failure::file(shown(&args.output));
    if !header.is_empty() {
        writer.comment(&header).map_err(&wrong)?;
    }
    let (mut follow, mut stacks) = (Follow::default(), Stacks::default());
    let bar = crate::progress::spinner();
    let (mut drawn, mut error) = (Instant::now(), None);
    for record in records {
        match record {
            Ok((_, record)) => {
                follow.record(&record);
                if let (Record::Stack(line), Some(_)) = (&record, &args.elf) {
                    stacks.read(line);
                }
                writer.record(&record).map_err(&wrong)?;
            }
            Err(why) => {
                error = Some(Failure::trace(&name)(why));
                break;
            }
        }
        if drawn.elapsed() > Duration::from_millis(100) {
            bar.set_message(line(&follow.figures));
            bar.tick();
            drawn = Instant::now();
        }
    }
    bar.finish_and_clear();
    for line in names.resolve(&mut stacks) {
        writer.record(&Record::Stack(line)).map_err(&wrong)?;
    }
    // Keep the received events, even if the rest never arrives.
    writer.finish().map_err(&wrong)?.finish()?;
    let signal = asked.signal();
    match (error, signal) {
        (Some(error), None) => return Err(error),
        // A signal may cut a record.
        (_, Some(_)) => say!("allotment: interrupted; what was received is kept"),
        (None, None) => {}
    }
    let status = match signal {
        Some(signal) => signals::status(signal),
        None => child.wait(&asked)?,
    };
    if let Some(html) = &args.view {
        view::write_page(&args.output, html)?;
    }
    let mut out = told(&args.output);
    if args.json {
        crate::output::json(&mut out, &follow.figures)?;
    } else {
        writeln!(out, "{}: {}", shown(&args.output).display(), line(&follow.figures))?;
        if let Some(html) = &args.view {
            writeln!(out, "{}: the trace, drawn", html.display())?;
        }
    }
    Ok(status)
}

fn line(figures: &Figures) -> String {
    let Figures { events, lost, failures, live_bytes, peak, live_blocks } = figures;
    format!(
        "{events} events, {lost} lost, {failures} refused; {live_bytes} B live in {live_blocks} blocks, peak {peak} B"
    )
}

/// Returns the table that decodes the defmt log of a firmware, if it has one.
fn dictionary(path: &Path) -> Result<Option<Table>, Failure> {
    let bytes = fs::read(path).map_err(Failure::file(path))?;
    Table::parse(&bytes).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))
}

/// A child process, killed on drop unless it was waited for.
struct Running(Option<Child>);

impl Running {
    /// Waits for the process, unless a signal comes first, and returns the exit status of this tool.
    fn wait(&mut self, asked: &Asked) -> Result<u8, Failure> {
        let Some(child) = &mut self.0 else { return Ok(0) };
        loop {
            if let Some(status) = child.try_wait()? {
                self.0 = None;
                if !status.success() {
                    say!("allotment: the program ended with {status}");
                }
                return Ok(u8::from(!status.success()));
            }
            if let Some(signal) = asked.signal() {
                say!("allotment: interrupted; what was received is kept");
                return Ok(signals::status(signal));
            }
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // An error means that it has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(20);

/// Number of received parts that may wait to be read.
const WAITING: usize = 8;

/// A stream that ends when a signal asks this tool to end. A thread reads it, since a read may wait for ever.
struct Stream {
    parts: Receiver<io::Result<Vec<u8>>>,
    part: io::Cursor<Vec<u8>>,
    asked: Asked,
    /// Number of parts that are still read after the signal.
    left: usize,
}

impl Stream {
    fn new(mut source: Box<dyn Read + Send>, asked: Asked) -> Self {
        let (send, parts) = sync_channel(WAITING);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            loop {
                let part = match source.read(&mut bytes) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read.map(|count| bytes[..count].to_vec()),
                };
                let is_last = part.as_ref().map_or(true, Vec::is_empty);
                if send.send(part).is_err() || is_last {
                    return;
                }
            }
        });
        Self { parts, part: io::Cursor::default(), asked, left: WAITING }
    }

    /// Waits for the next part; an empty one is the end.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if self.asked.signal().is_some() {
                // What was received before counts, but a busy stream may never pause.
                let part = if self.left == 0 { None } else { self.parts.try_recv().ok() };
                self.left = self.left.saturating_sub(1);
                return part.unwrap_or_else(|| Ok(Vec::new()));
            }
            match self.parts.recv_timeout(LOOK) {
                Ok(part) => return part,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(Vec::new()),
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.part.read(buffer)?;
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        self.part = io::Cursor::new(self.next()?);
        self.part.read(buffer)
    }
}

fn source(args: &AttachArgs) -> Result<(Box<dyn Read + Send>, Option<Child>), Failure> {
    let Some(source) = &args.source else {
        let program = Path::new(&args.command[0]);
        let mut child = Command::new(program)
            .args(&args.command[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::file(program))?;
        let Some(stream) = child.stdout.take() else {
            return Err(Failure::Other("the program has no output".into()));
        };
        return Ok((Box::new(stream), Some(child)));
    };
    if source.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    Ok((Box::new(File::open(source).map_err(Failure::file(source))?), None))
}

/// The text before each part of a trace in a log, as `allotment::observe::to_defmt` writes it.
const PREFIX: &str = "allotment trace [";

/// The bytes of the trace in a log.
struct Log<'a> {
    messages: Messages<'a>,
    part: Vec<u8>,
    at: usize,
}

enum Messages<'a> {
    Defmt {
        stream: BufReader<Box<dyn Read>>,
        decoder: Box<dyn defmt_decoder::StreamDecoder + Send + Sync + 'a>,
    },
    Lines {
        stream: BufReader<Box<dyn Read>>,
    },
}

/// Longest line of a log in bytes.
const LONGEST: u64 = 1 << 20;

impl Messages<'_> {
    /// Returns the next message; `None` at the end of the stream.
    fn next(&mut self) -> io::Result<Option<String>> {
        match self {
            Self::Defmt { stream, decoder } => loop {
                match decoder.decode() {
                    Ok(frame) => return Ok(Some(frame.display_message().to_string())),
                    Err(DecodeError::Malformed) => {
                        return Err(io::Error::new(
                            io::ErrorKind::InvalidData,
                            "the log holds a broken frame",
                        ));
                    }
                    Err(DecodeError::UnexpectedEof) => {
                        let bytes = stream.fill_buf()?;
                        if bytes.is_empty() {
                            return Ok(None);
                        }
                        decoder.received(bytes);
                        let count = bytes.len();
                        stream.consume(count);
                    }
                }
            },
            Self::Lines { stream } => {
                let mut line = Vec::new();
                if stream.by_ref().take(LONGEST).read_until(b'\n', &mut line)? == 0 {
                    return Ok(None);
                }
                if line.len() as u64 == LONGEST {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a line of the log has more than 1 MiB",
                    ));
                }
                Ok(Some(String::from_utf8_lossy(&line).into_owned()))
            }
        }
    }
}

/// Returns the part of a trace in a message, if there is one.
fn part(message: &str) -> io::Result<Option<Vec<u8>>> {
    let Some((_, list)) = message.split_once(PREFIX) else { return Ok(None) };
    let wrong = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a part of the trace is no list of bytes: {message}"),
        )
    };
    let (list, _) = list.split_once(']').ok_or_else(wrong)?;
    let bytes = list.split(',').map(str::trim).filter(|byte| !byte.is_empty());
    bytes.map(|byte| byte.parse().map_err(|_| wrong())).collect::<Result<_, _>>().map(Some)
}

impl Read for Log<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.part.len() {
            let Some(message) = self.messages.next()? else { return Ok(0) };
            if let Some(part) = part(&message)? {
                (self.part, self.at) = (part, 0);
            }
        }
        let count = buffer.len().min(self.part.len() - self.at);
        buffer[..count].copy_from_slice(&self.part[self.at..][..count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_in_messages() {
        assert_eq!(part("INFO allotment trace [161, 0,7] (main.rs:3)").unwrap(), Some(vec![161, 0, 7]));
        assert_eq!(part("allotment trace []").unwrap(), Some(vec![]));
        assert_eq!(part("summary peak=3").unwrap(), None);
        assert!(part("allotment trace [1, 256]").is_err());
        assert!(part("allotment trace [1").is_err());
    }
}
