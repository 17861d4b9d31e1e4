//! Buffers and images in pools.

use super::support::World;
use super::{KIB, MIB};
use allotment::pool::{PoolError, PoolOptions, SourceErrorKind, Stream as _};
use allotment::vulkan::ash::vk;
use allotment::vulkan::{Device, DeviceMemory, Error, Resource, Wish};
use std::process::Command;

pub(crate) const COPIES: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
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
        a.run(|device, commands| {
            device.cmd_fill_buffer(commands, first.raw(), 0, vk::WHOLE_SIZE, 0x0707_0707)
        })
        .unwrap();
        b.wait(&a.record().unwrap()).unwrap();
        first.used_on(&b);
        b.run(|device, commands| device.cmd_copy_buffer(commands, first.raw(), second.raw(), &whole))
            .unwrap();
        b.run(|device, commands| device.cmd_copy_buffer(commands, second.raw(), result.raw(), &whole))
            .unwrap();
    }
    let mut bytes = vec![0_u8; MIB];
    result.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 7));
    drop((first, second, result));
    assert_eq!(pool.stats().blocks.current, 0);
}

/// A handle means nothing to another device, which would destroy it with the resource.
#[test]
fn streams_of_other_devices_are_refused() {
    let (world, other) = (World::new(), World::new());
    let (own, stranger) = (world.stream(), other.stream());
    let pool = world.pool(Wish::upload(), PoolOptions::new());
    let made = |stream| Resource::buffer(&pool, MIB as u64, COPIES, stream).map(drop);
    assert_eq!(made(&stranger), Err(Error::OtherDevice));
    // Nor does it get what is free already, or a new segment.
    assert_eq!((made(&own), made(&stranger)), (Ok(()), Err(Error::OtherDevice)));
    let refused = pool.allocate(256 * MIB, &stranger).map(drop).unwrap_err();
    assert!(
        matches!(&refused, PoolError::Source(error) if error.kind == SourceErrorKind::Invalid),
        "{refused}"
    );
}

#[test]
fn a_dropped_buffer_lives_until_the_device_is_done_with_it() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let hold = world.hold(&stream);
    let mut places = Vec::new();
    for value in 0..100 {
        let buffer = Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap();
        places.push((buffer.place().memory, buffer.place().offset));
        // SAFETY: the buffer is live and allows transfers.
        unsafe {
            stream.run(|device, commands| {
                device.cmd_fill_buffer(commands, buffer.raw(), 0, vk::WHOLE_SIZE, value)
            })
        }
        .unwrap();
    }
    assert!(places.windows(2).all(|pair| pair[0] == pair[1]), "one block serves them all in turn");
    hold.release();
}

#[test]
fn the_cpu_reads_what_it_wrote() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::upload(), PoolOptions::new());
    let _before = Resource::buffer(&pool, 100, COPIES, &stream).unwrap();
    let mut buffer = Resource::buffer(&pool, 1000, COPIES, &stream).unwrap();
    buffer.write(10, b"allotment").unwrap();
    let mut bytes = [0; 9];
    buffer.read(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"allotment");
    let end = buffer.bytes();
    assert_eq!(buffer.write(end - 8, b"allotment"), Err(Error::OutOfRange));
    assert_eq!(buffer.read(u64::MAX, &mut bytes), Err(Error::OutOfRange));
    let numbers = [0.5_f32, -1.0];
    buffer.write(20, &numbers).unwrap();
    let mut back = [0_f32; 2];
    buffer.read(20, &mut back).unwrap();
    assert_eq!(back, numbers);
    assert_eq!(buffer.read(end - 4, &mut back), Err(Error::OutOfRange));
    // One mapping for each segment: neighbours differ by their offsets.
    let first = buffer.place().mapped.unwrap().get() - buffer.place().offset as usize;
    let again = Resource::buffer(&pool, 1000, COPIES, &stream).unwrap();
    assert_eq!(again.place().mapped.unwrap().get() - again.place().offset as usize, first);
}

fn image() -> vk::ImageCreateInfo<'static> {
    vk::ImageCreateInfo::default()
        .image_type(vk::ImageType::TYPE_2D)
        .format(vk::Format::R8G8B8A8_UNORM)
        .extent(vk::Extent3D { width: 256, height: 128, depth: 1 })
        .mip_levels(1)
        .array_layers(1)
        .samples(vk::SampleCountFlags::TYPE_1)
        .usage(vk::ImageUsageFlags::TRANSFER_DST | vk::ImageUsageFlags::TRANSFER_SRC)
}

#[test]
fn an_image_lies_in_a_pool_and_is_cleared() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let back = world.pool(Wish::readback(), PoolOptions::new());
    // SAFETY: the description is valid.
    let image = unsafe { Resource::image(&pool, image(), &stream) }.unwrap();
    assert!(image.bytes() >= 256 * 128 * 4 && image.place().memory != vk::DeviceMemory::null());
    let result = Resource::buffer(&back, 256 * 128 * 4, COPIES, &stream).unwrap();
    let all = vk::ImageSubresourceRange {
        aspect_mask: vk::ImageAspectFlags::COLOR,
        level_count: 1,
        layer_count: 1,
        ..Default::default()
    };
    let barrier = vk::ImageMemoryBarrier::default()
        .dst_access_mask(vk::AccessFlags::TRANSFER_WRITE)
        .new_layout(vk::ImageLayout::GENERAL)
        .image(image.raw())
        .subresource_range(all);
    let written = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
        .dst_access_mask(vk::AccessFlags::TRANSFER_READ);
    let region = vk::BufferImageCopy::default()
        .image_subresource(vk::ImageSubresourceLayers {
            aspect_mask: vk::ImageAspectFlags::COLOR,
            layer_count: 1,
            ..Default::default()
        })
        .image_extent(vk::Extent3D { width: 256, height: 128, depth: 1 });
    let (before, transfer) = (vk::PipelineStageFlags::TOP_OF_PIPE, vk::PipelineStageFlags::TRANSFER);
    let (none, general) = (vk::DependencyFlags::empty(), vk::ImageLayout::GENERAL);
    let white = vk::ClearColorValue { float32: [1.0; 4] };
    // SAFETY: both are live and allow transfers, and barriers order them.
    unsafe {
        stream.run(|device, commands| {
            device.cmd_pipeline_barrier(commands, before, transfer, none, &[], &[], &[barrier]);
            device.cmd_clear_color_image(commands, image.raw(), general, &white, &[all]);
            device.cmd_pipeline_barrier(commands, transfer, transfer, none, &[written], &[], &[]);
            device.cmd_copy_image_to_buffer(commands, image.raw(), general, result.raw(), &[region]);
        })
    }
    .unwrap();
    let mut bytes = vec![0_u8; 256 * 128 * 4];
    result.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 255));
}

/// Resources from a wished size on have allocations of exactly their size, which return to the device.
#[test]
fn large_resources_have_dedicated_allocations_if_wished() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::upload().dedicated_from(MIB as u64), PoolOptions::new());
    let small = Resource::buffer(&pool, MIB as u64 / 2, COPIES, &stream).unwrap();
    let mut large = Resource::buffer(&pool, 3 * MIB as u64 + 4, COPIES, &stream).unwrap();
    let extent = vk::Extent3D { width: 1000, height: 999, depth: 1 };
    // SAFETY: the description is valid.
    let target = unsafe { Resource::image(&pool, image().extent(extent), &stream) }.unwrap();
    assert_eq!([small.is_dedicated(), large.is_dedicated(), target.is_dedicated()], [false, true, true]);
    for place in [large.place(), target.place()] {
        assert!(place.dedicated && place.offset == 0 && place.buffer == vk::Buffer::null());
    }
    assert_eq!((large.place().bytes, target.place().bytes), (large.bytes(), target.bytes()));
    large.write(3 * MIB as u64, &[7_u32]).unwrap();
    let mut number = [0_u32];
    large.read(3 * MIB as u64, &mut number).unwrap();
    assert_eq!((number, world.device.allocations()), ([7], 3));
    drop((large, target));
    stream.synchronize().unwrap();
    drop(Resource::buffer(&pool, 4, COPIES, &stream).unwrap());
    assert_eq!(world.device.allocations(), 1);
}

/// Many buffers and images in one segment, each bound and none at another's place.
#[test]
fn buffers_and_images_share_a_segment() {
    let world = World::new();
    let stream = world.stream();
    let pool = world.pool(Wish::device(), PoolOptions::new());
    let mut spans = Vec::new();
    let (mut buffers, mut images) = (Vec::new(), Vec::new());
    for round in 0..40 {
        let buffer = Resource::buffer(&pool, 1000 + 300 * round, COPIES, &stream).unwrap();
        // SAFETY: the description is valid.
        let image = unsafe { Resource::image(&pool, image(), &stream) }.unwrap();
        spans.push((buffer.place().memory, buffer.place().offset, buffer.bytes()));
        spans.push((image.place().memory, image.place().offset, image.bytes()));
        buffers.push(buffer);
        images.push(image);
    }
    spans.sort_unstable();
    let apart =
        |pair: &[(vk::DeviceMemory, u64, u64)]| pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1;
    assert!(spans.windows(2).all(apart));
    assert!(world.device.allocations() < 10, "{}", world.device.allocations());
}

#[test]
fn the_number_of_allocations_is_limited() {
    let world = World::new();
    let stream = world.stream();
    world.device.limit_allocations(2);
    let pool = world.pool(Wish::device(), PoolOptions::new().small(0, 0));
    let two = [(); 2].map(|()| Resource::buffer(&pool, 20 * MIB as u64, COPIES, &stream).unwrap());
    assert_eq!(world.device.allocations(), 2);
    let Err(Error::Pool(PoolError::OutOfMemory(full))) =
        Resource::buffer(&pool, 30 * MIB as u64, COPIES, &stream)
    else {
        panic!("a third allocation")
    };
    let source = full.source.unwrap();
    assert_eq!((source.kind, source.code), (SourceErrorKind::OutOfMemory, -10));
    // What is free goes back first.
    drop(two);
    let large = Resource::buffer(&pool, 30 * MIB as u64, COPIES, &stream).unwrap();
    assert!(world.device.allocations() <= 2);
    drop(large);
}

#[test]
fn a_pool_stays_within_the_budget_of_the_heap() {
    use allotment::pool::Source as _;
    let world = World::new();
    let stream = world.stream();
    let memory = world.memory(Wish::device());
    let capacity = memory.capacity().unwrap();
    assert!(capacity.free > 0 && capacity.free <= capacity.total);
    let beyond = (capacity.total + 64 * MIB).next_multiple_of(64 * KIB);
    let refused = memory.reserve(beyond, &stream).unwrap_err();
    assert_eq!((refused.kind, refused.call), (SourceErrorKind::OutOfMemory, "memory budget"));
    assert_eq!(world.device.allocations(), 0);
}

#[test]
fn wishes_that_no_type_grants_are_refused() {
    let world = World::new();
    let refused = |wish| DeviceMemory::new(&world.device, wish).map(drop).unwrap_err();
    assert_eq!(refused(Wish::device().types(0)), Error::NoMemoryType);
    let protected = vk::MemoryPropertyFlags::PROTECTED;
    assert_eq!(refused(Wish::device().require(protected)), Error::NoMemoryType);
}

/// A device that the library opens by itself, beside those of the other tests.
#[test]
fn a_device_is_opened_by_number() {
    let device = Device::new(0)
        .unwrap_or_else(|error| panic!("no Vulkan here: {error}. `cargo xtask vulkan` sets it up"));
    assert!(!device.name().is_empty() && device.memory().memory_type_count > 0);
    let stream = allotment::vulkan::Stream::new(&device).unwrap();
    let pool = std::sync::Arc::new(
        allotment::pool::DevicePool::new(
            DeviceMemory::new(&device, Wish::device()).unwrap(),
            PoolOptions::new(),
        )
        .unwrap(),
    );
    let buffer = Resource::buffer(&pool, MIB as u64, COPIES, &stream).unwrap();
    // SAFETY: the buffer is live and allows transfers.
    unsafe {
        stream.run(|device, commands| device.cmd_fill_buffer(commands, buffer.raw(), 0, vk::WHOLE_SIZE, 7))
    }
    .unwrap();
    drop((stream, pool, device));
    drop(buffer);
    let Err(Error::NoDevice { number: 1000, count }) = Device::new(1000).map(drop) else {
        panic!("so many devices")
    };
    assert!(count > 0);
}

/// The test runs itself without what `cargo xtask vulkan` has set up.
#[test]
fn a_machine_without_vulkan_gets_an_error() {
    const ASKED: &str = "ALLOTMENT_VULKAN_ASKED";
    if std::env::var_os(ASKED).is_some() {
        let answer = Device::new(0).map_or_else(|error| error.to_string(), |device| device.name().to_owned());
        println!("answer: {answer}");
        return;
    }
    let ask = |change: fn(&mut Command)| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "resources::a_machine_without_vulkan_gets_an_error", "--nocapture"]);
        change(command.env(ASKED, "1"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let no_driver = ask(|command| {
        command.env("VK_ICD_FILENAMES", "/nowhere.json").env("VK_DRIVER_FILES", "/nowhere.json");
    });
    assert!(no_driver.contains("answer: Vulkan's loader finds no driver"), "{no_driver}");
    // The system may have a loader of its own.
    let no_loader = ask(|command| {
        command.env_remove("LD_LIBRARY_PATH");
    });
    assert!(no_loader.contains("answer: "), "{no_loader}");
    assert!(
        std::path::Path::new("/usr/lib/x86_64-linux-gnu/libvulkan.so.1").exists()
            || no_loader.contains("no Vulkan loader"),
        "{no_loader}"
    );
}

/// The library makes the device itself, in a process of its own, since only the environment can switch on the validation of that.
#[test]
fn buffers_have_addresses() {
    const CHILD: &str = "ALLOTMENT_ADDRESSES";
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "resources::buffers_have_addresses", "--nocapture"])
            .env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation")
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && !said.contains("VUID"), "{said}");
        return;
    }
    let device = Device::new(0).unwrap();
    let usage = COPIES | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
    let memory = DeviceMemory::new(&device, Wish::device().usage(usage)).unwrap();
    let pool = std::sync::Arc::new(allotment::pool::DevicePool::new(memory, PoolOptions::new()).unwrap());
    let stream = allotment::vulkan::Stream::new(&device).unwrap();
    let buffer = Resource::buffer(&pool, KIB as u64, usage, &stream).unwrap();
    let info = vk::BufferDeviceAddressInfo::default().buffer(buffer.raw());
    // SAFETY: the buffer is live, on a device with the feature.
    assert_ne!(unsafe { device.ash().get_buffer_device_address(&info) }, 0);
}
