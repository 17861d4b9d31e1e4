//! One zone: a heap, what its memory can do, and which requests it prefers.

use crate::heap::OutOfMemory;
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::observe::Stats;
use crate::region::{Capabilities, Region};
use crate::units::align_up;
use core::alloc::Layout;
use core::ptr::NonNull;

/// A heap with the [`Capabilities`] of its memory, the requests that it is meant for, and the cache line that its
/// blocks keep to themselves.
///
/// It is an allocator of its own (`Box<T, &Zone>`, with `allocator-api2` or `nightly`), and one of several in
/// [`Zones`](super::Zones).
///
/// ```
/// use allotment::{CompactTlsf, Heap, heap, region::Capabilities, zones::Zone};
///
/// static SRAM: Heap<CompactTlsf> = heap!(16 * 1024);
/// static BUFFERS: Zone = Zone::new("sram", &SRAM, Capabilities::INTERNAL.union(Capabilities::DMA)).cache_line(32);
///
/// let frame = core::alloc::Layout::new::<[u8; 1500]>();
/// assert_eq!(BUFFERS.padding(frame), 4); // 1504 = 47 lines of 32 bytes
/// let block = BUFFERS.allocate(frame)?;
/// assert_eq!((block.start.addr().get() % 32, block.size, block.padding), (0, 1504, 4));
/// unsafe { BUFFERS.deallocate(block.start, frame) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Zone<'h> {
    name: &'static str,
    memory: &'h (dyn Memory + Sync),
    capabilities: Capabilities,
    smallest: usize,
    largest: usize,
    align: usize,
    line: usize,
}

/// A block from a zone; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneBlock {
    /// Its first byte, aligned as asked for and to the zone's cache line.
    pub start: NonNull<u8>,
    /// What can be used: the bytes asked for, and the padding.
    pub size: usize,
    /// Bytes behind those asked for that fill the last cache line.
    pub padding: usize,
}

#[cfg(feature = "defmt")]
impl defmt::Format for ZoneBlock {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        let Self { start, size, padding } = self;
        let start = start.as_ptr() as usize;
        defmt::write!(
            fmt,
            "ZoneBlock {{ start: {=usize:#x}, size: {=usize}, padding: {=usize} }}",
            start,
            size,
            padding
        );
    }
}

impl<'h> Zone<'h> {
    /// A zone of all of `memory`, for requests of any size and alignment, without padding.
    pub const fn new(
        name: &'static str,
        memory: &'h (dyn Memory + Sync),
        capabilities: Capabilities,
    ) -> Self {
        Self { name, memory, capabilities, smallest: 0, largest: usize::MAX, align: usize::MAX, line: 1 }
    }

    /// Prefers requests of at most `bytes`. Others come here by the fallback chain only.
    pub const fn up_to(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Prefers requests of more than `bytes`. Others come here by the fallback chain only.
    pub const fn above(mut self, bytes: usize) -> Self {
        self.smallest = bytes.saturating_add(1);
        self
    }

    /// Prefers requests that are aligned to at most `align` bytes. Others come here by the fallback chain
    /// only.
    pub const fn aligned_up_to(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Aligns every block to cache lines of `bytes` and fills its last one, so that no two blocks share a
    /// line: what a controller writes to one then cannot be undone by the cache writing back the other.
    ///
    /// # Panics
    ///
    /// Unless `bytes` is a power of two; in a `const`, when compiled.
    pub const fn cache_line(mut self, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a cache line has a power of two of bytes");
        self.line = bytes;
        self
    }

    /// What it is called.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What its memory can do.
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Bytes that are added to a block for `layout` to fill its last cache line.
    pub fn padding(&self, layout: Layout) -> usize {
        self.padded(layout).map_or(0, |padded| padded.size() - layout.size())
    }

    /// What is asked of the heap: the same when a block is allocated and when it is freed.
    fn padded(&self, layout: Layout) -> Option<Layout> {
        if self.line == 1 {
            return Some(layout);
        }
        let size = align_up(layout.size().max(1), self.line)?;
        Layout::from_size_align(size, layout.align().max(self.line)).ok()
    }

    /// Whether its memory has all that is `wanted`, and is no device's unless one is wanted.
    pub fn serves(&self, wanted: Capabilities) -> bool {
        self.capabilities.contains(wanted)
            && (wanted.contains(Capabilities::DEVICE) || !self.capabilities.contains(Capabilities::DEVICE))
    }

    /// Whether its rules are made for `layout`.
    pub fn prefers(&self, layout: Layout) -> bool {
        (self.smallest..=self.largest).contains(&layout.size()) && layout.align() <= self.align
    }

    /// Whether the core can read and write its memory.
    pub(super) fn is_accessible(&self) -> bool {
        !self.capabilities.contains(Capabilities::DEVICE)
    }

    /// Allocates a block for `layout`, padded to the cache line; the padding is reported.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], of the heap.
    pub fn allocate(&self, layout: Layout) -> Result<ZoneBlock, OutOfMemory> {
        self.allocate_by(layout, |padded| self.memory.try_allocate(padded))
    }

    /// As [`Zone::allocate`], with all bytes zero, those of the padding included.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], of the heap, and for memory of a device, which cannot be written.
    pub fn allocate_zeroed(&self, layout: Layout) -> Result<ZoneBlock, OutOfMemory> {
        self.allocate_by(layout, |padded| match self.is_accessible() {
            true => self.memory.try_allocate_zeroed(padded),
            false => Err(self.refusal(layout)),
        })
    }

    fn allocate_by(
        &self,
        layout: Layout,
        allocate: impl FnOnce(Layout) -> Result<NonNull<u8>, OutOfMemory>,
    ) -> Result<ZoneBlock, OutOfMemory> {
        // Where the padding makes it too large for an address space, it is too large for any heap.
        let Some(padded) = self.padded(layout) else { return Err(self.refusal(layout)) };
        let start = allocate(padded)?;
        Ok(ZoneBlock { start, size: padded.size(), padding: padded.size() - layout.size() })
    }

    /// What is said of a request that the heap is not even asked for.
    fn refusal(&self, layout: Layout) -> OutOfMemory {
        let largest_free = self.memory.largest_free();
        OutOfMemory { requested: layout.size(), align: layout.align(), free: largest_free, largest_free }
    }

    /// Frees a block of this zone, after the check in O(1) of [`Heap::try_deallocate`](crate::Heap::try_deallocate).
    ///
    /// # Errors
    ///
    /// [`FreeError`]; nothing is changed then.
    ///
    /// # Safety
    ///
    /// If the check passes, the block must be live, allocated with `layout` from this zone, and not be used
    /// any more.
    pub unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let padded = self.padded(layout).ok_or(FreeError::NotABlock)?;
        // SAFETY: passed on; the padded layout is that which the block was allocated with.
        unsafe { self.memory.try_deallocate(block, padded) }
    }

    /// Region number `n` of its heap.
    pub fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n)
    }

    /// Whether `address` lies in one of its regions. O(regions).
    pub fn holds(&self, address: NonNull<u8>) -> bool {
        let regions = (0..).map_while(|n| self.memory.region(n));
        let offset = |region: &Region| address.addr().get().wrapping_sub(region.start.addr().get());
        { regions }.any(|region| offset(&region) < region.size)
    }
}

// SAFETY: the heap's promises, for sizes and alignments that are no smaller than asked for.
unsafe impl Memory for Zone<'_> {
    /// Memory of a device is no memory for collections: every such request fails.
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        match self.is_accessible() {
            true => self.allocate(layout).map(|block| block.start),
            false => Err(self.refusal(layout)),
        }
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.allocate_zeroed(layout).map(|block| block.start)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { self.deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if let Some(padded) = self.padded(layout) {
            // SAFETY: passed on; the padded layout is that which the block was allocated with.
            unsafe { self.memory.deallocate(block, padded) }
        }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let new = Layout::from_size_align(size, layout.align()).ok().and_then(|new| self.padded(new));
        let (Some(old), Some(new)) = (self.padded(layout), new) else { return false };
        // SAFETY: passed on; the padded layout is that which the block was allocated with.
        old == new || unsafe { self.memory.try_resize(block, old, new.size()) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, self.padded(layout).ok_or(FreeError::NotABlock)?)
    }

    fn statistics(&self) -> Option<Stats> {
        self.memory.statistics()
    }

    fn largest_free(&self) -> usize {
        // Whole lines; the block of the largest size need not be aligned to them, so this is an upper bound.
        self.memory.largest_free() & !(self.line - 1)
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n)
    }
}
