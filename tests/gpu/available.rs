//! With a driver, without one, and with one that is broken.

use crate::support::{Gpu, on_system, stand_in};
use allotment::gpu::{Context, Device, Error, Stream, is_available};
use allotment::pool::SourceErrorKind;
use std::process::{self, Command};
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
