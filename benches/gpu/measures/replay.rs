//! Recorded runs of PyTorch.

use allotment_benches::gpu::{AGAIN, FIRST, RESERVED};
use allotment_trace::Kind;
use anyhow::{Context, Result};

use super::{all_of, nanoseconds};
use crate::setup::{Sample, Setup};
use crate::subjects::{Allocator, Need, Use};
use crate::traces::Trace;

/// The measure.
pub struct Replay<'a>(pub &'a Setup);

impl Use for Replay<'_> {
    type Output = Vec<Sample>;

    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Vec<Sample>> {
        let setup = self.0;
        let mut samples = Vec::new();
        for trace in &setup.traces {
            if setup.is_late() {
                break;
            }
            let peak = trace.program.peak;
            if peak + peak / 2 > setup.budget {
                setup.note(format!("{}: needs --memory {}", trace.name, (peak + peak / 2).div_ceil(1 << 20)));
                continue;
            }
            let allocator = make(all_of(setup))?;
            let stream = allocator.stream()?;
            for metric in [FIRST, AGAIN] {
                let start = setup.now();
                let served = replay(&allocator, &stream, trace)?;
                let time = setup.now() - start;
                allocator.synchronize(&stream)?;
                if !served {
                    setup.note(format!("{}: no room", trace.name));
                    break;
                }
                samples.push(Sample::new(&trace.name, metric, nanoseconds(time, trace.program.ops.len())));
                if let Some(reserved) = allocator.reserved()?.filter(|_| metric == FIRST) {
                    samples.push(Sample::new(&trace.name, RESERVED, reserved as f64 / peak as f64));
                }
            }
        }
        Ok(samples)
    }
}

/// Replays the run, and returns whether there was room for all of it. Blocks that the run leaves are freed.
fn replay<A: Allocator>(allocator: &A, stream: &A::Stream, trace: &Trace) -> Result<bool> {
    let mut live: Vec<Option<A::Block>> = (0..trace.program.slots).map(|_| None).collect();
    let mut served = true;
    for op in &trace.program.ops {
        let slot = &mut live[op.slot as usize];
        if op.kind == Kind::Allocate {
            // The driver refuses requests for zero bytes.
            *slot = allocator.allocate(op.size().max(1), stream)?;
            served &= slot.is_some();
        } else if served {
            allocator.free(slot.take().context("the block is live")?, stream)?;
        }
        if !served {
            break;
        }
    }
    for block in live.into_iter().flatten() {
        allocator.free(block, stream)?;
    }
    Ok(served)
}
