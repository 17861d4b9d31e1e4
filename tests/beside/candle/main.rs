//! Trains a linear model with candle. Its weights and its data lie in memory of a pool, in a build where candle's cudarc
//! links the driver; what candle computes in between lies in its own memory.

mod lent;

use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
use allotment::pool::PoolOptions;
use candle_core::{Device, Tensor};
use lent::Lent;
use std::error::Error;

const ROWS: usize = 1024;
const COLUMNS: usize = 4;
const TRUTH: [f32; COLUMNS] = [0.5, -1.0, 2.0, 0.25];

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::new_cuda(0)?;
    let cuda = device.as_cuda_device()?;
    let context = Context::new(0)?;
    // The pool's memory is used in the order of candle's stream.
    let stream = Stream::from_cudarc(&context, cuda.cuda_stream())?;
    let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;

    let data: Vec<f32> = (0..ROWS * COLUMNS).map(|index| (index * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let data = Buffer::from_slice(&pool, &data, &stream)?;
    let weights = Buffer::<f32>::zeros(&pool, COLUMNS, &stream)?;
    // SAFETY: no clone of either tensor is used after the end of this function; locals are dropped after all others.
    let (data, weights) =
        unsafe { (Lent::new(data, (ROWS, COLUMNS), cuda)?, Lent::new(weights, (COLUMNS, 1), cuda)?) };

    let truth = Tensor::from_slice(&TRUTH, (COLUMNS, 1), &device)?;
    let wanted = data.tensor().matmul(&truth)?;
    for _ in 0..500 {
        let error = (data.tensor().matmul(weights.tensor())? - &wanted)?;
        let gradient = (data.tensor().t()?.matmul(&error)? * (1.0 / ROWS as f64))?;
        let next = (weights.tensor() - (gradient * 0.5)?)?;
        weights.tensor().slice_set(&next, 0, 0)?;
    }
    let learned = weights.tensor().flatten_all()?.to_vec1::<f32>()?;
    println!("learned {learned:?} of {TRUTH:?}");
    if learned.iter().zip(TRUTH).any(|(learned, truth)| (learned - truth).abs() > 0.01) {
        return Err("the weights are not those of the data".into());
    }
    Ok(())
}
