//! RMM's random-allocation workload: all 18 pairs of count and largest size.

use std::process::Command;
use std::time::{Duration, Instant};

use allotment_benches::gpu::{COUNTED, FAILED, RMM, TAKEN};
use allotment_benches::rmm::{COUNTS, MIB, Nothing, Outcome, SIZES, Target, workload};
use anyhow::{Context, Error, Result, ensure};

use super::nanoseconds;
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Form, Need, Subject, Use};

/// The measure, for one pair.
pub struct Rmm<'a> {
    pub setup: &'a Setup,
    pub subject: Subject,
    /// The number of allocations, and the largest size in MiB.
    pub pair: (usize, u64),
}

/// Returns the pairs.
pub fn pairs(setup: &Setup) -> Vec<(usize, u64)> {
    let counts = setup.pick(&COUNTS[..], &COUNTS[..1]);
    counts.iter().flat_map(|&count| SIZES.map(|size| (count, size))).collect()
}

const POOL: usize = 40 << 30;
const TIGHT: usize = 20 << 30;

impl Use for Rmm<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let (setup, (count, size)) = (self.setup, self.pair);
        let mut samples = Vec::new();
        // Comparing with the stand-in's own allocators would be meaningless, and lean pools differ only in what they reserve.
        let is_lean = matches!(self.subject, Subject::Pool(Form::Lean) | Subject::Virtual(Form::Lean))
            && !self.subject.grows(setup);
        if setup.is_stand_in() && self.subject.is_peer() || is_lean {
            return Ok(samples);
        }
        let case = format!("{count}, {size}");
        let is_tight = [(100_000, 1024), (100_000, 4096)].contains(&self.pair) && setup.budget >= TIGHT;
        if is_tight && !self.subject.is_peer() && self.subject != Subject::Harness {
            if let Some((_, failed, _)) = self.run(&make, TIGHT)? {
                samples.push(Sample::new(&case, FAILED, failed as f64));
            }
        }
        let bytes = setup.budget.min(POOL);
        // Leave room for the most that is live, plus a quarter.
        let live = workload(&mut Nothing, count, size).peak as usize;
        if live + live / 4 > bytes {
            setup.note(format!("{case}: needs --memory {}", (live + live / 4).div_ceil(1 << 20)));
            return Ok(samples);
        }
        let Some((time, failed, reserved)) = self.run(&make, bytes)? else {
            setup.note(format!("{case}: {} took too long, or too much memory", self.subject.id()));
            return Ok(samples);
        };
        if failed > 0 {
            setup.note(format!("{case}: {} failed {failed} requests", self.subject.id()));
        }
        samples.push(Sample::new(&case, RMM, nanoseconds(time, 2 * count)));
        if let Some(reserved) = reserved.filter(|_| failed == 0 && self.subject.grows(setup)) {
            samples.push(Sample::new(&case, TAKEN, reserved as f64 / live as f64));
        }
        Ok(samples)
    }
}

impl Rmm<'_> {
    /// Returns the time, the number of failed requests and the most bytes reserved; `None` if the run was given up.
    fn run<A: Allocator>(
        &self,
        make: &impl Fn(Need) -> Result<A>,
        bytes: usize,
    ) -> Result<Option<(Duration, usize, Option<u64>)>> {
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
        let start = self.setup.now();
        let outcome = counted_workload(&mut target, self.pair.0, self.pair.1);
        let time = self.setup.now() - start;
        match target.error {
            Some(error) => Err(error),
            None if target.is_over => Ok(None),
            None => Ok(Some((time, outcome.failed, allocator.reserved()?))),
        }
    }
}

/// The part that callgrind counts.
#[inline(never)]
fn counted_workload<A: Allocator>(target: &mut Timed<'_, A>, count: usize, size: u64) -> Outcome {
    workload(target, count, size)
}

/// Runs one pair, under callgrind.
pub struct Once<'a>(pub Rmm<'a>);

impl Use for Once<'_> {
    type Output = ();

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<()> {
        self.0.run(&make, POOL).map(drop)
    }
}

/// Counts the instructions of an operation with callgrind, in a process of its own for each pair.
pub fn count(subject: Subject, setup: &Setup) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let file = tempfile::NamedTempFile::new()?;
    for (count, size) in pairs(setup) {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*rmm::counted_workload*"])
            .arg(format!("--callgrind-out-file={}", file.path().display()))
            .arg(std::env::current_exe()?)
            .args(["once", subject.id(), &count.to_string(), &size.to_string()])
            .output()
            .context("valgrind does not start; it must be installed")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(file.path())?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total: f64 = total.context("callgrind's file has no total")?.trim().parse()?;
        ensure!(total > 0.0, "callgrind did not see the workload");
        samples.push(Sample::new(format!("{count}, {size}"), COUNTED, total / (2 * count) as f64));
    }
    Ok(samples)
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
