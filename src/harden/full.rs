//! Level `Full`: a placement that wraps another one and checks every block.

use super::map::{GRANULE, Window};
use super::poison;
use crate::error::FreeError;
use crate::error::misuse::{Kind, corrupted};
use crate::observe::{NoStatistics, Statistics};
use crate::placement::Placement;
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Hardening level `Full` around a placement `P`; the [module](super) lists the misuse that it detects.
///
/// It keeps two bits for each 8 bytes of memory: whether a live block starts there, and whether the memory is in use. After each block is
/// a *canary* of 8 bytes, a number that depends on the block's address, its layout and a secret of the heap. In one of 256 cases a byte
/// is overwritten with its old value, which is not detected. The first 256 and the last 16 bytes of a freed block are filled with a
/// pattern, and the block waits in a *quarantine* until `QUARANTINE` further blocks are freed; then `Full` checks the pattern and `P`
/// frees the block.
///
/// The CPU must be able to access the memory. The complexity is that of `P`, plus O(size / 256) for a block.
///
/// (Canaries: Cowan et al., "StackGuard", USENIX Security 1998. Quarantines: Serebryany et al., "AddressSanitizer", USENIX
/// ATC 2012.)
pub struct Full<P, const QUARANTINE: usize = 16> {
    windows: [Window; WINDOWS],
    /// Number of windows with a region, which come first.
    count: usize,
    secret: u64,
    held: [Option<Held>; QUARANTINE],
    /// Index of the next place in the quarantine, which holds the oldest block.
    next: usize,
    placement: P,
}

/// A freed block in the quarantine.
#[derive(Clone, Copy)]
struct Held {
    start: NonNull<u8>,
    /// The layout with the canary, as the placement knows it.
    outer: Layout,
}

/// Most regions.
const WINDOWS: usize = crate::region::DEFAULT_REGIONS;

/// Bytes of the canary.
const CANARY: usize = size_of::<u64>();

/// Most words to fill and check at the start of a freed block, besides its last two.
const FILLED: usize = 32;

// SAFETY: the pointers lead to memory that `claim` got for exclusive use.
unsafe impl<P: Send, const Q: usize> Send for Full<P, Q> {}

/// Returns the layout that the placement allocates for a block of `layout`: with a canary, and aligned to a granule.
#[inline(always)]
fn outer(layout: Layout) -> Option<Layout> {
    // The size is at most `isize::MAX` and the alignment a power of two, so no sum overflows.
    let (size, align) = (layout.size() + CANARY, layout.align().max(GRANULE));
    // SAFETY: the alignment is a power of two, and the size does not exceed `isize::MAX` when rounded up to it.
    (size <= isize::MAX as usize + 1 - align)
        .then(|| unsafe { Layout::from_size_align_unchecked(size, align) })
}

/// Returns the bytes that a block of `layout` counts as, including its canary.
#[inline(always)]
const fn block_size(layout: Layout) -> usize {
    rounded(layout.size() + CANARY)
}

/// Rounds the size of a block up to whole granules.
#[inline(always)]
const fn rounded(bytes: usize) -> usize {
    // No block is so large that this overflows.
    (bytes + (GRANULE - 1)) & !(GRANULE - 1)
}

/// Mixes a number so that each bit of the result depends on all bits.
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 32)).wrapping_mul(SPREAD);
    value ^ (value >> 29)
}

/// An odd number near 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Fills the first and the last of the `len` words of a freed block.
///
/// # Safety
///
/// The caller must own the words, at least one.
#[inline(always)]
unsafe fn fill(words: *mut u64, len: usize, pattern: u64) {
    // SAFETY: every place is below `len`.
    unsafe {
        if len < 2 {
            return words.write(pattern);
        }
        let (end, mut at) = (len.min(FILLED), 0);
        while at + 4 <= end {
            words.add(at).cast::<[u64; 4]>().write([pattern; 4]);
            at += 4;
        }
        if at + 2 <= len {
            words.add(at).cast::<[u64; 2]>().write([pattern; 2]);
        }
        words.add(len - 2).cast::<[u64; 2]>().write([pattern; 2]);
    }
}

/// Returns whether the words that [`fill`] wrote are unchanged.
///
/// # Safety
///
/// As for [`fill`].
#[inline(always)]
unsafe fn is_filled(words: *const u64, len: usize, pattern: u64) -> bool {
    // SAFETY: every place is below `len`.
    unsafe {
        if len < 2 {
            return words.read() == pattern;
        }
        let pair = |at, [first, second]: [u64; 2]| {
            let [third, fourth] = words.add(at).cast::<[u64; 2]>().read();
            [first | (third ^ pattern), second | (fourth ^ pattern)]
        };
        let (end, mut at) = (len.min(FILLED), 0);
        let mut changed = pair(len - 2, [0; 2]);
        while at + 4 <= end {
            changed = pair(at + 2, pair(at, changed));
            at += 4;
        }
        if at + 2 <= len {
            changed = pair(at, changed);
        }
        changed[0] | changed[1] == 0
    }
}

/// Reads the CPU's clock. Returns 0 on targets where a program may not read it.
fn clock() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every 64-bit CPU has the instruction.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    0
}

impl<P: Placement, const Q: usize> Full<P, Q> {
    /// Sets the heap's secret, from which canaries and fill patterns are derived, before the first region is claimed. Otherwise the
    /// secret comes from addresses, and on x86-64 also from the clock; firmware with a source of random numbers should set it through
    /// [`Heap::with_placement`](crate::Heap::with_placement).
    pub const fn set_secret(&mut self, secret: u64) {
        self.secret = secret | 1;
    }

    #[inline(always)]
    fn window(&self, address: usize) -> Option<&Window> {
        if self.windows[0].holds(address) {
            return Some(&self.windows[0]);
        }
        self.further_window(address)
    }

    #[cold]
    #[inline(never)]
    fn further_window(&self, address: usize) -> Option<&Window> {
        self.windows[1..].iter().find(|window| window.holds(address))
    }

    /// Derives a number from a block's address and the secret.
    #[inline(always)]
    fn number(&self, start: NonNull<u8>) -> u64 {
        (start.addr().get() as u64 ^ self.secret).wrapping_mul(SPREAD)
    }

    /// Returns the canary of a block.
    #[inline(always)]
    fn canary(&self, start: NonNull<u8>, layout: Layout) -> u64 {
        self.number(start) ^ (layout.size() as u64).rotate_left(40) ^ layout.align() as u64
    }

    /// Returns the address of a block's canary.
    #[inline(always)]
    fn canary_at(start: NonNull<u8>, layout: Layout) -> *mut u64 {
        start.as_ptr().wrapping_add(layout.size()).cast()
    }

    /// Writes the canary after the block's usable bytes.
    ///
    /// # Safety
    ///
    /// The block must come from the placement, with room for the canary.
    #[inline(always)]
    unsafe fn seal(&self, start: NonNull<u8>, layout: Layout) {
        let canary = Self::canary_at(start, layout);
        // SAFETY: the caller's contract.
        unsafe { canary.write_unaligned(self.canary(start, layout)) };
        poison::close(canary.cast(), block_size(layout) - layout.size());
    }

    /// Marks a block that the placement has allocated, and writes its canary.
    #[inline(always)]
    fn enter<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> NonNull<u8> {
        let address = start.addr().get();
        // SAFETY: the placement allocates memory of its regions, with room for the canary.
        unsafe {
            match self.window(address) {
                Some(window) if window.begin_block(address, block_size(layout)) => {}
                _ => corrupted(Kind::BrokenList, address),
            }
            poison::open_new(start.as_ptr(), layout.size());
            self.seal(start, layout);
        }
        statistics.allocated(block_size(layout));
        start
    }

    /// Finds the window in which a live block for `layout` may start, without reading live blocks. Returns an error if there can be none.
    #[inline(always)]
    fn look_up(&self, start: NonNull<u8>, layout: Layout) -> Result<&Window, FreeError> {
        let address = start.addr().get();
        let window = self.window(address).ok_or(FreeError::Foreign)?;
        if address % GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        // SAFETY: the window holds the address.
        if unsafe { !window.is_start(address) } {
            return Err(self.why(window, start));
        }
        // No size is so large that the sum overflows.
        let beyond = layout.size() + CANARY > window.room - (address - window.start.addr());
        if beyond { Err(FreeError::Overrun) } else { Ok(window) }
    }

    /// Finds the window of the live block for `layout` at `start`. Returns an error if there is none.
    ///
    /// # Safety
    ///
    /// If there is such a block, the caller must own it.
    #[inline(always)]
    unsafe fn find(&self, start: NonNull<u8>, layout: Layout) -> Result<&Window, FreeError> {
        let window = self.look_up(start, layout)?;
        // SAFETY: the canary is inside the region.
        let canary = unsafe { poison::peek(Self::canary_at(start, layout)) };
        if canary == self.canary(start, layout) { Ok(window) } else { Err(FreeError::Overrun) }
    }

    /// Determines by the pattern whether the block at an address was freed or never existed.
    #[cold]
    #[inline(never)]
    fn why(&self, window: &Window, start: NonNull<u8>) -> FreeError {
        let held = self.held.iter().flatten().any(|held| held.start == start);
        // Memory in use is not read, since it may be in a live block to which another thread writes.
        // SAFETY: the window holds the address, which is a granule's.
        let filled = unsafe {
            !window.is_used(start.addr().get()) && poison::peek(start.cast().as_ptr()) == self.pattern(start)
        };
        if held || filled { FreeError::AlreadyFree } else { FreeError::NotABlock }
    }

    /// Returns the pattern of a freed block.
    #[inline(always)]
    fn pattern(&self, start: NonNull<u8>) -> u64 {
        !self.number(start)
    }

    /// Puts a freed block into the quarantine, and frees the oldest one.
    ///
    /// # Safety
    ///
    /// The block must come from the placement and not be used any more.
    #[inline(always)]
    unsafe fn hold(&mut self, start: NonNull<u8>, layout: Layout) {
        let words = start.cast::<u64>().as_ptr();
        poison::open(start.as_ptr(), block_size(layout));
        // SAFETY: the words are those of the block, which is aligned to 8; the placement allocated the layout with its canary.
        let outer = unsafe {
            fill(words, block_size(layout) / size_of::<u64>(), self.pattern(start));
            outer(layout).unwrap_unchecked()
        };
        poison::close(start.as_ptr(), block_size(layout));
        let held = Held { start, outer };
        let oldest = match self.held.get_mut(self.next) {
            Some(place) => {
                self.next = if self.next + 1 < Q { self.next + 1 } else { 0 };
                place.replace(held)
            }
            None => Some(held),
        };
        if let Some(oldest) = oldest {
            // SAFETY: blocks in the quarantine come from the placement, and are not used any more.
            unsafe { self.let_go(oldest) }
        }
    }

    /// Checks the pattern of a block from the quarantine, and frees it in the placement.
    ///
    /// # Safety
    ///
    /// As for [`Self::hold`].
    #[inline(always)]
    unsafe fn let_go(&mut self, held: Held) {
        let Held { start, outer } = held;
        let bytes = rounded(outer.size());
        let address = start.addr().get();
        poison::open(start.as_ptr(), bytes);
        // SAFETY: the block came from the placement with this layout, its words were filled, and its bits are set.
        unsafe {
            if !is_filled(start.cast().as_ptr(), bytes / size_of::<u64>(), self.pattern(start)) {
                corrupted(Kind::WrittenAfterFree, address);
            }
            let cleared = self.window(address).is_some_and(|window| window.flip_used(address, bytes, true));
            if !cleared || !self.free_inner(start, outer) {
                corrupted(Kind::BrokenList, address);
            }
        }
    }

    /// Frees a block in the placement. Returns whether the placement accepted it.
    ///
    /// # Safety
    ///
    /// The block must come from the placement and not be used any more.
    #[inline(always)]
    unsafe fn free_inner(&mut self, start: NonNull<u8>, outer: Layout) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            self.placement.free_fast(start, outer, &mut NoStatistics)
                || self.placement.free(start, outer, &mut NoStatistics).is_ok()
        }
    }

    /// Empties the quarantine. Returns whether it held a block.
    fn flush(&mut self) -> bool {
        let mut any = false;
        for place in 0..Q {
            if let Some(held) = self.held[place].take() {
                // SAFETY: blocks in the quarantine come from the placement, and are not used any more.
                unsafe { self.let_go(held) }
                any = true;
            }
        }
        any
    }
}

// SAFETY: blocks come from the placement, which makes the same promises; each is allocated once until it is freed.
unsafe impl<P: Placement, const Q: usize> Placement for Full<P, Q> {
    const EMPTY: Self = Self {
        windows: [Window::NONE; WINDOWS],
        count: 0,
        secret: 0,
        held: [None; Q],
        next: 0,
        placement: P::EMPTY,
    };
    const MAX_REGION: usize = P::MAX_REGION;
    const MAX_REGIONS: usize = if P::MAX_REGIONS < WINDOWS { P::MAX_REGIONS } else { WINDOWS };
    const REMEMBERS: bool = true;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        let start = memory.start.addr().get();
        let end = memory.checked_end()?;
        if self.windows.iter().any(|window| window.meets(start, end)) {
            return Err(RegionError::Overlap);
        }
        if self.count == WINDOWS {
            return Err(RegionError::TooMany { max: WINDOWS });
        }
        let window = Window::over(memory).ok_or(RegionError::TooSmall)?;
        if self.secret == 0 {
            let here = (&raw const *self).addr() as u64;
            self.set_secret(mix(clock() ^ here.rotate_left(32) ^ mix(start as u64)));
        }
        // SAFETY: the caller hands over the memory: the placement gets a part, the maps the rest.
        unsafe {
            self.placement.claim(Region { size: window.room, ..memory }, statistics)?;
            window.clear();
            self.windows[self.count] = window;
            self.count += 1;
            Ok(())
        }
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        let opened = &self.windows[..self.count];
        let place = opened.iter().position(|window| window.start == start).ok_or(RegionError::Unknown)?;
        let old = self.windows[place];
        let region = Region::new(start, old.size.checked_add(bytes).ok_or(RegionError::Overlap)?);
        let end = region.checked_end()?;
        // Checked before any write: nothing else may use the memory after the region.
        if opened.iter().any(|window| window.start != start && window.meets(start.addr(), end)) {
            return Err(RegionError::Overlap);
        }
        let new = Window::over(region).ok_or(RegionError::TooSmall)?;
        let more = new.room.checked_sub(old.room).filter(|&more| more > 0).ok_or(RegionError::TooSmall)?;
        // SAFETY: the maps move up to the new end of the region, and back if extending fails; the memory that they leave goes to the
        // placement.
        unsafe {
            old.move_to(&new);
            let extended = self.placement.extend(start, 0, more, statistics);
            match extended {
                Ok(_) => self.windows[place] = new,
                Err(_) => old.move_back(&new),
            }
            extended
        }
    }

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        self.flush();
        let region = self.placement.release(start, statistics)?;
        let whole = self.whole(region);
        if let Some(place) = self.windows[..self.count].iter().position(|window| window.start == start) {
            self.count -= 1;
            self.windows[place] = self.windows[self.count];
            self.windows[self.count] = Window::NONE;
        }
        Ok(whole)
    }

    #[inline(always)]
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let start = self.placement.allocate_fast(outer(layout)?, &mut NoStatistics)?;
        Some(self.enter(start, layout, statistics))
    }

    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let outer = outer(layout)?;
        let mut start = self.placement.allocate_slow(outer, &mut NoStatistics);
        if start.is_none() && self.flush() {
            start = self.placement.allocate(outer, &mut NoStatistics);
        }
        Some(self.enter(start?, layout, statistics))
    }

    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the block is live, and the caller does not use it any more.
        unsafe {
            let window = *self.find(start, layout)?;
            window.end_block(start.addr().get());
            self.hold(start, layout);
        }
        statistics.freed(block_size(layout));
        Ok(())
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller guarantees the block.
        let Ok(&window) = (unsafe { self.find(start, layout) }) else { return false };
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return false };
        let (Some(old_outer), Some(new_outer)) = (outer(layout), outer(new)) else { return false };
        let (address, before, after) = (start.addr().get(), block_size(layout), block_size(new));
        // SAFETY: the caller guarantees a live block of `layout`; the bits of the memory cut off or added change with it.
        unsafe {
            let canary = Self::canary_at(start, layout);
            poison::open(canary.cast(), before - layout.size());
            // Erase the old canary, or a free with the old layout would pass. If it is cut off, erase it while the block still has it.
            if after <= before {
                canary.write_unaligned(0);
            }
            if !self.placement.resize(start, old_outer, new_outer.size(), &mut NoStatistics) {
                self.seal(start, layout);
                return false;
            }
            if after > before {
                canary.write_unaligned(0);
            }
            let agrees = if after > before {
                window.flip_used(address + before, after - before, false)
            } else {
                after == before || window.flip_used(address + after, before - after, true)
            };
            if !agrees {
                corrupted(Kind::BrokenList, address);
            }
            self.seal(start, new);
        }
        statistics.resized(before, after);
        true
    }

    fn trim(&mut self) -> bool {
        let flushed = self.flush();
        self.placement.trim() || flushed
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let window = self.look_up(start, layout)?;
        // SAFETY: `look_up` has checked that the window holds the block and its canary, before rounding.
        let ends_there = unsafe { window.is_used(start.addr().get() + layout.size() + CANARY - 1) };
        if ends_there { Ok(()) } else { Err(FreeError::Overrun) }
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.find(start, layout) }.map(|_| ())
    }

    fn largest_free(&self) -> usize {
        self.placement.largest_free().saturating_sub(CANARY)
    }

    fn set_saving(&mut self, on: bool) {
        if on {
            self.flush();
        }
        self.placement.set_saving(on);
    }

    /// Passes blocks in the quarantine as used.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        self.placement.walk(region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.placement.region(n).map(|region| self.whole(region))
    }
}

impl<P, const Q: usize> Full<P, Q> {
    /// Returns the region as it was claimed, including its maps.
    fn whole(&self, region: Region) -> Region {
        let opened = self.windows.get(..self.count).unwrap_or(&[]);
        let window = opened.iter().find(|window| window.start == region.start.as_ptr());
        Region { size: window.map_or(region.size, |window| window.size), ..region }
    }
}
