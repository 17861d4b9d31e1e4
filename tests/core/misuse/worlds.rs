//! Small worlds, searched exhaustively: every sequence of allocating, freeing and resizing up to some depth, in arenas of a
//! few granules, per placement and level, with all invariants checked after each step.
//!
//! A state is the arena's bytes and the live blocks, but not the heap's own value, so that each sequence is a path of its own
//! and the number of steps counts paths. Heaps are not copied: a path is replayed from its start.

use crate::shadow::Backing;
use allotment::harden::Full;
use allotment::lock::Unsync;
use allotment::placement::{MicroTlsf, Placement, QuickLists};
use allotment::{BestFit, Buddy, Bump, FirstFit, FreeError, Heap, Memory, Slab, Tiered, Tlsf};
use std::alloc::Layout;
use std::ptr::NonNull;

/// One step. Blocks are named by their place among the live ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Allocate(Layout),
    Free(usize),
    Resize(usize, usize),
    /// A double free of the block that was freed last.
    FreeAgain,
}

/// Sizes and alignments of requests.
const LAYOUTS: &[(usize, usize)] = &[(1, 1), (16, 8), (24, 8), (40, 8), (16, 32), (300, 8)];

/// Sizes that blocks are resized to.
const SIZES: &[usize] = &[8, 32];

struct World<P: Placement> {
    heap: Heap<P, Unsync>,
    backing: Backing,
    live: Vec<(NonNull<u8>, Layout, u8)>,
    freed: Option<(NonNull<u8>, Layout)>,
    stamp: u8,
}

impl<P: Placement> World<P> {
    fn new(bytes: usize) -> Option<Self> {
        let mut backing = Backing::new(bytes, 0);
        let heap = Heap::empty();
        // SAFETY: the backing lives as long as the heap.
        unsafe { heap.claim(backing.region()).ok()? };
        Some(Self { heap, backing, live: Vec::new(), freed: None, stamp: 0 })
    }

    /// Does a step. Returns false if it is not possible here, with nothing done.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Allocate(layout) => {
                let largest = self.heap.largest_free();
                let Ok(start) = self.heap.try_allocate(layout) else {
                    assert!(layout.size() != largest || layout.align() > 8, "{layout:?} of {largest} free");
                    return true;
                };
                self.stamp = self.stamp.wrapping_add(1);
                // SAFETY: the block is ours.
                unsafe { start.write_bytes(self.stamp, layout.size()) };
                self.live.push((start, layout, self.stamp));
            }
            Step::Free(at) if at < self.live.len() => {
                let (start, layout, _) = self.live.remove(at);
                // SAFETY: the block is live and has this layout.
                unsafe { self.heap.try_deallocate(start, layout) }.unwrap();
                self.freed = Some((start, layout));
            }
            Step::Resize(at, size) if at < self.live.len() => {
                let (start, layout, stamp) = self.live[at];
                // SAFETY: the block is live and has this layout.
                if unsafe { self.heap.try_resize(start, layout, size) } {
                    let layout = Layout::from_size_align(size, layout.align()).unwrap();
                    // SAFETY: the block has the new size.
                    unsafe { start.write_bytes(stamp, size) };
                    self.live[at].1 = layout;
                }
            }
            Step::FreeAgain => {
                let Some((start, layout)) = self.freed.take() else { return false };
                if self.live.iter().any(|block| block.0 == start) {
                    return false;
                }
                let before = self.heap.stats();
                // SAFETY: the level refuses it.
                let error = unsafe { self.heap.try_deallocate(start, layout) };
                assert!(matches!(error, Err(FreeError::AlreadyFree | FreeError::NotABlock)), "{error:?}");
                assert_eq!(self.heap.stats(), before);
            }
            _ => return false,
        }
        self.check();
        true
    }

    /// All invariants.
    fn check(&mut self) {
        let region = self.backing.region();
        let (from, end) = (region.start.addr().get(), region.start.addr().get() + region.size);
        let mut blocks: Vec<_> =
            self.live.iter().map(|(start, layout, _)| (start.addr().get(), layout.size())).collect();
        blocks.sort_unstable();
        for pair in blocks.windows(2) {
            assert!(pair[0].0 + pair[0].1.max(1) <= pair[1].0, "blocks overlap");
        }
        for (start, layout, stamp) in &self.live {
            let address = start.addr().get();
            assert!(address % layout.align() == 0 && address >= from && address + layout.size() <= end);
            // SAFETY: the block is ours.
            let intact = (0..layout.size()).all(|at| unsafe { start.add(at).read() } == *stamp);
            assert!(intact, "a block was changed");
            // SAFETY: the block is live, and the world's.
            let owned = unsafe { self.heap.check_owned(*start, *layout) };
            assert_eq!((self.heap.check(*start, *layout), owned), (Ok(()), Ok(())));
        }
        let stats = self.heap.stats();
        assert_eq!(stats.live_blocks, self.live.len());
        assert!(stats.used <= stats.peak && stats.largest_free <= region.size);
        // The map of the memory has no gaps, and a live block lies in a used run.
        let mut at = None;
        for run in self.heap.blocks() {
            assert!(at.is_none_or(|at| at == run.start) && run.size > 0);
            at = Some(run.start + run.size);
            if run.free {
                let inside =
                    |block: &(usize, usize)| block.0 < run.start + run.size && run.start < block.0 + block.1;
                assert!(!blocks.iter().any(inside), "a live block counts as free");
            }
        }
    }
}

/// Searches all paths of `depth` steps in an arena of `bytes` bytes. Returns the number of steps.
fn search<P: Placement>(bytes: usize, depth: usize, again: bool) -> usize {
    let mut steps: Vec<Step> = LAYOUTS
        .iter()
        .map(|&(size, align)| Step::Allocate(Layout::from_size_align(size, align).unwrap()))
        .collect();
    steps.extend((0..3).map(Step::Free));
    steps.extend((0..2).flat_map(|at| SIZES.iter().map(move |&size| Step::Resize(at, size))));
    if again {
        steps.push(Step::FreeAgain);
    }
    let (mut path, mut count) = (Vec::new(), 0);
    fn extend<P: Placement>(
        bytes: usize,
        depth: usize,
        steps: &[Step],
        path: &mut Vec<Step>,
        count: &mut usize,
    ) {
        for &step in steps {
            let Some(mut world) = World::<P>::new(bytes) else { return };
            for &done in path.iter() {
                world.step(done);
            }
            if !world.step(step) {
                continue;
            }
            *count += 1;
            if depth > 1 {
                path.push(step);
                extend::<P>(bytes, depth - 1, steps, path, count);
                path.pop();
            }
        }
    }
    extend::<P>(bytes, depth, &steps, &mut path, &mut count);
    count
}

/// How deep to search: 3 steps among all tests, more in `cargo xtask ci deep --only`.
fn depth() -> usize {
    std::env::var("ALLOTMENT_WORLD_DEPTH").ok().and_then(|depth| depth.parse().ok()).unwrap_or(3)
}

macro_rules! worlds {
    ($($(#[$attribute:meta])* $name:ident: $placement:ty, $bytes:expr, $again:expr;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            let mut count = 0;
            for bytes in $bytes {
                count += search::<$placement>(bytes, depth(), $again);
            }
            println!("{} steps in worlds of {}", count, stringify!($placement));
            assert!(count > 500, "{count}");
        }
    )*};
}

// Arenas of 6 to 12 granules beside the bookkeeping. Where a double free cannot always be noticed, it is not tried.
worlds! {
    tlsf: Tlsf, [208, 248], false;
    tlsf_off: Tlsf<u32, 8, 8, false>, [208, 248], false;
    tlsf_full: Full<Tlsf, 2>, [264], true;
    first_fit: FirstFit, [96, 128], true;
    first_fit_off: FirstFit<2, false>, [104], false;
    first_fit_full: Full<FirstFit, 1>, [168], true;
    best_fit: BestFit, [208, 248], false;
    best_fit_u16: BestFit<u16, 4, 2>, [192, 232], false;
    best_fit_full: Full<BestFit, 0>, [264], true;
    buddy: Buddy, [72, 136], false;
    buddy_full: Full<Buddy, 2>, [200], true;
    slab: Slab, [1024], false;
    micro: MicroTlsf<4, true>, [192, 232], false;
    micro_off: MicroTlsf<4, false>, [192, 232], false;
    micro_full: Full<MicroTlsf, 2>, [264], true;
    quick: QuickLists<Tlsf>, [248, 1024], false;
    tiered: Tiered, [312, 20_000], false;
    tiered_full: Full<Tiered, 2>, [376, 20_000], true;
    bump: Bump, [104], false;
}
