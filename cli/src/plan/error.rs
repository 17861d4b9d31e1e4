//! The reasons why there is no plan.

use std::io;
use std::path::PathBuf;

use allotment_planner::import::{json, onnx, tflite};
use allotment_planner::instances::CollectionError;
use allotment_planner::model::InstanceError;
use allotment_planner::read::ReadError;
use allotment_planner::schedule::{ChangeError, Corruption};
use allotment_planner::validate::Violation;
use allotment_planner::write::TooMany;

use crate::failure::Failure;

/// The reasons why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The input was refused.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The ONNX model was refused.
    #[error(transparent)]
    Onnx(#[from] onnx::OnnxError),
    /// Dimensions of the ONNX model are open.
    #[error(
        "{source}. Give the shapes of the inputs with --shapes FILE, as JSON such as {{\"x\": [1, 8]}}, or type, with your own sizes in place of 1:\n  {command}"
    )]
    OpenDims {
        /// The open dimensions.
        source: onnx::OnnxError,
        /// The command with a size for each of them.
        command: String,
    },
    /// A folder of instances was refused.
    #[error(transparent)]
    Collection(#[from] CollectionError),
    /// The graph was refused.
    #[error(transparent)]
    Json(#[from] json::JsonError),
    /// The TFLite model was refused, or the plan cannot be written into it.
    #[error(transparent)]
    Tflite(#[from] tflite::TfliteError),
    /// A model's tensors do not form an instance.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The model cannot be changed as requested.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// An operator has too many operands for source code.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// The written plan does not run: a bug in this program.
    #[error("the plan does not run, please report this: {0}")]
    Corrupt(#[from] Corruption),
    /// The output cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The output's extension is not known.
    #[error("{0}: the plan's form is told by its ending: .csv, .json, .rs, .h, .svg, .html or .tflite")]
    Form(PathBuf),
    /// The input is wrong.
    #[error("{path}: {source}")]
    Input {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: Box<PlanError>,
    },
    /// The input holds nothing to plan.
    #[error("it is empty: it holds no buffer")]
    Empty,
    /// The input's format cannot be determined.
    #[error("its form is not known: say --form csv, trace, onnx, tflite or json")]
    Unknown,
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(Box<Failure>),
    /// An option cannot be used with the input or with another option.
    #[error("{0}")]
    Option(String),
    /// The plan is wrong: a bug in this program.
    #[error("the plan is wrong, please report this: {0}")]
    Wrong(#[from] Violation),
    /// Standard output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Io(error) => Self::Io(error),
            error => Self::Plan(Box::new(error)),
        }
    }
}

/// Returns the error of a model; if dimensions are open, with a command that would give them sizes.
pub(super) fn refused(error: onnx::OnnxError) -> PlanError {
    let onnx::OnnxError::OpenDims(open) = &error else { return error.into() };
    let told = std::env::args_os().skip(1).map(|word| quoted(&word.to_string_lossy()));
    let sizes = open.iter().map(|(name, _)| format!("--dim {}", quoted(&format!("{name}=1"))));
    let words: Vec<String> = ["allotment".into()].into_iter().chain(told).chain(sizes).collect();
    PlanError::OpenDims { command: words.join(" "), source: error }
}

/// Returns a word quoted for a shell.
pub(super) fn quoted(word: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./=:,+@%".contains(char);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
