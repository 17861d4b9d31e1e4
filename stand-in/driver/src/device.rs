//! Devices: how many there are, how large they are, and what they can do.

use crate::abi::{Code, In, Ordinal, Out, Outcome};
use crate::call::exports;
use std::ffi::CStr;

/// The CUDA version that the driver reports: 12.8.
const VERSION: i32 = 12080;

exports! {
    fn cuInit(driver, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if driver.devices.is_empty() {
            return Err(Code::NO_DEVICE);
        }
        driver.initialized = true;
        Ok(())
    }

    fn cuDriverGetVersion(_driver, version: Out<i32>) {
        version.set(VERSION)
    }

    fn cuGetErrorName(_driver, code: Code, text: Out<*const u8>) {
        let texts = code.texts().ok_or(Code::INVALID_VALUE)?;
        text.set(texts.0.as_ptr())
    }

    fn cuGetErrorString(_driver, code: Code, text: Out<*const u8>) {
        let texts = code.texts().ok_or(Code::INVALID_VALUE)?;
        text.set(texts.1.as_ptr())
    }

    fn cuDeviceGetCount(driver, count: Out<i32>) {
        count.set(driver.devices.len() as i32)
    }

    fn cuDeviceGet(driver, device: Out<Ordinal>, ordinal: i32) {
        driver.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(driver, name: Out<[u8; 0]>, bytes: i32, device: Ordinal) {
        driver.device(device)?;
        put_text(name, bytes, &format!("allotment stand-in {device}"))
    }

    fn cuDeviceGetUuid(driver, uuid: Out<[u8; 16]>, device: Ordinal) {
        driver.device(device)?;
        uuid.set(unique(device))
    }

    fn cuDeviceGetUuid_v2(driver, uuid: Out<[u8; 16]>, device: Ordinal) {
        driver.device(device)?;
        uuid.set(unique(device))
    }

    fn cuDeviceTotalMem_v2(driver, bytes: Out<usize>, device: Ordinal) {
        let total = driver.device(device)?.bytes;
        bytes.set(total as usize)
    }

    fn cuDeviceGetAttribute(driver, value: Out<i32>, attribute: u32, device: Ordinal) {
        let found = driver.device(device)?.attributes.get(&attribute).copied();
        value.set(found.unwrap_or(0))
    }

    fn cuDeviceGetPCIBusId(driver, name: Out<[u8; 0]>, bytes: i32, device: Ordinal) {
        driver.device(device)?;
        put_text(name, bytes, &format!("0000:{:02x}:00.0", device + 1))
    }

    fn cuDeviceCanAccessPeer(driver, can: Out<i32>, device: Ordinal, peer: Ordinal) {
        driver.device(device)?;
        driver.device(peer)?;
        can.set(i32::from(device != peer))
    }

    fn cuMemGetInfo_v2(driver, free: Out<usize>, total: Out<usize>) {
        let device = driver.current_device()?;
        let device = &driver.devices[device];
        free.set(device.free() as usize)?;
        total.set(device.bytes as usize)
    }

    /// Looks up a function by name. Finds none, since all functions are exported under their own names.
    fn cuGetProcAddress_v2(
        _driver,
        _symbol: In<u8>,
        address: Out<usize>,
        _version: i32,
        _flags: u64,
        status: Out<u32>,
    ) {
        status.set_if(1);
        address.set(0)?;
        Err(Code::NOT_FOUND)
    }
}

fn unique(device: Ordinal) -> [u8; 16] {
    let mut uuid = *b"allotment-stand\0";
    uuid[15] = device as u8;
    uuid
}

/// Writes text with a terminating zero, or fails if there is no room.
fn put_text(place: Out<[u8; 0]>, bytes: i32, text: &str) -> Outcome {
    let mut buffer = [0; 128];
    buffer[..text.len()].copy_from_slice(text.as_bytes());
    let text = CStr::from_bytes_until_nul(&buffer).map_err(|_| Code::INVALID_VALUE)?.to_bytes_with_nul();
    if usize::try_from(bytes).map_err(|_| Code::INVALID_VALUE)? < text.len() {
        return Err(Code::INVALID_VALUE);
    }
    place.cast::<u8>().set_all(text)
}
