//! Recorded traces, compiled to a form whose replay costs next to nothing (see the crate `allotment-trace`), and
//! stored in files for other processes.

use std::fs;
use std::path::{Path, PathBuf};

use allotment_trace::{Program, Reader};
use anyhow::{Context, Result, bail};

pub use allotment_trace::{Kind, Op};

/// The environment variable that names a folder with more traces.
const FOLDER: &str = "ALLOTMENT_TRACES";

/// The set of programs that a trace belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Set {
    /// Programs on which the allocators here were tuned.
    Given,
    /// Other programs, to see whether the tuning holds for them.
    Further,
    /// Programs whose requests are mostly aligned to more than a word.
    Aligned,
}

impl Set {
    /// Returns the set of the trace with this name.
    pub fn of(name: &str) -> Self {
        match name {
            "cc1" | "espeak" | "git_log" | "jq_small" | "lua_small" | "mosquitto" | "redis"
            | "rust_json_small" | "sqlite" => Self::Given,
            "ffmpeg" => Self::Aligned,
            _ => Self::Further,
        }
    }
}

/// Makes an operation of a synthetic workload, whose blocks and slots are below 4 Gi.
pub fn op(kind: Kind, slot: usize, size: usize, align: usize, new: usize) -> Op {
    Op::new(kind, slot, size, align, new).expect("blocks and slots are below 4 Gi")
}

/// A trace that is ready for replay.
#[derive(Clone)]
pub struct Trace {
    /// The file name without extensions.
    pub name: String,
    /// All operations in order.
    pub ops: Vec<Op>,
    /// The number of slots that they need.
    pub slots: usize,
    /// The most requested bytes that are live at once.
    pub peak: usize,
    /// Bytes of the arena, if it does not follow from the peak.
    pub room: Option<usize>,
}

impl Trace {
    /// Returns the arena's size: 1.5 times the peak in whole pages, unless the trace specifies it.
    pub fn arena(&self) -> usize {
        self.room.unwrap_or((self.peak + self.peak / 2).next_multiple_of(4096))
    }

    /// Reads and compiles a file.
    pub fn read(path: &Path) -> Result<Self> {
        let name = name_of(path);
        let reader = allotment_trace::open(path).with_context(|| format!("in {}", path.display()))?;
        Self::compile(name, reader).with_context(|| format!("in {}", path.display()))
    }

    fn compile(name: String, reader: Reader<'_>) -> Result<Self> {
        let Program { ops, slots, peak } = Program::compile(reader)?;
        Ok(Self { name, ops, slots, peak, room: None })
    }

    /// Writes the compiled form, which [`Trace::load`] reads in a few instructions per event.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut bytes = Vec::with_capacity(24 * (self.ops.len() + 1));
        let first = [self.slots, self.peak, self.room.unwrap_or(0)];
        let ops = self.ops.iter().map(|op| {
            let head =
                op.kind as u64 | u64::from(op.layout().align().ilog2()) << 8 | u64::from(op.slot) << 32;
            [head, op.size() as u64, op.resized() as u64]
        });
        for word in [first.map(|word| word as u64)].into_iter().chain(ops).flatten() {
            bytes.extend(word.to_le_bytes());
        }
        fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads a file written by [`Trace::save`].
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let (chunks, more) = words.as_chunks::<3>();
        let (&[first, ref chunks @ ..], [], []) = (chunks, more, rest) else {
            bail!("{} is no compiled trace", path.display());
        };
        let [slots, peak, room] = first.map(|word| word as usize);
        let ops = chunks.iter().map(|&[head, size, new]| {
            let kind = match head as u8 {
                0 => Kind::Allocate,
                1 => Kind::Reallocate,
                _ => Kind::Free,
            };
            let align = 1_usize.checked_shl((head >> 8 & 0xFF) as u32);
            let op = align
                .and_then(|align| Op::new(kind, (head >> 32) as usize, size as usize, align, new as usize));
            op.with_context(|| format!("{} is no compiled trace", path.display()))
        });
        let ops = ops.collect::<Result<_>>()?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, ops, slots, peak, room: (room > 0).then_some(room) })
    }
}

/// Lists the files by set and name: those of the repository, in two folders, and those in the folder named by the
/// environment variable. A name that occurs more than once is taken once.
pub fn paths() -> Result<Vec<PathBuf>> {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let more = std::env::var_os(FOLDER).map(PathBuf::from);
    let mut paths = Vec::<PathBuf>::new();
    for folder in [Some(home.join("../tests/data")), Some(home.join("traces")), more].into_iter().flatten() {
        let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let known = paths.iter().any(|other| name_of(other) == name_of(&path));
            if !known && (name.ends_with(".trace") || name.ends_with(".trace.zst")) {
                paths.push(path);
            }
        }
    }
    paths.sort_by_cached_key(|path| (Set::of(&name_of(path)), name_of(path)));
    Ok(paths)
}

/// Returns the file name without extensions.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Reads and compiles all traces.
pub fn all() -> Result<Vec<Trace>> {
    paths()?.iter().map(|path| Trace::read(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::alloc::Layout;

    use super::*;

    #[test]
    fn traces_are_compiled_and_survive_saving() {
        let text = "# c\na 0 0 0\na 1 100 64\nr 0 50\nf 0\na 2 7 0\nf 1\nf 2\n";
        let trace = Trace::compile("t".into(), Reader::new(text.as_bytes()).unwrap()).unwrap();
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
}
