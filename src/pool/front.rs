//! The front of a pool: what its users call.

use super::error::{PoolError, ReturnError};
use super::hooks::{Hooks, Place};
use super::options::{Checks, PoolOptions, Reuse};
use super::records::{Holder, Record};
use super::snapshot::{Leak, LeakHook};
use super::state::{Ask, SizeKind, State};
use super::stats::PoolStats;
use super::{Buffer, CopyCounters, OptionsError, OutOfMemory, Segment, Source, Stream, StreamId};
use crate::meta::{Meta, SideTable};
use crate::placement::{GoodFit, Space, Token};
use crate::units::granules;
use core::fmt;
use core::num::NonZeroUsize;
use core::panic::Location;
use core::sync::atomic::{AtomicU32, Ordering};
use std::boxed::Box;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// The placement of a [`DevicePool`]: granules of 256 bytes, segments of up to 512 GiB.
pub type DefaultPlacement = GoodFit<SideTable<u32, 256, 1, false>>;

/// A pool with the placement that suits most.
pub type DevicePool<S> = Pool<DefaultPlacement, S>;

/// A block of a pool, as whoever frees it names it: address, length, and where it is written down. It does
/// nothing when it is dropped; [`Pool::allocate`] returns a [`Buffer`] that frees itself.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "the block stays allocated until `Pool::deallocate`"]
pub struct Allocation {
    address: NonZeroUsize,
    bytes: usize,
    pool: u32,
    record: u32,
    serial: u32,
}

impl Allocation {
    /// Address of its first byte, as the device counts.
    pub const fn address(&self) -> usize {
        self.address.get()
    }

    /// Its length in bytes, as asked for.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Memory from a source, divided by a placement, in the order of streams.
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
/// The placement is one of those that heaps use, over metadata in a [`SideTable`], since the memory itself is never
/// touched. Each segment of the source is divided by a placement of its own, each stream has segments
/// of its own, and a request is served by the segment whose longest free block is the shortest that is long enough.
///
/// A block that is freed on its own stream is used again there at once, without any call of the driver. Other streams
/// get memory when its last work is known to be over, which is asked for without blocking ([`Reuse`] says what
/// else they do). When there is no room left, these are tried in turn, each followed by another attempt: a larger or
/// lengthened segment; segments that are empty and over go back; what waits for events is waited for; all empty
/// segments go back; in an aggressive pool movable blocks are moved together; the hooks of `Pool::register` (feature
/// `pressure`); and with a [`Chain`](super::Chain), other pools.
///
/// All methods may be called from any thread; there is one lock, which is held during calls of the
/// driver but not of hooks. An operation without such calls takes what the placement takes, O(log segments), and O(1).
pub struct Pool<P: Space, S: Source> {
    pub(super) source: S,
    pub(super) options: PoolOptions,
    /// Bytes that may be reserved.
    pub(super) limit: usize,
    /// Lengths of the classes in granules, where blocks are kept by class.
    pub(super) class_lens: Vec<usize>,
    /// Logarithm of the granule's bytes.
    shift: u32,
    /// Granules that requests are rounded up to.
    unit: usize,
    id: u32,
    /// Whether any check was chosen.
    checked: bool,
    hooks: Hooks,
    on_leak: Mutex<Option<LeakHook>>,
    copies: Arc<CopyCounters>,
    state: Mutex<State<P, S>>,
}

impl<P: Space, S: Source> Pool<P, S> {
    /// A pool that has reserved nothing yet.
    ///
    /// # Errors
    ///
    /// [`PoolError::Options`], and [`PoolError::Source`] if the limit is a part of the device's memory and the driver
    /// does not tell that.
    pub fn new(source: S, options: PoolOptions) -> Result<Self, PoolError> {
        let granule = <P::Meta as Meta>::GRANULE;
        options.check(granule)?;
        if options.granule > source.alignment() {
            return Err(OptionsError { option: "granule" }.into());
        }
        let limit = Self::resolve(&source, options.limit)?;
        static POOLS: AtomicU32 = AtomicU32::new(0);
        let mut pool = Self {
            limit,
            class_lens: Vec::new(),
            shift: granule.ilog2(),
            unit: (options.granule >> granule.ilog2()).max(1),
            id: POOLS.fetch_add(1, Ordering::Relaxed),
            checked: options.checks != Checks::default(),
            hooks: Hooks::new(),
            on_leak: Mutex::new(None),
            copies: Arc::default(),
            state: Mutex::new(State::new(options.trim_after.is_some())),
            source,
            options,
        };
        if pool.options.reuse == Reuse::Basic {
            pool.class_lens = pool.options.classes.iter().map(|&bytes| pool.length(bytes, 1)).collect();
            pool.class_lens.dedup();
        }
        Ok(pool)
    }

    /// The source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The options.
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    #[inline(always)]
    pub(super) fn lock(&self) -> MutexGuard<'_, State<P, S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state_mut(&mut self) -> &mut State<P, S> {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Granules in front of a block that nobody gets.
    #[inline(always)]
    pub(super) fn guard(&self, align: usize) -> usize {
        if self.options.checks.guard { align.max(self.unit) } else { 0 }
    }

    /// Granules that a request takes, guards included.
    #[inline(always)]
    fn length(&self, bytes: usize, align: usize) -> usize {
        let len = granules(bytes, self.shift);
        let len = (len + (self.unit - 1)) & !(self.unit - 1);
        if self.options.checks.guard { len + self.guard(align) + self.unit } else { len }
    }

    /// A request in granules, if it can be served at all.
    #[inline(always)]
    fn ask(&self, bytes: usize, align_bytes: usize) -> Result<Ask, PoolError> {
        let max = P::MAX_LEN << self.shift;
        if bytes > max / 2 || !align_bytes.is_power_of_two() || align_bytes > max / 4 {
            return Err(PoolError::TooLarge { max: max / 2 });
        }
        let align = (align_bytes >> self.shift).max(1);
        let mut len = self.length(bytes, align);
        let kind = if bytes <= self.options.small_limit {
            SizeKind::Small
        } else if self.options.lean && bytes > self.options.exact_above {
            SizeKind::Huge
        } else {
            SizeKind::Large
        };
        let mut class = None;
        if !self.class_lens.is_empty() && align == 1 {
            class = self.class_lens.iter().position(|&class| class >= len);
            len = class.map_or(len, |class| self.class_lens[class]);
        }
        Ok(Ask { bytes, align_bytes, len, align, kind, class })
    }

    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule; no bytes take a granule.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &S::Stream) -> Result<Buffer<'_, P, S>, PoolError> {
        self.allocate_aligned(bytes, 1, stream)
    }

    /// As [`Pool::allocate`], with the address a multiple of `align` bytes, a power of two.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<Buffer<'_, P, S>, PoolError> {
        Ok(Buffer::new(self, self.allocate_raw(bytes, align, stream)?))
    }

    /// As [`Pool::allocate_aligned`], without a value that frees the block.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    #[track_caller]
    #[inline]
    pub fn allocate_raw(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<Allocation, PoolError> {
        let site = Location::caller();
        let ask = self.ask(bytes, align)?;
        let mut state = self.lock();
        let arena = match state.arena_of(stream.id()) {
            Some(arena) => arena,
            None => self.open_arena(&mut state, stream)?,
        };
        let found = match self.options.reuse {
            Reuse::Advanced | Reuse::Aggressive => state.allocate(&ask, arena, ask.kind),
            Reuse::Basic => match self.take_kept(&mut state, &ask, arena) {
                None => state.allocate(&ask, arena, ask.kind),
                kept => kept,
            },
            Reuse::None => None,
        };
        let number = match found {
            Some(number) => number,
            None => {
                let (held, number) = self.allocate_slow(state, &ask, arena)?;
                state = held;
                number
            }
        };
        if self.checked {
            self.check_new(&mut state, number, site)?;
        }
        Ok(self.hand_out(&state, number, &ask))
    }

    #[inline(always)]
    fn hand_out(&self, state: &State<P, S>, number: u32, ask: &Ask) -> Allocation {
        let record = state.records.get(number);
        // Segments do not start at address zero.
        let address = NonZeroUsize::new(self.user_address(state, record)).unwrap_or(NonZeroUsize::MIN);
        Allocation { address, bytes: ask.bytes, pool: self.id, record: number, serial: record.serial }
    }

    /// What the chosen checks do when a block becomes live.
    #[cold]
    fn check_new(
        &self,
        state: &mut State<P, S>,
        number: u32,
        site: &'static Location<'static>,
    ) -> Result<(), PoolError> {
        if self.options.checks.sites {
            state.sites.insert(number, site);
        }
        self.prepare(state, number)
    }

    /// What the chosen checks do when a block is freed.
    #[cold]
    fn check_old(&self, state: &mut State<P, S>, number: u32) -> Result<(), ReturnError> {
        state.sites.remove(&number);
        self.inspect(state, number)
    }

    /// Address of the first byte of a block that its user gets.
    #[inline(always)]
    pub(super) fn user_address(&self, state: &State<P, S>, record: &Record<Token<P>>) -> usize {
        state.address(record) + (self.guard(1 << record.align) << self.shift)
    }

    /// Whether the block is from this pool.
    pub(super) fn is_owner(&self, allocation: &Allocation) -> bool {
        allocation.pool == self.id
    }

    #[cold]
    fn open_arena(&self, state: &mut State<P, S>, stream: &S::Stream) -> Result<usize, PoolError> {
        state.open_arena(stream, self.class_lens.len()).ok_or(PoolError::TooManyStreams)
    }

    /// The record of an allocation, if it is live.
    #[inline(always)]
    pub(super) fn record(&self, state: &State<P, S>, allocation: &Allocation) -> Result<u32, ReturnError> {
        let number = allocation.record;
        match state.records.find(number) {
            Some(record) if allocation.pool == self.id => {
                let live = matches!(record.holder, Holder::Live | Holder::Shared);
                if live && record.serial == allocation.serial {
                    Ok(number)
                } else {
                    Err(ReturnError::AlreadyFree)
                }
            }
            _ => Err(ReturnError::Foreign),
        }
    }

    /// Frees a block. It may be used again at once by what is submitted to its stream from here on; by other
    /// streams when the work that was submitted up to here is over, also that on the streams of
    /// [`Pool::note_use`].
    ///
    /// # Errors
    ///
    /// [`ReturnError::Foreign`] if it is from another pool, and what the chosen checks find.
    #[inline]
    pub fn deallocate(&self, allocation: Allocation) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, &allocation)?;
        let sound = if self.checked { self.check_old(&mut state, number) } else { Ok(()) };
        self.free(&mut state, number);
        sound
    }

    /// As [`Pool::deallocate`], where the last work on the block was submitted to `stream`, which its own stream need
    /// not wait for: it gets the block back after an event.
    ///
    /// # Errors
    ///
    /// As [`Pool::deallocate`].
    pub fn deallocate_on(&self, allocation: Allocation, stream: &S::Stream) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, &allocation)?;
        let sound = if self.checked { self.check_old(&mut state, number) } else { Ok(()) };
        self.free_on(&mut state, number, stream);
        sound
    }

    /// Frees the block at an address that was allocated and not freed yet, for callers that keep nothing else.
    /// O(blocks).
    ///
    /// # Errors
    ///
    /// [`ReturnError::AlreadyFree`] if the address is in a segment of the pool, [`ReturnError::Foreign`] if not.
    pub fn deallocate_at(&self, address: usize) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let live = |holder| matches!(holder, Holder::Live | Holder::Shared);
        let found = state
            .records
            .iter()
            .find(|(_, record)| live(record.holder) && self.user_address(&state, record) == address);
        let Some((number, _)) = found else {
            let mut segments = state.segments.iter().flatten();
            let memory =
                segments.find(|entry| address.wrapping_sub(entry.memory.address.get()) < entry.memory.bytes);
            return Err(if memory.is_some() { ReturnError::AlreadyFree } else { ReturnError::Foreign });
        };
        let sound = if self.checked { self.check_old(&mut state, number) } else { Ok(()) };
        self.free(&mut state, number);
        sound
    }

    /// Notes that work on `stream` uses the block: when it is freed, nobody else gets it before that work is over.
    /// O(streams of the block).
    ///
    /// # Errors
    ///
    /// [`ReturnError::Foreign`] if it is from another pool.
    pub fn note_use(&self, allocation: &Allocation, stream: &S::Stream) -> Result<(), ReturnError> {
        let mut state = self.lock();
        let number = self.record(&state, allocation)?;
        let (id, own) = (stream.id(), usize::from(state.records.get(number).arena));
        if state.arenas[own].id == id {
            return Ok(());
        }
        let users = state.users.entry(number).or_default();
        if !users.iter().any(|user| user.id() == id) {
            users.push(stream.clone());
        }
        state.records.get_mut(number).holder = Holder::Shared;
        Ok(())
    }

    /// The segment that a block is in, as it is now; `None` if it is not a block of this pool. O(1).
    pub fn segment_of(&self, allocation: &Allocation) -> Option<Segment> {
        let state = self.lock();
        let number = self.record(&state, allocation).ok()?;
        Some(state.entry(state.records.get(number).segment).memory)
    }

    /// Reserves a segment of at least `bytes` bytes for `stream` now.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    pub fn preallocate(&self, bytes: usize, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let arena = match state.arena_of(stream.id()) {
            Some(arena) => arena,
            None => self.open_arena(&mut state, stream)?,
        };
        if self.is_recording(&state) {
            return Err(PoolError::Capturing);
        }
        let ask = self.ask(bytes, 1)?;
        let size = bytes.max(1).checked_next_multiple_of(self.source.granularity());
        let size = size.ok_or(PoolError::TooLarge { max: (P::MAX_LEN << self.shift) / 2 })?;
        match self.reserve(&mut state, SizeKind::Large, arena, size) {
            Ok(_) => Ok(()),
            Err(super::grow::Denied::Source(error)) if !error.is_out_of_memory() => Err(error.into()),
            Err(denied) => Err(PoolError::OutOfMemory(self.out_of_memory(&state, &ask, Some(denied)).into())),
        }
    }

    /// Gives empty segments back to the source as long as `keep` bytes stay reserved; how many bytes. Freed blocks
    /// whose events have passed are counted as free; nothing is waited for but what the driver itself waits for. Nothing
    /// is given back while a stream of the pool records a graph.
    /// O(segments · log segments).
    pub fn trim(&self, keep: usize) -> usize {
        let mut state = self.lock();
        if self.is_recording(&state) {
            return 0;
        }
        self.poll(&mut state);
        self.flush(&mut state);
        self.trim_to(&mut state, keep)
    }

    /// Ends a step of the program, an iteration of a training for example, and gives back what is older than
    /// [`PoolOptions::trim_after`] says, unless a stream of the pool records a graph; how many bytes. O(segments).
    pub fn step(&self) -> usize {
        let mut state = self.lock();
        state.step += 1;
        if self.is_recording(&state) {
            return 0;
        }
        self.poll(&mut state);
        self.trim_aged(&mut state)
    }

    /// Returns freed blocks whose events have passed to where all requests find them, without blocking; how many.
    /// A request that finds no room does the same by itself.
    pub fn collect(&self) -> usize {
        let mut state = self.lock();
        if self.is_recording(&state) { 0 } else { self.poll(&mut state) }
    }

    /// The statistics. O(streams).
    pub fn stats(&self) -> PoolStats {
        let state = self.lock();
        let copies = self.copies.stats();
        PoolStats { copies, ..state.figures.stats(state.largest_free(), state.calls) }
    }

    /// Counters that whoever copies from or to the pool's blocks, or fills them, tells so: [`PoolStats::copies`].
    pub fn copies(&self) -> &Arc<CopyCounters> {
        &self.copies
    }

    /// The statistics of one stream, `None` if the pool does not know it. O(1).
    pub fn stream_stats(&self, stream: StreamId) -> Option<PoolStats> {
        let mut state = self.lock();
        let arena = state.arena_of(stream)?;
        let largest = super::state::bytes_of::<P>(state.longest(arena));
        Some(state.figures_of(arena).stats(largest, super::stats::SourceCalls::default()))
    }

    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        self.hooks.reclaim(full, place)
    }

    /// Calls `hook` with the blocks that were never freed, if there are any, when the pool is dropped. Without a hook,
    /// and with [`Checks::sites`], they are written to standard error.
    pub fn on_leak(&self, hook: impl FnOnce(&[Leak]) + Send + 'static) {
        *self.on_leak.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Registers a hook that is asked to give memory back before a request fails, by priority, then in the order of
    /// registration. It is called outside of the pool's lock and may free blocks.
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`](crate::pressure::TooManyHooks) beyond sixteen.
    #[cfg(feature = "pressure")]
    pub fn register(
        &self,
        priority: u8,
        hook: crate::pressure::Hook,
    ) -> Result<crate::pressure::HookId, crate::pressure::TooManyHooks> {
        self.hooks.register(priority, hook)
    }

    /// Takes a hook out; whether it was there.
    #[cfg(feature = "pressure")]
    pub fn unregister(&self, id: crate::pressure::HookId) -> bool {
        self.hooks.unregister(id)
    }
}

impl<P: Space, S: Source> fmt::Debug for Pool<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("source", &self.source.name()).field("stats", &self.stats()).finish()
    }
}

/// Waits for what was freed and is in use still, and gives all segments back. Blocks that were never freed go with
/// them.
impl<P: Space, S: Source> Drop for Pool<P, S> {
    fn drop(&mut self) {
        let leaks = self.leaks();
        let hook = self.on_leak.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match hook {
            Some(hook) if !leaks.is_empty() => hook(&leaks),
            None if self.options.checks.sites => leaks.iter().for_each(|leak| std::eprintln!("{leak}")),
            _ => {}
        }
        let mut state = core::mem::replace(self.state_mut(), State::new(false));
        while self.wait_for_one(&mut state).is_some() {}
        for number in 0..state.segments.len() as u32 {
            if let Some(entry) = state.segments[number as usize].as_deref_mut() {
                entry.live = 0;
                // An error is not for anybody to see any more.
                let _ = self.release(&mut state, number);
            }
        }
    }
}
