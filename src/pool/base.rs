//! The parts of a pool, and its unit of length.

#![forbid(unsafe_code)]

use super::error::{OutOfMemory, PoolError};
use super::lanes::{Held, Lanes};
use super::options::{Age, Checks, Limit, PoolOptions, Reuse};
use super::segments::{Holder, Record, Request, SizeKind, lane_of};
use super::state::State;
use super::stats::{BlockSnapshot, CopyCounters};
use super::times::Times;
use super::usage::Usage;
use super::{Capacity, Source, SourceError};
use crate::front::pressure::{Key, Pressure, Registry, Shortage, Watermarks};
use crate::lock::Mutex;
use crate::placement::{GoodFit, SegmentPlacement};
use crate::units::granules;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;

/// The most recently called hook, and the bytes that hooks have freed so far.
pub(super) type Place = Option<(Key, usize)>;

/// Up to sixteen hooks.
pub(super) struct Hooks(pub(super) Mutex<Registry<16>>);

impl Hooks {
    /// Calls hooks, starting after `place`, until one of them frees memory. Returns whether one did.
    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        loop {
            let after = place.map(|(key, _)| key);
            let before = place.map_or(0, |(_, reclaimed)| reclaimed);
            let Some((key, hook)) = self.0.lock().begin(after) else { return false };
            /// Marks the hook as finished, even if it unwinds.
            struct Running<'a>(&'a Hooks, Key);
            impl Drop for Running<'_> {
                fn drop(&mut self) {
                    self.0.0.lock().end(self.1);
                }
            }
            let running = Running(self, key);
            let (requested, align, largest_free) = (full.requested, full.align, full.largest_free);
            let reclaimed = hook(&Shortage { requested, align, largest_free, reclaimed: before });
            drop(running);
            *place = Some((key, before.saturating_add(reclaimed)));
            if reclaimed > 0 {
                return true;
            }
        }
    }
}

/// The function to call with a pool's leaks.
pub(super) type LeakHook = Box<dyn FnOnce(&[BlockSnapshot]) + Send>;

/// The placement of a [`DevicePool`]: good fit with granules of 256 bytes and segments of up to 512 GiB.
pub type DefaultPlacement = GoodFit;

/// A pool with the default placement.
pub type DevicePool<S> = RawPool<DefaultPlacement, S>;

/// A block of a pool, identified by its address, its length and its record in the pool. Dropping an `Allocation`
/// does not free the block; [`RawPool::allocate`] returns a [`PoolBlock`](super::PoolBlock), which frees itself.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the block stays allocated until `RawPool::deallocate`"]
pub struct Allocation {
    address: NonZeroUsize,
    bytes: usize,
    pub(super) pool: u32,
    pub(super) record: u32,
    pub(super) serial: u32,
}

impl Allocation {
    /// Returns the device address of the first byte.
    pub const fn address(&self) -> usize {
        self.address.get()
    }

    /// Returns the requested length in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records the block's new address after a move.
    pub(super) fn move_to(&mut self, address: usize) {
        self.address = NonZeroUsize::new(address).unwrap_or(self.address);
    }
}

/// A pool: memory from a source, divided by a placement, and reused in the order of streams.
///
/// ```
/// use allotment::pool::{DevicePool, PoolOptions};
/// use allotment::sim::DeviceMemory;
///
/// let device: DeviceMemory = DeviceMemory::new(1 << 30);
/// let (compute, copies) = (device.stream(), device.stream());
/// let pool = DevicePool::new(device, PoolOptions::new())?;
///
/// let weights = pool.allocate(4 << 20, &compute)?; // for work on the stream `compute`
/// weights.used_on(&copies); // and on another one
/// let address = weights.address();
/// drop(weights); // at once; others get it when `copies` has passed this point
/// assert_eq!(pool.stats().reserved.current, 20 << 20);
/// # let _ = address;
/// # Ok::<(), allotment::pool::PoolError>(())
/// ```
///
/// A placement divides each segment of the source. It keeps its data in a side table or in bits, because the pool never accesses the
/// memory itself. Each stream has separate segments, and a request gets its block from the segment whose longest free block is the
/// shortest that suffices.
///
/// A block freed on its own stream is reusable there at once, without any driver call. Other streams may reuse it once its last work is
/// known to be done, which the pool queries without blocking; [`Reuse`] says what else they may do. When there is no room, the pool takes
/// these measures in turn and tries again after each: it reserves or lengthens a segment; releases empty segments whose work is done;
/// waits for freed blocks; releases all empty segments; compacts movable blocks ([`Reuse::Aggressive`]); and calls the hooks of
/// [`RawPool::register`]. With a [`Chain`](super::Chain), other pools come last.
///
/// All methods may be called from any thread. The pool has one lock, which it holds during driver calls but not while hooks run. Once
/// threads that use different streams contend for it, each stream's heap gets a separate lock (up to 8), and requests that the stream
/// heap can satisfy take no other lock. An operation without driver calls takes the placement's time plus O(log segments).
pub struct RawPool<P: SegmentPlacement, S: Source> {
    pub(super) source: S,
    pub(super) options: PoolOptions,
    /// The most bytes that the pool may reserve.
    limit: AtomicUsize,
    /// Binary logarithm of the granule's size in bytes.
    pub(super) shift: u32,
    /// Number of granules to whose multiples request lengths round up.
    pub(super) unit: usize,
    pub(super) id: u32,
    /// Whether stream heaps can satisfy requests by themselves, because no option needs more than the streams and their order, and
    /// nothing is measured.
    pub(super) is_direct: bool,
    /// Measured times, if the options ask for them.
    pub(super) times: Option<Box<Times>>,
    /// Whether any check is on.
    pub(super) checked: bool,
    pub(super) hooks: Hooks,
    pub(super) on_leak: Mutex<Option<LeakHook>>,
    pub(super) copies: Arc<CopyCounters>,
    pub(super) state: Lanes<P, S>,
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Makes a pool without any reserved memory.
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] if an option cannot work with this placement and source, and [`PoolError::Source`] if the limit is a
    /// fraction of the device's memory and the driver fails to report its size.
    pub fn new(source: S, options: PoolOptions) -> Result<Self, PoolError> {
        let granule = P::GRANULE;
        options.check(granule)?;
        if options.granule > source.alignment() {
            return Err(PoolError::Option("granule"));
        }
        let limit = Self::resolve(&source, options.limit)?;
        let is_bounded = options.keep != usize::MAX;
        let ages = match options.trim_after {
            Some(Age::Time(age)) => Some(age),
            Some(Age::Steps(_)) => Some(Duration::MAX),
            None => (is_bounded || options.adaptive.is_some()).then_some(Duration::MAX),
        };
        let checked = options.checks != Checks::default();
        let can_be_direct =
            ages.is_none() && !checked && matches!(options.reuse, Reuse::Advanced | Reuse::Aggressive);
        let mut state = State::new(ages);
        state.supply.is_bounded = is_bounded;
        state.order.asks = options.notices_captures;
        state.extra.usage =
            options.adaptive.map(|follow| Box::new(Usage::new(follow, options.reuse == Reuse::Basic)));
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let pool = Self {
            limit: AtomicUsize::new(limit),
            shift: granule.ilog2(),
            unit: (options.granule >> granule.ilog2()).max(1),
            id: POOLS.fetch_add(1, Ordering::Relaxed),
            is_direct: can_be_direct && !options.timed,
            times: options.timed.then(|| Box::new(Times::new(source.now(), can_be_direct))),
            checked,
            hooks: Hooks(Mutex::new(Registry::EMPTY)),
            on_leak: Mutex::new(None),
            copies: Arc::default(),
            state: Lanes::new(state, options.timed),
            source,
            options,
        };
        if pool.options.reuse == Reuse::Basic {
            pool.lock().extra.classes = pool.chosen_classes();
        }
        Ok(pool)
    }

    /// Converts the limit to bytes.
    pub(super) fn resolve(source: &S, limit: Limit) -> Result<usize, SourceError> {
        Ok(match limit {
            Limit::None => usize::MAX,
            Limit::Bytes(bytes) => bytes,
            Limit::Fraction(part) => (source.capacity()?.total as f64 * part) as usize,
        })
    }

    /// Returns the source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns the most bytes that the pool may reserve; `usize::MAX` if there is no limit.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn admits(&self, state: &State<P, S>, bytes: usize) -> bool {
        state.figures.counted.reserved.current.saturating_add(bytes as u64) <= self.limit() as u64
    }

    /// Changes the limit to this many bytes; `usize::MAX` means no limit. Memory already reserved beyond the limit stays until it is free
    /// and [trimmed](RawPool::trim). O(1).
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] if the limit is 0 bytes.
    pub fn set_limit(&self, bytes: usize) -> Result<(), PoolError> {
        self.change_limit(Limit::Bytes(bytes))
    }

    /// Changes the limit like [`RawPool::set_limit`], to this fraction of the device's total memory.
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] if the fraction is not above 0 and at most 1, and [`PoolError::Source`] if the driver fails to report the
    /// device's memory.
    pub fn set_limit_fraction(&self, part: f64) -> Result<(), PoolError> {
        self.change_limit(Limit::Fraction(part))
    }

    fn change_limit(&self, limit: Limit) -> Result<(), PoolError> {
        limit.check()?;
        self.limit.store(Self::resolve(&self.source, limit)?, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the pressure by the bytes that the pool may still reserve, to its limit and from what is free on the device, of all that
    /// it may reserve. `before` is the previous result, at first [`Pressure::Normal`]. Marks for the largest free block do not count. Call
    /// this from [`Upkeep`](super::Upkeep); [trimming](RawPool::trim) raises the number of bytes. O(1) and a driver call.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if the driver fails to report the device's memory.
    pub fn pressure(&self, marks: Watermarks, before: Pressure) -> Result<Pressure, PoolError> {
        let Capacity { total, free } = self.source.capacity()?;
        let limit = self.limit();
        let reserved = self.lock().figures.counted.reserved.current;
        let room = limit.saturating_sub(usize::try_from(reserved).unwrap_or(usize::MAX));
        Ok(marks.next(before, free.min(room), total.min(limit)))
    }

    /// Returns the options.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, P, S> {
        self.state.lock()
    }

    /// Returns the number of guard granules before a block.
    #[inline(always)]
    pub(super) fn guard(&self, align: usize) -> usize {
        if self.options.checks.guard { align.max(self.unit) } else { 0 }
    }

    /// Returns the number of granules that a request occupies, guards included.
    #[inline(always)]
    pub(super) fn length(&self, bytes: usize, align: usize) -> usize {
        let len = granules(bytes, self.shift);
        let len = (len + (self.unit - 1)) & !(self.unit - 1);
        if self.options.checks.guard { len + self.guard(align) + self.unit } else { len }
    }

    /// Returns the classes of the options, in granules.
    pub(super) fn chosen_classes(&self) -> Vec<usize> {
        let mut classes: Vec<usize> =
            self.options.classes.iter().map(|&bytes| self.length(bytes, 1)).collect();
        classes.dedup();
        classes
    }

    /// Converts a request to granules, or fails if no pool could satisfy it.
    #[inline(always)]
    pub(super) fn request(&self, bytes: usize, align_bytes: usize) -> Result<Request, PoolError> {
        let max = P::MAX_LEN << self.shift;
        if bytes > max / 2 || !align_bytes.is_power_of_two() || align_bytes > max / 4 {
            return Err(PoolError::TooLarge { max: max / 2 });
        }
        let align = (align_bytes >> self.shift).max(1);
        let len = self.length(bytes, align);
        let kind = self.kind_of(bytes);
        Ok(Request { bytes, align_bytes, len, align, kind, classed: false })
    }

    /// Returns the kind of segments for requests of this many bytes.
    #[inline(always)]
    pub(super) fn kind_of(&self, bytes: usize) -> SizeKind {
        if bytes <= self.options.small_limit {
            SizeKind::Small
        } else if self.options.lean && bytes > self.options.exact_above {
            SizeKind::Huge
        } else {
            SizeKind::Large
        }
    }

    #[inline(always)]
    pub(super) fn new_allocation(
        &self,
        address: usize,
        bytes: usize,
        record: u32,
        serial: u32,
    ) -> Allocation {
        // The fallback is never used: no segment starts at address zero.
        let address = NonZeroUsize::new(address).unwrap_or(NonZeroUsize::MIN);
        Allocation { address, bytes, pool: self.id, record, serial }
    }

    /// Returns the address of the first byte that a block's user may access.
    #[inline(always)]
    pub(super) fn user_address(&self, state: &State<P, S>, record: &Record<P::Token>) -> usize {
        state.address(record) + (self.guard(1 << record.align) << self.shift)
    }

    /// Returns whether the block is from this pool.
    pub(super) fn is_owner(&self, allocation: &Allocation) -> bool {
        allocation.pool == self.id
    }

    /// Returns the record of an allocation, if it is live.
    #[inline(always)]
    pub(super) fn record(&self, state: &State<P, S>, allocation: &Allocation) -> Result<u32, PoolError> {
        let number = allocation.record;
        match state.lanes[lane_of(number as usize)].records.find(number) {
            Some(record) if allocation.pool == self.id => {
                let live = matches!(record.holder, Holder::Live | Holder::Shared);
                if live && record.serial == allocation.serial {
                    Ok(number)
                } else {
                    Err(PoolError::AlreadyFree)
                }
            }
            _ => Err(PoolError::Foreign),
        }
    }
}
