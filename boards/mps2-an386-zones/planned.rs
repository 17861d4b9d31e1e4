//! A pipeline whose buffers lie in two arenas of one static plan: pictures in the PSRAM, what is worked on in the fast RAM.
//!
//! `plan.rs` is made by the host tool from `buffers.csv`; a test of the tool makes it again and compares. The sections in it are
//! placed by the linker: `.uninit.plan` by cortex-m-rt in the fast RAM, `.psram.plan` by `memory.x`.

use cortex_m::peripheral::{SYST, syst::SystClkSource};

#[allow(dead_code, missing_docs)]
mod plan {
    include!("plan.rs");
}

use plan::index::{BINS, CHART, EDGES, HALF, IMAGE, ROWS, SMOOTH};

/// Side of the picture.
const SIDE: usize = 256;
/// Side of the picture at half its size.
const SMALL: usize = SIDE / 2;
/// Brightness values.
const VALUES: usize = 256;

/// A step of the pipeline: its buffers' bytes in each tier, and the ticks of the core's timer that it takes.
#[derive(Clone, Copy, Default)]
pub struct Step {
    /// Bytes by tier.
    pub bytes: [usize; 2],
    /// Ticks with the buffers where the plan has them.
    pub ticks: u32,
    /// Ticks of the same work with every buffer in the slower memory.
    pub slow: u32,
}

/// The memories that a step works in.
#[derive(Clone, Copy, PartialEq, Eq, defmt::Format)]
pub enum Reach {
    /// The fast one alone.
    Fast,
    /// The slower one alone.
    Bulk,
    /// Both.
    Both,
}

impl Step {
    fn reach(&self) -> Reach {
        match self.bytes {
            [_, 0] => Reach::Fast,
            [0, _] => Reach::Bulk,
            _ => Reach::Both,
        }
    }
}

/// Returns for each kind of step the ticks of the planned run and those with every buffer in the slower memory.
pub fn by_tier(steps: &[Step]) -> [(Reach, u32, u32); 3] {
    [Reach::Fast, Reach::Bulk, Reach::Both].map(|reach| {
        let those = || steps.iter().filter(|step| step.reach() == reach);
        (reach, those().map(|step| step.ticks).sum(), those().map(|step| step.slow).sum())
    })
}

/// Returns the instructions that some ticks stand for under QEMU's `-icount shift=8`: one takes 256 ns, and a tick 40 ns. On hardware the
/// ticks are cycles, wait states among them, and this is of no use.
pub fn instructions(ticks: u32) -> u32 {
    ticks / 32 * 5 + ticks % 32 * 5 / 32
}

/// Returns the ticks that `work` takes, fewer than 2^24.
fn ticks(work: impl FnOnce()) -> u32 {
    let before = SYST::get_current();
    work();
    before.wrapping_sub(SYST::get_current()) & 0x00ff_ffff
}

/// What went wrong.
pub enum Failure {
    /// An arena lies outside of its memory.
    Place(usize),
    /// A separate buffer is not in the slower memory.
    Apart,
    /// The result differs from that of separate buffers.
    Result,
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Place(tier) => write!(f, "the arena of tier {tier} lies outside of its memory"),
            Self::Apart => f.write_str("a separate buffer lies outside of the slower memory"),
            Self::Result => f.write_str("the chart differs from that of separate buffers"),
        }
    }
}

/// Returns the bytes of buffer `n`.
///
/// # Safety
///
/// The buffer must be live in the present step, and no other slice of it may be in use.
unsafe fn buffer(n: usize) -> &'static mut [u8] {
    // SAFETY: the plan's arena holds these bytes, and the caller keeps to the plan. Every pattern of bits is a byte; what has not been
    // written yet is written before it is read.
    unsafe { core::slice::from_raw_parts_mut(plan::address(n), plan::PLAN[n].size) }
}

fn fill(image: &mut [u8]) {
    for (n, pixel) in image.iter_mut().enumerate() {
        let (x, y) = (n % SIDE, n / SIDE);
        *pixel = (x * x / 97 + y * 3 + (x ^ y)) as u8;
    }
}

fn halve(image: &[u8], half: &mut [u8]) {
    for (n, pixel) in half.iter_mut().enumerate() {
        let at = n / SMALL * 2 * SIDE + n % SMALL * 2;
        let sum: u32 = [at, at + 1, at + SIDE, at + SIDE + 1].iter().map(|&at| u32::from(image[at])).sum();
        *pixel = (sum / 4) as u8;
    }
}

/// Replaces each pixel by the mean of its column's neighbours, by way of three rows.
fn smooth(half: &[u8], rows: &mut [u8], smooth: &mut [u8]) {
    for y in 0..SMALL {
        for (slot, line) in rows.chunks_exact_mut(VALUES).enumerate() {
            let from = (y + slot).clamp(1, SMALL) - 1;
            line[..SMALL].copy_from_slice(&half[from * SMALL..(from + 1) * SMALL]);
        }
        for x in 0..SMALL {
            let sum = u32::from(rows[x]) + u32::from(rows[VALUES + x]) + u32::from(rows[2 * VALUES + x]);
            smooth[y * SMALL + x] = (sum / 3) as u8;
        }
    }
}

fn edges(smooth: &[u8], edges: &mut [u8]) {
    for (n, edge) in edges.iter_mut().enumerate() {
        let right = if n % SMALL + 1 < SMALL { smooth[n + 1] } else { smooth[n] };
        *edge = smooth[n].abs_diff(right);
    }
}

/// Counts the values, as numbers of four bytes.
fn count(edges: &[u8], bins: &mut [u8]) {
    bins.fill(0);
    for &edge in edges {
        let bin = &mut bins[usize::from(edge) * 4..][..4];
        let count = u32::from_le_bytes([bin[0], bin[1], bin[2], bin[3]]) + 1;
        bin.copy_from_slice(&count.to_le_bytes());
    }
}

/// Draws a column for each value.
fn draw(bins: &[u8], chart: &mut [u8]) {
    let height = chart.len() / VALUES;
    for (value, bin) in bins.chunks_exact(4).enumerate() {
        let count = u32::from_le_bytes([bin[0], bin[1], bin[2], bin[3]]) as usize;
        for y in 0..height {
            chart[y * VALUES + value] = u8::from(y < count.min(height));
        }
    }
}

/// Adds up the bytes with their places.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(1, |sum, &byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Runs the pipeline in the planned arenas, and again in separate buffers of the slower memory. Returns the steps.
pub fn run(mut timer: SYST, memories: [core::ops::Range<usize>; 2]) -> Result<[Step; 6], Failure> {
    for (tier, memory) in memories.iter().enumerate() {
        let used = plan::PLAN.iter().filter(|placed| placed.tier == tier);
        let end = used.map(|placed| placed.offset + placed.size).max().unwrap_or(0);
        let start = plan::arena(tier).addr();
        if !memory.contains(&start) || start + end > memory.end {
            return Err(Failure::Place(tier));
        }
    }
    timer.set_clock_source(SystClkSource::Core);
    timer.set_reload(0x00ff_ffff);
    timer.clear_current();
    timer.enable_counter();
    let mut steps = [Step::default(); 6];
    // Each step with the buffers that it uses: all are live at that step of the plan.
    let uses: [&[usize]; 6] =
        [&[IMAGE], &[IMAGE, HALF], &[HALF, ROWS, SMOOTH], &[SMOOTH, EDGES], &[EDGES, BINS], &[BINS, CHART]];
    for (at, (step, used)) in steps.iter_mut().zip(uses).enumerate() {
        for &n in used {
            let placed = plan::PLAN[n];
            assert!((placed.start..placed.end).contains(&(at as i64)), "the plan has it live");
            step.bytes[placed.tier] += placed.size;
        }
        // SAFETY: the buffers are live at this step, as was checked, and different.
        step.ticks = ticks(|| unsafe {
            match at {
                0 => fill(buffer(IMAGE)),
                1 => halve(buffer(IMAGE), buffer(HALF)),
                2 => smooth(buffer(HALF), buffer(ROWS), buffer(SMOOTH)),
                3 => edges(buffer(SMOOTH), buffer(EDGES)),
                4 => count(buffer(EDGES), buffer(BINS)),
                _ => draw(buffer(BINS), buffer(CHART)),
            }
        });
    }
    // SAFETY: the chart is live to the end.
    let planned = sum(unsafe { buffer(CHART) });
    let bytes = |n: usize| alloc::vec![0_u8; plan::PLAN[n].size];
    let (mut image, mut half, mut rows) = (bytes(IMAGE), bytes(HALF), bytes(ROWS));
    let (mut smoothed, mut edged, mut bins, mut chart) =
        (bytes(SMOOTH), bytes(EDGES), bytes(BINS), bytes(CHART));
    // Blocks of that size come from the slower memory.
    let apart = [&image, &half, &rows, &smoothed, &edged, &bins, &chart];
    if apart.iter().any(|buffer| !memories[1].contains(&buffer.as_ptr().addr())) {
        return Err(Failure::Apart);
    }
    for (at, step) in steps.iter_mut().enumerate() {
        step.slow = ticks(|| match at {
            0 => fill(&mut image),
            1 => halve(&image, &mut half),
            2 => smooth(&half, &mut rows, &mut smoothed),
            3 => edges(&smoothed, &mut edged),
            4 => count(&edged, &mut bins),
            _ => draw(&bins, &mut chart),
        });
    }
    if sum(&chart) == planned && chart.iter().any(|&pixel| pixel != 0) {
        Ok(steps)
    } else {
        Err(Failure::Result)
    }
}
