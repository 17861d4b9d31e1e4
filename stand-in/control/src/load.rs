//! Building and loading of the driver.

use crate::{Functions, StandIn};
use escargot::format::Message;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Why the driver could not be built or loaded.
#[derive(Debug)]
pub enum LoadError {
    /// Cargo could not build it.
    Build(String),
    /// The system could not load it.
    Load(libloading::Error),
    /// Another driver is already loaded under this name.
    TooLate,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(error) => write!(f, "the stand-in driver cannot be built: {error}"),
            Self::Load(error) => write!(f, "the stand-in driver cannot be loaded: {error}"),
            Self::TooLate => f.write_str("another CUDA driver is already loaded"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Load(error) => Some(error),
            _ => None,
        }
    }
}

const PACKAGE: &str = "allotment-stand-in-driver";

/// Builds the driver and returns its file.
fn build() -> Result<PathBuf, LoadError> {
    let failed = |error: String| LoadError::Build(error);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let build = escargot::CargoBuild::new().package(PACKAGE).manifest_path(root.join("Cargo.toml"));
    let messages = build.exec().map_err(|error| failed(error.to_string()))?;
    for message in messages {
        let message = message.map_err(|error| failed(error.to_string()))?;
        let Ok(Message::CompilerArtifact(artifact)) = message.decode() else { continue };
        let files = artifact.filenames.iter().map(|file| file.to_path_buf());
        let mut files = files.filter(|file| file.extension().is_some_and(|extension| extension == "so"));
        match files.next() {
            Some(file) if artifact.target.name == PACKAGE.replace('-', "_") => return Ok(file),
            _ => {}
        }
    }
    Err(failed("cargo built no shared library".to_owned()))
}

fn load() -> Result<StandIn, LoadError> {
    let file = match std::env::var_os("ALLOTMENT_STAND_IN") {
        Some(file) => PathBuf::from(file),
        None => build()?,
    };
    // SAFETY: this is our own library, which has no initialisers.
    let library = unsafe { libloading::Library::new(&file) }.map_err(LoadError::Load)?;
    let functions = Functions::find(&library).map_err(LoadError::Load)?;
    // SAFETY: this is either our own library again, under its other name, or a CUDA driver.
    let by_name = unsafe { libloading::Library::new("libcuda.so") }.map_err(LoadError::Load)?;
    Functions::find(&by_name).map_err(|_| LoadError::TooLate)?;
    Ok(StandIn { library, functions })
}

/// Returns the driver, which is built and loaded at the first call.
pub fn once() -> Result<&'static StandIn, &'static LoadError> {
    static DRIVER: OnceLock<Result<StandIn, LoadError>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref()
}
