//! Memory shared as file descriptors, with other processes or with other devices of this one.

use super::resource::{Owner, Resource};
use super::{
    Error, Place, Stream,
    error::Named,
    graves::Dead,
    memory::{EXPORTED, atom},
};
use crate::lock::Mutex;
use crate::placement::SegmentPlacement;
use crate::pool::Stream as _;
use ash::vk;
use core::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

impl<P: SegmentPlacement> Resource<vk::Buffer, P> {
    /// Returns a file descriptor of the allocation that contains the buffer, for [`Resource::import`] in another process or on another
    /// device. It covers the whole segment, so it gives access to other blocks too.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the pool's memory is not [`Wish::shareable`](super::Wish::shareable), or the error of the driver.
    pub fn export(&self) -> Result<OwnedFd, Error> {
        const SHARED: Error = Error::Unsupported("sharing this memory; ask for it with `Wish::shareable`");
        let functions = self.stream.device().inner.descriptors.as_ref().filter(|_| self.is_shareable);
        let info = vk::MemoryGetFdInfoKHR::default().memory(self.place().memory).handle_type(EXPORTED);
        // SAFETY: the memory was allocated for this kind of export.
        let raw = unsafe { functions.ok_or(SHARED)?.get_memory_fd(&info) }.named("vkGetMemoryFdKHR")?;
        // SAFETY: the descriptor is new and belongs to the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }
}

impl Resource<vk::Buffer> {
    /// Makes a buffer of `bytes` bytes in memory that another process or device exported, at the same place. The memory lives as long as
    /// either buffer.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device cannot share memory, [`Error::OutOfRange`] if `place` has too few bytes,
    /// [`Error::WrongMemoryType`], or the error of the driver.
    ///
    /// # Safety
    ///
    /// `descriptor` must be from [`Resource::export`] of a buffer at `place` with this size and usage, on the same device and driver. The
    /// caller must order the accesses through both.
    pub unsafe fn import(
        descriptor: OwnedFd,
        place: &Place,
        bytes: u64,
        usage: vk::BufferUsageFlags,
        stream: &Stream,
    ) -> Result<Self, Error> {
        let inner = &stream.device().inner;
        if inner.descriptors.is_none() {
            return Err(Error::Unsupported("sharing memory as file descriptors"));
        }
        const ADDRESS: vk::BufferUsageFlags = vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        if usage.contains(ADDRESS) && !inner.has_addresses {
            return Err(Error::Unsupported("device addresses"));
        }
        let types = inner.memory.memory_types_as_slice();
        let kind = types.get(place.memory_type as usize).ok_or(Error::NoMemoryType)?;
        let visible = kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE);
        let atom = atom(kind.property_flags, inner.limits.non_coherent_atom_size);
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(EXPORTED);
        let info = vk::BufferCreateInfo::default().size(bytes.max(1)).usage(usage).push_next(&mut external);
        // SAFETY: the description is complete.
        let raw = unsafe { inner.device.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        // SAFETY: nothing uses the buffer.
        let undo = || unsafe { inner.device.destroy_buffer(raw, None) };
        // SAFETY: the buffer is new.
        let needs = unsafe { inner.device.get_buffer_memory_requirements(raw) };
        let fits = place.offset.checked_add(needs.size).is_some_and(|end| end <= place.bytes);
        if !fits || place.offset % needs.alignment != 0 {
            undo();
            return Err(Error::OutOfRange);
        }
        if needs.memory_type_bits & (1 << place.memory_type) == 0 {
            undo();
            return Err(Error::WrongMemoryType { index: place.memory_type, allowed: needs.memory_type_bits });
        }
        let mut import =
            vk::ImportMemoryFdInfoKHR::default().handle_type(EXPORTED).fd(descriptor.as_raw_fd());
        let mut alone = vk::MemoryDedicatedAllocateInfo::default().buffer(raw);
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut info = vk::MemoryAllocateInfo::default()
            .allocation_size(place.bytes)
            .memory_type_index(place.memory_type)
            .push_next(&mut import);
        if place.dedicated {
            info = info.push_next(&mut alone);
        }
        if usage.contains(ADDRESS) {
            info = info.push_next(&mut flags);
        }
        let own = inner.allocate(&info).inspect_err(|_| undo())?;
        let memory = own.memory;
        // The memory now owns the descriptor.
        let _ = descriptor.into_raw_fd();
        let place = Place { memory, buffer: vk::Buffer::null(), mapped: None, ..*place };
        // From here on, dropping the resource releases both.
        let mut resource = Self {
            raw,
            dead: Some(Dead::Buffer(raw)),
            owner: Some(Owner::Own(own)),
            place,
            bytes: needs.size,
            atom,
            is_shareable: true,
            stream: stream.retain(),
            users: Mutex::default(),
        };
        // SAFETY: the memory has a type that the buffer allows and is long enough.
        unsafe { inner.device.bind_buffer_memory(raw, memory, place.offset) }.named("vkBindBufferMemory")?;
        if visible {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is new and has a type that the CPU can access.
            let mapped = unsafe { inner.device.map_memory(memory, 0, vk::WHOLE_SIZE, flags) };
            let first = mapped.named("vkMapMemory")?.expose_provenance() + place.offset as usize;
            resource.place.mapped = NonZeroUsize::new(first);
        }
        Ok(resource)
    }
}
