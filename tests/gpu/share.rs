//! Memory shared with other processes: the tests start themselves again and pass on what they share.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::manager::{ManagerOptions, MemoryManager};
use allotment::gpu::share::SharedMemory;
use allotment::gpu::{
    AsyncMemory, Buffer, Context, DeviceMemory, Error, MemoryKind, Pinned, Pool, Stream, Virtual,
};
use allotment::pool::{DevicePool, PoolOptions};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;

/// The environment variable for the other process.
const SHARED: &str = "ALLOTMENT_TEST_SHARED";

fn in_another_process(test: &str, shared: String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(SHARED, shared).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn open(handle: &[u8; 80], gpu: &Gpu) -> Result<Buffer<u32>, Error> {
    // SAFETY: the tests export values of this type, and keep them until the other process has ended.
    unsafe { Buffer::open(handle, &gpu.stream) }
}

/// A block of a pool, in the middle of its segment: the other process reads and writes that block.
#[test]
fn handles_name_blocks_of_pools() {
    let gpu = Gpu::new();
    if let Ok(text) = std::env::var(SHARED) {
        let bytes: Vec<u8> = text.split(' ').map(|byte| byte.parse().unwrap()).collect();
        let handle: [u8; 80] = bytes.try_into().unwrap();
        let mut buffer = open(&handle, &gpu).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
        buffer.copy_from(&[4, 5, 6]).unwrap();
        assert_eq!(open(&handle, &gpu).unwrap().to_vec().unwrap(), [4, 5, 6], "it may be open twice");
        buffer.slice_mut(..1).unwrap().fill(7).unwrap();
        drop(buffer); // waits for that
        // A handle that claims more than there is.
        let mut bytes = handle;
        bytes[72..].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let error = open(&bytes, &gpu).unwrap_err();
        assert!(matches!(error, Error::Range { .. }), "{error}");
        return gpu.finish();
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let before = Buffer::from_slice(&pool, &[8u8; 1000], &gpu.stream).unwrap();
    let buffer = Buffer::from_slice(&pool, &[1u32, 2, 3], &gpu.stream).unwrap();
    let handle = buffer.export().unwrap();
    assert_eq!(handle[72..], 12u64.to_le_bytes());
    let text = handle.map(|byte| byte.to_string()).join(" ");
    in_another_process("share::handles_name_blocks_of_pools", text);
    assert_eq!(buffer.to_vec().unwrap(), [7, 5, 6]);
    assert_eq!(before.to_vec().unwrap(), [8; 1000]);
    drop((before, buffer));
    drop(pool);
    gpu.finish();
}

#[test]
fn wrong_handles_and_memory_are_typed_errors() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let buffer = Buffer::from_slice(&memory, &[1u32, 2, 3], &gpu.stream).unwrap();
    let handle = buffer.export().unwrap();
    // The process's own memory.
    assert!(matches!(open(&handle, &gpu), Err(Error::Call(_))));
    let changed = |at: usize, value: u64| {
        let mut bytes = handle;
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        open(&bytes, &gpu).unwrap_err()
    };
    assert!(matches!(changed(0, 1), Error::Call(_)));
    assert_eq!(changed(72, 0), Error::Values { bytes: 0, offset: 0 });
    assert_eq!(changed(72, 5), Error::Values { bytes: 5, offset: 0 });
    assert_eq!(changed(64, 2), Error::Values { bytes: 12, offset: 2 });
    let pinned = Buffer::from_slice(&Arc::new(Pinned::new(&gpu.context)), &[1u8], &gpu.stream).unwrap();
    assert_eq!(pinned.export(), Err(Error::NotShareable));
    // The driver has no handles for this kind of memory.
    let ordered = AsyncMemory::new(&gpu.context).unwrap();
    let ordered = Buffer::from_slice(&Arc::new(ordered), &[1u8], &gpu.stream).unwrap();
    assert!(matches!(ordered.export(), Err(Error::Call(_))));
    let plain = Virtual::new(&gpu.context).unwrap();
    let plain = Buffer::from_slice(&Arc::new(plain), &[1u8], &gpu.stream).unwrap();
    assert!(matches!(plain.share(), Err(Error::NotShareable)));
    drop((buffer, memory, pinned, ordered, plain));
    gpu.finish();
}

fn map(shared: &SharedMemory, gpu: &Gpu) -> Result<Buffer<u32>, Error> {
    // SAFETY: the tests share values of this type, and wait before they use them elsewhere.
    unsafe { Buffer::map(shared, &gpu.stream) }
}

const MIB: usize = 1 << 20;

/// Blocks of a segment that has grown: the shared memory lies in one piece or in several.
#[test]
fn descriptors_are_of_the_pieces_that_a_buffer_lies_in() {
    let gpu = Gpu::new();
    let options = PoolOptions::new().segments(4 * MIB).small(0, 0);
    let pool = Arc::new(DevicePool::new(Virtual::shareable(&gpu.context).unwrap(), options).unwrap());
    let first = Buffer::from_slice(&pool, &vec![1u32; MIB / 2], &gpu.stream).unwrap();
    let second = Buffer::from_slice(&pool, &vec![2u32; MIB], &gpu.stream).unwrap(); // the segment has grown
    assert_eq!(pool.stats().segments.current, 1);
    let (one, two) = (first.share().unwrap(), second.share().unwrap());
    assert_eq!((one.pieces.len(), one.offset, one.bytes), (1, 0, 2 * MIB));
    assert_eq!((two.pieces.len(), two.offset, two.bytes), (2, 2 * MIB, 4 * MIB));
    let mut mapped = map(&two, &gpu).unwrap();
    assert_ne!(mapped.address(), second.address());
    assert!(mapped.to_vec().unwrap() == vec![2; MIB]);
    mapped.as_view_mut().fill(3).unwrap();
    gpu.stream.context().synchronize().unwrap();
    assert!(second.to_vec().unwrap() == vec![3; MIB] && first.to_vec().unwrap() == vec![1; MIB / 2]);
    // The memory lives as long as anything refers to it.
    drop((first, second));
    drop(pool);
    assert!(mapped.to_vec().unwrap() == vec![3; MIB]);
    drop(mapped);
    let late = map(&one, &gpu).unwrap();
    assert!(late.to_vec().unwrap() == vec![1; MIB / 2]);
    drop((late, one, two));
    gpu.finish();
}

#[test]
fn memory_is_given_up_behind_the_work_on_it() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(Virtual::shareable(&gpu.context).unwrap());
    let buffer = Buffer::from_slice(&memory, &[1u32, 2, 3], &gpu.stream).unwrap();
    let shared = buffer.share().unwrap();
    let mut mapped = map(&shared, &gpu).unwrap();
    let other = Stream::new(&gpu.context).unwrap();
    let mut copy = Buffer::<u32>::zeros(&memory, 3, &other).unwrap();
    gpu.control().hold_all(true);
    mapped.as_view_mut().fill(9).unwrap();
    copy.as_view_mut().copy_from_view(&mapped.as_view()).unwrap();
    assert!(
        gpu.control().pending(Gpu::number(&gpu.stream)) > 0 && gpu.control().pending(Gpu::number(&other)) > 0
    );
    drop(mapped);
    for stream in [&gpu.stream, &other] {
        assert_eq!(gpu.control().pending(Gpu::number(stream)), 0);
    }
    gpu.control().hold_all(false);
    assert_eq!(buffer.to_vec().unwrap(), [9; 3]);
    assert_eq!(copy.to_vec().unwrap(), [9; 3]);
    drop((buffer, copy, shared, memory, other));
    gpu.finish();
}

/// The other process opens the descriptors of this one.
#[test]
fn descriptors_cross_processes() {
    let gpu = Gpu::new();
    if let Ok(text) = std::env::var(SHARED) {
        let numbers: Vec<usize> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        let [process, offset, bytes, file, piece] = numbers.try_into().unwrap();
        let path = format!("/proc/{process}/fd/{file}");
        let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
        let pieces = vec![(OwnedFd::from(file), piece)];
        let mut buffer = map(&SharedMemory { pieces, offset, bytes }, &gpu).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
        buffer.slice_mut(1..).unwrap().fill(9).unwrap();
        drop(buffer); // waits for that
        return gpu.finish();
    }
    if on_system() {
        return; // a real driver's descriptors go through sockets only
    }
    let memory = Arc::new(Virtual::shareable(&gpu.context).unwrap());
    let buffer = Buffer::from_slice(&memory, &[1u32, 2, 3], &gpu.stream).unwrap();
    let shared = buffer.share().unwrap();
    let [(descriptor, bytes)] = &shared.pieces[..] else { panic!("{shared:?}") };
    let file = std::os::fd::AsRawFd::as_raw_fd(&descriptor.as_fd());
    let text = format!("{} {} {} {file} {}", std::process::id(), shared.offset, shared.bytes, bytes);
    in_another_process("share::descriptors_cross_processes", text);
    assert_eq!(buffer.to_vec().unwrap(), [1, 9, 9]);
    drop((buffer, memory, shared));
    gpu.finish();
}

#[test]
fn wrong_descriptors_leave_nothing_behind() {
    let gpu = Gpu::new();
    let memory = Arc::new(Virtual::shareable(&gpu.context).unwrap());
    let buffer = Buffer::from_slice(&memory, &[1u32, 2, 3], &gpu.stream).unwrap();
    let mut shared = buffer.share().unwrap();
    let piece = shared.pieces[0].1;
    for (offset, bytes, error) in [
        (0, 0, Error::Values { bytes: 0, offset: 0 }),
        (0, 6, Error::Values { bytes: 6, offset: 0 }),
        (2, 4, Error::Values { bytes: 4, offset: 2 }),
        (piece, 4, Error::Range { end: piece + 4, shared: piece }),
        (usize::MAX - 3, 4, Error::Range { end: usize::MAX, shared: piece }),
    ] {
        (shared.offset, shared.bytes) = (offset, bytes);
        assert_eq!(map(&shared, &gpu).unwrap_err(), error);
    }
    (shared.offset, shared.bytes) = (0, 12);
    let before = (!on_system()).then(|| gpu.live());
    // A descriptor of something else, and a size that differs from the piece's.
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let right = shared.pieces[0].0.try_clone().unwrap();
    shared.pieces.push((file, piece));
    assert!(matches!(map(&shared, &gpu), Err(Error::Call(_))));
    shared.pieces.swap(0, 1);
    let unmapped = || gpu.driver.iter().map(|control| control.calls("cuMemUnmap")).sum::<u64>();
    let before_it = unmapped();
    assert!(matches!(map(&shared, &gpu), Err(Error::Call(_))));
    assert_eq!(unmapped(), before_it, "nothing was mapped");
    shared.pieces.swap(0, 1);
    shared.pieces[1] = (right, 2 * piece);
    assert!(matches!(map(&shared, &gpu), Err(Error::Call(_))));
    shared.pieces.truncate(1);
    if let Some(before) = before {
        for name in [
            "cuMemAddressReserve",
            "cuMemImportFromShareableHandle",
            "cuMemMap",
            "cuMemSetAccess",
            "cuMemRelease",
        ] {
            gpu.control().fail(name, 1, 1, 999);
            let error = map(&shared, &gpu).unwrap_err();
            assert!(matches!(error, Error::Call(error) if error.call == name), "{error}");
            gpu.control().clear_failures();
            if name != "cuMemRelease" {
                assert_eq!(gpu.live(), before, "{name}");
            }
        }
        for name in ["cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"] {
            gpu.control().fail(name, 1, 1, 999);
            let error = buffer.share().unwrap_err();
            assert!(matches!(error, Error::Call(error) if error.call == name), "{error}");
        }
        let fds = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        gpu.control().set_attribute(0, fds as u32, 0);
        let lacks = Error::Unsupported("file descriptors of virtual memory");
        assert_eq!(Virtual::shareable(&gpu.context).unwrap_err(), lacks);
    }
    assert_eq!(map(&shared, &gpu).unwrap().to_vec().unwrap(), [1, 2, 3]);
    drop((buffer, memory, shared));
    if let Some(driver) = &gpu.driver {
        assert_eq!(driver.misuse_of_any_kind(), 0, "{}", driver.report());
    }
}

/// Buffers that begin and end with pieces are of these pieces alone.
#[test]
fn whole_pieces_are_shared_without_their_neighbours() {
    let gpu = Gpu::new();
    let options = PoolOptions::new().segments(4 * MIB).small(0, 0);
    let pool = Arc::new(DevicePool::new(Virtual::shareable(&gpu.context).unwrap(), options).unwrap());
    let buffers =
        [1u32, 2, 3].map(|value| Buffer::from_slice(&pool, &vec![value; MIB], &gpu.stream).unwrap());
    assert_eq!(pool.stats().segments.current, 1);
    for (buffer, value) in buffers.iter().zip(1..) {
        let shared = buffer.share().unwrap();
        assert_eq!((shared.pieces.len(), shared.offset, shared.bytes), (1, 0, 4 * MIB));
        assert!(map(&shared, &gpu).unwrap().to_vec().unwrap() == vec![value; MIB]);
    }
    drop(buffers);
    drop(pool);
    gpu.finish();
}

/// A handle names the driver's allocation and the place in it, whatever the block comes from.
#[test]
fn handles_name_the_allocation_around_a_block() {
    fn names(make: impl Fn() -> Result<Buffer<u32>, Error>) {
        let buffers = [(); 3].map(|()| make().unwrap());
        let places = buffers.each_ref().map(|buffer| {
            let handle = buffer.export().unwrap();
            let offset = u64::from_le_bytes(handle[64..72].try_into().unwrap());
            assert_eq!(handle[72..], 4000u64.to_le_bytes());
            assert!(offset + 4000 <= 2 * MIB as u64, "{offset}");
            (buffer.address() - offset, handle[..64].to_vec())
        });
        assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    }
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    // A manager has memory with handles where the device cannot map any.
    let mapping = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    gpu.control().set_attribute(1, mapping as u32, 0);
    let second = Context::new(1).unwrap();
    let manager = MemoryManager::new(std::slice::from_ref(&second), ManagerOptions::default()).unwrap();
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let borrowed = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let request = manager.request().memory(MemoryKind::Device);
    names(|| Buffer::zeros(&request, 1000, manager.streams().next().unwrap()));
    names(|| Buffer::zeros(&pool, 1000, &gpu.stream));
    names(|| Buffer::zeros(&borrowed, 1000, &gpu.stream));
    drop((pool, borrowed));
    drop((manager, second));
    gpu.finish();
}
