//! The allocators.

mod driver;
mod harness;
mod pools;

use allotment::gpu;
use allotment::pool::{Growth, PoolOptions};
use allotment::sim;
use anyhow::{Result, bail};

use crate::device::{Device, Gpu};
use crate::run::Setup;

/// An allocator under test, which threads may share.
pub trait Allocator: Sync {
    /// What a block is freed by.
    type Block: Send;
    /// A queue of the device's work, of one thread.
    type Stream: Send;

    /// A new queue.
    fn stream(&self) -> Result<Self::Stream>;

    /// A block for work on `stream`, or `None` if there is no room.
    fn allocate(&self, bytes: usize, stream: &Self::Stream) -> Result<Option<Self::Block>>;

    /// Frees a block in the order of `stream`.
    fn free(&self, block: Self::Block, stream: &Self::Stream) -> Result<()>;

    /// Waits for a queue.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;

    /// The most bytes that were reserved since it was made, if that can be told.
    fn reserved(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What a measure needs of an allocator.
#[derive(Clone, Copy)]
pub struct Need {
    /// The most that it may reserve.
    pub bytes: usize,
    /// Whether pools shall reserve all of it before, in one segment.
    pub at_once: bool,
}

/// How a pool grows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As it is without options.
    Standard,
    /// It reserves as little as it can.
    Lean,
}

/// An allocator, by name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Nothing: what measuring costs.
    Harness,
    /// Our pool over `cuMemAlloc` or simulated memory.
    Pool(Form),
    /// Our pool over virtual memory, or its simulation.
    Virtual(Form),
    /// `cuMemAlloc`.
    Malloc,
    /// `cuMemAllocAsync`; `keep`: its pool keeps what is free, else the release threshold is 0, as it is at first.
    Ordered { keep: bool },
    /// What `cudarc` does by itself.
    Cudarc,
    /// No allocator: copies to the device.
    Copies,
}

/// What is done with an allocator of any kind.
pub trait Use {
    /// The result.
    type Output;

    /// Does it. `make` makes a new one, which holds nothing.
    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Self::Output>;
}

impl Subject {
    /// Its name in results.
    pub fn id(self) -> &'static str {
        match self {
            Self::Harness => allotment_benches_common::gpu::HARNESS,
            Self::Pool(Form::Standard) => "allotment-pool",
            Self::Pool(Form::Lean) => "allotment-pool, lean",
            Self::Virtual(Form::Standard) => "allotment-pool, virtual",
            Self::Virtual(Form::Lean) => "allotment-pool, virtual, lean",
            Self::Malloc => "cuMemAlloc",
            Self::Ordered { keep: false } => "cuMemAllocAsync",
            Self::Ordered { keep: true } => "cuMemAllocAsync, all kept",
            Self::Cudarc => "cudarc",
            Self::Copies => "to the device",
        }
    }

    /// Whether it is another allocator.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Malloc | Self::Ordered { .. } | Self::Cudarc)
    }

    /// Whether it is a pool of ours.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Pool(_) | Self::Virtual(_))
    }

    /// Whether this device has it.
    pub fn is_there(self, setup: &Setup) -> bool {
        match (&setup.device, self) {
            (Device::Simulated, Self::Copies) => false,
            (Device::Simulated, _) => !self.is_peer(),
            (Device::Driver(gpu), Self::Virtual(_)) => gpu.context.device().virtual_memory,
            (Device::Driver(gpu), Self::Ordered { .. }) => gpu.default_pool.is_some(),
            (Device::Driver(_), _) => true,
        }
    }

    /// Uses it.
    pub fn with<U: Use>(self, setup: &Setup, what: &U) -> Result<U::Output> {
        match (&setup.device, self) {
            (_, Self::Harness) => what.with(|_| Ok(harness::Nothing)),
            (Device::Simulated, Self::Pool(form)) => what.with(|need| simulated(form, need, 0)),
            (Device::Simulated, Self::Virtual(form)) => what.with(|need| simulated(form, need, need.bytes)),
            (Device::Driver(gpu), Self::Pool(form)) => what.with(|need| {
                let source = gpu::DeviceMemory::new(&gpu.context);
                pooled(source, gpu, options(form), need)
            }),
            (Device::Driver(gpu), Self::Virtual(form)) => what.with(|need| {
                let source = gpu::Virtual::with_room(&gpu.context, need.bytes)?;
                pooled(source, gpu, growing(form), need)
            }),
            (Device::Driver(gpu), Self::Malloc) => what.with(|_| Ok(driver::Malloc::new(gpu))),
            (Device::Driver(gpu), Self::Ordered { keep }) => what.with(|_| driver::Ordered::new(gpu, keep)),
            (Device::Driver(gpu), Self::Cudarc) => what.with(|_| driver::Cudarc::new(gpu)),
            (_, Self::Copies) => bail!("copies are no allocator"),
            (Device::Simulated, _) => bail!("{} is not simulated", self.id()),
        }
    }
}

const MIB: usize = 1 << 20;

fn options(form: Form) -> PoolOptions {
    match form {
        Form::Standard => PoolOptions::new(),
        Form::Lean => PoolOptions::new().lean(true).growth(Growth::Fixed(2 * MIB)),
    }
}

/// In segments that grow.
fn growing(form: Form) -> PoolOptions {
    match form {
        Form::Standard => options(form),
        Form::Lean => options(form).exact_above(usize::MAX, 2 * MIB),
    }
}

fn simulated(form: Form, need: Need, room: usize) -> Result<pools::Pooled<sim::DeviceMemory>> {
    // As coarse as a device.
    let source = sim::DeviceMemory::new(need.bytes).with_granularity(2 * MIB).with_room(room);
    let device = source.clone();
    let options = if room > 0 { growing(form) } else { options(form) };
    pools::Pooled::new(source, options, need, move || Ok(device.stream()))
}

fn pooled<S>(source: S, gpu: &Gpu, options: PoolOptions, need: Need) -> Result<pools::Pooled<S>>
where
    S: allotment::pool::Source<Stream = gpu::Stream>,
{
    let context = gpu.context.clone();
    pools::Pooled::new(source, options, need, move || Ok(gpu::Stream::new(&context)?))
}
