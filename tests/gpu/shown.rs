//! What values and errors say of themselves.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::nvrtc::Ptx;
use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
use allotment::gpu::sequences::KvCache;
use allotment::gpu::share::DlTensor;
use allotment::gpu::{
    AsyncMemory, Buffer, DeviceMemory, Error, MemoryKind, Pool, Registered, Staging, Stream,
};
use allotment::pool::{PoolError, PoolOptions, SourceError, SourceErrorKind, Stream as _};
use std::fmt::{Debug, Display};
use std::io;
use std::sync::Arc;

#[track_caller]
fn shows(value: &dyn Debug, expected: &str) {
    let text = format!("{value:?}");
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn values_show_their_type_and_what_tells_them_apart() {
    let gpu = Gpu::new();
    let (context, stream) = (&gpu.context, &gpu.stream);
    let name = &context.device().name;
    shows(context, &format!("Context {{ device: Device {{ ordinal: 0, name: {name:?}, memory: "));
    shows(stream, &format!("Stream {{ id: {}, .. }}", stream.id()));
    shows(&stream.record().unwrap(), "Event { .. }");

    let memory = Arc::new(DeviceMemory::new(context));
    let leased = Buffer::<u8>::zeros(&memory, 10, stream).unwrap();
    // What a buffer lies in is private, and shown by its kind, its length and its pool.
    let lies = |buffer: &Buffer<u8>, len: usize, kind: &str, capacity: usize, pool: &str| {
        let address = buffer.address();
        let text = format!(
            "Buffer {{ address: {address}, len: {len}, kind: {kind}, capacity: {capacity}, pool: {pool}, .. }}"
        );
        shows(buffer, &text);
    };
    lies(&leased, 10, "Device", leased.capacity(), "None");
    // SAFETY: the memory is not used otherwise, and lives longer.
    let foreign = unsafe { Buffer::<u8>::from_raw(MemoryKind::Device, leased.address(), 5, (), stream) };
    lies(&foreign, 5, "Device", 5, "None");
    drop(foreign);
    let pool = Pool::new(DeviceMemory::new(context), PoolOptions::new()).unwrap();
    shows(&pool, "Pool { pools: [\"device 0\"], .. }");
    let pooled: Buffer<u8> = Buffer::zeros(&pool, 10, stream).unwrap();
    lies(&pooled, 10, "Device", 10, "Some(Pool { pools: [\"device 0\"], .. })");
    shows(&DlTensor::new(pooled, &[2, 5]).unwrap(), "DlTensor { shape: [2, 5], .. }");
    shows(&AsyncMemory::new(context).unwrap(), "AsyncMemory { context: Context { device: ");
    let registered = Registered::new(context, vec![0; 2048]).unwrap();
    assert_eq!(format!("{registered:?}").split(": ").next(), Some("Registered { bytes"));

    let cache = KvCache::new(context, 1 << 20, 1 << 30).unwrap();
    let mut sequence = cache.sequence(stream).unwrap();
    sequence.resize(100).unwrap();
    if !on_system() {
        shows(&cache, "KvCache { page: 2097152, reserved: 2097152, .. }");
    }
    shows(&sequence, "Sequence { bytes: 100, pages: 1, .. }");

    let module = context.to_cudarc().unwrap().load_module(Ptx::from_src(include_str!("scale.ptx"))).unwrap();
    let kernel = module.load_function("scale_f32").unwrap();
    shows(&stream.launch(&kernel), &format!("Launch {{ stream: Stream {{ id: {}, .. }}, .. }}", stream.id()));

    let mut staging = Staging::with_chunks(context, 64 << 10, 2).unwrap();
    shows(&staging, "Staging { chunks: (65536, 2), .. }");
    let batch = staging.batch(stream);
    shows(&batch, "Batch { report: Progress { bytes: 0, copies: 0, calls: 0, elapsed: 0ns }, .. }");
    drop(batch);

    let made = MemoryManager::new(std::slice::from_ref(context), ManagerOptions::default());
    let manager = made.unwrap();
    shows(&manager, "MemoryManager { stats: PoolStats { allocated: Counter { current: 0,");
    let request = manager.request().memory(MemoryKind::Pinned).access(Access::Random).fallback(&[]);
    shows(&request, "MemoryRequest { site: Location { file: \"tests/gpu/shown.rs\"");
    let rest = "memory: Some(Pinned), access: Random, fallback: Some([]), .. }";
    assert!(format!("{request:?}").ends_with(rest), "{request:?}");
    let managed = Buffer::<u8>::zeros(&request, 10, stream).unwrap();
    lies(&managed, 10, "Pinned", 10, "None");

    drop((staging, leased, memory, pool, registered, sequence, cache, kernel, module, managed));
    drop(manager);
    gpu.finish();
}

#[track_caller]
fn says(error: impl Display + Debug, expected: &str) {
    assert_eq!(error.to_string(), expected);
    assert_eq!(format!("{error:?}"), expected, "a `main` that returns it prints this");
}

#[test]
fn errors_say_what_is_wrong() {
    let call = SourceError { kind: SourceErrorKind::OutOfMemory, call: "cuMemCreate", code: 2 };
    let called = "cuMemCreate: the device is out of memory (CUDA_ERROR_OUT_OF_MEMORY, code 2)";
    let no_driver = "there is no CUDA driver on this system: libcuda.so or libcuda.so.1 cannot be loaded; install NVIDIA's \
                     driver, or use memory of the host or of `sim`";
    says(Error::NoDriver, no_driver);
    says(
        Error::MissingFunction("cuInit"),
        "the CUDA driver has no function cuInit; update the driver to CUDA 11.4 or later",
    );
    says(Error::NoDevice { ordinal: 3, count: 2 }, "there is no device 3; the number of devices is 2");
    says(Error::OtherContext, "the stream belongs to another context");
    let per_thread =
        "the per-thread default stream is another queue on every thread; use a stream of its own";
    says(Error::PerThreadStream, per_thread);
    says(Error::Unsupported("memory pools"), "the device does not support memory pools");
    says(Error::from(call), called);

    says(Error::Length { have: 3, asked: 4 }, "4 values requested, but there are 3");
    says(Error::Pitch { pitch: 1, width: 2 }, "rows of 2 values do not fit into a pitch of 1");
    says(Error::Unreachable, "no device can access ordinary host memory");
    says(Error::Invisible, "the CPU cannot access a device's own memory");
    says(Error::Tensor("has gaps"), "the tensor has gaps");

    says(Error::Values { bytes: 5, offset: 2 }, "5 bytes at offset 2 are not whole and aligned values");
    says(Error::Range { end: 9, shared: 8 }, "the range ends at byte 9, but only 8 bytes are shared");
    says(Error::NotShareable, "the memory was not allocated for sharing");

    says(Error::NoContext, "a memory manager needs at least one device");
    let total = "the last rule must fit every request, with no access and no size limit";
    says(Error::PolicyNotTotal, total);
    says(Error::PolicyNoTarget(4), "rule 4 names no target");
    says(Error::PolicyShare, "the share must be above 0.5 and at most 1");
    let other = "the stream belongs to device 1, which the manager does not have";
    says(Error::OtherDevice { ordinal: 1 }, other);
    for (kind, name) in [
        (MemoryKind::Device, "device memory"),
        (MemoryKind::Managed, "managed memory"),
        (MemoryKind::ReadMostly, "read-mostly managed memory"),
        (MemoryKind::Pinned, "pinned memory"),
        (MemoryKind::Host, "host memory"),
    ] {
        says(Error::Unavailable(kind), &format!("the device has no {name}"));
    }
    says(Error::from(PoolError::from(call)), &PoolError::from(call).to_string());

    let broken = || "broken".to_owned();
    says(Error::Read(io::ErrorKind::Other, broken()), "the input cannot be read: broken");
    says(Error::Write(io::ErrorKind::Other, broken()), "the results cannot be written: broken");
    says(Error::Shrunk { mapped: 9, left: 8 }, "the mapped file had 9 bytes and has only 8 now");
}

/// A stream has one number, wherever it is shown.
#[test]
fn streams_show_their_numbers() {
    let gpu = Gpu::new();
    shows(&Stream::default_of(&gpu.context), "Stream { id: 0, .. }");
    gpu.finish();
}
