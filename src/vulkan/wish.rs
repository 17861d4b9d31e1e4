//! Wishes: the memory types of a device that a pool may lie in.

#![forbid(unsafe_code)]

use ash::vk;
use ash::vk::{BufferUsageFlags, MemoryPropertyFlags};

/// A wish for the memory type of a pool. Among the memory types with all required properties, the one with the most preferred and the
/// fewest avoided properties is chosen; of equals the first, which Vulkan lists before slower ones.
///
/// ```
/// use allotment::vulkan::{Wish, ash::vk::MemoryPropertyFlags};
///
/// // Memory of the device that the CPU can write, where there is such memory, else memory of the host.
/// let wish = Wish::upload().prefer(MemoryPropertyFlags::DEVICE_LOCAL);
/// # let _ = wish;
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Wish {
    required: MemoryPropertyFlags,
    preferred: MemoryPropertyFlags,
    avoided: MemoryPropertyFlags,
    types: u32,
    pub(super) usage: BufferUsageFlags,
    pub(super) shareable: bool,
    pub(super) beyond_budget: bool,
}

/// Properties that a type must not have unless they are required: what it can be used for is limited.
const SPECIAL: MemoryPropertyFlags = MemoryPropertyFlags::from_raw(
    MemoryPropertyFlags::LAZILY_ALLOCATED.as_raw() | MemoryPropertyFlags::PROTECTED.as_raw(),
);

/// Properties that make memory slower.
const SLOW: MemoryPropertyFlags = MemoryPropertyFlags::from_raw(
    MemoryPropertyFlags::DEVICE_COHERENT_AMD.as_raw()
        | MemoryPropertyFlags::DEVICE_UNCACHED_AMD.as_raw()
        | MemoryPropertyFlags::RDMA_CAPABLE_NV.as_raw(),
);

impl Wish {
    const fn of(required: MemoryPropertyFlags) -> Self {
        Self {
            required,
            preferred: MemoryPropertyFlags::empty(),
            avoided: SLOW,
            types: u32::MAX,
            usage: BufferUsageFlags::from_raw(
                BufferUsageFlags::TRANSFER_SRC.as_raw() | BufferUsageFlags::TRANSFER_DST.as_raw(),
            ),
            shareable: false,
            beyond_budget: false,
        }
    }

    /// Wishes for the device's own memory, if possible a type that the CPU cannot reach: types that it can are scarce on many devices.
    pub fn device() -> Self {
        Self::of(MemoryPropertyFlags::DEVICE_LOCAL).avoid(MemoryPropertyFlags::HOST_VISIBLE)
    }

    /// Wishes for memory that the CPU writes and the device reads once: the host's, without a cache of the CPU.
    pub fn upload() -> Self {
        Self::of(MemoryPropertyFlags::HOST_VISIBLE)
            .prefer(MemoryPropertyFlags::HOST_COHERENT)
            .avoid(MemoryPropertyFlags::DEVICE_LOCAL | MemoryPropertyFlags::HOST_CACHED)
    }

    /// Wishes for memory that the device writes and the CPU reads: the host's, with a cache of the CPU.
    pub fn readback() -> Self {
        Self::of(MemoryPropertyFlags::HOST_VISIBLE)
            .prefer(MemoryPropertyFlags::HOST_CACHED)
            .avoid(MemoryPropertyFlags::DEVICE_LOCAL)
    }

    /// Wishes for memory that exists only while a tile is drawn, for transient attachments. Many devices have none.
    pub fn lazily_allocated() -> Self {
        Self::of(MemoryPropertyFlags::LAZILY_ALLOCATED)
    }

    /// Requires properties in addition.
    pub fn require(mut self, flags: MemoryPropertyFlags) -> Self {
        self.required |= flags;
        self.avoid_not(flags)
    }

    /// Prefers types with these properties.
    pub fn prefer(mut self, flags: MemoryPropertyFlags) -> Self {
        self.preferred |= flags;
        self.avoid_not(flags)
    }

    /// Prefers types without these properties.
    pub fn avoid(mut self, flags: MemoryPropertyFlags) -> Self {
        self.avoided |= flags;
        self.preferred &= !flags;
        self
    }

    fn avoid_not(mut self, flags: MemoryPropertyFlags) -> Self {
        self.avoided &= !flags;
        self
    }

    /// Allows only the memory types of these bits, as `memory_type_bits` of a resource names them.
    pub fn types(mut self, bits: u32) -> Self {
        self.types &= bits;
        self
    }

    /// Lets the buffer over each segment ([`Place::buffer`](super::Place::buffer)) be used like this as well. Transfers are always allowed.
    pub fn usage(mut self, flags: BufferUsageFlags) -> Self {
        self.usage |= flags;
        self
    }

    /// Lets the memory be shared with other processes as file descriptors.
    pub fn shareable(mut self) -> Self {
        self.shareable = true;
        self
    }

    /// Lets a pool reserve more than the budget of the heap (`VK_EXT_memory_budget`). By default it gets
    /// [`OutOfMemory`](crate::pool::SourceErrorKind::OutOfMemory) then, and makes room by its own means, where the driver would move memory out.
    pub fn beyond_budget(mut self) -> Self {
        self.beyond_budget = true;
        self
    }

    /// Returns the number of the memory type that suits the wish best; `None` if there is none. O(types).
    pub fn choose(&self, memory: &vk::PhysicalDeviceMemoryProperties) -> Option<u32> {
        let count = memory.memory_type_count.min(vk::MAX_MEMORY_TYPES as u32);
        let cost = |index: u32| {
            let flags = memory.memory_types[index as usize].property_flags;
            let missing = self.preferred & !flags;
            let unwanted = self.avoided & flags;
            missing.as_raw().count_ones() + unwanted.as_raw().count_ones()
        };
        let suits = |index: &u32| {
            let flags = memory.memory_types[*index as usize].property_flags;
            self.types & (1 << index) != 0
                && flags.contains(self.required)
                && !flags.intersects(SPECIAL & !self.required)
        };
        (0..count).filter(suits).min_by_key(|&index| cost(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: MemoryPropertyFlags = MemoryPropertyFlags::DEVICE_LOCAL;
    const VISIBLE: MemoryPropertyFlags = MemoryPropertyFlags::HOST_VISIBLE;
    const COHERENT: MemoryPropertyFlags = MemoryPropertyFlags::HOST_COHERENT;
    const CACHED: MemoryPropertyFlags = MemoryPropertyFlags::HOST_CACHED;
    const LAZY: MemoryPropertyFlags = MemoryPropertyFlags::LAZILY_ALLOCATED;

    fn device(types: &[MemoryPropertyFlags]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_type_count: types.len() as u32,
            ..Default::default()
        };
        for (slot, &property_flags) in memory.memory_types.iter_mut().zip(types) {
            *slot = vk::MemoryType { property_flags, heap_index: 0 };
        }
        memory
    }

    fn chosen(types: &[MemoryPropertyFlags]) -> [Option<u32>; 5] {
        let memory = device(types);
        let bar = Wish::upload().prefer(LOCAL);
        [Wish::device(), Wish::upload(), Wish::readback(), bar, Wish::lazily_allocated()]
            .map(|wish| wish.choose(&memory))
    }

    /// The types of some drivers, in their order: device, upload, readback, upload over the bus, lazily allocated.
    #[test]
    fn the_types_of_known_devices_are_chosen_well() {
        // NVIDIA on Linux.
        let none = MemoryPropertyFlags::empty();
        let nvidia =
            [none, LOCAL, VISIBLE | COHERENT, VISIBLE | COHERENT | CACHED, LOCAL | VISIBLE | COHERENT];
        assert_eq!(chosen(&nvidia), [Some(1), Some(2), Some(3), Some(4), None]);
        // AMD with Mesa, whose last types bypass caches for debuggers.
        let slow = MemoryPropertyFlags::DEVICE_COHERENT_AMD | MemoryPropertyFlags::DEVICE_UNCACHED_AMD;
        let amd = [
            LOCAL,
            VISIBLE | COHERENT,
            LOCAL | VISIBLE | COHERENT,
            VISIBLE | COHERENT | CACHED,
            LOCAL | slow,
            VISIBLE | COHERENT | slow,
        ];
        assert_eq!(chosen(&amd), [Some(0), Some(1), Some(3), Some(2), None]);
        // A phone: one heap, a cached type that is not coherent, and one for attachments of tiles.
        let phone = [LOCAL | VISIBLE | COHERENT, LOCAL | VISIBLE | CACHED, LOCAL | LAZY, LOCAL];
        assert_eq!(chosen(&phone), [Some(3), Some(0), Some(1), Some(0), Some(2)]);
        // lavapipe and integrated graphics.
        let one = [LOCAL | VISIBLE | COHERENT | CACHED];
        assert_eq!(chosen(&one), [Some(0), Some(0), Some(0), Some(0), None]);
    }

    #[test]
    fn what_is_required_is_never_left_out() {
        let memory = device(&[LOCAL, LOCAL | MemoryPropertyFlags::PROTECTED, VISIBLE]);
        assert_eq!(
            Wish::device().types(0b110).choose(&memory),
            None,
            "protected memory is not for everything"
        );
        let protected = Wish::device().require(MemoryPropertyFlags::PROTECTED);
        assert_eq!(protected.choose(&memory), Some(1));
        assert_eq!(Wish::device().require(VISIBLE).choose(&memory), None);
        assert_eq!(Wish::upload().types(0b011).choose(&memory), None);
    }
}
