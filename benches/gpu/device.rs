//! The device to measure on: one of the installed driver, one of the stand-in driver, or none.

use std::ffi::c_int;
use std::fs;

use allotment::gpu::Context;
use allotment::gpu::cudarc::driver::sys;
use allotment::pool::Capacity;
use allotment_stand_in::{Exclusive, StandIn};
use anyhow::{Context as _, Result, anyhow};

/// The device to measure on.
pub enum Device {
    /// No device and no driver.
    Simulated,
    /// A device of a driver.
    Driver(Gpu),
    /// A device of Vulkan.
    #[cfg(feature = "vulkan")]
    Vulkan(crate::vulkan::Vulkan),
}

/// A device of a driver.
pub struct Gpu {
    /// Its context, which is current.
    pub context: Context,
    /// The pool of `cuMemAllocAsync`; `None` if the device has none.
    pub default_pool: Option<sys::CUmemoryPool>,
    /// The stand-in driver, if it is used.
    pub stand_in: Option<Exclusive>,
}

// SAFETY: the driver allows any pool to be used from any thread, and the pointer is a handle that only the driver
// reads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a device of the system's driver, or the first one of the stand-in.
    pub fn open(ordinal: usize, is_stand_in: bool) -> Result<Self> {
        let stand_in =
            if is_stand_in { Some(StandIn::exclusive().map_err(|error| anyhow!("{error}"))?) } else { None };
        let context = Context::new(ordinal).context("--sim measures the CPU's side without a device")?;
        let mut default_pool = None;
        if context.device().memory_pools {
            let (mut device, mut pool) = (0, std::ptr::null_mut());
            // SAFETY: the outputs have the types that the functions write; the device exists, since it has a
            // context.
            unsafe {
                sys::cuDeviceGet(&mut device, c_int::try_from(ordinal)?).result()?;
                sys::cuDeviceGetDefaultMemPool(&mut pool, device).result()?;
            }
            default_pool = Some(pool);
        }
        Ok(Self { context, default_pool, stand_in })
    }

    /// Returns the device's memory.
    pub fn capacity(&self) -> Result<Capacity> {
        Ok(self.context.capacity()?)
    }

    /// Returns the name, and the versions of the driver and of CUDA.
    pub fn describe(&self) -> Result<Vec<String>> {
        let device = self.context.device();
        let mut version = 0;
        // SAFETY: the output has the type that the function writes.
        unsafe { sys::cuDriverGetVersion(&mut version).result()? };
        // The version that `nvidia-smi` shows.
        let driver = match &self.stand_in {
            Some(_) => {
                "the stand-in, over this machine's memory: only our pools are measured, not a device".into()
            }
            None => fs::read_to_string("/sys/module/nvidia/version")
                .map_or("of unknown version".to_owned(), |text| text.trim().to_owned()),
        };
        let (major, minor) = device.capability;
        let built = sys::CUDA_VERSION;
        Ok(vec![
            format!(
                "device: {}, {} MiB, compute capability {major}.{minor}",
                device.name,
                device.memory >> 20
            ),
            format!("driver: {driver}"),
            format!("CUDA: {}, built for {}", number(version as u32), number(built)),
        ])
    }
}

/// Formats 12080 as 12.8.
fn number(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!([11040, 12080, 13000].map(super::number), ["11.4", "12.8", "13.0"]);
    }
}
