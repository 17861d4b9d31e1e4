//! Recorded traces, compiled to a form whose replay costs next to nothing.
//!
//! The text form is `a <id> <size> <align>`, `r <id> <new size>`, `f <id>`, one event a line. Compiled, every
//! operation knows the sizes and the alignment that its layout needs and a slot for its block; slots
//! are used again, so that the table of blocks stays in the cache as a program's own variables would.

use std::alloc::Layout;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The variable that names a folder with more traces.
const FOLDER: &str = "ALLOTMENT_TRACES";

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Allocates `size` bytes.
    Allocate,
    /// Changes a block of `size` bytes to `new` bytes.
    Reallocate,
    /// Frees a block of `size` bytes.
    Free,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Op {
    /// What to do.
    pub kind: Kind,
    /// The logarithm of the alignment.
    align: u8,
    /// Where the block is kept.
    pub slot: u32,
    /// Bytes that the block has, or shall have.
    pub size: u32,
    /// Bytes after a reallocation.
    pub new: u32,
}

impl Op {
    /// An operation on the block in `slot`.
    pub fn new(kind: Kind, slot: usize, size: usize, align: usize, new: usize) -> Self {
        let narrow = |number: usize| u32::try_from(number).expect("blocks and slots are below 4 Gi");
        Self { kind, align: align.ilog2() as u8, slot: narrow(slot), size: narrow(size), new: narrow(new) }
    }

    /// The layout of the block before the operation (after it, for an allocation).
    #[inline(always)]
    pub fn layout(&self) -> Layout {
        // SAFETY: the alignment is a power of two, and 4 Gi rounded up to it does not overflow.
        unsafe { Layout::from_size_align_unchecked(self.size as usize, 1 << self.align) }
    }
}

/// A trace that is ready to be replayed.
#[derive(Clone)]
pub struct Trace {
    /// The file's name without its endings.
    pub name: String,
    /// All operations in order.
    pub ops: Vec<Op>,
    /// How many slots they need.
    pub slots: usize,
    /// The most requested bytes that are live at once.
    pub peak: usize,
    /// Bytes of the arena, if it does not follow from the peak.
    pub room: Option<usize>,
}

impl Trace {
    /// The arena: of 1.5 times the peak, in whole pages, unless the trace says otherwise.
    pub fn arena(&self) -> usize {
        self.room.unwrap_or((self.peak + self.peak / 2).next_multiple_of(4096))
    }

    /// Reads and compiles a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_owned();
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut text = String::new();
        if path.extension().is_some_and(|extension| extension == "zst") {
            let mut decoder = ruzstd::decoding::StreamingDecoder::new(bytes.as_slice())
                .with_context(|| format!("{} is not zstd", path.display()))?;
            decoder.read_to_string(&mut text)?;
        } else {
            text = String::from_utf8(bytes)?;
        }
        Self::parse(name, &text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(name: String, text: &str) -> Result<Self> {
        let mut trace = Builder::default();
        for (index, line) in text.lines().enumerate() {
            trace.line(line).with_context(|| format!("line {}: {line:?}", index + 1))?;
        }
        let Builder { ops, slots, peak, .. } = trace;
        Ok(Self { name, ops, slots, peak, room: None })
    }

    /// Writes the compiled form, which [`Trace::load`] reads in a few instructions per event.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut bytes = Vec::with_capacity(16 * (self.ops.len() + 2));
        for word in [self.slots, self.peak, self.room.unwrap_or(0), 0] {
            bytes.extend((word as u64).to_le_bytes());
        }
        for op in &self.ops {
            let head = op.kind as u32 | u32::from(op.align) << 8;
            for word in [head, op.slot, op.size, op.new] {
                bytes.extend(word.to_le_bytes());
            }
        }
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads what [`Trace::save`] wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (chunks, rest) = bytes.as_chunks::<16>();
        let ([head, tail, chunks @ ..], []) = (chunks, rest) else {
            bail!("{} is no compiled trace", path.display());
        };
        let word = |chunk: &[u8; 16], at: usize| {
            u32::from_le_bytes([chunk[at], chunk[at + 1], chunk[at + 2], chunk[at + 3]])
        };
        let ops = chunks
            .iter()
            .map(|chunk| Op {
                kind: match chunk[0] {
                    0 => Kind::Allocate,
                    1 => Kind::Reallocate,
                    _ => Kind::Free,
                },
                align: chunk[1],
                slot: word(chunk, 4),
                size: word(chunk, 8),
                new: word(chunk, 12),
            })
            .collect();
        let [slots, peak, room] = [(head, 0), (head, 8), (tail, 0)]
            .map(|(chunk, at)| word(chunk, at) as usize | (word(chunk, at + 4) as usize) << 32);
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, ops, slots, peak, room: (room > 0).then_some(room) })
    }
}

/// Compiles events.
#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    /// Per id: slot, size and alignment of its live block.
    live: Vec<Option<(usize, usize, usize)>>,
    /// Slots that were used and are free again.
    unused: Vec<usize>,
    slots: usize,
    bytes: usize,
    peak: usize,
}

impl Builder {
    fn line(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let Some(kind) = words.next().filter(|word| !word.starts_with('#')) else { return Ok(()) };
        let mut number = || -> Result<usize> { Ok(words.next().context("a number is missing")?.parse()?) };
        let id = number()?;
        if id >= self.live.len() {
            self.live.resize(id + 1, None);
        }
        match kind {
            "a" => {
                ensure!(self.live[id].is_none(), "the block is live already");
                // `malloc(0)` returns a block; an allocation of no bytes is not one for `GlobalAlloc`.
                let size = number()?.max(1);
                let align = match number()? {
                    0 => 8,
                    align => align,
                };
                ensure!(align.is_power_of_two(), "{align} is no alignment");
                let slot = self.unused.pop().unwrap_or(self.slots);
                self.slots = self.slots.max(slot + 1);
                self.live[id] = Some((slot, size, align));
                self.bytes += size;
                self.ops.push(Op::new(Kind::Allocate, slot, size, align, 0));
            }
            "r" => {
                let new = number()?.max(1);
                let (slot, size, align) = self.live[id].context("the block is not live")?;
                self.live[id] = Some((slot, new, align));
                self.bytes = self.bytes - size + new;
                self.ops.push(Op::new(Kind::Reallocate, slot, size, align, new));
            }
            "f" => {
                let (slot, size, align) = self.live[id].take().context("the block is not live")?;
                self.unused.push(slot);
                self.bytes -= size;
                self.ops.push(Op::new(Kind::Free, slot, size, align, 0));
            }
            _ => bail!("there is no event {kind:?}"),
        }
        self.peak = self.peak.max(self.bytes);
        Ok(())
    }
}

/// The files: those of the repository and those in the folder that the environment names. A name that is in
/// both is taken once.
pub fn paths() -> Result<Vec<PathBuf>> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let more = std::env::var_os(FOLDER).map(PathBuf::from);
    let mut paths = Vec::<PathBuf>::new();
    for folder in [Some(own), more].into_iter().flatten() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let known = paths.iter().any(|other| other.file_name() == path.file_name());
            if !known && (name.ends_with(".trace") || name.ends_with(".trace.zst")) {
                paths.push(path);
            }
        }
    }
    paths.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    Ok(paths)
}

/// All traces, compiled.
pub fn all() -> Result<Vec<Trace>> {
    paths()?.iter().map(|path| Trace::read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_are_compiled_and_survive_saving() {
        let trace =
            Trace::parse("t".into(), "# c\na 0 0 0\na 1 100 64\nr 0 50\nf 0\na 2 7 0\nf 1\nf 2\n").unwrap();
        assert_eq!((trace.slots, trace.peak, trace.ops.len()), (2, 150, 7));
        let file = tempfile::NamedTempFile::new().unwrap();
        trace.save(file.path()).unwrap();
        let loaded = Trace::load(file.path()).unwrap();
        assert_eq!((loaded.slots, loaded.peak, loaded.arena()), (2, 150, 4096));
        Trace { room: Some(1 << 20), ..trace.clone() }.save(file.path()).unwrap();
        assert_eq!(Trace::load(file.path()).unwrap().arena(), 1 << 20);
        for (a, b) in trace.ops.iter().zip(&loaded.ops) {
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
        }
        assert_eq!(trace.ops[4].slot, trace.ops[0].slot);
        assert_eq!(trace.ops[1].layout(), Layout::from_size_align(100, 64).unwrap());
    }

    #[test]
    fn bad_traces_are_refused_with_their_line() {
        for text in
            ["a 0 8 0\nf 1\n", "a 0 8 0\na 0 8 0\n", "# c\na 0 8\n", "a 0 8 0\nx 0\n", "a 0 1 0\na 1 8 3\n"]
        {
            let error = Trace::parse("bad".into(), text).err().expect(text);
            assert!(error.to_string().starts_with("line 2"), "{error}");
        }
    }
}
