//! The allocators.

mod driver;
mod harness;
mod pools;
#[cfg(feature = "vulkan")]
mod vulkan;

use allotment::gpu;
use allotment::pool::PoolOptions;
use allotment::sim;
use anyhow::{Result, bail};

use crate::device::{Device, Gpu};
use crate::setup::Setup;

/// An allocator under test, which threads can share.
pub trait Allocator: Sync {
    /// The type by which a block is freed.
    type Block: Send;
    /// A queue of the device's work, for one thread.
    type Stream: Send;

    /// Makes a new queue.
    fn stream(&self) -> Result<Self::Stream>;

    /// Allocates a block for work on `stream`; `None` if there is no room.
    fn allocate(&self, bytes: usize, stream: &Self::Stream) -> Result<Option<Self::Block>>;

    /// Frees a block in the order of `stream`.
    fn free(&self, block: Self::Block, stream: &Self::Stream) -> Result<()>;

    /// Waits for all work of a queue.
    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;

    /// Returns the most bytes reserved since it was made, if that is known.
    fn reserved(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// What a measure requires of an allocator.
#[derive(Clone, Copy)]
pub struct Need {
    /// The most bytes that it may reserve.
    pub bytes: usize,
    /// Whether pools must reserve everything in advance, in one segment.
    pub at_once: bool,
}

/// The growth of a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The default options.
    Standard,
    /// As little memory as possible.
    Lean,
}

/// An allocator, by name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// No allocator: the cost of measuring.
    Harness,
    /// Our pool over `cuMemAlloc` or simulated memory.
    Pool(Form),
    /// Our pool over virtual memory, or its simulation.
    Virtual(Form),
    /// `cuMemAlloc`.
    Malloc,
    /// `cuMemAllocAsync`. With `keep` its pool keeps free memory; otherwise the release threshold is 0, the
    /// default.
    Ordered { keep: bool },
    /// cudarc with its defaults.
    Cudarc,
    /// VMA.
    Vma,
    /// VMA's virtual block.
    VmaVirtual,
    /// gpu-allocator.
    GpuAllocator,
    /// No allocator: copies to the device.
    Copies,
    /// No allocator: memory for sequences of tokens.
    Kv(Kv),
}

/// Memory for sequences of tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kv {
    /// `KvCache`.
    Sequences,
    /// Blocks that a table finds.
    Paged,
    /// A block of a pool for each, of the greatest length.
    Longest,
}

/// Something that is done with an allocator of any type.
pub trait Use {
    /// The result.
    type Output;

    /// Does it. `make` makes a new allocator without memory.
    fn with<A: Allocator>(&self, make: impl Fn(Need) -> Result<A>) -> Result<Self::Output>;
}

impl Subject {
    /// Finds one of the subjects that need no driver by its name.
    pub fn named(id: &str) -> Option<Self> {
        [Self::Harness, Self::Virtual(Form::Standard), Self::VmaVirtual]
            .into_iter()
            .find(|known| known.id() == id)
    }

    /// Returns its name in the results.
    pub fn id(self) -> &'static str {
        match self {
            Self::Harness => allotment_benches::gpu::HARNESS,
            Self::Pool(Form::Standard) => "allotment-pool",
            Self::Pool(Form::Lean) => "allotment-pool, lean",
            Self::Virtual(Form::Standard) => "allotment-pool, virtual",
            Self::Virtual(Form::Lean) => "allotment-pool, virtual, lean",
            Self::Malloc => "cuMemAlloc",
            Self::Ordered { keep: false } => "cuMemAllocAsync",
            Self::Ordered { keep: true } => "cuMemAllocAsync, all kept",
            Self::Cudarc => "cudarc",
            Self::Vma => "VMA",
            Self::VmaVirtual => "VMA's virtual block, no lock",
            Self::GpuAllocator => "gpu-allocator",
            Self::Copies => "to the device",
            Self::Kv(Kv::Sequences) => "`KvCache`",
            Self::Kv(Kv::Paged) => "blocks of 16 tokens and a table",
            Self::Kv(Kv::Longest) => "room for the longest, from a pool",
        }
    }

    /// Returns whether it is an allocator other than ours.
    pub fn is_peer(self) -> bool {
        matches!(self, Self::Malloc | Self::Ordered { .. } | Self::Cudarc | Self::Vma | Self::GpuAllocator)
    }

    /// Returns whether it takes memory from the device as RMM's workload needs it, not all in advance.
    pub fn grows(self, setup: &Setup) -> bool {
        match &setup.device {
            #[cfg(feature = "vulkan")]
            Device::Vulkan(_) => matches!(self, Self::Pool(_) | Self::Vma | Self::GpuAllocator),
            _ => false,
        }
    }

    /// Returns whether it is one of our pools, or made of our parts.
    pub fn is_own(self) -> bool {
        matches!(self, Self::Pool(_) | Self::Virtual(_) | Self::Kv(_))
    }

    /// Returns whether this device supports it.
    pub fn is_there(self, setup: &Setup) -> bool {
        match (&setup.device, self) {
            #[cfg(feature = "vulkan")]
            (Device::Vulkan(_), _) => !matches!(
                self,
                Self::Malloc | Self::Ordered { .. } | Self::Cudarc | Self::Copies | Self::Kv(_)
            ),
            (_, Self::Vma | Self::GpuAllocator) => false,
            (Device::Simulated, Self::VmaVirtual) => cfg!(feature = "vulkan"),
            (_, Self::VmaVirtual) => false,
            (Device::Simulated, Self::Copies | Self::Kv(_)) => false,
            (Device::Simulated, _) => !self.is_peer(),
            (Device::Driver(gpu), Self::Virtual(_) | Self::Kv(_)) => gpu.context.device().virtual_memory,
            (Device::Driver(gpu), Self::Ordered { .. }) => gpu.default_pool.is_some(),
            (Device::Driver(_), _) => true,
        }
    }

    /// Runs `what` with this subject.
    pub fn with<U: Use>(self, setup: &Setup, what: &U) -> Result<U::Output> {
        match (&setup.device, self) {
            (_, Self::Harness) => what.with(|_| Ok(harness::Nothing)),
            #[cfg(feature = "vulkan")]
            (Device::Vulkan(vulkan), Self::Pool(form)) => what.with(|need| {
                let (source, open) = vulkan::source(vulkan)?;
                pools::Pooled::new(source, options(form), Need { at_once: false, ..need }, open)
            }),
            #[cfg(feature = "vulkan")]
            (Device::Vulkan(vulkan), Self::Vma) => what.with(|_| vulkan::Vma::new(vulkan)),
            #[cfg(feature = "vulkan")]
            (Device::Vulkan(vulkan), Self::GpuAllocator) => what.with(|_| vulkan::GpuAllocator::new(vulkan)),
            #[cfg(feature = "vulkan")]
            (_, Self::VmaVirtual) => what.with(|need| vulkan::Virtual::new(need.bytes)),
            // Beside the virtual block: no device and no driver.
            #[cfg(feature = "vulkan")]
            (Device::Vulkan(_), Self::Virtual(form)) => what.with(|need| simulated(form, need, need.bytes)),
            (Device::Simulated, Self::Pool(form)) => what.with(|need| simulated(form, need, 0)),
            (Device::Simulated, Self::Virtual(form)) => what.with(|need| simulated(form, need, need.bytes)),
            (Device::Driver(gpu), Self::Pool(form)) => what.with(|need| {
                let source = gpu::DeviceMemory::new(&gpu.context);
                pooled(source, gpu, options(form), need)
            }),
            (Device::Driver(gpu), Self::Virtual(form)) => what.with(|need| {
                let source = gpu::Virtual::with_room(&gpu.context, need.bytes)?;
                let source = match form {
                    Form::Standard => source,
                    // Each page of the device can go back, as in the simulation.
                    Form::Lean => source.with_pieces(2 * MIB),
                };
                pooled(source, gpu, growing(form), need)
            }),
            (Device::Driver(gpu), Self::Malloc) => what.with(|_| Ok(driver::Malloc::new(gpu))),
            (Device::Driver(gpu), Self::Ordered { keep }) => what.with(|_| driver::Ordered::new(gpu, keep)),
            (Device::Driver(gpu), Self::Cudarc) => what.with(|_| driver::Cudarc::new(gpu)),
            (_, Self::Copies | Self::Kv(_)) => bail!("{} is no allocator", self.id()),
            _ => bail!("{} is not there", self.id()),
        }
    }
}

const MIB: usize = 1 << 20;

fn options(form: Form) -> PoolOptions {
    match form {
        Form::Standard => PoolOptions::new(),
        Form::Lean => PoolOptions::new().lean(true).segments(2 * MIB),
    }
}

/// Options for segments that grow.
fn growing(form: Form) -> PoolOptions {
    match form {
        Form::Standard => options(form),
        Form::Lean => options(form).exact_above(usize::MAX, 2 * MIB),
    }
}

fn simulated(form: Form, need: Need, room: usize) -> Result<pools::Pooled<sim::DeviceMemory>> {
    // The same granularity as on a device.
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
