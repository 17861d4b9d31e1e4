//! The memory of all devices and of the host behind one front.
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

/// Options of a [`MemoryManager`]. With the feature `serde` they can be kept in a file.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct ManagerOptions {
    /// The pool of each device's own memory.
    pub device: PoolOptions,
    /// The two pools of managed memory of each device: one for ordinary and one for read-mostly memory. Together
    /// they reserve no more than the device's memory.
    pub managed: PoolOptions,
    /// The pool of pinned memory, which all devices share.
    pub pinned: PoolOptions,
    /// The most bytes that the process may pin; `None` for a quarter of the system's memory.
    pub pinned_limit: Option<usize>,
    /// The pool of ordinary host memory.
    pub host: PoolOptions,
    /// The most bytes of ordinary host memory; `None` for no limit.
    pub host_limit: Option<usize>,
    /// The table that selects the memory for requests that name none, searched from the top: the first row that fits a request
    /// decides. A row has the accesses that it applies to (none for all), the largest request in bytes that it applies to (`None`
    /// for all), and where such requests go: to the first kind of memory that has room. The last row must fit every request.
    ///
    /// | access | bytes | default |
    /// | --- | --- | --- |
    /// | host-heavy, streaming | any | pinned, managed, host |
    /// | read-only | any | read-mostly, device, pinned, host |
    /// | unknown | up to 64 KiB | pinned, device, managed, host |
    /// | any | any | device, managed, pinned, host |
    pub rules: Vec<(Vec<Access>, Option<usize>, Vec<MemoryKind>)>,
    /// How many accesses must have been measured before they count. The default is 32.
    pub least_touches: u64,
    /// The share of accesses, above 0.5 and up to 1, that the host or the device must have so that the memory
    /// belongs there. The default is 0.75.
    pub share: f64,
    /// Whether [`Access::Unknown`] is replaced by what was measured for buffers of the same call site. On by
    /// default.
    pub revise: bool,
    /// Whether requests for a device that was lost are satisfied from [`ManagerOptions::host`], by [`Chain::after_loss`](crate::pool::Chain::after_loss). Off by default.
    pub after_loss: bool,
}

/// Allocates from a pool for each kind of memory, on each of several devices; a table selects the pool for each
/// request.
///
/// A device's own memory is [`Virtual`] if the device supports that, else [`DeviceMemory`].
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
    pinned: Store,
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
    own: Store,
    /// `None` if host and device cannot use managed memory at the same time.
    managed: Option<[Store; 2]>,
}

impl DeviceStores {
    fn new(context: &Context, options: &ManagerOptions) -> Result<Self, Error> {
        let own: Store = if context.device().virtual_memory {
            Arc::new(DevicePool::new(Virtual::new(context)?, options.device.clone())?)
        } else {
            Arc::new(DevicePool::new(DeviceMemory::new(context), options.device.clone())?)
        };
        let managed = match Managed::new(context) {
            Ok(managed) => {
                let pool = |source| DevicePool::new(source, options.managed.clone());
                // Advice applies to whole pages, so blocks of the two pools must not share any.
                Some([Arc::new(pool(managed.clone())?) as Store, Arc::new(pool(managed)?)])
            }
            Err(Error::Unsupported(_)) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { context: context.clone(), stream: Stream::new(context)?, own, managed })
    }

    /// Returns the bytes of the longest request that the device's own memory has room for; 0 if its driver does not tell.
    fn available(&self) -> usize {
        let mut most = 0;
        self.own.each_pool(&mut |pool| most = most.max(pool.available(self.stream.id()).unwrap_or(0)));
        most
    }

    fn stores(&self) -> impl Iterator<Item = &Store> {
        core::iter::once(&self.own).chain(self.managed.iter().flatten())
    }
}

impl MemoryManager {
    /// Makes a manager with one set of pools per context. The pools reserve nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoContext`] if there is no context, the errors of [`ManagerOptions::check`],
    /// [`Error::Pool`] if options cannot work, or the error of the driver.
    pub fn new(contexts: &[Context], options: ManagerOptions) -> Result<Self, Error> {
        options.check()?;
        let first = contexts.first().ok_or(Error::NoContext)?;
        let pinned = match options.pinned_limit {
            Some(limit) => Pinned::new(first).limit(limit),
            None => Pinned::new(first),
        };
        let pinned = DevicePool::new(pinned, options.pinned.clone())?;
        let host = HostMemory::new(options.host_limit.unwrap_or(isize::MAX as usize));
        let host = DevicePool::new(host, options.host.clone())?;
        Ok(Self {
            devices: contexts
                .iter()
                .map(|context| DeviceStores::new(context, &options))
                .collect::<Result<_, _>>()?,
            pinned: Arc::new(pinned),
            host: Arc::new(host),
            options,
            registry: Arc::default(),
        })
    }

    /// Allocates a buffer of `len` zeros of this kind of memory, or of the one that the policy selects (`None`), for
    /// work on the manager's stream of the device that has most room for a request. Does not wait. O(blocks · log blocks) and a driver call
    /// for each device, if there are several.
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
            // The first one of those that have as much.
            several => several.iter().rev().max_by_key(|device| device.available()),
        };
        let device = roomiest.ok_or(Error::NoContext)?;
        Buffer::zeros(&request, len, &device.stream)
    }

    /// Starts a request with more options. It is the allocator for [`Buffer`]'s functions.
    #[track_caller]
    pub fn request(&self) -> MemoryRequest<'_> {
        MemoryRequest::new(self, core::panic::Location::caller())
    }

    /// Returns the manager's own stream of each device, in the order of the contexts.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.devices.iter().map(|device| &device.stream)
    }

    fn stores(&self) -> impl Iterator<Item = &Store> {
        self.devices.iter().flat_map(DeviceStores::stores).chain([&self.pinned, &self.host])
    }

    /// Returns the pools, each with its own facts and figures.
    pub fn pools(&self) -> Vec<&dyn AnyPool> {
        let mut pools = Vec::new();
        self.stores().for_each(|store| store.each_pool(&mut |pool| pools.push(pool)));
        pools
    }

    /// Returns whether any device has memory of this kind.
    fn has(&self, kind: MemoryKind) -> bool {
        self.devices.iter().any(|device| self.store(device, kind).is_some())
    }

    fn store<'m>(&'m self, device: &'m DeviceStores, kind: MemoryKind) -> Option<&'m Store> {
        let managed = |which: usize| device.managed.as_ref().map(|stores| &stores[which]);
        match kind {
            MemoryKind::Device => Some(&device.own),
            MemoryKind::Managed => managed(0),
            MemoryKind::ReadMostly => managed(1),
            MemoryKind::Pinned => Some(&self.pinned),
            MemoryKind::Host => Some(&self.host),
        }
    }
}

debug!([] MemoryManager, |self| stats: self.stats());
