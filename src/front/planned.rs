//! A front that allocates planned requests from a plan, and everything else from the memory that it wraps.

use crate::error::{FreeError, misuse::invalid_free};
use crate::front::small::Block;
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, global_alloc, pass_on};
use crate::plan::{Live, PlanError, RecordedPlan, Recorder};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Number of planned requests to try, starting with the one that is due.
const WINDOW: usize = 16;

/// Statistics of an iteration, in progress or complete. Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct IterationReport {
    /// Number of requests since the iteration began.
    pub requests: usize,
    /// Number of requests allocated from the plan.
    pub hits: usize,
    /// Requested bytes.
    pub bytes: usize,
    /// Bytes allocated from the plan.
    pub planned_bytes: usize,
    /// Bytes of the plan's arena, or 0 without a plan.
    pub arena: usize,
    /// A lower bound in bytes: no plan for these requests can be smaller.
    pub lower_bound: usize,
    /// Bytes that the planned requests would take if none shared memory, minus the arena.
    pub saved: usize,
}

impl IterationReport {
    const NONE: Self =
        Self { requests: 0, hits: 0, bytes: 0, planned_bytes: 0, arena: 0, lower_bound: 0, saved: 0 };

    /// Returns the share of requests allocated from the plan, from 0 to 1, or 1 if there were no requests.
    pub fn hit_rate(&self) -> f32 {
        if self.requests == 0 { 1.0 } else { self.hits as f32 / self.requests as f32 }
    }
}

struct State<const N: usize> {
    plan: RecordedPlan<N>,
    /// The arena, with the plan's size and alignment; `None` without a plan.
    base: Option<NonNull<u8>>,
    /// Number of the planned request that is due next.
    next: usize,
    /// The live blocks in the arena, by offset.
    live: Live<N>,
    recorder: Recorder<N>,
    report: IterationReport,
    /// Whether an iteration has begun.
    begun: bool,
}

impl<const N: usize> State<N> {
    /// Finds a place for the request, if the plan has one.
    fn place(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let base = self.base?;
        let requests = self.plan.requests();
        let last = requests.len().min(self.next + WINDOW);
        let wanted = bytes(layout);
        // A smaller request may use the place that is due; later places must match exactly in size.
        let found = (self.next..last).find(|&k| {
            let size = requests[k].size;
            let fits = wanted == size || (k == self.next && wanted < size);
            fits && layout.align() <= requests[k].align && self.is_free(k)
        })?;
        self.next = found + 1;
        let offset = self.plan.offsets()[found];
        self.live.insert(offset, found);
        // SAFETY: places of the plan lie in the arena, and have as many bytes as their requests.
        unsafe {
            let block = base.add(offset);
            Block::clear_left_over(block, wanted);
            Some(block)
        }
    }

    /// Returns whether no live block occupies the place of request `k`. The plan alone does not guarantee this, because a run may free
    /// its blocks in a different order than the recorded one.
    fn is_free(&self, k: usize) -> bool {
        let (offset, size) = (self.plan.offsets()[k], self.plan.requests()[k].size);
        let [below, above] = self.live.neighbours(offset);
        // The other block's whole place counts, even if the block is smaller.
        let below =
            below.is_none_or(|(at, other)| at + self.plan.requests()[other].size <= offset && at != offset);
        below && above.is_none_or(|(at, _)| offset + size <= at)
    }

    fn count(&mut self, layout: Layout, block: NonNull<u8>, hit: bool) {
        if self.begun {
            self.recorder.allocated(block.addr().get(), bytes(layout), layout.align());
            let report = &mut self.report;
            report.requests += 1;
            report.bytes = report.bytes.saturating_add(layout.size());
            if hit {
                report.hits += 1;
                report.planned_bytes = report.planned_bytes.saturating_add(layout.size());
            }
        }
    }

    /// Returns the offset of a block in the arena, if it lies there.
    fn offset(&self, block: NonNull<u8>) -> Option<usize> {
        let offset = block.addr().get().checked_sub(self.base?.addr().get())?;
        (offset < self.plan.peak()).then_some(offset)
    }

    /// Removes the plan and returns the arena's address and layout. No block may be live in it.
    fn remove_arena(&mut self) -> Option<(NonNull<u8>, Layout)> {
        Some((self.base.take()?, arena(&self.plan)?))
    }
}

/// Returns the bytes of a request's place. A request of no bytes takes one, so that it has its own address, within the arena.
fn bytes(layout: Layout) -> usize {
    layout.size().max(1)
}

/// Returns the layout of the plan's arena, or `None` if the plan needs no memory.
fn arena<const N: usize>(plan: &RecordedPlan<N>) -> Option<Layout> {
    Layout::from_size_align(plan.peak(), plan.align()).ok().filter(|layout| layout.size() > 0)
}

/// A heap that allocates iterations from a plan of up to `N` requests, and everything else from the memory `M`.
///
/// [`PlannedHeap::begin`] marks the start of an iteration, whose requests are then recorded. [`PlannedHeap::replan`] makes a plan for the
/// iteration that has just ended and allocates its arena from `M`. From then on, each request gets the place that is due in the arena, if
/// it is not larger than the recorded request. If the run differs, it tries the next few places of exactly its size, and then `M`. A
/// request whose place is still occupied, because a block was not freed in time, goes to `M` too, so live blocks never overlap.
///
/// A request takes O(log n) and moves up to n words for n live blocks. Resizing allocates, copies and frees. Statistics are those of
/// `M`, in which the arena is one block.
///
/// ```
/// use allotment::{Heap, PlannedHeap, heap};
/// use core::alloc::{GlobalAlloc, Layout};
///
/// static HEAP: PlannedHeap<Heap, 16> = PlannedHeap::new(heap!(64 * 1024));
///
/// for _ in 0..3 {
///     HEAP.begin();
///     for size in [1000, 2000] {
///         let layout = Layout::from_size_align(size, 8)?;
///         // SAFETY: not empty, and freed with the same layout.
///         unsafe { HEAP.dealloc(HEAP.alloc(layout), layout) };
///     }
///     if HEAP.report().hits < 2 {
///         HEAP.replan()?;
///     }
/// }
/// let report = HEAP.report();
/// assert_eq!((report.hits, report.arena, report.saved), (2, 2000, 1000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlannedHeap<M: Memory, const N: usize, L = lock::Default> {
    heap: M,
    lock: Locked<State<N>, L>,
}

// SAFETY: the arena is a block of the heap, which moves along.
unsafe impl<const N: usize> Send for State<N> {}

impl<M: Memory, const N: usize, L: Lock> PlannedHeap<M, N, L> {
    /// Creates a heap without a plan, outside an iteration.
    pub const fn new(heap: M) -> Self {
        let state = State {
            plan: RecordedPlan::EMPTY,
            base: None,
            next: 0,
            live: Live::new(),
            recorder: Recorder::new(),
            report: IterationReport::NONE,
            begun: false,
        };
        Self { heap, lock: Locked::new(state) }
    }

    /// Returns the heap that allocates requests outside the plan.
    pub const fn heap(&self) -> &M {
        &self.heap
    }

    /// Begins an iteration: restarts the plan at its first request, and records all requests. O(1).
    pub fn begin(&self) {
        self.lock.with(|state| {
            state.next = 0;
            state.recorder.clear();
            state.report = IterationReport {
                arena: state.report.arena,
                lower_bound: state.report.lower_bound,
                saved: state.report.saved,
                ..IterationReport::default()
            };
            state.begun = true;
        });
    }

    /// Returns the statistics of the current iteration so far, or of the last one. O(1).
    pub fn report(&self) -> IterationReport {
        self.lock.with(|state| state.report)
    }

    /// Makes a plan for the iteration that has just ended. If the iteration made as many requests as the old plan has, no place becomes
    /// smaller. O(n²) outside the lock, with about 350 bytes of stack for each of the `N` requests. Allocations before the next
    /// [`PlannedHeap::begin`] are not part of an iteration.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the requests cannot be planned, if blocks of the old plan are live, or if the heap has no
    /// room for the new one.
    pub fn replan(&self) -> Result<(), PlanError> {
        let (recorder, old) = self.lock.with(|state| {
            state.begun = false;
            (state.recorder.clone(), state.plan)
        });
        let plan = recorder.plan_with(Some(&old))?;
        self.load(&plan)
    }

    /// Installs a plan recorded earlier, perhaps in another run.
    ///
    /// # Errors
    ///
    /// [`PlanError::Busy`] if a block of the old plan is live, [`PlanError::OutOfMemory`] if the heap has no
    /// room for the new plan.
    pub fn load(&self, plan: &RecordedPlan<N>) -> Result<(), PlanError> {
        let old = self.lock.with(|state| match state.live.len() {
            0 => Ok(state.remove_arena()),
            live => Err(PlanError::Busy { live }),
        })?;
        if let Some((base, layout)) = old {
            // SAFETY: the arena was allocated with this layout, and no block is live in it.
            unsafe { self.heap.deallocate(base, layout) };
        }
        let arena = arena(plan).map(|layout| (self.heap.allocate(layout), layout));
        let base = arena.and_then(|(base, _)| base);
        let installed = self.lock.with(|state| {
            // Another thread may have installed a plan first, whose blocks may be live.
            if state.base.is_some() {
                return false;
            }
            state.base = base;
            state.plan = if base.is_none() { RecordedPlan::EMPTY } else { *plan };
            state.next = 0;
            state.report.arena = state.plan.peak();
            state.report.lower_bound = state.plan.lower_bound();
            state.report.saved = state.plan.naive().saturating_sub(state.plan.peak());
            true
        });
        match arena {
            Some((Some(base), layout)) if !installed => {
                // SAFETY: the arena was allocated above with this layout and is not in use.
                unsafe { self.heap.deallocate(base, layout) };
                Err(PlanError::Busy { live: 0 })
            }
            Some((None, layout)) => Err(PlanError::OutOfMemory { requested: layout.size() }),
            _ => Ok(()),
        }
    }

    /// Returns the current plan.
    pub fn plan(&self) -> RecordedPlan<N> {
        self.lock.with(|state| state.plan)
    }

    /// Allocates from the plan, or else by `fall_back`. Returns the block, and whether it is from the plan.
    fn allocate_or(
        &self,
        layout: Layout,
        fall_back: impl FnOnce() -> Option<NonNull<u8>>,
    ) -> Option<(NonNull<u8>, bool)> {
        let planned = self.lock.with(|state| {
            let block = state.place(layout)?;
            state.count(layout, block, true);
            Some(block)
        });
        if let Some(block) = planned {
            return Some((block, true));
        }
        let block = fall_back()?;
        self.lock.with(|state| state.count(layout, block, false));
        Some((block, false))
    }
}

// SAFETY: blocks of the heap are passed on. Blocks of the arena are places of the plan, aligned as planned and
// within it; `is_free` keeps live ones disjoint, and the arena is freed only when none is live.
unsafe impl<M: Memory, const N: usize, L: Lock> Memory for PlannedHeap<M, N, L> {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.allocate_or(layout, || self.heap.allocate(layout)).map(|(block, _)| block)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (block, planned) = self.allocate_or(layout, || self.heap.allocate_zeroed(layout))?;
        if planned {
            // SAFETY: the block is live and has this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        Some(block)
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        let planned = self.lock.with(|state| {
            state.recorder.freed(block.addr().get());
            state.offset(block).map(|offset| state.live.remove(offset).is_some())
        });
        match planned {
            Some(true) => {}
            Some(false) => invalid_free(FreeError::AlreadyFree, block.addr().get()),
            // SAFETY: a block outside the arena belongs to the heap.
            None => unsafe { self.heap.deallocate(block, layout) },
        }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let live = self.lock.with(|state| {
            let offset = state.offset(block)?;
            Some(state.live.neighbours(offset)[0].is_some_and(|(at, _)| at == offset))
        });
        match live {
            Some(true) => Ok(()),
            Some(false) => Err(FreeError::AlreadyFree),
            None => self.heap.check(block, layout),
        }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.lock.with(|state| state.offset(block)).is_some() {
            return self.check(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.heap.check_owned(block, layout) }
    }

    /// Resizes nothing in place, since the plan has places for whole blocks only.
    unsafe fn try_resize(&self, _: NonNull<u8>, _: Layout, _: usize) -> bool {
        false
    }

    pass_on!(|self| self.heap; statistics, largest_free, region, out_of_memory, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, const N: usize, L: Lock] PlannedHeap<M, N, L>);
allocator!([M: Memory, const N: usize, L: Lock] PlannedHeap<M, N, L>);

impl<M: Memory, const N: usize, L> Drop for PlannedHeap<M, N, L> {
    fn drop(&mut self) {
        if let Some((base, layout)) = self.lock.get_mut().remove_arena() {
            // SAFETY: the arena was allocated with this layout; no block outlives its allocator.
            unsafe { self.heap.deallocate(base, layout) };
        }
    }
}
