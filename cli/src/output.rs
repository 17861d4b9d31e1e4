//! Writes files: only a complete file replaces an older one, and the extension of a trace's name selects its format and compression.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::failure::Failure;

/// Writes a value as human-readable JSON, and ends the line.
///
/// # Errors
/// If it cannot be written.
pub fn json(out: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Returns the file extension for the format, in lower case, and the extension for the compression, if any.
pub fn endings(path: &Path) -> (String, Option<&'static str>) {
    let ending = |path: &Path| path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let outer = match ending(path).as_str() {
        "zst" => "zst",
        "gz" => "gz",
        other => return (other.into(), None),
    };
    (path.file_stem().map(|stem| ending(Path::new(stem))).unwrap_or_default(), Some(outer))
}

/// Checks that a file can be written at `path`, without changing an existing file.
///
/// # Errors
/// If it cannot be written.
pub fn writable(path: &Path) -> io::Result<()> {
    let there = path.exists();
    // A device or a pipe is opened only once.
    if there && !path.metadata()?.is_file() {
        return if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(()) };
    }
    drop(File::options().append(true).create(true).open(path)?);
    if !there {
        // Remove the new file, not a link to it.
        std::fs::remove_file(path.canonicalize()?)?;
    }
    Ok(())
}

/// Checks that `output` is not the file `input` under another name: writing it would destroy the input while it is read.
///
/// # Errors
/// If both are the same file.
pub fn apart(input: &Path, output: &Path) -> Result<(), Failure> {
    #[cfg(unix)]
    let known = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        // A terminal or a pipe can be both.
        path.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| (file.dev(), file.ino()))
    };
    #[cfg(not(unix))]
    let known = |path: &Path| path.canonicalize().ok().filter(|path| path.is_file());
    if known(output).is_some_and(|there| known(input) == Some(there)) {
        let output = output.display();
        return Err(Failure::Other(format!("{output}: it is the input as well: name another file to write")));
    }
    Ok(())
}

/// Compression level of zstd: traces repeat over distances that lower levels do not search.
const LEVEL: i32 = 6;

/// The folder in which Linux lists the open files of this process.
#[cfg(target_os = "linux")]
const OPEN_FILES: &str = "/proc/self/fd";

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".allotment-part-");
    builder
}

fn folder(place: &Path) -> &Path {
    match place.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file written beside its destination, so that an older file there stays unchanged until this one is complete.
enum Draft {
    Beside(NamedTempFile, PathBuf),
    /// A file without a name, of which nothing is left if this process is killed.
    #[cfg(target_os = "linux")]
    Unnamed(File, PathBuf),
    /// A device or a pipe, or a file in a folder that allows no other.
    InPlace(File),
}

impl Draft {
    fn create(path: &Path) -> io::Result<Self> {
        let old = path.metadata().ok();
        if old.as_ref().is_some_and(|old| !old.is_file()) || (old.is_none() && path.is_symlink()) {
            return Self::in_place(path);
        }
        // Keep a link, and replace its target.
        let place = if old.is_some() { path.canonicalize()? } else { path.to_owned() };
        let mut draft = match Self::beside(place) {
            Ok(draft) => draft,
            Err(_) if old.is_some() => return Self::in_place(path),
            Err(error) => return Err(error),
        };
        if let Some(old) = old {
            let file = draft.file();
            #[cfg(unix)]
            {
                use std::os::unix::fs::{MetadataExt as _, fchown};
                // Only root may change a file's owner.
                let _ = fchown(&*file, Some(old.uid()), Some(old.gid()));
            }
            file.set_permissions(old.permissions())?;
        }
        Ok(draft)
    }

    /// Creates a file without a name, or with a temporary name if the system has no unnamed files.
    fn beside(place: PathBuf) -> io::Result<Self> {
        let mut builder = builder();
        #[cfg(target_os = "linux")]
        if Path::new(OPEN_FILES).exists() {
            use std::os::unix::fs::OpenOptionsExt as _;
            let flags = rustix::fs::OFlags::TMPFILE.bits();
            let file = File::options().write(true).custom_flags(flags as i32).open(folder(&place));
            if let Ok(file) = file {
                return Ok(Self::Unnamed(file, place));
            }
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // Minus the bits of the umask.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        Ok(Self::Beside(builder.tempfile_in(folder(&place))?, place))
    }

    fn in_place(path: &Path) -> io::Result<Self> {
        File::create(path).map(Self::InPlace)
    }

    fn file(&mut self) -> &mut File {
        match self {
            Self::Beside(file, _) => file.as_file_mut(),
            #[cfg(target_os = "linux")]
            Self::Unnamed(file, _) => file,
            Self::InPlace(file) => file,
        }
    }

    /// Moves the file to its destination.
    fn keep(self) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file, place) => {
                use rustix::fs::{AtFlags, CWD, linkat};
                use std::os::fd::AsRawFd as _;
                let open = format!("{OPEN_FILES}/{}", file.as_raw_fd());
                // A new link cannot replace a file, but renaming another file can.
                let named = builder().make_in(folder(&place), |name| {
                    Ok(linkat(CWD, &*open, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
                })?;
                named.persist(place).map_err(|error| error.error)
            }
            Self::Beside(file, place) => file.persist(place).map(drop).map_err(|error| error.error),
            Self::InPlace(_) => Ok(()),
        }
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a whole file: only a complete file replaces an existing one.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let mut draft = Draft::create(path)?;
    draft.write_all(bytes.as_ref())?;
    draft.keep()
}

/// A file being written, compressed as its extension says.
pub struct Output {
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    Plain(BufWriter<Draft>),
    Gzip(Box<GzEncoder<BufWriter<Draft>>>),
    Zstd(zstd::Encoder<'static, Draft>),
}

impl Output {
    /// Begins a file, which replaces an older one when it is finished.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        Self::over(Draft::create, path)
    }

    /// Empties or creates the file now, for data that must survive if this tool is killed.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn in_place(path: &Path) -> Result<Self, Failure> {
        Self::over(Draft::in_place, path)
    }

    fn over(draft: impl FnOnce(&Path) -> io::Result<Draft>, path: &Path) -> Result<Self, Failure> {
        let create = || {
            let file = draft(path)?;
            Ok(match endings(path).1 {
                Some("zst") => {
                    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
                    encoder.include_checksum(true)?;
                    Sink::Zstd(encoder)
                }
                Some(_) => {
                    let level = flate2::Compression::default();
                    Sink::Gzip(Box::new(GzEncoder::new(BufWriter::new(file), level)))
                }
                None => Sink::Plain(BufWriter::new(file)),
            })
        };
        Ok(Self { path: path.into(), sink: create().map_err(Failure::file(path))? })
    }

    /// Writes the rest, and moves the file to its destination.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn finish(self) -> Result<(), Failure> {
        let Self { path, sink } = self;
        let inner = |file: BufWriter<Draft>| file.into_inner().map_err(io::IntoInnerError::into_error);
        let finish = || match sink {
            Sink::Plain(file) => inner(file),
            Sink::Gzip(encoder) => inner(encoder.finish()?),
            Sink::Zstd(encoder) => encoder.finish(),
        };
        finish().and_then(Draft::keep).map_err(Failure::file(&path))
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.sink {
            Sink::Plain(file) => file.write(bytes),
            Sink::Zstd(encoder) => encoder.write(bytes),
            Sink::Gzip(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Plain(file) => file.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
            Sink::Gzip(encoder) => encoder.flush(),
        }
    }
}
