//! A device of Vulkan whose driver calls are counted.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use allotment::vulkan;
use allotment::vulkan::ash::{self, vk};
use anyhow::{Context as _, Result};

/// The alignment of all blocks in bytes: what our pools give.
pub const ALIGNMENT: u64 = 256;

/// A device of Vulkan.
pub struct Vulkan {
    /// The device.
    pub device: vulkan::Device,
    /// Its instance.
    pub instance: ash::Instance,
    /// The device of that instance.
    pub physical: vk::PhysicalDevice,
}

/// The driver's allocations of memory.
#[derive(Default)]
struct Taken {
    sizes: HashMap<vk::DeviceMemory, u64>,
    now: u64,
    most: u64,
}

static TAKEN: OnceLock<Mutex<Taken>> = OnceLock::new();
static DRIVER: OnceLock<(vk::PFN_vkAllocateMemory, vk::PFN_vkFreeMemory)> = OnceLock::new();

/// Returns the most bytes that the driver has given at once since [`Vulkan::begin`].
pub fn most() -> u64 {
    taken().most
}

fn taken() -> MutexGuard<'static, Taken> {
    TAKEN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "system" fn allocate_counted(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    let Some((allocate, _)) = DRIVER.get() else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: the caller keeps to Vulkan's rules for this function.
    let result = unsafe { allocate(device, info, callbacks, memory) };
    if result == vk::Result::SUCCESS {
        // SAFETY: as above, and the call has succeeded.
        let (memory, bytes) = unsafe { (*memory, (*info).allocation_size) };
        let mut taken = taken();
        taken.sizes.insert(memory, bytes);
        taken.now += bytes;
        taken.most = taken.most.max(taken.now);
    }
    result
}

unsafe extern "system" fn free_counted(
    device: vk::Device,
    memory: vk::DeviceMemory,
    callbacks: *const vk::AllocationCallbacks<'_>,
) {
    let mut taken = taken();
    taken.now -= taken.sizes.remove(&memory).unwrap_or(0);
    if let Some((_, free)) = DRIVER.get() {
        // SAFETY: the caller keeps to Vulkan's rules for this function.
        unsafe { free(device, memory, callbacks) };
    }
}

impl Vulkan {
    /// Opens the first device, which lives as long as the program.
    pub fn open() -> Result<Self> {
        // SAFETY: the library is only loaded.
        let entry =
            unsafe { ash::Entry::load() }.context("there is no Vulkan; `cargo xtask vulkan` sets it up")?;
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        // SAFETY: the structures live until the call returns, here and below.
        let instance = unsafe { entry.create_instance(&info, None) }.context("there is no driver")?;
        // SAFETY: the instance is live, here and below.
        let all = unsafe { instance.enumerate_physical_devices() }?;
        let physical = *all.first().context("there is no device")?;
        let mut timelines = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut timelines);
        // SAFETY: as above.
        let raw = unsafe { instance.create_device(physical, &info, None) }?;
        DRIVER.get_or_init(|| (raw.fp_v1_0().allocate_memory, raw.fp_v1_0().free_memory));
        let counted = |name: &CStr| match name.to_bytes() {
            b"vkAllocateMemory" => allocate_counted as *const c_void,
            b"vkFreeMemory" => free_counted as *const c_void,
            // SAFETY: the device is live.
            _ => match unsafe { instance.get_device_proc_addr(raw.handle(), name.as_ptr()) } {
                Some(function) => function as *const c_void,
                None => std::ptr::null(),
            },
        };
        // SAFETY: the functions are those of the device, or call them.
        let raw = unsafe { ash::Device::load_with(counted, raw.handle()) };
        // SAFETY: the handles belong to each other, and are never destroyed.
        let device = unsafe { vulkan::Device::from_ash(entry, instance.clone(), physical, raw, &[0], &[]) };
        Ok(Self { device, instance, physical })
    }

    /// Describes the device, with the size of its first heap.
    pub fn describe(&self) -> Vec<String> {
        let heap = self.device.memory().memory_heaps[0].size >> 20;
        vec![format!("device: {}, through Vulkan, a heap of {heap} MiB", self.device.name())]
    }

    /// Begins to count for a new allocator. Returns the bytes that others have left behind: VMA keeps the memory of blocks that
    /// are live in its end.
    pub fn begin(&self) -> u64 {
        let mut taken = taken();
        taken.most = taken.now;
        taken.now
    }

    /// Describes a block of so many bytes.
    pub fn requirements(&self, bytes: usize) -> vk::MemoryRequirements {
        // The memory type that our source takes.
        let types = 1 << vulkan::Wish::device().choose(self.device.memory()).unwrap_or(0);
        vk::MemoryRequirements { size: bytes as u64, alignment: ALIGNMENT, memory_type_bits: types }
    }
}
