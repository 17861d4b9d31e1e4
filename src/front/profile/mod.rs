//! [`HeapProfile`]: the stacks that hold a running program's memory.

mod forms;

use crate::front::observed;
use crate::lock::{self, Lock, Locked};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::observe::event::Sampler;
use crate::units::debug;
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Wraps a memory and keeps a heap profile: it samples one block per `mean` requested bytes on average, with the stack of its request.
/// Any thread may write the profile at any time.
///
/// ```
/// use allotment::{HeapProfile, os::Growing};
///
/// #[global_allocator]
/// static HEAP: HeapProfile<Growing> = HeapProfile::new(Growing::new(), 512 * 1024);
///
/// # fn main() -> std::io::Result<()> {
/// let held = vec![0_u8; 8 << 20];
/// let mut profile = Vec::new();
/// HEAP.write_pprof(&mut profile)?; // to a file, or as the answer to a request
/// # assert!(profile.starts_with(&[0x1f, 0x8b]) && held.len() > 0);
/// # Ok(())
/// # }
/// ```
///
/// Blocks are sampled at random (`allotment_event::Sampler`), so the estimates have no bias: in 19 of 20 cases their error is less than
/// twice the square root of the mean times the bytes. A resized block is sampled anew.
///
/// A request that is not sampled costs a subtraction in thread-local memory, and a free costs a load of a byte: together under one
/// percent of the time of most programs at 512 KiB. A sampled request walks the stack, and is recorded under a lock. The profile itself
/// takes about 100 bytes for each sampled block and each stack, from the program's global allocator.
pub struct HeapProfile<M, L = lock::Default> {
    memory: M,
    mean: u64,
    /// Number of sampled blocks at each address modulo [`NEAR`] granules. A count of 255 never changes, and means any number.
    near: [AtomicU8; NEAR],
    lock: Locked<State, L>,
}

const NEAR: usize = 1 << 14;

/// Most return addresses of a stack.
const FRAMES: usize = 64;

struct State {
    /// Size and stack number of each live sampled block, by address.
    live: BTreeMap<usize, (usize, usize)>,
    /// The number of each stack.
    numbers: BTreeMap<Box<[usize]>, usize>,
    /// Estimates of all requests so far, by stack number.
    asked: Vec<Estimate>,
}

/// Estimated blocks and bytes, from sampled blocks.
#[derive(Clone, Copy, Default)]
struct Estimate {
    blocks: f64,
    bytes: f64,
}

impl Estimate {
    fn add(&mut self, size: usize, mean: u64) {
        let weight = -1.0 / (-(size as f64) / mean as f64).exp_m1();
        self.blocks += weight;
        self.bytes += weight * size as f64;
    }
}

/// The data of a profile: each stack with its requests and the sizes of its live blocks.
struct Snapshot {
    mean: u64,
    stacks: Vec<(Box<[usize]>, Estimate, Vec<usize>)>,
}

/// A thread's state, usable at any time, since it is neither allocated nor dropped.
struct Thread {
    /// Whether the thread is inside the profiler, which does not sample its own requests.
    inside: Cell<bool>,
    /// Whether it also has the profile's lock, so that it cannot forget a block.
    locked: Cell<bool>,
    /// The mean for which `left` was drawn. Another profile may draw it anew at any time.
    mean: Cell<u64>,
    /// Bytes up to the next sample.
    left: Cell<u64>,
    random: Cell<u64>,
}

std::thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(false),
            locked: Cell::new(false),
            mean: Cell::new(0),
            left: Cell::new(0),
            random: Cell::new(0),
        }
    };
}

/// Sets a flag of the thread until dropped.
struct Flag(fn(&Thread) -> &Cell<bool>);

impl Flag {
    /// Returns `None` if the flag is set already.
    fn set(flag: fn(&Thread) -> &Cell<bool>) -> Option<Self> {
        THREAD.with(|thread| !flag(thread).replace(true)).then(|| Self(flag))
    }

    /// Marks the thread as inside the profiler.
    fn inside() -> Option<Self> {
        Self::set(|thread| &thread.inside)
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        THREAD.with(|thread| (self.0)(thread).set(false));
    }
}

impl<M, L: Lock> HeapProfile<M, L> {
    /// Samples one block per `mean` bytes requested from `memory`, such as 512 KiB; a smaller mean makes the estimates finer and costs
    /// more. `memory` must not have live blocks yet.
    pub const fn new(memory: M, mean: u64) -> Self {
        let state = State { live: BTreeMap::new(), numbers: BTreeMap::new(), asked: Vec::new() };
        Self {
            memory,
            mean: if mean == 0 { 1 } else { mean },
            near: [const { AtomicU8::new(0) }; NEAR],
            lock: Locked::new(state),
        }
    }

    /// Returns the memory. Blocks allocated or freed directly there are not sampled.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Writes each stack's live blocks and all its requests in the compressed format of `pprof`, for `pprof -http : PROGRAM FILE` and
    /// `allotment who`. O(sampled blocks), plus the time to look up function names.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_pprof(&self, out: impl Write) -> io::Result<()> {
        let _inside = Flag::inside();
        self.snapshot().write_pprof(out)
    }

    /// Writes the live sampled blocks as a trace, for `allotment who`, `diff` and `view`. O(sampled blocks), plus the time to look up
    /// function names.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub fn write_trace(&self, out: impl Write) -> io::Result<()> {
        let _inside = Flag::inside();
        self.snapshot().write_trace(out)
    }

    /// Runs `work` on the state; `None` if this thread is doing so already.
    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> Option<T> {
        let _locked = Flag::set(|thread| &thread.locked)?;
        let _inside = Flag::inside();
        Some(self.lock.with(work))
    }

    fn snapshot(&self) -> Snapshot {
        let stacks = self.with_state(|state| {
            let mut stacks: Vec<_> =
                state.asked.iter().map(|&asked| (Box::default(), asked, Vec::new())).collect();
            for (frames, &number) in &state.numbers {
                stacks[number].0 = frames.clone();
            }
            for &(size, number) in state.live.values() {
                stacks[number].2.push(size);
            }
            stacks
        });
        Snapshot { mean: self.mean, stacks: stacks.unwrap_or_default() }
    }

    /// Counts down to the next sampled request. Returns false if this one may be it.
    #[inline(always)]
    fn passes(&self, size: usize) -> bool {
        THREAD.with(|thread| {
            let left = thread.left.get();
            let passes = (size as u64) < left && thread.mean.get() == self.mean;
            if passes {
                thread.left.set(left - size as u64);
            }
            passes
        })
    }

    /// Returns whether to sample a request for which [`Self::passes`] returned false.
    #[cold]
    fn chooses(&self, size: usize) -> bool {
        THREAD.with(|thread| {
            let mut random = thread.random.get();
            if random == 0 {
                random = (thread as *const Thread).addr() as u64;
            }
            let mut draw = || Sampler::distance(self.mean, &mut random);
            let first = thread.mean.replace(self.mean) != self.mean;
            let distance = if first { draw() } else { 0 };
            let passes = (size as u64) < distance;
            thread.left.set(if passes { distance - size as u64 } else { draw() });
            thread.random.set(random);
            !passes && !thread.inside.get()
        })
    }

    fn near(&self, block: usize) -> &AtomicU8 {
        &self.near[block / 16 % NEAR]
    }

    /// Returns whether a block is certainly not sampled.
    #[inline(always)]
    fn is_unknown(&self, block: NonNull<u8>) -> bool {
        self.near(block.addr().get()).load(Ordering::Relaxed) == 0
    }

    /// Records a sampled block.
    #[inline(never)]
    fn keep(&self, block: NonNull<u8>, size: usize, frames: &[usize]) {
        let Some(_inside) = Flag::inside() else { return };
        let address = block.addr().get();
        self.with_state(|state| {
            let next = state.asked.len();
            let number = match state.numbers.get(frames) {
                Some(&known) => known,
                None => {
                    state.numbers.insert(frames.into(), next);
                    state.asked.push(Estimate::default());
                    next
                }
            };
            state.asked[number].add(size, self.mean);
            state.live.insert(address, (size, number));
            let near = self.near(address);
            near.store(near.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        });
    }

    /// Forgets a block that is about to be freed, if it was sampled.
    #[inline(never)]
    fn forget(&self, block: NonNull<u8>) {
        let address = block.addr().get();
        // The profile's own blocks, which it frees under its lock, were not sampled.
        self.with_state(|state| {
            let near = self.near(address);
            let blocks = near.load(Ordering::Relaxed);
            if state.live.remove(&address).is_some() && blocks < u8::MAX {
                near.store(blocks - 1, Ordering::Relaxed);
            }
        });
    }
}

/// Walks the stack, outside all locks: the unwinder may wait for the dynamic linker's lock, whose holder may be allocating.
#[inline(never)]
fn walk(frames: &mut [usize; FRAMES]) -> &[usize] {
    let Some(_inside) = Flag::inside() else { return &[] };
    observed::walk(frames)
}

impl<M: Memory, L: Lock> HeapProfile<M, L> {
    /// Records a sampled block, with the stack.
    #[cold]
    fn kept(&self, layout: Layout, block: Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        let mut frames = [0; FRAMES];
        let block = block?;
        self.keep(block, layout.size(), walk(&mut frames));
        Some(block)
    }
}

// SAFETY: blocks come from the memory, which keeps the contract.
unsafe impl<M: Memory, L: Lock> Memory for HeapProfile<M, L> {
    allocate!(self.memory; |self, layout, request| {
        let block = request(layout);
        if self.passes(layout.size()) || !self.chooses(layout.size()) { block } else { self.kept(layout, block) }
    });

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if !self.is_unknown(block) {
            self.forget(block);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        if !unsafe { self.memory.try_resize(block, layout, size) } {
            return false;
        }
        if !self.is_unknown(block) {
            self.forget(block);
        }
        if !self.passes(size) && self.chooses(size) {
            self.keep(block, size, walk(&mut [0; FRAMES]));
        }
        true
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        let chosen = !self.passes(new.size()) && self.chooses(new.size());
        if !chosen && self.is_unknown(block) {
            // SAFETY: the caller's contract.
            return unsafe { self.memory.change(block, old, new, done) };
        }
        let mut frames = [0; FRAMES];
        let frames = if chosen { walk(&mut frames) } else { &[] };
        let told = &mut |moved: NonNull<u8>| {
            self.forget(block);
            if chosen {
                self.keep(moved, new.size(), frames);
            }
            done(moved);
        };
        // SAFETY: the caller's contract.
        unsafe { self.memory.change(block, old, new, told) }
    }

    pass_on!(|self| self.memory; check, statistics, largest_free, region, out_of_memory, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, L: Lock] HeapProfile<M, L>);
allocator!([M: Memory, L: Lock] HeapProfile<M, L>);

debug!([M, L] HeapProfile<M, L>, |self|);
