//! With a driver, without one, and with one that is broken.

use crate::mapped::Folder;
use crate::staging::{CHUNK, add_one, data};
use crate::support::{Gpu, on_system, stand_in};
use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
use allotment::gpu::{
    Buffer, Context, Device, DeviceMemory, Error, HostMemory, MemoryKind, Pool, Staging, Stream, is_available,
};
use allotment::pool::{Event as _, PoolError, PoolOptions, SourceErrorKind, Stream as _};
use std::io::{Read as _, Seek as _};
use std::process::{self, Command};
use std::sync::Arc;
use std::{env, fs};

/// The environment variable that tells the child process what to expect.
const CHILD: &str = "ALLOTMENT_TEST_CHILD";

/// Runs a test of this program in a separate process, where the stand-in is not loaded.
fn in_a_process(test: &str, set: impl FnOnce(&mut Command)) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "yes");
    set(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

#[test]
fn without_a_driver_there_is_a_typed_error() {
    if !is_child() {
        return in_a_process("available::without_a_driver_there_is_a_typed_error", |_| ());
    }
    match is_available() {
        Err(error) => {
            assert_eq!(Context::new(0).unwrap_err(), error);
            assert_eq!(Device::all().unwrap_err(), error);
            // A `main` that returns it prints it with `Debug`.
            assert_eq!(format!("{error:?}"), error.to_string());
            assert!(
                error != Error::NoDriver || error.to_string().contains("install NVIDIA's driver"),
                "{error}"
            );
        }
        // There is a driver, so this is not the place to test its absence.
        Ok(()) => assert!(Device::count().is_ok()),
    }
}

#[test]
fn a_driver_that_lacks_functions_is_a_typed_error() {
    if is_child() {
        assert_eq!(is_available(), Err(Error::MissingFunction("cuCtxEnablePeerAccess")));
        assert!(matches!(Context::new(0), Err(Error::MissingFunction(_))));
        return;
    }
    // Another library under the driver's name: one that this program has loaded.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let library = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let library = library.into_iter().find(|file| file.contains("libgcc_s") || file.contains("libc.so"));
    let folder = env::temp_dir().join(format!("allotment-broken-driver-{}", process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(library.unwrap(), folder.join("libcuda.so")).unwrap();
    in_a_process("available::a_driver_that_lacks_functions_is_a_typed_error", |command| {
        command.env("LD_LIBRARY_PATH", &folder);
    });
    let _ = fs::remove_dir_all(&folder);
}

#[test]
fn without_a_device_there_is_a_typed_error() {
    if is_child() {
        let Some(_driver) = stand_in_with(0) else { return };
        let error = is_available().unwrap_err();
        assert!(matches!(error, Error::Call(error) if error.code == 100), "{error}");
        return assert_eq!(Context::new(0).unwrap_err(), error);
    }
    if !on_system() {
        in_a_process("available::without_a_device_there_is_a_typed_error", |_| ());
    }
}

/// Returns the stand-in with this many devices, not initialised.
fn stand_in_with(devices: u64) -> Option<allotment_stand_in::Exclusive> {
    if on_system() {
        return None;
    }
    let driver = allotment_stand_in::StandIn::exclusive().unwrap();
    driver.set_devices(devices, 1 << 30);
    Some(driver)
}

#[test]
fn devices_are_listed() {
    let gpu = Gpu::new();
    is_available().unwrap();
    let devices = Device::all().unwrap();
    assert_eq!(devices.len(), Device::count().unwrap());
    assert_eq!(&devices[0], gpu.context.device());
    assert!(devices.iter().enumerate().all(|(n, device)| device.ordinal == n && device.memory > 0));
    if !on_system() {
        assert_eq!((devices.len(), devices[1].memory, devices[1].capability), (2, 4 << 30, (9, 0)));
        assert_eq!(devices[1].name, "allotment stand-in 1");
    }
    let count = devices.len();
    assert_eq!(Context::new(count).unwrap_err(), Error::NoDevice { ordinal: count, count });
    assert_eq!(Device::get(usize::MAX).unwrap_err(), Error::NoDevice { ordinal: usize::MAX, count });
    let capacity = gpu.context.capacity().unwrap();
    assert!(capacity.free <= capacity.total && capacity.total > 0);
    gpu.finish();
}

#[test]
fn contexts_of_a_device_are_one() {
    let gpu = Gpu::new();
    let again = Context::new(0).unwrap();
    assert_eq!(again, gpu.context);
    let cudarc = gpu.context.to_cudarc().unwrap();
    assert_eq!(cudarc.cu_ctx(), gpu.context.raw());
    let stream = Stream::from_cudarc(&again, cudarc.new_stream().unwrap()).unwrap();
    drop((again, cudarc));
    drop(stream);
    if !on_system() {
        let other = Context::new(1).unwrap();
        assert_ne!(other, gpu.context);
        let foreign = other.to_cudarc().unwrap().default_stream();
        assert_eq!(Stream::from_cudarc(&gpu.context, foreign).unwrap_err(), Error::OtherContext);
        drop(other);
    }
    gpu.finish();
}

#[test]
fn a_lost_device_is_told_from_other_errors() {
    let Some(driver) = stand_in() else { return };
    let context = Context::new(0).unwrap();
    // A thread without a context has lost nothing, and a newer driver has codes that nothing here knows.
    for code in [201, 999, 12_345] {
        driver.fail("cuMemGetInfo_v2", 1, 1, code);
        let error = context.capacity().unwrap_err();
        assert_eq!((error.kind, error.code), (SourceErrorKind::Other, i64::from(code)));
    }
    driver.fault(0, 719);
    let error = context.synchronize().unwrap_err();
    assert_eq!((error.kind, error.call, error.code), (SourceErrorKind::Lost, "cuCtxSynchronize", 719));
    assert_eq!(
        error.to_string(),
        "cuCtxSynchronize: the device is lost (CUDA_ERROR_LAUNCH_FAILED, code 719)"
    );
}

/// A program over any pool and stream: fills, copies of all kinds, buffers that come and go. Returns what it has seen.
fn program(pool: &Pool, stream: &Stream) -> (Vec<u32>, Vec<u64>, [u64; 3]) {
    let mut seen = Vec::new();
    let mut values: Buffer<u32> = Buffer::zeros(pool, 1000, stream).unwrap();
    values.slice_mut(10..20).unwrap().fill(7).unwrap();
    values.slice_mut(990..).unwrap().copy_from(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]).unwrap();
    let mut rows = [0; 6];
    let shape = ([2, 3], [5, 2]);
    values.slice(8..20).unwrap().copy_rows_to(&mut rows, shape.0, shape.1).unwrap();
    seen.extend(rows);
    let mut second: Buffer<u32> = Buffer::zeros(pool, 1000, stream).unwrap();
    second.as_view_mut().copy_from_view(&values.as_view()).unwrap();
    drop(values);
    let sent = second.slice_mut(..3).unwrap().copy_from_async(vec![40, 50, 60]).unwrap().wait().unwrap();
    seen.extend(sent);
    seen.extend(second.slice(..4).unwrap().copy_to_async(vec![0; 4]).unwrap().wait().unwrap());
    seen.extend(second.to_vec().unwrap());
    let mut wide: Buffer<u64> = Buffer::from_slice(pool, &[1, 2, 3, 4], stream).unwrap();
    wide.slice_mut(1..3).unwrap().fill(0x0102_0304_0506_0708).unwrap();
    wide.resize(pool, 6).unwrap();
    stream.synchronize().unwrap();
    let wide = wide.to_vec().unwrap();
    drop(second);
    let stats = pool.stats();
    (seen, wide, [stats.blocks.current, stats.blocks.total, stats.requested.total])
}

/// A program over any context: data streamed through a ring, a batch of small copies, and buffers that a manager places. Returns what it has
/// seen.
fn staged(context: &Context) -> (Vec<u8>, Vec<u32>, Vec<MemoryKind>) {
    let manager = MemoryManager::new(std::slice::from_ref(context), ManagerOptions::default()).unwrap();
    let stream = manager.streams().next().unwrap();
    let mut staging = Staging::with_chunks(context, CHUNK, 2).unwrap();
    let (data, mut result) = (data(5, 77), Vec::new());
    let request = manager.request();
    let ring = request.clone().memory(MemoryKind::Device);
    for _ in 0..2 {
        result.clear();
        let done = staging.read_write(&*data, &mut result, &ring, stream, |chunk, _| add_one(chunk)).unwrap();
        assert_eq!((done.bytes, done.copies), (data.len() as u64, 6));
    }
    let folder = Folder::new("staged");
    let mut file = folder.file("file", &data);
    staging.update_file(&file, 10..CHUNK as u64 + 10, &ring, stream, |mut chunk, _| chunk.fill(7)).unwrap();
    file.rewind().unwrap();
    file.read_to_end(&mut result).unwrap();
    let mut buffers: Vec<Buffer<u32>> =
        (0..3).map(|_| manager.allocate(100, None, Access::Random).unwrap()).collect();
    let mut batch = staging.batch(stream);
    for (value, buffer) in (7..).zip(&mut buffers) {
        batch.upload(buffer.as_view_mut(), &[value; 100]).unwrap();
    }
    assert_eq!(batch.finish().unwrap().copies, 3);
    let mut values = vec![0; 100];
    let mut batch = staging.batch(stream);
    batch.download(buffers[1].as_view(), &mut values).unwrap();
    batch.finish().unwrap();
    let moved = buffers.pop().unwrap().migrate(&request.memory(MemoryKind::Pinned), stream).unwrap();
    values.extend(moved.to_vec().unwrap());
    let kinds = buffers.iter().chain([&moved]).map(Buffer::kind).collect();
    assert_eq!(manager.stats().blocks.current, 3);
    assert_eq!(manager.recommendations(), []);
    drop((buffers, moved));
    assert!(manager.cleanup() > 0);
    (result, values, kinds)
}

fn on_the_host() -> (Vec<u32>, Vec<u64>, [u64; 3]) {
    let pool = Pool::new(HostMemory::new(64 << 20), PoolOptions::new()).unwrap();
    program(&pool, &Stream::host())
}

/// One program runs on a device, on the host beside it, and on a machine without a driver, and gives the same.
#[test]
fn a_program_runs_with_and_without_a_driver() {
    if is_child() {
        // The parent compares.
        println!("[{:?}]", on_the_host());
        staged(&Context::host());
        return;
    }
    let gpu = Gpu::new();
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let expected = program(&pool, &gpu.stream);
    assert_eq!(expected.0[..9], [0, 0, 7, 7, 7, 7, 40, 50, 60]);
    assert_eq!(expected.1[..4], [1, 0x0102_0304_0506_0708, 0x0102_0304_0506_0708, 4]);
    let staged_there = staged(&gpu.context);
    assert_eq!(staged_there.2, [MemoryKind::Device, MemoryKind::Device, MemoryKind::Pinned]);
    let before = (!on_system()).then(|| gpu.control().calls(""));
    assert_eq!(on_the_host(), expected);
    let staged_here = staged(&Context::host());
    assert_eq!((&staged_here.0, &staged_here.1), (&staged_there.0, &staged_there.1));
    assert_eq!(staged_here.2, [MemoryKind::Host; 3]);
    if let Some(before) = before {
        assert_eq!(gpu.control().calls(""), before, "the driver was called for the host's stream");
    }
    drop(pool);
    gpu.finish();
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", "available::a_program_runs_with_and_without_a_driver", "--nocapture"])
        .env(CHILD, "yes");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(&format!("[{expected:?}]")), "{text}");
}

/// What is of a device keeps its order beside the host's stream, and is refused on it.
#[test]
fn the_hosts_stream_and_a_device_are_in_order() {
    let gpu = Gpu::new();
    let (host, again) = (Stream::host(), Stream::host());
    assert_eq!((host.id(), host.capture(), host.is_capturing()), (again.id(), Ok(None), Ok(false)));
    assert_ne!(host.id(), gpu.stream.id());
    let pool = Pool::new(HostMemory::new(8 << 20), PoolOptions::new()).unwrap();
    let device = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let mut near: Buffer<u16> = Buffer::from_slice(&pool, &[1, 2, 3], &host).unwrap();
    let mut far: Buffer<u16> = Buffer::zeros(&device, 3, &gpu.stream).unwrap();
    far.as_view_mut().copy_from_view(&near.as_view()).unwrap();
    far.slice_mut(1..2).unwrap().fill(9).unwrap();
    near.as_view_mut().copy_from_view(&far.as_view()).unwrap();
    assert_eq!(near.as_slice().unwrap(), [1, 9, 3]);
    // Events of both, waited for by both.
    let (of_host, of_device) = (host.record().unwrap(), gpu.stream.record().unwrap());
    assert_eq!((gpu.stream.wait(&of_host), host.wait(&of_device)), (Ok(()), Ok(())));
    assert_eq!((of_host.is_done(), of_host.synchronize(), of_device.is_done()), (Ok(true), Ok(()), Ok(true)));
    // The host's stream does no work of a device, nor does a ring on the host, and pools of its memory refuse it.
    let source = Arc::new(DeviceMemory::new(&gpu.context));
    let other = |error| matches!(error, Error::Pool(PoolError::OtherDevice));
    assert!(Buffer::<u16>::zeros(&device, 3, &host).is_err_and(other));
    let refused =
        |error: Error| matches!(error, Error::Call(error) if error.kind == SourceErrorKind::Unsupported);
    // SAFETY: the values are never read.
    let mut lost = unsafe { Buffer::<u16>::uninit(&source, 3, &host) }.unwrap();
    assert!(refused(lost.slice_mut(..).unwrap().fill(1).unwrap_err()));
    assert!(refused(lost.copy_from(&[1, 2, 3]).unwrap_err()));
    assert!(refused(lost.as_view_mut().copy_from_view(&far.as_view()).unwrap_err()));
    let context = host.context();
    let mut ring = Staging::with_chunks(context, CHUNK, 2).unwrap();
    assert!(refused(ring.read(&[1, 2][..], &device, &gpu.stream, |_, _| Ok(())).unwrap_err()));
    let mut ring = Staging::with_chunks(&gpu.context, CHUNK, 2).unwrap();
    let of_host = ring.read(&[1, 2][..], &pool, &host, |_, _| Ok(()));
    assert!(matches!(of_host, Err(Error::Unreachable)), "{of_host:?}");
    drop(ring);
    assert_eq!((context.synchronize(), Stream::new(context).unwrap().id()), (Ok(()), host.id()));
    assert!(context.capacity().is_err() && context.to_cudarc().is_err());
    // SAFETY: it is refused.
    assert_eq!(unsafe { context.reset() }.unwrap_err().kind, SourceErrorKind::Unsupported);
    drop((near, far, lost, source, of_host, of_device, pool, device));
    gpu.finish();
}
