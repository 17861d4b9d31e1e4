//! Random workloads on every placement, every metadata, several regions and alignments up to 4 KiB.

mod shadow;

use shadow::{Shadow, Subject, random_run};
use std::alloc::Layout;
use std::marker::PhantomData;

/// Regions with odd sizes and starts, as many as the subject takes.
fn regions<P: Subject>(count: usize) -> Vec<(usize, usize)> {
    let sizes = [(65_536, 0), (20_011, 4), (32_767, 9), (9_001, 2_049)];
    sizes.into_iter().take(count.min(P::REGIONS)).collect()
}

mod long_runs {
    use super::*;

    fn run<P: Subject>(_: PhantomData<P>) {
        random_run::<P>(1, 20_000, &regions::<P>(1), 500, 64);
        random_run::<P>(2, 20_000, &regions::<P>(4), 4_000, 4_096);
        random_run::<P>(3, 20_000, &regions::<P>(2), 64, 8);
        random_run::<P>(4, 5_000, &regions::<P>(3), 40_000, 32);
    }

    for_each_placement!(run);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize, u32),
        Zeroed(usize, u32),
        Free(usize),
        Reallocate(usize, usize),
        Probe,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let size = || prop_oneof![4 => 0..200usize, 2 => 0..3_000usize, 1 => 0..70_000usize];
        let step = prop_oneof![
            6 => (size(), 0..=12u32).prop_map(|(size, align)| Step::Allocate(size, align)),
            1 => (size(), 0..=12u32).prop_map(|(size, align)| Step::Zeroed(size, align)),
            4 => any::<usize>().prop_map(Step::Free),
            3 => (any::<usize>(), size()).prop_map(|(block, size)| Step::Reallocate(block, size)),
            1 => Just(Step::Probe),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn run<P: Subject>(_: PhantomData<P>) {
        let region = (600..70_000usize, 0..5_000usize);
        let regions = prop::collection::vec(region, 1..=P::REGIONS.min(3));
        let config = ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() };
        proptest!(config, |(regions in regions, steps in steps())| {
            let mut total = 0;
            let fits = |&&(size, _): &&(usize, usize)| {
                total += size;
                total <= P::LIMIT
            };
            let regions: Vec<_> = regions.iter().take_while(fits).copied().collect();
            let mut shadow = Shadow::<P>::new(&regions);
            for step in steps {
                let live = shadow.live();
                match step {
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
        });
    }

    for_each_placement!(run);
}
