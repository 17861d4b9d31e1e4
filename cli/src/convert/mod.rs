//! `allotment convert`: writes a trace in another format.

mod chrome;
mod live;
mod massif;
mod pickle;
mod pprof;
mod profiles;
mod snapshot;

use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use allotment_trace::{
    BinaryError, Header, Limits, Record, Records, Stacks, TraceError, Writer, write_binary,
};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::Failure;
use crate::input::{Firmware, Input};
use crate::output::{Output, apart, endings, no_terminal, shown, told, writable};
use crate::profile::{Measure, Profile};
use snapshot::Snapshot;

/// Arguments of `allotment convert`.
#[derive(Args, Debug)]
pub struct ConvertArgs {
    /// The trace: text, binary, or a Chrome trace that this command wrote (.json), a recording of heaptrack, a snapshot of PyTorch, or a profile of pprof; each also .gz or .zst; - is the standard input
    input: PathBuf,
    /// The output, whose ending selects the form: .trace or .txt, .bin, .json, .massif, .folded, .pb, .dhat, .pickle; each also .gz or .zst
    output: PathBuf,
    /// The form of the output, whatever its ending
    #[arg(long, value_enum)]
    to: Option<Form>,
    #[arg(
        long,
        value_enum,
        value_name = "MEASURE",
        help = "Measure that folded stacks count [default: live]"
    )]
    by: Option<Measure>,
    #[command(flatten)]
    firmware: Firmware,
    /// Print a summary as JSON
    #[arg(long)]
    json: bool,
}

/// Forms of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// One event a line
    Text,
    /// The compact form of devices
    Binary,
    /// JSON for chrome://tracing and Perfetto
    Chrome,
    /// For `ms_print` and Massif's viewers; has no events, so it cannot be converted back
    Massif,
    /// Stacks with their costs, for flame graphs; cannot be converted back
    Folded,
    /// For `pprof` and its viewers; cannot be converted back
    Pprof,
    /// For the viewer of Valgrind's DHAT; cannot be converted back
    Dhat,
    /// A snapshot of PyTorch, for its viewer at pytorch.org/memory_viz
    Pytorch,
}

/// The printed summary of a conversion.
#[derive(Debug, Default, Serialize)]
struct Report {
    events: u64,
    failures: u64,
    /// Number of events that the recorder lost.
    lost: u64,
    notes: u64,
    /// The error at the cut, if the input is cut off.
    #[serde(skip)]
    cut: Option<TraceError>,
}

impl Report {
    fn count(&mut self, record: &Record) {
        match record {
            Record::Event(_) => self.events += 1,
            Record::Failure(_) => self.failures += 1,
            Record::Lost(events) => self.lost = self.lost.saturating_add(*events),
            Record::Note(_) => self.notes += 1,
            Record::Stack(_) | Record::Comment(_) => {}
        }
    }
}

/// A consumer of a trace's records, in order.
trait Sink {
    fn record(&mut self, record: &Record) -> io::Result<()>;
    /// Writes the rest of its buffers.
    fn finish(&mut self) -> io::Result<()>;
}

impl<W: Write> Sink for Writer<W> {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        Writer::record(self, record)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `allotment convert`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn convert(args: &ConvertArgs) -> Result<bool, Failure> {
    let form = match args.to {
        Some(form) => form,
        None => form_of(&args.output)?,
    };
    if args.by.is_some() && form != Form::Folded {
        return Err(Failure::Other("--by is for folded stacks (.folded): leave it out".into()));
    }
    let input = Input::new(&args.input)?.of(&args.firmware);
    let mut records = input.records()?;
    apart("input", &args.input, &args.output)?;
    if matches!(form, Form::Binary | Form::Pprof | Form::Pytorch) {
        no_terminal(&args.output)?;
    }
    writable(&args.output).map_err(Failure::file(shown(&args.output)))?;
    // An empty trace, or a trace with an invalid start, creates no file and leaves an existing one unchanged.
    match records.next() {
        None => return Err(input.empty()),
        Some(first) => first.map_err(Failure::trace(input.shown()))?,
    };
    drop(records);
    if matches!(form, Form::Folded | Form::Pprof | Form::Dhat | Form::Pytorch) {
        return profile(&input, form, args);
    }
    let (mut report, mut file) = pass(&input, form, &args.output, None)?;
    let cut = report.cut.take();
    if cut.is_some() {
        // The header states the number of events.
        let events = report.events;
        drop(file);
        (report, file) = pass(&input, form, &args.output, Some(events))?;
    }
    file.finish()?;
    input.warn(cut.as_ref(), "the events before that are written");
    let mut out = told(&args.output);
    if args.json {
        crate::output::json(&mut out, &report)?;
    } else {
        let Report { events, failures, lost, notes, .. } = report;
        writeln!(
            out,
            "{}: {events} events, {failures} failures, {notes} lines of notes, {lost} events lost",
            shown(&args.output).display()
        )?;
    }
    Ok(true)
}

/// Writes a format whose viewers need the whole run.
fn profile(input: &Input, form: Form, args: &ConvertArgs) -> Result<bool, Failure> {
    let mut file = Output::create(&args.output)?;
    let (events, stacks) = if form == Form::Pytorch {
        let snapshot = Snapshot::read(input)?;
        snapshot.write(&mut file).map_err(Failure::file(shown(&args.output)))?;
        snapshot.counts()
    } else {
        let profile = Profile::read(input, None)?;
        let by = args.by.unwrap_or_default();
        profile.check(by, input)?;
        profiles::write(&profile, form, by, &mut file).map_err(Failure::file(shown(&args.output)))?;
        (profile.events, profile.by_stack.iter().skip(1).filter(|costs| costs.calls > 0).count())
    };
    file.finish()?;
    let mut out = told(&args.output);
    if args.json {
        crate::output::json(&mut out, &serde_json::json!({ "events": events, "stacks": stacks }))?;
    } else {
        writeln!(out, "{}: {events} events, {stacks} stacks", shown(&args.output).display())?;
    }
    Ok(true)
}

fn form_of(path: &Path) -> Result<Form, Failure> {
    Ok(match endings(path).0.as_str() {
        "trace" | "txt" => Form::Text,
        "bin" => Form::Binary,
        "json" => Form::Chrome,
        "massif" => Form::Massif,
        "folded" => Form::Folded,
        "pb" | "pprof" => Form::Pprof,
        "dhat" => Form::Dhat,
        "pickle" => Form::Pytorch,
        _ => {
            let path = path.display();
            return Err(Failure::Other(format!(
                "{path}: write .trace, .txt, .bin, .json, .massif, .folded, .pb, .dhat or .pickle, or say --to"
            )));
        }
    })
}

/// Converts the input in one pass, without the end of the output. `events`, if given, replaces the number in the header.
fn pass(input: &Input, form: Form, output: &Path, events: Option<u64>) -> Result<(Report, Output), Failure> {
    let records = input.records()?;
    let header = match events {
        Some(events) => records.header().with("events", events),
        None => records.header().clone(),
    };
    let mut file = Output::create(output)?;
    let report = write(records, &header, form, input, output, &mut file)?;
    Ok((report, file))
}

fn write(
    mut records: Records<'_>,
    header: &Header,
    form: Form,
    input: &Input,
    output: &Path,
    file: &mut Output,
) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut sink: Box<dyn Sink> = match form {
        Form::Binary => {
            // Count the events while the text goes to an unnamed file, so that the input is read only once.
            let text = io::BufWriter::new(tempfile::tempfile()?);
            let mut writer = Writer::new(text);
            begin(&mut writer, header)?;
            pour(&mut records, input, output, &mut writer, &mut report)?;
            let mut text = writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            text.rewind()?;
            let wrong = |error| match error {
                BinaryError::Output(error) => Failure::file(shown(output))(error),
                source => Failure::Binary { path: input.shown().into(), source },
            };
            let mut records =
                Records::new(text, Limits::default()).map_err(|error| wrong(BinaryError::Trace(error)))?;
            write_binary(&mut records, file).map_err(wrong)?;
            return Ok(report);
        }
        Form::Text => {
            let mut writer = Writer::new(file);
            begin(&mut writer, header)?;
            Box::new(writer)
        }
        Form::Chrome => Box::new(chrome::Chrome::new(file, header).map_err(Failure::file(shown(output)))?),
        // The remaining formats have no events.
        Form::Massif | Form::Folded | Form::Pprof | Form::Dhat | Form::Pytorch => {
            Box::new(massif::Massif::new(file, header))
        }
    };
    pour(&mut records, input, output, &mut *sink, &mut report)?;
    sink.finish().map_err(Failure::file(shown(output)))?;
    Ok(report)
}

fn begin<W: Write>(writer: &mut Writer<W>, header: &Header) -> io::Result<()> {
    if header.text().is_empty() { Ok(()) } else { writer.comment(header.text()) }
}

fn pour(
    records: &mut Records<'_>,
    input: &Input,
    output: &Path,
    sink: &mut dyn Sink,
    report: &mut Report,
) -> Result<(), Failure> {
    let mut stacks = Stacks::default();
    for record in records.by_ref() {
        let (_, record) = record.map_err(Failure::trace(input.shown()))?;
        report.count(&record);
        if let (Record::Stack(line), Some(_)) = (&record, input.firmware()) {
            stacks.read(line);
        }
        sink.record(&record).map_err(Failure::file(shown(output)))?;
    }
    for line in input.name(&mut stacks)? {
        sink.record(&Record::Stack(line)).map_err(Failure::file(shown(output)))?;
    }
    report.cut = records.take_cut();
    Ok(())
}
