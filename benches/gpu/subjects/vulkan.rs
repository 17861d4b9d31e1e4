//! Vulkan's allocators on a device whose driver calls are counted: our source, VMA and gpu-allocator; and VMA's virtual block,
//! which has no memory.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use allotment::vulkan::ash::{self, vk};
use allotment::vulkan::{self, Stream};
use anyhow::{Context as _, Result};
use gpu_allocator::vulkan::{AllocationCreateDesc, AllocationScheme, AllocatorCreateDesc};
use gpu_allocator::{AllocationError, MemoryLocation};
use vk_mem::Alloc as _;

use super::Allocator;

/// The alignment of all blocks in bytes: what our pools give.
const ALIGNMENT: u64 = 256;

/// A device of Vulkan.
pub struct Vulkan {
    /// The device.
    pub device: vulkan::Device,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
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
    fn begin(&self) -> u64 {
        let mut taken = taken();
        taken.most = taken.now;
        taken.now
    }

    fn requirements(&self, bytes: usize) -> vk::MemoryRequirements {
        // The memory type that our source takes.
        let types = 1 << vulkan::Wish::device().choose(self.device.memory()).unwrap_or(0);
        vk::MemoryRequirements { size: bytes as u64, alignment: ALIGNMENT, memory_type_bits: types }
    }
}

/// VMA's allocator.
pub struct Vma {
    before: u64,
    allocator: vk_mem::Allocator,
    needs: vk::MemoryRequirements,
}

impl Vma {
    /// Makes one with its defaults.
    pub fn new(vulkan: &Vulkan) -> Result<Self> {
        let before = vulkan.begin();
        let mut info =
            vk_mem::AllocatorCreateInfo::new(&vulkan.instance, vulkan.device.ash(), vulkan.physical);
        info.vulkan_api_version = vk::API_VERSION_1_2;
        // SAFETY: the handles live as long as the program.
        let allocator = unsafe { vk_mem::Allocator::new(info) }?;
        Ok(Self { needs: vulkan.requirements(1), before, allocator })
    }
}

/// Converts a lack of memory to `None`.
fn room<T>(outcome: Result<T, vk::Result>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Allocator for Vma {
    type Block = vk_mem::Allocation;
    type Stream = ();

    fn stream(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn allocate(&self, bytes: usize, (): &()) -> Result<Option<vk_mem::Allocation>> {
        let needs = vk::MemoryRequirements { size: bytes as u64, ..self.needs };
        // SAFETY: a type of the device's.
        room(unsafe { self.allocator.allocate_memory(&needs, &vk_mem::AllocationCreateInfo::default()) })
    }

    #[inline]
    fn free(&self, mut block: vk_mem::Allocation, (): &()) -> Result<()> {
        // SAFETY: `allocate` returned it, and nothing uses it.
        unsafe { self.allocator.free_memory(&mut block) };
        Ok(())
    }

    fn synchronize(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn reserved(&self) -> Result<Option<u64>> {
        Ok(Some(taken().most - self.before))
    }
}

/// VMA's virtual block. It has no lock, and only one thread may use it.
pub struct Virtual {
    block: UnsafeCell<(vk_mem::VirtualBlock, u64)>,
}

// SAFETY: `measures::subjects` gives it only to measures of one thread.
unsafe impl Sync for Virtual {}

impl Virtual {
    /// Makes one of `bytes` bytes.
    pub fn new(bytes: usize) -> Result<Self> {
        let info = vk_mem::VirtualBlockCreateInfo {
            size: bytes as u64,
            flags: vk_mem::VirtualBlockCreateFlags::empty(),
            allocation_callbacks: None,
        };
        Ok(Self { block: UnsafeCell::new((vk_mem::VirtualBlock::new(info)?, 0)) })
    }
}

impl Allocator for Virtual {
    type Block = vk_mem::VirtualAllocation;
    type Stream = ();

    fn stream(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn allocate(&self, bytes: usize, (): &()) -> Result<Option<vk_mem::VirtualAllocation>> {
        let info = vk_mem::VirtualAllocationCreateInfo {
            size: bytes as u64,
            alignment: ALIGNMENT,
            flags: vk_mem::VirtualAllocationCreateFlags::empty(),
            user_data: 0,
        };
        // SAFETY: one thread uses it, in one call at a time.
        let (block, end) = unsafe { &mut *self.block.get() };
        // SAFETY: the information is sound.
        let found = room(unsafe { block.allocate(info) })?;
        Ok(found.map(|(found, offset)| {
            *end = (*end).max(offset + bytes as u64);
            found
        }))
    }

    #[inline]
    fn free(&self, mut found: vk_mem::VirtualAllocation, (): &()) -> Result<()> {
        // SAFETY: one thread uses it, in one call at a time; `allocate` returned this allocation.
        unsafe { (*self.block.get()).0.free(&mut found) };
        Ok(())
    }

    fn synchronize(&self, (): &()) -> Result<()> {
        Ok(())
    }

    /// The end of the highest block: what must exist of the memory.
    fn reserved(&self) -> Result<Option<u64>> {
        // SAFETY: one thread uses it, in one call at a time.
        Ok(Some(unsafe { (*self.block.get()).1 }))
    }
}

/// gpu-allocator, in a mutex as its users have it.
pub struct GpuAllocator {
    before: u64,
    allocator: Mutex<gpu_allocator::vulkan::Allocator>,
    needs: vk::MemoryRequirements,
}

impl GpuAllocator {
    /// Makes one with its defaults.
    pub fn new(vulkan: &Vulkan) -> Result<Self> {
        let before = vulkan.begin();
        let allocator = gpu_allocator::vulkan::Allocator::new(&AllocatorCreateDesc {
            instance: vulkan.instance.clone(),
            device: vulkan.device.ash().clone(),
            physical_device: vulkan.physical,
            debug_settings: Default::default(),
            buffer_device_address: false,
            allocation_sizes: Default::default(),
        })?;
        Ok(Self { needs: vulkan.requirements(1), before, allocator: Mutex::new(allocator) })
    }
}

impl Allocator for GpuAllocator {
    type Block = gpu_allocator::vulkan::Allocation;
    type Stream = ();

    fn stream(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn allocate(&self, bytes: usize, (): &()) -> Result<Option<Self::Block>> {
        let wanted = AllocationCreateDesc {
            name: "",
            requirements: vk::MemoryRequirements { size: bytes as u64, ..self.needs },
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        match self.allocator.lock().unwrap_or_else(PoisonError::into_inner).allocate(&wanted) {
            Ok(block) => Ok(Some(block)),
            Err(AllocationError::OutOfMemory) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn free(&self, block: Self::Block, (): &()) -> Result<()> {
        Ok(self.allocator.lock().unwrap_or_else(PoisonError::into_inner).free(block)?)
    }

    fn synchronize(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn reserved(&self) -> Result<Option<u64>> {
        Ok(Some(taken().most - self.before))
    }
}

/// Makes a source of our pools, and what opens streams for it.
pub fn source(
    vulkan: &Vulkan,
) -> Result<(vulkan::DeviceMemory, impl Fn() -> Result<Stream> + Send + Sync + 'static)> {
    let device = vulkan.device.clone();
    let source = vulkan::DeviceMemory::new(&device, vulkan::Wish::device().beyond_budget())?;
    Ok((source, move || Ok(Stream::new(&device)?)))
}
