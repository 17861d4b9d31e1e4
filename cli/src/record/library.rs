//! The preload library, which the tool carries.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::failure::Failure;

/// The variable that names another preload library.
pub const LIBRARY: &str = "ALLOTMENT_PRELOAD";

/// The library; empty for targets that cannot load one.
static EMBEDDED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liballotment_preload.so"));

const NAME: &str = "liballotment_preload.so";

/// A preload library in a file.
pub struct Library {
    /// Its absolute path, without spaces and colons.
    pub path: PathBuf,
    /// The temporary folder that it was unpacked into, if any.
    _folder: Option<TempDir>,
}

impl Library {
    /// Finds the library that is `given`, the one that the environment names, or the tool's own.
    ///
    /// # Errors
    /// If it is not there, or cannot be unpacked.
    pub fn find(given: Option<&Path>) -> Result<Self, Failure> {
        match given.map(Path::to_owned).or_else(|| env::var_os(LIBRARY).map(PathBuf::from)) {
            Some(path) => {
                let path = path.canonicalize().map_err(Failure::file(&path))?;
                usable(&path)?;
                Ok(Self { path, _folder: None })
            }
            None => Self::unpacked(),
        }
    }

    /// Unpacks the tool's own library into the user's cache folder, or into a temporary one.
    fn unpacked() -> Result<Self, Failure> {
        if EMBEDDED.is_empty() {
            return Err(Failure::Other(
                "this tool was built for a C library that loads no others: install it for a target such as \
                 x86_64-unknown-linux-gnu, or name a preload library with --preload"
                    .into(),
            ));
        }
        if let Some(path) = cache().and_then(|folder| cached(&folder).ok()).filter(|path| is_usable(path)) {
            return Ok(Self { path, _folder: None });
        }
        let unpack = || {
            let folder = TempDir::new()?;
            let path = folder.path().join(NAME);
            fs::write(&path, EMBEDDED)?;
            Ok((path, folder))
        };
        let wrong =
            |error: io::Error| Failure::Other(format!("the preload library cannot be unpacked: {error}"));
        let (path, folder) = unpack().map_err(wrong)?;
        usable(&path)?;
        Ok(Self { path, _folder: Some(folder) })
    }
}

/// Returns the user's cache folder for this tool.
fn cache() -> Option<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(folder.join("allotment").join(env!("CARGO_PKG_VERSION")))
}

/// Writes the library to this folder unless it is there, and returns its path.
fn cached(folder: &Path) -> io::Result<PathBuf> {
    let path = folder.join(NAME);
    if fs::read(&path).is_ok_and(|bytes| bytes == EMBEDDED) {
        return Ok(path);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // At once, so that another recording never loads half of it.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(EMBEDDED)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(path)
}

/// A space or a colon would end the path inside `LD_PRELOAD`, and `$` may begin a word that the system replaces.
fn is_usable(path: &Path) -> bool {
    !path.to_string_lossy().contains([' ', ':', '$'])
}

fn usable(path: &Path) -> Result<(), Failure> {
    if is_usable(path) {
        return Ok(());
    }
    Err(Failure::Other(format!(
        "{}: the system loads no library from a path with spaces, colons or dollar signs: move it, or set TMPDIR or XDG_CACHE_HOME to \
         a folder without",
        path.display()
    )))
}
