//! Wishes: preferences for the memory type of a pool.

#![forbid(unsafe_code)]

use ash::vk;
use ash::vk::{BufferUsageFlags, MemoryPropertyFlags};

/// A wish for the memory type of a pool. Among the memory types with all required properties, the pool uses the one with the most
/// preferred and the fewest avoided properties; among equals, the first, since Vulkan lists faster types first.
///
/// ```
/// use allotment::vulkan::{Wish, ash::vk::MemoryPropertyFlags};
///
/// // Device memory that the CPU can write, if there is any, else host memory.
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
    pub(super) dedicated_from: u64,
}

/// Properties that a type must not have unless they are required, because they limit its uses.
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
            dedicated_from: u64::MAX,
        }
    }

    /// Wishes for the device's own memory, if possible of a type that the CPU cannot access: memory that it can access is scarce on many
    /// devices.
    pub fn device() -> Self {
        Self::of(MemoryPropertyFlags::DEVICE_LOCAL).avoid(MemoryPropertyFlags::HOST_VISIBLE)
    }

    /// Wishes for memory that the CPU writes and the device reads once: host memory that the CPU does not cache.
    pub fn upload() -> Self {
        Self::of(MemoryPropertyFlags::HOST_VISIBLE)
            .prefer(MemoryPropertyFlags::HOST_COHERENT)
            .avoid(MemoryPropertyFlags::DEVICE_LOCAL | MemoryPropertyFlags::HOST_CACHED)
    }

    /// Wishes for memory that the device writes and the CPU reads: host memory that the CPU caches.
    pub fn readback() -> Self {
        Self::of(MemoryPropertyFlags::HOST_VISIBLE)
            .prefer(MemoryPropertyFlags::HOST_CACHED)
            .avoid(MemoryPropertyFlags::DEVICE_LOCAL)
    }

    /// Wishes for memory that exists only while a tile is drawn, for transient attachments. Many devices have no such memory.
    pub fn lazily_allocated() -> Self {
        Self::of(MemoryPropertyFlags::LAZILY_ALLOCATED)
    }

    /// Adds required properties.
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

    /// Allows only the memory types with these bits, as in the `memory_type_bits` of a resource.
    pub fn types(mut self, bits: u32) -> Self {
        self.types &= bits;
        self
    }

    /// Adds allowed usages of the buffer over each segment ([`Place::buffer`](super::Place::buffer)). Transfers are always allowed.
    pub fn usage(mut self, flags: BufferUsageFlags) -> Self {
        self.usage |= flags;
        self
    }

    /// Makes the memory shareable with other processes as file descriptors.
    pub fn shareable(mut self) -> Self {
        self.shareable = true;
        self
    }

    /// Lets a pool reserve more than the budget of the heap (`VK_EXT_memory_budget`), so that the driver moves memory out. By default, a
    /// reservation beyond the budget fails with [`OutOfMemory`](crate::pool::SourceErrorKind::OutOfMemory), and the pool makes room by
    /// its own means.
    pub fn beyond_budget(mut self) -> Self {
        self.beyond_budget = true;
        self
    }

    /// Gives each resource of at least this many bytes a dedicated allocation, which some drivers place better, for example a large render
    /// target. By default, only the resources for which the driver prefers this have one.
    pub fn dedicated_from(mut self, bytes: u64) -> Self {
        self.dedicated_from = bytes;
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

    /// The choices for some drivers' types, in this order: device, upload, readback, upload over the bus, lazily allocated.
    #[test]
    fn the_types_of_known_devices_are_chosen_well() {
        // NVIDIA on Linux.
        let none = MemoryPropertyFlags::empty();
        let nvidia =
            [none, LOCAL, VISIBLE | COHERENT, VISIBLE | COHERENT | CACHED, LOCAL | VISIBLE | COHERENT];
        assert_eq!(chosen(&nvidia), [Some(1), Some(2), Some(3), Some(4), None]);
        // AMD with Mesa; the last types bypass caches, for debuggers.
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
        // A phone: one heap, a cached type that is not coherent, and a type for tile attachments.
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
