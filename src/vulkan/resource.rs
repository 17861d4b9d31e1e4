//! Buffers and images in a pool.

use super::timeline::{Point, add};
use super::{
    DeviceMemory, Error, Place, Stream, error::Named, graves::Dead, inner::Allocated, memory::EXPORTED,
};
use crate::lock::Mutex;
use crate::placement::SegmentPlacement;
use crate::pool::{Allocation, DefaultPlacement, RawPool, Stream as _};
use crate::units::debug;
use ash::vk;
use bytemuck::{NoUninit, Pod};
use core::ptr;
use std::sync::Arc;

/// A Vulkan buffer or image with its memory: a block of a pool, or a dedicated allocation if the driver prefers that.
///
/// Work on it runs in the order of the stream that it was made on; use on other streams needs [`Resource::used_on`]. Dropping it does not
/// block: it frees the memory at once, in the stream's order, and the handle is destroyed once the device is done with it.
pub struct Resource<H: Copy, P: SegmentPlacement = DefaultPlacement> {
    pub(super) raw: H,
    /// The handle to destroy; `None` once dropped.
    pub(super) dead: Option<Dead>,
    pub(super) owner: Option<Owner<P>>,
    pub(super) place: Place,
    pub(super) bytes: u64,
    /// The unit in bytes for flushing the CPU's view.
    pub(super) atom: u64,
    #[cfg_attr(not(unix), allow(dead_code, reason = "memory is shared as file descriptors on Unix only"))]
    pub(super) is_shareable: bool,
    pub(super) stream: Stream,
    pub(super) users: Mutex<Vec<Stream>>,
}

pub(super) enum Owner<P: SegmentPlacement> {
    Block(Arc<RawPool<P, DeviceMemory>>, Allocation),
    Own(Allocated),
}

/// The requirements of a resource on its memory.
struct Needs {
    bytes: u64,
    /// The size before rounding, which a dedicated allocation must have.
    exact: u64,
    align: u64,
    types: u32,
    /// Whether the driver prefers or requires a dedicated allocation.
    is_dedicated: bool,
}

impl Needs {
    fn of(needs: &vk::MemoryRequirements, dedicated: &vk::MemoryDedicatedRequirements<'_>) -> Self {
        Self {
            bytes: needs.size,
            exact: needs.size,
            align: needs.alignment,
            types: needs.memory_type_bits,
            is_dedicated: dedicated.prefers_dedicated_allocation == vk::TRUE
                || dedicated.requires_dedicated_allocation == vk::TRUE,
        }
    }

    /// Rounds up to whole units of `unit` bytes, so that resources do not share a unit.
    fn whole(self, unit: u64) -> Self {
        Self { bytes: self.bytes.next_multiple_of(unit), align: self.align.max(unit), ..self }
    }
}

/// Refuses a stream of another device, which could not use the resource, and on which it would be destroyed.
fn of_one_device(source: &DeviceMemory, stream: &Stream) -> Result<(), Error> {
    if source.device_of().is(stream.device()) { Ok(()) } else { Err(Error::OtherDevice) }
}

impl<P: SegmentPlacement> Resource<vk::Buffer, P> {
    /// Makes a buffer of `bytes` bytes in a pool.
    ///
    /// # Errors
    ///
    /// [`Error::OtherDevice`], [`Error::WrongMemoryType`], the errors of [`RawPool::allocate`] in [`Error::Pool`], or the error of the driver.
    pub fn buffer(
        pool: &Arc<RawPool<P, DeviceMemory>>,
        bytes: u64,
        usage: vk::BufferUsageFlags,
        stream: &Stream,
    ) -> Result<Self, Error> {
        let info = vk::BufferCreateInfo::default().size(bytes.max(1)).usage(usage);
        // SAFETY: the description is complete.
        unsafe { Self::buffer_from(pool, info, stream) }
    }

    /// Makes a buffer in a pool, as `info` describes it.
    ///
    /// # Errors
    ///
    /// The errors of [`Resource::buffer`], and [`Error::Unsupported`] for a buffer with a device address in a pool whose
    /// [`Wish::usage`](super::Wish::usage) lacks device addresses.
    ///
    /// # Safety
    ///
    /// The description must be valid for the device.
    pub unsafe fn buffer_from(
        pool: &Arc<RawPool<P, DeviceMemory>>,
        info: vk::BufferCreateInfo<'_>,
        stream: &Stream,
    ) -> Result<Self, Error> {
        let source = pool.source();
        of_one_device(source, stream)?;
        let device = &source.device_of().inner.device;
        let address = vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        if info.usage.contains(address) && !source.wish().usage.contains(address) {
            return Err(Error::Unsupported("device addresses in this pool; ask for them with `Wish::usage`"));
        }
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(EXPORTED);
        let info = if source.wish().shareable { info.push_next(&mut external) } else { info };
        // SAFETY: the caller's contract.
        let raw = unsafe { device.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        let mut dedicated = vk::MemoryDedicatedRequirements::default();
        let mut needs = vk::MemoryRequirements2::default().push_next(&mut dedicated);
        let asked = vk::BufferMemoryRequirementsInfo2::default().buffer(raw);
        // SAFETY: the buffer is new.
        unsafe { device.get_buffer_memory_requirements2(&asked, &mut needs) };
        let needs = needs.memory_requirements;
        let alone = vk::MemoryDedicatedAllocateInfo::default().buffer(raw);
        // SAFETY: the memory is of a type that the buffer allows, long enough and aligned.
        let bind = |place: &Place| unsafe { device.bind_buffer_memory(raw, place.memory, place.offset) };
        let needs = Needs::of(&needs, &dedicated);
        Self::make(pool, raw, Dead::Buffer(raw), needs, alone, stream, |place| {
            bind(place).named("vkBindBufferMemory")
        })
    }
}

impl<P: SegmentPlacement> Resource<vk::Image, P> {
    /// Makes an image in a pool, as `info` describes it. If linear and optimal resources must keep a distance (`bufferImageGranularity`),
    /// an optimal image occupies whole units of that distance, so that a pool can hold both.
    ///
    /// # Errors
    ///
    /// The errors of [`Resource::buffer`], and [`Error::Unsupported`] if the pool's memory is shareable.
    ///
    /// # Safety
    ///
    /// The description must be valid for the device.
    pub unsafe fn image(
        pool: &Arc<RawPool<P, DeviceMemory>>,
        info: vk::ImageCreateInfo<'_>,
        stream: &Stream,
    ) -> Result<Self, Error> {
        let source = pool.source();
        of_one_device(source, stream)?;
        if source.wish().shareable {
            return Err(Error::Unsupported("images in memory that is shared"));
        }
        let inner = &source.device_of().inner;
        let device = &inner.device;
        // SAFETY: the caller's contract.
        let raw = unsafe { device.create_image(&info, None) }.named("vkCreateImage")?;
        let mut dedicated = vk::MemoryDedicatedRequirements::default();
        let mut needs = vk::MemoryRequirements2::default().push_next(&mut dedicated);
        let asked = vk::ImageMemoryRequirementsInfo2::default().image(raw);
        // SAFETY: the image is new.
        unsafe { device.get_image_memory_requirements2(&asked, &mut needs) };
        let needs = needs.memory_requirements;
        let mut needs = Needs::of(&needs, &dedicated);
        if info.tiling != vk::ImageTiling::LINEAR {
            needs = needs.whole(inner.limits.buffer_image_granularity.max(1));
        }
        let alone = vk::MemoryDedicatedAllocateInfo::default().image(raw);
        // SAFETY: the memory is of a type that the image allows, long enough and aligned.
        let bind = |place: &Place| unsafe { device.bind_image_memory(raw, place.memory, place.offset) };
        Self::make(pool, raw, Dead::Image(raw), needs, alone, stream, |place| {
            bind(place).named("vkBindImageMemory")
        })
    }
}

impl<H: Copy, P: SegmentPlacement> Resource<H, P> {
    /// Finds memory for a new handle and binds it.
    fn make(
        pool: &Arc<RawPool<P, DeviceMemory>>,
        raw: H,
        dead: Dead,
        needs: Needs,
        alone: vk::MemoryDedicatedAllocateInfo<'_>,
        stream: &Stream,
        bind: impl FnOnce(&Place) -> Result<(), crate::pool::SourceError>,
    ) -> Result<Self, Error> {
        let source = pool.source();
        let mut resource = Self {
            raw,
            dead: Some(dead),
            owner: None,
            place: Place::none(source.memory_type()),
            bytes: needs.bytes,
            atom: source.atom(),
            is_shareable: source.wish().shareable,
            stream: stream.retain(),
            users: Mutex::default(),
        };
        // From here on, dropping the resource frees whatever exists.
        if needs.types & (1 << source.memory_type()) == 0 {
            return Err(Error::WrongMemoryType { index: source.memory_type(), allowed: needs.types });
        }
        let needs = needs.whole(resource.atom);
        if needs.is_dedicated || needs.exact >= source.wish().dedicated_from {
            resource.bytes = needs.exact;
            let own = source.allocate(needs.exact, Some(alone))?;
            resource.owner = Some(Owner::Own(own));
            let mapped = source.map(own.memory)?;
            let place = Place { memory: own.memory, bytes: own.bytes, mapped, ..resource.place };
            resource.place = Place { dedicated: true, ..place };
        } else {
            let length = usize::try_from(needs.bytes).unwrap_or(usize::MAX);
            let align = usize::try_from(needs.align).unwrap_or(usize::MAX);
            let block = pool.allocate_raw(length, align, stream)?;
            let place = source.place(block.address());
            resource.owner = Some(Owner::Block(pool.clone(), block));
            resource.place = place.ok_or(Error::OutOfRange)?;
        }
        bind(&resource.place)?;
        Ok(resource)
    }

    /// Returns the Vulkan handle, which is valid while this value lives, and for work submitted by then.
    pub fn raw(&self) -> H {
        self.raw
    }

    /// Returns the size of the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the place of the memory.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns whether the resource has an allocation of its own, not a block of the pool: a dedicated or an imported one.
    pub fn is_dedicated(&self) -> bool {
        matches!(self.owner, Some(Owner::Own(_)))
    }

    /// Notes that work on `stream` uses the resource; see [`RawPool::record_stream`]. The caller must still make `stream` wait for the
    /// work of the resource's own stream that it depends on.
    pub fn used_on(&self, stream: &Stream) {
        let mut users = self.users.lock();
        if stream.id() == self.stream.id() || users.iter().any(|user| user.id() == stream.id()) {
            return;
        }
        users.push(stream.retain());
        if let Some(Owner::Block(pool, block)) = &self.owner {
            let noted = pool.record_stream(block, stream);
            debug_assert!(noted.is_ok(), "the block is live and from its pool");
        }
    }

    /// Writes values into the memory with the CPU, from byte `offset` on, after all work that may use it.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if the range is not inside the resource or the CPU cannot access it, or the error of the driver.
    pub fn write<T: NoUninit>(&mut self, offset: u64, values: &[T]) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let target = self.mapped(offset, bytes.len())?;
        self.settle()?;
        // SAFETY: the range is mapped and belongs to this value, no work uses it, and no other reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
        let Some(range) = self.range(offset, bytes.len()) else { return Ok(()) };
        let device = &self.stream.device().inner.device;
        // SAFETY: the range is mapped, in whole atoms.
        Ok(unsafe { device.flush_mapped_memory_ranges(&[range]) }.named("vkFlushMappedMemoryRanges")?)
    }

    /// Reads values from the memory with the CPU, from byte `offset` on, after all work that may write it.
    ///
    /// # Errors
    ///
    /// The errors of [`Resource::write`].
    pub fn read<T: Pod>(&self, offset: u64, values: &mut [T]) -> Result<(), Error> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        let from = self.mapped(offset, bytes.len())?;
        self.settle()?;
        if let Some(range) = self.range(offset, bytes.len()) {
            let device = &self.stream.device().inner.device;
            // SAFETY: the range is mapped, in whole atoms.
            unsafe { device.invalidate_mapped_memory_ranges(&[range]) }
                .named("vkInvalidateMappedMemoryRanges")?;
        }
        // SAFETY: the range is mapped and belongs to this value, and no work writes it.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Blocks until all submitted work of the streams that use the resource is done.
    fn settle(&self) -> Result<(), Error> {
        let users = self.users.lock();
        users.iter().chain([&self.stream]).try_for_each(Stream::synchronize)?;
        Ok(())
    }

    /// Returns the CPU's address of a range of the resource.
    fn mapped(&self, offset: u64, bytes: usize) -> Result<*mut u8, Error> {
        let end = offset.checked_add(bytes as u64).filter(|&end| end <= self.bytes);
        match (self.place.mapped, end) {
            (Some(first), Some(_)) => Ok(ptr::with_exposed_provenance_mut(first.get() + offset as usize)),
            _ => Err(Error::OutOfRange),
        }
    }

    /// Returns the memory to flush or invalidate for a range; `None` if the memory is coherent.
    fn range(&self, offset: u64, bytes: usize) -> Option<vk::MappedMemoryRange<'_>> {
        let Place { memory, offset: start, bytes: whole, .. } = self.place;
        let (first, length) = atoms(start + offset, bytes as u64, self.atom, whole)?;
        Some(vk::MappedMemoryRange::default().memory(memory).offset(first).size(length))
    }
}

/// Returns the whole atoms around a range of an allocation of `whole` bytes, as offset and length; `None` if the memory has no atoms.
fn atoms(offset: u64, bytes: u64, atom: u64, whole: u64) -> Option<(u64, u64)> {
    if atom <= 1 || bytes == 0 {
        return None;
    }
    let first = offset / atom * atom;
    let end = (offset + bytes).next_multiple_of(atom).min(whole);
    Some((first, end - first))
}

impl<H: Copy, P: SegmentPlacement> Drop for Resource<H, P> {
    fn drop(&mut self) {
        let users = self.users.get_mut();
        let mut points: Vec<Point> = Vec::new();
        for stream in users.iter().chain([&self.stream]) {
            // A stream fails only if its device is lost, and then no work runs.
            if let Ok(event) = stream.record() {
                add(&mut points, event.0);
            }
        }
        let graves = &self.stream.device().graves;
        if let Some(dead) = self.dead.take() {
            graves.bury(points.clone(), dead);
        }
        match self.owner.take() {
            Some(Owner::Block(pool, block)) => {
                let freed = pool.deallocate(block);
                debug_assert!(freed.is_ok(), "{freed:?}");
            }
            Some(Owner::Own(own)) => graves.bury(points, Dead::Memory(own)),
            None => {}
        }
    }
}

debug!([H: Copy + core::fmt::Debug, P: SegmentPlacement] Resource<H, P>, |self| raw: self.raw, bytes: self.bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_whole_atoms() {
        assert_eq!(atoms(100, 8, 64, 4096), Some((64, 64)));
        assert_eq!(atoms(64, 64, 64, 4096), Some((64, 64)));
        assert_eq!(atoms(63, 2, 64, 4096), Some((0, 128)));
        assert_eq!(atoms(4090, 6, 64, 4096), Some((4032, 64)));
        assert_eq!(atoms(90, 6, 64, 96), Some((64, 32)), "up to the end of the allocation");
        assert_eq!((atoms(5, 0, 64, 4096), atoms(5, 9, 1, 4096)), (None, None));
    }

    #[test]
    fn neighbours_share_no_unit() {
        let needs = Needs { bytes: 100, exact: 100, align: 16, types: 1, is_dedicated: false }.whole(1024);
        assert_eq!((needs.bytes, needs.exact, needs.align), (1024, 100, 1024));
        let needs = Needs { bytes: 4096, align: 4096, ..needs }.whole(64);
        assert_eq!((needs.bytes, needs.align), (4096, 4096));
    }
}
