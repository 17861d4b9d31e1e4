//! Heaps of every placement and level, under operations that bytes choose.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use allotment::harden::Full;
use allotment::lock::Unsync;
use allotment::placement::{MicroTlsf, Placement, QuickLists};
use allotment::{BestFit, Buddy, Bump, FirstFit, FreeError, Heap, Region, Slab, Tiered, Tlsf, Tlsf16};

use crate::choices::Choices;

/// Bytes of all regions together.
const MEMORY: usize = 48 * 1024;

/// The most blocks at a time.
const LIVE: usize = 200;

/// Returns a layout: mostly small, sometimes large or strictly aligned.
fn layout(choices: &mut Choices<'_>) -> Layout {
    let (size, kind) = (usize::from(choices.byte()), choices.byte());
    let size = match kind & 7 {
        0..=4 => size,
        5 | 6 => size * 8,
        _ => size * 97,
    };
    Layout::from_size_align(size, 1 << (kind >> 5)).expect("small sizes and alignments are valid")
}

/// What a heap promises.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// To reuse only the block that was allocated last.
    Little,
    /// To reuse all memory.
    Reuse,
    /// To find invalid frees as well.
    Full,
}

struct Block {
    start: NonNull<u8>,
    layout: Layout,
    stamp: u8,
}

impl Block {
    fn fill(&self) {
        // SAFETY: the block is live and has that many bytes.
        unsafe { self.start.write_bytes(self.stamp, self.layout.size()) }
    }

    fn check(&self, bytes: usize) {
        // SAFETY: the block is live and has that many bytes.
        let intact = (0..bytes).all(|at| unsafe { self.start.add(at).read() } == self.stamp);
        assert!(intact, "a live block was changed");
    }
}

/// Lets a heap with the placement and the level of the first byte allocate what the others ask for. Returns the number of operations.
///
/// # Panics
///
/// If blocks overlap, are changed or misaligned, if statistics are wrong, or if a heap at level `Full` accepts an invalid free.
pub fn operate(bytes: &[u8]) -> usize {
    let mut choices = Choices(bytes);
    match choices.byte() % 18 {
        0 => run::<Tlsf>(choices, Promise::Reuse),
        1 => run::<Tiered<Tlsf<u32, 3, 16, false>>>(choices, Promise::Reuse),
        2 => run::<Tlsf16>(choices, Promise::Reuse),
        3 => run::<Full<Tlsf>>(choices, Promise::Full),
        4 => run::<Tiered>(choices, Promise::Reuse),
        5 => run::<Full<Tiered, 4>>(choices, Promise::Full),
        6 => run::<QuickLists<Tlsf>>(choices, Promise::Reuse),
        7 => run::<MicroTlsf<4, false>>(choices, Promise::Reuse),
        8 => run::<MicroTlsf<4, true>>(choices, Promise::Reuse),
        9 => run::<Full<MicroTlsf, 2>>(choices, Promise::Full),
        10 => run::<FirstFit>(choices, Promise::Reuse),
        11 => run::<Full<FirstFit, 1>>(choices, Promise::Full),
        12 => run::<BestFit>(choices, Promise::Reuse),
        13 => run::<Buddy>(choices, Promise::Reuse),
        14 => run::<Full<Buddy>>(choices, Promise::Full),
        15 => run::<Slab>(choices, Promise::Reuse),
        16 => run::<Full<Slab, 3>>(choices, Promise::Full),
        _ => run::<Bump>(choices, Promise::Little),
    }
}

fn run<P: Placement>(mut choices: Choices<'_>, promise: Promise) -> usize {
    let mut memory = vec![0_u64; MEMORY / 8];
    let start = memory.as_mut_ptr().cast::<u8>();
    let heap = Heap::<P, Unsync>::empty();
    // One to three regions, with gaps of odd sizes.
    let regions = 1 + usize::from(choices.byte() % 3);
    for at in 0..regions {
        let (from, gap) = (at * MEMORY / regions, usize::from(choices.byte() % 40));
        let region = NonNull::new(start.wrapping_add(from + gap)).expect("memory is not at address 0");
        // SAFETY: the regions are apart, in memory that outlives the heap and that nothing else uses.
        let _ = unsafe { heap.claim(Region::new(region, MEMORY / regions - gap)) };
    }
    let (mut live, mut freed, mut operations) = (Vec::<Block>::new(), None, 0);
    while !choices.0.is_empty() {
        operations += 1;
        let choice = choices.byte();
        let stamp = operations as u8 | 1;
        let place = usize::from(choices.byte());
        match choice % 8 {
            0..=3 if live.len() < LIVE => {
                let layout = layout(&mut choices);
                let Ok(block) = heap.try_allocate(layout) else { continue };
                assert!(block.addr().get() % layout.align() == 0, "a block is not aligned");
                let block = Block { start: block, layout, stamp };
                let (from, end) = (block.start.addr().get(), block.start.addr().get() + layout.size());
                for other in &live {
                    let start = other.start.addr().get();
                    assert!(end <= start || start + other.layout.size() <= from, "blocks overlap");
                }
                block.fill();
                live.push(block);
            }
            4 | 5 if !live.is_empty() => {
                let block = live.swap_remove(place % live.len());
                block.check(block.layout.size());
                // SAFETY: the block is live.
                unsafe { heap.try_deallocate(block.start, block.layout) }.expect("a live block can be freed");
                freed = Some((block.start, block.layout));
            }
            6 if !live.is_empty() => {
                let (size, at) = (layout(&mut choices).size().max(1), place % live.len());
                let block = &mut live[at];
                let kept = block.layout.size().min(size);
                if block.layout.size() == 0 {
                    continue;
                }
                // SAFETY: the block is live, and neither size is zero.
                let moved = unsafe { heap.realloc(block.start.as_ptr(), block.layout, size) };
                if let Some(start) = NonNull::new(moved) {
                    block.start = start;
                    block.layout = Layout::from_size_align(size, block.layout.align()).expect("it is valid");
                    block.check(kept);
                    block.fill();
                }
            }
            7 if promise == Promise::Full => {
                // A double free of what no other block has got meanwhile.
                let Some((start, layout)) = freed.take() else { continue };
                if live.iter().any(|block| block.start == start) {
                    continue;
                }
                let before = heap.stats();
                // SAFETY: the level refuses it.
                let refused = unsafe { heap.try_deallocate(start, layout) };
                assert!(matches!(refused, Err(FreeError::AlreadyFree | FreeError::NotABlock)), "{refused:?}");
                assert_eq!(heap.stats(), before);
            }
            _ => {
                heap.trim();
            }
        }
        assert_eq!(heap.stats().live_blocks, live.len());
    }
    for block in live {
        block.check(block.layout.size());
        // SAFETY: the block is live.
        unsafe { heap.try_deallocate(block.start, block.layout) }.expect("a live block can be freed");
    }
    assert!(heap.stats().live_blocks == 0 && (heap.used() == 0 || promise == Promise::Little));
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzer does, with random bytes instead of chosen ones.
    #[test]
    fn heaps_stand_random_operations() {
        let inputs = 4000;
        let operations = crate::choices::at_random(inputs, 1500, operate);
        println!("{operations} operations of {inputs} inputs");
        assert!(operations > 100 * inputs);
    }
}
