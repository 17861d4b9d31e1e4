//! Memory shared between two devices as a file descriptor.

use super::MIB;
use super::resources::COPIES;
use super::support::World;
use allotment::pool::{PoolOptions, Stream as _};
use allotment::vulkan::ash::vk;
use allotment::vulkan::{Error, Resource, Wish};

#[test]
fn another_device_sees_what_was_written() {
    let (here, there) = (World::new(), World::new());
    let (a, b) = (here.stream(), there.stream());
    let pool = here.pool(Wish::device().shareable(), PoolOptions::new());
    let first = Resource::buffer(&pool, 2 * MIB as u64, COPIES, &a).unwrap();
    let second = Resource::buffer(&pool, 2 * MIB as u64, COPIES, &a).unwrap();
    let (buffer, kept) = if first.place().offset > 0 { (first, second) } else { (second, first) };
    assert_eq!(kept.place().memory, buffer.place().memory);
    // SAFETY: the buffer is live and allows transfers.
    unsafe {
        a.run(|device, commands| {
            device.cmd_fill_buffer(commands, buffer.raw(), 0, vk::WHOLE_SIZE, 0x0505_0505)
        })
    }
    .unwrap();
    a.synchronize().unwrap();
    let descriptor = buffer.export().unwrap();
    // SAFETY: the descriptor is that of this buffer.
    let other = unsafe { Resource::import(descriptor, buffer.place(), 2 * MIB as u64, COPIES, &b) }.unwrap();
    assert!(other.is_dedicated());
    let back = there.pool(Wish::readback(), PoolOptions::new());
    let result = Resource::buffer(&back, MIB as u64, COPIES, &b).unwrap();
    let whole = [vk::BufferCopy::default().size(MIB as u64)];
    // SAFETY: the buffers are live and allow transfers.
    unsafe { b.run(|device, commands| device.cmd_copy_buffer(commands, other.raw(), result.raw(), &whole)) }
        .unwrap();
    let mut bytes = vec![0_u8; MIB];
    result.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 5));
    // The memory outlives the buffer that it came from.
    drop((buffer, kept));
    assert!(pool.trim(0) > 0);
    // SAFETY: as above.
    unsafe { b.run(|device, commands| device.cmd_copy_buffer(commands, other.raw(), result.raw(), &whole)) }
        .unwrap();
    b.synchronize().unwrap();
    assert_eq!(here.device.allocations(), 0);
}

/// Memory that is dedicated to a buffer is imported as such.
#[test]
fn a_dedicated_buffer_is_shared() {
    let (here, there) = (World::new(), World::new());
    let (a, b) = (here.stream(), there.stream());
    let pool = here.pool(Wish::readback().shareable().dedicated_from(0), PoolOptions::new());
    let mut buffer = Resource::buffer(&pool, 100_000, COPIES, &a).unwrap();
    assert!(buffer.place().dedicated);
    buffer.write(4000, &[1_u64, 2, 3]).unwrap();
    // SAFETY: the descriptor is that of this buffer.
    let other = unsafe { Resource::import(buffer.export().unwrap(), buffer.place(), 100_000, COPIES, &b) };
    let (other, mut seen) = (other.unwrap(), [0_u64; 3]);
    other.read(4000, &mut seen).unwrap();
    assert_eq!((seen, other.place().dedicated), ([1, 2, 3], true));
}

#[test]
fn only_memory_that_was_made_for_it_is_shared() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let buffer = Resource::buffer(&pool, 4096, COPIES, &stream).unwrap();
    let refused = buffer.export().unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)) && refused.to_string().contains("Wish::shareable"));
}
