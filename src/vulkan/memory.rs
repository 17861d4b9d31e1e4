//! A source of pools in Vulkan memory.

use super::error::{Named, failed};
use super::{Device, Error, Stream, Wish, inner::Allocated};
use crate::lock::Mutex;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _, vacant};
use crate::region::Capabilities;
use crate::units::debug;
use ash::vk;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Granularity of segments in bytes: no device has larger atoms of non-coherent memory.
const GRANULARITY: usize = 64 << 10;
/// Alignment of segments in bytes. It costs only addresses, and no resource needs more.
const ALIGNMENT: usize = 1 << 20;

/// Memory of one memory type of a Vulkan device. Each segment is one Vulkan allocation, covered by one buffer, and permanently mapped if
/// the CPU can access it.
///
/// Vulkan memory has no addresses. The segments' addresses are numbers that this source assigns and that [`DeviceMemory::place`] converts
/// to an allocation and an offset. On 64-bit systems, the addresses of different sources differ.
pub struct DeviceMemory {
    device: Device,
    wish: Wish,
    index: u32,
    flags: vk::MemoryPropertyFlags,
    /// The range of the segments' addresses.
    span: Range<usize>,
    segments: Mutex<BTreeMap<usize, Reserved>>,
    /// Memory with one segment, through which the CPU reads this memory; made on first use.
    staging: Mutex<Option<Box<DeviceMemory>>>,
    name: String,
}

/// Length of the staging segment in bytes.
const STAGED: usize = 1 << 20;

/// The Vulkan handles of a segment.
#[derive(Clone, Copy)]
struct Reserved {
    bytes: usize,
    allocated: Allocated,
    /// Null if buffers cannot lie in this memory.
    buffer: vk::Buffer,
    mapped: Option<NonZeroUsize>,
}

/// The location of a block in terms of Vulkan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The allocation.
    pub memory: vk::DeviceMemory,
    /// Offset of the block in bytes, in the allocation and in the buffer.
    pub offset: u64,
    /// Size of the whole allocation in bytes.
    pub bytes: u64,
    /// The number of the memory type.
    pub memory_type: u32,
    /// The buffer over the whole allocation, with the usage of [`Wish::usage`]; null if no buffer can lie in this memory.
    pub buffer: vk::Buffer,
    /// The block's address for the CPU, with exposed provenance; `None` if the CPU cannot access it.
    pub mapped: Option<NonZeroUsize>,
    /// Whether the allocation is dedicated to one resource.
    pub dedicated: bool,
}

impl Place {
    /// Returns a placeholder without memory.
    pub(super) fn none(memory_type: u32) -> Self {
        let (memory, buffer) = (vk::DeviceMemory::null(), vk::Buffer::null());
        Self { memory, offset: 0, bytes: 0, memory_type, buffer, mapped: None, dedicated: false }
    }
}

impl DeviceMemory {
    /// Makes a source of the memory type that suits `wish` best.
    ///
    /// # Errors
    ///
    /// [`Error::NoMemoryType`] if none does, and [`Error::Unsupported`] if the wish asks for memory that can be shared or for device
    /// addresses, and the device has none.
    pub fn new(device: &Device, wish: Wish) -> Result<Self, Error> {
        let memory = device.memory();
        let index = wish.choose(memory).ok_or(Error::NoMemoryType)?;
        if wish.shareable && device.inner.descriptors.is_none() {
            return Err(Error::Unsupported("sharing memory as file descriptors"));
        }
        if wish.usage.contains(vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS) && !device.inner.has_addresses {
            return Err(Error::Unsupported("device addresses"));
        }
        let flags = memory.memory_types[index as usize].property_flags;
        static SOURCES: AtomicUsize = AtomicUsize::new(0);
        // Each source has 16 TiB of addresses.
        let span = if usize::BITS >= 64 { 1 << (usize::BITS - 20) } else { usize::MAX };
        let number = SOURCES.fetch_add(1, Ordering::Relaxed) % (1 << 18);
        let start = number.wrapping_mul(span);
        let span =
            if usize::BITS >= 64 { start + ALIGNMENT..start + span } else { ALIGNMENT..span - ALIGNMENT };
        let name = format!("{}, memory type {index}", device.name());
        let (segments, staging) = (Mutex::default(), Mutex::default());
        Ok(Self { device: device.clone(), wish, index, flags, span, segments, staging, name })
    }

    /// Returns the number of the memory type.
    pub fn memory_type(&self) -> u32 {
        self.index
    }

    /// Returns the properties of the memory type.
    pub fn flags(&self) -> vk::MemoryPropertyFlags {
        self.flags
    }

    /// Returns the place of the byte at an address; `None` if no segment contains it. The answer holds for as long as the block that
    /// contains the byte. O(log segments).
    pub fn place(&self, address: usize) -> Option<Place> {
        let segments = self.segments.lock();
        let (start, found) = segments.range(..=address).next_back()?;
        let offset = address - start;
        (offset < found.bytes).then(|| Place {
            memory: found.allocated.memory,
            offset: offset as u64,
            bytes: found.bytes as u64,
            memory_type: self.index,
            buffer: found.buffer,
            mapped: found.mapped.and_then(|first| first.checked_add(offset)),
            dedicated: false,
        })
    }

    pub(super) fn device_of(&self) -> &Device {
        &self.device
    }

    pub(super) const fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Returns the unit in bytes to which blocks must be aligned and rounded up, so that flushing and invalidating the CPU's view of one
    /// block does not affect its neighbours.
    pub(super) fn atom(&self) -> u64 {
        atom(self.flags, self.device.inner.limits.non_coherent_atom_size)
    }

    /// Allocates memory of this type.
    pub(super) fn allocate(
        &self,
        bytes: u64,
        dedicated: Option<vk::MemoryDedicatedAllocateInfo<'_>>,
    ) -> Result<Allocated, SourceError> {
        let inner = &self.device.inner;
        if !self.wish.beyond_budget && bytes > inner.capacity(self.index).1 {
            return Err(SourceError::new(SourceErrorKind::OutOfMemory, "memory budget"));
        }
        let mut info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(self.index);
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(EXPORTED);
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut dedicated = dedicated;
        if self.wish.shareable {
            info = info.push_next(&mut export);
        }
        if self.wish.usage.contains(vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS) {
            info = info.push_next(&mut flags);
        }
        if let Some(dedicated) = &mut dedicated {
            info = info.push_next(dedicated);
        }
        inner.allocate(&info)
    }

    /// Maps a whole allocation, if the CPU can access it.
    pub(super) fn map(&self, memory: vk::DeviceMemory) -> Result<Option<NonZeroUsize>, SourceError> {
        if !self.flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE) {
            return Ok(None);
        }
        let (device, flags) = (&self.device.inner.device, vk::MemoryMapFlags::empty());
        // SAFETY: the callers pass a new allocation.
        let mapped = unsafe { device.map_memory(memory, 0, vk::WHOLE_SIZE, flags) }.named("vkMapMemory")?;
        Ok(NonZeroUsize::new(mapped.expose_provenance()))
    }

    /// Makes the buffer over a segment; null if buffers of this usage cannot lie in this memory.
    fn cover(&self, bytes: usize, memory: vk::DeviceMemory) -> Result<vk::Buffer, SourceError> {
        let inner = &self.device.inner;
        let families = &inner.families;
        let mut info = vk::BufferCreateInfo::default().size(bytes as u64).usage(self.wish.usage);
        if families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(families);
        }
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(EXPORTED);
        if self.wish.shareable {
            info = info.push_next(&mut external);
        }
        // SAFETY: the structures live until the call returns, and the families belong to the device.
        let buffer = unsafe { inner.device.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        // SAFETY: the buffer is new.
        let needs = unsafe { inner.device.get_buffer_memory_requirements(buffer) };
        let fits = needs.memory_type_bits & (1 << self.index) != 0 && needs.size <= bytes as u64;
        let bound = if fits {
            // SAFETY: both are new, and the memory has a type that the buffer allows and is long enough.
            unsafe { inner.device.bind_buffer_memory(buffer, memory, 0) }.named("vkBindBufferMemory")
        } else {
            Ok(())
        };
        if fits && bound.is_ok() {
            return Ok(buffer);
        }
        // SAFETY: nothing uses the buffer.
        unsafe { inner.device.destroy_buffer(buffer, None) };
        bound.map(|()| vk::Buffer::null())
    }

    /// Maps a new allocation and covers it with a buffer.
    fn prepare(&self, bytes: usize, allocated: Allocated) -> Result<Reserved, SourceError> {
        let mapped = self.map(allocated.memory)?;
        let buffer = self.cover(bytes, allocated.memory)?;
        Ok(Reserved { bytes, allocated, buffer, mapped })
    }

    /// Returns the lowest free addresses for a segment.
    fn vacant(&self, segments: &BTreeMap<usize, Reserved>, bytes: usize) -> Option<usize> {
        let taken = segments.iter().map(|(&start, reserved)| (start, reserved.bytes));
        vacant(taken, self.span.clone(), ALIGNMENT, bytes)
    }
}

/// The handle type of shared memory.
pub(super) const EXPORTED: vk::ExternalMemoryHandleTypeFlags = vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD;

pub(super) fn atom(flags: vk::MemoryPropertyFlags, size: u64) -> u64 {
    let is_plain = !flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
        || flags.contains(vk::MemoryPropertyFlags::HOST_COHERENT);
    if is_plain { 1 } else { size.max(1) }
}

// SAFETY: each address belongs to at most one segment at a time, segments are aligned, and each has an allocation of at least its length.
unsafe impl Source for DeviceMemory {
    type Stream = Stream;
    const CPU_VISIBLE: bool = false;

    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        let has = |flags| self.flags.contains(flags);
        let mut can = Capabilities::DMA;
        can.set(Capabilities::DEVICE, has(vk::MemoryPropertyFlags::DEVICE_LOCAL));
        can.set(Capabilities::PINNED, has(vk::MemoryPropertyFlags::HOST_VISIBLE));
        can
    }

    fn granularity(&self) -> usize {
        GRANULARITY
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    /// Returns the size of the heap and its remaining budget. Without `VK_EXT_memory_budget`, the latter is the part that the library has
    /// not allocated on this device.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let (total, free) = self.device.inner.capacity(self.index);
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(Capacity { total: bytes(total), free: bytes(free) })
    }

    fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
        const CALL: &str = "vkAllocateMemory";
        if bytes == 0 || bytes % GRANULARITY != 0 || !self.device.is(stream.device()) {
            return Err(SourceError::new(SourceErrorKind::Invalid, CALL));
        }
        let allocated = self.allocate(bytes as u64, None)?;
        let free = |error| {
            // SAFETY: the allocation is new, and no work uses it.
            unsafe { self.device.inner.free(allocated) };
            error
        };
        let reserved = self.prepare(bytes, allocated).map_err(free)?;
        let mut segments = self.segments.lock();
        let vacant = self.vacant(&segments, bytes).and_then(NonZeroUsize::new);
        let Some(address) = vacant else {
            drop(segments);
            self.destroy(reserved);
            return Err(failed(CALL, vk::Result::ERROR_OUT_OF_DEVICE_MEMORY));
        };
        segments.insert(address.get(), reserved);
        Ok(Segment { address, bytes, zeroed: false })
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let reserved = self.segments.lock().remove(&segment.address.get());
        let invalid = SourceError::new(SourceErrorKind::Invalid, "vkFreeMemory");
        self.destroy(reserved.ok_or(invalid)?);
        Ok(())
    }

    /// Copies on the device, if the segments have buffers.
    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        const CALL: &str = "vkCmdCopyBuffer";
        let (from, to) = (self.covered(from, stream, CALL)?, self.covered(to, stream, CALL)?);
        // SAFETY: the caller's contract; the segments live until work on `stream` is done.
        unsafe { copy(&from, &to, bytes, stream) }
    }

    /// Fills whole words, and copies bytes from them to the range's edges, so that a range of less than 8 bytes may fail.
    unsafe fn fill(
        &self,
        address: usize,
        bytes: usize,
        value: u8,
        stream: &Stream,
    ) -> Result<(), SourceError> {
        const CALL: &str = "vkCmdFillBuffer";
        const WORD: u64 = 4;
        let Place { buffer, offset: start, .. } = self.covered(address, stream, CALL)?;
        let end = start + bytes as u64;
        let (first, last) = (start.next_multiple_of(WORD), end / WORD * WORD);
        if last <= first {
            return Err(SourceError::unsupported(CALL));
        }
        let edges: Vec<_> = [(start, first), (last, end)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(|(from, to)| vk::BufferCopy::default().src_offset(first).dst_offset(from).size(to - from))
            .collect();
        // SAFETY: the caller's contract; the buffer covers the segment, and allows transfers.
        let filled = unsafe {
            stream.run(|device, commands| {
                let word = u32::from_ne_bytes([value; 4]);
                device.cmd_fill_buffer(commands, buffer, first, last - first, word);
                if !edges.is_empty() {
                    let (stage, access) = (vk::PipelineStageFlags::TRANSFER, vk::AccessFlags::TRANSFER_READ);
                    after_transfer(device, commands, stage, access);
                    device.cmd_copy_buffer(commands, buffer, buffer, &edges);
                }
            })
        };
        filled.map(drop)
    }

    /// Copies piece by piece through memory that the CPU can read.
    unsafe fn read(&self, address: usize, into: &mut [u8], stream: &Stream) -> Result<(), SourceError> {
        const CALL: &str = "vkCmdCopyBuffer";
        let mut staging = self.staging.lock();
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => none.insert(self.staging(stream)?),
        };
        for (number, piece) in into.chunks_mut(STAGED).enumerate() {
            let from = self.covered(address + number * STAGED, stream, CALL)?;
            let to = staging.covered(staging.span.start, stream, CALL)?;
            // SAFETY: the caller's contract; only the holder of the lock uses the staging memory, which lives as long as this value.
            unsafe { copy(&from, &to, piece.len(), stream) }?;
            stream.synchronize()?;
            let mapped = to.mapped.ok_or(SourceError::unsupported(CALL))?;
            if staging.atom() > 1 {
                let range = vk::MappedMemoryRange::default().memory(to.memory).size(vk::WHOLE_SIZE);
                // SAFETY: the whole memory is mapped.
                unsafe { self.device.inner.device.invalidate_mapped_memory_ranges(&[range]) }
                    .named("vkInvalidateMappedMemoryRanges")?;
            }
            let bytes = ptr::with_exposed_provenance::<u8>(mapped.get());
            // SAFETY: the memory is mapped and as long as the segment, and its work is done.
            unsafe { ptr::copy_nonoverlapping(bytes, piece.as_mut_ptr(), piece.len()) };
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Some(staging) = self.staging.get_mut().take() else { return };
        for &reserved in staging.segments.lock().values() {
            // Each read waited for its work.
            staging.destroy(reserved);
        }
    }
}

/// Makes later commands wait for the transfers before this.
fn after_transfer(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    stage: vk::PipelineStageFlags,
    access: vk::AccessFlags,
) {
    let written =
        vk::MemoryBarrier::default().src_access_mask(vk::AccessFlags::TRANSFER_WRITE).dst_access_mask(access);
    let (transfer, none) = (vk::PipelineStageFlags::TRANSFER, vk::DependencyFlags::empty());
    // SAFETY: the command buffer is recording, and a barrier uses no memory.
    unsafe { device.cmd_pipeline_barrier(commands, transfer, stage, none, &[written], &[], &[]) };
}

/// Copies from one place to another in the order of `stream`; the CPU may read the result once the copy is done.
///
/// # Safety
///
/// The places must have this length, be live until the copy is done, and lie in buffers that allow transfers, and nothing else may use
/// them at that point in the order.
unsafe fn copy(from: &Place, to: &Place, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
    let region = vk::BufferCopy::default().src_offset(from.offset).dst_offset(to.offset).size(bytes as u64);
    // SAFETY: the caller's contract.
    let copied = unsafe {
        stream.run(|device, commands| {
            device.cmd_copy_buffer(commands, from.buffer, to.buffer, &[region]);
            if to.mapped.is_some() {
                after_transfer(device, commands, vk::PipelineStageFlags::HOST, vk::AccessFlags::HOST_READ);
            }
        })
    };
    copied.map(drop)
}

impl DeviceMemory {
    /// Makes staging memory with one segment, at the start of its span.
    fn staging(&self, stream: &Stream) -> Result<Box<Self>, SourceError> {
        let staging = Self::new(&self.device, Wish::readback().beyond_budget());
        let staging = staging.map_err(|_| SourceError::unsupported("staging"))?;
        staging.reserve(STAGED, stream)?;
        Ok(Box::new(staging))
    }

    /// Returns the place of an address in a segment with a buffer, for work on `stream`.
    fn covered(&self, address: usize, stream: &Stream, call: &'static str) -> Result<Place, SourceError> {
        let invalid = SourceError::new(SourceErrorKind::Invalid, call);
        let place = self.place(address).filter(|_| self.device.is(stream.device())).ok_or(invalid)?;
        if place.buffer == vk::Buffer::null() { Err(SourceError::unsupported(call)) } else { Ok(place) }
    }

    /// Releases a segment that no work uses.
    fn destroy(&self, reserved: Reserved) {
        // SAFETY: only the caller uses the segment; a mapping ends with its memory, and destroying a null buffer does nothing.
        unsafe {
            self.device.inner.device.destroy_buffer(reserved.buffer, None);
            self.device.inner.free(reserved.allocated);
        }
    }
}

debug!([] DeviceMemory, |self| name: self.name, flags: self.flags, segments: self.segments.lock().len());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_that_is_not_coherent_has_atoms() {
        let visible = vk::MemoryPropertyFlags::HOST_VISIBLE;
        assert_eq!(atom(visible, 64), 64);
        assert_eq!(atom(visible | vk::MemoryPropertyFlags::HOST_COHERENT, 64), 1);
        assert_eq!(atom(vk::MemoryPropertyFlags::DEVICE_LOCAL, 256), 1);
        assert_eq!(atom(visible, 0), 1);
    }
}
