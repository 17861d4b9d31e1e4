//! Writes files: only a complete file replaces an older one, and the extension of a trace's name selects its format and compression.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Read, Seek, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::failure::Failure;
use crate::text::Plain;

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

/// Returns whether a path is `-`, which stands for the standard input or output.
pub fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns a path's name in messages.
pub fn shown(path: &Path) -> &Path {
    if is_standard(path) { Path::new("standard output") } else { path }
}

/// Returns where to say what was written to `output`: the standard output unless that has it.
pub fn told(output: &Path) -> Plain<Box<dyn Write>> {
    Plain(if is_standard(output) { Box::new(io::stderr()) } else { Box::new(io::stdout().lock()) })
}

/// Checks that binary data for `output` do not go to a terminal.
///
/// # Errors
/// If they would.
pub fn no_terminal(output: &Path) -> Result<(), Failure> {
    if is_standard(output) && io::stdout().is_terminal() {
        let what = "standard output: a terminal shows no binary data: redirect it to a file or a pipe";
        return Err(Failure::Other(what.into()));
    }
    Ok(())
}

/// Checks that a file can be written at `path`, without changing an existing file.
///
/// # Errors
/// If it cannot be written.
pub fn writable(path: &Path) -> io::Result<()> {
    if is_standard(path) {
        return Ok(());
    }
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

/// Checks that `output` is not the file `input` under another name, whether or not it exists yet: writing it would destroy the input,
/// which is the `role` of that file in the command.
///
/// # Errors
/// If both are the same file.
pub fn apart(role: &str, input: &Path, output: &Path) -> Result<(), Failure> {
    if is_standard(input) || is_standard(output) {
        return Ok(());
    }
    if place(output).is_some_and(|there| place(input) == Some(there)) {
        let output = output.display();
        return Err(Failure::Other(format!(
            "{output}: it is the {role} as well: name another file to write"
        )));
    }
    Ok(())
}

/// What tells a file from others.
#[derive(PartialEq, Eq)]
enum Place {
    #[cfg(unix)]
    File(u64, u64),
    Path(PathBuf),
}

/// Returns what tells a file from others; `None` for a terminal or a pipe, which can be read and written, and for paths without a folder.
fn place(path: &Path) -> Option<Place> {
    let Ok(there) = path.metadata() else {
        // A link that leads nowhere makes its target.
        if let Ok(target) = path.read_link() {
            let target = folder(path).join(target);
            return Some(Place::Path(folder(&target).canonicalize().ok()?.join(target.file_name()?)));
        }
        return Some(Place::Path(folder(path).canonicalize().ok()?.join(path.file_name()?)));
    };
    if !there.is_file() {
        return None;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Some(Place::File(there.dev(), there.ino()))
    }
    #[cfg(not(unix))]
    path.canonicalize().ok().map(Place::Path)
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
    /// A temporary file, and the device, the pipe or the standard output that receives its bytes, which no later ones can replace.
    Aside(File, Box<dyn Write>),
    /// A file in a folder that allows no other, or one whose beginning must survive.
    InPlace(Box<dyn Write>),
}

impl Draft {
    fn create(path: &Path) -> io::Result<Self> {
        let old = path.metadata().ok();
        if is_standard(path) || old.as_ref().is_some_and(|old| !old.is_file()) {
            return Ok(Self::Aside(tempfile::tempfile()?, opened(path)?));
        }
        if old.is_none() && path.is_symlink() {
            return Self::in_place(path);
        }
        // Keep a link, and replace its target.
        let place = if old.is_some() { path.canonicalize()? } else { path.to_owned() };
        let mut draft = match Self::beside(place) {
            Ok(draft) => draft,
            Err(_) if old.is_some() => return Self::in_place(path),
            Err(error) => return Err(error),
        };
        if let (Some(old), Some(file)) = (old, draft.file()) {
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
        opened(path).map(Self::InPlace)
    }

    fn file(&mut self) -> Option<&mut File> {
        match self {
            Self::Beside(file, _) => Some(file.as_file_mut()),
            #[cfg(target_os = "linux")]
            Self::Unnamed(file, _) => Some(file),
            Self::Aside(file, _) => Some(file),
            Self::InPlace(_) => None,
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
            Self::Aside(mut file, mut to) => {
                file.rewind()?;
                let mut file = BufReader::new(file);
                // In lines, so that no character is divided.
                let mut line = Vec::new();
                while file.by_ref().take(1 << 20).read_until(b'\n', &mut line)? > 0 {
                    to.write_all(&line)?;
                    line.clear();
                }
                to.flush()
            }
            Self::InPlace(mut file) => file.flush(),
        }
    }
}

/// Opens a file to be written from its beginning, or the standard output.
fn opened(path: &Path) -> io::Result<Box<dyn Write>> {
    Ok(match is_standard(path) {
        true if io::stdout().is_terminal() => Box::new(Plain(io::stdout())),
        true => Box::new(io::stdout()),
        false => Box::new(File::create(path)?),
    })
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::InPlace(file) => file.write(bytes),
            draft => draft.file().map_or(Ok(0), |file| file.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::InPlace(file) => file.flush(),
            _ => Ok(()),
        }
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
        let path = shown(path);
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
