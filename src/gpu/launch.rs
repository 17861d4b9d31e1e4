//! Kernels with buffers as arguments.

use super::{Error, MemoryKind, Stream, View, ViewMut, buffer::Backing, error::failed, usage::Touch};
use crate::pool::Stream as _;
use crate::units::debug;
use cudarc::driver::{CudaFunction, DeviceRepr, LaunchArgs, LaunchConfig, PushKernelArg};

/// A kernel launch in preparation, with its stream and its arguments so far.
///
/// ```no_run
/// use allotment::gpu::cudarc::driver::LaunchConfig;
/// use allotment::gpu::cudarc::nvrtc::Ptx;
/// use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
/// use allotment::pool::PoolOptions;
///
/// let context = Context::new(0)?;
/// let module = context.to_cudarc()?.load_module(Ptx::from_file("add.ptx"))?;
/// let kernel = module.load_function("add")?; // sums[i] = a[i] + b[i]
/// let stream = Stream::new(&context)?;
/// let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
/// let a = Buffer::from_slice(&pool, &[1.0f32; 1000], &stream)?;
/// let b = Buffer::from_slice(&pool, &[2.0f32; 1000], &stream)?;
/// let mut sums = Buffer::<f32>::zeros(&pool, 1000, &stream)?;
/// let launch = stream.launch(&kernel).write(sums.as_view_mut()).read(a.as_view()).read(b.as_view());
/// // SAFETY: these are the kernel's arguments, and it writes as many values as there are.
/// unsafe { launch.value(&1000u64).submit(LaunchConfig::for_num_elems(1000))? };
/// assert_eq!(sums.to_vec()?, [3.0; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The arguments may belong to other streams: the kernel then waits for the work submitted to those streams so far, and their later work
/// waits for the kernel.
#[must_use = "the kernel runs once it is submitted"]
pub struct Launch<'a> {
    stream: &'a Stream,
    kernel: &'a CudaFunction,
    arguments: Vec<Argument<'a>>,
}

enum Argument<'a> {
    Memory { address: u64, bytes: usize, backing: &'a dyn Backing, stream: &'a Stream },
    Value(&'a dyn Value),
}

/// A value that can be a kernel's argument.
trait Value {
    /// Adds the value to the arguments.
    fn push<'v>(&'v self, to: &mut LaunchArgs<'v>);
}

impl<T: DeviceRepr> Value for T {
    fn push<'v>(&'v self, to: &mut LaunchArgs<'v>) {
        to.arg(self);
    }
}

impl Stream {
    /// Begins the launch of a kernel in the order of this stream.
    pub fn launch<'a>(&'a self, kernel: &'a CudaFunction) -> Launch<'a> {
        Launch { stream: self, kernel, arguments: Vec::new() }
    }
}

impl<'a> Launch<'a> {
    /// Adds the address of values that the kernel reads.
    pub fn read<T>(mut self, view: View<'a, T>) -> Self {
        let View { address, stream, backing, .. } = view;
        self.arguments.push(Argument::Memory { address, bytes: view.bytes(), backing, stream });
        self
    }

    /// Adds the address of values that the kernel writes.
    pub fn write<T>(self, view: ViewMut<'a, T>) -> Self {
        self.read(view.0)
    }

    /// Adds a value, such as a number.
    pub fn value<T: DeviceRepr>(mut self, value: &'a T) -> Self {
        self.arguments.push(Argument::Value(value));
        self
    }

    /// Launches the kernel. Does not wait.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no device can access one of the buffers, or the error of the driver.
    ///
    /// # Safety
    ///
    /// The arguments must match the kernel's parameters in order, and the kernel must write only to views passed to [`Launch::write`],
    /// within their lengths.
    pub unsafe fn submit(self, config: LaunchConfig) -> Result<(), Error> {
        let Self { stream, kernel, arguments } = self;
        let mut others: Vec<&Stream> = Vec::new();
        let mut addresses = Vec::new();
        for argument in &arguments {
            let Argument::Memory { address, backing, stream: own, .. } = argument else { continue };
            if backing.kind() == MemoryKind::Host {
                return Err(Error::Unreachable);
            }
            addresses.push(*address);
            if own.id() != stream.id() && others.iter().all(|other| other.id() != own.id()) {
                others.push(own);
            }
        }
        for other in &others {
            stream.wait(&other.record()?)?;
        }
        let cudarc = stream.to_cudarc().map_err(|error| error.of_driver("cuDevicePrimaryCtxRetain"))?;
        let _bound = stream.context().enter()?;
        let mut launch = cudarc.launch_builder(kernel);
        let mut addresses = addresses.iter();
        for argument in &arguments {
            match argument {
                Argument::Memory { backing, bytes, stream: own, .. } => {
                    if own.id() != stream.id() {
                        // Even if a wait below fails, the memory outlives the kernel.
                        backing.used_on(stream);
                    }
                    backing.touched(Touch::Kernel, *bytes);
                    addresses.next().into_iter().for_each(|address| {
                        launch.arg(address);
                    });
                }
                Argument::Value(value) => value.push(&mut launch),
            }
        }
        // SAFETY: the caller guarantees the arguments; the memory is alive, and its users are ordered.
        unsafe { launch.launch(config) }.map_err(|error| failed("cuLaunchKernel", error.0 as u32))?;
        for other in others {
            other.wait(&stream.record()?)?;
        }
        Ok(())
    }
}

debug!([] Launch<'_>, |self| stream: self.stream);
