//! The front of a pool: the methods that its users call.

#![forbid(unsafe_code)]

use super::error::{OutOfMemory, PoolError};
use super::hooks::{Hooks, Place};
use super::lanes::{Held, Lanes};
use super::options::{Age, Checks, Limit, PoolOptions, Reuse};
use super::records::Record;
use super::snapshot::{Leak, LeakHook};
use super::state::{State, bytes_of};
use super::stats::{PoolStats, SourceCalls};
use super::streams::{Request, SizeKind};
use super::supply::Denied;
use super::usage::Usage;
use super::{CopyCounters, Source, SourceErrorKind, Stream, StreamId};
use crate::meta::SideTable;
use crate::placement::{GoodFit, SegmentPlacement};
use crate::units::granules;
use core::fmt;
use core::num::NonZeroUsize;
use core::panic::Location;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::boxed::Box;
use std::sync::{Arc, Mutex, PoisonError};

/// The placement of a [`DevicePool`]: good fit with granules of 256 bytes and segments of up to 512 GiB.
pub type DefaultPlacement = GoodFit<SideTable<u32, 256, 1, false>>;

/// A pool with the default placement.
pub type DevicePool<S> = Pool<DefaultPlacement, S>;

/// A block of a pool, identified by its address, its length and its record in the pool. Dropping an `Allocation`
/// does not free the block; [`Pool::allocate`] returns a [`Buffer`](super::Buffer), which frees itself.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the block stays allocated until `Pool::deallocate`"]
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
/// The placement is one of those that heaps use, over metadata in a [`SideTable`], because the pool never touches
/// the memory itself. A placement divides each segment of the source, each stream has segments of its own, and a
/// request is served from the segment whose longest free block is the shortest that suffices.
///
/// A block that is freed on its own stream is reused there at once, without any driver call. Other streams get the
/// memory when its last work is known to be done, which is queried without blocking; [`Reuse`] says what else they
/// may do. When there is no room, the pool takes these measures in turn and makes another attempt after each: it
/// reserves or lengthens a segment; gives empty segments whose work is done back to the source; waits for freed
/// blocks; gives back all empty segments; compacts movable blocks ([`Reuse::Aggressive`]); and calls the hooks of
/// [`Pool::register`]. With a [`Chain`](super::Chain), other pools come last.
///
/// All methods may be called from any thread. The pool has one lock, which it holds during driver calls but not
/// while hooks run. Once threads wait for it that use different streams, each stream's heap gets a lock of its own (up
/// to 8), and requests that the stream heap can serve take no other. An operation without driver calls takes the placement's
/// time plus O(log segments).
pub struct Pool<P: SegmentPlacement, S: Source> {
    pub(super) source: S,
    pub(super) options: PoolOptions,
    /// The most bytes that may be reserved.
    limit: AtomicUsize,
    /// Logarithm of the granule's size in bytes.
    pub(super) shift: u32,
    /// Granules that request lengths are rounded up to.
    unit: usize,
    pub(super) id: u32,
    /// Whether stream heaps can serve requests by themselves: nothing but the streams and their order is looked at.
    pub(super) is_direct: bool,
    /// Whether any check is on.
    pub(super) checked: bool,
    pub(super) hooks: Hooks,
    pub(super) on_leak: Mutex<Option<LeakHook>>,
    pub(super) copies: Arc<CopyCounters>,
    pub(super) state: Lanes<P, S>,
}

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Makes a pool, which reserves nothing yet.
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] if an option cannot work with this placement and source, and [`PoolError::Source`] if
    /// the limit is a fraction of the device's memory and the driver does not tell how much that is.
    pub fn new(source: S, options: PoolOptions) -> Result<Self, PoolError> {
        let granule = P::GRANULE;
        options.check(granule)?;
        if options.granule > source.alignment() {
            return Err(PoolError::Option("granule"));
        }
        let limit = Self::resolve(&source, options.limit)?;
        let ages = match options.trim_after {
            Some(Age::Time(age)) => Some(age),
            Some(Age::Steps(_)) => Some(Duration::MAX),
            None => options.adaptive.map(|_| Duration::MAX),
        };
        let checked = options.checks != Checks::default();
        let is_direct =
            ages.is_none() && !checked && matches!(options.reuse, Reuse::Advanced | Reuse::Aggressive);
        let mut state = State::new(ages);
        state.order.asks = options.captures.are_noticed();
        state.extra.usage =
            options.adaptive.map(|follow| Box::new(Usage::new(follow, options.reuse == Reuse::Basic)));
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let pool = Self {
            limit: AtomicUsize::new(limit),
            shift: granule.ilog2(),
            unit: (options.granule >> granule.ilog2()).max(1),
            id: POOLS.fetch_add(1, Ordering::Relaxed),
            is_direct,
            checked,
            hooks: Hooks::new(),
            on_leak: Mutex::new(None),
            copies: Arc::default(),
            state: Lanes::new(state),
            source,
            options,
        };
        if pool.options.reuse == Reuse::Basic {
            pool.lock().extra.classes = pool.given_classes();
        }
        Ok(pool)
    }

    /// Returns the source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The most bytes that may be reserved; `usize::MAX` if there is no limit.
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Memory that is reserved beyond it stays until it is free and [trimmed](Pool::trim). O(1).
    ///
    /// # Errors
    ///
    /// [`PoolError::Option`] if the limit is no fraction above 0 and up to 1, or no bytes, and [`PoolError::Source`] if it is a
    /// fraction of the device's memory and the driver does not tell how much that is.
    pub fn set_limit(&self, limit: Limit) -> Result<(), PoolError> {
        limit.check()?;
        self.limit.store(Self::resolve(&self.source, limit)?, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the options.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, P, S> {
        self.state.lock()
    }

    pub(super) fn state_mut(&mut self) -> &mut State<P, S> {
        self.state.get_mut()
    }

    /// Guard granules in front of a block.
    #[inline(always)]
    pub(super) fn guard(&self, align: usize) -> usize {
        if self.options.checks.guard { align.max(self.unit) } else { 0 }
    }

    /// The granules that a request takes, guards included.
    #[inline(always)]
    pub(super) fn length(&self, bytes: usize, align: usize) -> usize {
        let len = granules(bytes, self.shift);
        let len = (len + (self.unit - 1)) & !(self.unit - 1);
        if self.options.checks.guard { len + self.guard(align) + self.unit } else { len }
    }

    /// Converts a request to granules, if it can be served at all.
    #[inline(always)]
    pub(super) fn request(&self, bytes: usize, align_bytes: usize) -> Result<Request, PoolError> {
        let max = P::MAX_LEN << self.shift;
        if bytes > max / 2 || !align_bytes.is_power_of_two() || align_bytes > max / 4 {
            return Err(PoolError::TooLarge { max: max / 2 });
        }
        let align = (align_bytes >> self.shift).max(1);
        let len = self.length(bytes, align);
        let kind = if bytes <= self.options.small_limit {
            SizeKind::Small
        } else if self.options.lean && bytes > self.options.exact_above {
            SizeKind::Huge
        } else {
            SizeKind::Large
        };
        Ok(Request { bytes, align_bytes, len, align, kind, classed: false })
    }

    /// Allocates like [`Pool::allocate_aligned`], but returns an [`Allocation`], which does not free the block when
    /// it is dropped.
    ///
    /// # Errors
    ///
    /// The same errors as [`Pool::allocate_aligned`].
    #[track_caller]
    #[inline]
    pub fn allocate_raw(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<Allocation, PoolError> {
        let request = self.request(bytes, align)?;
        if self.is_direct {
            if let Some((address, record, serial)) = self.state.allocate(&request, stream) {
                return Ok(self.hand_out(address, bytes, record, serial));
            }
        }
        self.allocate_otherwise(request, stream, Location::caller())
    }

    /// Serves a request under the lock of everything: one that its stream's heap has no room for, or that others hear of.
    #[inline(never)]
    fn allocate_otherwise(
        &self,
        mut request: Request,
        stream: &S::Stream,
        site: &'static Location<'static>,
    ) -> Result<Allocation, PoolError> {
        let mut state = self.lock();
        let heap = match state.heap_of(stream.id()) {
            _ if state.order.asks && !matches!(stream.capture(), Ok(None)) => {
                // Memory of a device that was lost is no use to anyone.
                if let Err(error) = stream.capture() {
                    if error.kind == SourceErrorKind::Lost {
                        return Err(error.into());
                    }
                }
                self.open_heap(&mut state, |state| state.heap_in_capture(stream))?
            }
            Some(heap) => heap,
            None => self.open_heap(&mut state, |state| state.open_heap(stream))?,
        };
        self.state.hint(stream.id(), heap);
        let asked = request.len;
        if self.options.reuse == Reuse::Basic {
            state.extra.classify(&mut request);
        }
        let found = match self.options.reuse {
            Reuse::Advanced | Reuse::Aggressive => state.allocate(&request, heap, request.kind),
            Reuse::Basic => match self.take_kept(&mut state, &request, heap) {
                None => state.allocate(&request, heap, request.kind),
                kept => kept,
            },
            Reuse::None => None,
        };
        let number = match found {
            Some(number) => number,
            None => {
                let (held, number) = self.allocate_slow(state, &request, heap)?;
                state = held;
                number
            }
        };
        if state.extra.is_watched() {
            self.watch_allocation(&mut state, number, asked);
        }
        if self.checked {
            self.check_new(&mut state, number, site)?;
        }
        self.trim_due(&mut state);
        let record = state.record(number);
        let (address, serial) = (self.user_address(&state, record), record.serial);
        Ok(self.hand_out(address, request.bytes, number, serial))
    }

    #[inline(always)]
    fn hand_out(&self, address: usize, bytes: usize, record: u32, serial: u32) -> Allocation {
        // The fallback is never used: no segment starts at address zero.
        let address = NonZeroUsize::new(address).unwrap_or(NonZeroUsize::MIN);
        Allocation { address, bytes, pool: self.id, record, serial }
    }

    /// Tells the trace and the usage statistics of a block that became live. Apart from its class it is `asked`
    /// granules long.
    #[cold]
    fn watch_allocation(&self, state: &mut State<P, S>, number: u32, asked: usize) {
        if state.extra.trace.is_some() {
            self.trace_allocation(state, number);
        }
        let len = state.record(number).len as usize;
        let active = state.figures.active();
        if let Some(usage) = &mut state.extra.usage {
            usage.allocated(asked, len, active);
        }
    }

    /// Runs the chosen checks when a block becomes live.
    #[cold]
    fn check_new(
        &self,
        state: &mut State<P, S>,
        number: u32,
        site: &'static Location<'static>,
    ) -> Result<(), PoolError> {
        if self.options.checks.sites {
            state.extra.sites.insert(number, site);
        }
        self.prepare(state, number)
    }

    /// Address of the first byte that the user of a block gets.
    #[inline(always)]
    pub(super) fn user_address(&self, state: &State<P, S>, record: &Record<P::Token>) -> usize {
        state.address(record) + (self.guard(1 << record.align) << self.shift)
    }

    /// Opens a stream heap with `open`, if need be in the place of a stream that the program has dropped.
    #[cold]
    pub(super) fn open_heap(
        &self,
        state: &mut State<P, S>,
        open: impl Fn(&mut State<P, S>) -> Option<usize>,
    ) -> Result<usize, PoolError> {
        if let Some(heap) = open(state) {
            return Ok(heap);
        }
        self.sweep(state);
        open(state).ok_or(PoolError::TooManyStreams)
    }

    /// Reserves a segment of at least `bytes` bytes for `stream` now, so that later requests need no driver call. While
    /// the stream is being captured, it is for the graph.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if the source or the limit does not allow it, [`PoolError::TooLarge`],
    /// [`PoolError::TooManyStreams`], or another error of the source.
    pub fn preallocate(&self, bytes: usize, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let heap = self.open_heap(&mut state, |state| state.heap_in_capture(stream))?;
        let request = self.request(bytes, 1)?;
        let size = bytes.max(1).next_multiple_of(self.source.granularity());
        match self.reserve(&mut state, SizeKind::Large, heap, size) {
            Ok(_) => Ok(()),
            Err(Denied::Source(error)) if !error.is_out_of_memory() => Err(error.into()),
            Err(denied) => {
                Err(PoolError::OutOfMemory(self.out_of_memory(&mut state, &request, Some(denied)).into()))
            }
        }
    }

    /// Gives empty segments back to the source, and free pages of others where the source can take pages
    /// ([`Source::page`]), while at least `keep` bytes stay reserved. Returns the released bytes. Freed blocks whose events have passed count as free. The pool waits for nothing, though the driver
    /// itself may: memory whose stream has work left stays. An event that is recorded here may need a moment even on an idle stream,
    /// so a program that wants everything back calls this, synchronizes the stream and calls it again. Nothing is given back while a stream of the pool is capturing a graph. O(segments · log
    /// segments).
    pub fn trim(&self, keep: usize) -> usize {
        let mut state = self.lock();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        self.flush(&mut state);
        self.trim_to(&mut state, keep) + self.punch_all(&mut state, keep)
    }

    /// Ends a step of the program, such as a training iteration, and returns the bytes that were given back for it:
    /// segments that are older than [`PoolOptions::trim_after`](super::PoolOptions::trim_after) allows, and those
    /// beyond what [`PoolOptions::adaptive`](super::PoolOptions::adaptive) keeps. Nothing is given back
    /// while a stream of the pool is capturing a graph. O(segments · log segments), and once per window O(lengths²
    /// · classes) for at most 256 lengths.
    pub fn step(&self) -> usize {
        let mut state = self.lock();
        state.supply.step += 1;
        state.trace_step();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        let unused = self.follow(&mut state);
        unused + self.trim_aged(&mut state)
    }

    /// Returns freed blocks whose events have passed to their segments, without blocking, and returns how many
    /// there were. A request that finds no room does the same by itself. O(waiting blocks).
    pub fn collect(&self) -> usize {
        let mut state = self.lock();
        self.poll(&mut state)
    }

    /// Returns the statistics. O(stream heaps that have changed since they were last asked for).
    pub fn stats(&self) -> PoolStats {
        let mut state = self.lock();
        let largest = state.largest_free();
        let copies = self.copies.stats();
        PoolStats { copies, ..state.figures.stats(largest, state.supply.calls) }
    }

    /// Returns the counters that report copies to and from the pool's blocks, and fills of them. Code that makes
    /// such copies counts them here; [`PoolStats::copies`] shows the sums.
    pub fn copies(&self) -> &Arc<CopyCounters> {
        &self.copies
    }

    /// Returns the statistics of one stream, `None` if the pool does not know it. O(1).
    pub fn stream_stats(&self, stream: StreamId) -> Option<PoolStats> {
        let mut state = self.lock();
        let heap = state.heap_of(stream)?;
        let largest = bytes_of::<P>(state.longest(heap));
        Some(state.figures_of(heap).stats(largest, SourceCalls::default()))
    }

    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        self.hooks.reclaim(full, place)
    }

    /// Sets a hook that gets the blocks which were never freed, if there are any, when the pool is dropped. Without
    /// a hook they are written to standard error if [`Checks::sites`](super::Checks::sites) is on.
    pub fn on_leak(&self, hook: impl FnOnce(&[Leak]) + Send + 'static) {
        *self.on_leak.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Registers a hook that is asked to give memory back before a request fails. Hooks are called by priority,
    /// then in the order of registration, outside the pool's lock, and may free blocks of the pool.
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`](crate::pressure::TooManyHooks) if sixteen hooks are registered already.
    pub fn register(
        &self,
        priority: u8,
        hook: crate::pressure::Hook,
    ) -> Result<crate::pressure::HookId, crate::pressure::TooManyHooks> {
        self.hooks.register(priority, hook)
    }

    /// Removes a hook. Returns whether it was registered.
    pub fn unregister(&self, id: crate::pressure::HookId) -> bool {
        self.hooks.unregister(id)
    }
}

impl<P: SegmentPlacement, S: Source> fmt::Debug for Pool<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("source", &self.source.name()).field("stats", &self.stats()).finish()
    }
}

/// Waits for freed blocks that are still in use, and gives all segments back, including those with blocks that were
/// never freed. If the driver fails while it waits, the segments that work may still use stay reserved.
impl<P: SegmentPlacement, S: Source> Drop for Pool<P, S> {
    fn drop(&mut self) {
        let leaks = self.leaks();
        let hook = self.on_leak.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match hook {
            Some(hook) if !leaks.is_empty() => hook(&leaks),
            None if self.options.checks.sites => leaks.iter().for_each(|leak| std::eprintln!("{leak}")),
            _ => {}
        }
        let mut state = core::mem::replace(self.state_mut(), State::new(None));
        while self.wait_for_one(&mut state).is_some() {}
        let busy = self.order_releases(&state);
        let free = state.segments().map(|(number, _)| number).filter(|number| !busy.contains(number));
        for number in free.collect::<std::vec::Vec<u32>>() {
            let entry = state.entry_mut(number);
            entry.live = entry.holes;
            // There is no caller left who could see an error.
            let _ = self.release(&mut state, number);
        }
    }
}
