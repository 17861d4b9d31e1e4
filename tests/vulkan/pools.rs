//! The tests of pools that any source must pass, on Vulkan.

use super::any_pool;
use super::resources::COPIES;
use super::support;
use allotment::pool::{DevicePool, PoolOptions, Stream as _};
use allotment::vulkan::ash::vk;
use allotment::vulkan::{DeviceMemory, Resource, Stream, Wish};
use std::sync::{Arc, Mutex};

/// A device, and copies of blocks that are compared in the end. The copies are made in the order of the streams.
struct Vulkan {
    streams: Mutex<Vec<Stream>>,
    checks: Mutex<Vec<(Resource<vk::Buffer>, usize, u8)>>,
    copies: Arc<DevicePool<DeviceMemory>>,
    device: allotment::vulkan::Device,
    /// Dropped last: it destroys the device.
    world: Mutex<support::World>,
}

type Pool = DevicePool<DeviceMemory>;

impl any_pool::World for Vulkan {
    type Source = DeviceMemory;
    type Hold = support::Hold;

    fn new() -> Self {
        let world = support::World::new();
        let copies = world.pool(Wish::readback(), PoolOptions::new());
        let device = (*world.device).clone();
        Self { streams: Mutex::default(), checks: Mutex::default(), copies, world: Mutex::new(world), device }
    }

    fn source(&self) -> DeviceMemory {
        DeviceMemory::new(&self.device, Wish::device()).unwrap()
    }

    fn stream(&self) -> Stream {
        Stream::new(&self.device).unwrap()
    }

    fn write(&self, pool: &Pool, stream: &Stream, address: usize, bytes: usize, owner: u8) {
        let place = pool.source().place(address).unwrap();
        let word = u32::from_ne_bytes([owner; 4]);
        // SAFETY: the block is live, and its buffer allows transfers.
        unsafe {
            stream.run(|device, commands| {
                device.cmd_fill_buffer(commands, place.buffer, place.offset, bytes as u64, word);
            })
        }
        .unwrap();
    }

    fn check(&self, pool: &Pool, stream: &Stream, address: usize, bytes: usize, owner: u8) {
        let place = pool.source().place(address).unwrap();
        let copy = Resource::buffer(&self.copies, bytes as u64, COPIES, stream).unwrap();
        let region = [vk::BufferCopy { src_offset: place.offset, dst_offset: 0, size: bytes as u64 }];
        // SAFETY: both are live and allow transfers.
        unsafe {
            stream.run(|device, commands| device.cmd_copy_buffer(commands, place.buffer, copy.raw(), &region))
        }
        .unwrap();
        let mut streams = self.streams.lock().unwrap();
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.retain());
        }
        self.checks.lock().unwrap().push((copy, bytes, owner));
    }

    fn hold(&self, stream: &Stream) -> support::Hold {
        self.world.lock().unwrap().hold(stream)
    }

    fn release(&self, hold: support::Hold, stream: &Stream) {
        hold.release();
        stream.synchronize().unwrap();
    }

    fn finish(&self) {
        for (copy, bytes, owner) in self.checks.lock().unwrap().drain(..) {
            let mut found = vec![!owner; bytes];
            copy.read(0, &mut found).unwrap();
            assert!(found.iter().all(|&byte| byte == owner), "the block of {owner}");
        }
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.synchronize().unwrap();
        }
        self.copies.collect();
        self.copies.trim(0);
        self.world.lock().unwrap().expect(&[]);
    }

    fn segments(&self) -> usize {
        // The checks have copies of their own.
        self.checks.lock().unwrap().clear();
        self.copies.collect();
        self.copies.trim(0);
        self.device.allocations() as usize
    }
}

any_pool::tests!(Vulkan);
