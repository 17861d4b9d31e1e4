//! Takes memory from a pool in a program that also uses CubeCL's CUDA runtime.

use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
use allotment::pool::PoolOptions;
use cubecl_cuda::CudaDevice;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let device = CudaDevice::default();
    let context = Context::new(device.index)?;
    let stream = Stream::new(&context)?;
    let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
    let weights = Buffer::<f32>::zeros(&pool, 1 << 20, &stream)?;
    println!("{weights:?}");
    Ok(())
}
