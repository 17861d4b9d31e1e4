//! Data that a device has no room for, through a kernel and back: every chunk is copied to the device, a constant is
//! added to each of its numbers, and the results come back, all at the same time. Then the results are checked, and
//! the bandwidth is set beside that of one large pinned copy.
//!
//! ```sh
//! cargo run --release --features gpu --example gpu_pipeline            # 4 GiB through 512 MiB of a device's memory
//! cargo run --release --features gpu --example gpu_pipeline -- --sim   # the stand-in driver: any machine, 256 MiB
//! ```
//!
//! `-- 1024` stages as many MiB.

use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::{Buffer, Context, DeviceMemory, Pinned, Pool, Staging, Stream, ViewMut};
use allotment::pool::{Direction, PoolOptions, Stream as _};
use std::error::Error;
use std::ffi::{CString, c_void};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

/// data[i] += value for i < count, one number per thread.
const PTX: &str = ".version 7.0
.target sm_50
.address_size 64
.visible .entry add_u32(.param .u64 data, .param .u32 value, .param .u64 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [value];
    ld.param.u64 %rd2, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mul.wide.u32 %rd3, %r2, %r3;
    cvt.u64.u32 %rd4, %r4;
    add.u64 %rd3, %rd3, %rd4;
    setp.ge.u64 %p1, %rd3, %rd2;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd1, %rd1;
    shl.b64 %rd5, %rd3, 2;
    add.u64 %rd1, %rd1, %rd5;
    ld.global.u32 %r5, [%rd1];
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%rd1], %r5;
DONE:
    ret;
}
";
const ADDED: u32 = 1000;

/// The kernel, loaded.
struct Kernel {
    context: Context,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

impl Kernel {
    fn load(context: &Context) -> Result<Self, Box<dyn Error>> {
        let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (image, name) = (CString::new(PTX)?, CString::new("add_u32")?);
        // SAFETY: the image and the name end with a zero, and the places are of these types.
        context.bind(|| unsafe {
            sys::cuModuleLoadData(&mut module, image.as_ptr().cast()).result()?;
            sys::cuModuleGetFunction(&mut function, module, name.as_ptr()).result()
        })??;
        Ok(Self { context: context.clone(), module, function })
    }

    /// Adds to every number of a chunk, in the order of `stream`.
    fn add(&self, chunk: &ViewMut<'_, u8>, stream: &Stream) -> Result<(), Box<dyn Error>> {
        const THREADS: u32 = 256;
        let (mut address, mut value, mut count) = (chunk.address(), ADDED, chunk.len() as u64 / 4);
        let blocks = u32::try_from(count.div_ceil(u64::from(THREADS)))?;
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut address).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        let (arguments, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
        let (function, raw) = (self.function, stream.raw());
        // SAFETY: the kernel takes these three arguments and writes to `count` numbers, which the chunk has.
        let launched = stream.context().bind(|| unsafe {
            sys::cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, raw, arguments, none)
        })?;
        Ok(launched.result()?)
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, and all work with it is done. A drop cannot report an error.
        let _ = self.context.bind(|| unsafe { sys::cuModuleUnload(self.module) });
    }
}

/// The numbers 0, 1, 2 ... as bytes: what a file would be.
struct Numbers {
    next: u32,
    left: u64,
}

impl Read for Numbers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX)) / 4 * 4;
        for place in buffer[..len].chunks_exact_mut(4) {
            place.copy_from_slice(&self.next.to_le_bytes());
            self.next = self.next.wrapping_add(1);
        }
        self.left -= len as u64;
        Ok(len)
    }
}

/// Checks what comes back.
#[derive(Default)]
struct Check {
    next: u32,
    wrong: u64,
}

impl Write for Check {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for number in bytes.chunks_exact(4) {
            let number = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
            self.wrong += u64::from(number != self.next.wrapping_add(ADDED));
            self.next = self.next.wrapping_add(1);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let is_simulated = std::env::args().any(|argument| argument == "--sim");
    let asked = std::env::args().filter_map(|argument| argument.parse::<u64>().ok()).next();
    let _driver = if is_simulated { Some(allotment_stand_in::StandIn::exclusive()?) } else { None };
    let bytes = asked.unwrap_or(if is_simulated { 256 } else { 4096 }) << 20;

    let context = Context::new(0)?;
    let stream = Stream::new(&context)?;
    println!("{} with {} MiB", context.device().name, context.device().memory >> 20);

    // At most 512 MiB of the device, and never more than a quarter of what is free.
    let limit = (context.capacity()?.free / 4).min(512 << 20);
    let pool = Pool::new(DeviceMemory::new(&context), PoolOptions::new().limit(limit))?;
    let kernel = Kernel::load(&context)?;
    context.time_copies(true);
    let mut staging = Staging::new(&context)?;
    let mut check = Check::default();
    let source = Numbers { next: 0, left: bytes };
    let done =
        staging.read_write(source, &mut check, &pool, &stream, |chunk, _| kernel.add(&chunk, &stream))?;
    stream.synchronize()?;
    if check.wrong > 0 || u64::from(check.next) * 4 != done.bytes {
        return Err(format!("{} of {} numbers are wrong", check.wrong, check.next).into());
    }
    println!(
        "{} MiB in {} chunks, there and back: {:.2} GB/s each way, all {} numbers right",
        done.bytes >> 20,
        done.copies,
        done.bandwidth() / 1e9,
        check.next
    );
    let stats = pool.stats();
    println!(
        "pool: {} MiB reserved at most, {} hits, {} misses, {} calls of the driver for memory",
        stats.reserved.peak >> 20,
        stats.hits,
        stats.misses,
        stats.calls.reserve + stats.calls.release
    );

    // One large pinned copy, beside it.
    let pinned = Arc::new(Pinned::new(&context));
    let host = Buffer::<u8>::zeros(&pinned, 64 << 20, &stream)?;
    let mut large = Buffer::<u8>::zeros(&pool, 64 << 20, &stream)?;
    stream.synchronize()?;
    let start = Instant::now();
    for _ in 0..8 {
        large.as_view_mut().copy_from_view(&host.as_view())?;
    }
    stream.synchronize()?;
    println!(
        "a plain pinned copy: {:.2} GB/s",
        8.0 * large.bytes() as f64 / start.elapsed().as_secs_f64() / 1e9
    );
    let copies = context.copy_stats();
    for (way, direction) in [("to", Direction::ToDevice), ("from", Direction::ToHost)] {
        let figures = direction.of(&copies);
        let speed =
            figures.bandwidth().map_or_else(String::new, |speed| format!(" at {:.2} GB/s", speed / 1e9));
        println!("{} copies {way} the device: {} MiB{speed}", figures.count, figures.bytes >> 20);
    }
    if is_simulated {
        println!("on the stand-in driver the figures are those of this machine's memory, not of a device");
    }
    Ok(())
}
