//! Blocks that were never freed.

#![forbid(unsafe_code)]

use core::fmt;
use core::panic::Location;

/// A block that was never freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Address of the block.
    pub address: usize,
    /// Requested bytes.
    pub bytes: u64,
    /// Where it was requested, if [`Checks::sites`](super::Checks::sites) is on.
    pub site: Option<&'static Location<'static>>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} were not freed", self.bytes, self.address)?;
        match self.site {
            Some(site) => write!(f, "; allocated at {site}"),
            None => Ok(()),
        }
    }
}

/// The function that is called with a pool's leaks.
pub(super) type LeakHook = std::boxed::Box<dyn FnOnce(&[Leak]) + Send>;
