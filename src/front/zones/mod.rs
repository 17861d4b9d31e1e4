//! Zones: several heaps with different kinds of memory behind one front.
//!
//! A [`Zone`] is a heap with the [`Capabilities`] of its memory. [`Zones`] chooses among several by the
//! capabilities that a request wants, an order of preference, rules on sizes and alignments, and a fallback chain.
//! Freeing a block does not require knowing its zone.

mod table;
mod zone;

pub use zone::Zone;

use crate::error::misuse::{report_refused, without_unwinding};
use crate::error::{FreeError, OutOfMemory};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, delegate, global_alloc};
use crate::region::{Capabilities, Region};
use crate::units::each;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use table::Table;

/// The reason why zones could not satisfy a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum ZoneError {
    /// No zone has all the wanted capabilities.
    NoZone {
        /// The wanted capabilities.
        wanted: Capabilities,
    },
    /// Some zones have the wanted capabilities, but none of them prefers this layout, and none of them is in the
    /// fallback chain.
    NoRule {
        /// Requested bytes.
        requested: usize,
        /// Requested alignment in bytes.
        align: usize,
    },
    /// All zones that may satisfy the request are full.
    OutOfMemory {
        /// The error of the zone that was tried last.
        last: OutOfMemory,
        /// Number of zones that were tried.
        tried: usize,
    },
    /// There is no zone with this number.
    Unknown {
        /// Number of zones.
        zones: usize,
    },
    /// The core cannot read or write the memory, which belongs to a device.
    Inaccessible,
    /// The free is invalid.
    Free(FreeError),
}

impl fmt::Display for ZoneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoZone { wanted } => write!(f, "no zone has all of {wanted:?}"),
            Self::NoRule { requested, align } => {
                write!(
                    f,
                    "no zone takes {requested} bytes aligned to {align}, and none is in the fallback chain"
                )
            }
            Self::OutOfMemory { last, tried } => {
                write!(f, "no room in any of the {tried} zones that were tried; the last one: {last}")
            }
            Self::Unknown { zones } => write!(f, "there is no such zone; the number of zones is {zones}"),
            Self::Inaccessible => f.write_str("the memory belongs to a device, so the core cannot copy it"),
            Self::Free(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ZoneError {}

/// Several zones, in order of preference.
///
/// A request wants capabilities. Among the zones that have all of them, those with matching rules are tried first, in their order, and
/// then those of the fallback chain, in its order. No other zones are tried: requests that do not match a zone's rules use it only if the
/// chain names it.
///
/// ```
/// use allotment::region::Capabilities as Can;
/// use allotment::zones::{Zone, Zones};
/// use allotment::{Tlsf16, Heap, heap};
///
/// static DTCM: Heap<Tlsf16> = heap!(16 * 1024);
/// static SDRAM: Heap = heap!(1024 * 1024);
/// static ZONES: Zones<2> = Zones::new([
///     Zone::new("dtcm", &DTCM, Can::INTERNAL.union(Can::FAST)).up_to(256),
///     Zone::new("sdram", &SDRAM, Can::EXTERNAL.union(Can::DMA)).above(256).cache_line(32),
/// ])
/// .fallback(&[1, 0]);
///
/// let small = core::alloc::Layout::new::<[u64; 4]>();
/// let (node, buffer) = (ZONES.allocate(small, Can::empty())?, ZONES.allocate(small, Can::DMA)?);
/// assert_eq!(ZONES.zone_of(node.cast()), Some(0));
/// assert_eq!(ZONES.zone_of(buffer.cast()), Some(1)); // against its rule, but in the chain
/// unsafe {
///     ZONES.deallocate(node.cast(), small)?;
///     ZONES.deallocate(buffer.cast(), small)?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `Zones` can be the global allocator. Requests then want no particular capabilities, and never get memory of a device. If any zone has
/// [`Capabilities::ATOMIC`], such requests only get memory of zones with it, because any block may come to hold an `Arc` or an
/// `AtomicU32`. A free finds up to `SPANS` regions of all zones together in O(log regions), and searches further ones one by one. `L`
/// guards the table of regions and is held only to read or replace it.
pub struct Zones<'h, const N: usize, const SPANS: usize = 8, L = lock::Default> {
    zones: [Zone<'h>; N],
    fallback: &'h [usize],
    nearest: Option<&'h (dyn Fn() -> usize + Sync)>,
    /// Capabilities of requests that name none.
    general: Capabilities,
    lock: Locked<Table<SPANS>, L>,
}

/// An allocator for collections that wants certain capabilities. Returned by [`Zones::wanting`].
pub struct ZonesWith<'z, 'h, const N: usize, const SPANS: usize = 8, L = lock::Default> {
    zones: &'z Zones<'h, N, SPANS, L>,
    wanted: Capabilities,
}

impl<const N: usize, const SPANS: usize, L> Clone for ZonesWith<'_, '_, N, SPANS, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<const N: usize, const SPANS: usize, L> Copy for ZonesWith<'_, '_, N, SPANS, L> {}

impl<'h, const N: usize, const SPANS: usize, L: Lock> Zones<'h, N, SPANS, L> {
    /// Joins `zones`, and prefers earlier ones. There is no fallback chain.
    pub const fn new(zones: [Zone<'h>; N]) -> Self {
        let mut general = Capabilities::empty();
        each!(at, 0..N, {
            if zones[at].capabilities().contains(Capabilities::ATOMIC) {
                general = Capabilities::ATOMIC;
            }
        });
        Self { zones, fallback: &[], nearest: None, general, lock: Locked::new(Table::EMPTY) }
    }

    /// Sets the fallback chain: indices of zones, from 0.
    ///
    /// # Panics
    ///
    /// If there is no zone with one of the indices; in a `const`, this is a compiler error.
    pub const fn fallback(mut self, chain: &'h [usize]) -> Self {
        each!(at, 0..chain.len(), {
            assert!(chain[at] < N, "the fallback chain names a zone that is not there");
        });
        self.fallback = chain;
        self
    }

    /// Sets a function that returns the index of the zone nearest to the caller, such as that of its node or core. Among the zones whose
    /// rules match a request, the nearest is tried first. An index beyond the last zone means none.
    pub const fn nearest(mut self, nearest: &'h (dyn Fn() -> usize + Sync)) -> Self {
        self.nearest = Some(nearest);
        self
    }

    /// Returns the zones, in the order of [`Zones::new`].
    pub const fn zones(&self) -> &[Zone<'h>; N] {
        &self.zones
    }

    /// Returns an allocator of memory with the capabilities `wanted`, from all zones, for `Box` and `Vec`.
    pub const fn wanting(&self, wanted: Capabilities) -> ZonesWith<'_, 'h, N, SPANS, L> {
        ZonesWith { zones: self, wanted }
    }

    /// Allocates a block for `layout` in memory with the capabilities `wanted`.
    ///
    /// # Errors
    ///
    /// [`ZoneError::NoZone`], [`ZoneError::NoRule`] or [`ZoneError::OutOfMemory`].
    pub fn allocate(&self, layout: Layout, wanted: Capabilities) -> Result<NonNull<[u8]>, ZoneError> {
        self.choose(layout, wanted, |zone| zone.allocate(layout))
    }

    /// Allocates a block like [`Zones::allocate`], with all bytes zero.
    ///
    /// # Errors
    ///
    /// [`ZoneError::NoZone`], [`ZoneError::NoRule`] or [`ZoneError::OutOfMemory`].
    pub fn allocate_zeroed(&self, layout: Layout, wanted: Capabilities) -> Result<NonNull<[u8]>, ZoneError> {
        self.choose(layout, wanted, |zone| zone.allocate_zeroed(layout))
    }

    fn choose<T>(
        &self,
        layout: Layout,
        wanted: Capabilities,
        mut allocate: impl FnMut(&Zone<'h>) -> Result<T, OutOfMemory>,
    ) -> Result<T, ZoneError> {
        let near = self.nearest.map_or(N, without_unwinding);
        let rest = self.zones.iter().enumerate().filter(|&(n, _)| n != near).map(|(_, zone)| zone);
        let preferred = self.zones.get(near).into_iter().chain(rest).filter(|zone| zone.prefers(layout));
        let chain = self.fallback.iter().map(|&number| &self.zones[number]);
        let others = chain.filter(|zone| !zone.prefers(layout));
        let mut failure = None;
        let mut tried = 0;
        for zone in preferred.chain(others).filter(|zone| zone.serves(wanted)) {
            match allocate(zone) {
                Ok(block) => return Ok(block),
                Err(error) => failure = Some(error),
            }
            tried += 1;
        }
        Err(match failure {
            Some(last) => ZoneError::OutOfMemory { last, tried },
            None if self.zones.iter().any(|zone| zone.serves(wanted)) => {
                ZoneError::NoRule { requested: layout.size(), align: layout.align() }
            }
            None => ZoneError::NoZone { wanted },
        })
    }

    /// Returns the index of the zone that contains `block`. O(log regions).
    pub fn zone_of(&self, block: NonNull<u8>) -> Option<usize> {
        let known = self.lock.with(|table| table.find(block));
        match known.filter(|&zone| self.zones[zone].holds(block)) {
            Some(zone) => Some(zone),
            None => self.search(block),
        }
    }

    /// Searches all zones, and updates the table if one of them contains the block.
    #[cold]
    #[inline(never)]
    fn search(&self, block: NonNull<u8>) -> Option<usize> {
        let zone = self.zones.iter().position(|zone| zone.holds(block))?;
        let table = Table::of(&self.zones);
        self.lock.with(|old| *old = table);
        Some(zone)
    }

    /// Frees a block of any zone. O(log regions), plus the time of the zone's heap.
    ///
    /// # Errors
    ///
    /// [`FreeError::Foreign`] if no zone contains the block, or the error of the zone's heap.
    ///
    /// # Safety
    ///
    /// If the checks pass, `block` must be a live block that was allocated with `layout` from one of the zones, and
    /// it must not be used afterwards.
    pub unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if let Some(zone) = self.lock.with(|table| table.find(block)) {
            // SAFETY: the caller's contract.
            match unsafe { self.zones[zone].deallocate(block, layout) } {
                // The region may have moved to another zone since the table was made.
                Err(FreeError::Foreign) => {}
                done => return done,
            }
        }
        let zone = self.search(block).ok_or(FreeError::Foreign)?;
        // SAFETY: the caller's contract.
        unsafe { self.zones[zone].deallocate(block, layout) }
    }

    /// Moves a block with its contents to zone number `to`. A block that is already there stays in place. O(size).
    ///
    /// # Errors
    ///
    /// [`ZoneError::Unknown`] if there is no such zone, [`ZoneError::OutOfMemory`] if it is full,
    /// [`ZoneError::Inaccessible`] if the core cannot access one of the two memories, and [`ZoneError::Free`] if no
    /// zone contains the block. The block stays live at its old address in all cases.
    ///
    /// # Safety
    ///
    /// `block` must be a live block that was allocated with `layout` from one of the zones. If it moves, it must
    /// not be used at its old address any more.
    pub unsafe fn migrate(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        to: usize,
    ) -> Result<NonNull<[u8]>, ZoneError> {
        let target = self.zones.get(to).ok_or(ZoneError::Unknown { zones: N })?;
        let from = self.zone_of(block).ok_or(ZoneError::Free(FreeError::Foreign))?;
        if from == to {
            return Ok(NonNull::slice_from_raw_parts(block, layout.size() + target.padding(layout)));
        }
        if !target.is_accessible() || !self.zones[from].is_accessible() {
            return Err(ZoneError::Inaccessible);
        }
        let moved = target.allocate(layout).map_err(|last| ZoneError::OutOfMemory { last, tried: 1 })?;
        // SAFETY: both blocks are live and have that many bytes, and the old one is not used any more.
        unsafe {
            moved.cast::<u8>().copy_from_nonoverlapping(block, layout.size());
            if let Err(error) = self.zones[from].deallocate(block, layout) {
                // The block was not live, so nothing was moved.
                let _ = target.deallocate(moved.cast(), layout);
                return Err(ZoneError::Free(error));
            }
        }
        Ok(moved)
    }
}

// SAFETY: the zones fulfil the contract.
unsafe impl<const N: usize, const SPANS: usize, L: Lock> Memory for ZonesWith<'_, '_, N, SPANS, L> {
    /// Fails if device memory is wanted, because collections cannot use it.
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.zones.choose(layout, self.wanted, |zone| zone.try_allocate(layout)).ok()
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.zones.choose(layout, self.wanted, |zone| zone.try_allocate_zeroed(layout)).ok()
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.zones.deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        report_refused(unsafe { self.zones.deallocate(block, layout) }, block);
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let zone = self.zones.zone_of(block).map(|zone| &self.zones.zones[zone]);
        // If the zone does not prefer the block's new size, the block moves to a zone that does.
        let fits = |zone: &&Zone<'_>| {
            Layout::from_size_align(size, layout.align())
                .is_ok_and(|new| zone.prefers(new) || !zone.prefers(layout))
        };
        // SAFETY: the caller's contract.
        zone.filter(fits).is_some_and(|zone| unsafe { zone.try_resize(block, layout, size) })
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let zone = self.zones.zone_of(block).ok_or(FreeError::Foreign)?;
        self.zones.zones[zone].check(block, layout)
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let zone = self.zones.zone_of(block).ok_or(FreeError::Foreign)?;
        // SAFETY: the caller's contract.
        unsafe { self.zones.zones[zone].check_owned(block, layout) }
    }

    fn largest_free(&self) -> usize {
        let serving = self.zones.zones.iter().enumerate().filter(|(_, zone)| zone.serves(self.wanted));
        let sizes = serving.map(|(number, zone)| match self.zones.fallback.contains(&number) {
            true => zone.largest_free(),
            false => zone.largest_preferred(zone.largest_free()),
        });
        sizes.max().unwrap_or(0)
    }

    fn region(&self, n: usize) -> Option<Region> {
        let all = |zone| (0..).map_while(move |n| Zone::region(zone, n));
        self.zones.zones.iter().flat_map(all).nth(n)
    }

    #[cfg(all(feature = "std", unix))]
    fn locks(&self, visit: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {
        visit(self.zones.lock.at_fork());
        self.zones.zones.iter().for_each(|zone| zone.locks(visit));
    }
}

allocator!([const N: usize, const SPANS: usize, L: Lock] ZonesWith<'_, '_, N, SPANS, L>);

// As a memory, zones behave like `Zones::wanting` with the general capabilities.
delegate!(
    [const N: usize, const SPANS: usize, L: Lock] Zones<'_, N, SPANS, L>,
    |self| self.wanting(self.general)
);
global_alloc!([const N: usize, const SPANS: usize, L: Lock] Zones<'_, N, SPANS, L>);
