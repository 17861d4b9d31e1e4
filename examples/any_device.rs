//! One program on three devices: that of CUDA, that of Vulkan, and none. It prints the same on each.
//!
//! ```sh
//! cargo run --features gpu,vulkan --example any_device                # nothing: ordinary memory, by the CPU
//! cargo run --features gpu,vulkan --example any_device -- --vulkan    # a driver of Vulkan
//! cargo run --features gpu,vulkan --example any_device -- --cuda      # a device of CUDA
//! cargo run --features gpu,vulkan --example any_device -- --sim       # the stand-in driver of CUDA
//! ```

use allotment::gpu;
use allotment::pool::{DevicePool, PoolOptions, Stream as _};
use allotment::vulkan::ash::vk::{self, BufferUsageFlags};
use allotment::vulkan::{self, Resource, Wish};
use std::error::Error;
use std::sync::Arc;

const BYTES: usize = 1 << 20;

/// Memory in pools, and two streams.
trait Machine {
    /// Fills a buffer on one stream, copies it on the other one, and returns the copy.
    fn round(&self, value: u8) -> Result<Vec<u8>, Box<dyn Error>>;
    /// How often the device was asked for memory.
    fn segments(&self) -> u64;
}

/// CUDA, and the host, by the same types.
struct Gpu {
    pool: gpu::Pool,
    streams: [gpu::Stream; 2],
}

impl Machine for Gpu {
    fn round(&self, value: u8) -> Result<Vec<u8>, Box<dyn Error>> {
        let [one, other] = &self.streams;
        let mut first: gpu::Buffer<u8> = gpu::Buffer::zeros(&self.pool, BYTES, one)?;
        first.as_view_mut().fill(value)?;
        let mut second: gpu::Buffer<u8> = gpu::Buffer::zeros(&self.pool, BYTES, other)?;
        second.as_view_mut().copy_from_view(&first.as_view())?;
        Ok(second.to_vec()?)
    }

    fn segments(&self) -> u64 {
        self.pool.stats().calls.reserve
    }
}

struct Vulkan {
    pool: Arc<DevicePool<vulkan::DeviceMemory>>,
    streams: [vulkan::Stream; 2],
}

impl Machine for Vulkan {
    fn round(&self, value: u8) -> Result<Vec<u8>, Box<dyn Error>> {
        let [one, other] = &self.streams;
        let usage = BufferUsageFlags::TRANSFER_SRC | BufferUsageFlags::TRANSFER_DST;
        let first = Resource::buffer(&self.pool, BYTES as u64, usage, one)?;
        let second = Resource::buffer(&self.pool, BYTES as u64, usage, other)?;
        let (word, whole) = (u32::from_ne_bytes([value; 4]), [vk::BufferCopy::default().size(BYTES as u64)]);
        // SAFETY: both buffers are live and allow transfers.
        unsafe {
            one.run(|device, commands| device.cmd_fill_buffer(commands, first.raw(), 0, BYTES as u64, word))?;
            other.wait(&one.record()?)?;
            first.used_on(other);
            other.run(|device, commands| {
                device.cmd_copy_buffer(commands, first.raw(), second.raw(), &whole);
            })?;
        }
        let mut bytes = vec![0; BYTES];
        second.read(0, &mut bytes)?;
        Ok(bytes)
    }

    fn segments(&self) -> u64 {
        self.pool.stats().calls.reserve
    }
}

fn run(machine: &dyn Machine) -> Result<(), Box<dyn Error>> {
    for value in 1..=5 {
        let bytes = machine.round(value)?;
        assert!(bytes.iter().all(|&byte| byte == value), "the copy has what was filled in");
        println!("round {value}: {} bytes of {value}", bytes.len());
    }
    println!("the rounds share what the first one reserved: {}", machine.segments() <= 2);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let choice = std::env::args().nth(1).unwrap_or_default();
    if choice == "--vulkan" {
        let device = vulkan::Device::new(0)?;
        let streams = [vulkan::Stream::new(&device)?, vulkan::Stream::new(&device)?];
        let memory = vulkan::DeviceMemory::new(&device, Wish::readback())?;
        return run(&Vulkan { pool: Arc::new(DevicePool::new(memory, PoolOptions::new())?), streams });
    }
    let _driver = if choice == "--sim" { Some(allotment_stand_in::StandIn::exclusive()?) } else { None };
    let (pool, streams) = if choice == "--cuda" || choice == "--sim" {
        let context = gpu::Context::new(0)?;
        let streams = [gpu::Stream::new(&context)?, gpu::Stream::new(&context)?];
        (gpu::Pool::new(gpu::DeviceMemory::new(&context), PoolOptions::new())?, streams)
    } else {
        let streams = [gpu::Stream::host(), gpu::Stream::host()];
        (gpu::Pool::new(gpu::HostMemory::new(1 << 30), PoolOptions::new())?, streams)
    };
    run(&Gpu { pool, streams })
}
