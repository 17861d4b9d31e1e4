//! Buffers and images in pools.

use super::support::World;
use super::MIB;
use allotment::pool::{PoolOptions, Stream as _};
use allotment::vulkan::Resource;
use allotment::vulkan::Wish;
use allotment::vulkan::ash::vk;

const COPIES: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw() | vk::BufferUsageFlags::TRANSFER_DST.as_raw(),
);

#[test]
fn copies_on_two_streams_run_in_order() {
    let world = World::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let back = world.pool(Wish::readback(), PoolOptions::new());
    let first = Resource::buffer(&pool, MIB as u64, COPIES, &a).unwrap();
    let second = Resource::buffer(&pool, MIB as u64, COPIES, &b).unwrap();
    let result = Resource::buffer(&back, MIB as u64, COPIES, &b).unwrap();
    let whole = [vk::BufferCopy::default().size(MIB as u64)];
    // SAFETY: the buffers are live and allow transfers.
    unsafe {
        a.run(|device, commands| device.cmd_fill_buffer(commands, first.raw(), 0, vk::WHOLE_SIZE, 0x0707_0707))
            .unwrap();
        b.wait(&a.record().unwrap()).unwrap();
        first.used_on(&b);
        b.run(|device, commands| device.cmd_copy_buffer(commands, first.raw(), second.raw(), &whole)).unwrap();
        b.run(|device, commands| device.cmd_copy_buffer(commands, second.raw(), result.raw(), &whole)).unwrap();
    }
    let mut bytes = vec![0; MIB];
    result.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7));
    drop((first, second, result));
    assert_eq!(pool.stats().blocks.current, 0);
}
