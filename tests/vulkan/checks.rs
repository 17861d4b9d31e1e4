//! Guards and fills of memory that the CPU cannot reach, which pools write and read by work on the stream.

use super::resources::COPIES;
use super::support::World;
use allotment::pool::{DevicePool, PoolError, PoolOptions};
use allotment::vulkan::ash::vk;
use allotment::vulkan::{DeviceMemory, Resource, Stream, Wish};

/// Sets single bytes, which `vkCmdFillBuffer` cannot.
struct Pen<'a> {
    sevens: Resource<vk::Buffer>,
    stream: &'a Stream,
}

impl<'a> Pen<'a> {
    fn new(world: &World, stream: &'a Stream) -> Self {
        let pool = world.pool(Wish::device(), PoolOptions::new());
        let sevens = Resource::buffer(&pool, 3 << 20, COPIES, stream).unwrap();
        // SAFETY: the buffer is live and allows transfers.
        unsafe {
            stream.run(|device, commands| {
                device.cmd_fill_buffer(commands, sevens.raw(), 0, vk::WHOLE_SIZE, 0x0707_0707)
            })
        }
        .unwrap();
        Self { sevens, stream }
    }

    fn write(&self, pool: &DevicePool<DeviceMemory>, address: usize, bytes: usize) {
        let place = pool.source().place(address).unwrap();
        let region = [vk::BufferCopy { src_offset: 0, dst_offset: place.offset, size: bytes as u64 }];
        // SAFETY: the bytes are in a segment of the pool, or a test plants them there.
        unsafe {
            self.stream.run(|device, commands| {
                device.cmd_copy_buffer(commands, self.sevens.raw(), place.buffer, &region)
            })
        }
        .unwrap();
    }
}

/// Bytes before and behind blocks are written by work on the stream, which a free finds in its order: single ones too, since lengths are odd.
#[test]
fn guards_of_vulkan_s_memory_are_checked() {
    let world = World::new();
    let stream = world.stream();
    let pen = Pen::new(&world, &stream);
    let pool = world.pool(Wish::device(), PoolOptions::new().small(0, 0).segments(8 << 20).guards(true));
    for bytes in [1000, 1001, 1003] {
        for offset in [0, bytes as isize - 1, -1, -256, bytes as isize, bytes as isize + 1, 1279] {
            let block = pool.allocate_raw(bytes, 256, &stream).unwrap();
            pen.write(&pool, block.address().wrapping_add_signed(offset), 1);
            let is_inside = (0..bytes as isize).contains(&offset);
            let expected = if is_inside { Ok(()) } else { Err(PoolError::Overrun { offset }) };
            assert_eq!(pool.deallocate(block), expected, "{bytes}, {offset}");
        }
    }
    assert_eq!(pool.stats().blocks.current, 0);
}

/// Free memory is read before it is used again: what ran before the free is no error, and every byte that is written afterwards is one.
#[test]
fn fills_of_vulkan_s_memory_are_checked() {
    let world = World::new();
    let stream = world.stream();
    let pen = Pen::new(&world, &stream);
    let pool = world.pool(Wish::device(), PoolOptions::new().small(0, 0).segments(8 << 20).fill(0xdd));
    for offset in [None, Some(0), Some(4097), Some((3 << 20) - 1)] {
        let block = pool.allocate_raw(3 << 20, 1, &stream).unwrap();
        let start = block.address();
        pen.write(&pool, start, 3 << 20);
        pool.deallocate(block).unwrap();
        offset.into_iter().for_each(|offset| pen.write(&pool, start + offset, 1));
        match pool.allocate_raw(3 << 20, 1, &stream) {
            Ok(block) => {
                assert_eq!((offset, block.address()), (None, start));
                pool.deallocate(block).unwrap();
            }
            Err(error) => {
                let address = start + offset.unwrap_or_else(|| panic!("{error}"));
                assert_eq!(error, PoolError::WrittenAfterFree { address });
                pool.deallocate_at(start).unwrap(); // which the request had found
            }
        }
    }
}
