//! RMM's random-allocation workload: all 18 pairs of count and largest size.

use std::time::{Duration, Instant};

use allotment_benches::gpu::{FAILED, RMM};
use allotment_benches::rmm::{COUNTS, MIB, Nothing, SIZES, Target, workload};
use anyhow::{Error, Result};

use super::nanoseconds;
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Need, Subject, Use};

/// The measure.
pub struct Rmm<'a> {
    pub setup: &'a Setup,
    pub subject: Subject,
}

const POOL: usize = 40 << 30;
const TIGHT: usize = 20 << 30;

impl Use for Rmm<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let setup = self.setup;
        let mut samples = Vec::new();
        // Comparing with the stand-in's own allocators would be meaningless.
        if setup.is_stand_in() && self.subject.is_peer() {
            return Ok(samples);
        }
        let counts = setup.pick(&COUNTS[..], &COUNTS[..1]);
        for (&count, size) in counts.iter().flat_map(|count| SIZES.map(|size| (count, size))) {
            if setup.is_late() {
                break;
            }
            let case = format!("{count}, {size}");
            let bytes = setup.budget.min(POOL);
            // Leave room for the most that is live, plus a quarter.
            let live = workload(&mut Nothing, count, size).peak as usize;
            if live + live / 4 > bytes {
                setup.note(format!("{case}: needs --memory {}", (live + live / 4).div_ceil(1 << 20)));
                continue;
            }
            let Some((time, failed)) = self.run(&make, bytes, count, size)? else {
                setup.note(format!("{case}: {} took too long, or too much memory", self.subject.id()));
                continue;
            };
            if failed > 0 {
                setup.note(format!("{case}: {} failed {failed} requests", self.subject.id()));
            }
            samples.push(Sample::new(&case, RMM, nanoseconds(time, 2 * count)));
        }
        if !setup.quick
            && setup.budget >= TIGHT
            && !self.subject.is_peer()
            && self.subject != Subject::Harness
        {
            for size in [1024, 4096] {
                if let Some((_, failed)) = self.run(&make, TIGHT, 100_000, size)? {
                    samples.push(Sample::new(format!("100000, {size}"), FAILED, failed as f64));
                }
            }
        }
        Ok(samples)
    }
}

impl Rmm<'_> {
    /// Returns the time and the number of failed requests; `None` if the run was given up.
    fn run<A: Allocator>(
        &self,
        make: &impl Fn(Need) -> Result<A>,
        bytes: usize,
        count: usize,
        size: u64,
    ) -> Result<Option<(Duration, usize)>> {
        let allocator = make(Need { bytes, at_once: true })?;
        let stream = allocator.stream()?;
        let mut target = Timed {
            allocator: &allocator,
            stream,
            error: None,
            // Our pools have a limit, are never given up, and need no check of the deadline.
            peer: self
                .subject
                .is_peer()
                .then(|| Peer { deadline: Instant::now() + self.setup.patience(), left: bytes as u64 }),
            is_over: false,
        };
        let start = Instant::now();
        let outcome = workload(&mut target, count, size);
        let time = start.elapsed();
        match target.error {
            Some(error) => Err(error),
            None => Ok((!target.is_over).then_some((time, outcome.failed))),
        }
    }
}

struct Timed<'a, A: Allocator> {
    allocator: &'a A,
    stream: A::Stream,
    error: Option<Error>,
    peer: Option<Peer>,
    is_over: bool,
}

/// Limits for allocators without a limit of their own.
struct Peer {
    deadline: Instant,
    /// Bytes that it may still take.
    left: u64,
}

/// The most that a block takes from the driver: whole pages, unless several blocks share one.
fn taken(bytes: u64) -> u64 {
    bytes.next_multiple_of(if bytes > MIB { 2 * MIB } else { 512 })
}

impl<A: Allocator> Target for Timed<'_, A> {
    type Block = A::Block;

    #[inline]
    fn allocate(&mut self, bytes: u64) -> Option<A::Block> {
        if let Some(peer) = &mut self.peer {
            self.is_over |= taken(bytes) > peer.left || Instant::now() > peer.deadline;
            if self.is_over {
                return None;
            }
        }
        // Addresses on a device have 64 bits.
        let block = self.allocator.allocate(bytes as usize, &self.stream).unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })?;
        if let Some(peer) = &mut self.peer {
            peer.left -= taken(bytes);
        }
        Some(block)
    }

    #[inline]
    fn free(&mut self, block: A::Block, bytes: u64) {
        if let Some(peer) = &mut self.peer {
            peer.left += taken(bytes);
        }
        if let Err(error) = self.allocator.free(block, &self.stream) {
            self.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_take_pages() {
        assert_eq!([1, 512, MIB, MIB + 1, 5 * MIB].map(taken), [512, 512, MIB, 2 * MIB, 6 * MIB]);
    }
}
