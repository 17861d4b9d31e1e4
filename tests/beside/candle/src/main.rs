//! Takes memory from a pool and lends it to cudarc, in a build where cudarc links the driver.

use allotment::gpu::{Buffer, Context, Stream, Virtual};
use allotment::pool::{DevicePool, PoolOptions};
use cudarc::driver::CudaContext;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let candle = CudaContext::new(0)?;
    let context = Context::new(0)?;
    let stream = Stream::from_cudarc(&context, candle.default_stream())?;
    let pool = DevicePool::new(Virtual::new(&context)?, PoolOptions::new())?;
    let mut weights = Buffer::<f32, _>::zeros(&pool, 1 << 20, &stream)?;
    let doubled = weights.with_cudarc(&candle.default_stream(), |slice| slice.len())?;
    println!("{doubled} values");
    Ok(())
}
