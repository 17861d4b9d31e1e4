//! Writes trace files: the ending of the name selects form and compression.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use serde::Serialize;

use crate::failure::Failure;

/// Writes a value as JSON that people can read, and ends the line.
///
/// # Errors
/// Why it cannot be written.
pub fn json(out: &mut impl Write, value: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Returns the ending of a file's name that stands for the form, in lower case, and the one for the compression, if any.
pub fn endings(path: &Path) -> (String, Option<&'static str>) {
    let ending = |path: &Path| path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let outer = match ending(path).as_str() {
        "zst" => "zst",
        "gz" => "gz",
        other => return (other.into(), None),
    };
    (path.file_stem().map(|stem| ending(Path::new(stem))).unwrap_or_default(), Some(outer))
}

/// Checks that a file can be written at `path`, without changing one that exists.
///
/// # Errors
/// Why it cannot.
pub fn writable(path: &Path) -> io::Result<()> {
    let there = path.exists();
    // A device or a pipe is opened only once.
    if there && !path.metadata()?.is_file() {
        return if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(()) };
    }
    drop(File::options().append(true).create(true).open(path)?);
    if !there {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

/// Checks that `output` is another file than `input`, under whatever names: to write it would destroy what is being read.
///
/// # Errors
/// If it is the same.
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

/// The level of zstd: traces repeat themselves over distances that lower levels do not search.
const LEVEL: i32 = 6;

/// A file that is being written, compressed as its ending says.
pub struct Output {
    path: PathBuf,
    sink: Sink,
}

enum Sink {
    Plain(BufWriter<File>),
    Gzip(Box<GzEncoder<BufWriter<File>>>),
    Zstd(zstd::Encoder<'static, File>),
}

impl Output {
    /// Creates the file.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let create = || {
            let file = File::create(path)?;
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

    /// Writes what is left.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn finish(self) -> Result<(), Failure> {
        let Self { path, sink } = self;
        let finish = || match sink {
            Sink::Plain(mut file) => file.flush(),
            Sink::Gzip(encoder) => encoder.finish()?.flush(),
            Sink::Zstd(encoder) => encoder.finish().map(drop),
        };
        finish().map_err(Failure::file(&path))
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
