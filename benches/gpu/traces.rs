//! Recorded runs of PyTorch. Those of the repository are embedded in the program.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use allotment_trace::{Kind, Program, Reader};
use anyhow::{Context, Result, bail};

const OWN: [(&str, &[u8]); 3] = [
    ("resnet18_train", include_bytes!("../../tests/data/tensors/resnet18_train.trace.zst")),
    ("gpt_train", include_bytes!("../../tests/data/tensors/gpt_train.trace.zst")),
    ("bert_infer", include_bytes!("../../tests/data/tensors/bert_infer.trace.zst")),
];

/// A recorded run, ready for replay.
pub struct Trace {
    /// The file name without extensions.
    pub name: String,
    /// Its operations.
    pub program: Program,
}

impl Trace {
    fn new(name: &str, reader: Reader<'_>) -> Result<Self> {
        let program = Program::compile(reader).with_context(|| format!("in the trace {name}"))?;
        if program.ops.iter().any(|op| op.kind == Kind::Reallocate) {
            bail!("in the trace {name}: memory of a device is not resized");
        }
        Ok(Self { name: name.to_owned(), program })
    }
}

/// Reads the embedded runs, and those in `folder`.
pub fn read(folder: Option<&Path>) -> Result<Vec<Trace>> {
    let mut traces = Vec::new();
    for (name, bytes) in OWN {
        traces.push(Trace::new(name, Reader::new(bytes)?)?);
    }
    let Some(folder) = folder else { return Ok(traces) };
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((stem, _)) = name.split_once(".trace") else { continue };
        if traces.iter().all(|trace| trace.name != stem) {
            let reader = allotment_trace::open(&file).with_context(|| format!("in {}", file.display()))?;
            traces.push(Trace::new(stem, reader)?);
        }
    }
    Ok(traces)
}

/// Writes the embedded runs to a folder as text.
pub fn write(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, bytes) in OWN {
        let path = folder.join(name).with_extension("trace");
        let context = || format!("cannot write {}", path.display());
        let mut file = File::create(&path).with_context(context)?;
        io::copy(&mut allotment_trace::decompressed(bytes)?, &mut file).with_context(context)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        for (name, bytes) in OWN {
            let written =
                Reader::new(File::open(folder.path().join(format!("{name}.trace"))).unwrap()).unwrap();
            let written = Trace::new(name, written).unwrap().program;
            let own = Trace::new(name, Reader::new(bytes).unwrap()).unwrap().program;
            assert_eq!((own.peak, own.slots), (written.peak, written.slots), "{name}");
            assert_eq!(format!("{:?}", own.ops), format!("{:?}", written.ops), "{name}");
        }
    }

    #[test]
    fn a_folder_adds_what_is_not_there_yet() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small.trace"), "a 0 100 0\nf 0\n").unwrap();
        fs::write(folder.path().join("gpt_train.trace"), "a 0 100 0\nf 0\n").unwrap();
        fs::write(folder.path().join("README"), "").unwrap();
        let traces = read(Some(folder.path())).unwrap();
        assert_eq!((traces.len(), traces[3].name.as_str(), traces[3].program.peak), (4, "small", 100));
        fs::write(folder.path().join("wrong.trace"), "a 0 100 0\nr 0 200\n").unwrap();
        assert!(format!("{:#}", read(Some(folder.path())).err().unwrap()).contains("wrong"));
    }
}
