//! Vulkan's allocators: our source, VMA and gpu-allocator; and VMA's virtual block, which has no memory.

use std::cell::UnsafeCell;
use std::sync::{Mutex, PoisonError};

use allotment::vulkan::ash::vk;
use allotment::vulkan::{self, Stream};
use anyhow::Result;
use gpu_allocator::vulkan::{AllocationCreateDesc, AllocationScheme, AllocatorCreateDesc};
use gpu_allocator::{AllocationError, MemoryLocation};
use vk_mem::Alloc as _;

use super::Allocator;
use crate::vulkan::{ALIGNMENT, Vulkan, most};

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
        Ok(Some(most() - self.before))
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
        Ok(Some(most() - self.before))
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
