//! Reads the inputs of `allotment plan`: buffers, traces and models. The name or the first bytes determine the format.

use std::path::Path;

use allotment_event::Header;
use allotment_planner::family::Family;
use allotment_planner::graph::Graph;
use allotment_planner::import::{json, onnx, tflite};
use allotment_planner::model::Instance;
use allotment_planner::read::{self, Contents, ReadError};
use allotment_planner::reuse::Uses;
use clap::ValueEnum;

use super::error::refused;
use super::{PlanArgs, PlanError, family};
use crate::input::Input;
use crate::output::endings;

/// Formats of inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Buffers as comma-separated values
    Csv,
    /// An allocation trace, text or binary
    Trace,
    /// An ONNX model
    Onnx,
    /// A TFLite model
    Tflite,
    /// A graph of operators and tensors as JSON
    Json,
}

/// An input.
pub(super) enum Source {
    /// Buffers and their uses.
    Instance(Instance, Uses),
    Model {
        graph: Graph,
        bytes: Vec<u8>,
        tflite: bool,
    },
    /// A model with a range of sizes.
    Family {
        family: Family,
    },
}

impl Form {
    /// Returns the format that a path's extension names.
    fn of(path: &Path) -> Option<Self> {
        Some(match endings(path).0.as_str() {
            "csv" => Self::Csv,
            "trace" | "txt" | "bin" => Self::Trace,
            "onnx" => Self::Onnx,
            "tflite" => Self::Tflite,
            "json" => Self::Json,
            _ => return None,
        })
    }

    /// Returns the format that the first bytes determine, if any.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
        if bytes.get(4..8) == Some(b"TFL3") {
            Some(Self::Tflite)
        } else if Header::is_at(bytes) || bytes.starts_with(b"#") || bytes.starts_with(b"a ") {
            Some(Self::Trace)
        } else if bytes.trim_ascii_start().starts_with(b"{") {
            Some(Self::Json)
        } else if line.iter().any(|byte| b",;\t".contains(byte)) && is_text(line) {
            Some(Self::Csv)
        } else {
            None
        }
    }
}

/// Returns whether a line is text. UTF-16 counts as text, since the CSV reader explains how to convert it.
fn is_text(line: &[u8]) -> bool {
    let wide = line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff");
    let control = |letter: char| letter.is_control() && !letter.is_whitespace();
    wide || std::str::from_utf8(line).is_ok_and(|line| !line.contains(control))
}

pub(super) fn read_source(args: &PlanArgs) -> Result<Source, PlanError> {
    let input = Input::new(&args.input).map_err(|failure| PlanError::Trace(Box::new(failure)))?;
    let at = |source: PlanError| match source {
        // These errors already name the file.
        PlanError::Read(ReadError::Io { source, .. }) => {
            PlanError::Write { path: input.shown().into(), source }
        }
        PlanError::Trace(_) | PlanError::Option(_) => source,
        source => PlanError::Input { path: input.shown().into(), source: Box::new(source) },
    };
    read_form(args, &input).map_err(at)
}

fn read_form(args: &PlanArgs, input: &Input) -> Result<Source, PlanError> {
    let told = args.form.or_else(|| Form::of(&args.input));
    if !args.input.as_os_str().eq("-") && told.is_none() {
        // Report a missing file, a folder or an empty file rather than an unknown format.
        let wrong = |source| ReadError::Io { path: input.path().into(), source };
        let file = std::fs::metadata(input.path()).map_err(wrong)?;
        if file.is_dir() {
            return Err(wrong(std::io::ErrorKind::IsADirectory.into()).into());
        }
        return Err(if file.is_file() && file.len() == 0 { PlanError::Empty } else { PlanError::Unknown });
    }
    let source = |form| -> Result<Source, PlanError> {
        check_options(args, form)?;
        let contents = || match read::read_contents(input.path())? {
            contents if contents.bytes.is_empty() => {
                Err(contents.cut.map_or(PlanError::Empty, PlanError::from))
            }
            contents => Ok(contents),
        };
        // A part of a model is not a model.
        let bytes = || contents().and_then(whole);
        let dims = args.dim.iter().map(|dim| (dim.name.clone(), dim.first)).collect();
        Ok(match form {
            Form::Trace => Source::Instance(read_trace(input)?, Uses::default()),
            Form::Csv => {
                let lines = lines(contents()?, input)?;
                let instance = read::read_csv(&lines)?;
                let uses =
                    if args.price.is_empty() { Uses::default() } else { read::read_uses(&lines, &instance)? };
                Source::Instance(instance, uses)
            }
            Form::Onnx => {
                let bytes = bytes()?;
                let shapes = args.shapes.as_deref().map(read_shapes).transpose()?.unwrap_or_default();
                // A model's other files lie beside it; a model on standard input has no folder.
                let folder = input.path().parent().filter(|_| !args.input.as_os_str().eq("-"));
                match family::read(args, &bytes, &dims, &shapes, folder)? {
                    Some(family) => Source::Family { family },
                    None => {
                        let graph = onnx::read_onnx_with(&bytes, &dims, &shapes, folder).map_err(refused)?;
                        warn_of_branches(&graph);
                        for name in shapes.unknown(&graph) {
                            say!("allotment: warning: --shapes: no tensor of the model is named {name}");
                        }
                        Source::Model { graph, bytes, tflite: false }
                    }
                }
            }
            Form::Tflite => {
                let bytes = bytes()?;
                Source::Model { graph: tflite::read_tflite(&bytes)?, bytes, tflite: true }
            }
            Form::Json => {
                let bytes = bytes()?;
                Source::Model { graph: json::read_json(&bytes)?, bytes, tflite: false }
            }
        })
    };
    let source = match told {
        Some(form) => source(form)?,
        None => {
            let bytes = read::read_contents(input.path())?.bytes;
            let empty = if bytes.is_empty() { PlanError::Empty } else { PlanError::Unknown };
            source(Form::from_bytes(&bytes).ok_or(empty)?)?
        }
    };
    match &source {
        Source::Instance(instance, _) if instance.is_empty() => Err(PlanError::Empty),
        Source::Model { graph, .. } if graph.tensors.is_empty() => Err(PlanError::Empty),
        _ => Ok(source),
    }
}

/// Warns the user about branches of a model that are not planned.
fn warn_of_branches(graph: &Graph) {
    for op in graph.ops.iter().filter(|op| op.kind == onnx::UNREACHABLE) {
        say!("allotment: warning: a branch cannot run with these sizes and is not planned: {}", op.name);
    }
}

/// Reads a file of shapes.
fn read_shapes(path: &Path) -> Result<onnx::Shapes, PlanError> {
    onnx::Shapes::read(&read::read_bytes(path)?.0)
        .map_err(|source| PlanError::Option(format!("{}: {source}", path.display())))
}

fn check_options(args: &PlanArgs, form: Form) -> Result<(), PlanError> {
    let model = matches!(form, Form::Onnx | Form::Tflite | Form::Json);
    let for_models = [
        ("--in-place", args.in_place),
        ("--reorder", args.reorder),
        ("--rematerialise", args.rematerialise.is_some()),
        ("--stream", args.stream.is_some()),
        ("--spill", args.spill),
        ("--weights", args.weights),
        ("--inputs", args.inputs),
        ("--align", args.align.is_some()),
    ];
    if let Some((name, _)) = for_models.into_iter().find(|&(_, given)| given && !model) {
        return Err(PlanError::Option(format!("{name} is for models (.onnx, .tflite, .json): leave it out")));
    }
    if !args.dim.is_empty() && form != Form::Onnx {
        return Err(PlanError::Option("--dim is for ONNX models: leave it out".into()));
    }
    if args.shapes.is_some() && form != Form::Onnx {
        return Err(PlanError::Option("--shapes is for ONNX models: leave it out".into()));
    }
    Ok(())
}

/// Returns the bytes of a file; an error if it is cut off.
fn whole(contents: Contents) -> Result<Vec<u8>, PlanError> {
    contents.cut.map_or(Ok(contents.bytes), |cut| Err(cut.into()))
}

/// Returns the lines of a file. If it is cut off, warns the user and omits the last line.
fn lines(mut contents: Contents, input: &Input) -> Result<Vec<u8>, PlanError> {
    if let Some(cut) = contents.cut {
        let end = contents.bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        contents.bytes.truncate(end);
        let lines = contents.bytes.iter().filter(|&&byte| byte == b'\n').count();
        // A header alone gives nothing to plan.
        if lines < 2 {
            return Err(cut.into());
        }
        say!(
            "allotment: warning: {}: after line {lines}: {cut}; the buffers before that are planned",
            input.shown().display()
        );
    }
    Ok(contents.bytes)
}

/// Reads a trace, or its beginning if it is cut off.
fn read_trace(input: &Input) -> Result<Instance, PlanError> {
    let mut trace = input.whole_trace().map_err(|failure| PlanError::Trace(Box::new(failure)))?;
    let instance = read::read_events(&mut trace)?;
    input.warn(trace.cut(), "the events before that are planned");
    if instance.is_empty() {
        return Err(PlanError::Trace(Box::new(input.empty())));
    }
    Ok(instance)
}
