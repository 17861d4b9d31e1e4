//! A suballocator of vulkano: a placement of allotment divides each of its regions. It runs without a device.

use allotment::Region;
use allotment::placement::{Block, SegmentPlacement};
use allotment::pool::DefaultPlacement;
use std::collections::BTreeMap;
use std::vec;
use vulkano::DeviceSize;
use vulkano::memory::DeviceAlignment;
use vulkano::memory::allocator::suballocator::{
    AllocationType, Region as Range, Suballocation, SuballocationNode, SuballocationType, Suballocator,
    SuballocatorError,
};
use vulkano::memory::allocator::{AllocationHandle, DeviceLayout};

/// Where regions begin for the placement, which knows no address 0. More aligned than any resource.
const BASE: usize = 1 << 40;

/// A region of vulkano, divided by `P`.
struct Divided<P: SegmentPlacement = DefaultPlacement> {
    placement: P,
    region: Range,
    /// Live blocks by offset.
    live: BTreeMap<DeviceSize, Live<P>>,
}

struct Live<P: SegmentPlacement> {
    block: Block<P::Token>,
    /// What was asked for, in granules.
    len: usize,
    align: usize,
    node: SuballocationNode,
}

// SAFETY: live blocks of a placement do not overlap, and have the size and the alignment that were asked for.
unsafe impl<P: SegmentPlacement> Suballocator for Divided<P> {
    type Suballocations<'a>
        = vec::IntoIter<SuballocationNode>
    where
        P: 'a;

    fn new(region: Range) -> Self {
        let mut placement = P::EMPTY;
        let memory = Region::from_address(BASE + region.offset() as usize, region.size() as usize);
        // SAFETY: the placement does not touch the memory, which is the region's.
        unsafe { placement.claim(memory) }.expect("the region is neither too short nor too long");
        Self { placement, region, live: BTreeMap::new() }
    }

    /// Allocates whole units of the granularity for buffers beside images, so that no two resources share one.
    fn allocate(
        &mut self,
        layout: DeviceLayout,
        allocation_type: AllocationType,
        granularity: DeviceAlignment,
    ) -> Result<Suballocation, SuballocatorError> {
        let unit = granularity.as_devicesize();
        let granules = |bytes: DeviceSize| (bytes as usize).div_ceil(P::GRANULE);
        let len = granules(layout.size().next_multiple_of(unit));
        let align = granules(layout.alignment().as_devicesize().max(unit));
        let block = self.placement.allocate(len, align).ok_or_else(|| {
            let is_there = self.free_size() >= layout.size();
            if is_there { SuballocatorError::FragmentedRegion } else { SuballocatorError::OutOfRegionMemory }
        })?;
        let offset = (self.placement.address(block.offset) - BASE) as DeviceSize;
        let size = (block.len * P::GRANULE) as DeviceSize;
        let node = SuballocationNode { offset, size, allocation_type: allocation_type.into() };
        self.live.insert(offset, Live { block, len, align, node });
        Ok(Suballocation { offset, size, allocation_type, handle: AllocationHandle::null() })
    }

    unsafe fn deallocate(&mut self, suballocation: Suballocation) {
        let live = self.live.remove(&suballocation.offset).expect("the suballocation is live");
        // SAFETY: the block is live, and the caller does not use it any more.
        unsafe { self.placement.deallocate(live.block, live.len, live.align) }.expect("the block is live");
    }

    fn reset(&mut self) {
        *self = Self::new(self.region);
    }

    fn free_size(&self) -> DeviceSize {
        self.region.size() - self.live.values().map(|live| live.node.size).sum::<DeviceSize>()
    }

    fn suballocations(&self) -> vec::IntoIter<SuballocationNode> {
        let mut nodes = Vec::new();
        let mut at = self.region.offset();
        let end = at + self.region.size();
        let last = SuballocationNode { offset: end, size: 0, allocation_type: SuballocationType::Free };
        for node in self.live.values().map(|live| live.node).chain([last]) {
            if at < node.offset {
                let free = SuballocationType::Free;
                nodes.push(SuballocationNode { offset: at, size: node.offset - at, allocation_type: free });
            }
            if node.size > 0 {
                nodes.push(node);
            }
            at = node.offset + node.size;
        }
        nodes.into_iter()
    }
}

fn main() {
    let mut divided =
        Divided::<DefaultPlacement>::new(Range::new(1 << 20, 64 << 20).expect("the region is short"));
    let aligned = |bytes: DeviceSize| DeviceAlignment::new(bytes).expect("it is a power of two");
    let mut live: Vec<Suballocation> = Vec::new();
    for step in 0..10_000_u64 {
        let random = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if live.len() < 100 || random % 2 == 0 {
            let layout = layout_of(random % 200_000 + 1, aligned(1 << (random % 13)));
            let Ok(new) = divided.allocate(layout, AllocationType::Linear, aligned(1024)) else { continue };
            assert!(
                new.size >= layout.size() && new.offset % layout.alignment().as_devicesize().max(1024) == 0
            );
            let apart =
                |old: &Suballocation| new.as_range().end <= old.offset || old.as_range().end <= new.offset;
            assert!(live.iter().all(apart), "{new:?} overlaps");
            live.push(new);
        } else {
            let old = live.swap_remove(random as usize % live.len());
            // SAFETY: it is live.
            unsafe { divided.deallocate(old) };
        }
        let covered: DeviceSize = divided.suballocations().map(|node| node.size).sum();
        assert_eq!(covered, 64 << 20);
    }
    println!("{} suballocations, {} bytes free", live.len(), divided.free_size());
}

fn layout_of(size: DeviceSize, alignment: DeviceAlignment) -> DeviceLayout {
    let size = size.try_into().expect("a size is not zero");
    DeviceLayout::new(size, alignment).expect("the size is short")
}
