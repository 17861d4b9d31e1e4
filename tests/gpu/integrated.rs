//! Devices that share their memory with the host, and those that must not use managed memory while the host does.

use crate::staging::{CHUNK, add_one, data};
use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys::CUdevice_attribute as Attribute;
use allotment::gpu::{Buffer, DeviceMemory, Error, Managed, Pool, Staging};
use allotment::pool::{DevicePool, PoolOptions, Stream as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// An integrated device works on the pinned buffers themselves: no copy, and no memory of the pool.
#[test]
fn staging_on_an_integrated_device_copies_nothing() {
    let gpu = Gpu::with_attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 1);
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 3).unwrap();
    let pinned = gpu.live().host;
    let data = data(10, 9);
    for round in 0..3_u8 {
        gpu.control().hold_all(round > 0);
        let (mut result, mut number) = (Vec::new(), round);
        let done = staging.read_write(&*data, &mut result, &pool, &gpu.stream, |chunk, _| {
            number += 1;
            chunk.slice(1..2)?.fill(number) // waits for nothing
        });
        let done = done.unwrap();
        assert_eq!((done.bytes, done.copies, done.calls), (data.len() as u64, 11, 0));
        let mut expected = data.clone();
        expected.chunks_mut(CHUNK).zip(round + 1..).for_each(|(chunk, number)| chunk[1] = number);
        assert!(result == expected);
    }
    gpu.control().hold_all(false);
    let copies: u64 =
        ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"].iter().map(|name| gpu.control().calls(name)).sum();
    assert_eq!((copies, pool.stats().reserved.peak, gpu.live().host), (0, 0, pinned));
    // Work that failed or panicked may still run when the next data comes.
    gpu.control().hold_all(true);
    let panics = catch_unwind(AssertUnwindSafe(|| {
        staging.read(&*data, &pool, &gpu.stream, |chunk, _| -> Result<(), Error> {
            chunk.slice(..)?.fill(99)?;
            panic!("planted");
        })
    }));
    assert!(panics.is_err());
    let mut seen = Buffer::<u8>::zeros(&pool, data.len(), &gpu.stream).unwrap();
    let mut at = 0;
    let done = staging.read(&*data, &pool, &gpu.stream, |chunk, progress| {
        let part = at..progress.bytes as usize;
        at = part.end;
        seen.slice_mut(part)?.copy_from_view(&chunk.as_view())
    });
    assert_eq!(done.unwrap().copies, 11);
    gpu.control().hold_all(false);
    assert!(seen.to_vec().unwrap() == data);
    let mut result = Vec::new();
    staging.read_write(&*data, &mut result, &pool, &gpu.stream, |chunk, _| add_one(chunk)).unwrap();
    assert!(result.iter().zip(&data).all(|(new, old)| *new == old.wrapping_add(1)));
    drop((seen, staging, pool));
    gpu.finish();
}

/// The CPU uses managed memory in place while it is attached to the host, and the device before and after. The stand-in ends the program where the CPU uses it at any other
/// time, and reports work of a device while it is attached.
#[test]
fn host_and_device_use_managed_memory_in_turns() {
    let gpu = Gpu::with_attribute(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0);
    if on_system() {
        return;
    }
    let control = gpu.control();
    assert!(matches!(Managed::new(&gpu.context), Err(Error::Unsupported(_))));
    let source = Arc::new(Managed::in_turns(&gpu.context));
    for held in [false, true] {
        control.hold_all(held);
        let mut values: Buffer<u32> = Buffer::zeros(&source, 1000, &gpu.stream).unwrap();
        assert_eq!((values.as_slice().err(), values.device()), (Some(Error::Invisible), Some(0)));
        let copies = control.calls("cuMemcpyDtoHAsync_v2");
        let mut expected = vec![0; 1000];
        for step in 1..4 {
            values.slice_mut(step..500).unwrap().fill(7 * step as u32).unwrap();
            expected[step..500].fill(7 * step as u32);
            let seen = values.on_host(|values| {
                let seen = values.to_vec();
                values.iter_mut().for_each(|value| *value += 1);
                seen
            });
            assert_eq!(seen.unwrap(), expected);
            expected.iter_mut().for_each(|value| *value += 1);
        }
        assert_eq!(control.calls("cuMemcpyDtoHAsync_v2"), copies);
        let panics = catch_unwind(AssertUnwindSafe(|| values.on_host(|_| panic!("planted"))));
        assert!(panics.is_err());
        assert_eq!(values.to_vec().unwrap(), expected); // a copy by the device
    }
    control.hold_all(false);
    // A part of a segment cannot be attached, and other memory is not the CPU's at all.
    let pool = Pool::new(Managed::in_turns(&gpu.context), PoolOptions::new()).unwrap();
    let device = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    for pool in [&pool, &device] {
        let mut part: Buffer<u8> = Buffer::from_slice(pool, &[3; 100], &gpu.stream).unwrap();
        assert_eq!(part.on_host(|_| ()), Err(Error::Invisible));
        assert_eq!(part.to_vec().unwrap(), [3; 100]);
    }
    drop((pool, device, source));
    gpu.finish();
}

/// Memory that the CPU can always access needs no turns.
#[test]
fn other_memory_is_used_in_place_too() {
    let gpu = Gpu::new();
    let managed = Arc::new(Managed::new(&gpu.context).unwrap());
    let mut values: Buffer<u16> = Buffer::from_slice(&managed, &[1, 2, 3], &gpu.stream).unwrap();
    values.on_host(|values| values[1] = 9).unwrap();
    assert_eq!(values.to_vec().unwrap(), [1, 9, 3]);
    drop((values, managed));
    gpu.stream.synchronize().unwrap();
    gpu.finish();
}
