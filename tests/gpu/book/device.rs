//! The first program for a device.

use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
use allotment::pool::PoolOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = Context::new(0)?; // an error without a device; `Context::host()` needs none
    let stream = Stream::new(&context)?;
    let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
    let weights: Buffer<f32> = Buffer::zeros(&pool, 1 << 20, &stream)?;
    let values = std::thread::spawn(move || weights.to_vec()).join().unwrap()?;
    println!("{} values", values.len());
    Ok(())
}

#[test]
fn the_lesson_runs() {
    let gpu = crate::support::Gpu::new();
    main().unwrap();
    gpu.finish();
}
