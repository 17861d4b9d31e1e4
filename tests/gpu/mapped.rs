//! Mapped files that are streamed through a device.

use crate::staging::{CHUNK, add_one, data};
use crate::support::Gpu;
use allotment::gpu::{DeviceMemory, Error, Progress, Staging, ViewMut};
use allotment::pool::{DevicePool, PoolOptions, Stream as _};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("allotment-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes a file and opens it again for reading and writing.
    pub fn file(&self, name: &str, bytes: &[u8]) -> File {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        File::options().read(true).write(true).open(path).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn staging(gpu: &Gpu) -> Staging {
    Staging::with_chunks(&gpu.context, CHUNK, 3).unwrap()
}

fn nothing(_: ViewMut<'_, u8>, _: &Progress) -> Result<(), Error> {
    Ok(())
}

/// The bytes after `add_one`.
fn more(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte.wrapping_add(1)).collect()
}

#[test]
fn a_mapped_file_larger_than_the_device_is_changed_in_place() {
    let folder = Folder::new("mapped");
    let mut expected = data(70, 12_345);
    let file = folder.file("file", &expected);
    // 4.4 MiB through a device with 4 MiB, in a pool of 2 MiB, by 192 KiB of pinned memory.
    let gpu = Gpu::with_memory(4 << 20);
    let options = PoolOptions::new().limit(2 << 20);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    let mut staging = staging(&gpu);
    let done = staging.update_file(&file, .., &pool, &gpu.stream, |chunk, _| add_one(chunk)).unwrap();
    assert_eq!((done.bytes, done.copies), (expected.len() as u64, 71));
    expected = more(&expected);
    assert!(fs::read(folder.0.join("file")).unwrap() == expected);
    // A part that begins and ends within pages.
    let part = 1_001..=4 * CHUNK + 77;
    let bounds = *part.start() as u64..=*part.end() as u64;
    let done =
        staging.update_file(&file, bounds.clone(), &pool, &gpu.stream, |chunk, _| add_one(chunk)).unwrap();
    assert_eq!(done.bytes, part.clone().count() as u64);
    let changed = more(&expected[part.clone()]);
    expected[part.clone()].copy_from_slice(&changed);
    assert!(fs::read(folder.0.join("file")).unwrap() == expected);
    // The last bytes.
    let at = expected.len() - 10;
    staging.update_file(&file, at as u64.., &pool, &gpu.stream, |chunk, _| add_one(chunk)).unwrap();
    let changed = more(&expected[at..]);
    expected[at..].copy_from_slice(&changed);
    let mut seen = Vec::new();
    let read = staging.read_file(&file, bounds, &pool, &gpu.stream, |mut chunk, _| {
        seen.extend(chunk.as_view().to_vec()?);
        chunk.fill(0) // changes the chunk alone
    });
    assert_eq!(read.unwrap().bytes, seen.len() as u64);
    assert!(seen == expected[part]);
    assert!(fs::read(folder.0.join("file")).unwrap() == expected);
    gpu.stream.synchronize().unwrap();
    drop((staging, pool));
    gpu.finish();
}

#[test]
fn a_mapped_file_that_shrinks_is_an_error() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let folder = Folder::new("shrunk");
    let before = data(9, 0);
    let file = folder.file("file", &before);
    let other = file.try_clone().unwrap();
    let mut staging = staging(&gpu);
    let is_shrunk = |done: Result<Progress, Error>, whole: usize, length: usize| {
        let error = done.unwrap_err();
        let (whole, length) = (whole as u64, length as u64);
        let found = matches!(error, Error::Shrunk { mapped, left } if (mapped, left) == (whole, length));
        assert!(found, "{error}");
    };
    // The second chunk is under way, and the fourth would be read from beyond the end.
    let mut lengths = vec![3 * CHUNK as u64 + 5];
    let done = staging.read_file(&file, .., &memory, &gpu.stream, |_, _| {
        lengths.drain(..).for_each(|length| other.set_len(length).unwrap());
        Ok(())
    });
    is_shrunk(done, before.len(), 3 * CHUNK + 5);
    let beyond = 3 * CHUNK as u64..4 * CHUNK as u64;
    let refused = staging.update_file(&file, beyond, &memory, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(refused, Error::Read(ErrorKind::InvalidInput, _)), "{refused}");
    // What is there can be used as before.
    let done = staging
        .update_file(&file, ..3 * CHUNK as u64 + 5, &memory, &gpu.stream, |chunk, _| add_one(chunk))
        .unwrap();
    assert_eq!(done.copies, 4);
    assert!(fs::read(folder.0.join("file")).unwrap() == more(&before[..3 * CHUNK + 5]));
    // All chunks were read, and their results cannot be written.
    let done = staging.update_file(&file, ..2 * CHUNK as u64, &memory, &gpu.stream, |_, progress| {
        other.set_len(if progress.copies == 2 { 0 } else { 3 * CHUNK as u64 }).unwrap();
        Ok(())
    });
    is_shrunk(done, 3 * CHUNK + 5, 0);
    gpu.stream.synchronize().unwrap();
    drop((staging, memory));
    gpu.finish();
}

#[test]
fn files_that_cannot_be_mapped_or_changed_are_refused() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let folder = Folder::new("refused");
    let mut staging = staging(&gpu);
    let error =
        staging.read_file(&File::open(&folder.0).unwrap(), .., &memory, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(&error, Error::Read(ErrorKind::InvalidInput, _)), "{error}");
    // Nothing of an empty file is streamed.
    let empty = folder.file("empty", &[]);
    assert_eq!(staging.read_file(&empty, .., &memory, &gpu.stream, nothing).unwrap().copies, 0);
    assert_eq!(staging.update_file(&empty, .., &memory, &gpu.stream, nothing).unwrap().copies, 0);
    let bytes = data(1, 1);
    drop(folder.file("file", &bytes));
    let file = File::open(folder.0.join("file")).unwrap();
    let error = staging.update_file(&file, .., &memory, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(&error, Error::Write(ErrorKind::PermissionDenied, _)), "{error}");
    let end = bytes.len() as u64;
    for (start, end) in [(0, end + 1), (end + 1, end + 1), (5, 4)] {
        let error = staging.read_file(&file, start..end, &memory, &gpu.stream, nothing).unwrap_err();
        assert!(matches!(&error, Error::Read(ErrorKind::InvalidInput, _)), "{error}");
    }
    assert!(staging.read_file(&file, ..=u64::MAX, &memory, &gpu.stream, nothing).is_err());
    assert_eq!(staging.read_file(&file, end.., &memory, &gpu.stream, nothing).unwrap().copies, 0);
    assert_eq!(staging.read_file(&file, .., &memory, &gpu.stream, nothing).unwrap().bytes, end);
    gpu.stream.synchronize().unwrap();
    drop((staging, memory));
    gpu.finish();
}
