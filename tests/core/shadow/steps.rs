//! Random programs for the property tests, and a shadow that follows them.

use super::Shadow;
use proptest::prelude::*;
use std::alloc::Layout;

/// One call. Blocks are given by their index among the live ones.
#[derive(Clone, Debug)]
pub enum Step {
    Allocate(usize, u32),
    Zeroed(usize, u32),
    Free(usize),
    Reallocate(usize, usize),
    Probe,
}

/// Generates programs of fewer than `count` steps, with sizes below the three bounds, mostly the first, and
/// alignments up to 2^`align`.
pub fn steps(bounds: [usize; 3], align: u32, count: usize) -> impl Strategy<Value = Vec<Step>> {
    let size = move || prop_oneof![4 => 0..bounds[0], 2 => 0..bounds[1], 1 => 0..bounds[2]];
    let step = prop_oneof![
        6 => (size(), 0..=align).prop_map(|(size, align)| Step::Allocate(size, align)),
        1 => (size(), 0..=align).prop_map(|(size, align)| Step::Zeroed(size, align)),
        4 => any::<usize>().prop_map(Step::Free),
        3 => (any::<usize>(), size()).prop_map(|(block, size)| Step::Reallocate(block, size)),
        1 => Just(Step::Probe),
    ];
    prop::collection::vec(step, 1..count)
}

/// Follows a program to its end, and checks everything.
pub fn follow(mut shadow: Shadow, steps: &[Step]) {
    for step in steps {
        let live = shadow.live();
        match *step {
            Step::Allocate(size, align) => {
                shadow.allocate(Layout::from_size_align(size, 1 << align).unwrap());
            }
            Step::Zeroed(size, align) => {
                shadow.allocate_zeroed(Layout::from_size_align(size, 1 << align).unwrap());
            }
            Step::Free(block) if live > 0 => shadow.free(shadow.nth(block % live)),
            Step::Reallocate(block, size) if live > 0 => {
                shadow.reallocate(shadow.nth(block % live), size.max(1));
            }
            Step::Probe => shadow.probe_largest(),
            Step::Free(_) | Step::Reallocate(..) => {}
        }
    }
    shadow.finish();
}
