//! Pinned copies to a device, at once and in chunks.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use allotment::gpu::{Buffer, DeviceMemory, Error, Pinned, Pool, Staging, Stream};
use allotment::pool::{PoolOptions, Stream as _};
use allotment_benches::gpu::BANDWIDTH;
use anyhow::Result;

use crate::device::Device;
use crate::setup::{Sample, Setup};

/// A reader that leaves the bytes of a pinned chunk unchanged.
struct AsTheyAre {
    left: u64,
}

impl Read for AsTheyAre {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= len as u64;
        Ok(len)
    }
}

/// Measures one round.
pub fn measure(setup: &Setup) -> Result<Vec<Sample>> {
    let Device::Driver(gpu) = &setup.device else { return Ok(Vec::new()) };
    // One copy at once, three chunks, and some reserve. At most 1 GiB is pinned.
    let bytes = (setup.budget / 2).min(setup.pick(1 << 30, 64 << 20)) & !((1 << 20) - 1);
    let times = setup.pick(4, 2);
    if bytes < 64 << 20 {
        setup.note("copies: need --memory 128".into());
        return Ok(Vec::new());
    }
    let stream = Stream::new(&gpu.context)?;
    let options = PoolOptions::new().limit(setup.budget);
    let pool = Pool::new(DeviceMemory::new(&gpu.context), options)?;
    let mut samples = Vec::new();
    let mut add = |case: &str, bytes: u64, start: Instant| {
        let bandwidth = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        samples.push(Sample::new(case, BANDWIDTH, bandwidth));
    };

    let pinned = Arc::new(Pinned::new(&gpu.context));
    let host = Buffer::<u8>::zeros(&pinned, bytes, &stream)?;
    let mut device = Buffer::<u8>::zeros(&pool, bytes, &stream)?;
    stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..times {
        device.as_view_mut().copy_from_view(&host.as_view())?;
    }
    stream.synchronize()?;
    add("one pinned copy", (times * bytes) as u64, start);
    drop((device, host));

    let all = (times * bytes) as u64;
    let mut staging = Staging::new(&gpu.context)?;
    let work = |_: allotment::gpu::ViewMut<'_, u8>, _: &allotment::gpu::Progress| Ok::<(), Error>(());
    // The first use makes the pool reserve the chunks and initialises the streams.
    staging.read(AsTheyAre { left: 64 << 20 }, &pool, &stream, work)?;
    stream.synchronize()?;
    let start = Instant::now();
    let done = staging.read(AsTheyAre { left: all }, &pool, &stream, work)?;
    stream.synchronize()?;
    add("Staging, pinned chunks as they are", done.bytes, start);

    let memory = vec![1u8; bytes];
    let start = Instant::now();
    for _ in 0..times {
        staging.read(&memory[..], &pool, &stream, work)?;
    }
    stream.synchronize()?;
    add("Staging, from memory", all, start);
    Ok(samples)
}
