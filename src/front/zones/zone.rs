//! A zone: a heap, the capabilities of its memory, and the requests that it prefers.

use crate::error::{FreeError, OutOfMemory, misuse::invalid_free};
use crate::memory::{Memory, allocate, allocator, pass_on};
use crate::region::{Capabilities, Region};
use crate::units::align_up;
use core::alloc::Layout;
use core::ptr::NonNull;

/// A heap with the [`Capabilities`] of its memory, rules for the requests that it prefers, and a cache line size,
/// so that its blocks share no cache lines.
///
/// A zone is itself an allocator (`Box<T, &Zone>`, with `allocator-api2` or `nightly`), and it can be one of
/// several in [`Zones`](super::Zones).
///
/// ```
/// use allotment::{Tlsf16, Heap, heap, region::Capabilities, zones::Zone};
///
/// static SRAM: Heap<Tlsf16> = heap!(16 * 1024);
/// static BUFFERS: Zone = Zone::new("sram", &SRAM, Capabilities::INTERNAL.union(Capabilities::DMA)).cache_line(32);
///
/// let frame = core::alloc::Layout::new::<[u8; 1500]>();
/// assert_eq!(BUFFERS.padding(frame), 4); // 1504 = 47 lines of 32 bytes
/// let block = BUFFERS.allocate(frame)?;
/// assert_eq!((block.addr().get() % 32, block.len()), (0, 1504));
/// unsafe { BUFFERS.deallocate(block.cast(), frame) }?;
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

impl<'h> Zone<'h> {
    /// Creates a zone of all of `memory`, for requests of any size and alignment, without padding.
    pub const fn new(
        name: &'static str,
        memory: &'h (dyn Memory + Sync),
        capabilities: Capabilities,
    ) -> Self {
        Self { name, memory, capabilities, smallest: 0, largest: usize::MAX, align: usize::MAX, line: 1 }
    }

    /// Makes the zone prefer requests of at most `bytes` bytes. Others reach it only through the fallback chain.
    pub const fn up_to(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Makes the zone prefer requests of more than `bytes` bytes. Others reach it only through the fallback chain.
    pub const fn above(mut self, bytes: usize) -> Self {
        self.smallest = bytes.saturating_add(1);
        self
    }

    /// Makes the zone prefer requests that are aligned to at most `align` bytes. Others reach it only through the
    /// fallback chain.
    pub const fn aligned_up_to(mut self, align: usize) -> Self {
        self.align = align;
        self
    }

    /// Aligns every block to cache lines of `bytes` bytes and pads it to whole lines, so that no two blocks share a line. A cache that
    /// writes back one block then cannot overwrite data that a DMA controller wrote to another.
    ///
    /// # Panics
    ///
    /// If `bytes` is not a power of two; in a `const`, this is a compiler error.
    pub const fn cache_line(mut self, bytes: usize) -> Self {
        assert!(bytes.is_power_of_two(), "a cache line has a power of two of bytes");
        self.line = bytes;
        self
    }

    /// Returns the name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the capabilities of the memory.
    pub const fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Returns the bytes of padding that a block for `layout` gets to fill its last cache line.
    pub fn padding(&self, layout: Layout) -> usize {
        self.padded(layout).map_or(0, |padded| padded.size() - layout.size())
    }

    /// Returns the layout with which the zone allocates and frees a block of the heap.
    fn padded(&self, layout: Layout) -> Option<Layout> {
        if self.line == 1 {
            return Some(layout);
        }
        let size = align_up(layout.size().max(1), self.line)?;
        Layout::from_size_align(size, layout.align().max(self.line)).ok()
    }

    /// Returns whether the memory has all capabilities in `wanted`. Device memory is only for requests that want it.
    pub fn serves(&self, wanted: Capabilities) -> bool {
        self.capabilities.contains(wanted)
            && (wanted.contains(Capabilities::DEVICE) || !self.capabilities.contains(Capabilities::DEVICE))
    }

    /// Returns whether the zone's rules match `layout`.
    pub fn prefers(&self, layout: Layout) -> bool {
        (self.smallest..=self.largest).contains(&layout.size()) && layout.align() <= self.align
    }

    /// Returns the size of the largest request that the zone's rules match, of those up to `size`; 0 if there is none.
    pub(super) fn largest_preferred(&self, size: usize) -> usize {
        if size < self.smallest { 0 } else { size.min(self.largest) }
    }

    /// Returns whether the core can read and write the memory.
    pub(super) fn is_accessible(&self) -> bool {
        !self.capabilities.contains(Capabilities::DEVICE)
    }

    /// Allocates a block for `layout`, padded to whole cache lines. The returned slice includes the padding.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] of the heap.
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, OutOfMemory> {
        self.allocate_by(layout, |padded| self.memory.try_allocate(padded))
    }

    /// Allocates a block like [`Zone::allocate`], with all bytes zero, including the padding.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] of the heap, and for device memory, which the core cannot write.
    pub fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, OutOfMemory> {
        self.allocate_by(layout, |padded| match self.is_accessible() {
            true => self.memory.try_allocate_zeroed(padded),
            false => Err(self.out_of_memory(layout)),
        })
    }

    fn allocate_by(
        &self,
        layout: Layout,
        allocate: impl FnOnce(Layout) -> Result<NonNull<u8>, OutOfMemory>,
    ) -> Result<NonNull<[u8]>, OutOfMemory> {
        // A layout that padding makes too large for the address space is too large for any heap.
        let padded = self.padded(layout).ok_or_else(|| self.out_of_memory(layout))?;
        let start = allocate(padded)?;
        Ok(NonNull::slice_from_raw_parts(start, padded.size()))
    }

    /// Frees a block of this zone, after the O(1) check of [`Heap::try_deallocate`](crate::Heap::try_deallocate).
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check fails. Nothing is changed then.
    ///
    /// # Safety
    ///
    /// If the check passes, `block` must be a live block that was allocated with `layout` from this zone, and it
    /// must not be used afterwards.
    pub unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let padded = self.padded(layout).ok_or(FreeError::NotABlock)?;
        // SAFETY: the caller's contract; the block was allocated with the padded layout.
        unsafe { self.memory.try_deallocate(block, padded) }
    }

    /// Returns region number `n` of the heap, from 0.
    pub fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n)
    }

    /// Returns whether `address` lies in one of the zone's regions. O(regions).
    pub fn holds(&self, address: NonNull<u8>) -> bool {
        let regions = (0..).map_while(|n| self.memory.region(n));
        let offset = |region: &Region| address.addr().get().wrapping_sub(region.start.addr().get());
        { regions }.any(|region| offset(&region) < region.size)
    }
}

// SAFETY: the heap fulfils the contract, for at least the requested size and alignment.
unsafe impl Memory for Zone<'_> {
    // Fails for device memory, because collections cannot use it.
    allocate!(self.memory; |self, layout, request| {
        if self.is_accessible() { request(self.padded(layout)?) } else { None }
    });

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // If padding makes the layout too large for the address space, no block has it.
        let Some(padded) = self.padded(layout) else {
            return invalid_free(FreeError::NotABlock, block.addr().get());
        };
        // SAFETY: the caller's contract; the block was allocated with the padded layout.
        unsafe { self.memory.deallocate(block, padded) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let new = Layout::from_size_align(size, layout.align()).ok().and_then(|new| self.padded(new));
        let (Some(old), Some(new)) = (self.padded(layout), new) else { return false };
        // SAFETY: the caller's contract; the block was allocated with the padded layout.
        old == new || unsafe { self.memory.try_resize(block, old, new.size()) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, self.padded(layout).ok_or(FreeError::NotABlock)?)
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract; the block was allocated with the padded layout.
        unsafe { self.memory.check_owned(block, self.padded(layout).ok_or(FreeError::NotABlock)?) }
    }

    fn largest_free(&self) -> usize {
        // Count whole lines. The largest free block need not be aligned to them, so this is an upper bound.
        self.memory.largest_free() & !(self.line - 1)
    }

    pass_on!(|self| self.memory; statistics, region, out_of_memory, remembers, locks);
}

allocator!([] Zone<'_>);
