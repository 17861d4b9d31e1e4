//! A device of Vulkan as its driver knows it: handles, functions and limits.

use super::error::{Error, Named, failed};
use crate::pool::SourceError;
use ash::vk;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::string::String;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// The handles of a device, destroyed with this value where the library made them.
pub(super) struct Inner {
    /// Keeps the loader's library.
    _entry: ash::Entry,
    pub instance: ash::Instance,
    pub physical: vk::PhysicalDevice,
    pub device: ash::Device,
    /// The functions that share memory as file descriptors, if they are enabled.
    #[cfg_attr(not(unix), allow(dead_code, reason = "memory is shared as file descriptors on Unix only"))]
    pub descriptors: Option<ash::khr::external_memory_fd::Device>,
    /// Whether the driver tells the budgets of its heaps.
    has_budget: bool,
    pub limits: vk::PhysicalDeviceLimits,
    pub memory: vk::PhysicalDeviceMemoryProperties,
    pub name: String,
    /// The families of queues that the program uses.
    pub families: Vec<u32>,
    /// A lock for each queue, by family and index: the host may not use a queue from two threads at once.
    queues: Mutex<BTreeMap<(u32, u32), Arc<Mutex<vk::Queue>>>>,
    /// Allocations of memory that exist, and the most that may.
    allocations: AtomicU32,
    pub most_allocations: AtomicU32,
    is_ours: bool,
}

/// What Vulkan says of a heap, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heap {
    pub total: u64,
    /// What the process may still take of it; `None` if the driver does not tell.
    pub left: Option<u64>,
}

impl Inner {
    /// Takes over a device that exists.
    ///
    /// # Safety
    ///
    /// The handles must be those of one device, which has the extensions in `extensions`, queues of `families` and the feature
    /// `timelineSemaphore`, and lives until this value is dropped; with `is_ours` nothing else destroys it.
    pub(super) unsafe fn adopt(
        entry: ash::Entry,
        instance: ash::Instance,
        physical: vk::PhysicalDevice,
        device: ash::Device,
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
            allocations: AtomicU32::new(0),
            most_allocations: most,
            is_ours,
        }
    }

    /// Makes device number `number` with a queue of each family, and what extensions it has of those that are used here.
    pub(super) fn open(number: usize) -> Result<Self, Error> {
        // SAFETY: the loader's library has no other effect than to be loaded.
        let entry = unsafe { ash::Entry::load() }.map_err(|_| Error::NoLoader)?;
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        // SAFETY: the structures live until the call returns.
        let instance = match unsafe { entry.create_instance(&info, None) } {
            Ok(instance) => instance,
            Err(vk::Result::ERROR_INCOMPATIBLE_DRIVER) => return Err(Error::NoDriver),
            Err(code) => return Err(failed("vkCreateInstance", code).into()),
        };
        match Self::open_device(&instance, number) {
            Ok((physical, device, families, extensions)) => {
                // SAFETY: the device was made just now, with these queues and extensions.
                Ok(unsafe { Self::adopt(entry, instance, physical, device, &families, &extensions, true) })
            }
            Err(error) => {
                // SAFETY: nothing of the instance is left.
                unsafe { instance.destroy_instance(None) };
                Err(error)
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "the parts are taken apart at once")]
    fn open_device(
        instance: &ash::Instance,
        number: usize,
    ) -> Result<(vk::PhysicalDevice, ash::Device, Vec<u32>, Vec<&'static CStr>), Error> {
        // SAFETY: the instance is live, as it is in all calls below.
        let all = unsafe { instance.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")?;
        let none = Error::NoDevice { number, count: all.len() };
        let physical = *all.get(number).ok_or(none)?;
        // SAFETY: the device is one of this instance.
        if unsafe { instance.get_physical_device_properties(physical) }.api_version < vk::API_VERSION_1_2 {
            return Err(Error::Unsupported("Vulkan 1.2"));
        }
        let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timelines);
        // SAFETY: as above.
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        if timelines.timeline_semaphore == vk::FALSE {
            return Err(Error::Unsupported("timeline semaphores"));
        }
        // SAFETY: as above.
        let has = unsafe { instance.enumerate_device_extension_properties(physical) }
            .named("vkEnumerateDeviceExtensionProperties")?;
        let wanted = [ash::ext::memory_budget::NAME, ash::khr::external_memory_fd::NAME];
        let is_there =
            |name: &CStr| has.iter().any(|known| known.extension_name_as_c_str() == Ok(name));
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
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut timelines);
        // SAFETY: the structures live until the call returns.
        let device = unsafe { instance.create_device(physical, &info, None) }.named("vkCreateDevice")?;
        Ok((physical, device, families, extensions))
    }

    /// Returns a queue, under the lock that all its streams share.
    pub(super) fn queue(&self, family: u32, index: u32) -> Arc<Mutex<vk::Queue>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry((family, index)).or_insert_with(|| {
            // SAFETY: the callers guarantee that the device has the queue.
            Arc::new(Mutex::new(unsafe { self.device.get_device_queue(family, index) }))
        });
        queue.clone()
    }

    /// Returns the size of a heap and what is left of it. This is a driver call.
    pub(super) fn heap(&self, index: u32) -> Heap {
        let total = self.memory.memory_heaps[index as usize].size;
        if !self.has_budget {
            return Heap { total, left: None };
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the device has the extension.
        unsafe { self.instance.get_physical_device_memory_properties2(self.physical, &mut memory) };
        let (budget, usage) = (budget.heap_budget[index as usize], budget.heap_usage[index as usize]);
        Heap { total, left: Some(budget.saturating_sub(usage)) }
    }

    /// Allocates memory, as long as the device allows one more allocation.
    pub(super) fn allocate(&self, info: &vk::MemoryAllocateInfo<'_>) -> Result<vk::DeviceMemory, SourceError> {
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
        memory
    }

    /// Frees memory that [`Inner::allocate`] returned.
    ///
    /// # Safety
    ///
    /// No work may use it.
    pub(super) unsafe fn free(&self, memory: vk::DeviceMemory) {
        // SAFETY: the caller's contract.
        unsafe { self.device.free_memory(memory, None) };
        self.allocations.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of allocations of memory that exist.
    pub(super) fn allocations(&self) -> u32 {
        self.allocations.load(Ordering::Relaxed)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: this was the last value that refers to the device, and what was made of it is destroyed.
            unsafe {
                // A lost device can be destroyed as well.
                let _ = self.device.device_wait_idle();
                self.device.destroy_device(None);
                self.instance.destroy_instance(None);
            }
        }
    }
}
