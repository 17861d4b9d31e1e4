//! A front that tags blocks, so that the processor checks every access (Arm's Memory Tagging Extension).
//!
//! ```text
//!  memory  block: 5 5 5 | end: 0 | freed: 9 9 (was 8) | end: 0 | block: 2 2 2 2 | end: 0 | never used: 0 0 0 ...
//! ```

use crate::error::{FreeError, misuse::report_refused};
use crate::memory::{Memory, allocate, allocator, global_alloc, pass_on};
use crate::region::Region;
use crate::units::debug;
use core::alloc::Layout;
use core::ops::{Deref, Range};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

/// Bytes that share a tag.
const GRANULE: usize = 16;

/// Bytes of the smallest page on any system.
const PAGE: usize = 4096;

/// Number of the lowest bit of an address's tag.
const SHIFT: u32 = 56;

/// Whether this program has begun to use tags, which the processor then supports.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Makes the processor check each access of this thread, and of the threads that it starts later. Returns whether it can.
#[cfg(not(miri))]
pub(super) fn begin() -> bool {
    const PR_SET_TAGGED_ADDR_CTRL: libc::c_int = 55;
    /// Tagged addresses in system calls, faults at once, and all tags but 0.
    const CHECKS: libc::c_ulong = 1 | 1 << 1 | 0xfffe << 3;
    // SAFETY: accesses through untagged addresses do not change. The kernel refuses options that it or the processor does not support.
    let begun = cfg!(target_arch = "aarch64")
        && unsafe { libc::prctl(PR_SET_TAGGED_ADDR_CTRL, CHECKS, 0_usize, 0_usize, 0_usize) } == 0;
    BEGUN.fetch_or(begun, Ordering::Relaxed);
    begun
}

/// Executes instructions of the extension. Only Linux on aarch64 gets here.
macro_rules! instructions {
    ($($text:literal),+; $($operands:tt)*) => {
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: the processor supports the instructions, since tags are in use. They access only the tags of memory that the caller
        // passes.
        unsafe {
            core::arch::asm!(".arch_extension memtag", $($text,)+ $($operands)*, options(nostack))
        }
    };
}

/// Returns the tag of an address.
fn tag(address: *mut u8) -> usize {
    (address.addr() as u64 >> SHIFT) as usize & 15
}

/// Returns the address with the tag `tag`.
fn tagged(address: *mut u8, tag: usize) -> *mut u8 {
    address.map_addr(|address| (address as u64 & !(15 << SHIFT) | (tag as u64) << SHIFT) as usize)
}

/// Returns the address with the tag of the memory there.
#[allow(unused_mut, reason = "elsewhere there are no tags")]
fn load(mut address: *mut u8) -> *mut u8 {
    instructions!("ldg {0}, [{0}]"; inout(reg) address);
    address
}

/// Returns the address with a random tag that is not in the set `excluded`.
#[allow(unused_mut, reason = "elsewhere there are no tags")]
fn choose(mut address: *mut u8, excluded: usize) -> *mut u8 {
    instructions!("irg {0}, {0}, {excluded}"; inout(reg) address, excluded = in(reg) excluded);
    let _ = excluded;
    address
}

/// Sets the tag of memory, one granule or more, to the tag of an address.
fn store(memory: Range<*mut u8>, tag: *mut u8) {
    instructions!("2:", "stg {tag}, [{at}], #16", "cmp {at}, {end}", "b.lo 2b";
        at = inout(reg) memory.start => _, end = in(reg) memory.end, tag = in(reg) tag);
    let _ = (memory, tag);
}

/// Returns the tag of freed memory whose block had the given tag. Both have 15 possible values.
fn after(tag: usize) -> usize {
    tag % 15 + 1
}

/// A reference to a memory that switches this thread's tag checks off while it exists.
struct Unchecked<'a, M> {
    memory: &'a M,
    /// The earlier setting, if tags are in use.
    before: Option<usize>,
}

impl<'a, M> Unchecked<'a, M> {
    #[allow(unused_mut, reason = "elsewhere there are no tags")]
    fn new(memory: &'a M) -> Self {
        let before = BEGUN.load(Ordering::Relaxed).then(|| {
            let mut before = 0_usize;
            instructions!("mrs {0}, tco", "msr tco, #1"; out(reg) before);
            before
        });
        Self { memory, before }
    }
}

impl<M> Drop for Unchecked<'_, M> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            instructions!("msr tco, {0}"; in(reg) before);
            let _ = before;
        }
    }
}

impl<M> Deref for Unchecked<'_, M> {
    type Target = M;

    fn deref(&self) -> &M {
        self.memory
    }
}

/// A front that makes the processor check every access to a block, if it supports memory tags: overflows and uses after free cause
/// faults, even on reads.
///
/// ```
/// use allotment::os::{MapError, Mapping, Tagged};
/// use allotment::{Heap, Memory, Tlsf, lock::Futex};
/// use core::alloc::Layout;
///
/// static HEAP: Tagged<Heap<Tlsf, Futex>> = Tagged::new(Heap::empty());
///
/// let region = match Mapping::new(8 << 20).tagged().map() {
///     // Neither kernel nor processor need to know tags: blocks have none then.
///     Err(MapError::Unsupported) => Mapping::new(8 << 20).map()?,
///     region => region?,
/// };
/// // SAFETY: the mapping is new, and stays for good.
/// unsafe { HEAP.memory().claim(region)? };
/// let block = HEAP.try_allocate(Layout::new::<u64>())?;
/// # unsafe { HEAP.deallocate(block, Layout::new::<u64>()) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Each 16 bytes of memory have one of 16 tags, and an address has a tag in bits 56 to 59. An access faults (`SIGSEGV`, code
/// `SEGV_MTESERR`) if the two differ:
///
/// * The 16 bytes after each block have tag 0, which no block has, so an overflow or underflow into the neighbouring granule always
///   faults. An access that jumps over them faults with a probability of 14 in 15.
/// * Freed memory has another tag than its block had, so every access to it faults. Accesses through old addresses still fault once a new
///   block is there: its tag differs from the tags of the last blocks there, unless those had all fifteen tags.
/// * The front refuses a free if the tag of the address or of either end of the block is wrong, and reports it as
///   [`misuse`](crate::error::misuse).
///
/// It works around any [`Memory`] over a [`Mapping`](super::Mapping) that is [`tagged`](super::Mapping::tagged), unless the memory
/// accesses free blocks outside the calls of this front: put `Tagged` outside `Cached`, and not around `Growing`. Zones do not support
/// tagged addresses. Blocks are 16 bytes longer, and begin and end at granules. Allocation and free take time in proportion to the size;
/// a block that grows moves.
///
/// Linux.
pub struct Tagged<M> {
    memory: M,
}

impl<M> Tagged<M> {
    /// Creates a front around `memory`.
    pub const fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Returns the inner memory. The processor does not check this thread's accesses while the reference exists.
    pub fn memory(&self) -> impl Deref<Target = M> {
        Unchecked::new(&self.memory)
    }
}

/// Returns the number of bytes with the tag of a block of `size` bytes.
fn length(size: usize) -> usize {
    size.max(1).next_multiple_of(GRANULE)
}

/// Returns the layout of a block with the granule after it.
fn whole(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(length(layout.size()) + GRANULE, layout.align().max(GRANULE)).ok()
}

/// Returns a block's address without its tag, as the memory knows it.
fn bare(block: NonNull<u8>) -> NonNull<u8> {
    NonNull::new(tagged(block.as_ptr(), 0)).unwrap_or(block)
}

impl<M: Memory> Tagged<M> {
    /// Returns the tag of the memory before a block; 0 if there is none.
    fn tag_before(&self, start: *mut u8) -> usize {
        let place = start.wrapping_sub(GRANULE);
        let holds = |region: Region| place.addr().wrapping_sub(region.start.addr().get()) < region.size;
        let is_memory = start.addr() % PAGE != 0 || (0..).map_while(|n| self.memory.region(n)).any(holds);
        if is_memory { tag(load(place)) } else { 0 }
    }

    /// Sets the tag of a new block, and clears the tag of the granule after it.
    fn mark(&self, block: NonNull<u8>, size: usize) -> NonNull<u8> {
        if !BEGUN.load(Ordering::Relaxed) {
            return block;
        }
        let (start, length) = (block.as_ptr(), length(size));
        let end = start.wrapping_add(length);
        // Exclude tag 0, the tag of the memory before, and the tags of the last blocks here.
        let always = 1_usize | 1 << self.tag_before(start);
        let mut excluded = always;
        for offset in (0..length).step_by(GRANULE) {
            let freed = tag(load(start.wrapping_add(offset)));
            excluded |= 1 << if freed == 0 { 0 } else { after(freed + 13) };
        }
        let chosen = choose(start, if excluded == 0xffff { always } else { excluded });
        store(start..end, chosen);
        store(end..end.wrapping_add(GRANULE), start);
        // If the memory cannot have tags, the address must not have one either.
        NonNull::new(load(start)).unwrap_or(block)
    }

    /// Checks by the tags whether a block of this size starts here.
    fn check_tags(&self, block: NonNull<u8>, size: usize) -> Result<(), FreeError> {
        let (start, own, length) = (bare(block).as_ptr(), tag(block.as_ptr()), length(size));
        let at = |offset| tag(load(start.wrapping_add(offset)));
        match at(0) {
            first if own != 0 && first == after(own) => Err(FreeError::AlreadyFree),
            first if (first, at(length - GRANULE), at(length)) != (own, own, 0) => Err(FreeError::NotABlock),
            _ if own != 0 && self.tag_before(start) == own => Err(FreeError::NotABlock),
            _ => Ok(()),
        }
    }
}

// SAFETY: blocks come from the memory behind, which keeps the contract; the granule after each stays unused. A tagged address refers to
// the same bytes as the address without its tag.
unsafe impl<M: Memory> Memory for Tagged<M> {
    allocate!(self.memory(); |self, layout, request| Some(self.mark(request(whole(layout)?)?, layout.size())));

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        report_refused(unsafe { self.try_deallocate(block, layout) }, block);
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract; the memory knows the block without its tag.
        unsafe {
            self.check_owned(block, layout)?;
            let (start, own) = (bare(block), tag(block.as_ptr()));
            if own != 0 {
                let range = start.as_ptr()..start.as_ptr().wrapping_add(length(layout.size()));
                store(range, tagged(start.as_ptr(), after(own)));
            }
            self.memory().deallocate(start, whole(layout).ok_or(FreeError::NotABlock)?);
        }
        Ok(())
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // Check the region first, because other addresses may have no memory.
        self.memory().check(bare(block), whole(layout).ok_or(FreeError::NotABlock)?)?;
        if BEGUN.load(Ordering::Relaxed) { self.check_tags(block, layout.size()) } else { Ok(()) }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        // SAFETY: the caller's contract.
        unsafe { self.memory().check_owned(bare(block), whole(layout).ok_or(FreeError::NotABlock)?) }
    }

    unsafe fn try_resize(&self, _: NonNull<u8>, layout: Layout, size: usize) -> bool {
        size <= isize::MAX as usize && length(layout.size()) == length(size)
    }

    fn largest_free(&self) -> usize {
        // The block may begin half a granule into the free memory, since heaps count in 8 bytes, and a granule comes after it.
        (self.memory().largest_free().saturating_sub(GRANULE / 2) & !(GRANULE - 1)).saturating_sub(GRANULE)
    }

    fn remembers(&self) -> bool {
        true
    }

    pass_on!(|self| self.memory(); statistics, region, out_of_memory, add_reserve, locks);
}

global_alloc!([M: Memory] Tagged<M>);
allocator!([M: Memory] Tagged<M>);
debug!([M] Tagged<M>, |self| begun: BEGUN.load(Ordering::Relaxed));
