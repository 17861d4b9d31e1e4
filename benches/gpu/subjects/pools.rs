//! Our pools over any source.

use allotment::pool::{Allocation, DevicePool, PoolError, PoolOptions, Source, Stream as _};
use anyhow::Result;

use super::{Allocator, Need};

type Open<S> = Box<dyn Fn() -> Result<<S as Source>::Stream> + Send + Sync>;

/// A pool, and a function that opens streams for it.
pub struct Pooled<S: Source> {
    pool: DevicePool<S>,
    open: Open<S>,
    /// The stream for which memory was reserved in advance.
    first: std::sync::Mutex<Option<S::Stream>>,
}

impl<S: Source> Pooled<S> {
    /// Makes a pool over `source`.
    pub fn new(
        source: S,
        options: PoolOptions,
        need: Need,
        open: impl Fn() -> Result<S::Stream> + Send + Sync + 'static,
    ) -> Result<Self> {
        let mut options = options.limit(need.bytes);
        if need.at_once {
            // One segment for everything.
            options = options.small(0, 0);
        }
        let pool = DevicePool::new(source, options)?;
        let mut first = None;
        if need.at_once {
            let stream = open()?;
            pool.preallocate(need.bytes, &stream)?;
            first = Some(stream);
        }
        Ok(Self { pool, open: Box::new(open), first: std::sync::Mutex::new(first) })
    }
}

impl<S> Allocator for Pooled<S>
where
    S: Source + Send + Sync,
    S::Stream: Send + Sync,
    DevicePool<S>: Sync,
{
    type Block = Allocation;
    type Stream = S::Stream;

    fn stream(&self) -> Result<S::Stream> {
        let first = self.first.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        first.map_or_else(|| (self.open)(), Ok)
    }

    #[inline]
    fn allocate(&self, bytes: usize, stream: &S::Stream) -> Result<Option<Allocation>> {
        match self.pool.allocate_raw(bytes, 1, stream) {
            Ok(block) => Ok(Some(block)),
            Err(PoolError::OutOfMemory(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    #[inline]
    fn free(&self, block: Allocation, _: &S::Stream) -> Result<()> {
        Ok(self.pool.deallocate(block)?)
    }

    fn synchronize(&self, stream: &S::Stream) -> Result<()> {
        Ok(stream.synchronize()?)
    }

    fn reserved(&self) -> Result<Option<u64>> {
        Ok(Some(self.pool.stats().reserved.peak))
    }
}
