//! The program of the book's chapter on GPUs, word for word, on the stand-in driver.

use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
use allotment::pool::PoolOptions;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = Context::new(0)?; // a typed error where there is no driver or no device
    let stream = Stream::new(&context)?;
    let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
    let weights: Buffer<f32> = Buffer::zeros(&pool, 1 << 20, &stream)?;
    let values = std::thread::spawn(move || weights.to_vec()).join().unwrap()?;
    println!("{} values", values.len());
    Ok(())
}

#[test]
fn the_books_program_runs() {
    let gpu = crate::support::Gpu::new();
    main().unwrap();
    gpu.finish();
}

#[test]
fn it_is_the_books_program() {
    let chapter = include_str!("../../docs/src/gpu.md");
    let program =
        chapter.split("```rust,no_run\n").find_map(|text| text.strip_prefix("use allotment::gpu::"));
    let program = program.and_then(|text| text.split("```").next()).unwrap();
    assert!(include_str!("book.rs").contains(program), "tests/gpu/book.rs differs from docs/src/gpu.md");
}
