//! A file through the device.

use allotment::gpu::{Context, Error, Pool, Staging, Stream, Virtual};
use allotment::pool::PoolOptions;
use std::fs::File;

fn blank(file: &File) -> Result<u64, Error> {
    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
    let mut staging = Staging::new(&context)?; // three buffers of 16 MiB
    let done = staging.update_file(file, 4096.., &pool, &stream, |mut chunk, _| chunk.fill(0))?;
    Ok(done.bytes)
}

#[test]
fn the_lesson_runs() {
    use std::io::{Read as _, Seek as _};

    let gpu = crate::support::Gpu::new();
    let path = std::env::temp_dir().join(format!("allotment-lesson-{}", std::process::id()));
    std::fs::write(&path, [7; 10_000]).unwrap();
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(blank(&file).unwrap(), 10_000 - 4096);
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(bytes[..4096].iter().all(|&byte| byte == 7) && bytes[4096..].iter().all(|&byte| byte == 0));
    gpu.finish();
}
