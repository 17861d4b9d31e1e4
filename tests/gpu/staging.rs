//! Data that is streamed through a device in chunks.

use crate::support::{Gpu, on_system};
use allotment::gpu::{Buffer, DeviceMemory, Error, HostMemory, Progress, Staging, Virtual};
use allotment::pool::{DevicePool, PoolOptions, Stream as _};
use std::fs::{self, File};
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

pub const CHUNK: usize = 64 << 10;

/// Data whose length is not a multiple of a chunk.
pub fn data(chunks: usize, more: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(3);
    (0..chunks * CHUNK + more).map(|_| random.u8(..)).collect()
}

/// Adds 1 to every byte of a chunk on the host, since the stand-in's kernels work on words.
pub fn add_one(mut chunk: allotment::gpu::ViewMut<'_, u8>) -> Result<(), Error> {
    let bytes: Vec<u8> = chunk.as_view().to_vec()?.iter().map(|byte| byte.wrapping_add(1)).collect();
    chunk.copy_from(&bytes)
}

#[test]
fn everything_goes_through_in_order() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap());
    for slots in [0, 2, 3, 5] {
        let (chunk, count) = (CHUNK - 100, slots);
        let mut staging = Staging::with_chunks(&gpu.context, chunk, count).unwrap();
        assert_eq!(staging.chunks(), (CHUNK, slots.max(2)));
        for (chunks, more) in [(0, 0), (0, 1), (1, 0), (2, 5), (7, 0), (9, 77)] {
            let data = data(chunks, more);
            let mut result = Vec::new();
            let mut seen = Vec::new();
            let done = staging
                .read_write(&*data, &mut result, &pool, &gpu.stream, |chunk, progress| {
                    seen.push((progress.copies, progress.bytes, chunk.len()));
                    add_one(chunk)
                })
                .unwrap();
            let expected: Vec<u8> = data.iter().map(|byte| byte.wrapping_add(1)).collect();
            assert!(result == expected, "{slots} slots, {chunks} chunks and {more} bytes");
            assert_eq!(
                (done.bytes, done.copies),
                (data.len() as u64, (chunks + usize::from(more > 0)) as u64)
            );
            assert!(seen.iter().enumerate().all(|(n, &(chunks, ..))| chunks == n as u64 + 1));
            assert_eq!(seen.iter().map(|&(.., len)| len).sum::<usize>(), data.len());
        }
    }
    drop(pool);
    gpu.finish();
}

/// Copies and work may run at any time, and chunks are never mixed up.
#[test]
fn held_streams_do_not_mix_chunks_up() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let (chunk, count) = (CHUNK, 3);
    let data = data(10, 9);
    let mut staging = Staging::with_chunks(&gpu.context, chunk, count).unwrap();
    gpu.control().hold_all(true);
    let mut result = Vec::new();
    let mut number = 0u8;
    let done = staging.read_write(&*data, &mut result, &pool, &gpu.stream, |chunk, _| {
        number += 1;
        chunk.slice(..1)?.fill(number) // waits for nothing
    });
    assert_eq!(done.unwrap().copies, 11);
    let mut expected = data.clone();
    expected.chunks_mut(CHUNK).zip(1..).for_each(|(chunk, number)| chunk[0] = number);
    assert!(result == expected);
    assert_eq!(gpu.control().calls("cuStreamSynchronize") + gpu.control().calls("cuCtxSynchronize"), 0);
    gpu.control().hold_all(false);
    drop(staging);
    drop(pool);
    gpu.finish();
}

/// A chunk on the device is not overwritten before the work on it is done.
#[test]
fn chunks_wait_for_their_work() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let data = data(9, 0);
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 3).unwrap();
    let mut firsts = Buffer::<u8>::zeros(&pool, 9, &gpu.stream).unwrap();
    gpu.control().hold_all(true);
    let done = staging.read(&*data, &pool, &gpu.stream, |chunk, progress| {
        let at = progress.copies as usize - 1;
        firsts.slice_mut(at..=at)?.copy_from_view(&chunk.as_view().slice(..1)?)
    });
    assert_eq!(done.unwrap().copies, 9);
    gpu.control().hold_all(false);
    let expected: Vec<u8> = data.chunks(CHUNK).map(|chunk| chunk[0]).collect();
    assert_eq!(firsts.to_vec().unwrap(), expected);
    drop(firsts);
    drop(staging);
    drop(pool);
    gpu.finish();
}

#[test]
fn more_than_the_device_has_goes_through() {
    if on_system() {
        return;
    }
    // Streams 1 GiB through a device with half as much memory, in a pool of 64 MiB.
    let gpu = Gpu::with_memory(512 << 20);
    let options = PoolOptions::new().limit(64 << 20);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    let mut staging = Staging::with_chunks(&gpu.context, 8 << 20, 3).unwrap();
    assert_eq!(gpu.context.device().memory, 512 << 20);
    let total = (1 << 30) + 1;
    let done = staging.read(io::repeat(5).take(total), &pool, &gpu.stream, |chunk, _| {
        let last = chunk.len() - 1;
        assert_eq!(chunk.as_view().slice(last..)?.to_vec()?, [5]);
        Ok::<_, Error>(())
    });
    let done = done.unwrap();
    assert_eq!((done.bytes, done.copies), (total, 129));
    assert!(done.bandwidth() > 0.0 && pool.stats().reserved.peak <= 64 << 20);
    drop(staging);
    drop(pool);
    gpu.finish();
}

/// A real file, larger than the device's memory, goes through it and into another file.
#[test]
fn a_file_larger_than_the_device_goes_through() {
    if on_system() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("allotment-staging-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let bytes = data(70, 12_345);
    fs::write(&from, &bytes).unwrap();
    // 4.4 MiB through a device with 4 MiB, in a pool of 2 MiB.
    let gpu = Gpu::with_memory(4 << 20);
    assert!(bytes.len() > gpu.context.device().memory);
    let options = PoolOptions::new().limit(2 << 20);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 3).unwrap();
    let (source, sink) = (File::open(&from).unwrap(), File::create(&to).unwrap());
    let done = staging.read_write(source, sink, &pool, &gpu.stream, |chunk, _| add_one(chunk)).unwrap();
    assert_eq!((done.bytes, done.copies), (bytes.len() as u64, 71));
    let written = fs::read(&to).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert!(
        written.len() == bytes.len()
            && written.iter().zip(&bytes).all(|(new, old)| *new == old.wrapping_add(1))
    );
    drop(staging);
    drop(pool);
    gpu.finish();
}

/// Fails after some bytes.
struct Broken(usize);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.min(buffer.len());
        self.0 -= len;
        if len == 0 { Err(io::Error::other("broken")) } else { Ok(len) }
    }
}

/// The error of a program's own work.
#[derive(Debug, PartialEq)]
enum Stop {
    Work,
    Staging(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Staging(error)
    }
}

#[test]
fn errors_of_all_sides_are_told_apart() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 2).unwrap();
    let nothing = |_: allotment::gpu::ViewMut<'_, u8>, _: &_| Ok::<_, Error>(());
    let error = staging.read(Broken(3 * CHUNK), &memory, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(&error, Error::Read(io::ErrorKind::Other, text) if text == "broken"), "{error}");
    let full = &mut [0u8; CHUNK][..];
    let error = staging.read_write(&*data(3, 0), full, &memory, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(error, Error::Write(io::ErrorKind::WriteZero, _)), "{error}");
    let stop = |_: allotment::gpu::ViewMut<'_, u8>, _: &_| Err(Stop::Work);
    let error = staging.read(&*data(3, 0), &memory, &gpu.stream, stop).unwrap_err();
    assert_eq!(error, Stop::Work);
    let error = staging.read(Broken(0), &memory, &gpu.stream, stop).unwrap_err();
    assert!(matches!(error, Stop::Staging(Error::Read(..))), "{error:?}");
    if !on_system() {
        for (name, nth) in [
            ("cuMemAlloc_v2", 2),
            ("cuMemcpyHtoDAsync_v2", 2),
            ("cuMemcpyDtoHAsync_v2", 1),
            ("cuEventRecord", 5),
        ] {
            gpu.control().fail(name, nth, 1, 999);
            let error =
                staging.read_write(&*data(3, 0), io::sink(), &memory, &gpu.stream, nothing).unwrap_err();
            assert!(matches!(&error, Error::Call(error) if error.code == 999), "{name}: {error}");
        }
    }
    // It can be used again.
    let mut result = Vec::new();
    staging.read_write(&*data(3, 1), &mut result, &memory, &gpu.stream, nothing).unwrap();
    assert!(result == data(3, 1));
    gpu.stream.synchronize().unwrap();
    drop((staging, memory));
    gpu.finish();
}

#[test]
fn bandwidth_is_bytes_by_time() {
    let progress =
        |millis| Progress { bytes: 3000, copies: 2, calls: 2, elapsed: Duration::from_millis(millis) };
    let bandwidths = [1500, 250, 0].map(|millis| progress(millis).bandwidth());
    assert_eq!(bandwidths, [2000.0, 12000.0, 0.0]);
}

/// Yields few bytes at a time, and is interrupted in between. It is never asked for no bytes.
struct Slow<'a>(&'a [u8], usize);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        assert!(!buffer.is_empty());
        self.1 += 1;
        if self.1 % 2 == 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let most = buffer.len().min(10_000);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn interrupted_reads_go_on() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 2).unwrap();
    let (data, mut result) = (data(3, 7), Vec::new());
    let nothing = |_: allotment::gpu::ViewMut<'_, u8>, _: &_| Ok::<_, Error>(());
    staging.read_write(Slow(&data, 0), &mut result, &memory, &gpu.stream, nothing).unwrap();
    assert!(result == data);
    gpu.stream.synchronize().unwrap();
    drop((staging, memory));
    gpu.finish();
}

/// Pinned memory that cannot be had is an error of its own, and what there is not is not waited for.
#[test]
fn pinned_memory_is_asked_for_when_it_is_needed() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let (chunk, count) = (CHUNK, 2);
    let refused = Staging::with_chunks(&gpu.context, usize::MAX, count).unwrap_err();
    assert_eq!(refused, Error::Unsupported("chunks of this size"));
    gpu.control().fail("cuMemHostAlloc", 2, 1, 999);
    let refused = Staging::with_chunks(&gpu.context, chunk, count).unwrap_err();
    assert!(matches!(refused, Error::Call(error) if error.code == 999), "{refused}");
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut staging = Staging::with_chunks(&gpu.context, chunk, count).unwrap();
    let nothing = |_: allotment::gpu::ViewMut<'_, u8>, _: &_| Ok::<_, Error>(());
    let write = |staging: &mut Staging, data: &[u8]| {
        staging.read_write(data, io::sink(), &memory, &gpu.stream, nothing).map(|done| done.copies)
    };
    gpu.control().fail("cuMemHostAlloc", 1, 1, 999);
    let refused = write(&mut staging, &[1; 10]).unwrap_err();
    assert!(matches!(refused, Error::Call(error) if error.code == 999), "{refused}");
    let waits = || gpu.control().calls("cuEventSynchronize");
    let before = waits();
    assert_eq!(write(&mut staging, &[]).unwrap(), 0);
    assert_eq!(waits(), before + 1, "only for the first chunk, which turns out to be none");
    assert_eq!(write(&mut staging, &[1; 10]).unwrap(), 1);
    drop(staging);
    // Chunks have to be where a device can work on them.
    let mut staging = Staging::with_chunks(&gpu.context, chunk, count).unwrap();
    let host = Arc::new(HostMemory::new(1 << 20));
    let refused = staging.read(&[1; 10][..], &host, &gpu.stream, nothing).unwrap_err();
    assert!(matches!(refused, Error::Unreachable), "{refused}");
    drop((staging, memory, host));
    gpu.finish();
}
