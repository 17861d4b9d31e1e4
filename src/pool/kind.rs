//! The kinds of memory that pools and buffers lie in.

#![forbid(unsafe_code)]

use super::Source;
use crate::region::Capabilities;
use core::fmt;

/// The kind of memory that a pool or a buffer lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MemoryKind {
    /// A device's own memory.
    Device,
    /// Managed memory: one address on host and device, and it moves to where it is used.
    Managed,
    /// Managed memory advised as read-mostly, so that every reader may have its own copy.
    ReadMostly,
    /// Page-locked host memory, which devices read and write in place over the bus.
    Pinned,
    /// Ordinary host memory: only the CPU can access it, and copies to and from it are not asynchronous.
    Host,
}

impl MemoryKind {
    pub(crate) fn of<S: Source>(source: &S) -> Self {
        let can = source.capabilities();
        if can.contains(Capabilities::DEVICE) || !S::CPU_VISIBLE {
            Self::Device
        } else if can.contains(Capabilities::PINNED) {
            Self::Pinned
        } else if can.contains(Capabilities::DMA) {
            Self::Managed
        } else {
            Self::Host
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Managed => "managed memory",
            Self::ReadMostly => "read-mostly managed memory",
            Self::Pinned => "pinned memory",
            Self::Host => "host memory",
        })
    }
}
