//! The errors of commands.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use allotment_trace::{BinaryError, TraceError};

/// Why a command failed, in words for its user.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A trace was refused.
    #[error("{path}: {source}")]
    Trace {
        /// The trace.
        path: PathBuf,
        /// The cause.
        source: TraceError,
    },
    /// A trace cannot be written in another format.
    #[error("{path}: {source}")]
    Binary {
        /// The trace.
        path: PathBuf,
        /// The cause.
        source: BinaryError,
    },
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is no plan.
    #[error(transparent)]
    Plan(Box<dyn Error + Send + Sync>),
    /// Standard output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Failure {
    /// Describes what is wrong with the trace in `path`; errors of opening files already name the file.
    pub fn trace(path: &Path) -> impl Fn(TraceError) -> Self {
        move |error| match error {
            TraceError::Open { path, source } => Self::File { path, source },
            source => Self::Trace { path: path.into(), source },
        }
    }

    /// Describes why the file `path` cannot be used.
    pub fn file(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::File { path: path.into(), source }
    }

    /// Returns whether the reader of the standard output has closed it.
    pub fn is_broken_pipe(&self) -> bool {
        let (Self::Io(error) | Self::File { source: error, .. }) = self else { return false };
        error.kind() == io::ErrorKind::BrokenPipe
    }
}
