//! Requests to a manager, and how it satisfies them.

use super::{DeviceStores, MemoryManager, Store};
use crate::gpu::buffer::{Backer, Backing, Memory};
use crate::gpu::usage::{Access, Record, Registry, Site, Touch, Usage};
use crate::gpu::{Advice, Error, Stream, source};
use crate::pool::{Chain, DeviceAllocator as _, MemoryKind, Owned};
use crate::units::debug;
use std::sync::Arc;

/// A request to a manager: an allocator for [`Buffer`](crate::gpu::Buffer)'s functions, for one buffer or many.
///
/// ```no_run
/// # use allotment::gpu::{Buffer, Context, MemoryKind, Stream};
/// # use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
/// # let context = Context::new(0)?;
/// # let stream = Stream::new(&context)?;
/// # let manager = MemoryManager::new(&[context], ManagerOptions::default())?;
/// let request = manager.request().access(Access::ReadOnly);
/// let table = Buffer::from_slice(&request, &[1u32, 2, 3], &stream)?;
/// // In device memory, or where that is full, pinned: nowhere else.
/// let large = manager.request().memory(MemoryKind::Device).fallback(&[MemoryKind::Pinned]);
/// let frames = Buffer::<u8>::zeros(&large, 1 << 30, &stream)?;
/// let frames = frames.migrate(&manager.request().memory(MemoryKind::Pinned), &stream)?;
/// # drop((table, frames));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryRequest<'m> {
    manager: &'m MemoryManager,
    site: Site,
    /// `None` for the policy's choice.
    memory: Option<MemoryKind>,
    access: Access,
    fallback: Option<Vec<MemoryKind>>,
}

impl<'m> MemoryRequest<'m> {
    pub(super) fn new(manager: &'m MemoryManager, site: Site) -> Self {
        Self { manager, site, memory: None, access: Access::Unknown, fallback: None }
    }

    /// Sets the kind of memory. The default is `None`: the choice of the manager's [`rules`](super::ManagerOptions::rules).
    #[must_use]
    pub fn memory(mut self, kind: impl Into<Option<MemoryKind>>) -> Self {
        self.memory = kind.into();
        self
    }

    /// Declares how the memory will be used. The default is [`Access::Unknown`].
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Sets the other kinds of memory to try, in this order, when the first has no room or the device lacks it. By default, these are the
    /// policy's further kinds, or none if the request names a kind.
    #[must_use]
    pub fn fallback(mut self, kinds: &[MemoryKind]) -> Self {
        self.fallback = Some(kinds.to_vec());
        self
    }

    /// Returns the kinds of memory that a request of `bytes` bytes would try, in order, without duplicates. O(rules).
    pub fn targets(&self, bytes: usize) -> Vec<MemoryKind> {
        let policy = &self.manager.options;
        let mut targets = match self.memory {
            Some(kind) => vec![kind],
            None if self.access == Access::Unknown && policy.revise => {
                let measured = policy.judge(&self.manager.registry.of_site(self.site));
                policy.targets(bytes, measured).to_vec()
            }
            None => policy.targets(bytes, self.access).to_vec(),
        };
        if let Some(fallback) = &self.fallback {
            targets.truncate(1);
            targets.extend(fallback);
        }
        let mut seen = Vec::new();
        targets.retain(|&target| !seen.contains(&target) && (seen.push(target), true).1);
        targets
    }

    fn device(&self, stream: &Stream) -> Result<&'m DeviceStores, Error> {
        let context = stream.context();
        let found = self.manager.devices.iter().find(|device| device.context == *context);
        found.ok_or(Error::OtherDevice { ordinal: context.device().ordinal })
    }
}

debug!([] MemoryRequest<'_>, |self| site: self.site, memory: self.memory, access: self.access, fallback: self.fallback);

impl Backer for MemoryRequest<'_> {
    /// Allocates from the first of [`MemoryRequest::targets`] that has room; each pool tries everything it can before the next one gets
    /// the request. O(1) besides that.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        let device = self.device(stream)?;
        let manager = self.manager;
        let targets = self.targets(bytes);
        let mut stores: Vec<_> = targets.iter().filter_map(|&kind| manager.store(device, kind)).collect();
        stores.dedup_by_key(|(kind, _)| *kind);
        if let (true, Some(&wished)) = (stores.is_empty(), targets.first()) {
            return Err(Error::Unavailable(wished));
        }
        let mut chain = Chain::new(stores.iter().map(|&(_, store)| store).collect());
        if manager.options.after_loss {
            chain = chain.after_loss(&manager.host, Stream::host());
        }
        // Blocks start at granules of 256 bytes, as the alignment of buffers requires.
        let block = chain.allocate(bytes, 1, stream)?;
        let found = stores.into_iter().find(|(_, store)| store.pool_of(&block).is_some());
        let (kind, store) = found.unwrap_or((MemoryKind::Host, &manager.host));
        let (address, registry) = (block.address(), &manager.registry);
        let record = registry.enter(self.site, address, bytes, self.access, kind);
        let block = Owned::new(store.clone(), block);
        let placed = ManagedBlock { block, registry: registry.clone(), record };
        if kind == MemoryKind::ReadMostly {
            let advice = Advice::ReadMostly(true);
            // SAFETY: this function owns the block, which is freed after an error.
            unsafe { source::advise(&device.context, address as u64, bytes, advice)? };
        }
        Ok(Memory::other(placed))
    }
}

/// A block of one of a manager's pools. Dropping it frees the block.
struct ManagedBlock {
    block: Owned<Store>,
    registry: Arc<Registry>,
    record: Arc<Record>,
}

// SAFETY: the pool's block keeps these promises.
unsafe impl Backing for ManagedBlock {
    fn address(&self) -> usize {
        Backing::address(&self.block)
    }

    fn bytes(&self) -> usize {
        Backing::bytes(&self.block)
    }

    fn used_on(&self, stream: &Stream) {
        Backing::used_on(&self.block, stream);
    }

    fn kind(&self) -> MemoryKind {
        self.record.kind
    }

    fn block(&self) -> Option<&dyn Backing> {
        Some(&self.block)
    }

    fn touched(&self, touch: Touch, bytes: usize) {
        self.record.touch(touch, bytes);
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.record.usage())
    }
}

impl Drop for ManagedBlock {
    /// Removes the record; the field's drop then frees the block.
    fn drop(&mut self) {
        self.registry.leave(&self.record);
    }
}
