//! The machine's NUMA nodes: processors with the memory near them, on Linux and Android.
//!
//! [`Mapping::node`](super::Mapping::node) requests memory of one node, and [`Zones::nearest`](crate::front::zones::Zones::nearest)
//! prefers the calling thread's node:
//!
//! ```
//! use allotment::os::{Mapping, numa};
//! use allotment::region::Capabilities;
//! use allotment::zones::{Zone, Zones};
//! use allotment::{Heap, Tlsf};
//!
//! static HEAPS: [Heap<Tlsf>; 2] = [const { Heap::empty() }; 2];
//! static ZONES: Zones<2> = Zones::new([
//!     Zone::new("node 0", &HEAPS[0], Capabilities::empty()),
//!     Zone::new("node 1", &HEAPS[1], Capabilities::empty()),
//! ])
//! .nearest(&|| numa::current().unwrap_or(0) as usize);
//!
//! # #[cfg(target_os = "linux")]
//! for node in numa::nodes()?.into_iter().filter(|node| node.memory > 0).take(2) {
//!     let mapping = Mapping::new(1 << 20).node(node.number);
//!     // SAFETY: the mapping is new, and it is never unmapped.
//!     unsafe { HEAPS[node.number as usize].claim(mapping.map()?) }?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

use super::pressure::{contents, figure, malformed};
use std::io;
use std::path::Path;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// The kernel's number of the node.
    pub number: u32,
    /// Numbers of the node's processors, ascending. A node may have none.
    pub processors: Vec<u32>,
    /// Bytes of the node's memory; 0 if it has none.
    pub memory: u64,
    /// Bytes of the node's memory that nothing uses, not even cached files.
    pub free: u64,
    /// Costs of an access from this node to each node, in the order of [`nodes`]; 10 within a node.
    pub distances: Vec<u32>,
}

/// Reads the nodes of the machine, ascending by number: one on most machines, and none on systems without nodes.
///
/// # Errors
///
/// The error of reading a file, and [`io::ErrorKind::InvalidData`] if a file is not in the documented form.
pub fn nodes() -> io::Result<Vec<Node>> {
    nodes_at("/")
}

/// Reads the nodes from the files under `root` instead of `/`.
///
/// # Errors
///
/// As for [`nodes`].
pub fn nodes_at(root: impl AsRef<Path>) -> io::Result<Vec<Node>> {
    let folder = root.as_ref().join("sys/devices/system/node");
    let Some(numbers) = list(&folder.join("online"))? else { return Ok(Vec::new()) };
    let node = |number| {
        let folder = folder.join(std::format!("node{number}"));
        let file = folder.join("meminfo");
        let text = contents(&file)?.unwrap_or_default();
        let figure = |name| figure(&file, &text, name).map(Option::unwrap_or_default);
        let (memory, free) = (figure("MemTotal:")?, figure("MemFree:")?);
        let file = folder.join("distance");
        let text = contents(&file)?.unwrap_or_default();
        let distances = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        Ok(Node {
            number,
            processors: list(&folder.join("cpulist"))?.unwrap_or_default(),
            memory,
            free,
            distances: distances.map_err(|_| malformed(&file, &text))?,
        })
    };
    numbers.into_iter().map(node).collect()
}

/// Returns the number of the node on which the calling thread runs; `None` if unknown. The thread may run elsewhere as soon as this
/// returns. Takes one system call.
pub fn current() -> Option<u32> {
    #[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
    return super::mapping::current_node();
    #[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
    None
}

/// Reads a list of numbers such as `0-3,8`.
fn list(file: &Path) -> io::Result<Option<Vec<u32>>> {
    let Some(text) = contents(file)? else { return Ok(None) };
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last @ ..=MOST)) = (first.parse(), last.parse::<u32>()) else {
            return Err(malformed(file, &text));
        };
        numbers.extend(first..=last);
    }
    Ok(Some(numbers))
}

/// Largest accepted number of a processor or node, far beyond what kernels support.
const MOST: u32 = 1 << 20;
