//! Pairs of 1 KiB while very many holes are free.

use std::time::{Duration, Instant};

use allotment_benches::gpu::HOLES;
use anyhow::Result;

use super::{all_of, pair, repeat};
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Need, Subject, Use};

/// The measure.
pub struct Holes<'a> {
    pub setup: &'a Setup,
    pub subject: Subject,
}

const COUNT: usize = 65_536;

impl Use for Holes<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let setup = self.setup;
        let time = setup.pick(Duration::from_millis(50), Duration::from_millis(1));
        let mut samples = Vec::new();
        // The stand-in has one system mapping per block of its own, and there are not enough mappings.
        if setup.is_stand_in() && self.subject.is_peer() {
            return Ok(samples);
        }
        for hole in [1024, 2048] {
            if setup.is_late() {
                break;
            }
            let case = format!("holes of {hole} bytes");
            if 3 * COUNT * hole > setup.budget {
                setup.note(format!("{case}: needs --memory {}", (3 * COUNT * hole) >> 20));
                continue;
            }
            let allocator = make(all_of(setup))?;
            let stream = allocator.stream()?;
            let deadline = Instant::now() + setup.patience();
            let mut blocks = Vec::with_capacity(2 * COUNT);
            while blocks.len() < 2 * COUNT && Instant::now() < deadline {
                let Some(block) = allocator.allocate(hole, &stream)? else { break };
                blocks.push(block);
            }
            let is_full = blocks.len() == 2 * COUNT;
            let mut kept = Vec::with_capacity(COUNT);
            for (number, block) in blocks.into_iter().enumerate() {
                if number % 2 == 0 || !is_full {
                    allocator.free(block, &stream)?;
                } else {
                    kept.push(block);
                }
            }
            if !is_full {
                setup.note(format!("{case}: {} has no room, or was given up", self.subject.id()));
                continue;
            }
            let found = repeat(time, || pair(&allocator, 1024, &stream).map(drop))?;
            samples.push(Sample::new(case, HOLES, found));
            for block in kept {
                allocator.free(block, &stream)?;
            }
        }
        Ok(samples)
    }
}
