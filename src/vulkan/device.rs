//! A Vulkan device.

use super::{Error, graves::Graves, inner::Inner};
use crate::units::debug;
use ash::vk;
use core::ffi::CStr;
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// A Vulkan device with its queues. Clones refer to the same device.
#[derive(Clone)]
pub struct Device {
    pub(super) inner: Arc<Inner>,
    pub(super) graves: Arc<Graves>,
}

impl Device {
    /// Makes a device from the system's device number `number`, counted from 0, with a queue of each family, and with
    /// `VK_EXT_memory_budget`, `VK_KHR_external_memory_fd` and the feature `bufferDeviceAddress` if available. It is destroyed once its
    /// last clone and everything made from it are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::NoLoader`] without Vulkan's library, [`Error::NoDriver`] without a driver, [`Error::NoDevice`],
    /// [`Error::Unsupported`] below Vulkan 1.2 or without timeline semaphores, or the error of the driver.
    pub fn new(number: usize) -> Result<Self, Error> {
        Ok(Self::of(Inner::open(number)?))
    }

    /// Wraps a device that the program made and will destroy.
    ///
    /// # Safety
    ///
    /// The handles must belong to each other. The device must have been made with a queue of each family in `families`, with the feature
    /// `timelineSemaphore`, with `bufferDeviceAddress` if a buffer is to have an address, and with the extensions in `extensions`, and must
    /// live until everything made from this value is dropped. The program may use a queue of a [`Stream`](super::Stream) elsewhere only
    /// while no thread calls a method of the stream or of a pool that uses it.
    pub unsafe fn from_ash(
        entry: ash::Entry,
        instance: ash::Instance,
        physical: vk::PhysicalDevice,
        device: ash::Device,
        families: &[u32],
        extensions: &[&CStr],
    ) -> Self {
        // SAFETY: the caller's contract.
        Self::of(unsafe { Inner::adopt((entry, instance, physical, device), families, extensions, false) })
    }

    fn of(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        Self { graves: Arc::new(Graves::new(&inner)), inner }
    }

    /// Returns whether both are clones of one device.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the device for the program's own calls.
    pub fn ash(&self) -> &ash::Device {
        &self.inner.device
    }

    /// Returns the device's memory types and heaps.
    pub fn memory(&self) -> &vk::PhysicalDeviceMemoryProperties {
        &self.inner.memory
    }

    /// Returns the number of memory allocations of pools and resources on this device.
    pub fn allocations(&self) -> u32 {
        self.inner.allocations()
    }

    /// Limits pools and resources to `most` memory allocations; existing ones beyond that stay. The default is
    /// `maxMemoryAllocationCount`, a limit that all allocators of the program share.
    pub fn limit_allocations(&self, most: u32) {
        let most = most.min(self.inner.limits.max_memory_allocation_count);
        self.inner.most_allocations.store(most, Ordering::Relaxed);
    }
}

debug!([] Device, |self| name: self.inner.name);
