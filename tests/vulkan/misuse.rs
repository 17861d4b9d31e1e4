//! Planted faults: which of them the layers report, and which they do not see. A silent pass of all other tests means what these show.

use super::MIB;
use super::resources::COPIES;
use super::support::World;
use allotment::pool::{Event as _, PoolOptions, SourceErrorKind, Stream as _};
use allotment::vulkan::ash::vk;
use allotment::vulkan::{Resource, Stream, Wish};

const WHOLE: [vk::BufferCopy; 1] = [vk::BufferCopy { src_offset: 0, dst_offset: 0, size: MIB as u64 }];

/// Command buffers that the program records and submits by itself.
fn recorded(world: &World, record: impl FnOnce(vk::CommandBuffer)) -> (vk::CommandPool, vk::CommandBuffer) {
    let device = world.device.ash();
    // SAFETY: the device is live, and the pool is used by this thread alone.
    unsafe {
        let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None).unwrap();
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        let commands = device.allocate_command_buffers(&info).unwrap()[0];
        device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()).unwrap();
        record(commands);
        device.end_command_buffer(commands).unwrap();
        (pool, commands)
    }
}

#[test]
fn a_race_inside_a_command_buffer_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let [one, two] = [(); 2].map(|()| Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap());
    // SAFETY: planted: no barrier stands between the fill and the copy of what it writes.
    unsafe {
        stream.run(|device, commands| {
            device.cmd_fill_buffer(commands, one.raw(), 0, vk::WHOLE_SIZE, 1);
            device.cmd_copy_buffer(commands, one.raw(), two.raw(), &WHOLE);
        })
    }
    .unwrap();
    stream.synchronize().unwrap();
    world.expect(&["SYNC-HAZARD-READ-AFTER-WRITE"]);
}

/// Two buffers at one place are one memory: what a pool would do that gave a block out twice.
#[test]
fn a_race_of_two_buffers_in_the_same_memory_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let one = Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap();
    let other = one.place().buffer;
    assert_ne!(other, one.raw());
    // SAFETY: planted: both fills write the same bytes, without an order.
    unsafe {
        stream.run(|device, commands| {
            device.cmd_fill_buffer(commands, one.raw(), 0, vk::WHOLE_SIZE, 1);
            device.cmd_fill_buffer(commands, other, one.place().offset, one.bytes(), 2);
        })
    }
    .unwrap();
    stream.synchronize().unwrap();
    world.expect(&["SYNC-HAZARD-WRITE-AFTER-WRITE"]);
}

/// The check at submission sees it.
#[test]
fn a_race_of_two_submissions_is_reported() {
    let mut world = World::strict();
    let (a, b) = (world.stream(), world.stream());
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let one = Resource::buffer(&pool, MIB as u64, COPIES, &a).unwrap();
    one.used_on(&b);
    let fill = |stream: &Stream, value| {
        // SAFETY: planted: the second stream does not wait for the first.
        unsafe {
            stream
                .run(|device, commands| device.cmd_fill_buffer(commands, one.raw(), 0, vk::WHOLE_SIZE, value))
        }
    };
    fill(&a, 1).unwrap();
    assert!(fill(&b, 2).is_err(), "the layers stop it");
    world.expect(&["SYNC-HAZARD-WRITE-AFTER-WRITE"]);
    b.wait(&a.record().unwrap()).unwrap();
    fill(&b, 2).unwrap();
    b.synchronize().unwrap();
}

/// The layers take a wait for any point of a timeline for one that waits for all that it will ever signal. So only the stream's own
/// numbers keep such a wait out, which the simulated device checks.
#[test]
fn a_wait_for_too_early_a_point_is_not_reported() {
    let mut world = World::strict();
    let (a, b) = (world.stream(), world.stream());
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let [one, two] = [(); 2].map(|()| Resource::buffer(&pool, MIB as u64, COPIES, &a).unwrap());
    let fill = |stream: &Stream, buffer: &Resource<vk::Buffer>, value| {
        buffer.used_on(&b);
        // SAFETY: planted: the second stream waits for the first fill, not for the second.
        unsafe {
            stream.run(|device, commands| {
                device.cmd_fill_buffer(commands, buffer.raw(), 0, vk::WHOLE_SIZE, value)
            })
        }
    };
    let early = fill(&a, &one, 1).unwrap();
    fill(&a, &two, 1).unwrap();
    b.wait(&early).unwrap();
    fill(&b, &two, 2).unwrap().synchronize().unwrap();
    world.expect(&[]);
}

#[test]
fn a_buffer_that_was_dropped_before_its_submission_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let one = Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap();
    let device = world.device.ash();
    let (commands_of, commands) = recorded(&world, |commands| {
        // SAFETY: the buffer is live now.
        unsafe { device.cmd_fill_buffer(commands, one.raw(), 0, vk::WHOLE_SIZE, 1) };
    });
    drop(one);
    // SAFETY: planted: the buffer is gone. The layers stop the call.
    let refused = unsafe { stream.submit(&[commands]) }.unwrap_err();
    assert_eq!((refused.kind, refused.call), (SourceErrorKind::Invalid, "vkQueueSubmit"));
    stream.synchronize().unwrap();
    // SAFETY: the submission is over.
    unsafe { device.destroy_command_pool(commands_of, None) };
    world.expect(&["InvalidCommandBuffer"]);
}

#[test]
fn memory_that_was_freed_before_its_submission_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let block = pool.allocate(MIB, &stream).unwrap();
    let place = pool.source().place(block.address()).unwrap();
    let device = world.device.ash();
    let (commands_of, commands) = recorded(&world, |commands| {
        // SAFETY: the buffer is live now.
        unsafe { device.cmd_fill_buffer(commands, place.buffer, place.offset, MIB as u64, 1) };
    });
    drop(block);
    assert!(pool.trim(0) > 0);
    // SAFETY: planted: the segment is gone.
    let refused = unsafe { stream.submit(&[commands]) }.unwrap_err();
    assert_eq!((refused.kind, refused.call), (SourceErrorKind::Invalid, "vkQueueSubmit"));
    stream.synchronize().unwrap();
    // SAFETY: the submission is over.
    unsafe { device.destroy_command_pool(commands_of, None) };
    world.expect(&["InvalidCommandBuffer"]);
}

#[test]
fn a_buffer_that_is_destroyed_while_the_device_uses_it_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let info = vk::BufferCreateInfo::default().size(64).usage(COPIES);
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let block = pool.allocate(MIB, &stream).unwrap();
    let place = pool.source().place(block.address()).unwrap();
    let device = world.device.ash();
    // SAFETY: planted: the buffer is destroyed before the work on it, which waits for the host, is over.
    unsafe {
        let raw = device.create_buffer(&info, None).unwrap();
        let _ = device.get_buffer_memory_requirements(raw);
        device.bind_buffer_memory(raw, place.memory, place.offset).unwrap();
        let hold = world.hold(&stream);
        stream.run(|device, commands| device.cmd_fill_buffer(commands, raw, 0, 64, 1)).unwrap();
        device.destroy_buffer(raw, None);
        hold.release();
        stream.synchronize().unwrap();
        device.destroy_buffer(raw, None);
    }
    world.expect(&["VUID-vkDestroyBuffer-buffer-00922"]);
}

#[test]
fn a_copy_beyond_the_end_is_reported() {
    let mut world = World::strict();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let one = Resource::buffer(&pool, MIB as u64 / 2, COPIES, &stream).unwrap();
    let two = Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap();
    let device = world.device.ash();
    // SAFETY: planted, and never submitted: the copy is longer than its target.
    let (commands_of, _) = recorded(&world, |commands| unsafe {
        device.cmd_copy_buffer(commands, two.raw(), one.raw(), &WHOLE)
    });
    // SAFETY: nothing was submitted.
    unsafe { device.destroy_command_pool(commands_of, None) };
    world.expect(&["VUID-vkCmdCopyBuffer-size-00116"]);
}

/// What is alive when the device is destroyed. All other tests end with this check, and without a message.
#[test]
fn what_is_left_behind_is_reported() {
    let world = World::strict();
    let device = world.device.ash().clone();
    let info = vk::BufferCreateInfo::default().size(64).usage(COPIES);
    // SAFETY: planted: the buffer is never destroyed.
    unsafe { device.create_buffer(&info, None) }.unwrap();
    world.end(&["VUID-vkDestroyDevice-device-00378"]);
}
