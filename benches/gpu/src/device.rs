//! What is measured on: a device of the driver that is there, of the stand-in driver, or none.

use std::ffi::c_int;
use std::fs;

use allotment::gpu::Context;
use allotment::gpu::cudarc::driver::sys;
use allotment::pool::Capacity;
use allotment_stand_in::{Exclusive, StandIn};
use anyhow::{Context as _, Result, anyhow};

/// What is measured on.
pub enum Device {
    /// No device and no driver.
    Simulated,
    /// One of a driver's.
    Driver(Gpu),
}

/// A device of a driver.
pub struct Gpu {
    /// Its context, which is current.
    pub context: Context,
    /// The pool that `cuMemAllocAsync` takes from; `None` where the device has none.
    pub default_pool: Option<sys::CUmemoryPool>,
    /// The stand-in driver, if it is that.
    pub stand_in: Option<Exclusive>,
}

// SAFETY: the driver lets any thread use any pool; the pointer is a handle that only the driver reads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// A device of the system's driver, or the first one of the stand-in's.
    pub fn open(ordinal: usize, is_stand_in: bool) -> Result<Self> {
        let stand_in =
            if is_stand_in { Some(StandIn::exclusive().map_err(|error| anyhow!("{error}"))?) } else { None };
        let context = Context::new(ordinal).context("--sim measures the CPU's side without a device")?;
        let mut default_pool = None;
        if context.device().memory_pools {
            let (mut device, mut pool) = (0, std::ptr::null_mut());
            // SAFETY: the places are of these types; the device exists, since it has a context.
            unsafe {
                sys::cuDeviceGet(&mut device, c_int::try_from(ordinal)?).result()?;
                sys::cuDeviceGetDefaultMemPool(&mut pool, device).result()?;
            }
            default_pool = Some(pool);
        }
        Ok(Self { context, default_pool, stand_in })
    }

    /// Its memory.
    pub fn capacity(&self) -> Result<Capacity> {
        Ok(self.context.capacity()?)
    }

    /// Its name, and the versions of driver and CUDA.
    pub fn describe(&self) -> Result<Vec<String>> {
        let device = self.context.device();
        let mut version = 0;
        // SAFETY: the place is one of this type.
        unsafe { sys::cuDriverGetVersion(&mut version).result()? };
        // What `nvidia-smi` calls the driver's version.
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

/// 12080 as 12.8.
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
