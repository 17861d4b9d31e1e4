//! Random workloads on every placement, several regions and alignments up to 4 KiB.

use crate::shadow::{Case, Shadow, random_run};

/// Regions with odd sizes and starts, as many as the subject supports.
fn regions(case: &Case, count: usize) -> Vec<(usize, usize)> {
    let sizes = [(65_536, 0), (20_011, 4), (32_767, 9), (9_001, 2_049)];
    sizes.into_iter().take(count.min(case.regions)).collect()
}

mod long_runs {
    use super::*;

    fn run(case: &'static Case) {
        random_run(case, 1, 20_000, &regions(case, 1), 500, 64);
        random_run(case, 2, 20_000, &regions(case, 4), 4_000, 4_096);
        random_run(case, 3, 20_000, &regions(case, 2), 64, 8);
        random_run(case, 4, 5_000, &regions(case, 3), 40_000, 32);
    }

    for_each_placement!(run);
}

/// For Miri, which takes some thousand times as long.
mod short_runs {
    use super::*;

    fn run(case: &'static Case) {
        let regions = [(8_192, 0), (5_003, 4)];
        random_run(case, 5, 150, &regions[..case.regions.min(2)], 700, 256);
    }

    for_each_placement!(run);
}

mod properties {
    use super::*;
    use crate::shadow::steps::{follow, steps};
    use proptest::prelude::*;

    fn run(case: &'static Case) {
        let region = (600..70_000usize, 0..5_000usize);
        let regions = prop::collection::vec(region, 1..=case.regions.min(3));
        let config = ProptestConfig { cases: 96, failure_persistence: None, ..Default::default() };
        proptest!(config, |(regions in regions, steps in steps([200, 3_000, 70_000], 12, 120))| {
            let mut total = 0;
            let fits = |&&(size, _): &&(usize, usize)| {
                total += size;
                total <= case.limit
            };
            let regions: Vec<_> = regions.iter().take_while(fits).copied().collect();
            follow(Shadow::new(case, &regions), &steps);
        });
    }

    for_each_placement!(run);
}
