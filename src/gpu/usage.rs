//! Counts the accesses to buffers as they happen.

#![forbid(unsafe_code)]

use crate::lock::Mutex;
use crate::pool::MemoryKind;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

/// One use of a buffer's memory that this module can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Touch {
    /// A copy from host memory writes it.
    FromHost,
    /// A copy to host memory reads it.
    ToHost,
    /// The CPU reads it in place.
    HostRead,
    /// The CPU writes it in place.
    HostWrite,
    /// A device copies within its memory, or fills it.
    OnDevice,
    /// The program passes it to kernels.
    Kernel,
}

/// The caller's expectation of how memory will be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Access {
    /// The caller does not know. Measured accesses of the same call site decide, if there are any.
    #[default]
    Unknown,
    /// Written once, then read, also by the host.
    ReadOnly,
    /// Written once, by the host or a kernel, then read by kernels.
    WriteOnce,
    /// Every value is written once and read once, in order.
    Streaming,
    /// Kernels read and write it in any order.
    Random,
    /// The host reads or writes it more than kernels do.
    HostHeavy,
}

/// Numbers of uses of memory that this crate can see. It cannot see a kernel launched with a bare address; a kernel launched through
/// [`Buffer::with_cudarc`](crate::gpu::Buffer::with_cudarc) counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Usage {
    /// Number of copies from host memory.
    pub from_host: u64,
    /// Number of copies to host memory.
    pub to_host: u64,
    /// Number of times that the CPU read the memory in place.
    pub host_reads: u64,
    /// Number of times that the CPU wrote the memory in place.
    pub host_writes: u64,
    /// Number of copies and fills by the device.
    pub on_device: u64,
    /// Number of times that the memory was passed to kernels.
    pub kernels: u64,
    /// Total bytes of all copies from and to host memory.
    pub host_bytes: u64,
}

impl Usage {
    /// Returns the number of accesses by or for the host.
    pub(super) const fn by_host(&self) -> u64 {
        self.from_host + self.to_host + self.host_reads + self.host_writes
    }

    /// Returns the number of accesses by the device alone.
    pub(super) const fn by_device(&self) -> u64 {
        self.on_device + self.kernels
    }

    /// Returns the number of times that the host changed the memory.
    pub(super) const fn host_changes(&self) -> u64 {
        self.from_host + self.host_writes
    }
}

/// Number of times that each [`Touch`] happened, by its discriminant, and then the bytes of all copies.
#[derive(Debug, Default)]
struct Counters([AtomicU64; 7]);

impl Counters {
    fn count(&self, touch: Touch, bytes: usize) {
        self.0[touch as usize].fetch_add(1, Ordering::Relaxed);
        if matches!(touch, Touch::FromHost | Touch::ToHost) {
            self.0[6].fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Usage {
        let [from_host, to_host, host_reads, host_writes, on_device, kernels, host_bytes] =
            self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed));
        Usage { from_host, to_host, host_reads, host_writes, on_device, kernels, host_bytes }
    }
}

/// The call site that requested a buffer.
pub(in crate::gpu) type Site = &'static Location<'static>;

/// The usage of a live buffer.
#[derive(Debug)]
pub(super) struct Record {
    pub number: u64,
    pub site: Site,
    pub address: usize,
    pub bytes: usize,
    pub access: Access,
    pub kind: MemoryKind,
    own: Counters,
    /// The counters of all buffers from the same call site.
    shared: Arc<Counters>,
}

impl Record {
    /// Counts a use. O(1), without a lock.
    pub(super) fn touch(&self, touch: Touch, bytes: usize) {
        self.own.count(touch, bytes);
        self.shared.count(touch, bytes);
    }

    pub(super) fn usage(&self) -> Usage {
        self.own.read()
    }
}

/// All live buffers, and all call sites so far.
#[derive(Debug, Default)]
pub(super) struct Registry(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    next: u64,
    live: HashMap<u64, Arc<Record>>,
    sites: HashMap<Site, Arc<Counters>>,
}

impl Registry {
    /// Returns the accesses measured for buffers of a call site. O(1) expected.
    pub(super) fn of_site(&self, site: Site) -> Usage {
        self.0.lock().sites.get(site).map(|counters| counters.read()).unwrap_or_default()
    }

    /// Adds a buffer. O(1) expected.
    pub(super) fn enter(
        &self,
        site: Site,
        address: usize,
        bytes: usize,
        access: Access,
        kind: MemoryKind,
    ) -> Arc<Record> {
        let mut tables = self.0.lock();
        let shared = tables.sites.entry(site).or_default().clone();
        let number = tables.next;
        tables.next += 1;
        let own = Counters::default();
        let record = Arc::new(Record { number, site, address, bytes, access, kind, own, shared });
        tables.live.insert(number, record.clone());
        record
    }

    /// Removes a buffer. O(1) expected.
    pub(super) fn leave(&self, record: &Record) {
        self.0.lock().live.remove(&record.number);
    }

    /// Returns all live buffers, the oldest first. O(buffers · log buffers).
    pub(super) fn live(&self) -> Vec<Arc<Record>> {
        let mut live: Vec<_> = self.0.lock().live.values().cloned().collect();
        live.sort_unstable_by_key(|record| record.number);
        live
    }
}
