//! Recorded plans: a program records one iteration, and allocates the next ones from a plan for it.
//!
//! Repetitive programs, such as training or control loops, make the same requests in every iteration. After one
//! iteration all sizes and lifetimes are known. ONNX Runtime calls this a *memory pattern*.

#![forbid(unsafe_code)]

use super::search::{Found, search};
use super::{Buffer, PlanError, RULES, order::Arrays};

/// Value of `end` for a lifetime that has not ended.
const OPEN: u32 = u32::MAX;

/// A request of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Request {
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// The number of the request among all requests and frees of the iteration.
    pub start: u32,
    /// The number of the free among all requests and frees of the iteration.
    pub end: u32,
}

impl Request {
    const NONE: Self = Self { size: 0, align: 0, start: 0, end: 0 };
}

/// Records the requests and frees of one iteration: the first `N` requests, in fixed memory.
///
/// ```
/// use allotment::plan::Recorder;
///
/// let mut recorder = Recorder::<8>::new();
/// recorder.allocated(0x1000, 100, 8);
/// recorder.allocated(0x2000, 200, 8);
/// recorder.freed(0x1000);
/// recorder.allocated(0x3000, 80, 8);
/// recorder.freed(0x2000);
/// recorder.freed(0x3000);
/// let plan = recorder.plan()?;
/// assert_eq!((plan.len(), plan.peak(), plan.naive()), (3, 300, 384));
/// # Ok::<(), allotment::plan::PlanError>(())
/// ```
#[derive(Clone)]
pub struct Recorder<const N: usize> {
    requests: [Request; N],
    len: usize,
    /// Number of requests for which there was no room.
    lost: usize,
    /// The number of the next event.
    now: u32,
    live: Live<N>,
}

impl<const N: usize> Default for Recorder<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Recorder<N> {
    /// Creates an empty recorder.
    pub const fn new() -> Self {
        Self { requests: [Request::NONE; N], len: 0, lost: 0, now: 0, live: Live::new() }
    }

    /// Starts again with a new iteration. O(1).
    pub fn clear(&mut self) {
        (self.len, self.lost, self.now) = (0, 0, 0);
        self.live.clear();
    }

    /// Records that a block of `size` bytes, aligned to `align` bytes, was allocated at `address`. O(log n), and moves up to `N` words.
    pub fn allocated(&mut self, address: usize, size: usize, align: usize) {
        if self.len == N || self.now >= OPEN - 1 {
            self.lost += 1;
            return;
        }
        self.requests[self.len] = Request { size, align, start: self.now, end: OPEN };
        self.live.insert(address, self.len);
        self.len += 1;
        self.now += 1;
    }

    /// Records that the block at `address` was freed. Ignores unknown blocks, which are older than the iteration. O(log n), and moves up
    /// to `N` words.
    pub fn freed(&mut self, address: usize) {
        if let Some(request) = self.live.remove(address) {
            self.requests[request].end = self.now;
            self.now = (self.now + 1).min(OPEN - 1);
        }
    }

    /// Returns the requests so far. The end of a request that is still live is [`u32::MAX`].
    pub fn requests(&self) -> &[Request] {
        &self.requests[..self.len]
    }

    /// Returns how many requests came after the recorder was full. The plan does not include them. O(1).
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Plans all requests whose blocks were freed; blocks that outlive the iteration are left to the heap. O(n²), with about 250 bytes of
    /// stack for each of the `N` requests.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if the sum of the sizes overflows.
    pub fn plan(&self) -> Result<RecordedPlan<N>, PlanError> {
        self.plan_with(None)
    }

    /// Plans like [`Recorder::plan`]. If `old` has as many requests, no place becomes smaller than in `old`.
    pub(crate) fn plan_with(&self, old: Option<&RecordedPlan<N>>) -> Result<RecordedPlan<N>, PlanError> {
        let mut plan = RecordedPlan::EMPTY;
        for request in self.requests() {
            if request.end != OPEN {
                plan.requests[plan.len] = *request;
                plan.len += 1;
            }
        }
        if let Some(old) = old.filter(|old| old.len == plan.len) {
            for (new, old) in plan.requests[..plan.len].iter_mut().zip(&old.requests) {
                new.size = new.size.max(old.size);
                new.align = new.align.max(old.align);
            }
        }
        plan.place()?;
        Ok(plan)
    }
}

/// A plan for an iteration: a place for each of up to `N` requests.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RecordedPlan<const N: usize> {
    requests: [Request; N],
    offsets: [usize; N],
    len: usize,
    peak: usize,
    bound: usize,
}

impl<const N: usize> RecordedPlan<N> {
    /// The plan for an iteration without requests.
    pub const EMPTY: Self = Self { requests: [Request::NONE; N], offsets: [0; N], len: 0, peak: 0, bound: 0 };

    /// Returns the number of requests. O(1).
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no requests. O(1).
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes that the plan needs. O(1).
    pub const fn peak(&self) -> usize {
        self.peak
    }

    /// Returns the bytes that every plan needs. O(1).
    pub const fn lower_bound(&self) -> usize {
        self.bound
    }

    /// Returns the bytes that the requests would take if none shared memory. O(n).
    pub fn naive(&self) -> usize {
        self.requests().iter().map(|request| request.size.next_multiple_of(request.align)).sum()
    }

    /// Returns the largest alignment in bytes. O(n).
    pub fn align(&self) -> usize {
        self.requests().iter().map(|request| request.align).max().unwrap_or(1)
    }

    /// Returns the requests in their original order.
    pub fn requests(&self) -> &[Request] {
        &self.requests[..self.len]
    }

    /// Returns the offsets in bytes.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets[..self.len]
    }

    /// Computes the offsets.
    fn place(&mut self) -> Result<(), PlanError> {
        let n = self.len;
        let mut buffers = [Buffer::new(0, 0..1); N];
        for (buffer, request) in buffers.iter_mut().zip(self.requests()) {
            *buffer = Buffer::new(request.size as u64, request.start.into()..request.end.into())
                .align(request.align as u64);
        }
        let buffers = &buffers[..n];
        let (mut offsets, mut arrays) = ([0; N], Arrays::<N>::new());
        let Found { peak, bound, .. } = search(buffers, &RULES, &mut offsets[..n], &mut arrays.scratch(n))?;
        self.peak = usize::try_from(peak)
            .ok()
            .filter(|&peak| peak <= isize::MAX as usize)
            .ok_or(PlanError::TooLarge(n.saturating_sub(1)))?;
        // The bound and all offsets are at most the peak, so they fit.
        self.bound = bound as usize;
        for (to, from) in self.offsets.iter_mut().zip(offsets) {
            *to = from as usize;
        }
        Ok(())
    }
}

/// Up to `N` blocks, each with an address or offset and the number of its request.
#[derive(Clone, Copy)]
pub(crate) struct Live<const N: usize> {
    keys: [usize; N],
    requests: [u16; N],
    len: usize,
}

impl<const N: usize> Live<N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N <= u16::MAX as usize, "more requests than 16 bits can number") }
        Self { keys: [0; N], requests: [0; N], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Inserts a block whose key is not present, or does nothing if there is no room. O(log n) comparisons; moves the entries above.
    pub(crate) fn insert(&mut self, key: usize, request: usize) {
        let at = self.above(key);
        if self.len == N {
            return;
        }
        self.keys.copy_within(at..self.len, at + 1);
        self.requests.copy_within(at..self.len, at + 1);
        (self.keys[at], self.requests[at]) = (key, request as u16);
        self.len += 1;
    }

    /// Removes the block at `key`. O(log n) comparisons; moves the entries above.
    pub(crate) fn remove(&mut self, key: usize) -> Option<usize> {
        let at = self.keys[..self.len].binary_search(&key).ok()?;
        let request = usize::from(self.requests[at]);
        self.keys.copy_within(at + 1..self.len, at);
        self.requests.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(request)
    }

    /// Returns the neighbours of `key`: the block at or below it, and the block above it. O(log n).
    pub(crate) fn neighbours(&self, key: usize) -> [Option<(usize, usize)>; 2] {
        let at = self.above(key);
        let get = |at: usize| Some((self.keys[at], usize::from(self.requests[at])));
        [if at > 0 { get(at - 1) } else { None }, if at < self.len { get(at) } else { None }]
    }

    fn above(&self, key: usize) -> usize {
        self.keys[..self.len].partition_point(|&other| other <= key)
    }
}
