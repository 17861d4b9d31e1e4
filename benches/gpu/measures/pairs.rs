//! Pairs of one size, allocated and freed repeatedly.

use std::time::{Duration, Instant};

use allotment_benches::gpu::{COLD, WAITED, WARM};
use anyhow::Result;

use super::{all_of, nanoseconds, pair, repeat, size};
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Need, Use};

const SIZES: [usize; 5] = [256, 64 << 10, 1 << 20, 10 << 20, 100 << 20];

/// The measure.
pub struct Pairs<'a>(pub &'a Setup);

impl Use for Pairs<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let setup = self.0;
        let time = setup.pick(Duration::from_millis(20), Duration::from_millis(1));
        let mut samples = Vec::new();
        for bytes in SIZES.into_iter().filter(|&bytes| bytes <= setup.budget) {
            if setup.is_late() {
                break;
            }
            let case = size(bytes);
            let allocator = make(all_of(setup))?;
            let stream = allocator.stream()?;
            let start = Instant::now();
            let served = pair(&allocator, bytes, &stream)?;
            let cold = start.elapsed();
            if !served {
                setup.note(format!("{case}: no room"));
                continue;
            }
            samples.push(Sample::new(&case, COLD, nanoseconds(cold, 1)));
            let warm = repeat(time, || pair(&allocator, bytes, &stream).map(drop))?;
            samples.push(Sample::new(&case, WARM, warm));
            let waited = repeat(time, || {
                pair(&allocator, bytes, &stream)?;
                allocator.synchronize(&stream)
            })?;
            samples.push(Sample::new(&case, WAITED, waited));
        }
        Ok(samples)
    }
}
