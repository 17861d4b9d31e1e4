//! The subject without an allocator.

use anyhow::Result;

use super::Allocator;

/// Allocates nothing.
pub struct Nothing;

impl Allocator for Nothing {
    type Block = usize;
    type Stream = ();

    fn stream(&self) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn allocate(&self, bytes: usize, (): &()) -> Result<Option<usize>> {
        Ok(Some(bytes))
    }

    #[inline]
    fn free(&self, _: usize, (): &()) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, (): &()) -> Result<()> {
        Ok(())
    }
}
