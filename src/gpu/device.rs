//! Which devices there are.

use super::error::{Error, call};
use super::library::is_available;
use crate::pool::SourceError;
use core::ffi::{CStr, c_int};
use cudarc::driver::sys::{CUdevice, CUdevice_attribute};
use std::string::String;
use std::vec::Vec;

/// A device, as it was described when it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Its number, from 0.
    pub ordinal: usize,
    /// What its maker calls it.
    pub name: String,
    /// Bytes of memory.
    pub memory: usize,
    /// Compute capability: major and minor.
    pub capability: (u32, u32),
    /// Allocation in the order of streams ([`AsyncMemory`](super::AsyncMemory)).
    pub memory_pools: bool,
    /// Reserving addresses and mapping memory at them ([`Virtual`](super::Virtual)).
    pub virtual_memory: bool,
    /// Memory that host and device may use at the same time ([`Managed`](super::Managed)).
    pub managed_memory: bool,
}

/// A value that the driver writes to its first argument.
pub(super) fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<c_int, SourceError> {
    let mut value = 0;
    // SAFETY: the place is one of this type, and the device is one of the driver's.
    unsafe { call!(cuDeviceGetAttribute(&mut value, which, device))? };
    Ok(value)
}

impl Device {
    /// How many there are.
    ///
    /// # Errors
    ///
    /// As [`is_available`].
    pub fn count() -> Result<usize, Error> {
        is_available()?;
        let mut count = 0;
        // SAFETY: the place is one of this type.
        unsafe { call!(cuDeviceGetCount(&mut count))? };
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// All of them.
    ///
    /// # Errors
    ///
    /// As [`is_available`].
    pub fn all() -> Result<Vec<Self>, Error> {
        (0..Self::count()?).map(Self::get).collect()
    }

    /// One of them.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], or as [`is_available`].
    pub fn get(ordinal: usize) -> Result<Self, Error> {
        use CUdevice_attribute as Attribute;
        let device = raw(ordinal)?;
        let mut name = [0u8; 128];
        // SAFETY: the place has as many bytes as is said, less the end of the text.
        unsafe { call!(cuDeviceGetName(name.as_mut_ptr().cast(), 127, device))? };
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
        let mut memory = 0;
        // SAFETY: the place is one of this type.
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
        })
    }
}

/// The driver's handle of a device.
pub(super) fn raw(ordinal: usize) -> Result<CUdevice, Error> {
    let count = Device::count()?;
    let number = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or(Error::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: the place is one of this type.
    unsafe { call!(cuDeviceGet(&mut device, number))? };
    Ok(device)
}
