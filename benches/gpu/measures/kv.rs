//! Key-value caches: many answers that grow a token at a time, half of them behind a common prompt.
//!
//! What is counted is what placement costs: driver calls and memory. Kernels are not run, so what it costs them to look each
//! block of a paged cache up in a table is not in these figures.

use std::collections::BTreeMap;

use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::sequences::{KvCache, Sequence};
use allotment::gpu::{Buffer, DeviceMemory, Pool, Stream, Transfer};
use allotment::pool::{PoolOptions, Stream as _};
use allotment_benches::gpu::{KV_CALLS, KV_MEMORY};
use anyhow::{Context as _, Result};

use crate::device::{Device, Gpu};
use crate::setup::{Sample, Setup};
use crate::subjects::{Kv, Subject};

/// Tokens per block of the paged cache, as in vLLM.
const BLOCK: usize = 16;
/// Answers under way at a time.
const ACTIVE: usize = 8;
/// Common prompts.
const PROMPTS: usize = 4;

/// Memory for sequences of tokens.
trait Cache {
    /// One sequence.
    type Sequence;

    /// Makes a sequence of the first `tokens` tokens of another, or an empty one.
    fn start(&mut self, of: Option<(&Self::Sequence, usize)>) -> Result<Self::Sequence>;

    /// Lengthens a sequence to `tokens` tokens.
    fn grow(&mut self, sequence: &mut Self::Sequence, tokens: usize) -> Result<()>;

    /// Gives a sequence back.
    fn end(&mut self, sequence: Self::Sequence) -> Result<()>;

    /// Prepares for the kernels of a step, after all sequences have grown.
    fn launch(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes of the device that it has now, or the most that it ever had.
    fn reserved(&self) -> usize;
}

/// Our sequences, with addresses of their own.
struct Sequences {
    cache: KvCache,
    stream: Stream,
    token: usize,
}

impl Cache for Sequences {
    type Sequence = Sequence;

    fn start(&mut self, of: Option<(&Sequence, usize)>) -> Result<Sequence> {
        Ok(match of {
            Some((prompt, tokens)) => prompt.fork(tokens * self.token, &self.stream)?,
            None => self.cache.sequence(&self.stream)?,
        })
    }

    fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<()> {
        Ok(sequence.resize(tokens * self.token)?)
    }

    fn end(&mut self, sequence: Sequence) -> Result<()> {
        drop(sequence);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.cache.reserved()
    }
}

/// The paged baseline: blocks of one array that is as large as needed, found by a table on the device, which is copied there in
/// each step in which it changed.
struct Paged {
    memory: Buffer<u32>,
    /// The last copy of the table, which keeps its values until it is done.
    copy: Option<Transfer<Vec<u32>>>,
    array: Buffer<u8>,
    stream: Stream,
    token: usize,
    /// How often each block is used.
    uses: Vec<usize>,
    most: usize,
    /// The rows of the table, one per sequence.
    rows: BTreeMap<usize, Vec<u32>>,
    changed: bool,
}

impl Paged {
    fn block(&mut self) -> u32 {
        let free = self.uses.iter().position(|&uses| uses == 0);
        let block = free.unwrap_or_else(|| {
            self.uses.push(0);
            self.uses.len() - 1
        });
        self.uses[block] = 1;
        self.most = self.most.max(self.uses.len());
        self.changed = true;
        block as u32
    }
}

impl Cache for Paged {
    type Sequence = usize;

    fn start(&mut self, of: Option<(&usize, usize)>) -> Result<usize> {
        let row = (0..).find(|row| !self.rows.contains_key(row)).context("there is always another number")?;
        self.rows.insert(row, Vec::new());
        self.changed = true;
        if let Some((prompt, tokens)) = of {
            let prompt = self.rows[prompt].clone();
            let mut blocks = prompt[..tokens / BLOCK].to_vec();
            blocks.iter().for_each(|&block| self.uses[block as usize] += 1);
            if tokens % BLOCK > 0 {
                let (from, to) = (prompt[tokens / BLOCK], self.block());
                let [from, to] = [from, to]
                    .map(|block| self.array.address() + (block as usize * BLOCK * self.token) as u64);
                let bytes = tokens % BLOCK * self.token;
                // SAFETY: both blocks are within the array.
                let copy = || unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.stream.raw()) };
                self.stream.context().bind(copy)?.result()?;
                blocks.push(((to - self.array.address()) as usize / BLOCK / self.token) as u32);
            }
            self.rows.insert(row, blocks);
        }
        Ok(row)
    }

    fn grow(&mut self, &mut row: &mut usize, tokens: usize) -> Result<()> {
        while self.rows[&row].len() < tokens.div_ceil(BLOCK) {
            let block = self.block();
            self.rows.entry(row).or_default().push(block);
        }
        Ok(())
    }

    fn end(&mut self, row: usize) -> Result<()> {
        let blocks = self.rows.remove(&row).unwrap_or_default();
        blocks.iter().for_each(|&block| self.uses[block as usize] -= 1);
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        if std::mem::take(&mut self.changed) {
            let table: Vec<u32> = self.rows.values().flatten().copied().collect();
            self.copy = Some(self.memory.slice_mut(..table.len())?.copy_from_async(table)?);
        }
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.most * BLOCK * self.token + self.memory.len() * size_of::<u32>()
    }
}

/// A block of our pool for each sequence, long enough for the longest.
struct Longest {
    pool: Pool,
    stream: Stream,
    bytes: usize,
    token: usize,
}

impl Cache for Longest {
    type Sequence = Buffer<u8>;

    fn start(&mut self, of: Option<(&Buffer<u8>, usize)>) -> Result<Buffer<u8>> {
        // SAFETY: what is not written is not read.
        let mut sequence = unsafe { Buffer::uninit(&self.pool, self.bytes, &self.stream) }?;
        if let Some((prompt, tokens)) = of {
            let common = ..tokens * self.token;
            sequence.slice_mut(common)?.copy_from_view(&prompt.as_view().slice(common)?)?;
        }
        Ok(sequence)
    }

    fn grow(&mut self, _: &mut Buffer<u8>, _: usize) -> Result<()> {
        Ok(())
    }

    fn end(&mut self, sequence: Buffer<u8>) -> Result<()> {
        drop(sequence);
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.pool.pools().iter().map(|pool| pool.stats().reserved.current as usize).sum()
    }
}

/// Lengths in tokens: of the common prompts, and the most of a question and of an answer.
struct Lengths {
    prompt: usize,
    question: usize,
    answer: usize,
}

/// Generates answers and returns the number of tokens, and the ratio of the memory to the tokens at the fullest moment.
fn generate<C: Cache>(
    cache: &mut C,
    lengths: &Lengths,
    requests: usize,
    token: usize,
) -> Result<(usize, f64)> {
    let mut random = fastrand::Rng::with_seed(17);
    let mut prompts = Vec::new();
    for _ in 0..PROMPTS {
        let mut prompt = cache.start(None)?;
        cache.grow(&mut prompt, lengths.prompt)?;
        prompts.push(prompt);
    }
    // Each with its length, that at its end, and the tokens that it shares.
    let mut active: Vec<(C::Sequence, usize, usize, usize)> = Vec::new();
    let (mut asked, mut tokens, mut fullest, mut reserved) = (0, 0, 0, 0);
    loop {
        while active.len() < ACTIVE && asked < requests {
            let of = random.usize(..PROMPTS);
            let shared = if random.bool() { lengths.prompt - random.usize(..BLOCK) } else { 0 };
            let mut sequence = cache.start((shared > 0).then(|| (&prompts[of], shared)))?;
            let start = shared + random.usize(1..=lengths.question);
            cache.grow(&mut sequence, start)?;
            active.push((sequence, start, start + random.usize(1..=lengths.answer), shared));
            asked += 1;
        }
        if active.is_empty() {
            break;
        }
        for (sequence, length, ..) in &mut active {
            *length += 1;
            cache.grow(sequence, *length)?;
            tokens += 1;
        }
        cache.launch()?;
        let own: usize = active.iter().map(|(_, length, _, shared)| length - shared).sum();
        fullest = fullest.max((own + PROMPTS * lengths.prompt) * token);
        reserved = reserved.max(cache.reserved());
        for at in (0..active.len()).rev() {
            if active[at].1 >= active[at].2 {
                cache.end(active.swap_remove(at).0)?;
            }
        }
    }
    prompts.into_iter().try_for_each(|prompt| cache.end(prompt))?;
    Ok((tokens, reserved as f64 / fullest as f64))
}

/// The driver's functions that place, copy or wait.
const CALLS: [&str; 16] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyAsync",
    "cuStreamSynchronize",
    "cuEventRecord",
    "cuEventQuery",
    "cuStreamWaitEvent",
];

/// Measures one round.
pub fn measure(subject: Subject, setup: &Setup) -> Result<Vec<Sample>> {
    let (Device::Driver(gpu), Subject::Kv(kind)) = (&setup.device, subject) else { return Ok(Vec::new()) };
    let lengths =
        Lengths { prompt: setup.pick(256, 64), question: setup.pick(256, 64), answer: setup.pick(512, 128) };
    let longest = lengths.prompt + lengths.question + lengths.answer;
    let mut samples = Vec::new();
    for kib in [16, 128] {
        let token = kib << 10;
        let case = format!("{kib} KiB per token");
        // What the longest sequences take, and the pages at their ends.
        let need = (ACTIVE + PROMPTS) * (longest * token + (2 << 20));
        if need > setup.budget {
            setup.note(format!("{case}: needs --memory {}", need.div_ceil(1 << 20)));
            continue;
        }
        let before = calls(gpu);
        let requests = setup.pick(200, 40);
        let (tokens, ratio) = run(kind, gpu, &lengths, requests, token, need)?;
        gpu.context.synchronize()?;
        if let (Some(before), Some(after)) = (before, calls(gpu)) {
            samples.push(Sample::new(&case, KV_CALLS, (after - before) as f64 * 1e3 / tokens as f64));
        }
        samples.push(Sample::new(&case, KV_MEMORY, ratio));
    }
    Ok(samples)
}

/// Returns how often the driver was called so far, where it is the stand-in, which counts.
fn calls(gpu: &Gpu) -> Option<u64> {
    let driver = gpu.stand_in.as_ref()?;
    Some(CALLS.iter().map(|name| driver.calls(name)).sum())
}

fn run(
    kind: Kv,
    gpu: &Gpu,
    lengths: &Lengths,
    requests: usize,
    token: usize,
    need: usize,
) -> Result<(usize, f64)> {
    let stream = Stream::new(&gpu.context)?;
    let bytes = (lengths.prompt + lengths.question + lengths.answer) * token;
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new())?;
    let done = match kind {
        Kv::Sequences => {
            let cache = KvCache::new(&gpu.context, bytes, need)?;
            generate(&mut Sequences { cache, stream: stream.clone(), token }, lengths, requests, token)
        }
        Kv::Paged => {
            let table = need / token / BLOCK;
            let mut paged = Paged {
                memory: Buffer::zeros(&pool, table, &stream)?,
                copy: None,
                // SAFETY: what is not written is not read.
                array: unsafe { Buffer::uninit(&pool, table * BLOCK * token, &stream) }?,
                stream: stream.clone(),
                token,
                uses: Vec::new(),
                most: 0,
                rows: BTreeMap::new(),
                changed: false,
            };
            generate(&mut paged, lengths, requests, token)
        }
        Kv::Longest => {
            generate(&mut Longest { pool, stream: stream.clone(), bytes, token }, lengths, requests, token)
        }
    };
    stream.synchronize()?;
    done
}
