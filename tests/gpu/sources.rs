//! The common behaviour of all sources, and the particular behaviour of each.

use crate::support::{Gpu, on_system, release};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::sequences::KvCache;
use allotment::gpu::{
    Advice, AsyncMemory, Buffer, Context, DeviceMemory, Error, HostMemory, Managed, Pinned, Pool, Registered,
    Stream, Virtual, pinned_bytes,
};
use allotment::pool::{DevicePool, MemoryKind, PoolOptions, Segment, Source, SourceErrorKind, Stream as _};
use allotment::region::Capabilities;
use allotment_stand_in::Live;
use std::sync::Arc;

/// Returns the segment as a slice, for memory that the CPU can access.
fn slice<S: Source>(_: &S, segment: Segment) -> &'static mut [u8] {
    assert!(S::CPU_VISIBLE);
    let pointer = std::ptr::with_exposed_provenance_mut(segment.address.get());
    // SAFETY: the tests use it only while they hold the segment and no work uses it.
    unsafe { std::slice::from_raw_parts_mut(pointer, segment.bytes) }
}

/// Checks what the trait requires of every source.
fn keeps_the_contract<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: &S) {
    let unit = source.granularity();
    assert!(unit.is_power_of_two() && source.alignment().is_power_of_two());
    let before = source.capacity().unwrap();
    assert!(before.free <= before.total && before.free >= 3 * unit, "{before:?}");
    for bytes in [0, 1, unit + 1] {
        let error = source.reserve(bytes, &gpu.stream).unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Invalid, "{bytes}: {error}");
    }
    let too_much = usize::MAX / unit * unit;
    assert!(source.reserve(too_much, &gpu.stream).is_err());
    let first = source.reserve(2 * unit, &gpu.stream).unwrap();
    let second = source.reserve(unit, &gpu.stream).unwrap();
    for segment in [first, second] {
        assert_eq!(segment.address.get() % source.alignment(), 0);
        assert!(source.room(&segment) >= segment.bytes);
    }
    let (low, high) = if first.address < second.address { (first, second) } else { (second, first) };
    assert!(low.address.get() + low.bytes <= high.address.get());

    // Both ends can be used, and a copy is in the stream's order.
    gpu.upload(first.address, b"begin");
    let last = first.address.checked_add(first.bytes - 3).unwrap();
    gpu.upload(last, b"end");
    // SAFETY: both ranges are in segments of this source and not in use.
    unsafe { source.copy(first.address.get(), second.address.get(), 5, &gpu.stream) }.unwrap();
    assert_eq!(gpu.download(second.address, 5), b"begin");
    assert_eq!(gpu.download(last, 3), b"end");
    if S::CPU_VISIBLE {
        assert_eq!(&slice(source, second)[..5], b"begin");
        slice(source, second)[0] = b'B';
        assert_eq!(gpu.download(second.address, 5), b"Begin");
    }
    release(source, first, &gpu.stream);
    let third = source.reserve(2 * unit, &gpu.stream).unwrap();
    release(source, second, &gpu.stream);
    release(source, third, &gpu.stream);
    gpu.stream.synchronize().unwrap();
    assert!(!source.name().is_empty());
}

#[test]
fn device_memory() {
    let gpu = Gpu::new();
    let source = DeviceMemory::new(&gpu.context);
    keeps_the_contract(&gpu, &source);
    assert_eq!((source.name(), source.capabilities()), ("device 0", Capabilities::DEVICE));
    if !on_system() {
        let capacity = source.capacity().unwrap();
        let all = source.reserve(capacity.free, &gpu.stream).unwrap();
        let error = source.reserve(source.granularity(), &gpu.stream).unwrap_err();
        assert_eq!((error.kind, error.code), (SourceErrorKind::OutOfMemory, 2));
        assert_eq!(source.capacity().unwrap().free, 0);
        release(&source, all, &gpu.stream);
    }
    drop(source);
    gpu.finish();
}

/// A segment with pending work is released when the work is done.
fn waits_for_its_work<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: &S) {
    let segment = source.reserve(source.granularity(), &gpu.stream).unwrap();
    let number = Gpu::number(&gpu.stream);
    gpu.control().hold(number, true);
    let half = segment.bytes / 2;
    // SAFETY: both ranges are in the segment and not in use.
    unsafe { source.copy(segment.address.get(), segment.address.get() + half, half, &gpu.stream) }.unwrap();
    assert_eq!(gpu.control().pending(number), 1);
    release(source, segment, &gpu.stream);
    assert_eq!(gpu.control().pending(number), 0, "{}", source.name());
    gpu.control().hold(number, false);
}

#[test]
fn segments_are_given_back_after_their_work() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    waits_for_its_work(&gpu, &DeviceMemory::new(&gpu.context));
    waits_for_its_work(&gpu, &Pinned::new(&gpu.context));
    waits_for_its_work(&gpu, &Managed::new(&gpu.context).unwrap());
    waits_for_its_work(&gpu, &Virtual::new(&gpu.context).unwrap());
    waits_for_its_work(&gpu, &Registered::new(&gpu.context, vec![0; 4096]).unwrap());
    gpu.finish(); // the stand-in has noticed no memory that went too early
}

#[test]
fn async_memory() {
    let gpu = Gpu::new();
    let source = AsyncMemory::new(&gpu.context).unwrap();
    keeps_the_contract(&gpu, &source);
    // Freed memory stays in the driver's pool, and the host has waited since.
    assert_eq!(source.used().unwrap(), 0);
    let kept = source.reserved().unwrap();
    assert!(kept >= 3 * source.granularity() as u64);
    source.trim(0).unwrap();
    assert_eq!(source.reserved().unwrap(), 0);
    drop(source);

    let source = AsyncMemory::with_release_threshold(&gpu.context, 0).unwrap();
    let segment = source.reserve(source.granularity(), &gpu.stream).unwrap();
    release(&source, segment, &gpu.stream);
    gpu.stream.synchronize().unwrap();
    assert_eq!(source.reserved().unwrap(), 0, "with a threshold of 0 the driver gives all back");
    drop(source);
    gpu.finish();
}

/// A pool of the driver that others use as well: what they have stays, and it does not end with the source.
#[test]
fn a_pool_of_the_driver_is_wrapped() {
    let gpu = Gpu::new();
    let (mut shared, mut theirs) = (std::ptr::null_mut(), 0);
    // SAFETY: the outputs have the types that the functions write.
    let got = gpu.context.bind(|| unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut shared, 0).result().unwrap();
        sys::cuMemAllocFromPoolAsync(&mut theirs, 1000, shared, gpu.stream.raw()).result()
    });
    got.unwrap().unwrap();
    // SAFETY: the default pool exists as long as the device.
    let source = unsafe { AsyncMemory::from_raw(&gpu.context, shared) };
    let before = source.used().unwrap();
    keeps_the_contract(&gpu, &source);
    let pool = Pool::new(source, PoolOptions::new()).unwrap();
    let buffer = Buffer::from_slice(&pool, &[5u8; 100], &gpu.stream).unwrap();
    assert_eq!(pool.pools()[0].name(), "shared pool of device 0");
    assert_eq!(buffer.to_vec().unwrap(), [5; 100]);
    drop((buffer, pool));
    // SAFETY: as above; the memory is not used any more.
    let source = unsafe { AsyncMemory::from_raw(&gpu.context, shared) };
    gpu.stream.synchronize().unwrap();
    assert_eq!(source.used().unwrap(), before);
    drop(source);
    // SAFETY: allocated above, from a pool that still exists.
    let freed = gpu.context.bind(|| unsafe { sys::cuMemFreeAsync(theirs, gpu.stream.raw()) });
    freed.unwrap().result().unwrap();
    gpu.finish();
}

#[test]
fn async_memory_waits_for_nothing() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let source = AsyncMemory::new(&gpu.context).unwrap();
    let number = Gpu::number(&gpu.stream);
    gpu.control().hold(number, true);
    let bytes = source.granularity();
    let segment = source.reserve(bytes, &gpu.stream).unwrap();
    // SAFETY: both ranges are in the segment and not in use.
    unsafe { source.copy(segment.address.get(), segment.address.get() + bytes / 2, bytes / 2, &gpu.stream) }
        .unwrap();
    release(&source, segment, &gpu.stream);
    assert_eq!(gpu.control().pending(number), 3);
    assert_eq!(source.used().unwrap(), bytes as u64);
    assert_eq!(gpu.control().run(number), 3);
    assert_eq!(source.used().unwrap(), 0);
    drop(source);
    gpu.finish();
}

#[test]
fn pinned() {
    let gpu = Gpu::new();
    let source = Pinned::new(&gpu.context);
    keeps_the_contract(&gpu, &source);
    assert!(source.capabilities().contains(Capabilities::PINNED));
    let before = pinned_bytes(); // tests of failures leave some
    drop(source);

    let unit = 64 << 10;
    let limit = before + 2 * unit;
    let source = Pinned::new(&gpu.context).write_combined().not_portable().limit(limit);
    let segments = [(); 2].map(|()| source.reserve(unit, &gpu.stream).unwrap());
    assert_eq!((pinned_bytes(), source.capacity().unwrap().free), (before + 2 * unit, 0));
    let error = source.reserve(unit, &gpu.stream).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(error.to_string(), "the limit of pinned memory: the device is out of memory");
    for (segment, flags) in segments.into_iter().zip([4 | 2, 4 | 2]) {
        if !on_system() {
            assert_eq!(flags_of(&gpu, segment), flags);
        }
        release(&source, segment, &gpu.stream);
    }
    assert_eq!(pinned_bytes(), before);
    drop(source);
    gpu.finish();
}

/// Returns the flags with which a segment was pinned.
fn flags_of(gpu: &Gpu, segment: Segment) -> u32 {
    let mut flags = 0;
    let pointer = std::ptr::with_exposed_provenance_mut(segment.address.get());
    // SAFETY: the output has the type that the function writes, and the driver checks the address.
    gpu.context.bind(|| unsafe { sys::cuMemHostGetFlags(&mut flags, pointer) }).unwrap().result().unwrap();
    flags
}

#[test]
fn the_default_limit_of_pinned_memory_is_a_part_of_the_systems() {
    let limit = Pinned::new(&Gpu::new().context).capacity().unwrap().total;
    // Every machine that runs this test has between 512 MiB and 64 TiB.
    assert!((128 << 20..16 << 40).contains(&limit), "{limit}");
}

#[test]
fn managed() {
    let gpu = Gpu::new();
    if !gpu.context.device().managed_memory {
        return assert!(matches!(Managed::new(&gpu.context), Err(Error::Unsupported(_))));
    }
    let source = Managed::new(&gpu.context).unwrap();
    keeps_the_contract(&gpu, &source);
    let source = Arc::new(source);
    let buffer = Buffer::<u32>::zeros(&source, 1000, &gpu.stream).unwrap();
    let (address, bytes) = (buffer.address(), buffer.bytes());
    let advice =
        [Advice::ReadMostly(true), Advice::PreferredLocation(Some(None)), Advice::AccessedBy(Some(0))];
    for advice in advice {
        buffer.as_view().advise(advice).unwrap();
    }
    buffer.as_view().prefetch(Some(0)).unwrap();
    gpu.stream.synchronize().unwrap();
    let told = |which| {
        use allotment::gpu::cudarc::driver::sys;
        let mut value = 0i32;
        let place = (&raw mut value).cast();
        // SAFETY: the output has the given size, and the range is the segment.
        let code =
            gpu.context.bind(|| unsafe { sys::cuMemRangeGetAttribute(place, 4, which, address, bytes) });
        code.unwrap().result().unwrap();
        value
    };
    use allotment::gpu::cudarc::driver::sys::CUmem_range_attribute::*;
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), -1);
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY), 0);
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 0);
    for advice in [Advice::ReadMostly(false), Advice::PreferredLocation(None)] {
        buffer.as_view().advise(advice).unwrap();
    }
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
    assert_eq!(told(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), -2);
    // To another kind of memory, for which the driver refuses.
    let device = Arc::new(DeviceMemory::new(&gpu.context));
    let mut buffer = buffer;
    buffer.as_mut_slice().unwrap()[999] = 7;
    let moved = buffer.migrate(&device, &gpu.stream).unwrap();
    assert_eq!(moved.slice(998..).unwrap().to_vec().unwrap(), [0, 7]);
    let error = moved.as_view().prefetch(None).unwrap_err();
    assert!(matches!(error, Error::Call(error) if error.kind == SourceErrorKind::Invalid));
    drop((moved, device, source));
    gpu.finish();
}

#[test]
fn managed_memory_is_never_oversubscribed() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let source = Managed::new(&gpu.context).unwrap();
    let total = source.capacity().unwrap().total;
    let all = source.reserve(total, &gpu.stream).unwrap();
    let error = source.reserve(source.granularity(), &gpu.stream).unwrap_err();
    assert!(error.is_out_of_memory());
    assert_eq!(gpu.control().calls("cuMemAllocManaged"), 1, "the driver was not even asked");
    release(&source, all, &gpu.stream);
    drop(source);
    gpu.finish();
}

#[test]
fn virtual_memory() {
    let gpu = Gpu::new();
    let source = Virtual::new(&gpu.context).unwrap();
    keeps_the_contract(&gpu, &source);
    drop(source);
    gpu.finish();
}

#[test]
fn virtual_memory_grows_in_place() {
    let gpu = Gpu::new();
    let source = Virtual::with_room(&gpu.context, 8 << 20).unwrap();
    let unit = source.granularity();
    let small = source.reserve(unit, &gpu.stream).unwrap();
    let other = source.reserve(unit, &gpu.stream).unwrap();
    gpu.upload(small.address, b"stays");
    assert_eq!(source.room(&small), (8_usize << 20).next_multiple_of(unit));
    // SAFETY: the source has reserved the segment, in its current state.
    let large = unsafe { source.grow(small, unit, &gpu.stream) }.unwrap();
    assert_eq!((large.address, large.bytes), (small.address, 2 * unit));
    // Across the border of the two pieces.
    gpu.upload(large.address.checked_add(unit - 2).unwrap(), b"over");
    assert_eq!(gpu.download(large.address.checked_add(unit - 2).unwrap(), 4), b"over");
    assert_eq!(gpu.download(large.address, 5), b"stays");
    let rest = source.room(&large) - large.bytes;
    // SAFETY: the source has reserved the segment, in its current state.
    let error = unsafe { source.grow(large, rest + unit, &gpu.stream) }.unwrap_err();
    assert!(error.is_out_of_memory());
    if !on_system() {
        assert_eq!(gpu.live().bytes, 3 * unit as u64);
        gpu.control().fail("cuMemCreate", 1, 1, 2);
        // SAFETY: as above.
        assert!(unsafe { source.grow(large, unit, &gpu.stream) }.unwrap_err().is_out_of_memory());
        assert_eq!(gpu.live().bytes, 3 * unit as u64);
    }
    // SAFETY: as above.
    let full = unsafe { source.grow(large, rest, &gpu.stream) }.unwrap();
    assert_eq!(full.bytes, source.room(&full));
    release(&source, full, &gpu.stream);
    release(&source, other, &gpu.stream);
    drop(source);
    gpu.finish();
}

#[test]
fn registered_memory() {
    let gpu = Gpu::new();
    let before = pinned_bytes(); // tests of failures leave some
    let memory = vec![7; (1 << 20) + 100];
    let inside = memory.as_ptr() as usize..memory.as_ptr() as usize + memory.len();
    let source = Registered::new(&gpu.context, memory).unwrap();
    assert_eq!(pinned_bytes(), before + (1 << 20) + 100);
    keeps_the_contract(&gpu, &source);
    let all = source.capacity().unwrap().free;
    assert!(all > (1 << 20) - 1024);
    let segment = source.reserve(all, &gpu.stream).unwrap();
    let end = segment.address.get() + segment.bytes;
    assert!(inside.contains(&segment.address.get()) && end <= inside.end);
    assert!(source.reserve(512, &gpu.stream).unwrap_err().is_out_of_memory());
    gpu.upload(segment.address, b"written by the device");
    let source = source.into_memory().unwrap_err(); // a segment is lent
    release(&source, segment, &gpu.stream);
    let memory = source.into_memory().unwrap();
    assert_eq!(pinned_bytes(), before);
    let at = segment.address.get() - inside.start;
    assert_eq!(&memory[at..at + 21], b"written by the device");

    let empty = Registered::new(&gpu.context, Vec::new()).unwrap_err();
    assert!(matches!(empty, Error::Call(error) if error.kind == SourceErrorKind::Invalid));
    let limited = Registered::with_limit(&gpu.context, memory, 1000).unwrap_err();
    assert!(matches!(limited, Error::Call(error) if error.is_out_of_memory()));
    gpu.finish();
}

#[test]
fn devices_that_lack_something_say_so() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    for attribute in [115, 102, 89] {
        gpu.control().set_attribute(1, attribute, 0);
    }
    let context = Context::new(1).unwrap();
    let unsupported = |error| matches!(error, Error::Unsupported(_));
    assert!(AsyncMemory::new(&context).is_err_and(unsupported));
    assert!(Virtual::new(&context).is_err_and(unsupported));
    assert!(Managed::new(&context).is_err_and(unsupported));
    let lacks = Error::Unsupported("virtual memory management");
    assert_eq!(Virtual::shareable(&context).unwrap_err(), lacks);
    assert_eq!(Virtual::with_room(&context, 1).unwrap_err(), lacks);
    assert_eq!(KvCache::new(&context, 1, 1).unwrap_err(), lacks);
    assert!(!context.device().managed_memory && !context.device().integrated);
    gpu.control().set_attribute(1, 18, 1); // INTEGRATED
    assert!(Context::new(1).unwrap().device().integrated);
    // No device is its own peer.
    let own = Error::Unsupported("access to the memory of this peer");
    assert_eq!(Virtual::with_peers(&gpu.context, std::slice::from_ref(&gpu.context)).unwrap_err(), own);
    let ordered = AsyncMemory::new(&gpu.context).unwrap();
    assert_eq!(ordered.allow(&gpu.context).unwrap_err(), own);
    drop((context, ordered));
    gpu.finish();
}

#[test]
fn sources_of_two_devices_are_apart() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let stream = Stream::new(&second).unwrap();
    let (here, there) = (DeviceMemory::new(&gpu.context), DeviceMemory::new(&second));
    let near = here.reserve(2 << 20, &gpu.stream).unwrap();
    let far = there.reserve(4 << 20, &stream).unwrap();
    let used = |source: &DeviceMemory| source.capacity().map(|found| found.total - found.free);
    assert_eq!((used(&here), used(&there)), (Ok(2 << 20), Ok(4 << 20)));
    assert_eq!(there.name(), "device 1");
    release(&there, far, &stream);
    release(&here, near, &gpu.stream);
    drop((here, there, stream, second));
    gpu.finish();
}

/// A copy into memory that the program forgot must not run into freed memory.
#[test]
fn registered_memory_outlives_forgotten_buffers() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = vec![0u8; 8192];
    let inside = memory.as_ptr() as usize..memory.as_ptr() as usize + 8192;
    let source = Arc::new(Registered::new(&gpu.context, memory).unwrap());
    let device = Arc::new(DeviceMemory::new(&gpu.context));
    let ones = Buffer::from_slice(&device, &[1u8; 512], &gpu.stream).unwrap();
    gpu.control().hold_all(true);
    let segment = source.reserve(512, &gpu.stream).unwrap();
    let to = segment.address.get() as u64;
    // SAFETY: both ranges are live; the copy runs after the source is dropped.
    let code = gpu.context.bind(|| unsafe { sys::cuMemcpyAsync(to, ones.address(), 512, gpu.stream.raw()) });
    code.unwrap().result().unwrap();
    drop(Arc::into_inner(source)); // the segment was forgotten
    gpu.control().hold_all(false);
    gpu.stream.synchronize().unwrap();
    assert_eq!(gpu.control().live().registered, 1, "leaked instead of freed");
    assert!(inside.contains(&segment.address.get()));
    assert_eq!(gpu.control().misuse_of_any_kind(), 0);
    let start = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(inside.start);
    // SAFETY: the memory is leaked, so it is there and registered.
    gpu.context.bind(|| unsafe { sys::cuMemHostUnregister(start) }).unwrap().result().unwrap();
    drop(ones);
    drop(device);
    gpu.finish();
}

#[test]
fn memory_with_two_addresses_is_refused() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let before = pinned_bytes();
    gpu.control().set_attribute(0, 91, 0); // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    let refused = Registered::new(&gpu.context, vec![0; 4096]).unwrap_err();
    assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
    let combined = Pinned::new(&gpu.context).write_combined();
    let refused = combined.reserve(64 << 10, &gpu.stream).unwrap_err();
    assert_eq!(refused.kind, SourceErrorKind::Unsupported);
    assert_eq!((pinned_bytes(), gpu.live()), (before, Live::default()));
    drop(combined);
    gpu.finish();
}

/// Managed memory counts against what the device has free, not against all of it.
#[test]
fn managed_memory_leaves_a_full_device_alone() {
    let gpu = Gpu::with_memory(64 << 20);
    if on_system() {
        return;
    }
    let device = DeviceMemory::new(&gpu.context);
    let most = device.reserve(48 << 20, &gpu.stream).unwrap();
    let managed = Managed::new(&gpu.context).unwrap();
    assert!(managed.reserve(32 << 20, &gpu.stream).unwrap_err().is_out_of_memory());
    let some = managed.reserve(8 << 20, &gpu.stream).unwrap();
    assert_eq!(managed.capacity().unwrap().free, 8 << 20);
    release(&device, most, &gpu.stream);
    let more = managed.reserve(32 << 20, &gpu.stream).unwrap();
    release(&managed, more, &gpu.stream);
    release(&managed, some, &gpu.stream);
    drop((managed, device));
    gpu.finish();
}

#[test]
fn managed_memory_exceeds_the_device_if_it_may() {
    let gpu = Gpu::with_memory(64 << 20);
    if on_system() {
        return;
    }
    let managed = Managed::new(&gpu.context).unwrap().up_to(160 << 20);
    let most = managed.reserve(96 << 20, &gpu.stream).unwrap();
    assert_eq!(managed.capacity().unwrap().free, 64 << 20);
    assert!(managed.reserve(96 << 20, &gpu.stream).unwrap_err().is_out_of_memory());
    let rest = managed.clone().reserve(64 << 20, &gpu.stream).unwrap();
    assert_eq!(managed.capacity().unwrap().free, 0);
    release(&managed, most, &gpu.stream);
    release(&managed, rest, &gpu.stream);
    drop(managed);
    gpu.finish();
}

#[test]
fn addresses_have_kinds() {
    fn kind<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: &S) -> MemoryKind {
        let memory = source.reserve(source.granularity(), &gpu.stream).unwrap();
        let kind = gpu.context.kind_of(memory.address.get() + 8).unwrap();
        release(source, memory, &gpu.stream);
        kind
    }
    let gpu = Gpu::new();
    assert_eq!(kind(&gpu, &DeviceMemory::new(&gpu.context)), MemoryKind::Device);
    assert_eq!(kind(&gpu, &Managed::new(&gpu.context).unwrap()), MemoryKind::Managed);
    assert_eq!(kind(&gpu, &Pinned::new(&gpu.context)), MemoryKind::Pinned);
    assert_eq!(kind(&gpu, &Registered::new(&gpu.context, vec![0; 4096]).unwrap()), MemoryKind::Pinned);
    let ordinary = 0_u64;
    assert_eq!(gpu.context.kind_of((&raw const ordinary).addr()).unwrap(), MemoryKind::Host);
    assert_eq!(Stream::host().context().kind_of(8).unwrap(), MemoryKind::Host);
    gpu.finish();
}

/// Copies between devices, from and to every kind of memory, with and without access.
#[test]
fn devices_copy_to_each_other() {
    fn copies<
        A: Source<Stream = Stream> + Send + Sync + 'static,
        B: Source<Stream = Stream> + Send + Sync + 'static,
    >(
        here: (A, &Stream),
        there: (B, &Stream),
    ) {
        let (from, to) = (Arc::new(here.0), Arc::new(there.0));
        let ones = Buffer::from_slice(&from, &[1u8; 5000], here.1).unwrap();
        let moved = ones.migrate(&to, there.1).unwrap();
        assert_eq!(moved.to_vec().unwrap(), [1; 5000]);
        let back = moved.migrate(&from, here.1).unwrap();
        assert_eq!(back.to_vec().unwrap(), [1; 5000]);
    }
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let far = Stream::new(&second).unwrap();
    let (first, a, b) = (&gpu.context, &gpu.stream, &far);
    copies((DeviceMemory::new(first), a), (DeviceMemory::new(&second), b));
    copies((Virtual::new(first).unwrap(), a), (Virtual::new(&second).unwrap(), b));
    copies((AsyncMemory::new(first).unwrap(), a), (AsyncMemory::new(&second).unwrap(), b));
    copies((AsyncMemory::new(first).unwrap(), a), (Virtual::new(&second).unwrap(), b));
    // With access a plain copy on one device's stream reaches the other's memory. A pool of the driver opens by itself.
    let ordered = AsyncMemory::new(&second).unwrap();
    ordered.allow(first).unwrap();
    let ordered = Arc::new(ordered);
    let other = Buffer::<u8>::zeros(&ordered, 100, b).unwrap();
    b.synchronize().unwrap();
    let copy = |to, from| {
        // SAFETY: both ranges are live.
        let copied = first.bind(|| unsafe { sys::cuMemcpyAsync(to, from, 50, a.raw()) });
        copied.unwrap().result().unwrap();
        a.synchronize().unwrap();
    };
    copy(other.address() + 50, other.address());
    first.enable_peer(&second).unwrap();
    first.enable_peer(&second).unwrap();
    let open = Arc::new(Virtual::with_peers(&second, std::slice::from_ref(first)).unwrap());
    let shared = Buffer::<u8>::zeros(&open, 100, b).unwrap();
    b.synchronize().unwrap();
    copy(shared.address() + 50, shared.address());
    copy(other.address(), shared.address());
    drop((shared, other, open, ordered));
    // The memory of `other` goes in the order of this stream.
    far.synchronize().unwrap();
    drop((far, second));
    gpu.finish();
}

/// Pages between blocks go back to the device, and come again.
#[test]
fn virtual_memory_gives_pages_back_between_blocks() {
    const MIB: usize = 1 << 20;
    let gpu = Gpu::new();
    let source = Virtual::new(&gpu.context).unwrap().with_pieces(2 * MIB);
    let pool = Arc::new(DevicePool::new(source, PoolOptions::new()).unwrap());
    let mut blocks: Vec<_> =
        (0..9u8).map(|n| (Buffer::<u8>::zeros(&pool, 16 * MIB, &gpu.stream).unwrap(), n)).collect();
    for (block, n) in &mut blocks {
        block.as_view_mut().fill(*n).unwrap();
    }
    blocks.retain(|(_, n)| n % 4 == 0);
    let before = pool.stats().reserved.current as usize;
    // The first marks the end of the work, if it is not done yet.
    let mut given = pool.trim(0);
    gpu.stream.synchronize().unwrap();
    given += pool.trim(0);
    assert!(given >= 6 * 16 * MIB - 4 * MIB, "{given}");
    assert_eq!(pool.stats().reserved.current as usize, before - given);
    if !on_system() {
        assert_eq!(gpu.live().bytes as usize, before - given, "the device has it back");
    }
    for (block, n) in &blocks {
        assert_eq!(block.to_vec().unwrap(), vec![*n; 16 * MIB]);
    }
    let more = Buffer::<u8>::zeros(&pool, 40 * MIB, &gpu.stream).unwrap();
    assert_eq!(more.to_vec().unwrap(), vec![0; 40 * MIB]);
    assert_eq!(pool.stats().segments.current, 1, "in the same addresses");
    drop((more, blocks));
    drop(pool);
    gpu.finish();
}

/// A gibibyte is mapped in pieces of the chosen size and unmapped at once, apart from what went back before.
#[test]
fn virtual_memory_takes_few_calls() {
    const MIB: usize = 1 << 20;
    const CALLS: [&str; 5] = ["cuMemCreate", "cuMemMap", "cuMemRelease", "cuMemSetAccess", "cuMemUnmap"];
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    for (chosen, piece) in [(None, 32), (Some(64 * MIB), 64), (Some(20 * MIB), 32), (Some(0), 2)] {
        let piece = piece * MIB;
        let source = Virtual::new(&gpu.context).unwrap();
        let source = chosen.into_iter().fold(source, Virtual::with_pieces);
        let before = CALLS.map(|name| gpu.control().calls(name));
        let calls = || {
            let now = CALLS.map(|name| gpu.control().calls(name));
            std::array::from_fn::<_, 5, _>(|n| now[n] - before[n])
        };
        let count = (1024 * MIB / piece) as u64;
        let mut segment = source.reserve(1024 * MIB, &gpu.stream).unwrap();
        assert_eq!((calls(), segment.address.get() % piece), ([count, count, count, 1, 0], 0));
        // Growth in steps of another size: pieces end at multiples of theirs, so that whole ones can go.
        for _ in 0..8 {
            // SAFETY: the source has reserved the segment, in its current state.
            segment = unsafe { source.grow(segment, 20 * MIB, &gpu.stream) }.unwrap();
        }
        let (grown, borders) = (calls()[0] - count, 160 * MIB / piece);
        assert!(grown <= 8 + borders as u64, "{:?}", calls());
        let (page, middle) = (source.page(), segment.address.get() + 1024 * MIB - 2 * source.page());
        // SAFETY: these pages are mapped, and no work uses them.
        unsafe { source.unmap(middle, 4 * page, &gpu.stream) }.unwrap();
        assert_eq!(calls()[4], 1, "one call for pieces of two growths");
        // SAFETY: these pages have no memory.
        unsafe { source.map(middle + page, page, &gpu.stream) }.unwrap();
        release(&source, segment, &gpu.stream);
        assert_eq!(calls()[4], 4, "one call for each run of pieces");
        let [created, mapped, released, ..] = calls();
        assert_eq!((created, released), (mapped, mapped));
        drop(source);
    }
    gpu.finish();
}

/// The facts that pools go by, of every source: which device, whether memory is zero at first, and the pages that can go.
#[test]
fn sources_say_what_their_memory_is() {
    fn facts<S: Source<Stream = Stream> + Send + Sync + 'static>(
        source: &S,
        stream: &Stream,
    ) -> (Option<usize>, usize, bool) {
        let segment = source.reserve(source.granularity(), stream).unwrap();
        let zeroed = segment.zeroed;
        release(source, segment, stream);
        (source.device(), source.page(), zeroed)
    }
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    for (context, number) in [(&gpu.context, 0), (&second, 1)] {
        let stream = Stream::new(context).unwrap();
        let of_device = (Some(number), 0, false);
        assert_eq!(facts(&DeviceMemory::new(context), &stream), of_device);
        assert_eq!(facts(&AsyncMemory::new(context).unwrap(), &stream), of_device);
        assert_eq!(facts(&Virtual::shareable(context).unwrap(), &stream), of_device);
        let pages = Virtual::new(context).unwrap();
        assert_eq!(facts(&pages, &stream), (Some(number), 32 << 20, false));
        // Physical memory is that of the context's device.
        let before = context.capacity().unwrap().free;
        let segment = pages.reserve(pages.granularity(), &stream).unwrap();
        assert_eq!(before - context.capacity().unwrap().free, pages.granularity());
        release(&pages, segment, &stream);
        assert_eq!(facts(&Managed::new(context).unwrap(), &stream), (None, 0, false));
        assert_eq!(facts(&Pinned::new(context), &stream), (None, 0, false));
        assert_eq!(facts(&HostMemory::new(1 << 20), &stream), (None, 0, true));
        stream.synchronize().unwrap();
    }
    drop(second);
    gpu.finish();
}

#[test]
fn host_memory() {
    let gpu = Gpu::new();
    let source = HostMemory::new(200 << 10);
    let unit = source.granularity();
    let left = |source: &HostMemory| source.capacity().map(|capacity| (capacity.total, capacity.free));
    assert_eq!((source.name(), unit), ("host", 64 << 10));
    for bytes in [0, 1, unit + 1] {
        assert_eq!(source.reserve(bytes, &gpu.stream).unwrap_err().kind, SourceErrorKind::Invalid);
    }
    let first = source.reserve(2 * unit, &gpu.stream).unwrap();
    assert_eq!(left(&source), Ok((200 << 10, 72 << 10)));
    assert!(source.reserve(2 * unit, &gpu.stream).unwrap_err().is_out_of_memory());
    assert!(source.reserve(usize::MAX / unit * unit, &gpu.stream).unwrap_err().is_out_of_memory());
    let second = source.reserve(unit, &gpu.stream).unwrap();
    assert_eq!(left(&source), Ok((200 << 10, 8 << 10)));
    assert!(
        first.address.get() % source.alignment() == 0 && slice(&source, first).iter().all(|&byte| byte == 0)
    );
    slice(&source, first)[2 * unit - 5..].copy_from_slice(b"bytes");
    let (from, to) = (first.address.get() + 2 * unit - 5, second.address.get());
    // SAFETY: both ranges are in segments of this source and not in use.
    unsafe { source.copy(from, to, 5, &gpu.stream) }.unwrap();
    assert_eq!(&slice(&source, second)[..5], b"bytes");
    release(&source, first, &gpu.stream);
    release(&source, second, &gpu.stream);
    let all = HostMemory::new(unit);
    let exact = all.reserve(unit, &gpu.stream).unwrap();
    assert_eq!((left(&all), left(&source)), (Ok((unit, 0)), Ok((200 << 10, 200 << 10))));
    release(&all, exact, &gpu.stream);
    gpu.finish();
}

/// Whatever the place and length of the memory, what can be reserved of it is what is aligned and whole.
#[test]
fn registered_memory_of_any_place_is_used_as_far_as_it_is_aligned() {
    let gpu = Gpu::new();
    let mut random = fastrand::Rng::with_seed(6);
    let lengths = [1, 511, 512, 513, 1023, 1024, 1025, 5000];
    for (skip, len) in lengths.into_iter().flat_map(|len| [(0, len), (random.usize(1..600), len)]) {
        let memory = vec![0u8; skip + len].leak().split_at_mut(skip).1;
        let (start, end) = (memory.as_ptr().addr().next_multiple_of(512), memory.as_ptr().addr() + len);
        let usable = end.saturating_sub(start) / 512 * 512;
        let source = Registered::new(&gpu.context, memory).unwrap();
        let capacity = source.capacity().unwrap();
        assert_eq!((capacity.total, capacity.free), (usable, usable), "{len} bytes at {start:#x}");
        assert!(source.reserve(usable + 512, &gpu.stream).unwrap_err().is_out_of_memory());
        if usable > 0 {
            let all = source.reserve(usable, &gpu.stream).unwrap();
            assert_eq!((all.address.get(), all.bytes), (start, usable));
            release(&source, all, &gpu.stream);
        }
        assert_eq!(source.into_memory().unwrap().len(), len);
    }
    gpu.finish();
}

/// Random segments beside a list of flags: the lowest range that fits, and nothing twice.
#[test]
fn registered_memory_allocates_the_lowest_range() {
    const UNITS: usize = 16;
    let gpu = Gpu::new();
    let source = Registered::new(&gpu.context, vec![0; (UNITS + 1) * 512]).unwrap();
    let units = source.capacity().unwrap().total / 512;
    let mut taken = vec![false; units];
    let mut random = fastrand::Rng::with_seed(8);
    let mut live: Vec<(Segment, usize)> = Vec::new();
    let mut start = None;
    for step in 0..600 {
        if random.u8(..3) == 0 && !live.is_empty() {
            let (segment, at) = live.swap_remove(random.usize(..live.len()));
            taken[at..at + segment.bytes / 512].fill(false);
            release(&source, segment, &gpu.stream);
        } else {
            let len = random.usize(1..6);
            let place = (0..=units.saturating_sub(len)).find(|&at| !taken[at..at + len].contains(&true));
            match (source.reserve(len * 512, &gpu.stream), place) {
                (Ok(segment), Some(at)) => {
                    let start = *start.get_or_insert(segment.address.get());
                    assert_eq!(
                        (segment.address.get(), segment.bytes),
                        (start + at * 512, len * 512),
                        "{step}"
                    );
                    taken[at..at + len].fill(true);
                    live.push((segment, at));
                }
                (Err(error), None) => assert!(error.is_out_of_memory()),
                (found, place) => panic!("{step}: {found:?}, {place:?}"),
            }
        }
        let free = taken.iter().filter(|taken| !**taken).count() * 512;
        assert_eq!(
            source.capacity().map(|capacity| (capacity.total, capacity.free)),
            Ok((units * 512, free))
        );
    }
    live.into_iter().for_each(|(segment, _)| release(&source, segment, &gpu.stream));
    drop(source);
    gpu.finish();
}

/// The driver's own errors come through where a source asks for more than memory.
#[test]
fn errors_beside_the_memory_keep_their_codes() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pinned = pinned_bytes();
    let combined = Pinned::new(&gpu.context).write_combined();
    gpu.control().fail("cuMemHostGetDevicePointer_v2", 1, 2, 999);
    assert_eq!(combined.reserve(64 << 10, &gpu.stream).unwrap_err().code, 999);
    let failed = Registered::new(&gpu.context, vec![0; 4096]).unwrap_err();
    assert!(matches!(failed, Error::Call(error) if error.code == 999), "{failed}");
    assert_eq!((pinned_bytes(), gpu.live()), (pinned, Live::default()));
    // In a capture the memory comes by way of a stream of its own, which has to be made.
    let ordered = AsyncMemory::new(&gpu.context).unwrap();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(gpu.stream.raw(), mode) }.result().unwrap();
    gpu.control().fail("cuStreamCreate", 1, 1, 999);
    let failed = ordered.reserve(ordered.granularity(), &gpu.stream).unwrap_err();
    assert_eq!((failed.call, failed.code), ("cuStreamCreate", 999));
    let mut graph = std::ptr::null_mut();
    // SAFETY: the capture began above, and the output has the type that the function writes.
    unsafe { sys::cuStreamEndCapture(gpu.stream.raw(), &mut graph) }.result().unwrap();
    // SAFETY: made above and not used. An empty capture may return no graph.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
    drop((combined, ordered));
    gpu.finish();
}
