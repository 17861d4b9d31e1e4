//! The devices of the machine.

use super::{Error, is_available, library::call};
use crate::pool::SourceError;
use core::ffi::{CStr, c_int};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};

/// The description of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// The device's number, from 0.
    pub ordinal: usize,
    /// The device's name from its maker.
    pub name: String,
    /// Size of the device's memory in bytes.
    pub memory: usize,
    /// The compute capability: major and minor.
    pub capability: (u32, u32),
    /// Whether the device allocates in stream order ([`AsyncMemory`](super::AsyncMemory)).
    pub memory_pools: bool,
    /// Whether the device can reserve addresses and map memory there ([`Virtual`](super::Virtual)).
    pub virtual_memory: bool,
    /// Whether host and device can use managed memory at the same time ([`Managed`](super::Managed)).
    pub managed_memory: bool,
    /// Whether the device shares the host's memory, so that kernels may use [`Pinned`](super::Pinned) memory in place and copies to the
    /// device gain nothing.
    pub integrated: bool,
}

/// Returns an attribute of a device.
pub(super) fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<c_int, SourceError> {
    let mut value = 0;
    // SAFETY: the output has the type that the function writes, and the device is one of the driver's.
    unsafe { call!(cuDeviceGetAttribute(&mut value, which, device))? };
    Ok(value)
}

impl Device {
    /// Returns the value that stands for the host, which is not a device of the driver.
    pub(super) fn host() -> Self {
        Self {
            ordinal: usize::MAX,
            name: String::from("host"),
            memory: 0,
            capability: (0, 0),
            memory_pools: false,
            virtual_memory: false,
            managed_memory: false,
            integrated: false,
        }
    }

    /// Returns the number of devices.
    ///
    /// # Errors
    ///
    /// The error of [`is_available`].
    pub fn count() -> Result<usize, Error> {
        is_available()?;
        let mut count = 0;
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuDeviceGetCount(&mut count))? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Returns the descriptions of all devices.
    ///
    /// # Errors
    ///
    /// The error of [`is_available`].
    pub fn all() -> Result<Vec<Self>, Error> {
        (0..Self::count()?).map(Self::get).collect()
    }

    /// Returns the description of one device.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if there is no device with this number, or the error of [`is_available`].
    pub fn get(ordinal: usize) -> Result<Self, Error> {
        use CUdevice_attribute as Attribute;
        let device = raw(ordinal)?;
        let mut name = [0u8; 128];
        // SAFETY: the output is one byte longer than the given length, for the final zero.
        unsafe { call!(cuDeviceGetName(name.as_mut_ptr().cast(), 127, device))? };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let mut memory = 0;
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuDeviceTotalMem_v2(&mut memory, device))? };
        let number = |which| attribute(device, which).map(|value| u32::try_from(value).unwrap_or(0));
        let has = |which| attribute(device, which).map(|value| value != 0);
        Ok(Self {
            ordinal,
            name,
            memory,
            capability: (
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            memory_pools: has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)?,
            virtual_memory: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?,
            managed_memory: has(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?,
            integrated: has(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)?,
        })
    }
}

/// Returns the driver's handle of a device.
pub(super) fn raw(ordinal: usize) -> Result<CUdevice, Error> {
    let count = Device::count()?;
    let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or(Error::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: the output has the type that the function writes.
    unsafe { call!(cuDeviceGet(&mut device, number))? };
    Ok(device)
}
