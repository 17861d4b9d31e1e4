//! A single interface to the memory of all devices and of the host.
//!
//! ```text
//!  MemoryManager   a pool for each kind of memory, on each device
//!  Policy          a table that selects the pool for a request
//!  MemoryRequest   a request being prepared
//!  Usage           the counted accesses of a buffer;   Recommendation   advice that follows from them
//! ```

mod policy;
mod report;
mod request;

pub use super::usage::{Access, Usage};
pub use report::Recommendation;
pub use request::MemoryRequest;

use super::{
    Buffer, Context, DeviceMemory, Error, HostMemory, Managed, Pinned, Stream, Virtual, usage::Registry,
};
use crate::pool::{AnyPool, DeviceAllocator, DevicePool, MemoryKind, PoolOptions, Stream as _};
use crate::units::debug;
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use std::sync::Arc;

/// Options of a [`MemoryManager`]. With feature `serde`, a program can store them in a file.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ManagerOptions {
    /// Options for the pool of each device's own memory.
    pub device: PoolOptions,
    /// Options for each device's two pools of managed memory: one for ordinary and one for read-mostly memory. Together they reserve no
    /// more than the device's memory.
    pub managed: PoolOptions,
    /// Options for the pool of pinned memory, which all devices share.
    pub pinned: PoolOptions,
    /// The most bytes that the process may pin; `None` for the default of [`Pinned::limit`].
    pub pinned_limit: Option<usize>,
    /// Options for the pool of ordinary host memory.
    pub host: PoolOptions,
    /// The most bytes of ordinary host memory; `None` for no limit.
    pub host_limit: Option<usize>,
    /// The table that selects the memory for requests that name none: the first row from the top that matches a request decides. A row
    /// has the accesses that it applies to (empty for all), the largest request in bytes that it applies to (`None` for all), and its
    /// targets: the request goes to the first kind of memory that has room. The last row must match every request.
    ///
    /// | access | bytes | default |
    /// | --- | --- | --- |
    /// | host-heavy, streaming | any | pinned, managed, host |
    /// | read-only | any | read-mostly, device, pinned, host |
    /// | unknown | up to 64 KiB | pinned, device, managed, host |
    /// | any | any | device, managed, pinned, host |
    pub rules: Vec<(Vec<Access>, Option<usize>, Vec<MemoryKind>)>,
    /// The least number of measured accesses that counts. The default is 32.
    pub least_touches: u64,
    /// The share of accesses, above 0.5 and up to 1, from which memory belongs to the host or the device. The default is 0.75.
    pub share: f64,
    /// Whether the accesses measured for buffers of the same call site replace [`Access::Unknown`]. On by default.
    pub revise: bool,
    /// Whether the pool of ordinary host memory satisfies requests for a lost device, by
    /// [`Chain::after_loss`](crate::pool::Chain::after_loss). Off by default.
    pub after_loss: bool,
}

/// A set of pools, one for each kind of memory on each device, and a table that selects the pool for each request.
///
/// A device's own memory is [`Virtual`] if the device supports that, else [`DeviceMemory`]. For [`Context::host`], all kinds of memory are
/// the pool of ordinary host memory.
///
/// ```no_run
/// use allotment::gpu::Context;
/// use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
///
/// let manager = MemoryManager::new(&[Context::new(0)?], ManagerOptions::default())?;
/// let weights = manager.allocate::<f32>(1 << 20, None, Access::Random)?; // on the device
/// let settings = manager.allocate::<u32>(16, None, Access::Unknown)?; // pinned, since it is small
/// for advice in manager.recommendations() {
///     println!("{advice}"); // main.rs:7:24: 4194304 bytes in device memory belong in pinned memory: 90 accesses ...
/// }
/// println!("{} bytes reserved, {} given back", manager.stats().reserved.current, manager.cleanup());
/// # drop((weights, settings));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MemoryManager {
    devices: Vec<DeviceStores>,
    /// `None` without a device.
    pinned: Option<Store>,
    host: Store,
    options: ManagerOptions,
    registry: Arc<Registry>,
}

/// A pool of any source.
type Store = Arc<dyn DeviceAllocator<Stream = Stream>>;

/// The pools of one device.
struct DeviceStores {
    context: Context,
    /// The stream for requests that name none.
    stream: Stream,
    /// `None` for the host.
    own: Option<Store>,
    /// `None` if host and device cannot use managed memory at the same time.
    managed: Option<[Store; 2]>,
}

impl DeviceStores {
    fn new(context: &Context, options: &ManagerOptions) -> Result<Self, Error> {
        let stream = Stream::new(context)?;
        // Streams of the host share one context.
        let context = stream.context().clone();
        if context.is_host() {
            return Ok(Self { context, stream, own: None, managed: None });
        }
        let own: Store = if context.device().virtual_memory {
            Arc::new(DevicePool::new(Virtual::new(&context)?, options.device.clone())?)
        } else {
            Arc::new(DevicePool::new(DeviceMemory::new(&context), options.device.clone())?)
        };
        let managed = match Managed::new(&context) {
            Ok(managed) => {
                let pool = |source| DevicePool::new(source, options.managed.clone());
                // Advice applies to whole pages, so blocks of the two pools must not share any.
                Some([Arc::new(pool(managed.clone())?) as Store, Arc::new(pool(managed)?)])
            }
            Err(Error::Unsupported(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { context, stream, own: Some(own), managed })
    }

    /// Returns the length in bytes of the longest request for which the device's own memory has room; 0 if the driver fails.
    fn available(&self) -> usize {
        let mut most = 0;
        let mut add = |pool: &dyn AnyPool| most = most.max(pool.available(self.stream.id()).unwrap_or(0));
        self.own.iter().for_each(|own| own.each_pool(&mut add));
        most
    }

    fn stores(&self) -> impl Iterator<Item = &Store> {
        self.own.iter().chain(self.managed.iter().flatten())
    }
}

impl MemoryManager {
    /// Makes a manager with one set of pools per context, without any reserved memory.
    ///
    /// # Errors
    ///
    /// [`Error::NoContext`] if there is no context, the errors of [`ManagerOptions::check`],
    /// [`Error::Pool`] if options cannot work, or the error of the driver.
    pub fn new(contexts: &[Context], options: ManagerOptions) -> Result<Self, Error> {
        options.check()?;
        if contexts.is_empty() {
            return Err(Error::NoContext);
        }
        let pinned = match contexts.iter().find(|context| !context.is_host()) {
            Some(first) => {
                let pinned = Pinned::new(first);
                let pinned = match options.pinned_limit {
                    Some(limit) => pinned.limit(limit),
                    None => pinned,
                };
                Some(Arc::new(DevicePool::new(pinned, options.pinned.clone())?) as Store)
            }
            None => None,
        };
        let host = HostMemory::new(options.host_limit.unwrap_or(isize::MAX as usize));
        let host = DevicePool::new(host, options.host.clone())?;
        Ok(Self {
            devices: contexts
                .iter()
                .map(|context| DeviceStores::new(context, &options))
                .collect::<Result<_, _>>()?,
            pinned,
            host: Arc::new(host),
            options,
            registry: Arc::default(),
        })
    }

    /// Allocates a buffer of `len` zeros in this kind of memory, or, for `None`, in the kind that the policy selects. Its stream is the
    /// manager's stream of the device with the most room for a request. Does not wait. O(blocks · log blocks) and a driver call for each
    /// device, if there are several.
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::zeros`]: [`Error::Pool`] and [`Error::Unavailable`] if no pool can satisfy the request.
    #[track_caller]
    pub fn allocate<T: DeviceRepr + Copy + ValidAsZeroBits>(
        &self,
        len: usize,
        kind: impl Into<Option<MemoryKind>>,
        access: Access,
    ) -> Result<Buffer<T>, Error> {
        let request = self.request().memory(kind).access(access);
        let roomiest = match self.devices.as_slice() {
            [only] => Some(only),
            // Among equals, the first one.
            several => several.iter().rev().max_by_key(|device| device.available()),
        };
        let device = roomiest.ok_or(Error::NoContext)?;
        Buffer::zeros(&request, len, &device.stream)
    }

    /// Starts a request with more options, which is an allocator for [`Buffer`]'s functions.
    #[track_caller]
    pub fn request(&self) -> MemoryRequest<'_> {
        MemoryRequest::new(self, core::panic::Location::caller())
    }

    /// Returns the manager's stream for each device, in the order of the contexts.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.devices.iter().map(|device| &device.stream)
    }

    fn stores(&self) -> impl Iterator<Item = &Store> {
        self.devices.iter().flat_map(DeviceStores::stores).chain(&self.pinned).chain([&self.host])
    }

    /// Returns all pools, for queries about their memory and statistics.
    pub fn pools(&self) -> Vec<&dyn AnyPool> {
        let mut pools = Vec::new();
        self.stores().for_each(|store| store.each_pool(&mut |pool| pools.push(pool)));
        pools
    }

    /// Returns whether any device has memory of this kind.
    fn has(&self, kind: MemoryKind) -> bool {
        self.devices.iter().any(|device| self.store(device, kind).is_some_and(|(found, _)| found == kind))
    }

    /// Returns the kind of memory that a request for `kind` receives on a device, and its pool.
    fn store<'m>(&'m self, device: &'m DeviceStores, kind: MemoryKind) -> Option<(MemoryKind, &'m Store)> {
        let managed = |which: usize| device.managed.as_ref().map(|stores| &stores[which]);
        let store = match kind {
            _ if device.context.is_host() => return Some((MemoryKind::Host, &self.host)),
            MemoryKind::Device => device.own.as_ref(),
            MemoryKind::Managed => managed(0),
            MemoryKind::ReadMostly => managed(1),
            MemoryKind::Pinned => self.pinned.as_ref(),
            MemoryKind::Host => Some(&self.host),
        };
        Some((kind, store?))
    }
}

debug!([] MemoryManager, |self| stats: self.stats());
