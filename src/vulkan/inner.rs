//! The internals of a Vulkan device: handles, functions and limits.

use super::error::{Error, Named, failed};
use crate::lock::Mutex;
use crate::pool::SourceError;
use ash::vk;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The handles of a device. Dropping this destroys them if the library made them.
pub(super) struct Inner {
    /// Keeps the loader's library loaded.
    _entry: ash::Entry,
    pub instance: ash::Instance,
    pub physical: vk::PhysicalDevice,
    pub device: ash::Device,
    /// The functions that share memory as file descriptors, if they are enabled.
    #[cfg_attr(not(unix), allow(dead_code, reason = "memory is shared as file descriptors on Unix only"))]
    pub descriptors: Option<ash::khr::external_memory_fd::Device>,
    /// Whether the driver reports the budgets of its heaps.
    has_budget: bool,
    pub limits: vk::PhysicalDeviceLimits,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub name: String,
    /// The queue families that the program uses.
    pub families: Vec<u32>,
    /// A lock for each queue, by family and index: the host may not use a queue from two threads at once.
    queues: Mutex<BTreeMap<(u32, u32), Queue>>,
    /// Bytes in allocations, by heap.
    taken: [AtomicU64; vk::MAX_MEMORY_HEAPS],
    /// Number of existing memory allocations, and the most that may exist.
    allocations: AtomicU32,
    pub most_allocations: AtomicU32,
    /// Whether buffers may have device addresses, as far as the library knows.
    pub has_addresses: bool,
    is_ours: bool,
}

/// The parts of a device: the loader, the instance, and the device.
pub(super) type Handles = (ash::Entry, ash::Instance, vk::PhysicalDevice, ash::Device);

/// A queue under its lock.
pub(super) type Queue = Arc<Mutex<vk::Queue>>;

/// A counted memory allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocated {
    pub memory: vk::DeviceMemory,
    pub bytes: u64,
    heap: u32,
}

/// Returns the bytes that a process may still allocate from a heap of `total` bytes: the budget minus the usage, if the driver reports
/// both, else the bytes that the library has not allocated.
fn left(total: u64, taken: u64, told: Option<(u64, u64)>) -> u64 {
    let (budget, usage) = told.unwrap_or((total, taken));
    budget.saturating_sub(usage)
}

impl Inner {
    /// Wraps an existing device.
    ///
    /// # Safety
    ///
    /// The handles must belong to one device, which has the extensions in `extensions`, queues of `families` and the feature
    /// `timelineSemaphore`, and lives until this value is dropped; with `is_ours`, nothing else destroys it.
    pub(super) unsafe fn adopt(
        (entry, instance, physical, device): Handles,
        families: &[u32],
        extensions: &[&CStr],
        is_ours: bool,
    ) -> Self {
        let descriptors = extensions
            .contains(&ash::khr::external_memory_fd::NAME)
            .then(|| ash::khr::external_memory_fd::Device::new(&instance, &device));
        // SAFETY: the caller guarantees the handles.
        let (properties, memory) = unsafe {
            (
                instance.get_physical_device_properties(physical),
                instance.get_physical_device_memory_properties(physical),
            )
        };
        let name = properties.device_name_as_c_str().unwrap_or(c"device").to_string_lossy().into_owned();
        let most = AtomicU32::new(properties.limits.max_memory_allocation_count);
        Self {
            _entry: entry,
            instance,
            physical,
            device,
            descriptors,
            has_budget: extensions.contains(&ash::ext::memory_budget::NAME),
            limits: properties.limits,
            memory,
            name,
            families: families.to_vec(),
            queues: Mutex::default(),
            taken: [const { AtomicU64::new(0) }; vk::MAX_MEMORY_HEAPS],
            allocations: AtomicU32::new(0),
            most_allocations: most,
            has_addresses: true,
            is_ours,
        }
    }

    /// Makes device number `number` with a queue of each family, and with the supported ones of the extensions used here.
    pub(super) fn open(number: usize) -> Result<Self, Error> {
        // SAFETY: loading the loader's library has no other effect.
        let entry = unsafe { ash::Entry::load() }.map_err(|_| Error::NoLoader)?;
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        // Without it, loaders do not name drivers on top of another API, such as MoltenVK.
        let portable = ash::khr::portability_enumeration::NAME;
        // SAFETY: the loader was just loaded.
        let known = unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default();
        let is_known = known.iter().any(|known| known.extension_name_as_c_str() == Ok(portable));
        let (names, flags) = ([portable.as_ptr()], vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        let info = if is_known { info.enabled_extension_names(&names).flags(flags) } else { info };
        // SAFETY: the structures live until the call returns.
        let instance = match unsafe { entry.create_instance(&info, None) } {
            Ok(instance) => instance,
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return Err(Error::NoDriver),
            Err(code) => return Err(failed("vkCreateInstance", code).into()),
        };
        match Self::open_device(&instance, number) {
            Ok((physical, device, families, extensions, has_addresses)) => {
                // SAFETY: the device was just made, with these queues and extensions.
                let mut inner =
                    unsafe { Self::adopt((entry, instance, physical, device), &families, &extensions, true) };
                inner.has_addresses = has_addresses;
                Ok(inner)
            }
            Err(error) => {
                // SAFETY: nothing made from the instance is left.
                unsafe { instance.destroy_instance(None) };
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "the parts are taken apart at once")]
    fn open_device(
        instance: &ash::Instance,
        number: usize,
    ) -> Result<(vk::PhysicalDevice, ash::Device, Vec<u32>, Vec<&'static CStr>, bool), Error> {
        // SAFETY: the instance is live, as it is in all calls below.
        let all = unsafe { instance.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")?;
        let none = Error::NoDevice { number, count: all.len() };
        let physical = *all.get(number).ok_or(none)?;
        // SAFETY: the device belongs to this instance.
        if unsafe { instance.get_physical_device_properties(physical) }.api_version < vk::API_VERSION_1_2 {
            return Err(Error::Unsupported("Vulkan 1.2"));
        }
        let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
        let mut addresses = vk::PhysicalDeviceBufferDeviceAddressFeatures::default();
        let mut features =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut timelines).push_next(&mut addresses);
        // SAFETY: as above.
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        if timelines.timeline_semaphore == vk::FALSE {
            return Err(Error::Unsupported("timeline semaphores"));
        }
        let has_addresses = addresses.buffer_device_address == vk::TRUE;
        // SAFETY: as above.
        let has = unsafe { instance.enumerate_device_extension_properties(physical) }
            .named("vkEnumerateDeviceExtensionProperties")?;
        // The last is to be enabled where it exists.
        let wanted = [
            ash::ext::memory_budget::NAME,
            ash::khr::external_memory_fd::NAME,
            ash::khr::portability_subset::NAME,
        ];
        let is_there = |name: &CStr| has.iter().any(|known| known.extension_name_as_c_str() == Ok(name));
        let extensions: Vec<&CStr> = wanted.into_iter().filter(|name| is_there(name)).collect();
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: as above.
        let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
        let works = |family: &vk::QueueFamilyProperties| {
            let work = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER;
            family.queue_count > 0 && family.queue_flags.intersects(work)
        };
        let numbers = (0..).zip(&families).filter(|(_, family)| works(family)).map(|(index, _)| index);
        let families: Vec<u32> = numbers.collect();
        let queue = |&family: &u32| {
            vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])
        };
        let queues: Vec<_> = families.iter().map(queue).collect();
        let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
        let mut addresses =
            vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(has_addresses);
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut timelines)
            .push_next(&mut addresses);
        // SAFETY: the structures live until the call returns.
        let device = unsafe { instance.create_device(physical, &info, None) }.named("vkCreateDevice")?;
        Ok((physical, device, families, extensions, has_addresses))
    }

    /// Returns a queue, under the lock that all its streams share.
    pub(super) fn queue(&self, family: u32, index: u32) -> Queue {
        let mut queues = self.queues.lock();
        let queue = queues.entry((family, index)).or_insert_with(|| {
            // SAFETY: the callers guarantee that the device has the queue.
            Arc::new(Mutex::new(unsafe { self.device.get_device_queue(family, index) }))
        });
        queue.clone()
    }

    /// Returns the heap of a memory type.
    fn heap_of(&self, memory_type: u32) -> u32 {
        self.memory.memory_types[memory_type as usize].heap_index
    }

    /// Returns the size of a memory type's heap and its remaining bytes. This is a driver call.
    pub(super) fn capacity(&self, memory_type: u32) -> (u64, u64) {
        let heap = self.heap_of(memory_type) as usize;
        let total = self.memory.memory_heaps[heap].size;
        let told = self.has_budget.then(|| {
            let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
            let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
            // SAFETY: the device has the extension.
            unsafe { self.instance.get_physical_device_memory_properties2(self.physical, &mut memory) };
            (budget.heap_budget[heap], budget.heap_usage[heap])
        });
        (total, left(total, self.taken[heap].load(Ordering::Relaxed), told))
    }

    /// Allocates memory, if the device allows one more allocation.
    pub(super) fn allocate(&self, info: &vk::MemoryAllocateInfo<'_>) -> Result<Allocated, SourceError> {
        const CALL: &str = "vkAllocateMemory";
        let most = self.most_allocations.load(Ordering::Relaxed);
        let one_more = |count: u32| (count < most).then_some(count + 1);
        let counted = self.allocations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        counted.map_err(|_| failed(CALL, vk::Result::ERROR_TOO_MANY_OBJECTS))?;
        // SAFETY: the callers pass structures that fit each other, for a memory type of this device.
        let memory = unsafe { self.device.allocate_memory(info, None) }.named(CALL);
        if memory.is_err() {
            self.allocations.fetch_sub(1, Ordering::Relaxed);
        }
        let memory = memory?;
        let (heap, bytes) = (self.heap_of(info.memory_type_index), info.allocation_size);
        self.taken[heap as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(Allocated { memory, bytes, heap })
    }

    /// Frees memory that [`Inner::allocate`] returned.
    ///
    /// # Safety
    ///
    /// No work may use the memory.
    pub(super) unsafe fn free(&self, allocated: Allocated) {
        // SAFETY: the caller's contract.
        unsafe { self.device.free_memory(allocated.memory, None) };
        self.taken[allocated.heap as usize].fetch_sub(allocated.bytes, Ordering::Relaxed);
        self.allocations.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of existing memory allocations.
    pub(super) fn allocations(&self) -> u32 {
        self.allocations.load(Ordering::Relaxed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: this was the last value that refers to the device, and everything made from it is destroyed.
            unsafe {
                // Ignore an error: a lost device can be destroyed too.
                let _ = self.device.device_wait_idle();
                self.device.destroy_device(None);
                self.instance.destroy_instance(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::left;

    #[test]
    fn a_budget_comes_before_what_was_taken() {
        assert_eq!(left(100, 30, None), 70);
        assert_eq!(left(100, 130, None), 0);
        assert_eq!(left(100, 30, Some((80, 50))), 30);
        assert_eq!(left(100, 0, Some((80, 90))), 0, "others have more than their share");
    }
}
