//! Random workloads on every placement, every metadata, several regions and alignments up to 4 KiB.

use crate::shadow::{Shadow, Subject, random_run};
use std::marker::PhantomData;

/// Regions with odd sizes and starts, as many as the subject supports.
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
    use crate::shadow::steps::{follow, steps};
    use proptest::prelude::*;

    fn run<P: Subject>(_: PhantomData<P>) {
        let region = (600..70_000usize, 0..5_000usize);
        let regions = prop::collection::vec(region, 1..=P::REGIONS.min(3));
        let config = ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() };
        proptest!(config, |(regions in regions, steps in steps([200, 3_000, 70_000], 12, 120))| {
            let mut total = 0;
            let fits = |&&(size, _): &&(usize, usize)| {
                total += size;
                total <= P::LIMIT
            };
            let regions: Vec<_> = regions.iter().take_while(fits).copied().collect();
            follow(Shadow::<P>::new(&regions), &steps);
        });
    }

    for_each_placement!(run);
}
